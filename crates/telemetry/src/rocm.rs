//! GPU memory that processes hold through ROCm.
//!
//! Vulkan's budget shrinks with it, but does not tell who holds it. A Python interpreter that was left running is the
//! usual reason for a model that fitted yesterday.

use std::path::Path;

use serde::Serialize;

use crate::read;

/// A process with memory of an AMD GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RocmProcess {
    /// Its id.
    pub pid: u32,
    /// Name of its program.
    pub name: Option<String>,
    /// Bytes on all GPUs.
    pub bytes: u64,
}

/// Every process that uses ROCm, ordered by id: `/sys/class/kfd/kfd/proc/PID/vram_GPU` hold bytes.
pub(crate) fn rocm_processes(root: &Path) -> Vec<RocmProcess> {
    let process = |(pid, directory): (u32, std::path::PathBuf)| {
        let bytes = read::numbered(directory, "vram_").into_iter().filter_map(|(_, file)| read::number(file));
        RocmProcess {
            pid,
            name: read::text(root.join("proc").join(pid.to_string()).join("comm")),
            bytes: bytes.fold(0, u64::saturating_add),
        }
    };
    read::numbered(root.join("sys/class/kfd/kfd/proc"), "").into_iter().map(process).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{GIB, Tree};

    #[test]
    fn memory_is_summed_over_gpus() {
        let tree = Tree::new();
        assert_eq!(tree.system().rocm_processes(), []);
        let process = "sys/class/kfd/kfd/proc/4711";
        tree.write(&format!("{process}/vram_1002"), format!("{}\n", 8 * GIB));
        tree.write(&format!("{process}/vram_51234"), format!("{GIB}\n"));
        tree.write(&format!("{process}/sdma_1002"), "99\n").write("proc/4711/comm", "python3\n");
        tree.write("sys/class/kfd/kfd/proc/12/vram_1002", "garbage\n");
        let expected = [
            RocmProcess { pid: 12, name: None, bytes: 0 },
            RocmProcess { pid: 4711, name: Some("python3".into()), bytes: 9 * GIB },
        ];
        assert_eq!(tree.system().rocm_processes(), expected);
    }
}
