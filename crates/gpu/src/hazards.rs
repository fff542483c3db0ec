//! Hazard tracking: derives barriers from the buffers that each command reads and writes.
//!
//! Every access stays pending until a barrier has ordered it before the stage that next accesses the same
//! bytes. A command with an unordered conflict (read after write, write after read, write after write) gets
//! one barrier, which orders everything so far before its stages. Commands without conflicts may run
//! concurrently.
//!
//! Accesses are tracked per view, although two commands may write disjoint parts of one view. Callers that
//! guarantee this use branches: accesses of one branch never conflict with those of another branch of the
//! same fork.

use std::ops::Range;

use ash::vk;

use crate::access::Access;

/// A set of pipeline stages.
pub(crate) type Stages = vk::PipelineStageFlags2;

/// Shader dispatches.
pub(crate) const COMPUTE: Stages = Stages::COMPUTE_SHADER;
/// Copies and fills.
pub(crate) const TRANSFER: Stages = Stages::ALL_TRANSFER;
/// Reading the workgroup count of an indirect dispatch.
pub(crate) const INDIRECT: Stages = Stages::DRAW_INDIRECT;
/// Reading the predicate of conditional rendering; only on devices that support it.
pub(crate) const CONDITION: Stages = Stages::CONDITIONAL_RENDERING_EXT;
/// All stages that every device supports.
pub(crate) const ALL: Stages = Stages::from_raw(COMPUTE.as_raw() | TRANSFER.as_raw() | INDIRECT.as_raw());

/// One buffer access of a command.
#[derive(Clone)]
pub(crate) struct BufferAccess {
    /// Identity of the memory block.
    pub block: usize,
    pub range: Range<u64>,
    pub access: Access,
    pub stage: Stages,
}

/// A sequence of commands that shares no byte with the other branches of its fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Branch {
    /// Number of the fork within the program.
    pub fork: u32,
    /// Number of the branch within the fork.
    pub index: u32,
}

struct Pending {
    access: BufferAccess,
    branch: Option<Branch>,
    /// Stages that barriers have ordered after this access.
    ordered_before: Stages,
}

/// A barrier to record before a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Barrier {
    pub from: Stages,
    pub to: Stages,
    /// False for a pure execution dependency (write after read), which needs no cache flush.
    pub memory: bool,
}

/// The pending accesses of a program.
#[derive(Default)]
pub(crate) struct Hazards {
    pending: Vec<Pending>,
    branch: Option<Branch>,
}

impl Hazards {
    /// Sets the branch of the commands that follow.
    pub fn set_branch(&mut self, branch: Option<Branch>) {
        self.branch = branch;
    }

    /// Adds a command with its accesses; returns the barrier that must precede it, if any.
    pub fn add_command(&mut self, accesses: &[BufferAccess]) -> Option<Barrier> {
        let mut conflict = false;
        let mut memory = false;
        for pending in self.pending.iter().filter(|pending| !are_disjoint(pending.branch, self.branch)) {
            let unordered = |access: &&BufferAccess| !pending.ordered_before.contains(access.stage);
            let overlapping = |access: &&BufferAccess| overlaps(access, &pending.access);
            for access in accesses.iter().filter(unordered).filter(overlapping) {
                let wrote = pending.access.access != Access::Read;
                if wrote || access.access != Access::Read {
                    conflict = true;
                    memory |= wrote;
                }
            }
        }
        let stages = accesses.iter().fold(Stages::empty(), |all, access| all | access.stage);
        let barrier = conflict.then(|| self.order_all_before(stages, memory));
        let new = accesses.iter().map(|access| Pending {
            access: access.clone(),
            branch: self.branch,
            ordered_before: Stages::empty(),
        });
        self.pending.extend(new);
        barrier
    }

    fn order_all_before(&mut self, stages: Stages, memory: bool) -> Barrier {
        let mut from = Stages::empty();
        for pending in &mut self.pending {
            if !pending.ordered_before.contains(stages) {
                from |= pending.access.stage;
                // Without a memory dependency, only reads are ordered: a write is not yet visible.
                if memory || pending.access.access == Access::Read {
                    pending.ordered_before |= stages;
                }
            }
        }
        self.pending.retain(|pending| pending.ordered_before != ALL | CONDITION);
        Barrier { from, to: stages, memory }
    }
}

/// Whether two branches are declared disjoint.
fn are_disjoint(a: Option<Branch>, b: Option<Branch>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a.fork == b.fork && a.index != b.index)
}

