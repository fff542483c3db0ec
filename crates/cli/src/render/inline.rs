//! Emphasis and code within a line of Markdown.

use super::style::{Colour, Style};

const CODE: Style = Style::coloured(Colour::Cyan);

/// Styles the characters of a line as they arrive. Markers stay, dimmed: text that only looks like Markdown
/// loses nothing, and what is copied from the terminal is what the model wrote. Styles end with the line.
#[derive(Default)]
pub struct Inline {
    /// Style of the whole line.
    base: Style,
    /// A run of equal markers, held back until the character after it says what it means.
    run: Option<(char, usize)>,
    /// The last character before the run.
    last: Option<char>,
    escaped: bool,
    /// Length of the run that opened a code span.
    code: Option<usize>,
    /// The marker that opened it.
    bold: Option<char>,
    italic: Option<char>,
}

impl Inline {
    /// A line with this style.
    pub fn new(base: Style) -> Self {
        Self { base, ..Self::default() }
    }

    /// Adds a character.
    pub fn push(&mut self, c: char, out: &mut impl FnMut(char, Style)) {
        if let Some((marker, count)) = self.run {
            if c == marker {
                self.run = Some((marker, count + 1));
                return;
            }
            self.end_run(Some(c), out);
        }
        let escaped = std::mem::take(&mut self.escaped);
        let is_marker = if self.code.is_some() { c == '`' } else { !escaped && matches!(c, '*' | '_' | '`') };
        if is_marker {
            self.run = Some((c, 1));
            return;
        }
        self.escaped = c == '\\' && !escaped && self.code.is_none();
        out(c, self.style());
        self.last = Some(c);
    }

    /// Prints what is held back at the end of the line.
    pub fn finish(&mut self, out: &mut impl FnMut(char, Style)) {
        self.end_run(None, out);
    }

    fn style(&self) -> Style {
        if self.code.is_some() {
            return Style { bold: self.base.bold || self.bold.is_some(), ..CODE };
        }
        Style {
            bold: self.base.bold || self.bold.is_some(),
            italic: self.base.italic || self.italic.is_some(),
            ..self.base
        }
    }

    fn end_run(&mut self, next: Option<char>, out: &mut impl FnMut(char, Style)) {
        let Some((marker, count)) = self.run.take() else { return };
        let is_markup = match marker {
            '`' => self.apply_backticks(count, next),
            _ => self.apply_emphasis(marker, count, next),
        };
        let style = if is_markup { Style::DIM } else { self.style() };
        (0..count).for_each(|_| out(marker, style));
        self.last = Some(marker);
    }

    /// Opens or closes a code span; returns whether the run does.
    fn apply_backticks(&mut self, count: usize, next: Option<char>) -> bool {
        match self.code {
            Some(opened) if opened == count => self.code = None,
            Some(_) => return false,
            None if next.is_some() => self.code = Some(count),
            None => return false,
        }
        true
    }

    /// Opens or closes emphasis by CommonMark's flanking rules; returns whether the run does.
    fn apply_emphasis(&mut self, marker: char, count: usize, next: Option<char>) -> bool {
        let is_space = |c: Option<char>| c.is_none_or(char::is_whitespace);
        let is_punctuation = |c: Option<char>| c.is_some_and(|c| !c.is_alphanumeric() && !c.is_whitespace());
        let is_word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        let flanks = |inner, outer| {
            !is_space(inner) && (!is_punctuation(inner) || is_space(outer) || is_punctuation(outer))
        };
        let (left, right) = (flanks(next, self.last), flanks(self.last, next));
        // Stricter than CommonMark: `2**10` and `a*b` are arithmetic, `snake_case` is a name.
        let can_open = left && !is_word(self.last);
        let can_close = right && (marker == '*' || !is_word(next));
        let mut rest = count;
        if can_close {
            if self.bold == Some(marker) && rest >= 2 {
                self.bold = None;
                rest -= 2;
            }
            if self.italic == Some(marker) && rest >= 1 {
                self.italic = None;
                rest -= 1;
            }
        }
        if can_open && rest == count {
            if self.bold.is_none() && rest >= 2 {
                self.bold = Some(marker);
                rest -= 2;
            }
            if self.italic.is_none() && rest == 1 {
                self.italic = Some(marker);
                rest -= 1;
            }
        }
        rest < count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The characters with a property, and the text without them.
    fn styled(text: &str, is: impl Fn(Style) -> bool) -> String {
        let mut found = String::new();
        let mut inline = Inline::default();
        let mut out = |c, style| {
            if is(style) {
                found.push(c);
            }
        };
        text.chars().for_each(|c| inline.push(c, &mut out));
        inline.finish(&mut out);
        found
    }

    #[test]
    fn emphasis_is_styled_between_its_markers() {
        for (text, bold, italic) in [
            ("a **b c** d", "b c", ""),
            ("*a* __b__ _c_", "b", "ac"),
            ("***a***", "a", "a"),
            ("**a *b* c**", "a *b* c", "b"),
            ("这是**重点**内容", "重点", ""),
            ("**Note:** x", "Note:", ""),
        ] {
            let plain = |style: Style| !style.dim;
            assert_eq!(styled(text, |style| style.bold && plain(style)), bold.replace('*', ""), "{text}");
            assert_eq!(styled(text, |style| style.italic && plain(style)), italic, "{text}");
        }
    }

    #[test]
    fn text_that_only_looks_like_emphasis_is_plain() {
        for text in ["2 * 3 * 4", "2**10 + 3**4", "snake_case_name", r"\*a\*", "a * b", "**", "5*3*2", "`"] {
            assert_eq!(styled(text, |style| style == Style::PLAIN), text);
        }
    }

    #[test]
    fn code_spans_end_with_as_many_backticks() {
        assert_eq!(styled("`a*b*c` d", |style| style == CODE), "a*b*c");
        assert_eq!(styled("``a`b`` c", |style| style == CODE), "a`b");
        assert_eq!(styled("`a\\` b", |style| style == CODE), "a\\");
        assert_eq!(styled("x `a` **y**", |style| style.dim), "``****");
    }
}
