//! Limits of the system, each met by a process of its own: growth is refused with the limit's own cause, malloc says ENOMEM
//! instead of the kernel killing, and memory comes again when there is room.
//!
//! The control group is one of version 1, made and removed by the test. Version 2, and the pools of NUMA nodes, are tested on
//! fixtures of their files (`sys/cgroup.rs`, `sys/limits.rs`). For strict overcommit of the whole machine the kernel's refusal
//! is a filter's ENOMEM here; `overcommit.rs` has the real one.

mod common;

use common::*;
use hg_alloc::raw;
use hg_probes::words::Cause;
use std::fs::{self, File};
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Longer than a refusal is answered without another look.
const BACK_OFF: Duration = Duration::from_millis(120);

/// The latch is set, with its cause and since when; and some malloc failed for it.
fn assert_blocked(cause: Cause) {
    let header = &page().header;
    assert!(refused(cause) > 0, "refusals: {:?}", header.grows_refused);
    assert!(is_blocked());
    assert_eq!(header.blocked_cause.load(Relaxed), cause as u32);
    assert!(header.blocked_since_ns.load(Relaxed) > 0);
    assert!(header.allocs_failed[cause as usize].load(Relaxed) > 0);
}

fn assert_unblocked() {
    assert!(!is_blocked());
    assert_eq!(page().header.blocked_since_ns.load(Relaxed), 0);
}

/// Lines of an episode that a child wrote.
fn lines_of_episodes(text: &str) -> usize {
    text.lines().filter(|line| line.starts_with("hg: growth blocked: ")).count()
}

/// A memory control group of version 1, with one inside it that has no limit of its own.
struct Group(PathBuf);

impl Group {
    fn new(limit: usize) -> Option<Group> {
        let root = Path::new("/sys/fs/cgroup/memory");
        if !is_root() || !root.join("memory.limit_in_bytes").exists() {
            return None;
        }
        let group = Group(root.join(format!("hg-room-{}", std::process::id())));
        fs::create_dir_all(group.0.join("inner")).ok()?;
        fs::write(group.0.join("memory.limit_in_bytes"), limit.to_string()).expect("a limit");
        Some(group)
    }

    fn inner(&self) -> PathBuf {
        self.0.join("inner")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group goes once the kernel has forgotten its last process.
        let deadline = Instant::now() + Duration::from_secs(5);
        for directory in [self.inner(), self.0.clone()] {
            while fs::remove_dir(&directory).is_err() && directory.exists() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

#[test]
fn a_control_group_refuses_before_it_kills() {
    const NAME: &str = "a_control_group_refuses_before_it_kills";
    const LIMIT: usize = 96 * MIB;
    const GROUP: &str = "HG_TEST_GROUP";
    if !is_child(NAME) {
        let Some(group) = Group::new(LIMIT) else { return skip("needs root and a memory control group of version 1") };
        let output = child(NAME).env(GROUP, group.inner()).output().expect("the test program runs again");
        let events = fs::read_to_string(group.inner().join("memory.oom_control")).expect("oom_control");
        drop(group);
        let text = text_of(NAME, &output);
        assert!(events.lines().any(|line| line == "oom_kill 0"), "{events}");
        assert_eq!(lines_of_episodes(&text), 1, "{text}");
        assert!(text.contains("cgroup limit"), "{text}");
        return;
    }
    let group = PathBuf::from(std::env::var_os(GROUP).expect("the group"));
    fs::write(group.join("cgroup.procs"), std::process::id().to_string()).expect("into the group");

    // What was promised counts before it is touched, so touching it later kills nobody.
    let untouched = fill(MIB, 2 * LIMIT / MIB, false);
    assert_blocked(Cause::Cgroup);
    untouched.iter().for_each(|block| touch(*block, MIB));
    let held = untouched.len() * MIB;
    assert!((LIMIT - 16 * MIB..LIMIT).contains(&held), "{held} bytes of {LIMIT}: growth was not cut to what there is");

    // While it lasts the limits are not read for each request.
    let reads = || -> Option<usize> {
        let text = fs::read_to_string("/proc/self/io").ok()?;
        text.lines().find_map(|line| line.strip_prefix("syscr: "))?.parse().ok()
    };
    let (before, start) = (reads(), Instant::now());
    for _ in 0..200 {
        assert!(raw::malloc(MIB).is_null());
    }
    let (after, looks) = (reads(), 1 + start.elapsed().as_millis() / 100);
    if let (Some(before), Some(after)) = (before, after) {
        assert!(after - before < 100 * looks as usize, "{} reads for {looks} looks", after - before);
    }

    // Room that this process makes is seen at once.
    untouched.into_iter().for_each(raw::free);
    hg_alloc::trim();
    let block = raw::malloc(20 * MIB);
    assert!(!block.is_null());
    assert_unblocked();
    raw::free(block);
    fill(MIB, 40, true).into_iter().for_each(raw::free);
    assert_unblocked();
}

/// Shows this process a file of its own in the place of one of the kernel's; `None` without the right to. The mount keeps the
/// file, which has no name of its own any more.
fn show(place: &str, text: &str) -> Option<File> {
    let path = std::env::temp_dir().join(format!("hg-room-{}{}", std::process::id(), place.replace('/', "-")));
    let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&path).ok()?;
    write_anew(&mut file, text);
    let c_string = |path: &str| std::ffi::CString::new(path).expect("no zero");
    let (from, to) = (c_string(path.to_str()?), c_string(place));
    let none = std::ptr::null();
    // SAFETY: C strings; the mounts are this process's own.
    let mounted = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(c"".as_ptr(), c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) == 0
            && libc::mount(from.as_ptr(), to.as_ptr(), none, libc::MS_BIND, none.cast()) == 0
    };
    fs::remove_file(&path).expect("removed");
    mounted.then_some(file)
}

fn write_anew(file: &mut File, text: &str) {
    file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes())).expect("the file");
}

