//! Device nodes: whether this process may open them, and if not, how to get access.
//!
//! A Vulkan driver that cannot open its render node does not fail: it reports no device, so that Mesa's CPU
//! driver is used and the machine looks slow instead of misconfigured. So this module opens the node the way
//! a driver does.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::read;

/// Read and write permission of a node's group.
const GROUP_READ_WRITE: u32 = 0o060;
/// Joining root's group is never suggested: a node in it lacks its udev rule, which must be fixed instead.
const ROOT_GROUP: u32 = 0;

/// Result of opening a device node for reading and writing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Opened.
    ReadWrite,
    /// Permission denied.
    Denied,
    /// Missing; in a container, it was not passed in.
    Missing,
    /// Another error.
    Failed(String),
}

impl Access {
    /// Opens `path` and closes it again.
    pub(crate) fn probe(path: &Path) -> Self {
        Self::from_result(OpenOptions::new().read(true).write(true).open(path).map(drop))
    }

    fn from_result(opened: io::Result<()>) -> Self {
        match opened {
            Ok(()) => Self::ReadWrite,
            Err(error) => match error.kind() {
                io::ErrorKind::PermissionDenied => Self::Denied,
                io::ErrorKind::NotFound => Self::Missing,
                _ => Self::Failed(error.to_string()),
            },
        }
    }
}

/// A device node and its permissions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceNode {
    /// Path of the node, which may not exist.
    pub path: PathBuf,
    /// Whether this process can use it.
    pub access: Access,
    /// Id of the group that owns it.
    pub gid: Option<u32>,
    /// Name of that group; `None` if `/etc/group` does not list it, as in containers.
    pub group: Option<String>,
    /// Whether members of that group may read and write it.
    pub group_may_use: bool,
}

impl DeviceNode {
    pub(crate) fn at(root: &Path, path: PathBuf) -> Self {
        let access = Access::probe(&path);
        let owner = fs::metadata(&path).ok();
        let gid = owner.as_ref().map(MetadataExt::gid);
        Self {
            access,
            gid,
            group: gid.and_then(|gid| group_name(root, gid)),
            group_may_use: owner.is_some_and(|owner| owner.mode() & GROUP_READ_WRITE == GROUP_READ_WRITE),
            path,
        }
    }

    /// The command that grants the user access from the next login. `None` if access works, or if joining the
    /// node's group would not help.
    pub fn join_group_command(&self) -> Option<String> {
        let helps = self.access == Access::Denied && self.group_may_use && self.gid != Some(ROOT_GROUP);
        let group = self.group.as_deref().filter(|_| helps)?;
        Some(format!("sudo usermod -aG {group} $USER"))
    }
}

/// A GPU's render node, which allows compute without display access.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RenderNode {
    /// Name, for instance `renderD128`.
    pub name: String,
    /// PCI address of its GPU.
    pub pci: Option<String>,
    /// The node in `/dev/dri`.
    pub node: DeviceNode,
}

/// Render nodes from `/dev/dri` and from sysfs: a container often has the second without the first, or, where
/// sysfs is masked, the first without the second.
pub(crate) fn render_nodes(root: &Path) -> Vec<RenderNode> {
    let mut numbers: Vec<u32> = ["dev/dri", "sys/class/drm"]
        .into_iter()
        .flat_map(|dir| read::numbered(root.join(dir), "renderD"))
        .map(|(number, _)| number)
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    let render_node = |number| {
        let name = format!("renderD{number}");
        let pci = read::pci_address(root.join("sys/class/drm").join(&name).join("device"));
        let node = DeviceNode::at(root, root.join("dev/dri").join(&name));
        RenderNode { name, pci, node }
    };
    numbers.into_iter().map(render_node).collect()
}

/// A group's name, from lines like `render:x:105:alice`.
fn group_name(root: &Path, gid: u32) -> Option<String> {
    let groups = read::text(root.join("etc/group"))?;
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)?.parse() == Ok(gid)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Tree;
    use std::os::unix::fs::PermissionsExt;

    fn denied_node() -> DeviceNode {
        DeviceNode {
            path: "/dev/dri/renderD128".into(),
            access: Access::Denied,
            gid: Some(105),
            group: Some("render".into()),
            group_may_use: true,
        }
    }

    #[test]
    fn errors_of_opening_a_node_are_distinguished() {
        // Root can open everything, so the permission error is constructed; the other results come from the
        // file system below.
        assert_eq!(Access::from_result(Err(io::ErrorKind::PermissionDenied.into())), Access::Denied);
        let tree = Tree::new();
        tree.write("file", "kept").write("directory/file", "");
        assert_eq!(Access::probe(&tree.path("file")), Access::ReadWrite);
        assert_eq!(fs::read_to_string(tree.path("file")).unwrap(), "kept");
        assert_eq!(Access::probe(&tree.path("absent")), Access::Missing);
        assert!(
            matches!(Access::probe(&tree.path("directory")), Access::Failed(reason) if !reason.is_empty())
        );
    }

    #[test]
    fn a_node_without_permissions_is_denied_unless_we_are_root() {
        let tree = Tree::new();
        tree.write("dev/dri/renderD128", "");
        let path = tree.path("dev/dri/renderD128");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        let opens = fs::read(&path).is_ok();
        let node = &tree.system().render_nodes()[0].node;
        assert_eq!(node.access, if opens { Access::ReadWrite } else { Access::Denied });
        assert!(!node.group_may_use && node.join_group_command().is_none());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
        assert!(tree.system().render_nodes()[0].node.group_may_use);
    }

    #[test]
    fn joining_a_group_is_suggested_only_if_it_helps() {
        assert_eq!(denied_node().join_group_command().unwrap(), "sudo usermod -aG render $USER");
        for useless in [
            DeviceNode { access: Access::ReadWrite, ..denied_node() },
            DeviceNode { access: Access::Missing, ..denied_node() },
            DeviceNode { group_may_use: false, ..denied_node() },
            DeviceNode { group: None, ..denied_node() },
            DeviceNode { gid: Some(0), group: Some("root".into()), ..denied_node() },
        ] {
            assert_eq!(useless.join_group_command(), None, "{useless:?}");
        }
    }

    #[test]
    fn the_owning_group_is_named_from_etc_group() {
        let tree = Tree::new();
        tree.write("dev/dri/renderD128", "");
        let gid = fs::metadata(tree.path("dev/dri/renderD128")).unwrap().gid();
        tree.write(
            "etc/group",
            format!("garbage\n:x:{gid}:\nshort:x\nvideo:x:{}:\nours:x:{gid}:alice\n", gid + 1),
        );
        let node = &tree.system().render_nodes()[0].node;
        assert_eq!((node.gid, node.group.as_deref()), (Some(gid), Some("ours")));
    }

    #[test]
    fn a_gpu_without_a_node_is_listed() {
        let tree = Tree::new();
        tree.add_780m().write("dev/dri/renderD200", "").write("dev/dri/card0", "");
        let nodes = tree.system().render_nodes();
        let seen: Vec<_> =
            nodes.iter().map(|it| (it.name.as_str(), it.pci.as_deref(), &it.node.access)).collect();
        let expected = [
            ("renderD128", Some("0000:c5:00.0"), &Access::Missing),
            ("renderD200", None, &Access::ReadWrite),
        ];
        assert_eq!(seen, expected);
        assert_eq!(nodes[0].node.gid, None);
        tree.write("dev/dri/renderD128", "");
        let nodes = tree.system().render_nodes();
        assert_eq!((nodes.len(), &nodes[0].node.access), (2, &Access::ReadWrite));
    }
}
