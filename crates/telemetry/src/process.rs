//! This process: memory, processor time, threads and open files.

use std::fs;
use std::path::{Path, PathBuf};

use crate::probe::Probe;
use crate::read;
use crate::snapshot::ProcessSample;

/// Longer than `/proc/self/status`, most of which is masks of processors and memory nodes.
const STATUS: usize = 8192;
/// Longer than `/proc/self/stat`.
const STAT: usize = 1024;
/// Unit of processor times in `/proc`: `USER_HZ`, which Linux fixes at 100 on every architecture that we build for.
const TICKS_PER_SECOND: f64 = 100.0;
/// Position of user and system time after the command's name, which ends with the last parenthesis.
const TIMES: usize = 11;

/// The files of `/proc/self`.
#[derive(Debug)]
pub(crate) struct Process {
    status: Probe,
    stat: Probe,
    descriptors: PathBuf,
}

impl Process {
    pub(crate) fn open(root: &Path) -> Self {
        let process = root.join("proc/self");
        Self {
            status: Probe::open(process.join("status")),
            stat: Probe::open(process.join("stat")),
            descriptors: process.join("fd"),
        }
    }

    pub(crate) fn sample(&self) -> ProcessSample {
        let mut buffer = [0; STATUS];
        let status = self.status.text(&mut buffer).unwrap_or_default();
        ProcessSample {
            resident_bytes: read::kib_line(status, "VmRSS"),
            threads: threads(status),
            cpu_seconds: self.stat.text(&mut [0; STAT]).and_then(cpu_seconds),
            open_files: self.open_files(),
        }
    }

    /// Entries of the directory, without the descriptor that lists it.
    fn open_files(&self) -> Option<u64> {
        let listed = fs::read_dir(&self.descriptors).ok()?.count() as u64;
        listed.checked_sub(1)
    }
}

fn threads(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("Threads:"))?.trim().parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(TIMES);
    let mut ticks = || times.next()?.parse::<u64>().ok();
    Some((ticks()? as f64 + ticks()? as f64) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Tree;

    #[test]
    fn all_values_are_read() {
        let tree = Tree::new();
        tree.write("proc/self/status", "Name:\tindrik\nVmRSS:\t    1024 kB\nThreads:\t9\n");
        let stat = "1234 (a b) c) S 1 1 1 0 -1 4194304 500 0 0 0 250 50 0 0 20 0 9 0 100 0 256\n";
        tree.write("proc/self/stat", stat);
        for descriptor in 0..4 {
            tree.write(&format!("proc/self/fd/{descriptor}"), "");
        }
        let expected = ProcessSample {
            resident_bytes: Some(1 << 20),
            cpu_seconds: Some(3.0),
            threads: Some(9),
            open_files: Some(3),
        };
        assert_eq!(Process::open(&tree.path("")).sample(), expected);
    }

    #[test]
    fn invalid_files_are_none() {
        let tree = Tree::new();
        assert_eq!(Process::open(&tree.path("")).sample(), ProcessSample::default());
        tree.write("proc/self/status", b"\xff").write("proc/self/stat", "1 (x) S 1 1 1");
        assert_eq!(Process::open(&tree.path("")).sample(), ProcessSample::default());
    }

    #[test]
    fn this_process_is_alive() {
        let sample = Process::open(Path::new("/")).sample();
        assert!(sample.resident_bytes > Some(0) && sample.threads > Some(0) && sample.open_files > Some(2));
        assert!(sample.cpu_seconds >= Some(0.0));
    }
}
