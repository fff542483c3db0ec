//! llama.cpp's grammar format (GBNF), translated to Lark.
//!
//! In Lark, text is first cut into terminals, greedily, and the rules are then matched on those; GBNF knows only
//! characters. To keep the meaning, every rule that refers to no recursive rule becomes a single terminal, which is
//! matched character by character. Rules that are recursive, or use one that is, stay rules: there, a terminal takes
//! all the characters that it can, even if the next one would need them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Maximum nesting of groups.
const MAX_DEPTH: usize = 100;

/// Maximum number of repetition signs after one part: each is one more level of nesting.
const MAX_REPETITIONS: usize = 8;

/// Maximum number of rules: chains of them are nested in the compiler.
const MAX_RULES: usize = 2000;

/// Whether a grammar is in GBNF rather than Lark, by the sign that defines a rule.
pub(crate) fn is_gbnf(grammar: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    grammar.lines().any(|line| line.split_once("::=").is_some_and(|(name, _)| is_name(name.trim())))
}

/// The grammar in Lark.
pub(crate) fn to_lark(grammar: &str) -> Result<String, String> {
    let rules = Parser { text: grammar, position: 0 }.rules()?;
    if !rules.contains_key("root") {
        return Err("there is no rule 'root'".to_owned());
    }
    for (name, expression) in &rules {
        let mut missing = None;
        expression.each_reference(&mut |used| {
            if !rules.contains_key(used) {
                missing.get_or_insert_with(|| used.to_owned());
            }
        });
        if let Some(missing) = missing {
            return Err(format!("rule '{name}' uses '{missing}', which is not defined"));
        }
    }
    let regular = regular(&rules);
    let ids: BTreeMap<&str, usize> = rules.keys().enumerate().map(|(id, name)| (name.as_str(), id)).collect();
    let names = |name: &str| match regular.contains(name) {
        true => format!("T{}", ids[name]),
        false => format!("r{}", ids[name]),
    };
    let mut lark = format!("start: {}\n", names("root"));
    for (name, expression) in &rules {
        let _ = write!(lark, "{}: ", names(name));
        expression.write(&mut lark, &names);
        lark.push('\n');
    }
    Ok(lark)
}

/// The rules that neither are recursive nor use a recursive rule.
fn regular(rules: &BTreeMap<String, Expression>) -> BTreeSet<String> {
    // For each rule, the rules that use it, and the number of its own references that are not known to be regular.
    let mut users: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut open: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, expression) in rules {
        let count = open.entry(name).or_default();
        expression.each_reference(&mut |used| {
            *count += 1;
            users.entry(used.to_owned()).or_default().push(name);
        });
    }
    let mut regular = BTreeSet::new();
    let mut ready: Vec<&str> = open.iter().filter(|(_, count)| **count == 0).map(|(name, _)| *name).collect();
    while let Some(name) = ready.pop() {
        regular.insert(name.to_owned());
        for user in users.get(name).into_iter().flatten() {
            if let Some(count) = open.get_mut(user) {
                *count -= 1;
                if *count == 0 {
                    ready.push(user);
                }
            }
        }
    }
    regular
}

#[derive(Debug)]
enum Expression {
    Alternatives(Vec<Expression>),
    Sequence(Vec<Expression>),
    /// At least and at most this often; `None`: any number of times.
    Repeat(Box<Expression>, u32, Option<u32>),
    Rule(String),
    Text(String),
    /// A character class, as a regular expression.
    Class(String),
}

impl Expression {
    fn each_reference(&self, each: &mut dyn FnMut(&str)) {
        match self {
            Self::Alternatives(parts) | Self::Sequence(parts) => {
                parts.iter().for_each(|part| part.each_reference(each));
            }
            Self::Repeat(inner, ..) => inner.each_reference(each),
            Self::Rule(name) => each(name),
            Self::Text(_) | Self::Class(_) => {}
        }
    }

