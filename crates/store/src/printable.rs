//! Untrusted text on a terminal.

use std::fmt::Display;

/// Escapes control characters, line separators and bidirectional marks, so that untrusted text prints on one
/// line and cannot control the terminal. File names and records can contain all of these.
pub fn printable(text: impl Display) -> String {
    let mut shown = String::new();
    for c in text.to_string().chars() {
        if c.is_control() || is_format_mark(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown
}

/// Line separators and bidirectional marks, which are not in Unicode's control category.
fn is_format_mark(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn control_sequences_are_escaped() {
        assert_eq!(printable("evil\x1b[31mred"), "evil\\u{1b}[31mred");
        assert_eq!(printable("a\nb\u{9b}c\u{202e}d\u{7f}"), "a\\u{a}b\\u{9b}c\\u{202e}d\\u{7f}");
        for plain in ["", "Some-Model_Q4 'x' \\ \"y\"", "модель – ä 模型"] {
            assert_eq!(printable(plain), plain);
        }
    }
}
