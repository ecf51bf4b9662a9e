//! System calls that fail on purpose, by filters of the kernel: no hook in the allocator is needed.
//!
//! A filter holds for the thread that installs it, for ever. [`fail`] lets a call fail each time; with [`watched`] another
//! thread decides each time ([`Watch::decide`]), so that the first, the third or every second one fails.

/// Offsets in `struct seccomp_data`, and what a filter is made of (linux/seccomp.h, linux/bpf_common.h).
const NUMBER: u32 = 0;
const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;
const USER_NOTIF: u32 = 0x7fc0_0000;

const fn statement(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Installs a filter that gives `action` for these calls; returns what the kernel does.
fn install(calls: &[i64], action: u32, flags: u64) -> i64 {
    let mut program = vec![statement(LOAD, 0, 0, NUMBER)];
    for (index, call) in calls.iter().enumerate() {
        let to_action = (calls.len() - index) as u8;
        program.push(statement(JUMP_IF_EQUAL, to_action, 0, *call as u32));
    }
    program.push(statement(RETURN, 0, 0, ALLOW));
    program.push(statement(RETURN, 0, 0, action));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the filter outlives the call; it concerns the calling thread alone.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        libc::syscall(libc::SYS_seccomp, 1, flags, &raw const filter)
    }
}

/// Lets a system call of this thread fail from now on.
pub(crate) fn fail(call: i64, errno: i32) {
    let status = install(&[call], ERRNO | errno as u32, 0);
    assert_eq!(status, 0, "seccomp: {}", std::io::Error::last_os_error());
}

/// The side of a filter that decides.
pub(crate) struct Watch(i32);

/// Lets another thread decide on these calls of this one. `None` where the kernel offers no such thing, or somebody watches
/// already.
pub(crate) fn watched(calls: &[i64]) -> Option<Watch> {
    const NEW_LISTENER: u64 = 1 << 3;
    let fd = install(calls, USER_NOTIF, NEW_LISTENER);
    (fd >= 0).then_some(Watch(fd as i32))
}

impl Watch {
    /// Waits up to 10 ms for a call, and lets it happen if `verdict`, which gets its number, says `None`, or fail with an errno.
    pub(crate) fn decide(&self, verdict: impl FnOnce(i64) -> Option<i32>) {
        const SECCOMP_IOCTL_NOTIF_RECV: u64 = 0xc050_2100;
        const SECCOMP_IOCTL_NOTIF_SEND: u64 = 0xc018_2101;
        const CONTINUE: u32 = 1;
        let mut poll = libc::pollfd { fd: self.0, events: libc::POLLIN, revents: 0 };
        // SAFETY: the kernel reads and writes the structures given, which have the kernel's shape.
        unsafe {
            if libc::poll(&raw mut poll, 1, 10) != 1 || poll.revents & libc::POLLIN == 0 {
                return;
            }
            let mut call: libc::seccomp_notif = std::mem::zeroed();
            if libc::ioctl(self.0, SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) != 0 {
                return;
            }
            let mut answer: libc::seccomp_notif_resp = std::mem::zeroed();
            answer.id = call.id;
            match verdict(i64::from(call.data.nr)) {
                None => answer.flags = CONTINUE,
                Some(errno) => answer.error = -errno,
            }
            libc::ioctl(self.0, SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer);
        }
    }
}
