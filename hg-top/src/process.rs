//! What /proc tells about a process: who it is, what the kernel counts for it, how its threads fare.
//!
//! Files are size-capped and every string is escaped, as a target writes its own comm and command line.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use procfs::{CurrentSI, FromRead};

use crate::escape;
use crate::model::{Identity, KernelMemory, Part};

/// Bytes of a file under /proc that are read.
const CAP: u64 = 64 << 10;

/// Threads of a process that are looked through for one.
const MAX_TASKS: usize = 4096;

/// A process under /proc.
pub struct Process;

impl Process {
    /// Who `pid` is. The kernel looks into its memory for the command line: only where no file can stand behind that, but under
    /// its memory map, which the process may hold up.
    pub fn identity(pid: u32) -> io::Result<Identity> {
        let stat = stat(&format!("/proc/{pid}/stat"))?;
        let outline = identity(pid, &stat);
        let line = read(&format!("/proc/{pid}/cmdline")).unwrap_or_default();
        Ok(Identity { role: role(&line, &outline.comm), ..outline })
    }

    /// The same by what the kernel itself knows, which is told at once: its role is its name.
    pub fn outline(pid: u32) -> io::Result<Identity> {
        Ok(identity(pid, &stat(&format!("/proc/{pid}/stat"))?))
    }

    /// Clock ticks from boot to the start of `pid`: an error or another number means that it is gone.
    pub fn start_ticks(pid: u32) -> io::Result<u64> {
        let stat = stat(&format!("/proc/{pid}/stat"))?;
        if matches!(stat.state, 'Z' | 'X') { Err(io::ErrorKind::NotFound.into()) } else { Ok(stat.starttime) }
    }

    /// State of the main thread as one letter.
    pub fn state(pid: u32) -> io::Result<char> {
        Ok(stat(&format!("/proc/{pid}/stat"))?.state)
    }

    /// What the kernel counts for `pid`.
    pub fn memory(pid: u32) -> io::Result<KernelMemory> {
        let bytes = read(&format!("/proc/{pid}/status"))?;
        let status = procfs::process::Status::from_read(bytes.as_slice()).map_err(io::Error::other)?;
        let kib = |field: Option<u64>| field.unwrap_or(0).saturating_mul(1024);
        Ok(KernelMemory {
            rss: kib(status.vmrss),
            hugetlb: kib(status.hugetlbpages),
            rss_file: kib(status.rssfile),
            rss_shmem: kib(status.rssshmem),
            threads: status.threads,
            part: None,
        })
    }

    /// Its part of the memory that it shares with others. The kernel walks all that the process maps: call it in a thread that
    /// can be left behind, and not too often.
    pub fn part(pid: u32) -> io::Result<Part> {
        Ok(part(&read(&format!("/proc/{pid}/smaps_rollup"))?))
    }

    /// Processes whose parent is one of `parents`, all in one walk of /proc.
    pub fn children(parents: &[u32]) -> io::Result<Vec<u32>> {
        Ok(std::fs::read_dir("/proc")?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|pid: &u32| {
                let parent = stat(&format!("/proc/{pid}/stat")).map(|stat| stat.ppid as u32);
                parent.is_ok_and(|parent| parents.contains(&parent))
            })
            .collect())
    }
}

/// The state of a thread that waits for a `SIGCONT`, or for its tracer.
pub const STOPPED: &str = "stopped";

/// A thread as it is now: its name and what it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its name, escaped.
    pub comm: String,
    /// `running`, `preempted or runnable`, `sleeping`, `stopped`, ... in words.
    pub state: &'static str,
}

impl Thread {
    /// Looks at thread `tid` of process `pid`.
    pub fn look(pid: u32, tid: u32) -> Thread {
        match stat(&format!("/proc/{pid}/task/{tid}/stat")) {
            Ok(stat) => Thread { comm: escape::text(&stat.comm), state: state_word(stat.state) },
            Err(_) => Thread { comm: String::new(), state: "dead" },
        }
    }
}

/// A thread, with the process that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
}

