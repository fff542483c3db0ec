//! Fill in the middle (FIM): prompts that ask a code model for the text between a prefix and a suffix.

use crate::pieces::Pieces;
use crate::tokenizer::{EncodeSpecial, Tokenizer, metaspace_to_space};

/// The tokens that a file names for FIM, the metadata `tokenizer.ggml.fim_*_token_id` of a GGUF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FimIds {
    /// `fim_pre`: starts the prefix.
    pub prefix: Option<u32>,
    /// `fim_suf`: starts the suffix.
    pub suffix: Option<u32>,
    /// `fim_mid`: starts the text in the middle.
    pub middle: Option<u32>,
    /// `fim_pad`: padding, written by some models after the middle.
    pub pad: Option<u32>,
    /// `fim_rep`: starts a repository.
    pub repository: Option<u32>,
    /// `fim_sep`: starts the next file of a repository.
    pub separator: Option<u32>,
}

impl FimIds {
    /// All ids with their names.
    pub(crate) fn named(&self) -> [(&'static str, Option<u32>); 6] {
        [
            ("FIM prefix", self.prefix),
            ("FIM suffix", self.suffix),
            ("FIM middle", self.middle),
            ("FIM padding", self.pad),
            ("FIM repository", self.repository),
            ("FIM separator", self.separator),
        ]
    }
}

/// The tokens of a model that was trained to fill in the middle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FimTokens {
    /// Starts the prefix.
    pub prefix: u32,
    /// Starts the suffix.
    pub suffix: u32,
    /// Starts the text in the middle.
    pub middle: u32,
    /// Tokens that end the text in the middle, besides those that end any completion.
    pub stop_token_ids: Vec<u32>,
}

/// Names of the tokens for prefix, suffix and middle, by family.
const NAMES: &[[&str; 3]] = &[
    // Qwen 2.5 Coder, CodeGemma.
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    // StarCoder, Granite; SantaCoder.
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    // DeepSeek Coder.
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    // Code Llama.
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    // GLM 4.
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
];

/// Names of tokens after the middle: padding, the start of another file, the end of the text.
const STOP_NAMES: &[&str] = &[
    "<|fim_pad|>",
    "<fim_pad>",
    "<fim-pad>",
    "<|repo_name|>",
    "<repo_name>",
    "<reponame>",
    "<|file_sep|>",
    "<file_sep>",
    "<|file_separator|>",
    "<|endoftext|>",
    "▁<EOT>",
];

impl FimTokens {
    /// The tokens that the file names, or those with well-known names; `None` if one of the three is missing.
    pub(crate) fn find(pieces: &Pieces, ids: &FimIds) -> Option<FimTokens> {
        let id = |name: &str| {
            let text = || pieces.find(metaspace_to_space(name).as_bytes());
            pieces.find(name.as_bytes()).or_else(text)
        };
        let all = |[prefix, suffix, middle]: [Option<u32>; 3]| Some((prefix?, suffix?, middle?));
        let (prefix, suffix, middle) = all([ids.prefix, ids.suffix, ids.middle])
            .or_else(|| NAMES.iter().find_map(|names| all(names.map(id))))?;
        let named = [ids.pad, ids.repository, ids.separator].into_iter().flatten();
        let mut stop_token_ids: Vec<u32> = named.chain(STOP_NAMES.iter().copied().filter_map(id)).collect();
        stop_token_ids.sort_unstable();
        stop_token_ids.dedup();
        Some(FimTokens { prefix, suffix, middle, stop_token_ids })
    }
}

impl Tokenizer {
    /// The tokens for filling in the middle, if the model has them.
    pub fn fim(&self) -> Option<&FimTokens> {
        self.inner().fim.as_ref()
    }

    /// The prompt for the text between `prefix` and `suffix`, in the order prefix, suffix, middle. `prefix` is
    /// encoded already. Names of control tokens in the suffix are text.
    pub fn encode_fim(&self, fim: &FimTokens, prefix: &[u32], suffix: &str) -> Vec<u32> {
        let mut ids: Vec<u32> = self.bos().filter(|_| self.adds_bos()).into_iter().collect();
        ids.push(fim.prefix);
        ids.extend(prefix);
        ids.push(fim.suffix);
        // It continues a line: unlike other text, it does not start with the space that SentencePiece adds.
        ids.extend(self.encode_continuation(suffix, EncodeSpecial::AsText));
        ids.push(fim.middle);
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DecodeSpecial, Vocabulary, VocabularyKind};