fn overlaps(a: &BufferAccess, b: &BufferAccess) -> bool {
    a.block == b.block && a.range.start < b.range.end && b.range.start < a.range.end
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;
    use Access::{Read, ReadWrite, Write};

    fn access(block: usize, range: Range<u64>, access: Access, stage: Stages) -> BufferAccess {
        BufferAccess { block, range, access, stage }
    }

    type Command<'a> = (Stages, &'a [(usize, Range<u64>, Access)]);

    fn run(commands: &[Command<'_>]) -> Vec<Option<Barrier>> {
        let mut hazards = Hazards::default();
        commands
            .iter()
            .map(|(stage, list)| {
                let accesses: Vec<_> =
                    list.iter().map(|(b, r, a)| access(*b, r.clone(), *a, *stage)).collect();
                hazards.add_command(&accesses)
            })
            .collect()
    }

    /// For failed assertions.
    impl fmt::Debug for Barrier {
        fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
            write!(f, "{:#x} to {:#x}, memory: {}", self.from.as_raw(), self.to.as_raw(), self.memory)
        }
    }

    const MEMORY: Option<Barrier> = Some(Barrier { from: COMPUTE, to: COMPUTE, memory: true });
    const ORDER: Option<Barrier> = Some(Barrier { from: COMPUTE, to: COMPUTE, memory: false });

    #[test]
    fn independent_commands_need_no_barrier() {
        let got = run(&[
            (COMPUTE, &[(0, 0..64, Read), (1, 0..64, Write)]),
            (COMPUTE, &[(0, 0..64, Read), (1, 64..128, Write)]),
            (COMPUTE, &[(0, 0..64, Read), (2, 0..64, Write)]),
        ]);
        assert_eq!(got, [None, None, None]);
    }

    #[test]
    fn read_after_write_needs_one_memory_barrier_for_all_earlier_writes() {
        let got = run(&[
            (COMPUTE, &[(0, 0..64, Write)]),
            (COMPUTE, &[(1, 0..64, Write)]),
            (COMPUTE, &[(0, 32..40, Read), (2, 0..8, Write)]),
            (COMPUTE, &[(1, 0..4, Read), (3, 0..8, Write)]),
            (COMPUTE, &[(2, 0..8, Read)]),
        ]);
        assert_eq!(got, [None, None, MEMORY, None, MEMORY]);
    }

    #[test]
    fn write_after_read_needs_execution_order_only_and_leaves_writes_pending() {
        let got = run(&[
            (COMPUTE, &[(0, 0..64, Read), (1, 0..64, Write)]),
            (COMPUTE, &[(0, 0..64, Write)]),
            (COMPUTE, &[(1, 0..64, Read)]),
        ]);
        assert_eq!(got, [None, ORDER, MEMORY]);
    }

    #[test]
    fn writes_and_read_writes_of_the_same_bytes_need_memory_barriers() {
        let got = run(&[
            (COMPUTE, &[(0, 0..64, Write)]),
            (COMPUTE, &[(0, 0..64, Write)]),
            (COMPUTE, &[(0, 0..64, ReadWrite)]),
            (COMPUTE, &[(0, 60..61, ReadWrite)]),
        ]);
        assert_eq!(got, [None, MEMORY, MEMORY, MEMORY]);
    }

    #[test]
    fn adjacent_ranges_do_not_conflict() {
        let got = run(&[(COMPUTE, &[(0, 0..64, Write)]), (COMPUTE, &[(0, 64..128, Read)])]);
        assert_eq!(got, [None, None]);
    }

    #[test]
    fn branches_are_ordered_internally_but_not_against_each_other() {
        let mut hazards = Hazards::default();
        let mut command = |branch: Option<(u32, u32)>, range: Range<u64>, kind| {
            hazards.set_branch(branch.map(|(fork, index)| Branch { fork, index }));
            hazards.add_command(&[access(0, range, kind, COMPUTE)])
        };
        assert_eq!(command(None, 0..64, Write), None);
        // The write before the fork is ordered before the first branch; the same barrier covers the second.
        assert_eq!(command(Some((1, 0)), 0..64, ReadWrite), MEMORY);
        assert_eq!(command(Some((1, 1)), 0..64, ReadWrite), None);
        assert_eq!(command(Some((1, 1)), 0..64, Read), MEMORY, "within a branch");
        // Both branches are ordered before later commands, including the branches of another fork.
        assert_eq!(command(Some((2, 0)), 0..64, Write), ORDER);
        assert_eq!(command(Some((2, 1)), 0..64, Write), None);
        assert_eq!(command(None, 0..64, Read), MEMORY);
    }

    #[test]
    fn each_stage_is_ordered_separately() {
        let got = run(&[
            (COMPUTE, &[(0, 0..64, Write)]),
            (COMPUTE, &[(0, 0..64, Read)]),
            (TRANSFER, &[(0, 0..64, Read), (1, 0..64, Write)]),
            (COMPUTE, &[(1, 0..64, Read)]),
            (COMPUTE, &[(0, 0..64, Read)]),
        ]);
        let to_transfer = Some(Barrier { from: COMPUTE, to: TRANSFER, memory: true });
        let to_compute = Some(Barrier { from: COMPUTE | TRANSFER, to: COMPUTE, memory: true });
        assert_eq!(got, [None, MEMORY, to_transfer, to_compute, None]);
    }

    #[test]
    fn indirect_workgroup_counts_are_read_at_the_indirect_stage() {
        let mut hazards = Hazards::default();
        assert_eq!(hazards.add_command(&[access(0, 0..12, Write, COMPUTE)]), None);
        // One command reads its workgroup count and, in the shader, writes another buffer.
        let indirect = [access(0, 0..12, Read, INDIRECT), access(1, 0..64, Write, COMPUTE)];
        let expected = Some(Barrier { from: COMPUTE, to: COMPUTE | INDIRECT, memory: true });
        assert_eq!(hazards.add_command(&indirect), expected);
        assert_eq!(hazards.add_command(&[access(0, 0..12, Read, INDIRECT)]), None);
        assert_eq!(
            hazards.add_command(&[access(0, 0..12, Write, COMPUTE)]),
            Some(Barrier { from: COMPUTE | INDIRECT, to: COMPUTE, memory: false })
        );
    }

    #[test]
    fn predicates_are_read_at_the_conditional_rendering_stage() {
        let mut hazards = Hazards::default();
        assert_eq!(hazards.add_command(&[access(0, 0..4, Write, COMPUTE)]), None);
        let expected = Some(Barrier { from: COMPUTE, to: CONDITION, memory: true });
        assert_eq!(hazards.add_command(&[access(0, 0..4, Read, CONDITION)]), expected);
        // A later write waits until the predicate was read.
        let written = hazards.add_command(&[access(0, 0..4, ReadWrite, COMPUTE)]);
        assert_eq!(written, Some(Barrier { from: COMPUTE | CONDITION, to: COMPUTE, memory: true }));
    }
}
