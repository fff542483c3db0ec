//! The kernel and its distribution.

use std::path::Path;

use serde::Serialize;

use crate::read;

/// Parameters about memory and GPUs. Others are not read: a command line can name disks and hold keys.
const PREFIXES: [&str; 10] =
    ["amdgpu.", "ttm.", "amdttm.", "amd_iommu", "iommu", "nvidia", "mem=", "hugepage", "pci=", "amd_pstate"];

/// The running kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Kernel {
    /// For instance `6.17.0-5-generic`.
    pub release: Option<String>,
    /// The parameters of its command line that concern memory and GPUs.
    pub parameters: Vec<String>,
    /// Name of the distribution, for instance `Ubuntu 25.10`.
    pub distribution: Option<String>,
}

impl Kernel {
    /// The parameters with one of these names.
    pub fn parameters_named<'a>(&'a self, names: &'a [&str]) -> impl Iterator<Item = &'a str> {
        let is_named = |parameter: &&str| names.contains(&parameter.split('=').next().unwrap_or_default());
        self.parameters.iter().map(String::as_str).filter(is_named)
    }
}

pub(crate) fn kernel(root: &Path) -> Kernel {
    let command_line = read::text(root.join("proc/cmdline")).unwrap_or_default();
    let is_relevant = |word: &&str| PREFIXES.iter().any(|prefix| word.starts_with(prefix));
    Kernel {
        release: read::text(root.join("proc/sys/kernel/osrelease")).filter(|release| !release.is_empty()),
        parameters: command_line.split_whitespace().filter(is_relevant).map(str::to_owned).collect(),
        distribution: read::text(root.join("etc/os-release")).as_deref().and_then(pretty_name),
    }
}

/// The name in a line like `PRETTY_NAME="Ubuntu 25.10"`.
fn pretty_name(os_release: &str) -> Option<String> {
    let value = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    let name = value.trim_matches(['"', '\'']);
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Tree;

    #[test]
    fn only_parameters_of_memory_and_gpus_are_kept() {
        let tree = Tree::new();
        assert_eq!(tree.system().kernel(), Kernel::default());
        tree.write(
            "proc/cmdline",
            "root=UUID=1 cryptkey=secret amdgpu.gttsize=4096 quiet iommu=pt mem=16G token=abc\n",
        );
        tree.write("proc/sys/kernel/osrelease", "6.17.0-5-generic\n");
        tree.write("etc/os-release", "NAME=x\nPRETTY_NAME=\"Ubuntu 25.10\"\n");
        let kernel = tree.system().kernel();
        assert_eq!(kernel.parameters, ["amdgpu.gttsize=4096", "iommu=pt", "mem=16G"]);
        assert_eq!(kernel.release.as_deref(), Some("6.17.0-5-generic"));
        assert_eq!(kernel.distribution.as_deref(), Some("Ubuntu 25.10"));
        let named: Vec<&str> = kernel.parameters_named(&["mem", "amdgpu.gtt"]).collect();
        assert_eq!(named, ["mem=16G"]);
    }
}
