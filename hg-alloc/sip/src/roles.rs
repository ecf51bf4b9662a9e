//! The roles of processes, read from the server's own table of them.
//!
//! The table is an array of records in shared memory, each with the process's number first and a text soon after; the rest of a
//! record differs between versions. So a record is found by what it must look like: the number, and at the known distance
//! a printable text.

use crate::domain::Domain;
use core::ffi::c_void;

/// Longest text of the servers, bytes.
const LONGEST: usize = 128;

/// The role of a process, from a table that begins at `table` and is one block of `domain`. In a record the text begins so many
/// bytes after the number.
pub(crate) fn find(domain: &Domain, table: *mut c_void, pid: u32, text_at: usize) -> Option<&'static str> {
    if table.is_null() {
        return None;
    }
    // SAFETY: the block, which the server keeps as long as it runs. Its processes write it now and then: what is read is looked
    // at, and a text of which half is new is right a moment later.
    let records = unsafe { core::slice::from_raw_parts(table.cast(), domain.usable_size(table)) };
    text_of(records, pid, text_at)
}

fn text_of(records: &[u8], pid: u32, text_at: usize) -> Option<&str> {
    let numbers = records.chunks_exact(size_of::<u32>()).enumerate();
    numbers.filter(|(_, number)| **number == pid.to_ne_bytes()).find_map(|(index, _)| {
        let text = records.get(index * size_of::<u32>() + text_at..)?;
        printable(text.get(..LONGEST)?)
    })
}

/// The text up to its zero, if it is one.
fn printable(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let text = core::str::from_utf8(bytes.get(..end)?).ok()?;
    (!text.is_empty() && !text.chars().any(char::is_control)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of a number, two more, and a text.
    fn table(records: &[(u32, &str)]) -> std::vec::Vec<u8> {
        let mut bytes = std::vec::Vec::new();
        for (pid, text) in records {
            bytes.extend(pid.to_ne_bytes());
            bytes.extend([0; 8]);
            bytes.extend(text.bytes());
            bytes.resize(bytes.len().next_multiple_of(LONGEST + 12), 0);
        }
        bytes
    }

    #[test]
    fn a_process_is_found_by_its_number_and_a_text_behind_it() {
        let table = table(&[(7, "attendant"), (8, "SIP receiver udp:127.0.0.1:5060"), (9, "timer")]);
        assert_eq!(text_of(&table, 8, 12), Some("SIP receiver udp:127.0.0.1:5060"));
        assert_eq!(text_of(&table, 9, 12), Some("timer"));
        assert_eq!(text_of(&table, 10, 12), None);
    }

    #[test]
    fn what_is_no_text_is_no_role() {
        assert_eq!(text_of(&table(&[(7, ""), (8, "a\u{1}b")]), 7, 12), None);
        assert_eq!(text_of(&table(&[(7, ""), (8, "a\u{1}b")]), 8, 12), None);
        assert_eq!(text_of(&table(&[(7, "cut")])[..40], 7, 12), None);
    }
}
