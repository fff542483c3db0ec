//! Small readers of kernel files. Unexpected content becomes `None`.

use std::fs;
use std::path::{Path, PathBuf};

/// The contents of a file, without the newline at the end of sysfs values.
pub(crate) fn text(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// A file that holds one decimal number.
pub(crate) fn number(path: impl AsRef<Path>) -> Option<u64> {
    text(path)?.parse().ok()
}

/// A file that holds one number written like `0x15bf`.
pub(crate) fn hex(path: impl AsRef<Path>) -> Option<u32> {
    u32::from_str_radix(text(path)?.strip_prefix("0x")?, 16).ok()
}

/// A PCI vendor or device id.
pub(crate) fn pci_id(path: impl AsRef<Path>) -> Option<u16> {
    u16::try_from(hex(path)?).ok()
}

/// Bytes of a `Key:   123 kB` line, as in `/proc/meminfo` and `/proc/PID/status`.
pub(crate) fn kib_line(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let mut words = value.split_whitespace();
    let kib: u64 = words.next()?.parse().ok()?;
    (words.next() == Some("kB")).then(|| kib.checked_mul(1024)).flatten()
}

/// The entries of `dir` named `prefix` and a number, sorted by the number.
///
/// The strict form excludes the connectors of `card0` (`card0-DP-1`); the numeric order puts `card10` after
/// `card2`.
pub(crate) fn numbered(dir: impl AsRef<Path>, prefix: &str) -> Vec<(u32, PathBuf)> {
    let mut found: Vec<(u32, PathBuf)> = entries(dir)
        .into_iter()
        .filter_map(|path| {
            let digits = path.file_name()?.to_str()?.strip_prefix(prefix)?;
            digits.bytes().all(|byte| byte.is_ascii_digit()).then_some(())?;
            Some((digits.parse().ok()?, path))
        })
        .collect();
    found.sort();
    found
}

/// The paths in `dir`, sorted, since the kernel lists them in arbitrary order.
pub(crate) fn entries(dir: impl AsRef<Path>) -> Vec<PathBuf> {
    let Ok(listing) = fs::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = listing.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// The file name of a symbolic link's target: a device's `driver` link ends in the driver's name.
pub(crate) fn link_name(link: impl AsRef<Path>) -> Option<String> {
    let link = link.as_ref();
    fs::symlink_metadata(link).ok()?.is_symlink().then_some(())?;
    Some(fs::canonicalize(link).ok()?.file_name()?.to_str()?.to_owned())
}

/// The PCI address of a device directory: the name of the directory that its link leads to, or, where the
/// tree is not laid out by address (a container that mounts single directories), the slot in
/// `uevent`.
pub(crate) fn pci_address(device: impl AsRef<Path>) -> Option<String> {
    let device = device.as_ref();
    link_name(device).filter(|name| is_pci_address(name)).or_else(|| {
        let uevent = text(device.join("uevent"))?;
        let slot = uevent.lines().find_map(|line| line.strip_prefix("PCI_SLOT_NAME="))?;
        is_pci_address(slot).then(|| slot.to_owned())
    })
}

/// Whether `name` has the form `dddd:bb:dd.f`; the domain has more than four digits behind Intel's VMD.
fn is_pci_address(name: &str) -> bool {
    let hex = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts: Vec<&str> = name.split([':', '.']).collect();
    let [domain, bus, device, function] = parts[..] else { return false };
    name.rfind(':') < name.find('.')
        && domain.len() >= 4
        && (bus.len(), device.len(), function.len()) == (2, 2, 1)
        && [domain, bus, device, function].into_iter().all(hex)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Tree;

    #[test]
    fn numbered_sorts_by_number_and_omits_connectors() {
        let tree = Tree::new();
        for name in ["card10", "card2", "card2-DP-1", "card", "card+3", "renderD128", "card99999999999"] {
            tree.write(name, "");
        }
        let found: Vec<u32> = numbered(tree.path(""), "card").into_iter().map(|(number, _)| number).collect();
        assert_eq!(found, [2, 10]);
    }

    #[test]
    fn sizes_need_a_unit_and_the_exact_key() {
        let text = "MemTotalExtra: 1 kB\nMemTotal:  20 kB\nPages: 5\n\
                    Huge: 99999999999999999999 kB\nMax: 18446744073709551615 kB";
        assert_eq!(kib_line(text, "MemTotal"), Some(20 * 1024));
        assert_eq!(kib_line(text, "Pages"), None);
        assert_eq!(kib_line(text, "Huge"), None);
        assert_eq!(kib_line(text, "Max"), None);
        assert_eq!(kib_line(text, "Mem"), None);
    }

    #[test]
    fn pci_addresses_are_recognised() {
        assert!(is_pci_address("0000:c5:00.0") && is_pci_address("10000:e1:00.1"));
        for name in ["", "device", "c5:00.0", "0000.c5:00:0", "0000:c5:00.0.1", "0000:g5:00.0", "0000:c5:00."]
        {
            assert!(!is_pci_address(name), "{name}");
        }
    }

    #[test]
    fn the_slot_comes_from_uevent_if_the_link_has_no_address() {
        let tree = Tree::new();
        tree.write("device/uevent", "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:03:00.0\n");
        assert_eq!(pci_address(tree.path("device")).as_deref(), Some("0000:03:00.0"));
        tree.write("device/uevent", "PCI_SLOT_NAME=nonsense\n");
        assert_eq!(pci_address(tree.path("device")), None);
    }
}
