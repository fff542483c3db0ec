//! The real binary, run as a user would.

#[allow(dead_code, reason = "not every test binary serves, or all of it")]
pub mod served;

use std::process::{Command, Output};

/// The binary on Mesa's CPU driver, away from the user's own settings and caches.
#[allow(dead_code, reason = "a test of a script does not run it")]
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
    ] {
        command.env_remove(name);
    }
    command.env("INDRIK_CACHE_DIR", std::env::temp_dir().join("indrik-test-cache"));
    command.env("RUST_BACKTRACE", "1");
    command
}

/// What it printed.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What it complained about.
#[allow(dead_code, reason = "not every test binary looks at complaints")]
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What it printed, as JSON.
#[allow(dead_code, reason = "not every test binary reads JSON")]
pub fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("not JSON ({error}): {}{}", stdout(output), stderr(output)))
}
