//! Light Markdown while it streams in: headings, lists, quotes, tables, code blocks, and emphasis within lines.
//!
//! The beginning of a line is held back until it says what the line is; nothing that was printed changes afterwards.
//! No character is added or removed, so the text can be copied from the terminal; only soft breaks are new.

use super::{
    canvas::Canvas,
    code::Code,
    inline::Inline,
    style::{Colour, Style},
    wrap::Wrapper,
};

const MARKER: Style = Style::coloured(Colour::Blue);

/// Renders Markdown onto a canvas.
pub struct Markdown<C> {
    wrapper: Wrapper<C>,
    line: Line,
    fence: Option<Fence>,
}

/// The current line.
enum Line {
    /// Its beginning, which does not yet say what it is.
    Undecided(String),
    Text(Inline),
    /// A row of a table: wrapping it would destroy its columns.
    Verbatim(Inline),
    Code,
}

/// An open code block.
struct Fence {
    marker: char,
    count: usize,
    /// `None` for Markdown: models often put a whole reply into such a block.
    code: Option<Code>,
}

/// What a line is.
#[derive(Debug, PartialEq)]
enum Block {
    Paragraph,
    Heading,
    /// With the length of its bullet or number.
    Item(usize),
    Quote,
    Table,
    Rule,
    /// The line that opens a code block.
    Fence {
        marker: char,
        count: usize,
    },
}

impl<C: Canvas> Markdown<C> {
    pub fn new(canvas: C, width: impl Fn() -> usize + 'static) -> Self {
        let line = Line::Undecided(String::new());
        Self { wrapper: Wrapper::new(canvas, width), line, fence: None }
    }

    pub fn canvas(&mut self) -> &mut C {
        self.wrapper.canvas()
    }

    /// Adds text, in pieces of any length.
    pub fn push(&mut self, text: &str) {
        text.chars().for_each(|c| self.push_char(c));
    }

    /// Prints what is held back.
    pub fn finish(&mut self) {
        self.end_line();
        self.wrapper.finish();
    }

    fn push_char(&mut self, c: char) {
        // Half of a line end.
        if c == '\r' {
            return;
        }
        if c == '\n' {
            self.end_line();
            self.wrapper.newline();
            self.line = Line::Undecided(String::new());
            return;
        }
        match &mut self.line {
            Line::Undecided(start) => {
                start.push(visible(c));
                let fence = self.fence.as_ref();
                if fence.is_some_and(|fence| fence.may_close(start)) {
                    return;
                }
                if fence.is_some_and(|fence| fence.code.is_some()) {
                    self.start_code();
                } else if let Some(block) = classify(start, false) {
                    self.start_line(&block);
                }
            }
            Line::Text(inline) => inline.push(visible(c), &mut |c, style| self.wrapper.put(c, style)),
            Line::Verbatim(inline) => {
                inline.push(visible(c), &mut |c, style| self.wrapper.put_verbatim(c, style));
            }
            Line::Code => self.push_code(visible(c)),
        }
    }

    /// Prints the rest of the line, without the newline.
    fn end_line(&mut self) {
        match &mut self.line {
            Line::Undecided(start) => match &self.fence {
                Some(fence) if fence.closes(start) => {
                    let start = std::mem::take(start);
                    self.fence = None;
                    start.chars().for_each(|c| self.wrapper.put_verbatim(c, Style::DIM));
                }
                Some(fence) if fence.code.is_some() => self.start_code(),
                _ => {
                    let block = classify(start, true).unwrap_or(Block::Paragraph);
                    self.start_line(&block);
                }
            },
            Line::Text(_) | Line::Verbatim(_) | Line::Code => {}
        }
        match &mut self.line {
            Line::Text(inline) => inline.finish(&mut |c, style| self.wrapper.put(c, style)),
            Line::Verbatim(inline) => inline.finish(&mut |c, style| self.wrapper.put_verbatim(c, style)),
            Line::Code => {
                if let Some(code) = self.fence.as_mut().and_then(|fence| fence.code.as_mut()) {
                    code.end_line(&mut |c, style| self.wrapper.put_verbatim(c, style));
                }
            }
            Line::Undecided(_) => {}
        }
    }

    /// The line is code: prints its beginning.
    fn start_code(&mut self) {
        if let Line::Undecided(start) = std::mem::replace(&mut self.line, Line::Code) {
            start.chars().for_each(|c| self.push_code(c));
        }
    }

    fn push_code(&mut self, c: char) {
        if let Some(code) = self.fence.as_mut().and_then(|fence| fence.code.as_mut()) {
            code.push(c, &mut |c, style| self.wrapper.put_verbatim(c, style));
        }
    }

