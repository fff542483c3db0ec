//! Reads pip's configuration, to use the package index that the machine is configured for. The precedence is
//! that of `pip download`: variables, then the files of a virtual environment, the user and the machine.

use std::path::{Path, PathBuf};

/// Environment variables and files, real or from a test.
pub struct Environment<'a> {
    /// The value of a variable.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// The text of a file, if it can be read.
    pub file: &'a dyn Fn(&Path) -> Option<String>,
}

impl Environment<'_> {
    /// The value of a variable that is set and not empty.
    pub fn non_empty(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    /// The value of a pip option and the setting that it comes from.
    pub fn pip_option(&self, key: &str) -> Option<(String, String)> {
        let name = format!("PIP_{}", key.to_ascii_uppercase().replace('-', "_"));
        if let Some(value) = self.non_empty(&name) {
            return Some((value, name));
        }
        let files: Vec<(PathBuf, String)> = self
            .pip_files()
            .into_iter()
            .filter_map(|path| (self.file)(&path).map(|text| (path, text)))
            .collect();
        // Options of the command take precedence over global ones, in whichever file they are.
        ["download", "global"].iter().find_map(|section| {
            files.iter().find_map(|(path, text)| {
                Some((ini_value(text, section, key)?, format!("{} in {}", key, path.display())))
            })
        })
    }

    fn pip_files(&self) -> Vec<PathBuf> {
        let given = self.non_empty("PIP_CONFIG_FILE");
        if given.as_deref() == Some("/dev/null") {
            return Vec::new();
        }
        let home = self.non_empty("HOME").map(PathBuf::from);
        let config = self.non_empty("XDG_CONFIG_HOME").map(PathBuf::from);
        let config = config.or_else(|| Some(home.as_ref()?.join(".config")));
        [
            given.map(PathBuf::from),
            self.non_empty("VIRTUAL_ENV").map(|folder| Path::new(&folder).join("pip.conf")),
            config.map(|folder| folder.join("pip/pip.conf")),
            home.map(|folder| folder.join(".pip/pip.conf")),
            Some("/etc/pip.conf".into()),
            Some("/etc/xdg/pip/pip.conf".into()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

fn ini_value(text: &str, section: &str, key: &str) -> Option<String> {
    let mut inside = false;
    let mut value: Option<String> = None;
    // A value may start on the line after its key, indented.
    let mut open = false;
    for line in text.lines() {
        let bare = line.trim();
        if bare.is_empty() || bare.starts_with(['#', ';']) {
            continue;
        }
        if line.starts_with([' ', '\t']) {
            if open && value.as_deref() == Some("") {
                value = Some(bare.to_string());
            }
            continue;
        }
        open = false;
        if let Some(name) = bare.strip_prefix('[') {
            inside = name.strip_suffix(']').is_some_and(|name| name.trim() == section);
        } else if inside
            && let Some((name, text)) = bare.split_once(['=', ':'])
            && name.trim().to_ascii_lowercase().replace('_', "-") == key
        {
            value = Some(text.trim().to_string());
            open = true;
        }
    }
    value.filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn index_url(variables: &[(&str, &str)], files: &[(&str, &str)]) -> Option<String> {
        let variables: HashMap<&str, &str> = variables.iter().copied().collect();
        let files: HashMap<&str, &str> = files.iter().copied().collect();
        let environment = Environment {
            variable: &|name| variables.get(name).map(|value| value.to_string()),
            file: &|path| files.get(path.to_str().unwrap()).map(|text| text.to_string()),
        };
        environment.pip_option("index-url").map(|(value, _)| value)
    }

    #[test]
    fn the_index_follows_pips_precedence() {
        let conf = |url: &str| format!("# ours\n[global]\ntimeout = 60\nindex-url = {url}\n");
        let (machine, user, old, own) =
            (conf("http://m"), conf("http://u"), conf("http://o"), conf("http://v"));
        let files = [
            ("/etc/pip.conf", machine.as_str()),
            ("/h/.pip/pip.conf", &old),
            ("/h/.config/pip/pip.conf", &user),
            ("/venv/pip.conf", &own),
            ("/given.conf", "[global]\nindex-url: http://g"),
        ];
        let home = ("HOME", "/h");
        assert_eq!(index_url(&[home], &[]), None);
        assert_eq!(index_url(&[home], &files[..1]).as_deref(), Some("http://m"));
        assert_eq!(index_url(&[home], &files[..2]).as_deref(), Some("http://o"));
        assert_eq!(index_url(&[home], &files).as_deref(), Some("http://u"));
        let venv = ("VIRTUAL_ENV", "/venv");
        assert_eq!(index_url(&[home, venv], &files).as_deref(), Some("http://v"));
        let given = ("PIP_CONFIG_FILE", "/given.conf");
        assert_eq!(index_url(&[home, venv, given], &files).as_deref(), Some("http://g"));
        assert_eq!(index_url(&[home, ("PIP_CONFIG_FILE", "/dev/null")], &files), None);
        let direct = ("PIP_INDEX_URL", "http://e");
        assert_eq!(index_url(&[home, venv, given, direct], &files).as_deref(), Some("http://e"));
        assert_eq!(index_url(&[home, ("PIP_INDEX_URL", "")], &files).as_deref(), Some("http://u"));
    }

    #[test]
    fn ini_files_are_parsed_like_pip_does() {
        let value = |text: &str| ini_value(text, "global", "index-url");
        assert_eq!(value("[global]\nindex_url=http://a").as_deref(), Some("http://a"));
        assert_eq!(value("[global]\nIndex-URL = http://a?b=c").as_deref(), Some("http://a?b=c"));
        assert_eq!(value("[global]\nindex-url =\n    http://a\n    http://b").as_deref(), Some("http://a"));
        assert_eq!(value("[install]\nindex-url = http://a\n[global]\ntimeout = 1"), None);
        assert_eq!(value("[global]\n;index-url = http://a\n#index-url = http://b"), None);
        assert_eq!(value("[global]\nextra-index-url = http://a"), None);
        assert_eq!(
            value("[global]\nindex-url = http://a\nindex-url = http://b").as_deref(),
            Some("http://b")
        );
        // The command's section takes precedence over [global], even in a file of lower precedence.
        let files = [
            ("/h/.config/pip/pip.conf", "[global]\nindex-url=http://u"),
            ("/etc/pip.conf", "[download]\nindex-url=http://d"),
        ];
        assert_eq!(index_url(&[("HOME", "/h")], &files).as_deref(), Some("http://d"));
    }
}
