//! The memory control groups of this process, version 1 and 2: how many bytes each of them still allows.
//!
//! `/proc/self/cgroup` says which group, relative to the root of a hierarchy; `/proc/self/mountinfo` says where that
//! hierarchy is mounted, and which of its groups the mount shows as its root (in a container it is the container's own). A
//! group is limited by all its ancestors as well, as far up as the mount shows them. The memory controller belongs to one
//! hierarchy: version 1 if a line of `/proc/self/cgroup` names it, as on hybrid hosts, else version 2.
//!
//! A group's usage counts its page cache, which the kernel drops before it kills: inactive file pages, and half of the
//! active ones, are taken for free. Some of the limit stays untouched ([`reserve`]): page tables, stacks and other
//! libraries' memory are charged to the same group.

use super::limits::Root;
use super::text::{self, Path};

/// Groups above each other that are looked at.
const DEPTH: usize = 32;

/// Version 1 says "no limit" by about 2^63.
const UNLIMITED: u64 = 1 << 60;

/// Where a hierarchy is mounted, and which of its groups is there.
#[derive(Clone, Copy)]
struct Mount {
    point: Path<256>,
    root: Path,
}

/// Where the hierarchies are mounted. Found once: the list of mounts is long, and these do not move.
#[derive(Clone, Copy)]
pub(crate) struct Mounts {
    v1: Option<Mount>,
    v2: Option<Mount>,
}

impl Mounts {
    pub(crate) const NONE: Mounts = Mounts { v1: None, v2: None };

    pub(crate) fn find(root: Root) -> Mounts {
        let mut mounts = Mounts::NONE;
        text::lines(&root.path(b"/proc/self/mountinfo"), |line| {
            mounts.see(line);
            true
        });
        mounts
    }

    /// A line: `35 31 0:32 ROOT POINT rw,relatime shared:9 - cgroup SOURCE rw,memory`.
    fn see(&mut self, line: &[u8]) {
        let Some(dash) = text::find(line, b" - ") else { return };
        let (Some(front), Some(back)) = (line.get(..dash), line.get(dash + 3..)) else { return };
        let mut fields = front.split(|byte| *byte == b' ').skip(3);
        let (Some(root), Some(point)) = (fields.next(), fields.next()) else { return };
        let mut rest = back.split(|byte| *byte == b' ');
        let kind = rest.next();
        let controls_memory = rest.next_back().is_some_and(|options| text::list_has(options, b"memory"));
        let place = match kind {
            Some(b"cgroup") if controls_memory => &mut self.v1,
            Some(b"cgroup2") => &mut self.v2,
            _ => return,
        };
        let mount = Mount { point: unescaped(point), root: unescaped(root) };
        // The first one is the system's; others show parts of it elsewhere.
        place.get_or_insert(mount);
    }
}

/// Mount tables write blanks and backslashes as three octal digits.
fn unescaped<const N: usize>(text: &[u8]) -> Path<N> {
    let mut path = Path::new();
    let mut rest = text;
    while let Some((&first, behind)) = rest.split_first() {
        match (first, behind) {
            (b'\\', &[a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ref behind @ ..]) => {
                path.push(&[(a - b'0') << 6 | (b - b'0') << 3 | (c - b'0')]);
                rest = behind;
            }
            _ => {
                path.push(&[first]);
                rest = behind;
            }
        }
    }
    path
}

/// The names of a version's files and fields.
struct Names {
    limit: &'static [u8],
    usage: &'static [u8],
    inactive_file: &'static [u8],
    active_file: &'static [u8],
}

const V1: Names = Names {
    limit: b"/memory.limit_in_bytes",
    usage: b"/memory.usage_in_bytes",
    inactive_file: b"total_inactive_file",
    active_file: b"total_active_file",
};

const V2: Names = Names {
    limit: b"/memory.max",
    usage: b"/memory.current",
    inactive_file: b"inactive_file",
    active_file: b"active_file",
};

/// Bytes of a limit that growth leaves alone: a thirty-second, from 1 to 64 MiB.
pub(crate) fn reserve(limit: u64) -> u64 {
    (limit / 32).clamp(1 << 20, 64 << 20)
}

