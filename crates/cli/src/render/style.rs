//! Text styles, and whether the terminal shows them.

use std::ffi::OsString;

/// Style of one character. Colours are the terminal's own, so they suit dark and light themes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    pub bold: bool,
    pub italic: bool,
    pub dim: bool,
    pub colour: Option<Colour>,
}

/// Foreground colour: the parameter of its SGR sequence (ECMA-48, 8.3.117).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    Green = 32,
    Yellow = 33,
    Blue = 34,
    Magenta = 35,
    Cyan = 36,
}

impl Style {
    /// Markers of Markdown, and comments.
    pub const DIM: Style = Style { dim: true, ..Style::PLAIN };
    pub const BOLD: Style = Style { bold: true, ..Style::PLAIN };
    pub const PLAIN: Style = Style { bold: false, italic: false, dim: false, colour: None };

    pub const fn coloured(colour: Colour) -> Style {
        Style { colour: Some(colour), ..Style::PLAIN }
    }

    /// The control sequence that sets this style and nothing else.
    pub fn sequence(self) -> String {
        let flags = [(self.bold, 1), (self.dim, 2), (self.italic, 3)];
        let codes = flags.into_iter().filter(|(set, _)| *set).map(|(_, code)| code);
        let codes = codes.chain(self.colour.map(|colour| colour as u8));
        let codes: String = codes.map(|code: u8| format!(";{code}")).collect();
        // A leading 0 resets what the last style set.
        format!("\x1b[0{codes}m")
    }
}

/// Whether styles are shown on a terminal with these environment variables: not with `NO_COLOR` (no-color.org),
/// `CLICOLOR=0` (bixense.com/clicolors), or a terminal without control sequences.
pub fn enabled(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let is = |name: &str, value: &str| variable(name).is_some_and(|found| found == value);
    let no_colour = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    let has_sequences = variable("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    has_sequences && !no_colour && !is("CLICOLOR", "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_set_exactly_one_style() {
        assert_eq!(Style::PLAIN.sequence(), "\x1b[0m");
        assert_eq!(Style { italic: true, ..Style::BOLD }.sequence(), "\x1b[0;1;3m");
        assert_eq!(Style { dim: true, ..Style::coloured(Colour::Cyan) }.sequence(), "\x1b[0;2;36m");
    }

    #[test]
    fn the_environment_switches_styles_off() {
        let on = |variables: &[(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
            enabled(|name| find(name).map(|(_, value)| value.into()))
        };
        assert!(on(&[("TERM", "xterm")]));
        assert!(on(&[("TERM", "xterm"), ("NO_COLOR", ""), ("CLICOLOR", "1")]));
        assert!(!on(&[]) && !on(&[("TERM", "")]) && !on(&[("TERM", "dumb")]));
        assert!(!on(&[("TERM", "xterm"), ("NO_COLOR", "1")]));
        assert!(!on(&[("TERM", "xterm"), ("CLICOLOR", "0")]));
    }
}
