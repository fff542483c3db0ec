//! What the packages consist of: completions, manual pages, the unit file, maintainer scripts, settings, set-up.
//!
//! `make dist` itself is not run here: it builds a release binary and downloads a linker.

use std::{
    collections::BTreeSet,
    fs,
    io::ErrorKind,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::common::{indrik, stderr, stdout};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &str) -> String {
    let file = repository().join(path);
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Output of an optional tool; `None`, with a note, if it is not installed.
fn optional(tool: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(tool).args(arguments).env("LC_ALL", "C.UTF-8").output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("skipped: {tool} is not installed");
            None
        }
        Err(error) => panic!("{tool}: {error}"),
    }
}

fn assert_silent_success(output: &Output, what: &str) {
    let messages = stdout(output) + &stderr(output);
    assert!(output.status.success() && messages.is_empty(), "{what}: {}\n{messages}", output.status);
}

/// Names of the commands that `indrik --help` lists.
fn listed_commands() -> Vec<String> {
    let help = stdout(&indrik(&["--help"]).output().unwrap());
    let list = help.split("Commands:\n").nth(1).expect("help has a list of commands");
    let names = list.lines().take_while(|line| !line.is_empty());
    let names = names.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .filter(|name| name != "help")
        .collect()
}

#[test]
fn shells_accept_the_completions() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = indrik(&["completions", shell]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let script = stdout(&output);
        for name in listed_commands() {
            assert!(script.contains(&name), "{shell}: no completion of {name}");
        }
        let file = folder.path().join(shell);
        fs::write(&file, script).unwrap();
        let file = file.to_str().unwrap();
        let arguments: &[&str] = if shell == "fish" { &["--no-execute", file] } else { &["-n", file] };
        if let Some(output) = optional(shell, arguments) {
            assert_silent_success(&output, shell);
        }
    }
    let output = indrik(&["completions", "tcsh"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("bash, zsh, fish"), "{}", stderr(&output));
}

#[test]
fn bash_completes_commands_and_flags() {
    let script = stdout(&indrik(&["completions", "bash"]).output().unwrap());
    for (words, expected) in
        [("ser", "serve"), ("serve --max-seq", "--max-sequences"), ("completions fi", "fish")]
    {
        let last = words.split(' ').next_back().unwrap();
        let count = words.split(' ').count();
        let test = format!(
            "{script}\nCOMP_WORDS=(indrik {words}); COMP_CWORD={count}; _indrik indrik {last} x; echo \"${{COMPREPLY[*]}}\""
        );
        let output = Command::new("bash").args(["--norc", "-c", &test]).output().unwrap();
        assert_eq!(stdout(&output).trim(), expected, "{words}: {}", stderr(&output));
    }
}

/// Name and text of every manual page.
fn manual_pages(folder: &Path) -> Vec<(String, String)> {
    let output = indrik(&["man", "--out", folder.to_str().unwrap()]).output().unwrap();
    assert_silent_success(&output, "indrik man");
    let page = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap())
    };
    let mut pages: Vec<_> = fs::read_dir(folder).unwrap().map(page).collect();
    pages.sort();
    pages
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let pages = manual_pages(&folder.path().join("created"));
    let names: BTreeSet<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains("indrik.1") && names.contains("indrik-eval-logits.1"), "{names:?}");
    let commands = listed_commands();
    assert!(commands.len() > 10, "{commands:?}");
    for command in commands {
        assert!(names.contains(format!("indrik-{command}.1").as_str()), "no page of {command}: {names:?}");
    }
    for (name, page) in &pages {
        let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
        let required = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "\"EXIT STATUS\"", "\"SEE ALSO\""];
        for section in required {
            assert!(sections.contains(&section), "{name}: no section {section}: {sections:?}");
        }
        if name != "indrik.1" {
            assert!(sections.contains(&"EXAMPLES"), "{name}: {sections:?}");
        }
        // References to pages that exist.
        let text = page.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "");
        for word in text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| word.ends_with("(1)")) {
            let target = format!("{}.1", word.trim_end_matches("(1)"));
            assert!(names.contains(target.as_str()), "{name} refers to {word}");
        }
    }
    let serve = &pages.iter().find(|(name, _)| name == "indrik-serve.1").unwrap().1;
    assert!(serve.contains("INDRIK_MAX_SEQUENCES") && serve.contains("gemma\\-3\\-4b\\-it"), "{serve}");
}

#[test]
fn manual_pages_render_without_warnings() {
    let folder = tempfile::tempdir().unwrap();
    for (name, _) in manual_pages(folder.path()) {
        let file = folder.path().join(name);
        let arguments = ["-man", "-Tutf8", "-ww", "-z", file.to_str().unwrap()];
        let Some(output) = optional("groff", &arguments) else { return };
        assert_silent_success(&output, file.to_str().unwrap());
    }
}

#[test]
fn scripts_parse() {
    let root = repository();
    let mut scripts = vec![];
    for name in ["postinst", "prerm", "postrm"] {
        scripts.push(("sh", root.join("packaging/deb").join(name)));
    }
    for entry in fs::read_dir(root.join("scripts")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "sh") {
            scripts.push(("bash", path));
        }
    }
    for (shell, path) in &scripts {
        assert_ne!(
            fs::metadata(path).unwrap().permissions().mode() & 0o111,
            0,
            "{} is not executable",
            path.display()
        );
        let output = Command::new(shell).arg("-n").arg(path).output().unwrap();
        assert_silent_success(&output, path.to_str().unwrap());
    }
    let files: Vec<&str> = scripts.iter().map(|(_, path)| path.to_str().unwrap()).collect();
    if let Some(output) = optional("shellcheck", &files) {
        assert_silent_success(&output, "shellcheck");
    }
}

