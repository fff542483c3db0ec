//! Where the messages typed into earlier chats are kept.

use std::{
    ffi::OsString,
    fs::{self, DirBuilder, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Number of messages that are kept.
pub const MAX_ENTRIES: usize = 1000;

/// The user's history file, which may not exist yet.
pub fn path(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let variable = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The XDG specification requires relative paths to be ignored.
    let state = variable("XDG_STATE_HOME").filter(|path| path.is_absolute());
    let state = state.or_else(|| Some(variable("HOME")?.join(".local/state")))?;
    Some(state.join("indrik/chat_history"))
}

/// Creates the file if there is none. Only its owner may read it: messages are private.
pub fn create(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let mut permissions = file.metadata()?.permissions();
    if permissions.mode() & 0o077 != 0 {
        permissions.set_mode(0o600);
        fs::set_permissions(path, permissions)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_in_the_state_folder() {
        let found = |variables: &[(&str, &str)]| {
            path(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
        };
        let home = ("HOME", "/home/me");
        assert_eq!(found(&[home]), Some("/home/me/.local/state/indrik/chat_history".into()));
        assert_eq!(found(&[home, ("XDG_STATE_HOME", "/s")]), Some("/s/indrik/chat_history".into()));
        assert_eq!(found(&[home, ("XDG_STATE_HOME", "s")]), found(&[home]));
        assert_eq!(found(&[]), None);
    }

    #[test]
    fn only_the_owner_may_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/chat_history");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        create(&path).unwrap();
        assert_eq!(mode(), 0o600);
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        create(&path).unwrap();
        assert_eq!((mode(), fs::read(&path).unwrap()), (0o600, b"old".to_vec()));
    }
}
