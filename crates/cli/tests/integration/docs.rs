//! Every command in the shell blocks of the documentation is checked: run with a tiny model where that is possible,
//! parsed where it needs a large model, listed here with a reason otherwise. A command that is none of these fails.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use crate::common::{
    indrik,
    served::{Served, has_device},
    stderr, stdout,
};
use serde_json::{Value, json};
use store::testing::{FakeHub, FakeRepository};

/// Programs that are not run, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("apt", "changes the system; scripts/dist.sh builds the package"),
    ("install", "changes the system"),
    ("podman", "needs a container engine and images; an `indrik` command in a container is parsed"),
    ("pip", "changes the system; `make scaleout` installs the same version"),
    ("rm", "changes the system"),
    ("sed", "changes the system"),
    ("lm_eval", "fetches a data set and a tokenizer"),
    ("smg", "`make scaleout` runs it"),
    ("systemctl", "changes the system"),
    ("systemd-sysusers", "changes the system"),
    ("systemd-tmpfiles", "changes the system"),
    ("tar", "needs the release tarball"),
    ("userdel", "changes the system"),
    ("vllm-router", "`make scaleout` runs it"),
];

/// A command of the documentation.
struct Documented {
    /// Page and line, for messages.
    at: String,
    /// Variables before the program.
    environment: Vec<(String, String)>,
    /// Program and arguments as written, without `sudo`.
    text: String,
}

impl Documented {
    /// Takes `sudo`, its user and variables off the front.
    fn new(at: String, text: &str) -> Self {
        let mut environment = Vec::new();
        let mut rest = text.trim();
        loop {
            let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
            let is_name = |name: &str| name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
            match word.split_once('=') {
                Some((name, value)) if is_name(name) => environment.push((name.into(), value.into())),
                _ if word == "sudo" => {}
                _ if word == "-u" => {
                    rest = after.split_once(' ').unwrap().1;
                    continue;
                }
                _ => break,
            }
            rest = after;
        }
        Self { at, environment, text: rest.to_string() }
    }

    fn words(&self) -> Vec<&str> {
        self.text.split_whitespace().collect()
    }

    /// The arguments of `indrik`, if this runs it: directly, from a tarball, or with cargo.
    fn indrik_arguments(&self) -> Option<&str> {
        let (program, arguments) = self.text.split_once(' ')?;
        let is_indrik = program == "indrik" || program.ends_with("/bin/indrik");
        if is_indrik { Some(arguments) } else { self.text.strip_prefix("cargo run -- ") }
    }
}

impl std::fmt::Display for Documented {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: `{}`", self.at, self.text)
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// README.md, CONTRIBUTING.md and the pages of `docs`, in a fixed order.
fn pages() -> Vec<PathBuf> {
    fn collect(folder: &Path, pages: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, pages);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    let mut pages = vec![repository().join("README.md"), repository().join("CONTRIBUTING.md")];
    collect(&repository().join("docs"), &mut pages);
    pages.sort();
    pages
}

/// The commands of a page's shell blocks. In a `console` block they follow `$ `; the other lines are output.
fn commands(page: &Path) -> Vec<Documented> {
    let name = page.strip_prefix(repository()).unwrap().display().to_string();
    let mut found = Vec::new();
    let mut block: Option<String> = None;
    let mut pending = String::new();
    for (number, line) in (1..).zip(read(page).lines()) {
        let line = line.trim_start();
        if let Some(language) = line.strip_prefix("```") {
            assert!(pending.is_empty(), "{name}:{number}: the block ends within a command: {pending}");
            block = if block.is_some() { None } else { Some(language.to_string()) };
            continue;
        }
        let is_start = match block.as_deref() {
            Some("sh" | "bash") => true,
            Some("console") => line.starts_with("$ "),
            Some("") => {
                let program = Documented::new(String::new(), line).text;
                let program = program.split(' ').next().unwrap_or_default();
                let is_command = ["indrik", "curl", "make", "cargo"].contains(&program)
                    || NOT_RUN.iter().any(|(name, _)| *name == program);
                assert!(!is_command, "{name}:{number}: a block with commands starts with ```sh");
                continue;
            }
            _ => continue,
        };
        if pending.is_empty() && (!is_start || line.is_empty()) {
            continue;
        }
        // Comments are separated from the command by two spaces.
        let line = line.split_once("  #").map_or(line, |(command, _)| command).trim_end();
        pending += line.strip_prefix("$ ").unwrap_or(line);
        if let Some(continued) = pending.strip_suffix('\\') {
            pending.truncate(continued.len());
        } else if pending.matches('\'').count().is_multiple_of(2) {
            found.push(Documented::new(format!("{name}:{number}"), &std::mem::take(&mut pending)));
        }
    }
    found
}

/// Where Mesa keeps compiled shaders unless HOME changes.
fn mesa_cache() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from);
    folder("MESA_SHADER_CACHE_DIR")
        .or_else(|| folder("XDG_CACHE_HOME"))
        .or_else(|| folder("HOME").map(|home| home.join(".cache")))
}

