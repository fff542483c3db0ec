//! Wraps words at the terminal's width while text streams in.
//!
//! The current word is held back until it is complete, so nothing that was printed has to move. A word that is longer
//! than a line is printed as it comes and broken at the edge.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{canvas::Canvas, style::Style};

/// Distance between tab stops.
const TAB: usize = 8;

/// Wraps text onto a canvas.
pub struct Wrapper<C> {
    canvas: C,
    /// The terminal's width in columns, asked for at the start of every line: it can be resized.
    width: Box<dyn Fn() -> usize>,
    columns: usize,
    /// Column of the cursor.
    column: usize,
    /// Column at which the line goes on after a soft break.
    indent: usize,
    /// Spaces before the word that is held back.
    spaces: String,
    word: String,
    styles: Vec<Style>,
    /// The word is longer than a line and no longer held back.
    overlong: bool,
}

impl<C: Canvas> Wrapper<C> {
    pub fn new(canvas: C, width: impl Fn() -> usize + 'static) -> Self {
        let columns = width().max(1);
        Self {
            canvas,
            width: Box::new(width),
            columns,
            column: 0,
            indent: 0,
            spaces: String::new(),
            word: String::new(),
            styles: vec![],
            overlong: false,
        }
    }

    pub fn canvas(&mut self) -> &mut C {
        &mut self.canvas
    }

    /// Sets the column at which the current line goes on after a soft break. Narrow terminals keep half a line.
    pub fn hang(&mut self, indent: usize) {
        self.indent = indent.min(self.columns / 2);
    }

    /// Adds a character of text that wraps.
    pub fn put(&mut self, c: char, style: Style) {
        if is_break_space(c) {
            self.end_word();
            self.spaces.push(c);
            return;
        }
        if self.word.chars().last().is_some_and(|last| breaks_between(last, c)) {
            self.end_word();
        }
        if self.overlong {
            self.put_broken(c, style);
            return;
        }
        self.word.push(c);
        self.styles.push(style);
        if self.indent + self.word.width() > self.columns {
            self.start_line_for_word();
            self.overlong = true;
            for (c, style) in self.take_word() {
                self.put_broken(c, style);
            }
        }
    }

    /// Adds a character of text that stays as it is, whatever its length.
    pub fn put_verbatim(&mut self, c: char, style: Style) {
        self.end_word();
        self.put_spaces();
        self.emit(c, style);
    }

    /// Ends the line.
    pub fn newline(&mut self) {
        self.end_word();
        self.end_spaces();
        self.canvas.newline();
        self.begin_line(0);
        self.indent = 0;
    }

    /// Prints what is held back.
    pub fn finish(&mut self) {
        self.end_word();
        self.end_spaces();
    }

    /// Prints the spaces at the end of a line. Beyond the edge they would become a line of their own.
    fn end_spaces(&mut self) {
        if self.column_after_spaces() <= self.columns { self.put_spaces() } else { self.hide_spaces() }
    }

    /// Prints the word that is held back, on the next line if it does not fit this one.
    fn end_word(&mut self) {
        self.overlong = false;
        if self.word.is_empty() {
            return;
        }
        if self.column_after_spaces() + self.word.width() > self.columns {
            self.start_line_for_word();
        } else {
            self.put_spaces();
        }
        // Joined emoji are narrower than the sum of their parts.
        let end = self.column + self.word.width();
        for (c, style) in self.take_word() {
            self.canvas.put(c, style);
        }
        self.column = end;
    }

    fn take_word(&mut self) -> Vec<(char, Style)> {
        let (word, styles) = (std::mem::take(&mut self.word), std::mem::take(&mut self.styles));
        word.chars().zip(styles).collect()
    }

    /// Breaks the line, unless there is nothing on it but its marker.
    fn start_line_for_word(&mut self) {
        if self.column > self.indent {
            self.hide_spaces()
        } else {
            self.put_spaces()
        }
        if self.column > self.indent {
            self.soft_break();
        }
    }

    /// Prints a character of an overlong word.
    fn put_broken(&mut self, c: char, style: Style) {
        if self.column + c.width().unwrap_or(0) > self.columns && self.column > self.indent {
            self.soft_break();
        }
        self.emit(c, style);
    }

    fn soft_break(&mut self) {
        self.canvas.soft_break(self.indent);
        self.begin_line(self.indent);
    }

    fn begin_line(&mut self, column: usize) {
        self.column = column;
        self.columns = (self.width)().max(1);
    }

    fn put_spaces(&mut self) {
        for c in std::mem::take(&mut self.spaces).chars() {
            self.emit(c, Style::PLAIN);
        }
    }

