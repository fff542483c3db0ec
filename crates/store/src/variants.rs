//! Grouping the files of a repository into variants of a model: one per quantisation, with all parts of a
//! split file.

use crate::{
    hub::{Listing, RemoteFile},
    quant::Quant,
};

/// One version of a model in a repository, in one file or several parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// The quantisation in the file name; `None` if it has none.
    pub quant: Option<Quant>,
    /// Whether the model was trained with quantisation in mind (QAT).
    pub qat: bool,
    /// The files, the first part first.
    pub files: Vec<RemoteFile>,
}

impl Variant {
    /// Size of all files in bytes. The listing has been checked: it does not overflow.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Name for messages, such as `Q4_0 (QAT)`.
    pub fn label(&self) -> String {
        let name = self.quant.map_or_else(|| self.files[0].path.clone(), |quant| quant.to_string());
        if self.qat { name + " (QAT)" } else { name }
    }
}

/// Everything in a repository that is of interest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Variants {
    /// Complete variants, in the order of the listing.
    pub models: Vec<Variant>,
    /// Image encoders (`mmproj-*.gguf`).
    pub image_encoders: Vec<RemoteFile>,
    /// First parts of split files whose other parts are missing, for messages.
    pub incomplete: Vec<String>,
}

impl Variants {
    /// Groups the GGUF files of a listing.
    pub fn of(listing: &Listing) -> Self {
        let mut variants = Variants::default();
        let repository_is_qat = is_qat(listing.repository.name());
        for file in listing.files.iter().filter(|file| is_gguf(&file.path)) {
            let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
            let lower = name.to_ascii_lowercase();
            if lower.contains("mmproj") {
                variants.image_encoders.push(file.clone());
                continue;
            }
            // Importance matrices are inputs of quantisation, not models.
            if lower.contains("imatrix") {
                continue;
            }
            let stem = &name[..name.len() - ".gguf".len()];
            let files = match PartName::parse(stem) {
                None => vec![file.clone()],
                Some(PartName { number: 1, base, count }) => {
                    let part = |number: u32| {
                        let name = format!("{base}-{number:05}-of-{count:05}{}", &name[stem.len()..]);
                        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                        listing.files.iter().find(|file| file.path == path).cloned()
                    };
                    match (1..=count).map(part).collect::<Option<Vec<_>>>() {
                        Some(files) => files,
                        None => {
                            variants.incomplete.push(file.path.clone());
                            continue;
                        }
                    }
                }
                Some(_) => continue,
            };
            let stem = without_part_number(stem);
            // Some repositories keep each quantisation in a folder of its name.
            let quant = Quant::in_file_name(stem).or_else(|| Quant::in_file_name(folder));
            let qat = repository_is_qat || is_qat(stem);
            variants.models.push(Variant { quant, qat, files });
        }
        variants
    }
}

/// Maximum number of parts: the largest published models have fewer than 200.
const MAX_PARTS: u32 = 1024;

/// The stem of a part's file name: `BASE-00001-of-00003`.
struct PartName<'a> {
    base: &'a str,
    number: u32,
    count: u32,
}

impl PartName<'_> {
    fn parse(stem: &str) -> Option<PartName<'_>> {
        let number = |digits: &str| {
            (digits.len() == 5 && digits.bytes().all(|digit| digit.is_ascii_digit()))
                .then(|| digits.parse::<u32>().ok())?
        };
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (base, part) = rest.rsplit_once('-')?;
        let part = PartName { base, number: number(part)?, count: number(count)? };
        (1..=part.count).contains(&part.number).then_some(part).filter(|part| part.count <= MAX_PARTS)
    }
}

/// A file stem without the number of its part.
pub(crate) fn without_part_number(stem: &str) -> &str {
    PartName::parse(stem).map_or(stem, |part| part.base)
}

fn is_gguf(path: &str) -> bool {
    path.to_ascii_lowercase().ends_with(".gguf")
}

fn is_qat(name: &str) -> bool {
    name.to_ascii_lowercase().split(['-', '_', '.']).any(|piece| piece == "qat")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Repository;

    fn variants(repository: &str, paths: &[&str]) -> Variants {
        let file = |path: &&str| RemoteFile { path: path.to_string(), bytes: 10, sha256: None };
        Variants::of(&Listing {
            repository: Repository::parse(repository).unwrap(),
            revision: "main".into(),
            commit: "0".repeat(40),
            licence: None,
            files: paths.iter().map(file).collect(),
        })
    }

    #[test]
    fn files_are_grouped_by_quantisation() {
        let found = variants(
            "bartowski/Meta-Llama-3.1-70B-Instruct-GGUF",
            &[
                "README.md",
                "L-Q4_K_M.gguf",
                "L-Q8_0/L-Q8_0-00002-of-00002.gguf",
                "L-Q8_0/L-Q8_0-00001-of-00002.gguf",
                "BF16/L-00001-of-00001.gguf",
                "broken-Q6_K-00001-of-00003.gguf",
                "broken-Q6_K-00002-of-00003.gguf",
                "L.imatrix.gguf",
                "mmproj-L-f16.gguf",
                "L-qat-Q4_0.gguf",
                "odd-00003-of-00002.gguf",
            ],
        );
        let labels: Vec<String> = found.models.iter().map(Variant::label).collect();
        assert_eq!(labels, ["Q4_K_M", "Q8_0", "BF16", "Q4_0 (QAT)", "odd-00003-of-00002.gguf"]);
        let q8 = &found.models[1];
        assert_eq!((q8.files.len(), q8.bytes()), (2, 20));
        assert_eq!(q8.files[0].path, "L-Q8_0/L-Q8_0-00001-of-00002.gguf");
        assert_eq!(found.image_encoders[0].path, "mmproj-L-f16.gguf");
        assert_eq!(found.incomplete, ["broken-Q6_K-00001-of-00003.gguf"]);
        assert!(variants("ggml-org/gemma-3-4b-it-qat-GGUF", &["m-Q4_0.gguf"]).models[0].qat);
        assert!(!variants("a/aquatic-GGUF", &["aquatic-Q4_0.gguf"]).models[0].qat);
    }
}
