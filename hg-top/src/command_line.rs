//! What a process was started as, from its memory.
//!
//! The kernel's own file, `/proc/PID/cmdline`, is read only where the memory may not be: it waits for a page of a file on FUSE
//! in a way that not even the end of hg-top interrupts.

use std::io;

use procfs::process::Stat;

use crate::escape;
use crate::process::{CAP, read};
use crate::source::stats::memory::Memory;

/// Program and arguments of a process as one line; its name if there are none. May take as long as the process pleases.
pub(crate) fn role_of(pid: u32, stat: &Stat, comm: &str) -> String {
    let place = |field: Option<u64>| field.filter(|address| *address > 0);
    let from_memory = match (place(stat.arg_start), place(stat.arg_end)) {
        (Some(start), Some(end)) => command_line(pid, start, end, place(stat.env_end)).ok(),
        // The kernel does not tell us where it lies.
        _ => None,
    };
    role(&from_memory.or_else(|| read(&format!("/proc/{pid}/cmdline")).ok()).unwrap_or_default(), comm)
}

fn command_line(pid: u32, start: u64, end: u64, environment_end: Option<u64>) -> io::Result<Vec<u8>> {
    let part = |start: u64, end: u64| {
        let mut bytes = vec![0; end.saturating_sub(start).min(CAP) as usize];
        Memory::of(pid).read_present(start, &mut bytes).map(|_| bytes)
    };
    let mut line = part(start, end)?;
    // A title that a server wrote over its arguments may go on in its environment.
    if line.last().is_some_and(|last| *last != 0)
        && let Some(environment_end) = environment_end
    {
        let rest = part(start.saturating_add(line.len() as u64), environment_end)?;
        line.extend(rest.split(|byte| *byte == 0).next().unwrap_or_default());
    }
    Ok(line)
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
    fn the_kernel_and_the_memory_say_the_same() {
        let me = std::process::id();
        let stat = crate::process::stat(&format!("/proc/{me}/stat")).unwrap();
        let (start, end) = (stat.arg_start.unwrap(), stat.arg_end.unwrap());
        let kernel = read("/proc/self/cmdline").unwrap();
        assert_eq!(command_line(me, start, end, None).unwrap(), kernel);
        // As if the last argument were a title that goes on: the rest of it follows.
        assert_eq!(command_line(me, start, end - 2, Some(end + 9)).unwrap(), kernel[..kernel.len() - 1]);
        assert_eq!(role_of(me, &stat, "comm"), role(&kernel, "comm"));
        assert_eq!(command_line(me, 4096, 8192, Some(9000)).unwrap(), [0; 4096], "there is nothing");
        assert_eq!(command_line(me, end, start, None).unwrap(), [0; 0]);
    }
}
