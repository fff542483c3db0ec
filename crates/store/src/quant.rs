//! Quantisations as they are named in file names, such as `Q4_K_M`.

use std::fmt;

/// How the weights of a GGUF file are quantised, by the name that converters put into file names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quant {
    name: &'static str,
    /// Position in [`QUANTS`]: smaller is better.
    rank: u8,
    engine: bool,
}

/// All names, best first, and whether the engine has kernels for them. The order is that of the perplexity
/// that llama.cpp publishes for its mixes; within 0.1% of each other the smaller file comes first.
const QUANTS: &[(&str, bool)] = &[
    ("F32", true),
    ("BF16", true),
    ("F16", true),
    ("Q8_0", true),
    ("Q6_K", true),
    ("Q6_K_L", true),
    ("Q5_K_M", true),
    ("Q5_K_L", true),
    ("Q5_K_S", true),
    ("Q5_1", true),
    ("Q5_0", true),
    ("Q4_K_M", true),
    ("Q4_K_L", true),
    ("Q4_1", true),
    ("Q4_K_S", true),
    ("Q4_0", true),
    ("Q8_K_XL", false),
    ("Q6_K_XL", false),
    ("Q5_K_XL", false),
    ("Q4_K_XL", false),
    ("MXFP4", false),
    ("IQ4_NL", false),
    ("IQ4_XS", false),
    ("Q3_K_XL", false),
    ("Q3_K_L", false),
    ("Q3_K_M", false),
    ("Q3_K_S", false),
    ("IQ3_M", false),
    ("IQ3_S", false),
    ("IQ3_XS", false),
    ("IQ3_XXS", false),
    ("Q2_K_XL", false),
    ("Q2_K_L", false),
    ("Q2_K", false),
    ("Q2_K_S", false),
    ("IQ2_M", false),
    ("IQ2_S", false),
    ("IQ2_XS", false),
    ("IQ2_XXS", false),
    ("TQ2_0", false),
    ("TQ1_0", false),
    ("IQ1_M", false),
    ("IQ1_S", false),
];

/// Other spellings.
const SYNONYMS: &[(&str, &str)] = &[
    ("FP32", "F32"),
    ("FP16", "F16"),
    ("Q8", "Q8_0"),
    ("Q6", "Q6_K"),
    ("Q5_K", "Q5_K_M"),
    ("Q4_K", "Q4_K_M"),
    ("Q3_K", "Q3_K_M"),
    ("INT8", "Q8_0"),
];

impl Quant {
    /// The quantisation of this name, ignoring case.
    pub fn parse(name: &str) -> Option<Self> {
        let name = name.to_ascii_uppercase();
        let name = SYNONYMS.iter().find(|(other, _)| *other == name).map_or(name.as_str(), |(_, name)| name);
        let index = QUANTS.iter().position(|(known, _)| *known == name)?;
        let (name, engine) = QUANTS[index];
        Some(Self { name, rank: index as u8, engine })
    }

    /// The quantisation in a file name without extension and part number: the last piece that is one.
    pub fn in_file_name(stem: &str) -> Option<Self> {
        stem.rsplit(['-', '.', '/', ' ']).find_map(|piece| {
            // `model_Q4_K_M`: an underscore is also part of the names themselves, so the longest suffix wins.
            let starts = std::iter::once(0).chain(piece.match_indices('_').map(|(at, _)| at + 1));
            starts.filter_map(|at| Self::parse_exact(&piece[at..])).next()
        })
    }

    /// Like [`Quant::parse`], but without the short names, which occur in file names with another meaning.
    fn parse_exact(name: &str) -> Option<Self> {
        let spelled_out = QUANTS.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
            || ["FP16", "FP32"].iter().any(|known| known.eq_ignore_ascii_case(name));
        spelled_out.then(|| Self::parse(name)).flatten()
    }

    /// The name in upper case, such as `Q4_K_M`.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Whether the engine runs such files. Mixes with an `_XL` suffix are not counted: they contain types
    /// that differ from model to model, and the header must tell.
    pub fn is_supported(self) -> bool {
        self.engine
    }

    /// Whether the weights are not quantised.
    pub fn is_float(self) -> bool {
        matches!(self.name, "F32" | "F16" | "BF16")
    }

    /// Order of quality: smaller is better.
    pub fn rank(self) -> u8 {
        self.rank
    }
}

impl fmt::Display for Quant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Names of the supported quantisations, for messages.
pub(crate) fn supported_names() -> String {
    QUANTS.iter().filter(|(_, engine)| *engine).map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_of_publishers_are_understood() {
        for (stem, expected) in [
            ("gemma-3-27b-it-qat-Q4_0", "Q4_0"),
            ("qwen2.5-coder-1.5b-instruct-q4_k_m", "Q4_K_M"),
            ("SmolLM2-135M-Instruct.Q4_1", "Q4_1"),
            ("Llama-3.2-3B-Instruct-f16", "F16"),
            ("qwen2.5-coder-3b-instruct-fp16", "F16"),
            ("gemma-3-27b-it-BF16", "BF16"),
            ("Qwen3-4B-Instruct-2507-IQ4_XS", "IQ4_XS"),
            ("gemma-3-27b-it-UD-Q5_K_XL", "Q5_K_XL"),
            ("Meta-Llama-3.1-8B-Instruct-Q6_K_L", "Q6_K_L"),
            ("mistral_7b_Q5_K_M", "Q5_K_M"),
        ] {
            assert_eq!(Quant::in_file_name(stem).map(Quant::name), Some(expected), "{stem}");
        }
        for none in ["model", "", "gemma-3-27b-it", "Q4", "phi-q8", "Q4_0_4_4", "tokenizer_Q"] {
            assert_eq!(Quant::in_file_name(none), None, "{none}");
        }
    }

    #[test]
    fn names_are_unique_and_ordered_by_quality() {
        let quant = |name| Quant::parse(name).unwrap();
        for (index, (name, engine)) in QUANTS.iter().enumerate() {
            assert_eq!((quant(name).rank() as usize, quant(name).is_supported()), (index, *engine));
        }
        assert!(quant("q8_0").rank() < quant("Q6_K").rank());
        assert!(quant("Q4_K_M").rank() < quant("Q4_0").rank());
        assert_eq!(quant("fp16"), quant("F16"));
        assert_eq!(Quant::parse("Q9_0"), None);
    }
}
