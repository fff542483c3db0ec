//! Words of strangers on a terminal.

use std::fmt::Display;

/// A text as one line that a terminal prints and does not obey: control characters, ends of lines and marks that turn the
/// direction of writing are shown by their numbers. Names of files and what records say can hold all of them.
pub fn printable(text: impl Display) -> String {
    let mut shown = String::new();
    for c in text.to_string().chars() {
        if c.is_control() || is_mark(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown
}

/// Ends of lines and marks of direction, which are not control characters to Unicode.
fn is_mark(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        assert_eq!(printable("evil\x1b[31mred"), "evil\\u{1b}[31mred");
        assert_eq!(printable("a\nb\u{9b}c\u{202e}d\u{7f}"), "a\\u{a}b\\u{9b}c\\u{202e}d\\u{7f}");
        for plain in ["", "Some-Model_Q4 'x' \\ \"y\"", "модель – ä 模型"] {
            assert_eq!(printable(plain), plain);
        }
    }
}