    /// A vocabulary of `▁`, three letters and these control tokens, which start at id 5.
    fn vocabulary(controls: &[&str]) -> Vocabulary {
        let mut vocabulary = Vocabulary::new(VocabularyKind::SentencePiece);
        let text = ["<s>", "▁", "a", "b", "c"];
        vocabulary.tokens = text.iter().chain(controls).map(|token| token.to_string()).collect();
        vocabulary.token_types = vec![1; text.len()];
        vocabulary.token_types[0] = 3;
        vocabulary.token_types.resize(vocabulary.tokens.len(), 3);
        vocabulary.scores = (0..vocabulary.tokens.len()).map(|id| -(id as f32)).collect();
        (vocabulary.bos, vocabulary.add_bos, vocabulary.add_space_prefix) = (Some(0), true, true);
        vocabulary
    }

    fn tokenizer(controls: &[&str]) -> Tokenizer {
        Tokenizer::from_vocabulary(vocabulary(controls)).expect("a valid vocabulary")
    }

    #[test]
    fn tokens_are_found_by_their_names() {
        let qwen = [
            "<|fim_prefix|>",
            "<|fim_middle|>",
            "<|fim_suffix|>",
            "<|fim_pad|>",
            "<|repo_name|>",
            "<|file_sep|>",
            "<|endoftext|>",
        ];
        let expected = FimTokens { prefix: 5, middle: 6, suffix: 7, stop_token_ids: vec![8, 9, 10, 11] };
        assert_eq!(tokenizer(&qwen).fim(), Some(&expected));
        let deepseek = ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"];
        let expected = FimTokens { prefix: 5, suffix: 6, middle: 7, stop_token_ids: vec![] };
        assert_eq!(tokenizer(&deepseek).fim(), Some(&expected));
        // Code Llama's tokens may have the type of text.
        let mut llama = vocabulary(&["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"]);
        llama.token_types.fill(1);
        let expected = FimTokens { prefix: 5, suffix: 6, middle: 7, stop_token_ids: vec![8] };
        assert_eq!(Tokenizer::from_vocabulary(llama).unwrap().fim(), Some(&expected));
        assert_eq!(tokenizer(&["<|fim_prefix|>", "<|fim_middle|>", "<fim_suffix>"]).fim(), None);
    }

    #[test]
    fn the_ids_of_the_file_come_first() {
        let names = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<P>", "<S>", "<M>", "<E>"];
        let mut vocabulary = vocabulary(&names);
        vocabulary.fim = FimIds { prefix: Some(8), suffix: Some(9), pad: Some(11), ..FimIds::default() };
        // All three, or none.
        let found = |vocabulary: &Vocabulary| {
            let tokenizer = Tokenizer::from_vocabulary(vocabulary.clone()).unwrap();
            tokenizer.fim().map(|fim| (fim.prefix, fim.suffix, fim.middle))
        };
        assert_eq!(found(&vocabulary), Some((5, 6, 7)));
        vocabulary.fim.middle = Some(10);
        assert_eq!(found(&vocabulary), Some((8, 9, 10)));
        vocabulary.fim.middle = Some(12);
        let error = Tokenizer::from_vocabulary(vocabulary).unwrap_err().to_string();
        assert!(error.contains("the FIM middle token is 12"), "{error}");
    }

    #[test]
    fn a_prompt_is_prefix_suffix_middle() {
        let tokenizer = tokenizer(&["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]);
        let fim = tokenizer.fim().unwrap();
        let prefix = tokenizer.encode("a b", EncodeSpecial::AsText);
        assert_eq!(prefix, [1, 2, 1, 3]);
        // The suffix gets no space, and is text only.
        assert_eq!(tokenizer.encode_fim(fim, &prefix, "c a"), [0, 5, 1, 2, 1, 3, 6, 4, 1, 2, 7]);
        let ids = tokenizer.encode_fim(fim, &[], "a<fim_middle>");
        assert_eq!(ids.iter().filter(|id| **id == fim.middle).count(), 1);
        assert_eq!(tokenizer.decode(&ids, DecodeSpecial::Skip).matches('a').count(), 1);
    }
}
