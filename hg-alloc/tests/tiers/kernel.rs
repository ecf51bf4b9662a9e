//! What the kernel says, read independently of the allocator; and settings of the kernel, changed for the life of a guard.

use std::fs::{self, read_to_string};

const THP: &str = "/sys/kernel/mm/transparent_hugepage";
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// What /proc/self/smaps says of the mappings in a range, parts of them counted whole only if they are.
#[derive(Debug, Default)]
pub(crate) struct Range {
    pub(crate) resident_kib: usize,
    pub(crate) huge_kib: usize,
    pub(crate) hugetlb_kib: usize,
    pub(crate) shmem_huge_kib: usize,
    pub(crate) locked_kib: usize,
    pub(crate) private_kib: usize,
    pub(crate) flags: String,
}

/// Looks at `start..end` alone: the range is made a mapping of its own first, by a flag that changes nothing else.
pub(crate) fn smaps(start: usize, end: usize) -> Range {
    // SAFETY: the range is mapped; the advice only concerns core dumps.
    let advise = |advice| unsafe { libc::madvise(start as *mut libc::c_void, end - start, advice) };
    assert_eq!(advise(libc::MADV_DONTDUMP), 0);
    let text = read_to_string("/proc/self/smaps").expect("smaps");
    assert_eq!(advise(libc::MADV_DODUMP), 0);
    let mut range = Range::default();
    let mut inside = false;
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(first), second) = (words.next(), words.next()) else { continue };
        if let Some((from, to)) = first.split_once('-')
            && let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
        {
            inside = start <= from && to <= end;
        } else if inside {
            let kib = second.and_then(|number| number.parse().ok()).unwrap_or(0);
            match first {
                "Rss:" => range.resident_kib += kib,
                "AnonHugePages:" => range.huge_kib += kib,
                "ShmemPmdMapped:" => range.shmem_huge_kib += kib,
                "Private_Hugetlb:" | "Shared_Hugetlb:" => range.hugetlb_kib += kib,
                "Private_Dirty:" => range.private_kib += kib,
                "Locked:" => range.locked_kib += kib,
                "VmFlags:" => range.flags += line,
                _ => {}
            }
        }
    }
    range
}

/// A field of /proc/self/status in KiB, such as `VmLck`.
pub(crate) fn status_kib(field: &str) -> u64 {
    field_of("/proc/self/status", field).unwrap_or_else(|| panic!("no {field}"))
}

/// Free pages of the hugetlb pool that nobody reserved.
pub(crate) fn pool_free() -> u64 {
    let count = |name: &str| number(&format!("{POOL}/{name}")).unwrap_or(0);
    count("free_hugepages") - count("resv_hugepages")
}

fn field_of(file: &str, field: &str) -> Option<u64> {
    let text = read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

fn number(file: &str) -> Option<u64> {
    read_to_string(file).ok()?.trim().parse().ok()
}

/// The chosen word of a setting below /sys/kernel/mm/transparent_hugepage.
pub(crate) fn chosen(setting: &str) -> Option<String> {
    let text = read_to_string(format!("{THP}/{setting}")).ok()?;
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

/// Huge pages that the kernel split, of the whole machine; `None` if it does not count them by size.
pub(crate) fn splits() -> Option<u64> {
    number(&format!("{THP}/hugepages-2048kB/stats/split"))
}

/// Whether the kernel tells of a range which pages are huge (PAGEMAP_SCAN, Linux 6.7).
pub(crate) fn tells_huge_pages() -> bool {
    let release = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 7)
}

/// A setting with another value, until dropped.
pub(crate) struct Changed {
    file: String,
    before: String,
}

impl Drop for Changed {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.file, &self.before) {
            println!("{} is not put back to {}: {error}", self.file, self.before);
        }
    }
}

/// Takes so many pages into the hugetlb pool. Only where it is empty, so that they are all there is.
pub(crate) fn pool_with(pages: u64) -> Result<Option<Changed>, &'static str> {
    if !super::stage::is_root() {
        return Err("only root can fill the hugetlb pool");
    }
    let file = format!("{POOL}/nr_hugepages");
    if number(&file) != Some(0) {
        return Err("there is no hugetlb pool, or somebody else has one");
    }
    let changed = Changed { before: 0.to_string(), file };
    set_pool(pages);
    if pool_free() == pages { Ok(Some(changed)) } else { Err("no memory for the hugetlb pool") }
}

/// Sets the number of pages in the pool.
pub(crate) fn set_pool(pages: u64) {
    fs::write(format!("{POOL}/nr_hugepages"), pages.to_string()).expect("the pool's size");
}

/// Changes a setting below /sys/kernel/mm/transparent_hugepage.
pub(crate) fn change(setting: &str, word: &str) -> Result<Option<Changed>, &'static str> {
    let before = chosen(setting).ok_or("this kernel has no such setting")?;
    let file = format!("{THP}/{setting}");
    fs::write(&file, word).map_err(|_| "only root can change a setting of the machine")?;
    Ok(Some(Changed { file, before }))
}

/// Shows this process another text in place of a file: in a mount namespace of its own, so nobody else sees it. False, saying
/// so, where that may not be made, as in most containers.
#[must_use]
pub(crate) fn replace(file: &str, text: &str) -> bool {
    let path = std::env::temp_dir().join(format!("hg-tiers-{}-{}", std::process::id(), file.replace('/', "-")));
    fs::write(&path, text).expect("a temporary file");
    let c = |text: &str| std::ffi::CString::new(text).expect("no zero inside");
    let (from, to) = (c(path.to_str().expect("UTF-8")), c(file));
    // In a changed root the first is no mount, but the second is.
    let mounts = [c("/"), c(if file.starts_with("/proc") { "/proc" } else { "/sys" })];
    let none = std::ptr::null();
    // SAFETY: all paths are C strings, and the flags take no data.
    let replaced = unsafe {
        let private = |mount: &std::ffi::CString| {
            libc::mount(none, mount.as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) == 0
        };
        libc::unshare(libc::CLONE_NEWNS) == 0
            && mounts.iter().any(private)
            && libc::mount(from.as_ptr(), to.as_ptr(), none, libc::MS_BIND, none.cast()) == 0
    };
    let error = std::io::Error::last_os_error();
    fs::remove_file(&path).expect("the mount keeps it");
    if replaced {
        assert_eq!(read_to_string(file).expect("the mount"), text);
    } else {
        println!("skipped: {file} cannot be replaced for this process: {error}");
    }
    replaced
}
