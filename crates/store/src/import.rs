//! Adding local files to the store.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use crate::{
    download::{IoContext, file_len},
    error::{Error, Result},
    folder::{Store, file_stem},
    place::{self, Placed},
    pull::acquire_lock,
    pull_folder::is_module_file,
    request::slug,
    task::PullEvent,
    variants::without_part_number,
};

/// A model that was added to the store.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The name in the store.
    pub name: String,
    /// The file, the first part or the folder in the store.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// How the files were placed; a copy if any of them was copied.
    pub placed: Placed,
}

impl Store {
    /// Adds a model file, all parts of a split one, or a Hugging Face folder. Whether the content is a model
    /// is for the caller to check. The original stays where it is.
    pub fn import(
        &self,
        path: &Path,
        name: Option<&str>,
        cancel: &AtomicBool,
        report: &mut dyn FnMut(PullEvent),
    ) -> Result<Imported> {
        let source = ImportSource::of(path)?;
        let name = name.map_or_else(|| source.default_name(path), str::to_string);
        let stem = file_stem(&name).ok_or_else(|| Error::invalid_name(&name))?;
        let targets = source.targets(&stem);
        fs::create_dir_all(self.folder()).with_path(self.folder())?;
        let part = self.folder().join(format!("{stem}.part"));
        let _lock = acquire_lock(&part.with_extension("lock"), cancel, report)?;
        self.check_free(&name, &stem, &targets)?;
        let total: u64 = source.files.iter().map(|file| file_len(file)).sum();
        fs::create_dir_all(&part).with_path(&part)?;
        let staged = self.stage(&source, &part, total, cancel, report);
        let installed = staged.and_then(|placed| {
            let path = self.install_import(&source, &part, &targets)?;
            Ok(Imported { name, path, bytes: total, placed })
        });
        fs::remove_dir_all(&part).with_path(&part)?;
        installed
    }

    fn check_free(&self, name: &str, stem: &str, targets: &[String]) -> Result<()> {
        let others = ["gguf", "safetensors", "part", "json"].map(|extension| format!("{stem}.{extension}"));
        let split = format!("{stem}-00001-of-");
        let taken = |file: &str| {
            file == stem
                || others.iter().any(|other| other == file)
                || targets.iter().any(|target| target == file)
        };
        for entry in fs::read_dir(self.folder()).with_path(self.folder())? {
            let file = entry.with_path(self.folder())?.file_name().to_string_lossy().into_owned();
            if taken(&file) || file.starts_with(&split) {
                return Err(Error::NameTaken { name: name.to_string(), existing: file });
            }
        }
        Ok(())
    }

    fn stage(
        &self,
        source: &ImportSource,
        part: &Path,
        total: u64,
        cancel: &AtomicBool,
        report: &mut dyn FnMut(PullEvent),
    ) -> Result<Placed> {
        let mut result = Placed::Reflink;
        let mut before = 0;
        for (index, file) in source.files.iter().enumerate() {
            let mut progress = |bytes| report(PullEvent::Progress { done: before + bytes, total });
            let placed = place::place(file, &part.join(index.to_string()), cancel, &mut progress).map_err(
                |error| match error {
                    Error::Cancelled => Error::ImportCancelled,
                    other => other,
                },
            )?;
            before += file_len(file);
            result = match (result, placed) {
                (Placed::Copy, _) | (_, Placed::Copy) => Placed::Copy,
                (Placed::HardLink, _) | (_, Placed::HardLink) => Placed::HardLink,
                _ => Placed::Reflink,
            };
        }
        Ok(result)
    }