/// Bytes that the tightest group allows, its reserve aside; `None` if no group has a limit. How much page cache could be
/// dropped is only asked (the kernel has to add it up) where fewer than `enough` bytes are left without that.
pub(crate) fn room(root: Root, mounts: &Mounts, enough: u64) -> Option<u64> {
    let mut found: Option<(Path, &Mount, &Names)> = None;
    text::lines(&root.path(b"/proc/self/cgroup"), |line| {
        let (is_v1, path) = match membership(line) {
            Some(membership) => membership,
            None => return true,
        };
        let (mount, names) = if is_v1 { (&mounts.v1, &V1) } else { (&mounts.v2, &V2) };
        if let Some(mount) = mount {
            found = Some((root.path(mount.point.bytes()).with(inside(path, mount.root.bytes())), mount, names));
        }
        !is_v1
    });
    let (directory, mount, names) = found?;
    tightest(directory, root.path(mount.point.bytes()).bytes().len(), names, enough)
}

/// Whether a line of `/proc/self/cgroup` is that of version 1's memory controller (true) or of version 2, and the group.
fn membership(line: &[u8]) -> Option<(bool, &[u8])> {
    let mut fields = line.splitn(3, |byte| *byte == b':');
    let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    match (number, controllers) {
        (b"0", b"") => Some((false, path)),
        _ if text::list_has(controllers, b"memory") => Some((true, path)),
        _ => None,
    }
}

/// The group's path below the mount. One that lies outside of what the mount shows (a container whose namespace of groups
/// is the host's) is shown by the mount itself.
fn inside<'a>(path: &'a [u8], mount_root: &[u8]) -> &'a [u8] {
    let mount_root = mount_root.strip_suffix(b"/").unwrap_or(mount_root);
    match path.strip_prefix(mount_root) {
        // The namespace of groups has its root elsewhere.
        _ if path.starts_with(b"/..") => b"",
        Some(b"/") => b"",
        Some(below) if below.is_empty() || below.starts_with(b"/") => below,
        _ => b"",
    }
}

/// Walks from a group up to the directory whose path has `top` bytes.
fn tightest(mut directory: Path, top: usize, names: &Names, enough: u64) -> Option<u64> {
    let mut least: Option<u64> = None;
    for _ in 0..DEPTH {
        if let Some(room) = room_in(&directory, names, enough) {
            least = Some(least.map_or(room, |least| least.min(room)));
        }
        let length = directory.bytes().len();
        let parent = directory.bytes().iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        if length <= top || parent < top {
            break;
        }
        directory.cut(parent);
    }
    least
}

fn room_in(directory: &Path, names: &Names, enough: u64) -> Option<u64> {
    let limit = text::number_in(&directory.with(names.limit)).filter(|limit| *limit < UNLIMITED)?;
    let usage = text::number_in(&directory.with(names.usage))?;
    let usable = limit.saturating_sub(reserve(limit));
    let left = usable.saturating_sub(usage);
    if left >= enough {
        return Some(left);
    }
    let mut cache = 0u64;
    text::lines(&directory.with(b"/memory.stat"), |line| {
        let inactive = text::stat_field(line, names.inactive_file);
        let active = text::stat_field(line, names.active_file).map(|bytes| bytes / 2);
        cache = cache.saturating_add(inactive.or(active).unwrap_or(0));
        true
    });
    Some(usable.saturating_sub(usage.saturating_sub(cache)))
}

#[cfg(test)]
pub(crate) mod tests {
    extern crate std;
    use super::*;
    use std::fs;
    use std::path::{Path as FilePath, PathBuf};
    use std::string::String;

    const MIB: u64 = 1 << 20;

    /// A directory that looks like the root of a machine.
    pub(crate) struct Machine(PathBuf);

    impl Machine {
        pub(crate) fn new(name: &str) -> Machine {
            let directory = std::env::temp_dir().join(std::format!("hg-machine-{}-{name}", std::process::id()));
            fs::create_dir_all(&directory).expect("a temporary directory");
            Machine(directory)
        }

        pub(crate) fn file(&self, path: &str, text: &str) -> &Machine {
            let file = self.0.join(path.trim_start_matches('/'));
            fs::create_dir_all(file.parent().unwrap_or(FilePath::new("/"))).expect("a directory of the fixture");
            fs::write(file, text).expect("a file of the fixture");
            self
        }

        pub(crate) fn root(&self) -> Root {
            Root::fixture(String::from(self.0.to_str().expect("UTF-8")).leak())
        }

        fn room(&self, enough: u64) -> Option<u64> {
            room(self.root(), &Mounts::find(self.root()), enough)
        }

