//! A process on hg that gets into trouble when told: a live target for tests.
//!
//! It prints `ready`, and then answers each line of its stdin: `stall` provokes a lock stall, `fault` frees a cell twice,
//! `exec PROGRAM [ARGUMENT]` executes another program in its place. The answer is `done` when it has happened, or why it has not.

use std::io::BufRead;
use std::os::unix::process::CommandExt;

use hg_stress::config::Sizes;
use hg_stress::faults::{Fault, Faults};
use hg_stress::rng::Rng;
use hg_stress::stall;

#[global_allocator]
static ALLOCATOR: hg_alloc::HgAlloc = hg_alloc::HgAlloc::new();

/// How long a stall lasts, ms.
const STALL_MS: u64 = 20;

fn main() {
    let page = hg_alloc::stats_page().expect("it runs on hg");
    let faults = Faults::new(page, Sizes::Mixed).expect("classes to spare");
    let mut rng = Rng::new(1, 1);
    println!("ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("stall", _) => match stall::provoke(page, STALL_MS, || false).stalls {
                0 => println!("no stall came about"),
                _ => println!("done"),
            },
            ("fault", _) => match faults.inject(Fault::DoubleFree, &mut rng) {
                Ok(()) => println!("done"),
                Err(unanswered) => println!("{unanswered}"),
            },
            ("exec", command) => {
                let (program, argument) = command.split_once(' ').unwrap_or((command, ""));
                println!(
                    "{}",
                    std::process::Command::new(program).args((!argument.is_empty()).then_some(argument)).exec()
                );
            }
            (other, _) => println!("no such trouble: {other}"),
        }
    }
}
