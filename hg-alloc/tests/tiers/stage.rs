//! Where scenarios run: in a child that is this test again, as the same user or as nobody.

use super::kernel::Changed;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

const SCENARIO: &str = "HG_TEST_SCENARIO";
const USER: &str = "HG_TEST_USER";
const NOBODY: u32 = 65534;

/// Variable with the RLIMIT_MEMLOCK of a scenario, bytes.
pub(crate) const MEMLOCK: &str = "HG_TEST_MEMLOCK";

/// Scenarios run one after the other.
static MACHINE: Mutex<()> = Mutex::new(());

/// Who runs a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    /// Whoever runs the tests.
    Same,
    /// Nobody, without privileges: root becomes that, others are.
    Nobody,
}

pub(crate) fn is_root() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// False in the child, which is to do the scenario's work. In the parent it runs a child for each user, and returns true.
pub(crate) fn in_child(name: &str, variables: &[(&str, &str)], users: &[User]) -> bool {
    in_child_with(name, variables, users, || Ok(None))
}

/// As [`in_child`], on a machine that `set_up` changed; it may say why that cannot be.
pub(crate) fn in_child_with(
    name: &str,
    variables: &[(&str, &str)],
    users: &[User],
    set_up: impl FnOnce() -> Result<Option<Changed>, &'static str>,
) -> bool {
    if std::env::var(SCENARIO).as_deref() == Ok(name) {
        if let Ok(bytes) = std::env::var(MEMLOCK) {
            limit_locks(bytes.parse().expect("bytes"));
        }
        if std::env::var(USER).as_deref() == Ok("nobody") && is_root() {
            become_nobody();
        }
        return false;
    }
    // What one scenario changes of the machine, another would see.
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let _changed = match set_up() {
        Ok(changed) => changed,
        Err(reason) => {
            println!("skipped: {name}: {reason}");
            return true;
        }
    };
    for user in users {
        // Without root, who runs the tests is a nobody already.
        if *user == User::Nobody && !is_root() && users.contains(&User::Same) {
            continue;
        }
        let text = run(name, variables, *user);
        if text.contains("skipped:") {
            println!("{name} as {user:?}:\n{text}");
        }
    }
    true
}

fn run(name: &str, variables: &[(&str, &str)], user: User) -> String {
    let output = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", name, "--nocapture"])
        .env(SCENARIO, name)
        .env(USER, if user == User::Nobody { "nobody" } else { "same" })
        .envs(variables.iter().copied())
        .output()
        .expect("the test program runs again");
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{name} as {user:?} in its child, {}:\n{text}", output.status);
    assert!(text.contains("1 passed"), "{name} ran in no child:\n{text}");
    text
}

fn limit_locks(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: the structure is valid.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) }, 0);
}

/// Gives up all privileges. Before the first allocation from hg, whose memory is then nobody's from the start.
fn become_nobody() {
    // SAFETY: plain system calls on integers; the list of groups is empty.
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setgid(NOBODY), 0);
        assert_eq!(libc::setuid(NOBODY), 0);
        // The change of user closed /proc/self to the process itself, as it does to daemons.
        assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
    }
    assert_ne!(std::fs::read_to_string("/proc/self/smaps_rollup").ok(), None);
}

/// Closes /proc/self to the process itself, as it is for daemons that changed their user.
pub(crate) fn hide_proc() {
    // SAFETY: plain system call on integers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }, 0);
}

/// Runs a function in a forked child of this process. Returns the child's wait status.
pub(crate) fn forked(child: impl FnOnce() -> bool) -> libc::c_int {
    forked_meanwhile(child, || {})
}

/// As [`forked`], after the parent did something while the child was there.
pub(crate) fn forked_meanwhile(child: impl FnOnce() -> bool, parent: impl FnOnce()) -> libc::c_int {
    let mut pipe = [0; 2];
    // SAFETY: the kernel writes two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: the child calls nothing but the given function, which only allocates from hg, and `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "a child can be forked");
    if pid == 0 {
        let mut byte = 0u8;
        // SAFETY: the descriptors are this function's; the read ends when the parent closes its end.
        unsafe {
            libc::close(pipe[1]);
            libc::read(pipe[0], (&raw mut byte).cast(), 1);
        }
        let code = i32::from(!child());
        // SAFETY: ends the child.
        unsafe { libc::_exit(code) };
    }
    parent();
    // SAFETY: the descriptors are this function's.
    unsafe {
        libc::close(pipe[0]);
        libc::close(pipe[1]);
    }
    let mut status = 0;
    // SAFETY: the kernel writes the status.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}
