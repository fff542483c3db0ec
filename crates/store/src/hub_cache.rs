//! The cache of the hub's own client: `models--OWNER--NAME` with `refs` (the commit of each branch),
//! `snapshots` (the files of each commit, as links) and `blobs` (their content, large files named by SHA-256).
//! It is only read.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    download::file_len,
    hub::{Listing, MAX_FILES, RemoteFile, is_commit, is_plain_path},
    request::Repository,
    settings::Settings,
    sha256::is_sha256,
};

/// Maximum depth of folders in a snapshot.
const MAX_DEPTH: usize = 4;

fn folder(settings: &Settings, repository: &Repository) -> Option<PathBuf> {
    let name = format!("models--{}--{}", repository.owner(), repository.name());
    Some(settings.hub_cache.as_ref()?.join(name))
}

/// The cached content of a large file, judging by its name and size.
pub fn blob(settings: &Settings, repository: &Repository, sha256: &str, bytes: u64) -> Option<PathBuf> {
    let path = folder(settings, repository)?.join("blobs").join(sha256);
    (is_sha256(sha256) && path.is_file() && file_len(&path) == bytes).then_some(path)
}

/// The files of a revision that are in the cache.
pub fn listing(settings: &Settings, repository: &Repository, revision: &str) -> Option<Listing> {
    let folder = folder(settings, repository)?;
    let commit = match is_commit(revision) {
        true => revision.to_string(),
        false if is_plain_path(revision) => fs::read_to_string(folder.join("refs").join(revision)).ok()?,
        false => return None,
    };
    let commit = commit.trim().to_ascii_lowercase();
    if !is_commit(&commit) {
        return None;
    }
    let mut files = Vec::new();
    collect(&folder.join("snapshots").join(&commit), "", 0, &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let (repository, revision) = (repository.clone(), revision.to_string());
    (!files.is_empty()).then_some(Listing { repository, revision, commit, licence: None, files })
}

fn collect(folder: &Path, prefix: &str, depth: usize, files: &mut Vec<RemoteFile>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        let Ok(found) = fs::metadata(entry.path()) else { continue };
        if found.is_dir() && depth < MAX_DEPTH {
            collect(&entry.path(), &path, depth + 1, files);
        } else if found.is_file() && is_plain_path(&path) && files.len() < MAX_FILES {
            // A snapshot links to its blobs.
            let blob = fs::canonicalize(entry.path()).ok();
            let blob = blob.and_then(|blob| blob.file_name()?.to_str().map(str::to_string));
            let sha256 = blob.filter(|name| is_sha256(name)).map(|name| name.to_ascii_lowercase());
            files.push(RemoteFile { path, bytes: found.len(), sha256 });
        }
    }
}
