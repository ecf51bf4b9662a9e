//! Numbers and record layouts of tracepoints, from tracefs: where it is mounted, or else from an instance of our own that is
//! mounted nowhere.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bytes of one file under tracefs that are read.
const CAP: u64 = 64 << 10;

const FSCONFIG_CMD_CREATE: libc::c_long = 6;

/// The root of a tracefs.
pub(super) struct Tracefs(OwnedFd);

impl Tracefs {
    /// Opens tracefs.
    ///
    /// # Errors
    /// If the kernel has none, or we may not.
    pub(super) fn open() -> io::Result<Tracefs> {
        let root = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
            .into_iter()
            .find(|root| std::fs::exists(format!("{root}/events")).unwrap_or(false));
        match root {
            Some(root) => Ok(Tracefs(File::open(root)?.into())),
            None => Tracefs::private(),
        }
    }

    /// An instance without a place in the file tree: nobody else sees it, and it goes with its descriptor.
    fn private() -> io::Result<Tracefs> {
        // SAFETY: the arguments are a terminated string and numbers; each descriptor returned is ours alone.
        unsafe {
            let context = descriptor(libc::syscall(libc::SYS_fsopen, c"tracefs".as_ptr(), 0))?;
            let nothing = std::ptr::null::<libc::c_char>();
            let made = libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), FSCONFIG_CMD_CREATE, nothing, nothing, 0);
            if made < 0 {
                return Err(io::Error::last_os_error());
            }
            descriptor(libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), 0, 0)).map(Tracefs)
        }
    }

    fn read(&self, path: &CStr) -> io::Result<String> {
        // SAFETY: the path is terminated, and the descriptor returned is ours alone.
        let fd = unsafe {
            descriptor(libc::c_long::from(libc::openat(
                self.0.as_raw_fd(),
                path.as_ptr(),
                libc::O_RDONLY | libc::O_CLOEXEC,
            )))?
        };
        let mut text = String::new();
        File::from(fd).take(CAP).read_to_string(&mut text)?;
        Ok(text)
    }

    /// The number of `task:task_newtask`.
    ///
    /// # Errors
    /// If the kernel has no such tracepoint, or its record is not what the BPF program reads.
    pub(super) fn newtask(&self) -> io::Result<u64> {
        let format = self.read(c"events/task/task_newtask/format")?;
        // Must agree with `NEWTASK_PID` and `NEWTASK_CLONE_FLAGS` of the BPF program.
        if !(has_field(&format, "pid", 8, 4) && has_field(&format, "clone_flags", 32, 8)) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "unknown record of task_newtask"));
        }
        self.read(c"events/task/task_newtask/id")?.trim().parse().map_err(io::Error::other)
    }
}

/// Whether a format description has a field of this name, offset and size.
fn has_field(format: &str, name: &str, offset: u32, size: u32) -> bool {
    format.lines().filter_map(|line| line.trim().strip_prefix("field:")).any(|field| {
        let mut parts = field.split(';').map(str::trim);
        let named = parts.next().and_then(|declaration| declaration.rsplit(' ').next()) == Some(name);
        named && parts.next() == Some(&format!("offset:{offset}")) && parts.next() == Some(&format!("size:{size}"))
    })
}

/// # Safety
/// If `result` is not negative, it is a descriptor that nobody else owns.
unsafe fn descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as this function demands.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_compared_whole() {
        let format = "name: task_newtask\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
                      \tfield:pid_t pid;\toffset:8;\tsize:4;\tsigned:1;\n\tfield:char comm[16];\toffset:12;\tsize:16;\n\
                      \tfield:u64 clone_flags;\toffset:32;\tsize:8;\tsigned:0;\n";
        assert!(has_field(format, "pid", 8, 4) && has_field(format, "clone_flags", 32, 8));
        assert!(!has_field(format, "pid", 4, 4), "common_pid is another field");
        assert!(!has_field(format, "clone_flags", 24, 8) && !has_field(format, "comm", 12, 16));
        assert!(!has_field("field:", "pid", 8, 4) && !has_field("field:pid_t pid;", "pid", 8, 4));
    }
}
