//! Stop strings, matched across token boundaries.
//!
//! Text that may still become a stop string is held back; nothing from a stop string on is emitted. The match
//! that starts first wins, even over one that completes sooner. How the text is split into pieces makes no
//! difference.
//!
//! Each stop string has its own Knuth–Morris–Pratt automaton over bytes: constant work per byte for any
//! strings.

use crate::error::{Error, Result};

/// Matches stop strings in a stream of text; see the module documentation.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    /// Text that was not emitted yet.
    held: String,
    /// Bytes of `held` that were matched.
    seen: usize,
    /// The first match in `held`, while an earlier one may still complete.
    found: Option<Match>,
    /// Index of the stop string that ended the text.
    stopped: Option<usize>,
}

/// A stop string in the text that is held back.
#[derive(Clone, Copy, Debug)]
struct Match {
    start: usize,
    /// Index of the stop string.
    index: usize,
}

#[derive(Clone, Debug)]
struct Stop {
    text: Vec<u8>,
    /// For each prefix length: the longest shorter prefix that is also a suffix.
    fallback: Vec<usize>,
    /// Length of the prefix that the last bytes match.
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

    /// Advances by one byte.
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
    /// A matcher for these stop strings; without any, all text passes. An empty stop string is an error.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<StopMatcher> {
        if let Some(empty) = stops.iter().position(|stop| stop.as_ref().is_empty()) {
            return Err(Error::EmptyStopString(empty));
        }
        let stops = stops.iter().map(|stop| Stop::new(stop.as_ref())).collect();
        Ok(StopMatcher { stops, held: String::new(), seen: 0, found: None, stopped: None })
    }

    /// Adds text. Returns the text to emit, and whether a stop string was found; after that nothing is
    /// emitted.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        if self.stopped.is_some() {
            return (String::new(), true);
        }
        self.held.push_str(text);
        while self.seen < self.held.len() {
            let byte = self.held.as_bytes()[self.seen];
            self.seen += 1;
            for (index, stop) in self.stops.iter_mut().enumerate() {
                stop.step(byte);
                let start = self.seen - stop.matched;
                if stop.matched == stop.text.len() && self.found.is_none_or(|found| start < found.start) {
                    self.found = Some(Match { start, index });
                }
            }
            if let Some(found) = self.found
                && self.open() >= found.start
            {
                return (self.stop(found), true);
            }
        }
        let open = self.open();
        self.found = self.found.map(|found| Match { start: found.start - open, ..found });
        self.seen -= open;
        let held = self.held.split_off(open);
        (std::mem::replace(&mut self.held, held), false)
    }

    /// Ends the text. Returns the text that was held back, and whether a stop string was found. If not, the
    /// matcher is ready for another text.
    pub fn finish(&mut self) -> (String, bool) {
        match self.found.take() {
            Some(found) => (self.stop(found), true),
            None => {
                self.seen = 0;
                self.stops.iter_mut().for_each(|stop| stop.matched = 0);
                (std::mem::take(&mut self.held), self.stopped.is_some())
            }
        }
    }

    /// Whether a stop string was found.
    pub fn stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// Index of the stop string that was found. Of several that start at the same place, the shortest; of equal ones,
    /// the first.
    pub fn found(&self) -> Option<usize> {
        self.stopped
    }

    /// Start of the earliest stop string that may still complete.
    fn open(&self) -> usize {
        self.seen - self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0)
    }

    fn stop(&mut self, found: Match) -> String {
        self.stopped = Some(found.index);
        self.found = None;
        self.held.truncate(found.start);
        std::mem::take(&mut self.held)
    }
}