/// `/proc/meminfo` as LXCFS writes it, in MiB.
fn meminfo(total: usize, available: usize) -> String {
    let kib = |mib: usize| mib * 1024;
    format!(
        "MemTotal: {} kB\nMemFree: {} kB\nMemAvailable: {} kB\nCommitLimit: {} kB\nCommitted_AS: {} kB\n\
         AnonHugePages: 0 kB\nShmemHugePages: 0 kB\n",
        kib(total),
        kib(available),
        kib(available),
        kib(total),
        kib(total - 1),
    )
}

#[test]
fn a_host_keeps_its_floor_in_a_container_too() {
    const NAME: &str = "a_host_keeps_its_floor_in_a_container_too";
    if let Some(text) = in_child(NAME, &[]) {
        if !text.contains("skipped:") {
            assert_eq!(lines_of_episodes(&text), 1, "{text}");
        }
        return;
    }
    // The floor of 2 GiB is 256 MiB.
    let Some(mut file) = show("/proc/meminfo", &meminfo(2048, 300)) else { return skip("needs the right to mount") };
    let block = raw::malloc(10 * MIB);
    assert!(!block.is_null());
    touch(block, 10 * MIB);
    assert!(raw::malloc(64 * MIB).is_null());
    assert_blocked(Cause::HostFloor);
    // Less than was refused is another question: there is room for it, and the episode is over.
    let less = raw::malloc(20 * MIB);
    assert!(!less.is_null());
    assert_unblocked();
    // The file is written anew in its place: the container got more.
    write_anew(&mut file, &meminfo(2048, 1024));
    std::thread::sleep(BACK_OFF);
    let more = raw::malloc(64 * MIB);
    assert!(!more.is_null());
    [block, less, more].into_iter().for_each(raw::free);
}

#[test]
fn a_memlock_limit_leaves_growth_unpinned_and_says_so() {
    const NAME: &str = "a_memlock_limit_leaves_growth_unpinned_and_says_so";
    if in_child(NAME, &[("HG_PIN", "1")]).is_some() {
        return;
    }
    limit(libc::RLIMIT_MEMLOCK, MIB);
    if is_root() {
        // SAFETY: no memory is passed. "nobody" has no capabilities.
        let dropped = unsafe { libc::setgid(65534) == 0 && libc::setuid(65534) == 0 };
        assert!(dropped, "{}", std::io::Error::last_os_error());
    }
    let block = raw::malloc(MIB);
    assert!(!block.is_null(), "unpinned growth continues");
    touch(block, MIB);
    let header = &page().header;
    assert!(refused(Cause::Memlock) > 0, "refusals: {:?}", header.grows_refused);
    assert_ne!(header.pin_errno.load(Relaxed), 0);
    assert_eq!((header.pinned_bytes.load(Relaxed), status("VmLck")), (0, 0));
    assert_unblocked();
    raw::free(block);
}

