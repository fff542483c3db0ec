//! Which barriers a sequence of commands needs, from what each one reads and writes.
//!
//! Every access is remembered until a barrier has ordered it before the stage that touches the same bytes next. A
//! command that finds an unordered conflict (read after write, write after read, write after write) asks for one
//! barrier, which orders everything so far before its stage; commands without conflicts run side by side.
//!
//! Ranges are whole views, and two commands may well write different parts of one. Who knows that they do says so by strands: the
//! accesses of one never conflict with those of another strand of the same fork.

use std::ops::Range;

use ash::vk;

use crate::shader::Access;

/// A set of pipeline stages that a program uses.
pub(crate) type Stages = vk::PipelineStageFlags2;

/// Shader dispatches.
pub(crate) const COMPUTE: Stages = Stages::COMPUTE_SHADER;
/// Copies and fills.
pub(crate) const TRANSFER: Stages = Stages::ALL_TRANSFER;
/// Reading the size of a dispatch from a buffer.
pub(crate) const INDIRECT: Stages = Stages::DRAW_INDIRECT;
/// Reading the word that says whether commands are skipped; only where the device can do that.
pub(crate) const CONDITION: Stages = Stages::CONDITIONAL_RENDERING_EXT;
/// Everything a program's commands do on any GPU.
pub(crate) const ALL: Stages = Stages::from_raw(COMPUTE.as_raw() | TRANSFER.as_raw() | INDIRECT.as_raw());

/// One access of a command.
#[derive(Clone, Debug)]
pub(crate) struct Touch {
    /// Identity of the block.
    pub block: usize,
    pub range: Range<u64>,
    pub access: Access,
    pub stage: Stages,
}

/// A line of commands that shares no byte with the other strands of its fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strand {
    /// Which fork of the program.
    pub fork: u32,
    pub number: u32,
}

#[derive(Debug)]
struct Pending {
    touch: Touch,
    strand: Option<Strand>,
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
    strand: Option<Strand>,
}

impl Hazards {
    /// The strand that the commands from here on belong to, if any.
    pub fn begin_strand(&mut self, strand: Option<Strand>) {
        self.strand = strand;
    }

    /// Notes a command with its accesses; returns the barrier that must come before it, if any.
    pub fn command(&mut self, touches: &[Touch]) -> Option<Barrier> {
        let mut conflict = false;
        let mut memory = false;
        for pending in self.pending.iter().filter(|pending| !apart(pending.strand, self.strand)) {
            let unordered = |touch: &&Touch| !pending.ordered_before.contains(touch.stage);
            for touch in touches.iter().filter(unordered).filter(|touch| overlaps(touch, &pending.touch)) {
                let wrote = pending.touch.access != Access::Read;
                if wrote || touch.access != Access::Read {
                    conflict = true;
                    memory |= wrote;
                }
            }
        }
        let stages = touches.iter().fold(Stages::empty(), |all, touch| all | touch.stage);
        let barrier = conflict.then(|| self.order_all_before(stages, memory));
        let new = touches.iter().map(|touch| Pending {
            touch: touch.clone(),
            strand: self.strand,
            ordered_before: Stages::empty(),
        });
        self.pending.extend(new);
        barrier
    }

    fn order_all_before(&mut self, stages: Stages, memory: bool) -> Barrier {
        let mut from = Stages::empty();
        for pending in &mut self.pending {
            if !pending.ordered_before.contains(stages) {
                from |= pending.touch.stage;
                // A barrier without a memory dependency orders reads only: a write is not yet visible.
                if memory || pending.touch.access == Access::Read {
                    pending.ordered_before |= stages;
                }
            }
        }
        self.pending.retain(|pending| pending.ordered_before != ALL | CONDITION);
        Barrier { from, to: stages, memory }
    }
}

/// Whether what two strands touch is known to be different, whatever the ranges say.
fn apart(a: Option<Strand>, b: Option<Strand>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a.fork == b.fork && a.number != b.number)
}

fn overlaps(a: &Touch, b: &Touch) -> bool {
    a.block == b.block && a.range.start < b.range.end && b.range.start < a.range.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use Access::{Read, ReadWrite, Write};

    fn touch(block: usize, range: Range<u64>, access: Access, stage: Stages) -> Touch {
        Touch { block, range, access, stage }
    }

    type Command<'a> = (Stages, &'a [(usize, Range<u64>, Access)]);

    fn run(commands: &[Command<'_>]) -> Vec<Option<Barrier>> {
        let mut hazards = Hazards::default();
        commands
            .iter()
            .map(|(stage, list)| {
                let touches: Vec<_> = list.iter().map(|(b, r, a)| touch(*b, r.clone(), *a, *stage)).collect();
                hazards.command(&touches)
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
    fn strands_are_ordered_within_and_not_among_each_other() {
        let mut hazards = Hazards::default();
        let mut command = |strand: Option<(u32, u32)>, range: Range<u64>, access| {
            hazards.begin_strand(strand.map(|(fork, number)| Strand { fork, number }));
            hazards.command(&[touch(0, range, access, COMPUTE)])
        };
        assert_eq!(command(None, 0..64, Write), None);
        // What was before the fork orders the first, and with the same barrier the second.
        assert_eq!(command(Some((1, 0)), 0..64, ReadWrite), MEMORY);
        assert_eq!(command(Some((1, 1)), 0..64, ReadWrite), None);
        assert_eq!(command(Some((1, 1)), 0..64, Read), MEMORY, "within a strand");
        // Both strands are before what follows, and before the strands of another fork.
        assert_eq!(command(Some((2, 0)), 0..64, Write), ORDER);
        assert_eq!(command(Some((2, 1)), 0..64, Write), None);
        assert_eq!(command(None, 0..64, Read), MEMORY);
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

    #[test]
    fn the_size_of_a_dispatch_is_read_at_a_stage_of_its_own() {
        let mut hazards = Hazards::default();
        assert_eq!(hazards.command(&[touch(0, 0..12, Write, COMPUTE)]), None);
        // The same command reads its size and, in the shader, writes something else.
        let sized = [touch(0, 0..12, Read, INDIRECT), touch(1, 0..64, Write, COMPUTE)];
        let expected = Some(Barrier { from: COMPUTE, to: COMPUTE | INDIRECT, memory: true });
        assert_eq!(hazards.command(&sized), expected);
        assert_eq!(hazards.command(&[touch(0, 0..12, Read, INDIRECT)]), None);
        assert_eq!(
            hazards.command(&[touch(0, 0..12, Write, COMPUTE)]),
            Some(Barrier { from: COMPUTE | INDIRECT, to: COMPUTE, memory: false })
        );
    }

    #[test]
    fn the_word_of_a_condition_is_read_at_a_stage_of_its_own() {
        let mut hazards = Hazards::default();
        assert_eq!(hazards.command(&[touch(0, 0..4, Write, COMPUTE)]), None);
        let expected = Some(Barrier { from: COMPUTE, to: CONDITION, memory: true });
        assert_eq!(hazards.command(&[touch(0, 0..4, Read, CONDITION)]), expected);
        // Whoever writes it again waits until it was read.
        let written = hazards.command(&[touch(0, 0..4, ReadWrite, COMPUTE)]);
        assert_eq!(written, Some(Barrier { from: COMPUTE | CONDITION, to: COMPUTE, memory: true }));
    }
}