/// The thread that `asker`, and each process of its pid namespace, knows as `tid`. It is a thread of one of `among`: in a
/// namespace of their own only these are looked through. `None` if there is none.
pub fn owner(asker: &Identity, tid: u32, among: &[&Identity]) -> Option<Owner> {
    if asker.inner_pid == asker.pid {
        let bytes = read(&format!("/proc/{tid}/status")).ok()?;
        let status = procfs::process::Status::from_read(bytes.as_slice()).ok()?;
        let pid = status.tgid as u32;
        return among.iter().any(|process| process.pid == pid).then_some(Owner { pid, tid });
    }
    // Servers that share an arena seldom have threads: then the thread is the process.
    let first = among.iter().find(|process| process.inner_pid == tid);
    let exists = |owner: &Owner| std::fs::exists(format!("/proc/{}/task/{}", owner.pid, owner.tid)).unwrap_or(false);
    let of = |process: &&Identity| Owner { pid: process.pid, tid: host_tid(process.pid, tid) };
    let main = first.map(|process| Owner { pid: process.pid, tid: process.pid });
    main.filter(exists).or_else(|| among.iter().map(of).filter(|owner| owner.tid != tid).find(exists))
}

/// The kernel's id of the thread that process `pid` itself knows as `tid`. The two differ where the process lives in a pid
/// namespace, as in a container. `tid` itself if there is no such thread any more.
pub fn host_tid(pid: u32, tid: u32) -> u32 {
    let ids = |path: &str| {
        let status = read(path).ok()?;
        procfs::process::Status::from_read(status.as_slice()).ok()?.nspid
    };
    // From our namespace inwards: the first is what we know a thread as, the last is what it knows itself as.
    let nested = |ids: &Vec<i32>| ids.len() > 1;
    if ids(&format!("/proc/{pid}/status")).filter(nested).is_none() {
        return tid;
    }
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return tid };
    tasks
        .take(MAX_TASKS)
        .filter_map(|task| task.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .find(|task| {
            let ids = ids(&format!("/proc/{pid}/task/{task}/status")).unwrap_or_default();
            ids.last() == Some(&(tid as i32))
        })
        .unwrap_or(tid)
}

fn state_word(state: char) -> &'static str {
    match state {
        'R' => "running or preempted",
        'S' => "sleeping",
        'D' => "in uninterruptible sleep",
        'T' | 't' => STOPPED,
        'Z' | 'X' | 'x' => "dead",
        'I' => "idle",
        _ => "in an unknown state",
    }
}

fn read(path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(CAP).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn stat(path: &str) -> io::Result<procfs::process::Stat> {
    procfs::process::Stat::from_read(read(path)?.as_slice()).map_err(io::Error::other)
}

fn part(rollup: &[u8]) -> Part {
    let text = String::from_utf8_lossy(rollup);
    let mut part = Part::default();
    for line in text.lines() {
        let Some((name, kib)) = line.split_once(':') else { continue };
        let bytes = kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0).saturating_mul(1024);
        match name {
            "Pss" => part.resident = bytes,
            "Pss_File" => part.file = bytes,
            "Private_Hugetlb" => part.hugetlb_own = bytes,
            "Shared_Hugetlb" => part.hugetlb_shared = bytes,
            _ => {}
        }
    }
    part
}

/// The pid of `pid` as it knows itself.
pub fn inner_pid(pid: u32) -> u32 {
    let status = read(&format!("/proc/{pid}/status")).ok();
    let ids = status.and_then(|bytes| procfs::process::Status::from_read(bytes.as_slice()).ok()?.nspid);
    ids.and_then(|ids| ids.last().map(|id| *id as u32)).unwrap_or(pid)
}

fn identity(pid: u32, stat: &procfs::process::Stat) -> Identity {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe"))
        .map_or_else(|_| String::new(), |path| escape::bytes(path.as_os_str().as_bytes()));
    let comm = escape::text(&stat.comm);
    Identity {
        pid,
        inner_pid: inner_pid(pid),
        start_ticks: stat.starttime,
        exe,
        role: comm.clone(),
        comm,
        started: started(stat.starttime),
    }
}

/// Program and arguments as one line, without the directories of the program; kernel threads and zombies have none.
fn role(cmdline: &[u8], comm: &str) -> String {
    let mut words = cmdline.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let Some(program) = words.next() else { return comm.to_owned() };
    // Servers that write a title put all of it into the first word.
    let (path, title) = match program.iter().position(|byte| *byte == b' ') {
        Some(space) => program.split_at(space),
        None => (program, &b""[..]),
    };
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let mut line = [name, title].concat();
    for word in words {
        line.push(b' ');
        line.extend_from_slice(word);
    }
    escape::bytes(line.trim_ascii())
}

