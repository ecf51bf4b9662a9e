//! Reading another process's memory: `process_vm_readv`.
//!
//! The target is hostile: any address may be unmapped, so a read that comes back short is an answer, not an error;
//! and it may not come back at all, so none is done in a thread that somebody waits for without end (`aside.rs`).

use std::io;

use super::pagemap::Pagemap;

/// Pieces of one call; the kernel's limit.
const IOV_MAX: usize = 1024;

/// The memory of one process.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pid: u32,
}

/// A piece of a target's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its address in the target.
    pub address: u64,
    /// Its length, bytes.
    pub len: usize,
}

impl Memory {
    /// The memory of process `pid`.
    pub fn of(pid: u32) -> Memory {
        Memory { pid }
    }

    /// Copies `pieces` one after the other into `into`, which must be as long as all of them together. Returns how many
    /// whole pieces, from the first, could be read.
    pub fn gather(self, pieces: &[Piece], into: &mut [u8]) -> io::Result<usize> {
        let mut rest = into;
        let mut whole = 0;
        for chunk in pieces.chunks(IOV_MAX) {
            let len = chunk.iter().map(|piece| piece.len).sum();
            let (now, later) = std::mem::take(&mut rest).split_at_mut(len);
            rest = later;
            let mut got = self.read_vector(chunk, now)?;
            for piece in chunk {
                if got < piece.len {
                    return Ok(whole);
                }
                got -= piece.len;
                whole += 1;
            }
        }
        Ok(whole)
    }

    /// The same for a single piece: whether all of it could be read.
    pub fn read(self, address: u64, into: &mut [u8]) -> io::Result<bool> {
        Ok(self.gather(&[Piece { address, len: into.len() }], into)? == 1)
    }

    /// The same for private memory, of which pages that the process does not have are not asked for: all reads as zeros then.
    pub fn read_present(self, address: u64, into: &mut [u8]) -> io::Result<bool> {
        let pages = Pagemap::open(self.pid).and_then(|pagemap| pagemap.range(address, into.len() as u64));
        if pages.is_some_and(|pages| pages.contains(&false)) {
            into.fill(0);
            return Ok(true);
        }
        self.read(address, into)
    }

    fn read_vector(self, pieces: &[Piece], into: &mut [u8]) -> io::Result<usize> {
        let remote: Vec<libc::iovec> =
            pieces.iter().map(|piece| libc::iovec { iov_base: piece.address as *mut _, iov_len: piece.len }).collect();
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: `local` describes exactly the borrowed buffer, the only memory of ours that the call writes; remote
        // addresses are looked up in the other process, where a bad one makes the call return short.
        let got = unsafe {
            libc::process_vm_readv(
                self.pid as libc::pid_t,
                &local,
                1,
                remote.as_ptr(),
                remote.len() as libc::c_ulong,
                0,
            )
        };
        match got {
            0.. => Ok(got as usize),
            _ => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EFAULT) => Ok(0),
                error => Err(error),
            },
        }
    }
}

/// Bytes of a base page of this machine.
pub fn page_bytes() -> u64 {
    // SAFETY: sysconf reads a constant of the system and has no other effect.
    match unsafe { libc::sysconf(libc::_SC_PAGESIZE) } {
        bytes @ 1.. => bytes as u64,
        _ => 4096,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathers_until_the_first_hole() {
        let words = [0x1111_2222_3333_4444_u64, 0x5555_6666_7777_8888];
        let address = words.as_ptr() as u64;
        let me = Memory::of(std::process::id());
        let pieces = [Piece { address: address + 8, len: 8 }, Piece { address, len: 4 }, Piece { address: 16, len: 4 }];
        let mut into = [0; 16];
        assert_eq!(me.gather(&pieces, &mut into).unwrap(), 2);
        assert_eq!(into[..8], words[1].to_ne_bytes());
        assert_eq!(into[8..12], words[0].to_ne_bytes()[..4]);
        assert!(!me.read(16, &mut [0; 8]).unwrap());
    }

    #[test]
    fn more_pieces_than_one_call_takes() {
        let words: Vec<u32> = (0..3000).collect();
        let me = Memory::of(std::process::id());
        let pieces: Vec<Piece> = words.iter().map(|w| Piece { address: w as *const u32 as u64, len: 4 }).collect();
        let mut into = vec![0; 12_000];
        assert_eq!(me.gather(&pieces, &mut into).unwrap(), 3000);
        assert_eq!(into[4 * 2999..], 2999_u32.to_ne_bytes());
    }

    #[test]
    fn an_ended_process_is_an_error() {
        assert!(Memory::of(0x3fff_ffff).read(4096, &mut [0; 8]).is_err());
    }
}