    fn install_import(&self, source: &ImportSource, part: &Path, targets: &[String]) -> Result<PathBuf> {
        let rename = |from: &Path, to: &Path| fs::rename(from, to).with_path(to);
        if !source.is_folder {
            // The first part comes last: it makes the model visible.
            for (index, target) in targets.iter().enumerate().rev() {
                rename(&part.join(index.to_string()), &self.folder().join(target))?;
            }
            return Ok(self.folder().join(&targets[0]));
        }
        let staged = part.join("folder");
        fs::create_dir(&staged).with_path(&staged)?;
        for (index, file) in source.files.iter().enumerate() {
            let path = staged.join(file.strip_prefix(&source.root).unwrap_or(file));
            if let Some(module) = path.parent() {
                fs::create_dir_all(module).with_path(module)?;
            }
            rename(&part.join(index.to_string()), &path)?;
        }
        let target = self.folder().join(&targets[0]);
        rename(&staged, &target)?;
        Ok(target)
    }
}

/// The files of an import.
struct ImportSource {
    files: Vec<PathBuf>,
    /// The folder, if it is one.
    root: PathBuf,
    is_folder: bool,
    extension: &'static str,
}

impl ImportSource {
    fn of(path: &Path) -> Result<Self> {
        let found = fs::metadata(path).with_path(path)?;
        let invalid = |reason: &str| Error::InvalidRequest {
            request: path.display().to_string(),
            reason: reason.to_string(),
        };
        if found.is_dir() {
            let mut files = Vec::new();
            for entry in fs::read_dir(path).with_path(path)? {
                let file = entry.with_path(path)?.path();
                let hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
                if file.is_file() && !hidden {
                    files.push(file);
                } else if file.is_dir() && !hidden {
                    files.extend(module_files(path, &file)?);
                }
            }
            if !path.join("config.json").is_file() {
                return Err(invalid(
                    "a folder without config.json; give a .gguf file or a Hugging Face folder",
                ));
            }
            files.sort();
            return Ok(Self { files, root: path.to_path_buf(), is_folder: true, extension: "" });
        }
        if !found.is_file() {
            return Err(invalid("not a regular file"));
        }
        let extension = match path.extension().and_then(|extension| extension.to_str()) {
            Some("gguf") => "gguf",
            Some("safetensors") => "safetensors",
            _ => return Err(invalid("give a .gguf file, a file written by `indrik quantize`, or a folder")),
        };
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let base = without_part_number(&stem);
        if base == stem || extension != "gguf" {
            let (files, root) = (vec![path.to_path_buf()], PathBuf::new());
            return Ok(Self { files, root, is_folder: false, extension });
        }
        let count = stem.rsplit_once("-of-").and_then(|(_, count)| count.parse::<u32>().ok()).unwrap_or(1);
        let part = |number: u32| path.with_file_name(format!("{base}-{number:05}-of-{count:05}.gguf"));
        if let Some(missing) = (1..=count).map(part).find(|part| !part.is_file()) {
            return Err(invalid(&format!(
                "{} is missing; all parts must be in one folder",
                missing.display()
            )));
        }
        let files = (1..=count).map(part).collect();
        Ok(Self { files, root: PathBuf::new(), is_folder: false, extension })
    }

    fn default_name(&self, path: &Path) -> String {
        // The name of `.` or of `folder/..` is that of the folder itself.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let stem = if self.is_folder { path.file_name() } else { path.file_stem() };
        let stem = stem.unwrap_or_default().to_string_lossy().into_owned();
        slug(without_part_number(&stem))
    }

    /// Names in the store: of the files, or of the folder.
    fn targets(&self, stem: &str) -> Vec<String> {
        let count = self.files.len();
        match (self.is_folder, count) {
            (true, _) => vec![stem.to_string()],
            (false, 1) => vec![format!("{stem}.{}", self.extension)],
            _ => (1..=count).map(|number| format!("{stem}-{number:05}-of-{count:05}.gguf")).collect(),
        }
    }
}

/// The files of a module of sentence-transformers in a folder, if it is one.
fn module_files(root: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_path(folder)? {
        let file = entry.with_path(folder)?.path();
        let relative = file.strip_prefix(root).ok().and_then(Path::to_str);
        if relative.is_some_and(is_module_file) && file.is_file() {
            files.push(file);
        }
    }
    Ok(files)
}