    fn write(&self, lark: &mut String, names: &dyn Fn(&str) -> String) {
        match self {
            Self::Alternatives(parts) => {
                for (index, part) in parts.iter().enumerate() {
                    lark.push_str(if index > 0 { " | " } else { "" });
                    part.write(lark, names);
                }
            }
            Self::Sequence(parts) if parts.is_empty() => lark.push_str("\"\""),
            Self::Sequence(parts) => {
                for part in parts {
                    match part {
                        Self::Alternatives(_) | Self::Sequence(_) => {
                            lark.push('(');
                            part.write(lark, names);
                            lark.push(')');
                        }
                        part => part.write(lark, names),
                    }
                    lark.push(' ');
                }
            }
            Self::Repeat(inner, least, most) => {
                lark.push('(');
                inner.write(lark, names);
                lark.push(')');
                let _ = match (least, most) {
                    (0, None) => write!(lark, "*"),
                    (1, None) => write!(lark, "+"),
                    (0, Some(1)) => write!(lark, "?"),
                    (least, None) => write!(lark, "{{{least},}}"),
                    (least, Some(most)) => write!(lark, "{{{least},{most}}}"),
                };
            }
            Self::Rule(name) => lark.push_str(&names(name)),
            Self::Text(text) => {
                lark.push_str(&serde_json::Value::from(text.as_str()).to_string());
            }
            Self::Class(class) => {
                let _ = write!(lark, "/{class}/");
            }
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    position: usize,
}

impl Parser<'_> {
    fn rules(mut self) -> Result<BTreeMap<String, Expression>, String> {
        let mut rules = BTreeMap::new();
        self.skip_space(true);
        while self.peek().is_some() {
            let name = self.name().ok_or_else(|| self.error("expected the name of a rule"))?;
            self.skip_space(false);
            if !self.take("::=") {
                return Err(self.error("expected ::="));
            }
            self.skip_space(true);
            let expression = self.alternatives(0)?;
            if !matches!(self.peek(), None | Some('\n' | '\r')) {
                return Err(self.error("expected the end of the rule"));
            }
            self.skip_space(true);
            if rules.insert(name.clone(), expression).is_some() {
                return Err(format!("rule '{name}' is defined twice"));
            }
            if rules.len() > MAX_RULES {
                return Err(format!("it has more than {MAX_RULES} rules"));
            }
        }
        Ok(rules)
    }

    /// Alternatives, up to a closing parenthesis, or the end of the line at depth 0.
    fn alternatives(&mut self, depth: usize) -> Result<Expression, String> {
        if depth > MAX_DEPTH {
            return Err(self.error("groups are nested too deeply"));
        }
        let mut alternatives = vec![self.sequence(depth)?];
        while self.take("|") {
            self.skip_space(true);
            alternatives.push(self.sequence(depth)?);
        }
        Ok(match alternatives.len() {
            1 => alternatives.remove(0),
            _ => Expression::Alternatives(alternatives),
        })
    }

    fn sequence(&mut self, depth: usize) -> Result<Expression, String> {
        let mut parts = Vec::new();
        loop {
            let part = match self.peek() {
                Some('"') => Expression::Text(self.quoted()?),
                Some('[') => self.class()?,
                Some('.') => {
                    self.position += 1;
                    Expression::Class("(?s:.)".to_owned())
                }
                Some('(') => {
                    self.position += 1;
                    self.skip_space(true);
                    let group = self.alternatives(depth + 1)?;
                    if !self.take(")") {
                        return Err(self.error("expected )"));
                    }
                    group
                }
                Some('<') => return Err(self.error("tokens in grammars are not supported")),
                Some(_) => match self.name() {
                    Some(name) => Expression::Rule(name),
                    None => break,
                },
                None => break,
            };
            let part = self.repeated(part)?;
            parts.push(part);
            self.skip_space(depth > 0);
        }
        Ok(Expression::Sequence(parts))
    }

    /// `part` with the repetitions that follow it.
    fn repeated(&mut self, mut part: Expression) -> Result<Expression, String> {
        for _ in 0..=MAX_REPETITIONS {
            let (least, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.position += 1;
                    self.skip_space(false);
                    let least = self.number().ok_or_else(|| self.error("expected a number"))?;
                    self.skip_space(false);
                    let mut most = Some(least);
                    if self.take(",") {
                        self.skip_space(false);
                        most = match self.peek() {
                            Some('0'..='9') => {
                                Some(self.number().ok_or_else(|| self.error("the number is too large"))?)
                            }
                            _ => None,
                        };
                        self.skip_space(false);
                    }
                    if self.peek() != Some('}') {
                        return Err(self.error("expected }"));
                    }
                    if most.is_some_and(|most| most < least) {
                        return Err(self.error("the second number is smaller than the first"));
                    }
                    (least, most)
                }
                _ => return Ok(part),
            };
            self.position += 1;
            part = Expression::Repeat(Box::new(part), least, most);
        }
        Err(self.error("too many repetition signs after one part"))
    }

