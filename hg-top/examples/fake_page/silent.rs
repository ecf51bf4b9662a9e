//! Memory that answers no read: its page faults are handed to this process, which never handles them.
//!
//! Where the kernel does not let us, the process says `cannot` and ends.

use std::io::Read;
use std::mem::offset_of;
use std::sync::atomic::Ordering::Relaxed;

use hg_probes::page::StatsPage;

/// Bytes of memory that answers nothing, where any will do.
const LENGTH: usize = 1 << 20;

/// `struct uffdio_api`, `struct uffdio_register`, `struct uffdio_range`, and their requests.
#[repr(C)]
struct Api(u64, u64, u64);
#[repr(C)]
struct Register(u64, u64, u64, u64);
#[repr(C)]
struct Range(u64, u64);
const API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
const REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
const UNREGISTER: libc::Ioctl = 0x8010_aa01_u32 as libc::Ioctl;

/// Pages of a mapping that nobody answers for.
struct Silence {
    fd: i32,
    address: u64,
    length: usize,
}

impl Silence {
    /// Of the pages from `address` that are not there, or will not be.
    fn over(address: u64, length: usize) -> Silence {
        // SAFETY: plain system calls; the structures are as large as the requests say, and nobody here touches the memory.
        let fd = unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as i32;
            let mut api = Api(0xaa, 0, 0);
            let mut register = Register(address, length as u64, 1, 0);
            let ready = fd >= 0 && libc::ioctl(fd, API, &mut api) == 0 && libc::ioctl(fd, REGISTER, &mut register) == 0;
            ready.then_some(fd)
        };
        let Some(fd) = fd else { cannot() };
        Silence { fd, address, length }
    }

    /// Lets the kernel answer for them again; who waits goes on.
    fn end(&self) {
        let range = Range(self.address, self.length as u64);
        // SAFETY: the structure is as large as the request says.
        assert_eq!(unsafe { libc::ioctl(self.fd, UNREGISTER, &range) }, 0, "the memory stays silent");
    }
}

fn cannot() -> ! {
    println!("cannot");
    std::process::exit(0);
}

/// The address of memory that answers no read.
pub(crate) fn memory() -> u64 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping of our own.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), LENGTH, protection, flags, -1, 0) };
    assert!(address != libc::MAP_FAILED, "no mapping");
    Silence::over(address as u64, LENGTH);
    address as u64
}

/// Takes the memory of all blocks but the header away: who reads them waits.
fn silence(page: &StatsPage, fd: i32) -> Silence {
    let (start, end) =
        (offset_of!(StatsPage, classes).next_multiple_of(4096), size_of::<StatsPage>().next_multiple_of(4096));
    // All of it: a part would make two mappings of one, neither of which is a stats page.
    let silence = Silence::over(std::ptr::from_ref(page) as u64, end);
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a file of our own, of which nothing in this process reads these pages any more.
    let punched = unsafe { libc::fallocate(fd, mode, start as libc::off_t, (end - start) as libc::off_t) };
    assert_eq!(punched, 0, "the memory stays");
    silence
}

/// The page answers nothing from now on.
pub(crate) fn at_once(page: &StatsPage, fd: i32) {
    silence(page, fd);
}

/// The page answers nothing after the first byte on stdin, and again after the second.
pub(crate) fn for_a_while(page: &'static StatsPage, fd: i32) {
    // Where the kernel does not let us, that is to be known now.
    memory();
    println!("ready");
    let byte = || std::io::stdin().read(&mut [0]).is_ok_and(|read| read == 1);
    if byte() {
        let silence = silence(page, fd);
        if byte() {
            silence.end();
        }
    }
}

/// The heads of the front caches answer nothing.
pub(crate) fn fronts(page: &StatsPage) {
    page.header.fronts_address.store(memory(), Relaxed);
}

/// `struct prctl_mm_map`.
#[repr(C)]
struct Places {
    addresses: [u64; 11],
    auxv: u64,
    auxv_size: u32,
    exe_fd: u32,
}

/// The kernel takes memory that answers nothing for this process's command line.
pub(crate) fn arguments() {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("it is there");
    let after = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<u64> = after.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
    // By their numbers in proc(5); the first after the name is 3.
    let field = |number: usize| fields[number - 3];
    let address = memory();
    // SAFETY: asks for the end of the heap, and changes nothing.
    let brk = unsafe { libc::sbrk(0) } as u64;
    let (code, data) = ([field(26), field(27)], [field(45), field(46)]);
    let addresses =
        [code[0], code[1], data[0], data[1], field(47), brk, field(28), address, address + 64, field(50), field(51)];
    let places = Places { addresses, auxv: 0, auxv_size: 0, exe_fd: u32::MAX };
    // SAFETY: the structure is as long as is said; only what the kernel tells others of this process changes.
    let set = unsafe { libc::prctl(libc::PR_SET_MM, libc::PR_SET_MM_MAP, &places, size_of_val(&places), 0) };
    if set != 0 {
        cannot();
    }
}