    fn hide_spaces(&mut self) {
        std::mem::take(&mut self.spaces).chars().for_each(|c| self.canvas.hide(c));
    }

    fn column_after_spaces(&self) -> usize {
        self.spaces.chars().fold(self.column, next_column)
    }

    fn emit(&mut self, c: char, style: Style) {
        self.canvas.put(c, style);
        self.column = next_column(self.column, c);
    }
}

fn next_column(column: usize, c: char) -> usize {
    if c == '\t' { (column / TAB + 1) * TAB } else { column + c.width().unwrap_or(0) }
}

/// White space that may become a soft break.
fn is_break_space(c: char) -> bool {
    c.is_whitespace() && !matches!(c, '\u{a0}' | '\u{202f}' | '\u{2007}')
}

/// Whether a line may break between two characters that are not spaces: around the characters of languages that
/// are written without spaces, except before closing and after opening punctuation.
fn breaks_between(before: char, after: char) -> bool {
    (is_unspaced(before) || is_unspaced(after)) && !is_closing(after) && !is_opening(before)
}

/// Ideographs, kana and their punctuation. Korean has spaces.
fn is_unspaced(c: char) -> bool {
    matches!(c,
        '\u{2e80}'..='\u{30ff}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}'
        | '\u{ff00}'..='\u{ffef}' | '\u{20000}'..='\u{3ffff}')
}

fn is_closing(c: char) -> bool {
    const CLOSING: &str =
        "、。，．・：；？！）］｝」』】〉》〕ー々ぁぃぅぇぉっゃゅょァィゥェォッャュョ.,:;?!)]}%’”*_`";
    CLOSING.contains(c) || c.width() == Some(0)
}

fn is_opening(c: char) -> bool {
    "（［｛「『【〈《〔([{‘“*_`".contains(c)
}

#[cfg(test)]
mod tests {
    use super::{super::canvas::testing::Recorder, *};

    fn wrapped(text: &str, columns: usize, indent: usize) -> String {
        let mut wrapper = Wrapper::new(Recorder::default(), move || columns);
        wrapper.hang(indent);
        for c in text.chars() {
            if c == '\n' { wrapper.newline() } else { wrapper.put(c, Style::PLAIN) }
        }
        wrapper.finish();
        assert_eq!(wrapper.canvas.text, text);
        std::mem::take(&mut wrapper.canvas.screen)
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrapped("one two three", 8, 0), "one two\nthree");
        assert_eq!(wrapped("one two three", 7, 2), "one two\n  three");
        assert_eq!(wrapped("one two", 7, 0), "one two");
        assert_eq!(wrapped("one  two", 7, 0), "one\ntwo");
        assert_eq!(wrapped("a\n\nb c\n", 2, 0), "a\n\nb\nc\n");
        assert_eq!(wrapped("abc   \nd", 4, 0), "abc\nd", "trailing spaces do not wrap");
        assert_eq!(wrapped("a\u{a0}b c", 4, 0), "a\u{a0}b\nc");
    }

    #[test]
    fn only_words_longer_than_a_line_are_broken() {
        assert_eq!(wrapped("go https://example.org now", 10, 0), "go\nhttps://ex\nample.org\nnow");
        assert_eq!(wrapped("x 1234567890 y", 10, 0), "x\n1234567890\ny");
        assert_eq!(wrapped("- 123456789", 6, 2), "- 1234\n  5678\n  9");
        assert_eq!(wrapped("ab", 1, 0), "a\nb");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(wrapped("漢字かな", 5, 0), "漢字\nかな");
        assert_eq!(wrapped("漢字、か", 4, 0), "漢\n字、\nか", "no line starts with a comma");
        assert_eq!(wrapped("안녕 세계", 8, 0), "안녕\n세계", "Korean breaks at spaces");
        assert_eq!(wrapped("e\u{301}e\u{301} x", 4, 0), "e\u{301}e\u{301} x");
        assert_eq!(wrapped("👩‍💻 ab", 5, 0), "👩‍💻 ab");
    }

    #[test]
    fn every_line_has_the_width_of_its_time() {
        use std::{cell::Cell, rc::Rc};
        let columns = Rc::new(Cell::new(9));
        let width = columns.clone();
        let mut wrapper = Wrapper::new(Recorder::default(), move || width.get());
        for c in "aaaa bbbb cccc".chars() {
            wrapper.put(c, Style::PLAIN);
        }
        columns.set(4);
        for c in " dddd eeee ffff".chars() {
            wrapper.put(c, Style::PLAIN);
        }
        wrapper.finish();
        assert_eq!(wrapper.canvas.screen, "aaaa bbbb\ncccc\ndddd\neeee\nffff");
    }
}
