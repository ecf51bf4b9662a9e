//! Strings that come from a watched process (comm, exe, arguments, arena names, symbols) made safe to show.
//!
//! A target can put anything into them: escape sequences that rewrite the operator's terminal, characters that reverse
//! the text, megabytes. Every such string passes here once, where it enters the model.

/// The longest string taken from a target, in characters.
pub const MAX: usize = 128;

/// The text of `bytes` with everything unprintable written out, cut to [`MAX`] characters.
pub fn bytes(bytes: &[u8]) -> String {
    within(bytes, MAX)
}

/// The same, cut to `max` characters.
pub fn within(bytes: &[u8], max: usize) -> String {
    // A character has at most four bytes: what lies beyond cannot be shown anyway.
    let bytes = &bytes[..bytes.len().min(max.saturating_mul(4))];
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        chunk.valid().chars().for_each(|c| push(&mut text, c));
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    cut(&text, max)
}

/// The same for text.
pub fn text(text: &str) -> String {
    bytes(text.as_bytes())
}

fn push(text: &mut String, c: char) {
    match c {
        '\n' => text.push_str("\\n"),
        '\t' => text.push_str("\\t"),
        c if c.is_control() => text.push_str(&format!("\\x{:02x}", c as u32)),
        c if invisible(c) => text.push_str(&format!("\\u{{{:x}}}", c as u32)),
        c => text.push(c),
    }
}

/// Characters that take no place or change the direction of others.
fn invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// At most `width` characters of `text`, the last one an ellipsis if some are left out.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    if width > 0 {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_survives() {
        let hostile = b"\x1b[2J\x1b]0;owned\x07\r\n\xff\xc2\x9b31m\xe2\x80\xaeabc\0";
        let shown = bytes(hostile);
        assert_eq!(shown, "\\x1b[2J\\x1b]0;owned\\x07\\x0d\\n\\xff\\x9b31m\\u{202e}abc\\x00");
        assert!(shown.chars().all(|c| !c.is_control()));
    }

    #[test]
    fn long_strings_are_cut_on_a_character() {
        assert_eq!(bytes(&b"x".repeat(1 << 20)).chars().count(), MAX);
        assert_eq!(bytes("é".repeat(4096).as_bytes()).chars().count(), MAX);
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abc", 0), "");
    }
}
