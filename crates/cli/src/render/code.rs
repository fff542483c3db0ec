//! Colours for code blocks: comments, strings, numbers and keywords of the common languages.
//!
//! A lexer of a page, not a grammar: it knows where comments and strings begin and end, and a list of words.

use super::style::{Colour, Style};

const COMMENT: Style = Style::DIM;
const STRING: Style = Style::coloured(Colour::Green);
const NUMBER: Style = Style::coloured(Colour::Yellow);
const KEYWORD: Style = Style::coloured(Colour::Magenta);

/// A comment or string: how it begins and how it ends. The end of the line also ends it, unless it spans lines.
struct Region {
    begin: &'static str,
    end: Option<&'static str>,
    style: Style,
    multiline: bool,
}

const fn comment(begin: &'static str) -> Region {
    Region { begin, end: None, style: COMMENT, multiline: false }
}

const fn block(begin: &'static str, end: &'static str) -> Region {
    Region { begin, end: Some(end), style: COMMENT, multiline: true }
}

const fn string(quote: &'static str) -> Region {
    Region { begin: quote, end: Some(quote), style: STRING, multiline: quote.len() > 1 }
}

const BACKTICKS: Region = Region { begin: "`", end: Some("`"), style: STRING, multiline: true };

/// What languages with the same syntax of comments and strings have in common.
struct Family {
    languages: &'static [&'static str],
    /// Longer beginnings first.
    regions: &'static [Region],
    keywords: &'static str,
}

const C_KEYWORDS: &str = "abstract as async auto await bool boolean break byte case catch char class const continue \
    default defer delete do double else enum export extends extern false final finally float fn for from func \
    function go goto if impl implements import in inline instanceof int interface internal is let long loop map \
    match mod module move mut namespace new nil null nullptr override package private protected pub public range \
    ref return select self short signed sizeof static string struct super switch template this throw throws trait \
    true try type typedef typeof undefined union unsafe unsigned use using val var virtual void volatile where while \
    yield";

const SCRIPT_KEYWORDS: &str = "alias and as assert async await begin break case class continue def defined del do done \
    elif else elsif end ensure esac except exec export false False fi finally for from function global if import in is \
    lambda let local module next nil None nonlocal not null or pass raise require rescue return self set then True true \
    try unless until var when while with yield";

const FAMILIES: &[Family] = &[
    Family {
        languages: &["rust", "rs", "zig"],
        // No quotes: they also begin lifetimes.
        regions: &[comment("//"), block("/*", "*/"), string("\"")],
        keywords: C_KEYWORDS,
    },
    Family {
        languages: &[
            "c",
            "h",
            "cpp",
            "c++",
            "cc",
            "java",
            "javascript",
            "js",
            "jsx",
            "typescript",
            "ts",
            "tsx",
            "go",
            "golang",
            "kotlin",
            "kt",
            "swift",
            "csharp",
            "cs",
            "c#",
            "php",
            "dart",
            "scala",
            "glsl",
            "css",
            "scss",
            "json",
            "jsonc",
        ],
        regions: &[comment("//"), block("/*", "*/"), string("\""), string("'"), BACKTICKS],
        keywords: C_KEYWORDS,
    },
    Family {
        languages: &[
            "python",
            "py",
            "ruby",
            "rb",
            "sh",
            "bash",
            "zsh",
            "shell",
            "console",
            "fish",
            "yaml",
            "yml",
            "toml",
            "r",
            "perl",
            "make",
            "makefile",
            "dockerfile",
            "elixir",
            "ini",
        ],
        regions: &[comment("#"), string("\"\"\""), string("'''"), string("\""), string("'")],
        keywords: SCRIPT_KEYWORDS,
    },
    Family {
        languages: &["sql", "lua", "haskell", "hs"],
        regions: &[block("/*", "*/"), comment("--"), string("\""), string("'")],
        keywords: "add all alter and as asc begin between by case commit create delete desc distinct do drop else elseif \
            end exists false for foreign from full function group having if import in index inner insert instance into \
            is join key left like limit local module nil not null of on or order outer primary references repeat return \
            right select set table then true type union unique until update values view when where while with",
    },
    Family {
        languages: &["html", "xml", "svg", "vue"],
        regions: &[block("<!--", "-->"), string("\""), string("'")],
        keywords: "",
    },
];

/// The lexer of one code block.
pub struct Code {
    family: Option<&'static Family>,
    region: Option<&'static Region>,
    /// Characters of the region's end that were just seen.
    matched: usize,
    escaped: bool,
    /// A word or the beginning of a region, held back until it is complete.
    held: String,
}

impl Code {
    /// A block in a language, as its fence names it. Unknown ones stay plain.
    pub fn new(language: &str) -> Self {
        let language = language.to_lowercase();
        let family = FAMILIES.iter().find(|family| family.languages.contains(&language.as_str()));
        Self { family, region: None, matched: 0, escaped: false, held: String::new() }
    }