/// Copies a tiny model, with a chat template that knows tools and tokens to fill in the middle.
fn write_tool_model(from: &Path, to: &Path) {
    const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}\
        <|im_start|>{{ message.role }}\n{{ message.content or '' }}{% for call in message.tool_calls %}\
        <tool_call>\n{\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson }}}\n\
        </tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    fs::create_dir(to).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
    let mut tokenizer: Value = serde_json::from_str(&read(&from.join("tokenizer.json"))).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    for name in ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"] {
        let mut token = added.last().unwrap().clone();
        token["id"] = (token["id"].as_u64().unwrap() + 1).into();
        token["content"] = name.into();
        added.push(token);
    }
    fs::write(to.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let mut config: Value = serde_json::from_str(&read(&from.join("tokenizer_config.json"))).unwrap();
    config["chat_template"] = TEMPLATE.into();
    fs::write(to.join("tokenizer_config.json"), config.to_string()).unwrap();
}

/// A user whose hub has a tiny model in every repository of the catalogue.
struct User {
    hub: FakeHub,
    home: tempfile::TempDir,
    /// Servers without and with an API key, started for the first request.
    servers: [Option<Served>; 2],
}

impl User {
    fn new() -> Self {
        let hub = FakeHub::start();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures");
        let (small, large) = ["gguf_q4_0", "gguf_q8_0"]
            .map(|name| fs::read(fixtures.join(name).join("model.gguf")).unwrap())
            .into();
        for repository in store::catalogue::MODELS.iter().flat_map(|model| model.repositories) {
            let qat = if repository.contains("-qat-") { "-qat" } else { "" };
            let names = [format!("tiny{qat}-Q4_0.gguf"), format!("tiny{qat}-Q8_0.gguf")];
            let files = [(names[0].as_str(), Vec::clone(&small)), (names[1].as_str(), Vec::clone(&large))];
            hub.put(repository, FakeRepository::new(if qat.is_empty() { &files } else { &files[..1] }));
        }
        let home = tempfile::tempdir().unwrap();
        // Files that examples name, and those of pinned models, which no other file can replace in a pull.
        let pinned = store::catalogue::MODELS.iter().filter(|model| model.pinned.is_some());
        let pinned = pinned.map(|model| format!("models/{}.gguf", model.name.replace(':', "@")));
        let named = [
            "Downloads/model-Q8_0.gguf",
            "models/gemma-3-4b-it.gguf",
            "models/gemma-3-270m-it.gguf",
            "MODEL",
        ]
        .map(String::from);
        for file in pinned.chain(named) {
            let path = home.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, &large).unwrap();
        }
        let tiny = fixtures.join("../embeddings/bert_mean");
        let embedding = home.path().join("models/all-minilm@22m");
        fs::create_dir_all(embedding.join("1_Pooling")).unwrap();
        for file in
            ["config.json", "model.safetensors", "modules.json", "tokenizer.json", "1_Pooling/config.json"]
        {
            fs::copy(tiny.join(file), embedding.join(file)).unwrap();
        }
        write_tool_model(&fixtures.join("qwen2_tied"), &home.path().join("tools"));
        Self { hub, home, servers: [None, None] }
    }

    /// A command line as this user's shell runs it. `exec` gives it the shell's process, for signals.
    fn shell(&self, text: &str) -> Command {
        // The variables that `indrik` removes and sets.
        let mut command = indrik(&[]);
        let mut shell = Command::new("bash");
        for (name, value) in command.args([""]).get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        for name in [
            "ALL_PROXY",
            "HTTPS_PROXY",
            "HTTP_PROXY",
            "HF_TOKEN",
            "HF_HOME",
            "HF_HUB_CACHE",
            "XDG_CACHE_HOME",
        ] {
            shell.env_remove(name).env_remove(name.to_lowercase());
        }
        let binary = Path::new(env!("CARGO_BIN_EXE_indrik")).parent().unwrap();
        let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
        // Mesa's own cache of compiled shaders stays the same.
        if let Some(cache) = mesa_cache() {
            shell.env("MESA_SHADER_CACHE_DIR", cache);
        }
        shell
            .args(["-c", &format!("exec {text}")])
            .current_dir(self.home.path())
            .stdin(Stdio::null())
            .env("PATH", path)
            .env("HOME", self.home.path())
            .env("INDRIK_MODELS_DIR", self.home.path().join("models"))
            .env("INDRIK_OVERLAYS_DIR", self.home.path().join("overlays"))
            .env("HF_ENDPOINT", &self.hub.server.url)
            .env("PIP_INDEX_URL", format!("{}/simple", self.hub.server.url));
        shell
    }

    /// Runs a command for real.
    fn run(&self, command: &Documented, text: &str) -> Output {
        let output = self.shell(text).output().unwrap();
        assert!(output.status.success(), "{command}: {}{}", stdout(&output), stderr(&output));
        output
    }

    /// Runs a command up to the point where it opens a device that does not exist: by then its arguments are
    /// accepted.
    fn parse(&self, command: &Documented, text: &str) {
        let output = self.shell(text).env("INDRIK_DEVICE", "no-such-device").output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{command}: {}{}", stdout(&output), stderr(&output));
        let text = stdout(&output) + &stderr(&output);
        assert!(text.contains("no-such-device"), "{command}: {text}");
    }

    /// Starts a server on a free port.
    fn start(&self, environment: &[(String, String)], arguments: &str) -> Served {
        let mut shell = self.shell(&format!("indrik {arguments} --port 0 --context 512 --json"));
        shell.envs(environment.iter().cloned());
        Served::start(shell.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// Sends a documented request to a server with a tiny model.
    fn request(&mut self, command: &Documented) {
        let address = "127.0.0.1:8006";
        assert!(command.text.contains(address), "{command}: requests go to {address}");
        let with_key = ["Bearer KEY", "x-api-key: KEY"].iter().any(|key| command.text.contains(key));
        let key = if with_key { " --api-key KEY" } else { "" };
        if command.text.contains("\"all-minilm\"") {
            let server = self.start(&[], "serve -m all-minilm");
            let text = command.text.replace(address, &server.address) + " --fail-with-body --silent";
            let body = stdout(&self.run(command, &text));
            assert!(body.contains("\"embedding\":["), "{command}: {body}");
            return;
        }
        let started = self.servers[usize::from(with_key)].take();
        let server = started.unwrap_or_else(|| self.start(&[], &format!("serve -m tools --name tiny{key}")));
        let mut text =
            command.text.replace(address, &server.address) + " --fail-with-body --silent --show-error";
        if let Some((before, after)) = text.split_once("\"model\": \"") {
            text = format!("{before}\"model\": \"tiny{}", &after[after.find('"').unwrap()..]);
        }
        let body = stdout(&self.run(command, &text));
        let is_ollamas = command.text.contains("/api/");
        if command.text.contains("\"stream\": true") && command.text.contains("/v1/responses") {
            assert!(body.contains("event: response.created"), "{command}: {body}");
        } else if command.text.contains("\"stream\": true") && !is_ollamas {
            assert!(
                body.starts_with("data: {") && body.trim_end().ends_with("data: [DONE]"),
                "{command}: {body}"
            );
        } else {
            // Ollama's API streams lines.
            let answers = body.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            let answers: Vec<Value> = answers.collect();
            let has_error = |answer: &Value| answer.get("error").is_some_and(|error| !error.is_null());
            assert!(!answers.is_empty() && !answers.iter().any(has_error), "{command}: {body}");
            let list = match &command.text {
                text if text.contains("/v1/models") => Some("data"),
                text if text.contains("/v1/messages") => Some("content"),
                text if text.contains("/v1/responses") => Some("output"),
                text if text.contains("completions") => Some("choices"),
                _ => None,
            };
            if let Some(list) = list {
                assert_eq!(answers[0][list].as_array().map(Vec::len), Some(1), "{command}: {body}");
            }
        }
        self.servers[usize::from(with_key)] = Some(server);
    }
}

/// Checks a call of `indrik`.
fn check_indrik(user: &User, command: &Documented, arguments: &str) {
    let text = format!("indrik {arguments}");
    match arguments.split(' ').next().unwrap() {
        "pull" => {
            let name = arguments.split(' ').nth(1).unwrap();
            let is_pinned = |model: &&store::Model| model.pinned.is_some();
            let is_named = |model: &store::Model| model.name == name || model.aliases.contains(&name);
            let pinned = store::catalogue::MODELS.iter().filter(is_pinned).any(is_named);
            user.run(command, &format!("{text}{}", if pinned { " --quant Q8_0" } else { "" }));
        }
        // The kernels' cases take minutes.
        "doctor" if arguments.contains("--selftest") => user.parse(command, &text),
        "chat" | "devices" | "doctor" | "embed" | "generate" | "import" | "inspect" | "models" | "rm"
        | "run" | "search" => {
            user.run(command, &text);
        }
        "monitor" => match arguments.split(' ').find(|argument| argument.starts_with("http://")) {
            Some(url) => {
                let server = user.start(&[], "serve -m tools --name tiny --api-key KEY");
                user.run(command, &text.replace(url, &format!("http://{}", server.address)));
            }
            None => {
                user.run(command, &text);
            }
        },
        // This user's server has no overlays, and nothing runs without one; the arguments are accepted.
        "npu" => {
            let source = &user.hub.server.url;
            let output = user.shell(&text).env("INDRIK_OVERLAY_SOURCE", source).output().unwrap();
            let text = stdout(&output) + &stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{command}: {text}");
            assert!(text.contains(source.as_str()) || text.contains("did not run"), "{command}: {text}");
        }
        // Large shapes, or minutes of measurements.
        "bench" => user.parse(command, &text),
        "serve" if command.environment.iter().any(|(name, _)| name == "INDRIK_FAULT") => {
            check_recovery(&user.start(&command.environment, arguments), user, command);
        }
        "serve" => {
            let server = user.start(&command.environment, arguments);
            assert_eq!(server.request("GET", "/ready", "").0, 200, "{command}");
        }
        other => panic!("{command}: say in this test how to check `indrik {other}`"),
    }
}

/// The example of a device that is lost again and again: streams pause, and their tokens are those of a server that
/// loses none.
fn check_recovery(server: &Served, user: &User, command: &Documented) {
    let model = server.report["model"].clone();
    let body = json!({ "model": model, "prompt": "the cat sat", "max_tokens": 64, "temperature": 0 });
    let undisturbed = user.start(&[], command.indrik_arguments().unwrap());
    let expected = undisturbed.complete(&body)["choices"].take();
    // Loading the model loses no device, and devices are lost more than once.
    assert_eq!(server.metric("indrik_device_lost_total"), 0, "{command}");
    let mut completions = 0;
    while server.metric("indrik_device_lost_total") < 2 {
        assert_eq!(server.complete(&body)["choices"], expected, "{command}");
        completions += 1;
        assert!(completions < 300, "{command}: no device was lost");
    }
    assert_eq!(server.metric("indrik_engine_requests_total{outcome=\"failed\"}"), 0, "{command}");
}

/// Checks a call of `make`: its target exists, and its variables are used.
fn check_make(command: &Documented) {
    let makefile = read(&repository().join("Makefile"));
    let words = command.words();
    let has_target = makefile.lines().any(|line| line.starts_with(&format!("{}:", words[1])));
    assert!(has_target, "{command}: the Makefile has no target {}", words[1]);
    for (name, _) in words[2..].iter().filter_map(|word| word.split_once('=')) {
        assert!(makefile.contains(&format!("$({name})")), "{command}: the Makefile does not use {name}");
    }
}

/// Checks a call of `cargo`: packages and test files exist.
fn check_cargo(command: &Documented) {
    let words = command.words();
    assert!(["build", "test"].contains(&words[1]), "{command}: say in this test how to check it");
    let after = |flag| words.iter().position(|word| *word == flag).map(|at| words[at + 1]);
    let Some(package) = after("-p") else { return };
    let folder = repository().join("crates").join(package.trim_start_matches("indrik-"));
    assert!(read(&folder.join("Cargo.toml")).contains(&format!("name = \"{package}\"")), "{command}");
    if let Some(test) = after("--test") {
        let tests = folder.join("tests");
        assert!(tests.join(test).with_extension("rs").exists() || tests.join(test).is_dir(), "{command}");
        // A file of that binary.
        if let Some(file) = words.iter().find_map(|word| word.strip_suffix("::")) {
            assert!(tests.join(test).join(file).with_extension("rs").exists(), "{command}");
        }
    }
}

#[test]
fn every_documented_command_works() {
    let has_device = has_device();
    let has_curl = Command::new("curl").arg("--version").output().is_ok();
    if !has_curl {
        testkit::missing("curl");
    }
    let mut user = User::new();
    let all: Vec<Documented> = pages().iter().flat_map(|page| commands(page)).collect();
    assert!(all.len() >= 40, "{} commands found", all.len());
    for command in &all {
        let words = command.words();
        if let Some(arguments) = command.indrik_arguments() {
            if has_device {
                check_indrik(&user, command, arguments);
            }
            continue;
        }
        match words[0] {
            "curl" if has_device && has_curl => user.request(command),
            "curl" => {}
            "make" => check_make(command),
            "cargo" => check_cargo(command),
            script if script.starts_with("scripts/") => {
                use std::os::unix::fs::PermissionsExt;
                let mode = fs::metadata(repository().join(script)).map(|file| file.permissions().mode());
                assert!(mode.is_ok_and(|mode| mode & 0o111 != 0), "{command}: no such script");
            }
            program => {
                assert!(
                    NOT_RUN.iter().any(|(name, _)| *name == program),
                    "{command}: say in this test how to check it"
                );
                // In a container, the image's name is followed by the arguments.
                let inside = command.text.rsplit_once(" indrik ").map(|(_, arguments)| arguments);
                if let (true, Some(arguments)) = (words[..2] == ["podman", "run"] && has_device, inside) {
                    check_indrik(&user, command, arguments);
                }
            }
        }
    }
    for (program, _) in NOT_RUN {
        assert!(
            all.iter().any(|command| command.words()[0] == *program),
            "{program} is no longer documented"
        );
    }
}