fn started(ticks: u64) -> SystemTime {
    let since_boot = Duration::from_millis(ticks.saturating_mul(1000) / procfs::ticks_per_second().max(1));
    let boot = procfs::KernelStats::current().map_or(0, |stats| stats.btime);
    UNIX_EPOCH + Duration::from_secs(boot) + since_boot
}

/// `CLOCK_MONOTONIC` now, ns: the clock of stats pages and events.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec, to which the pointer is valid.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles() {
        assert_eq!(role(b"/usr/bin/redis-server *:6379\0", "redis-server"), "redis-server *:6379");
        assert_eq!(role(b"/usr/sbin/opensips\0-f\0/etc/o.cfg\0", "opensips"), "opensips -f /etc/o.cfg");
        assert_eq!(role(b"", "kworker"), "kworker");
        assert_eq!(role(b"/bin/\x1b[2Jsh\0", "sh"), "\\x1b[2Jsh");
        assert_eq!(role(b"nginx: worker process\0\0\0", "nginx"), "nginx: worker process");
    }

    #[test]
    fn we_ourselves() {
        let pid = std::process::id();
        let me = Process::identity(pid).unwrap();
        assert_eq!(me.start_ticks, Process::start_ticks(pid).unwrap());
        assert!(me.exe.contains("hg_top"), "{}", me.exe);
        assert!(SystemTime::now().duration_since(me.started).unwrap() < Duration::from_secs(3600));
        let memory = Process::memory(pid).unwrap();
        assert!(memory.rss > 1 << 20 && memory.threads >= 1);
        assert!(Process::start_ticks(0x3fff_ffff).is_err());
        assert!(memory.part.is_none() && me.inner_pid == pid);
        let part = Process::part(pid).unwrap();
        assert!(part.resident > 1 << 19 && part.resident <= memory.rss + (8 << 20), "{part:?} {memory:?}");
        assert!(part.file > 0 && part.file < part.resident);
    }

    #[test]
    fn the_owner_of_a_thread_is_one_of_those_asked_about() {
        let me = Process::identity(std::process::id()).unwrap();
        let (tid, ready) = std::sync::mpsc::channel();
        let (done, end) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: the call has no arguments and no effect.
            tid.send(unsafe { libc::gettid() } as u32).unwrap();
            let _ = end.recv();
        });
        let tid = ready.recv().unwrap();
        assert_eq!(owner(&me, tid, &[&me]), Some(Owner { pid: me.pid, tid }));
        assert_eq!(owner(&me, tid, &[&Identity::unknown(1)]), None, "a thread of somebody else");
        assert_eq!(owner(&me, 0x3fff_ffff, &[&me]), None);
        drop(done);
        thread.join().unwrap();
    }

    #[test]
    fn a_rollup_without_figures_is_nothing() {
        let text = b"55d0-7ffe ---p 00000000 00:00 0    [rollup]\nRss: 8 kB\nPss:   12 kB\nPss_File: x kB\nShared_Hugetlb: 2048 kB\n";
        assert_eq!(part(text), Part { resident: 12 << 10, hugetlb_shared: 2 << 20, ..Part::default() });
        assert_eq!(part(b"\xff:"), Part::default());
    }

    #[test]
    fn a_dead_thread_is_dead() {
        assert_eq!(Thread::look(std::process::id(), 0x3fff_ffff).state, "dead");
        assert_ne!(Thread::look(std::process::id(), std::process::id()).state, "dead");
    }

    #[test]
    fn threads_of_a_container_have_another_id_here() {
        let me = std::process::id();
        assert_eq!(host_tid(me, me), me);
        let child = std::process::Command::new("unshare").args(["-pf", "--kill-child", "sleep", "60"]).spawn();
        let Ok(mut unshare) = child else { return eprintln!("skipped: there is no unshare here") };
        // The child of `unshare` is process 1 of its namespace.
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        let inner = loop {
            match Process::children(&[unshare.id()]).unwrap().first() {
                Some(inner) => break Some(*inner),
                None if unshare.try_wait().unwrap().is_some() || std::time::Instant::now() > deadline => break None,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let (known, unknown) = inner.map_or((0, 0), |inner| (host_tid(inner, 1), host_tid(inner, 77)));
        let _ = unshare.kill();
        let _ = unshare.wait();
        match inner {
            Some(inner) => assert_eq!((known, unknown), (inner, 77)),
            None => eprintln!("skipped: needs the right to make namespaces"),
        }
    }
}