    /// Adds a character.
    pub fn push(&mut self, c: char, out: &mut impl FnMut(char, Style)) {
        let Some(family) = self.family else { return out(c, Style::PLAIN) };
        if let Some(region) = self.region {
            return self.push_in(region, c, out);
        }
        if is_word(c) && self.held.chars().all(is_word) {
            self.held.push(c);
            return;
        }
        if self.held.chars().any(is_word) {
            self.end_word(family, out);
        }
        self.held.push(c);
        let starting = || family.regions.iter().filter(|region| region.begin.starts_with(self.held.as_str()));
        match starting().next() {
            // A longer beginning is still possible.
            Some(region) if region.begin != self.held => {}
            Some(region) => self.begin(region, out),
            None => self.resolve(family, out),
        }
    }

    /// Ends a line: prints what is held back.
    pub fn end_line(&mut self, out: &mut impl FnMut(char, Style)) {
        let Some(family) = self.family else { return };
        while self.region.is_none() && self.held.starts_with(|c: char| !is_word(c)) {
            self.resolve(family, out);
        }
        self.end_word(family, out);
        self.region = self.region.filter(|region| region.multiline);
        (self.matched, self.escaped) = (0, false);
    }

    /// The held characters begin no region as a whole: prints the first of them, or the region that it begins.
    fn resolve(&mut self, family: &'static Family, out: &mut impl FnMut(char, Style)) {
        let held = std::mem::take(&mut self.held);
        let region = family.regions.iter().find(|region| held.starts_with(region.begin));
        let first = match region {
            Some(region) => {
                self.held += region.begin;
                self.begin(region, out);
                region.begin.len()
            }
            None => {
                let first = held.chars().next().map_or(0, char::len_utf8);
                held[..first].chars().for_each(|c| out(c, Style::PLAIN));
                first
            }
        };
        held[first..].chars().for_each(|c| self.push(c, out));
    }

    fn begin(&mut self, region: &'static Region, out: &mut impl FnMut(char, Style)) {
        std::mem::take(&mut self.held).chars().for_each(|c| out(c, region.style));
        (self.region, self.matched, self.escaped) = (Some(region), 0, false);
    }

    fn push_in(&mut self, region: &'static Region, c: char, out: &mut impl FnMut(char, Style)) {
        out(c, region.style);
        let Some(end) = region.end else { return };
        if std::mem::take(&mut self.escaped) {
            return;
        }
        self.escaped = c == '\\' && region.style == STRING;
        if end.chars().nth(self.matched) == Some(c) {
            self.matched += 1;
        } else {
            self.matched = usize::from(end.starts_with(c));
        }
        if self.matched == end.len() {
            self.region = None;
        }
    }

    fn end_word(&mut self, family: &Family, out: &mut impl FnMut(char, Style)) {
        let word = std::mem::take(&mut self.held);
        let style = if word.starts_with(|c: char| c.is_ascii_digit()) {
            NUMBER
        } else if is_keyword(family, &word) {
            KEYWORD
        } else {
            Style::PLAIN
        };
        word.chars().for_each(|c| out(c, style));
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether the word is a keyword. SQL is also written in capitals.
fn is_keyword(family: &Family, word: &str) -> bool {
    let is =
        |word: &str| !word.is_empty() && family.keywords.split_whitespace().any(|keyword| keyword == word);
    is(word) || family.languages.contains(&"sql") && is(&word.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn styled(language: &str, text: &str, style: Style) -> String {
        let mut code = Code::new(language);
        let (mut all, mut found) = (String::new(), String::new());
        let mut out = |c, is| {
            all.push(c);
            if is == style {
                found.push(c);
            }
        };
        for line in text.lines() {
            line.chars().for_each(|c| code.push(c, &mut out));
            code.end_line(&mut out);
        }
        assert_eq!(all, text.replace('\n', ""));
        found
    }

    #[test]
    fn comments_strings_numbers_and_keywords_are_found() {
        let rust = "fn f<'a>(x: &'a str) -> u32 { // \"no\"\n  g(\"a \\\" // b\", 0x1f) /* x\ny */ }";
        assert_eq!(styled("rust", rust, COMMENT), "// \"no\"/* xy */");
        assert_eq!(styled("rust", rust, STRING), "\"a \\\" // b\"");
        assert_eq!(styled("rust", rust, KEYWORD), "fn");
        assert_eq!(styled("Rust", rust, NUMBER), "0x1f");
        let python = "def f():\n    \"\"\"It's \"this\".\n    \"\"\"\n    return '' or 'a' # b\n";
        assert_eq!(styled("python", python, STRING), "\"\"\"It's \"this\".    \"\"\"'''a'");
        assert_eq!(styled("python", python, KEYWORD), "defreturnor");
        assert_eq!(styled("python", python, COMMENT), "# b");
        assert_eq!(styled("sql", "SELECT a -- b\nfrom t - 1", KEYWORD), "SELECTfrom");
        assert_eq!(styled("html", "<a href=\"x\"><!-- b --></a>", COMMENT), "<!-- b -->");
        assert_eq!(styled("js", "a / b // c", COMMENT), "// c");
    }

    #[test]
    fn unknown_languages_are_plain() {
        for language in ["", "brainfuck"] {
            assert_eq!(styled(language, "if \"x\" // 1", Style::PLAIN), "if \"x\" // 1");
        }
    }
}