#[test]
fn the_packaged_settings_are_valid() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    fs::write(&keys, "a-key\n").unwrap();
    // With every suggestion uncommented.
    let text = read("packaging/serve.toml").replace("/etc/indrik/keys", keys.to_str().unwrap());
    let is_setting = |line: &str| line.split(" = ").next().is_some_and(|key| !key.contains([' ', ':']));
    let uncomment = |line: &str| match line.strip_prefix('#') {
        Some(rest) if rest.contains(" = ") && is_setting(rest) => rest.to_owned(),
        _ => line.to_owned(),
    };
    let lines: Vec<String> = text.lines().map(uncomment).collect();
    assert!(
        lines.iter().filter(|line| line.contains(" = ") && !line.starts_with('#')).count() >= 7,
        "{lines:?}"
    );
    let file = folder.path().join("serve.toml");
    fs::write(&file, lines.join("\n")).unwrap();
    let output = indrik(&["serve", "--config", file.to_str().unwrap()])
        .env("INDRIK_MODELS_DIR", folder.path().join("store"))
        .output()
        .unwrap();
    // The settings are read first; then the store has no such model.
    let message = stderr(&output);
    assert!(
        !output.status.success() && message.contains("smollm2") && !message.contains("settings file"),
        "{message}"
    );
}

#[test]
fn package_files_agree() {
    let unit = read("packaging/indrik.service");
    let value = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_else(|| panic!("the unit has no {key}")).to_owned()
    };
    let user = value("User=");
    let sysusers = read("packaging/sysusers.conf");
    assert!(sysusers.lines().any(|line| line.starts_with(&format!("u {user} "))), "{sysusers}");
    for group in ["render", "video"] {
        assert!(sysusers.lines().any(|line| line == format!("m {user} {group}")), "{sysusers}");
    }
    let store = value("AssertDirectoryNotEmpty=");
    let tmpfiles = read("packaging/tmpfiles.conf");
    assert!(tmpfiles.contains(&format!("d {store} 0755 {user} {user}")), "{tmpfiles}");
    assert!(read("packaging/serve.toml").contains(&store) && read("packaging/deb/postinst").contains(&store));
    // The image is built with the toolchain that is tested.
    let toolchain = read("rust-toolchain.toml");
    let channel = toolchain
        .lines()
        .find_map(|line| line.strip_prefix("channel = "))
        .unwrap()
        .trim_matches('"')
        .to_owned();
    let image = format!("FROM docker.io/library/rust:{channel}-");
    assert!(read("packaging/Containerfile").lines().any(|line| line.starts_with(&image)), "{image}");
}

#[test]
fn the_installation_guide_is_current() {
    let guide = read("docs/install.md");
    let version = env!("CARGO_PKG_VERSION");
    // File names as `scripts/dist.sh` writes them.
    for file in [format!("indrik_{version}-1_amd64.deb"), format!("indrik-{version}-x86_64-linux.tar.gz")] {
        assert!(guide.contains(&file), "docs/install.md should name {file}");
    }
    for path in ["/etc/indrik/serve.toml", "/var/lib/indrik/models", "/var/cache/indrik"] {
        assert!(guide.contains(path), "docs/install.md should name {path}");
    }
}

#[test]
fn setup_prints_what_to_install() {
    let everything = [
        ("apt-get", "libvulkan1"),
        ("dnf", "dnf install -y -q vulkan-loader mesa-vulkan-drivers vulkan-validation-layers gcc-c++"),
        (
            "pacman",
            "pacman -S --needed --noconfirm vulkan-icd-loader vulkan-radeon vulkan-swrast vulkan-validation-layers gcc",
        ),
        (
            "zypper",
            "zypper install libvulkan1 libvulkan_radeon libvulkan_lvp vulkan-validationlayers gcc-c++",
        ),
        (
            "apk",
            "apk add vulkan-loader mesa-vulkan-ati mesa-vulkan-swrast vulkan-validation-layers build-base",
        ),
        ("nix-shell", "nix-shell -p vulkan-loader mesa vulkan-validation-layers gcc"),
    ];
    let search = std::env::var_os("PATH").unwrap();
    for (manager, expected) in everything {
        let folder = tempfile::tempdir().unwrap();
        // No package manager but this one, and no way to become root.
        for tool in
            ["bash", "env", "sed", "id", "grep", "awk", "dirname", "head", "dpkg-query", "dpkg", "apt-cache"]
        {
            if let Some(path) =
                std::env::split_paths(&search).map(|path| path.join(tool)).find(|path| path.exists())
            {
                symlink(path, folder.path().join(tool)).unwrap();
            }
        }
        let stub = folder.path().join(manager);
        fs::write(&stub, "#!/bin/sh\necho ran >&2\nexit 1\n").unwrap();
        fs::set_permissions(&stub, fs::Permissions::from_mode(0o755)).unwrap();
        let run = |missing: &str| {
            Command::new("bash")
                .arg(repository().join("scripts/setup.sh"))
                .arg("--print")
                .env("PATH", folder.path())
                .env("SETUP_MISSING", missing)
                .output()
                .unwrap()
        };
        let output = run("loader mesa validation cxx");
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(1), "{manager}: {text}{}", stderr(&output));
        assert!(
            text.contains(expected) && stderr(&output).is_empty(),
            "{manager}: {text}{}",
            stderr(&output)
        );
        // Only what is missing.
        let text = stdout(&run("validation"));
        assert!(
            text.contains("validation") && !text.contains("gcc") && !text.contains("libvulkan1"),
            "{text}"
        );
    }
}
