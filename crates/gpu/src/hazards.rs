//! Which barriers a sequence of commands needs, from what each one reads and writes.
//!
//! Every access is remembered until a barrier has ordered it before the stage that touches the same bytes next. A
//! command that finds an unordered conflict (read after write, write after read, write after write) asks for one
//! barrier, which orders everything so far before its stage; commands without conflicts run side by side.

use std::ops::Range;

use ash::vk;

use crate::shader::Access;

/// A set of pipeline stages that a program uses.
pub(crate) type Stages = vk::PipelineStageFlags2;

/// Shader dispatches.
pub(crate) const COMPUTE: Stages = Stages::COMPUTE_SHADER;
/// Copies and fills.
pub(crate) const TRANSFER: Stages = Stages::ALL_TRANSFER;

/// One access of a command.
#[derive(Clone, Debug)]
pub(crate) struct Touch {
    /// Identity of the block.
    pub block: usize,
    pub range: Range<u64>,
    pub access: Access,
}

#[derive(Debug)]
struct Pending {
    touch: Touch,
    stage: Stages,
    /// Stages that a barrier has ordered after this access.
    ordered_before: Stages,
}

/// A barrier to record before a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Barrier {
    pub from: Stages,
    pub to: Stages,
    /// False when only the order matters (write after read): no cache needs flushing.
    pub memory: bool,
}

/// The accesses of a program so far.
#[derive(Debug, Default)]
pub(crate) struct Hazards {
    pending: Vec<Pending>,
}

impl Hazards {
    /// Notes a command of `stage` with its accesses; returns the barrier that must come before it, if any.
    pub fn command(&mut self, stage: Stages, touches: &[Touch]) -> Option<Barrier> {
        let mut conflict = false;
        let mut memory = false;
        for pending in &self.pending {
            if pending.ordered_before.contains(stage) {
                continue;
            }
            for touch in touches.iter().filter(|touch| overlaps(touch, &pending.touch)) {
                let wrote = pending.touch.access != Access::Read;
                if wrote || touch.access != Access::Read {
                    conflict = true;
                    memory |= wrote;
                }
            }
        }
        let barrier = conflict.then(|| self.order_all_before(stage, memory));
        self.pending.extend(touches.iter().map(|touch| Pending {
            touch: touch.clone(),
            stage,
            ordered_before: Stages::empty(),
        }));
        barrier
    }

    fn order_all_before(&mut self, stage: Stages, memory: bool) -> Barrier {
        let mut from = Stages::empty();
        for pending in &mut self.pending {
            if !pending.ordered_before.contains(stage) {
                from |= pending.stage;
                // A barrier without a memory dependency orders reads only: a write is not yet visible.
                if memory || pending.touch.access == Access::Read {
                    pending.ordered_before |= stage;
                }
            }
        }
        self.pending.retain(|pending| pending.ordered_before != COMPUTE | TRANSFER);
        Barrier { from, to: stage, memory }
    }
}

fn overlaps(a: &Touch, b: &Touch) -> bool {
    a.block == b.block && a.range.start < b.range.end && b.range.start < a.range.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use Access::{Read, ReadWrite, Write};

    fn touch(block: usize, range: Range<u64>, access: Access) -> Touch {
        Touch { block, range, access }
    }

    type Command<'a> = (Stages, &'a [(usize, Range<u64>, Access)]);

    fn run(commands: &[Command<'_>]) -> Vec<Option<Barrier>> {
        let mut hazards = Hazards::default();
        commands
            .iter()
            .map(|(stage, list)| {
                let touches: Vec<_> = list.iter().map(|(b, r, a)| touch(*b, r.clone(), *a)).collect();
                hazards.command(*stage, &touches)
            })
            .collect()
    }

    const MEMORY: Option<Barrier> = Some(Barrier { from: COMPUTE, to: COMPUTE, memory: true });
    const ORDER: Option<Barrier> = Some(Barrier { from: COMPUTE, to: COMPUTE, memory: false });

    #[test]
    fn independent_commands_run_side_by_side() {
        let got = run(&[
            (COMPUTE, &[(0, 0..64, Read), (1, 0..64, Write)]),
            (COMPUTE, &[(0, 0..64, Read), (1, 64..128, Write)]),
            (COMPUTE, &[(0, 0..64, Read), (2, 0..64, Write)]),
        ]);
        assert_eq!(got, [None, None, None]);
    }

    #[test]
    fn read_after_write_needs_memory_and_one_barrier_serves_all() {
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
    fn write_after_read_needs_order_only_and_leaves_writes_unordered() {
        let got = run(&[
            (COMPUTE, &[(0, 0..64, Read), (1, 0..64, Write)]),
            (COMPUTE, &[(0, 0..64, Write)]),
            (COMPUTE, &[(1, 0..64, Read)]),
        ]);
        assert_eq!(got, [None, ORDER, MEMORY]);
    }

    #[test]
    fn write_after_write_and_read_write() {
        let got = run(&[
            (COMPUTE, &[(0, 0..64, Write)]),
            (COMPUTE, &[(0, 0..64, Write)]),
            (COMPUTE, &[(0, 0..64, ReadWrite)]),
            (COMPUTE, &[(0, 60..61, ReadWrite)]),
        ]);
        assert_eq!(got, [None, MEMORY, MEMORY, MEMORY]);
    }

    #[test]
    fn touching_ranges_do_not_conflict() {
        let got = run(&[(COMPUTE, &[(0, 0..64, Write)]), (COMPUTE, &[(0, 64..128, Read)])]);
        assert_eq!(got, [None, None]);
    }

    #[test]
    fn each_stage_is_ordered_for_itself() {
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
}
