//! Errors of the machine or the arguments: one line with the cause and the fix, exit code 1 (2 for wrong
//! usage), no panic, no backtrace.

use std::process::{Command, Stdio};

use crate::common::{indrik, stderr, stdout};

/// Runs a command that must fail; returns its error message, which must be one line.
fn error_line(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}{}", stdout(&output));
    assert!(!text.contains("panicked") && !text.contains("backtrace"), "{text}");
    assert_eq!(text.trim_end().lines().count(), 1, "more than one line: {text}");
    assert!(text.starts_with("indrik: "), "{text}");
    text
}

#[test]
fn a_missing_vulkan_loader_is_reported() {
    // An invalid library comes first in the search path.
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("libvulkan.so.1"), b"").unwrap();
    for arguments in [&["devices"][..], &["bench", "--bandwidth"], &["kernels"]] {
        let text = error_line(indrik(arguments).env("LD_LIBRARY_PATH", dir.path()));
        assert!(text.contains("no Vulkan loader") && text.contains("libvulkan1"), "{text}");
    }
    let output = indrik(&["doctor"]).env("LD_LIBRARY_PATH", dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stdout(&output).contains("FAIL  Vulkan") && stdout(&output).contains("libvulkan1"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn a_missing_driver_is_reported() {
    let nothing = "/nonexistent/driver.json";
    let text =
        error_line(indrik(&["devices"]).env("VK_DRIVER_FILES", nothing).env("VK_ICD_FILENAMES", nothing));
    assert!(text.contains("no Vulkan driver found") && text.contains("mesa-vulkan-drivers"), "{text}");
}

#[test]
fn an_unknown_device_is_reported_with_the_list_of_devices() {
    for command in [&["doctor", "--device", "voodoo2"][..], &["bench", "--bandwidth", "--device", "voodoo2"]]
    {
        let output = indrik(command).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = stdout(&output) + &stderr(&output);
        assert!(text.contains("no Vulkan device matches 'voodoo2'") && text.contains("0: "), "{text}");
        assert!(!text.contains("panicked"), "{text}");
    }
    let text = error_line(indrik(&["bench", "--bandwidth"]).env("INDRIK_DEVICE", "99"));
    assert!(text.contains("'99'"), "{text}");
}

#[test]
fn a_missing_device_feature_is_reported() {
    let fault = "no-feature=bufferDeviceAddress";
    let text = error_line(indrik(&["bench", "--bandwidth"]).env("INDRIK_FAULT", fault));
    assert!(text.contains("it lacks bufferDeviceAddress") && text.contains("update its driver"), "{text}");
    let output = indrik(&["devices"]).env("INDRIK_FAULT", fault).output().unwrap();
    assert!(stdout(&output).contains("unusable") && stdout(&output).contains("bufferDeviceAddress"));
}

#[test]
fn too_little_device_memory_is_reported() {
    let text = error_line(&mut indrik(&["bench", "--bandwidth", "--size", "900T"]));
    assert!(
        text.contains("out of GPU memory") && text.contains("are free") && text.contains("smaller"),
        "{text}"
    );
    let text = error_line(indrik(&["bench", "--gemv", "43008x5376"]).env("INDRIK_FAULT", "heap=64MiB"));
    assert!(text.contains("out of GPU memory"), "{text}");
}

#[test]
fn device_loss_and_failed_allocations_are_reported() {
    let text =
        error_line(indrik(&["bench", "--bandwidth", "--size", "1M"]).env("INDRIK_FAULT", "device-lost@2"));
    assert!(text.contains("the device was lost") && text.contains("dmesg"), "{text}");
    let text =
        error_line(indrik(&["bench", "--bandwidth", "--size", "1M"]).env("INDRIK_FAULT", "allocation@1"));
    assert!(text.contains("out of GPU memory"), "{text}");
    let text = error_line(indrik(&["devices"]).env("INDRIK_FAULT", "nonsense"));
    assert!(text.contains("INDRIK_FAULT=nonsense"), "{text}");
}

#[test]
fn wrong_usage_exits_with_2() {
    for arguments in [
        &[][..],
        &["no-such-command"],
        &["bench"],
        &["bench", "--bandwidth", "--size", "much"],
        &["bench", "--bandwidth", "--gemv", "16x32"],
        &["bench", "--gemv", "16x33"],
        &["bench", "--gemv", "4294967295x4294967264"],
        &["bench", "--gemv", "16x32", "-b", "0"],
        &["bench", "--gemv", "16x32", "-b", "4097"],
        &["bench", "--gemv", "16x32", "--quant", "int3"],
        &["bench", "--bandwidth", "--quant", "int8"],
        &["doctor", "--validation"],
        &["chat", "-m", "any", "-p", ""],
        &["chat", "-m", "any", "-p", " \n"],
    ] {
        let output = indrik(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn a_closed_output_pipe_is_not_an_error() {
    let mut child =
        indrik(&["devices", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(stderr(&output), "");
    assert_eq!(output.status.code(), Some(0));
}