    fn quoted(&mut self) -> Result<String, String> {
        self.position += 1;
        let mut text = String::new();
        loop {
            match self.next() {
                Some('"') => return Ok(text),
                Some('\\') => text.push(self.escaped()?),
                Some(c) if c != '\n' => text.push(c),
                _ => return Err(self.error("a text does not end")),
            }
        }
    }

    fn class(&mut self) -> Result<Expression, String> {
        self.position += 1;
        let mut class = String::from("[");
        if self.take("^") {
            class.push('^');
        }
        let mut is_empty = true;
        while !self.take("]") {
            let first = self.class_character()?;
            let mut last = first;
            // A sign at the end of the class is a character, not a range.
            let rest = &self.text[self.position..];
            if rest.starts_with('-') && !rest.starts_with("-]") {
                self.position += 1;
                last = self.class_character()?;
            }
            if last < first {
                return Err(self.error("a range ends before it starts"));
            }
            is_empty = false;
            let _ = write!(class, "\\u{{{:X}}}-\\u{{{:X}}}", u32::from(first), u32::from(last));
        }
        if is_empty {
            return Err(self.error("a character class is empty"));
        }
        class.push(']');
        Ok(Expression::Class(class))
    }

    fn class_character(&mut self) -> Result<char, String> {
        match self.next() {
            Some('\\') => self.escaped(),
            Some(c) if c != '\n' => Ok(c),
            _ => Err(self.error("a character class does not end")),
        }
    }

    fn escaped(&mut self) -> Result<char, String> {
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^' | '/' | '.')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => return Err(self.error("unknown escape")),
        };
        let code = self.text.get(self.position..self.position + digits);
        let code = code.filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let code = code.and_then(|code| char::from_u32(u32::from_str_radix(code, 16).ok()?));
        let code = code.ok_or_else(|| self.error("an escape is not a character"))?;
        self.position += digits;
        Ok(code)
    }

    fn name(&mut self) -> Option<String> {
        let rest = &self.text[self.position..];
        let length =
            rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_').unwrap_or(rest.len());
        self.position += length;
        (length > 0).then(|| rest[..length].to_owned())
    }

    fn number(&mut self) -> Option<u32> {
        let rest = &self.text[self.position..];
        let length = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        self.position += length;
        rest[..length].parse().ok()
    }

    fn peek(&self) -> Option<char> {
        self.text[self.position..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.position += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, expected: &str) -> bool {
        let found = self.text[self.position..].starts_with(expected);
        if found {
            self.position += expected.len();
        }
        found
    }

    /// Skips white space and comments, over the ends of lines if `lines`.
    fn skip_space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => {}
                '\n' | '\r' if lines => {}
                '#' => {
                    let rest = &self.text[self.position..];
                    self.position += rest.find('\n').unwrap_or(rest.len());
                    continue;
                }
                _ => return,
            }
            self.position += 1;
        }
    }

    fn error(&self, reason: &str) -> String {
        let line = self.text[..self.position].matches('\n').count() + 1;
        format!("line {line}: {reason}")
    }
}
