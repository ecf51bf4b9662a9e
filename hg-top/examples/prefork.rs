//! Processes that share an arena of hg: a live target for tests.
//!
//! `prefork WORKERS` makes a shared arena and forks workers, each with an arena of its own beside it, that take and free blocks
//! of the shared one without pause. It prints `ready PID…`, forks another worker for each line of its stdin, whose pid it prints,
//! and ends when that is closed. `prefork named NAME` makes a named arena, or opens the one there is, and works alone.

use std::hint::black_box;
use std::io::BufRead;

use hg_alloc::shared::{self, Arena, Options};

/// Blocks of one burst: more than a front cache holds, so that locks are taken all the time.
const BURST: usize = 512;

/// Their size, bytes.
const SIZE: usize = 4096;

/// The size of a large object, bytes.
const LARGE: usize = 300 << 10;

/// The cap of each arena, bytes.
const CAP: u64 = 128 << 20;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["named", name] => named(name),
        [workers] => prefork(workers.parse().expect("a number of workers")),
        _ => panic!("prefork WORKERS, or prefork named NAME"),
    }
}

fn prefork(workers: usize) {
    let arena = shared::create(&Options::shared("shm", 4 << 20, CAP)).expect("an arena");
    arena.set_role("main");
    // SAFETY: nobody here waits for children: the kernel buries them.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let pids: Vec<String> = (1..=workers).map(|number| worker(arena, number).to_string()).collect();
    println!("ready {}", pids.join(" "));
    for (more, _) in (workers + 1..).zip(std::io::stdin().lock().lines().map_while(Result::ok)) {
        println!("{}", worker(arena, more));
    }
}

/// Forks one; its pid. It ends with this process.
fn worker(arena: &'static Arena, number: usize) -> u32 {
    // SAFETY: this process has one thread, so the child is as good as it.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no child");
    if pid > 0 {
        return pid as u32;
    }
    // SAFETY: it only asks for a signal when the parent ends.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let own = shared::create(&Options::private("pkg", 2 << 20, 8 << 20)).expect("an arena");
    black_box(own.malloc(100));
    arena.set_role(&format!("worker {number}"));
    loop {
        work(arena);
    }
}

fn named(name: &str) {
    let options = Options::shared(name, 4 << 20, CAP);
    let arena = shared::open_named(name).or_else(|_| shared::create_named(&options)).expect("an arena");
    arena.set_role(&format!("process {}", std::process::id()));
    black_box(arena.malloc(SIZE));
    println!("ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        assert_eq!(line, "unlink", "no other word");
        shared::unlink_named(name).expect("its name");
        println!("done");
    }
}

fn work(arena: &Arena) {
    let mut blocks = [std::ptr::null_mut(); BURST];
    blocks.iter_mut().for_each(|block| *block = black_box(arena.malloc(SIZE)));
    let large = black_box(arena.malloc(LARGE));
    blocks.iter().for_each(|block| arena.free(*block));
    arena.free(large);
}
