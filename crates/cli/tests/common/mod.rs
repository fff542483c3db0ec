//! Runs the `indrik` binary.

#[allow(dead_code, reason = "not every test uses all of it")]
pub mod served;
#[allow(dead_code, reason = "not every test uses all of it")]
pub mod terminal;

use std::process::{Command, Output};

/// The binary on Mesa's CPU driver, without the user's settings and caches.
#[allow(dead_code, reason = "tests of scripts do not run it")]
pub fn indrik(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_indrik"));
    command.args(arguments);
    for name in [
        "INDRIK_DEVICE",
        "INDRIK_FAULT",
        "INDRIK_LOG",
        "NOTIFY_SOCKET",
        "RADV_FORCE_FAMILY",
        "VK_DRIVER_FILES",
        "VK_ICD_FILENAMES",
        "ALL_PROXY",
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "all_proxy",
        "https_proxy",
        "http_proxy",
    ] {
        command.env_remove(name);
    }
    command.env("INDRIK_CACHE_DIR", std::env::temp_dir().join("indrik-test-cache"));
    command.env("RUST_BACKTRACE", "1");
    command
}

/// Standard output.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Standard error.
#[allow(dead_code, reason = "not every test uses it")]
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Standard output as JSON.
#[allow(dead_code, reason = "not every test uses it")]
pub fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("not JSON ({error}): {}{}", stdout(output), stderr(output)))
}
