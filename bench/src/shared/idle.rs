//! Bytes that caches keep while many processes idle: caches are the CPUs', so that more processes keep no more.
//!
//! Caches grow with what goes through them. So few and many processes do the same turns on the same CPUs, in the same order, and only
//! who does them differs.

use std::sync::atomic::Ordering::Relaxed;

use hg_alloc::shared::{self, Arena, Options};

/// Blocks that a process allocates and frees at a time.
const BLOCKS: usize = 2000;

/// How often that is done, by all processes together.
const TURNS: usize = 540;

/// Bytes in the caches of a fresh arena once so many processes used it, and are still there.
pub(crate) fn cached_bytes(processes: usize) -> Result<u64, String> {
    let arena = shared::create(&Options::shared("idle", 0, 512 << 20)).map_err(|error| error.label().to_string())?;
    let mut ends = Vec::new();
    let mut pids = Vec::new();
    let cpus = cpus()?;
    for process in 0..processes {
        let (ready, go) = (pipe()?, pipe()?);
        // SAFETY: this process has one thread.
        match unsafe { libc::fork() } {
            // SAFETY: the child waits for its parent, and dies with it; it ends without running the parent's code.
            0 => unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let turns = TURNS / processes;
                (turns * process..turns * (process + 1)).for_each(|turn| take_turn(arena, turn, &cpus));
                libc::write(ready[1], [1u8].as_ptr().cast(), 1);
                libc::read(go[0], [0u8].as_mut_ptr().cast(), 1);
                libc::_exit(0);
            },
            pid if pid < 0 => return Err(std::io::Error::last_os_error().to_string()),
            pid => pids.push(pid),
        }
        // SAFETY: reads a byte into a local one.
        unsafe { libc::read(ready[0], [0u8].as_mut_ptr().cast(), 1) };
        ends.push((ready, go));
    }
    let bytes = bytes_in_caches(arena);
    for ((ready, go), pid) in ends.into_iter().zip(pids) {
        // SAFETY: wakes the child, waits for it, and closes what this function opened.
        unsafe {
            libc::write(go[1], [1u8].as_ptr().cast(), 1);
            libc::waitpid(pid, std::ptr::null_mut(), 0);
            for fd in [ready, go].iter().flatten() {
                libc::close(*fd);
            }
        }
    }
    Ok(bytes)
}

fn pipe() -> Result<[i32; 2], String> {
    let mut ends = [0; 2];
    // SAFETY: the call fills the array.
    match unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } {
        0 => Ok(ends),
        _ => Err(std::io::Error::last_os_error().to_string()),
    }
}

/// CPUs that this process may run on.
fn cpus() -> Result<Vec<usize>, String> {
    // SAFETY: all zero is an empty set, which the call fills.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        match libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) {
            0 => Ok((0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect()),
            _ => Err(std::io::Error::last_os_error().to_string()),
        }
    }
}

/// What a worker of a server does between two calls: some blocks of many sizes, all freed again.
fn take_turn(arena: &Arena, turn: usize, cpus: &[usize]) {
    // SAFETY: all zero is an empty set; moves the calling thread alone.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpus[turn % cpus.len()], &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
    let mut blocks = [std::ptr::null_mut(); BLOCKS];
    blocks
        .iter_mut()
        .enumerate()
        .for_each(|(index, block)| *block = arena.malloc(16 + (index * 97 + turn * 57) % 4000));
    blocks.iter().for_each(|block| arena.free(*block));
}

/// Cells that are free, and not with their spans.
fn bytes_in_caches(arena: &Arena) -> u64 {
    let classes = arena.stats_page().classes.iter();
    let transfer: u64 =
        classes.map(|class| class.transfer_cells.load(Relaxed) * u64::from(class.size.load(Relaxed))).sum();
    // Nothing is live, so that these are in front caches.
    arena.live_bytes() + transfer
}