    /// The line is known: prints its beginning.
    fn start_line(&mut self, block: &Block) {
        let Line::Undecided(start) = std::mem::replace(&mut self.line, Line::Text(Inline::default())) else {
            return;
        };
        let indent = indentation(&start);
        let rest = &start[indent..];
        let wrapper = &mut self.wrapper;
        let mut marker = 0;
        match *block {
            Block::Paragraph => wrapper.hang(indent),
            Block::Heading => {
                marker = rest.len() - rest.trim_start_matches('#').len();
                wrapper.hang(indent + marker + 1);
                self.line = Line::Text(Inline::new(Style::BOLD));
            }
            Block::Item(length) => {
                marker = length;
                wrapper.hang(indent + marker + 1);
            }
            Block::Quote => {
                marker = 1;
                wrapper.hang(indent + 2);
            }
            Block::Table => self.line = Line::Verbatim(Inline::default()),
            Block::Rule | Block::Fence { .. } => marker = rest.len(),
        }
        if let Block::Fence { marker, count } = *block {
            let language = rest[count..].trim().split([' ', ',', '{', ':']).next().unwrap_or_default();
            let is_markdown = ["markdown", "md"].contains(&language);
            let code = (!is_markdown).then(|| Code::new(language));
            self.fence = Some(Fence { marker, count, code });
        }
        let style = match block {
            Block::Item(_) => MARKER,
            _ => Style::DIM,
        };
        start[..indent].chars().for_each(|c| wrapper.put(c, Style::PLAIN));
        // The fence's line stays as it is, like the code below it.
        let verbatim = matches!(block, Block::Fence { .. });
        for c in rest[..marker].chars() {
            if verbatim { wrapper.put_verbatim(c, style) } else { wrapper.put(c, style) }
        }
        let after = rest[marker..].to_owned();
        after.chars().for_each(|c| self.push_char(c));
    }
}

impl Fence {
    /// Whether a line that starts like this can still close the block.
    fn may_close(&self, start: &str) -> bool {
        let rest = &start[indentation(start)..];
        rest.trim_start_matches(self.marker).trim_end().is_empty()
    }

    /// Whether this line closes the block.
    fn closes(&self, line: &str) -> bool {
        let rest = line[indentation(line)..].trim_end();
        rest.len() >= self.count && rest.chars().all(|c| c == self.marker)
    }
}

/// Number of spaces at the beginning of a line.
fn indentation(line: &str) -> usize {
    line.len() - line.trim_start_matches([' ', '\t']).len()
}

/// What a line is that starts like this, as soon as that is known. At the line's end it always is.
fn classify(start: &str, ended: bool) -> Option<Block> {
    let rest = &start[indentation(start)..];
    let Some(first) = rest.chars().next() else { return ended.then_some(Block::Paragraph) };
    let count = rest.chars().take_while(|c| *c == first).count();
    let after = rest.trim_start_matches(first);
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let undecided = |block: Block| ended.then_some(block);
    match first {
        '`' | '~' if count >= 3 && (first == '~' || !after.contains('`')) => {
            undecided(Block::Fence { marker: first, count })
        }
        '`' | '~' if after.is_empty() => undecided(Block::Paragraph),
        '#' if count <= 6 && after.is_empty() => undecided(Block::Heading),
        '#' if count <= 6 && after.starts_with(' ') => Some(Block::Heading),
        '-' | '*' | '+' if count == 1 && after.starts_with(' ') => Some(Block::Item(1)),
        '-' | '*' if count >= 3 && after.trim_end().is_empty() => undecided(Block::Rule),
        '-' | '*' | '+' if after.is_empty() => undecided(Block::Paragraph),
        // CommonMark's limit for list numbers.
        '0'..='9' if digits <= 9 => match &rest.as_bytes()[digits..] {
            [] | [b'.' | b')'] => undecided(Block::Paragraph),
            [b'.' | b')', b' ', ..] => Some(Block::Item(digits + 1)),
            _ => Some(Block::Paragraph),
        },
        '>' => Some(Block::Quote),
        '|' => Some(Block::Table),
        _ => Some(Block::Paragraph),
    }
}

/// A character that cannot control the terminal.
pub fn visible(c: char) -> char {
    match c {
        '\t' => c,
        // The pictures of the control characters, such as ␛.
        '\0'..='\u{1f}' => char::from_u32(0x2400 + u32::from(c)).unwrap_or(char::REPLACEMENT_CHARACTER),
        '\u{7f}' => '␡',
        '\u{80}'..='\u{9f}' => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

#[cfg(test)]
mod tests;
