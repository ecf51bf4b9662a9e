//! The demo: hg-top starts itself as a child that runs a workload on hg, and watches that.
//!
//! The child's global allocator is hg because hg-top's is, so nothing has to be installed or preloaded. It dies with its
//! parent, whatever kills that.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::exit::Failure;
use crate::source::stats::discover;

/// How long the child may take until its stats page is there.
const PATIENCE: Duration = Duration::from_secs(10);

/// The running workload; ended when dropped.
pub struct Demo {
    child: Child,
}

impl Demo {
    /// Starts the workload and waits until it runs on hg.
    pub fn start() -> Result<Demo, Failure> {
        let exe = std::env::current_exe().ok().filter(|exe| exe.exists()).unwrap_or_else(|| "/proc/self/exe".into());
        let mut command = Command::new(exe);
        let parent = std::process::id().to_string();
        command
            .arg0("hg-demo")
            .args(["__workload", &parent])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().map_err(|error| anyhow::anyhow!("cannot start the workload: {error}"))?;
        let mut demo = Demo { child };
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if discover::regions(demo.pid()).is_ok_and(|regions| !regions.is_empty()) {
                return Ok(demo);
            }
            if let Some(status) = demo.child.try_wait()? {
                return Err(anyhow::anyhow!("the workload ended at once: {status}").into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(Failure::Nothing("the workload does not run on hg: it shows no stats page".into()))
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the child of `parent` does: ties its life to its parent's and runs the workload until it is killed.
pub fn workload(parent: u32) {
    // SAFETY: both calls set an attribute of this process; the name is a C string.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, c"hg-demo".as_ptr());
    }
    // The parent may have died before that.
    if std::os::unix::process::parent_id() == parent {
        hg_stress::demo(u64::MAX);
    }
}
