//! Texts that come from C, and texts that go there.

use core::ffi::{CStr, c_char};

/// A text from C: `None` for a null pointer, or for bytes that are no UTF-8.
///
/// # Safety
/// `text` is null or a C string that stays while the result is used.
pub(crate) unsafe fn given<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// Writes parts of a text into a buffer of C, cut where it is full, with a zero behind. Nothing for a null buffer.
///
/// # Safety
/// `buffer` is null, or `bytes` bytes can be written there.
pub(crate) unsafe fn answer(parts: &[&str], buffer: *mut c_char, bytes: usize) {
    if buffer.is_null() || bytes == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    let buffer = unsafe { core::slice::from_raw_parts_mut(buffer.cast::<u8>(), bytes) };
    buffer.fill(0);
    let text = parts.iter().flat_map(|part| part.bytes());
    buffer[..bytes - 1].iter_mut().zip(text).for_each(|(to, from)| *to = from);
}
