//! Why the kernel refused: which capability is missing, which setting is in the way, what the kernel cannot do.

use std::fmt;
use std::fs;

/// A capability that attaching needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// To read the mapped files of processes of other users.
    SysPtrace,
    /// To mount tracefs, and for everything below on kernels before 5.8.
    SysAdmin,
    /// To trace.
    Perfmon,
    /// To load BPF programs.
    Bpf,
    /// To open mapped files of a process.
    CheckpointRestore,
}

impl Capability {
    const fn bit(self) -> u32 {
        match self {
            Capability::SysPtrace => 19,
            Capability::SysAdmin => 21,
            Capability::Perfmon => 38,
            Capability::Bpf => 39,
            Capability::CheckpointRestore => 40,
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Capability::SysPtrace => "CAP_SYS_PTRACE",
            Capability::SysAdmin => "CAP_SYS_ADMIN",
            Capability::Perfmon => "CAP_PERFMON",
            Capability::Bpf => "CAP_BPF",
            Capability::CheckpointRestore => "CAP_CHECKPOINT_RESTORE",
        }
    }
}

/// Those of `wanted` that this process has not, given its effective set. `CAP_SYS_ADMIN` stands for all but
/// `CAP_SYS_PTRACE`.
fn missing_of(effective: u64, wanted: &[Capability]) -> Vec<Capability> {
    let has = |capability: Capability| effective >> capability.bit() & 1 == 1;
    let stands_in = |capability| capability != Capability::SysPtrace && has(Capability::SysAdmin);
    wanted.iter().copied().filter(|capability| !has(*capability) && !stands_in(*capability)).collect()
}

fn effective() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// What may be done about a refusal, as far as it can be told from here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refusal {
    /// Capabilities that this process lacks.
    pub missing: Vec<Capability>,
    /// Settings that play a part, with their values.
    pub settings: Vec<(&'static str, String)>,
}

impl Refusal {
    /// Looks at this process and this kernel after a refusal of something that needs `wanted`.
    pub fn look(wanted: &[Capability]) -> Refusal {
        let settings = [
            ("kernel.perf_event_paranoid", "/proc/sys/kernel/perf_event_paranoid"),
            ("kernel.unprivileged_bpf_disabled", "/proc/sys/kernel/unprivileged_bpf_disabled"),
            ("lockdown", "/sys/kernel/security/lockdown"),
            ("kernel.yama.ptrace_scope", "/proc/sys/kernel/yama/ptrace_scope"),
        ];
        let settings = settings.into_iter().filter_map(|(name, path)| {
            let text = fs::read_to_string(path).ok()?;
            let value = chosen(text.trim()).to_owned();
            // Zero and "none" forbid nothing.
            (!matches!(value.as_str(), "" | "0" | "-1" | "none")).then_some((name, value))
        });
        Refusal {
            missing: effective().map_or_else(Vec::new, |set| missing_of(set, wanted)),
            settings: settings.collect(),
        }
    }
}

/// The chosen word of `none [integrity] confidentiality`, or the whole text.
fn chosen(text: &str) -> &str {
    text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(text, |(word, _)| word)
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.missing.is_empty() {
            f.write_str("a security module, a container's seccomp filter or lockdown is in the way")?;
        } else {
            let names: Vec<&str> = self.missing.iter().map(|capability| capability.name()).collect();
            write!(f, "{} missing: run hg-top as root", names.join(", "))?;
        }
        for (name, value) in &self.settings {
            write!(f, "; {name} = {value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Capability::*;

    #[test]
    fn what_is_missing() {
        let wanted = [Bpf, Perfmon, CheckpointRestore, SysPtrace];
        assert_eq!(missing_of(0, &wanted), wanted);
        assert_eq!(missing_of(u64::MAX, &wanted), []);
        assert_eq!(missing_of(1 << 39 | 1 << 38, &wanted), [CheckpointRestore, SysPtrace]);
        assert_eq!(missing_of(1 << 21, &wanted), [SysPtrace]);
    }

    #[test]
    fn it_reads_as_a_sentence() {
        let refusal =
            Refusal { missing: vec![Bpf, Perfmon], settings: vec![("kernel.perf_event_paranoid", "2".into())] };
        assert_eq!(
            refusal.to_string(),
            "CAP_BPF, CAP_PERFMON missing: run hg-top as root; kernel.perf_event_paranoid = 2"
        );
        assert!(Refusal::default().to_string().contains("seccomp"));
        assert_eq!(chosen("none [integrity] confidentiality"), "integrity");
        assert_eq!(chosen("2"), "2");
    }
}