#[test]
fn a_limit_on_address_space_is_where_the_arena_ends() {
    const NAME: &str = "a_limit_on_address_space_is_where_the_arena_ends";
    if in_child(NAME, &[("HG_CAP", "64g")]).is_some() {
        return;
    }
    limit(libc::RLIMIT_AS, status("VmSize") + 1024 * MIB);
    raw::free(raw::malloc(1));
    let at_first = page().header.reserved_bytes.load(Relaxed);
    let blocks = fill(MIB, 2000, true);
    // All but tables, front caches, and what a step of the reservation rounds off.
    assert!((700..1024).contains(&blocks.len()), "{} MiB", blocks.len());
    let at_last = page().header.reserved_bytes.load(Relaxed);
    assert!(at_first < 600 * MIB as u64 && at_last > 700 * MIB as u64, "{at_first} bytes reserved, then {at_last}");
    assert_blocked(Cause::AddressSpace);
    blocks.into_iter().for_each(raw::free);
    hg_alloc::trim();
    let block = raw::malloc(50 * MIB);
    assert!(!block.is_null());
    assert_unblocked();
    raw::free(block);
}

/// Blocked by RLIMIT_DATA, and free again when the limit is raised.
fn blocked_by_the_data_limit() {
    raw::free(raw::malloc(1));
    limit(libc::RLIMIT_DATA, status("VmData") + 40 * MIB);
    let blocks = fill(MIB, 200, false);
    // A growth of a granule does not fit at the end; what is needed of it does.
    assert!((40..60).contains(&blocks.len()), "{} MiB", blocks.len());
    assert_blocked(Cause::AddressSpace);
    limit(libc::RLIMIT_DATA, usize::MAX);
    std::thread::sleep(BACK_OFF);
    let block = raw::malloc(MIB);
    assert!(!block.is_null());
    assert_unblocked();
}

#[test]
fn a_limit_on_data_is_told_from_the_kernels_enomem() {
    if in_child("a_limit_on_data_is_told_from_the_kernels_enomem", &[]).is_none() {
        blocked_by_the_data_limit();
    }
}

#[test]
fn the_last_mapping_is_not_the_allocators() {
    const NAME: &str = "the_last_mapping_is_not_the_allocators";
    // Memory advised to be huge is a mapping apart from what lies behind it, so each growth takes one for a moment.
    if in_child(NAME, &[("HG_TIER", "thp")]).is_some() {
        return;
    }
    let text = fs::read_to_string("/proc/sys/vm/max_map_count").expect("max_map_count");
    let most: usize = text.trim().parse().expect("a number");
    let never =
        fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").is_ok_and(|text| text.contains("[never]"));
    if most > 200_000 || never {
        return skip("needs transparent huge pages, and a vm.max_map_count of at most 200000");
    }
    raw::free(raw::malloc(1));
    let bytes = (most + 2) * 4096;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a mapping of its own; every second page of it becomes another mapping, until the kernel gives no more.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        let full = (0..most).step_by(2).any(|page| libc::mprotect(start.add(page * 4096), 4096, libc::PROT_READ) != 0);
        assert!(full);
    }
    fill(MIB, 64, false);
    assert_blocked(Cause::MapCount);
}

#[test]
fn strict_overcommit_is_told_from_the_kernels_enomem() {
    const NAME: &str = "strict_overcommit_is_told_from_the_kernels_enomem";
    if in_child(NAME, &[]).is_some() {
        return;
    }
    let strict = show("/proc/sys/vm/overcommit_memory", "2\n");
    if strict.and_then(|_| show("/proc/meminfo", &meminfo(64 << 10, 32 << 10))).is_none() {
        return skip("needs the right to mount");
    }
    raw::free(raw::malloc(1));
    common::seccomp::fail(libc::SYS_mprotect, libc::ENOMEM);
    assert!(raw::malloc(64 * MIB).is_null());
    assert_blocked(Cause::Overcommit);
    // What was committed before takes nothing from the kernel.
    assert!(!raw::malloc(MIB).is_null());
}

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/";

/// Tests that want the pool in a certain state run one after the other.
static TURN: Mutex<()> = Mutex::new(());

fn pool(file: &str) -> Option<u64> {
    fs::read_to_string(format!("{POOL}{file}")).ok()?.trim().parse().ok()
}

#[test]
fn an_empty_pool_is_told_of_by_node() {
    const NAME: &str = "an_empty_pool_is_told_of_by_node";
    let _turn = TURN.lock();
    if let Some(text) = in_child(NAME, &[("HG_TIER", "hugetlb")]) {
        let lines: Vec<_> =
            text.lines().filter(|line| line.starts_with("hg: not enough in the hugetlb pool")).collect();
        let by_node = Path::new("/sys/devices/system/node/node0/hugepages").exists();
        if !text.contains("skipped: ") {
            assert!(lines.len() == 1 && (!by_node || lines[0].contains("node 0: 0")), "{text}");
        }
        return;
    }
    if pool("free_hugepages") != Some(0) {
        return skip("there is a hugetlb pool, and something in it");
    }
    for _ in 0..3 {
        assert!(!raw::malloc(40 * MIB).is_null(), "memory of another tier");
    }
    assert!(refused(Cause::HugetlbPool) > 0);
    assert_unblocked();
}