        /// A group of version 2: limit, usage, inactive and active file pages.
        fn v2(&self, group: &str, limit: &str, figures: [u64; 3]) -> &Machine {
            let [usage, inactive, active] = figures;
            self.file(&std::format!("{group}/memory.max"), &std::format!("{limit}\n"))
                .file(&std::format!("{group}/memory.current"), &std::format!("{usage}\n"))
                .file(
                    &std::format!("{group}/memory.stat"),
                    &std::format!("anon 1\nfile 2\ninactive_file {inactive}\nactive_file {active}\n"),
                )
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn version_2_is_as_tight_as_its_tightest_ancestor() {
        let machine = Machine::new("v2");
        machine
            .file("/proc/self/mountinfo", V2_MOUNT)
            .file("/proc/self/cgroup", "0::/a.slice/b.slice/c.scope\n")
            .v2("/sys/fs/cgroup/a.slice", "1073741824", [1000 * MIB, 0, 0])
            .v2("/sys/fs/cgroup/a.slice/b.slice", "max", [900 * MIB, 0, 0])
            .v2("/sys/fs/cgroup/a.slice/b.slice/c.scope", "536870912", [100 * MIB, 0, 0]);
        // The scope has 512 - 16 - 100 MiB, the slice above it 1024 - 32 - 1000: nothing.
        assert_eq!(machine.room(1), Some(0));
        machine.v2("/sys/fs/cgroup/a.slice", "1073741824", [1000 * MIB, 100 * MIB, 60 * MIB]);
        assert_eq!(machine.room(200 * MIB), Some((1024 - 32 + 100 + 30 - 1000) * MIB));
        machine.v2("/sys/fs/cgroup/a.slice", "max", [1000 * MIB, 0, 0]);
        assert_eq!(machine.room(1), Some((512 - 16 - 100) * MIB));
    }

    #[test]
    fn page_cache_is_only_asked_for_where_it_matters() {
        let machine = Machine::new("cache");
        machine.file("/proc/self/mountinfo", V2_MOUNT).file("/proc/self/cgroup", "0::/x\n").v2(
            "/sys/fs/cgroup/x",
            "536870912",
            [100 * MIB, 50 * MIB, 0],
        );
        assert_eq!(machine.room(396 * MIB), Some(396 * MIB));
        assert_eq!(machine.room(397 * MIB), Some(446 * MIB));
    }

    #[test]
    fn no_limit_no_figure() {
        let machine = Machine::new("none");
        assert_eq!(machine.room(1), None);
        machine.file("/proc/self/mountinfo", V2_MOUNT).file("/proc/self/cgroup", "0::/\n");
        assert_eq!(machine.room(1), None);
        machine.file("/proc/self/cgroup", "nonsense\n0:\n\n:::\n0::/\n").v2("/sys/fs/cgroup", "max", [1, 0, 0]);
        assert_eq!(machine.room(1), None);
    }

    #[test]
    fn a_hybrid_host_has_its_memory_controller_in_version_1() {
        let machine = Machine::new("hybrid");
        let mounts = "35 31 0:32 / /sys/fs/cgroup/my\\040memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
             36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        machine
            .file("/proc/self/mountinfo", mounts)
            .file("/proc/self/cgroup", "4:cpu,cpuacct:/\n3:memory:/box\n0::/box\n")
            .v2("/sys/fs/cgroup/unified/box", "1048576", [1, 0, 0])
            .file("/sys/fs/cgroup/my memory/memory.limit_in_bytes", "9223372036854771712\n")
            .file("/sys/fs/cgroup/my memory/memory.usage_in_bytes", "77777777\n")
            .file("/sys/fs/cgroup/my memory/box/memory.limit_in_bytes", "67108864\n")
            .file("/sys/fs/cgroup/my memory/box/memory.usage_in_bytes", "33554432\n")
            .file("/sys/fs/cgroup/my memory/box/memory.stat", "inactive_file 9\ntotal_inactive_file 4096\n");
        assert_eq!(machine.room(1), Some(30 * MIB));
        assert_eq!(machine.room(64 * MIB), Some(30 * MIB + 4096));
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root_of_the_mount() {
        let machine = Machine::new("container");
        let mount = "9 8 0:7 /docker/abc /sys/fs/cgroup/memory ro master:17 - cgroup cgroup rw,memory\n";
        machine
            .file("/proc/self/mountinfo", mount)
            .file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "33554432\n")
            .file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1048576\n");
        for group in ["/docker/abc", "/", "/../x", "/docker/abcdef", "/elsewhere"] {
            machine.file("/proc/self/cgroup", &std::format!("3:memory:{group}\n"));
            assert_eq!(machine.room(1), Some(30 * MIB), "{group}");
        }
        machine
            .file("/proc/self/cgroup", "3:memory:/docker/abc/inner\n")
            .file("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "8388608\n")
            .file("/sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "0\n");
        assert_eq!(machine.room(1), Some(7 * MIB));
    }
}
