//! Stop strings, found across the boundaries of tokens.
//!
//! Text that may still become a stop string is held back; nothing from a stop string on is let out. The match that
//! starts first wins, also over one that is complete sooner. Which of two with the same start wins makes no
//! difference: nothing from there on is let out. How the text is cut into pieces makes none either.
//!
//! Each stop string runs its own Knuth–Morris–Pratt automaton over the bytes: constant work a byte, whatever the strings.

use crate::error::{Error, Result};

/// Watches a text for stop strings. See the module.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    /// Text that was not let out yet.
    held: String,
    /// How far into `held` the stop strings have looked.
    seen: usize,
    /// Where in `held` the first match starts, while an earlier one may still complete.
    found: Option<usize>,
    stopped: bool,
}

#[derive(Clone, Debug)]
struct Stop {
    text: Vec<u8>,
    /// For each length of a matched prefix: the longest shorter prefix that is also its suffix.
    fallback: Vec<usize>,
    /// How much of `text` the last bytes match.
    matched: usize,
}

impl Stop {
    fn new(text: &str) -> Stop {
        let text = text.as_bytes().to_vec();
        let mut stop = Stop { fallback: vec![0; text.len() + 1], text, matched: 0 };
        for length in 1..stop.text.len() {
            stop.step(stop.text[length]);
            stop.fallback[length + 1] = stop.matched;
        }
        stop.matched = 0;
        stop
    }

    /// Takes one byte.
    fn step(&mut self, byte: u8) {
        if self.matched == self.text.len() {
            self.matched = self.fallback[self.matched];
        }
        while self.matched > 0 && self.text[self.matched] != byte {
            self.matched = self.fallback[self.matched];
        }
        self.matched += usize::from(self.text[self.matched] == byte);
    }
}

impl StopMatcher {
    /// For these stop strings; none at all let everything through. An empty one is refused.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<StopMatcher> {
        if let Some(empty) = stops.iter().position(|stop| stop.as_ref().is_empty()) {
            return Err(Error::EmptyStop(empty));
        }
        let stops = stops.iter().map(|stop| Stop::new(stop.as_ref())).collect();
        Ok(StopMatcher { stops, held: String::new(), seen: 0, found: None, stopped: false })
    }

    /// Takes text; returns what may be let out, and whether a stop string was met. After that nothing comes any more.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        if self.stopped {
            return (String::new(), true);
        }
        self.held.push_str(text);
        while self.seen < self.held.len() {
            let byte = self.held.as_bytes()[self.seen];
            self.seen += 1;
            for stop in &mut self.stops {
                stop.step(byte);
                if stop.matched == stop.text.len() {
                    let start = self.seen - stop.matched;
                    self.found = Some(self.found.map_or(start, |found| found.min(start)));
                }
            }
            if let Some(found) = self.found
                && self.open() >= found
            {
                return (self.stop(found), true);
            }
        }
        let open = self.open();
        self.found = self.found.map(|found| found - open);
        self.seen -= open;
        let held = self.held.split_off(open);
        (std::mem::replace(&mut self.held, held), false)
    }

    /// The text has ended: returns what was held back, and whether it holds a stop string. If not, the next text starts anew.
    pub fn finish(&mut self) -> (String, bool) {
        match self.found.take() {
            Some(found) => (self.stop(found), true),
            None => {
                self.seen = 0;
                self.stops.iter_mut().for_each(|stop| stop.matched = 0);
                (std::mem::take(&mut self.held), self.stopped)
            }
        }
    }

    /// Whether a stop string was met.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Where the first stop string that may still complete starts.
    fn open(&self) -> usize {
        self.seen - self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0)
    }

    fn stop(&mut self, at: usize) -> String {
        self.stopped = true;
        self.found = None;
        self.held.truncate(at);
        std::mem::take(&mut self.held)
    }
}