/// A hugetlb pool, for a while.
struct Pool;

impl Pool {
    fn of(pages: u64) -> Option<Pool> {
        (is_root() && pool("nr_hugepages") == Some(0)).then_some(())?;
        fs::write(format!("{POOL}nr_hugepages"), pages.to_string()).ok()?;
        let filled = Pool;
        (pool("free_hugepages") == Some(pages)).then_some(filled)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        fs::write(format!("{POOL}nr_hugepages"), "0").expect("the pool goes again");
    }
}

#[test]
fn what_the_pool_has_is_not_the_hosts_to_refuse() {
    const NAME: &str = "what_the_pool_has_is_not_the_hosts_to_refuse";
    let _turn = TURN.lock();
    if !is_child(NAME) {
        let Some(_pool) = Pool::of(32) else { return skip("needs root, and no hugetlb pool but its own") };
        in_child(NAME, &[("HG_TIER", "hugetlb")]);
        return;
    }
    // The least that cell states take, above the floor of 256 MiB; not a granule.
    if show("/proc/meminfo", &meminfo(2048, 262)).is_none() {
        return skip("needs the right to mount");
    }
    let block = raw::malloc(20 * MIB);
    assert!(!block.is_null(), "refusals: {:?}", page().header.grows_refused);
    touch(block, 20 * MIB);
    // Beyond the pool it is plain memory again, and the host's.
    assert!(raw::malloc(64 * MIB).is_null());
    assert_blocked(Cause::HostFloor);
}

#[test]
fn an_episode_ends_by_maintenance_alone() {
    const NAME: &str = "an_episode_ends_by_maintenance_alone";
    if in_child(NAME, &[("HG_THREAD", "1"), ("HG_DECAY_MS", "400")]).is_some() {
        return;
    }
    raw::free(raw::malloc(1));
    limit(libc::RLIMIT_DATA, status("VmData") + 40 * MIB);
    let blocks = fill(MIB, 200, true);
    assert_blocked(Cause::AddressSpace);
    std::thread::sleep(Duration::from_millis(500));
    assert!(is_blocked(), "it lasts as long as the limit");
    limit(libc::RLIMIT_DATA, usize::MAX);
    let deadline = Instant::now() + Duration::from_secs(5);
    while is_blocked() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_unblocked();
    blocks.into_iter().for_each(raw::free);
}

#[test]
fn an_episode_is_told_when_it_begins_and_when_it_ends() {
    const NAME: &str = "an_episode_is_told_when_it_begins_and_when_it_ends";
    if is_child(NAME) {
        return blocked_by_the_data_limit();
    }
    if !capability::may_trace() || Command::new("bpftrace").arg("--version").output().is_err() {
        return skip("needs CAP_SYS_ADMIN and bpftrace");
    }
    let program = std::env::current_exe().expect("own path");
    let script = format!(
        "usdt:{0}:hg:grow_blocked {{ printf(\"blocked %d cause %d\\n\", arg1, arg2); }}
         usdt:{0}:hg:grow_refused /arg2 == {1}/ {{ printf(\"refused\\n\"); }}",
        program.display(),
        Cause::AddressSpace as u32,
    );
    // Into a file of its own: the child writes on the same stdout.
    let path = std::env::temp_dir().join(format!("hg-room-{}-trace", std::process::id()));
    let tracer = Command::new("bpftrace")
        .args(["-c", &format!("{} --exact {NAME} --nocapture", program.display()), "-e", &script, "-o"])
        .arg(&path)
        .env(SCENARIO, NAME)
        .output()
        .expect("bpftrace starts");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let _ = fs::remove_file(&path);
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    assert!(tracer.status.success(), "bpftrace ends with its child: {lines:?}");
    let told: Vec<&String> = lines.iter().filter(|line| line.starts_with("blocked")).collect();
    let cause = Cause::AddressSpace as u32;
    assert_eq!(told, [&format!("blocked 1 cause {cause}"), &format!("blocked 0 cause {cause}")], "{lines:?}");
    assert!(lines.iter().any(|line| line == "refused"));
}
