//! Shared by tests with real model files: their paths, and a minimal GGUF reader.
#![allow(dead_code, reason = "each test binary uses only some of these")]

use std::{io::Read, path::PathBuf, time::Duration};

use rustix::time::{ClockId, clock_gettime};
use text::{Vocabulary, VocabularyKind};

/// The file or folder that an environment variable refers to; prints a note if it is not set. The files are
/// large and have their own licences, so tests cannot require them.
pub fn path_from_env(variable: &str, what: &str) -> Option<PathBuf> {
    match std::env::var_os(variable).map(PathBuf::from) {
        Some(path) if path.exists() => Some(path),
        Some(path) => panic!("{variable} is {}, which does not exist", path.display()),
        None => {
            eprintln!("test skipped, {variable} is not set: {what}");
            None
        }
    }
}

/// A file in the folder `INDRIK_TEST_DATA`.
pub fn data(name: &str) -> Option<PathBuf> {
    let path = path_from_env("INDRIK_TEST_DATA", name)?.join(name);
    assert!(path.exists(), "{} does not exist", path.display());
    Some(path)
}

/// CPU time of this thread, which does not depend on other load.
pub fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap()
}

/// Xorshift, so that every run uses the same strings.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }

    /// Text in many scripts, with runs of white space, combining marks and token names.
    pub fn text(&mut self) -> String {
        const PARTS: &[&str] = &[
            " ",
            "  ",
            "\n",
            "\t",
            "▁",
            "the",
            "a",
            "e",
            "é",
            "世界",
            "कि",
            "🦙",
            "👨‍👩‍👧",
            "\u{0}",
            "\u{fffd}",
            "'s",
            "123",
            "½",
            "ß",
            "<bos>",
            "<end_of_turn>",
            "<unused7>",
            "<0x0A>",
            "<b>",
            "<",
            ">",
            "ing",
            "▁▁",
            "\r\n",
            "क्षि",
            "Ω",
            "한국",
            "--",
            "==",
            "//",
        ];
        let parts = self.below(40);
        let mut text = String::new();
        for _ in 0..parts {
            match self.below(4) {
                0 => text.push(char::from_u32(self.below(0x3000) as u32).unwrap_or('x')),
                1 => text.push(char::from_u32(self.below(0x11_0000) as u32).unwrap_or('y')),
                _ => text.push_str(PARTS[self.below(PARTS.len())]),
            }
        }
        text
    }
}

/// A small SentencePiece vocabulary with ids 0 `<unk>`, 1 `<s>`, 2 `</s>`, 3 `<end_of_turn>`, 4 a
/// user-defined line break, 5 to 260 the bytes, then text. Scores fall with the id.
pub fn small() -> Vocabulary {
    let mut vocabulary = Vocabulary::new(VocabularyKind::SentencePiece);
    for (token, kind) in [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("<end_of_turn>", 3), ("\n", 4)] {
        vocabulary.tokens.push(token.to_owned());
        vocabulary.token_types.push(kind);
    }
    for byte in 0..256 {
        vocabulary.tokens.push(format!("<0x{byte:02X}>"));
        vocabulary.token_types.push(6);
    }
    for token in ["▁t", "he", "▁the", "th", "aa", "aaa", "▁", "a", "e", "h", "t", "é", "<", "s", ">", "▁▁"]
    {
        vocabulary.tokens.push(token.to_owned());
        vocabulary.token_types.push(1);
    }
    vocabulary.scores = (0..vocabulary.tokens.len()).map(|id| -(id as f32)).collect();
    (vocabulary.unknown, vocabulary.bos, vocabulary.eos) = (Some(0), Some(1), Some(2));
    vocabulary.add_bos = true;
    vocabulary
}

/// The id of a token of [`small`] by name.
pub fn id(name: &str) -> u32 {
    small().tokens.iter().position(|token| token == name).expect("a token") as u32
}

/// The `tokenizer.ggml.*` metadata and the chat template of a GGUF.
pub fn vocabulary(path: &std::path::Path) -> (Vocabulary, Option<String>) {
    let mut file = Vec::new();
    // 64 MiB is more than the header of any test model.
    let opened = std::fs::File::open(path).expect("the file can be opened");
    opened.take(64 << 20).read_to_end(&mut file).expect("the file can be read");
    assert_eq!(&file[..4], b"GGUF");
    let mut reader = Reader { file: &file, at: 16 };
    let mut vocabulary = Vocabulary::new(VocabularyKind::SentencePiece);
    vocabulary.add_space_prefix = true;
    let mut template = None;
    for _ in 0..reader.number(8) {
        let key = reader.string();
        let kind = reader.number(4);
        match key.strip_prefix("tokenizer.").unwrap_or_default() {
            "chat_template" => template = Some(reader.string()),
            "ggml.model" => {
                vocabulary.kind = match reader.string().as_str() {
                    "gpt2" => VocabularyKind::Bpe,
                    "gemma4" => VocabularyKind::Gemma4,
                    _ => VocabularyKind::SentencePiece,
                }
            }
            "ggml.pre" => vocabulary.pre = Some(reader.string()),
            "ggml.tokens" => vocabulary.tokens = reader.strings(),
            "ggml.merges" => vocabulary.merges = reader.strings(),
            "ggml.scores" => vocabulary.scores = reader.words().map(f32::from_bits).collect(),
            "ggml.token_type" => vocabulary.token_types = reader.words().map(|w| w as i32).collect(),
            "ggml.bos_token_id" => vocabulary.bos = Some(reader.number(4) as u32),
            "ggml.eos_token_id" => vocabulary.eos = Some(reader.number(4) as u32),
            "ggml.eot_token_id" => vocabulary.eot = Some(reader.number(4) as u32),
            "ggml.unknown_token_id" => vocabulary.unknown = Some(reader.number(4) as u32),
            "ggml.padding_token_id" => vocabulary.pad = Some(reader.number(4) as u32),
            "ggml.add_bos_token" => vocabulary.add_bos = reader.number(1) == 1,
            "ggml.add_space_prefix" => vocabulary.add_space_prefix = reader.number(1) == 1,
            _ => reader.skip(kind),
        }
    }
    (vocabulary, template)
}

struct Reader<'a> {
    file: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn number(&mut self, bytes: usize) -> u64 {
        self.at += bytes;
        let little = self.file[self.at - bytes..self.at].iter().rev();
        little.fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn string(&mut self) -> String {
        let length = self.number(8) as usize;
        self.at += length;
        String::from_utf8_lossy(&self.file[self.at - length..self.at]).into_owned()
    }

    fn strings(&mut self) -> Vec<String> {
        self.number(4);
        (0..self.number(8)).map(|_| self.string()).collect()
    }

    fn words(&mut self) -> impl Iterator<Item = u32> {
        self.number(4);
        (0..self.number(8)).map(|_| self.number(4) as u32).collect::<Vec<_>>().into_iter()
    }

    fn skip(&mut self, kind: u64) {
        match kind {
            0 | 1 | 7 => self.at += 1,
            2 | 3 => self.at += 2,
            4..=6 => self.at += 4,
            8 => drop(self.string()),
            9 => {
                let element = self.number(4);
                (0..self.number(8)).for_each(|_| self.skip(element));
            }
            _ => self.at += 8,
        }
    }
}
