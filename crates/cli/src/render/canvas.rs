//! Where rendered text goes.

use std::fmt::Write;

use super::style::Style;

/// Receives rendered text. Nothing is taken back: a canvas can be a stream.
pub trait Canvas {
    /// A character at the cursor.
    fn put(&mut self, c: char, style: Style);
    /// The end of a line of the text.
    fn newline(&mut self);
    /// The end of a screen line in the middle of a line of the text; the next begins with `indent` spaces.
    fn soft_break(&mut self, indent: usize);
    /// A space of the text that is not shown, because a soft break or the screen's edge is there.
    fn hide(&mut self, c: char);
}

/// Text with control sequences, for a terminal.
pub struct Terminal {
    text: String,
    styled: bool,
    style: Style,
}

impl Terminal {
    /// Without `styled`, the text has no control sequences at all.
    pub fn new(styled: bool) -> Self {
        Self { text: String::new(), styled, style: Style::PLAIN }
    }

    /// The text since the last call.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    fn set(&mut self, style: Style) {
        if self.styled && style != self.style {
            self.text += &style.sequence();
            self.style = style;
        }
    }
}

impl Canvas for Terminal {
    fn put(&mut self, c: char, style: Style) {
        // A style cannot be seen on a space.
        if c != ' ' {
            self.set(style);
        }
        self.text.push(c);
    }

    fn newline(&mut self) {
        // An interrupted program leaves at most one line styled.
        self.set(Style::PLAIN);
        self.text.push('\n');
    }

    fn soft_break(&mut self, indent: usize) {
        // Writing to a string cannot fail.
        let _ = write!(self.text, "\n{:indent$}", "");
    }

    fn hide(&mut self, _: char) {}
}

#[cfg(test)]
pub mod testing {
    use super::*;

    /// Keeps the text and what is seen of it apart.
    #[derive(Default)]
    pub struct Recorder {
        /// The text, with everything that is hidden and without soft breaks.
        pub text: String,
        /// The screen's lines, without styles.
        pub screen: String,
        /// The characters with their styles, without spaces.
        pub styled: Vec<(char, Style)>,
    }

    impl Recorder {
        /// The characters that have a style.
        pub fn with(&self, style: Style) -> String {
            self.styled.iter().filter(|(_, found)| *found == style).map(|(c, _)| *c).collect()
        }
    }

    impl Canvas for Recorder {
        fn put(&mut self, c: char, style: Style) {
            self.text.push(c);
            self.screen.push(c);
            if c != ' ' {
                self.styled.push((c, style));
            }
        }

        fn newline(&mut self) {
            self.text.push('\n');
            self.screen.push('\n');
        }

        fn soft_break(&mut self, indent: usize) {
            self.screen += &format!("\n{:indent$}", "");
        }

        fn hide(&mut self, c: char) {
            self.text.push(c);
        }
    }
}
