//! Buffer descriptors: what a DMA channel moves, in which order, and which locks guard it.
//!
//! Three layouts exist, one per kind of tile. Steps are stored less one; a wrap of zero means that a dimension takes
//! all that is left. All sizes and steps are in words of 32 bits.

use crate::tile::TileKind;

/// One dimension: `wrap` elements at a distance of `step` words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dimension {
    pub(super) wrap: u64,
    pub(super) step: u64,
}

/// The lock that a descriptor waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Acquire {
    /// Number of the lock, which for memory tiles includes the neighbours' locks.
    pub(super) id: usize,
    pub(super) condition: Condition,
}

/// When a lock is acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    /// When it has at least this much, which is taken.
    AtLeast(i32),
    /// When it has exactly this much. Nothing is taken: AMD's streams let several channels wait for the same value,
    /// and one channel several times.
    Exactly(i32),
}

impl Condition {
    /// The condition that a signed number encodes.
    pub(super) fn of(amount: i32) -> Self {
        if amount < 0 { Self::AtLeast(-amount) } else { Self::Exactly(amount) }
    }

    /// Takes what it takes from the lock if it holds; whether it does.
    pub(super) fn take(self, lock: &mut i32) -> bool {
        match self {
            Self::AtLeast(amount) if *lock >= amount => {
                *lock -= amount;
                true
            }
            Self::AtLeast(_) => false,
            Self::Exactly(amount) => *lock == amount,
        }
    }
}

/// What a descriptor adds to a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Release {
    /// Number of the lock, as above.
    pub(super) id: usize,
    pub(super) amount: i32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// Address in bytes: of the host's memory for shim tiles, of tile memory for the others.
    pub(super) base: u64,
    /// Number of words.
    pub(super) length: u64,
    pub(super) dimensions: [Dimension; 4],
    /// Distance in words between executions, and their number before it starts over.
    pub(super) iteration: Dimension,
    pub(super) iteration_current: u64,
    pub(super) next: Option<usize>,
    pub(super) acquire: Option<Acquire>,
    pub(super) release: Option<Release>,
}

fn bits(word: u32, from: u32, count: u32) -> u32 {
    word >> from & ((1 << count) - 1)
}

/// The signed value of seven bits.
fn signed7(value: u32) -> i32 {
    if value & 0x40 == 0 { value as i32 } else { value as i32 - 0x80 }
}

fn dimension(wrap: u32, step: u32) -> Dimension {
    Dimension { wrap: u64::from(wrap), step: u64::from(step) + 1 }
}

const ONCE: Dimension = Dimension { wrap: 0, step: 0 };

/// The parts of a descriptor that are the same in every layout once they have been found.
struct Parts {
    valid: bool,
    packet: bool,
    acquire_enable: bool,
    acquire_value: u32,
    acquire_id: u32,
    release_value: u32,
    release_id: u32,
    use_next: bool,
    next: u32,
}

impl Descriptor {
    pub(super) fn decode(kind: TileKind, w: &[u32; 8]) -> Result<Self, &'static str> {
        let (parts, mut descriptor) = match kind {
            TileKind::Shim => shim(w),
            TileKind::Memory => memory(w)?,
            TileKind::Core => core(w),
        };
        if !parts.valid {
            return Err("it is not valid");
        }
        if parts.packet {
            return Err("packets, compression and out-of-order transfers are not modelled");
        }
        // Those of memory tiles in AMD's streams pass on a lock when a channel has done all before.
        if descriptor.length == 0 && kind != TileKind::Memory {
            return Err("its length is zero");
        }
        if parts.acquire_enable {
            let condition = Condition::of(signed7(parts.acquire_value));
            descriptor.acquire = Some(Acquire { id: parts.acquire_id as usize, condition });
        }
        match signed7(parts.release_value) {
            0 => {}
            amount => descriptor.release = Some(Release { id: parts.release_id as usize, amount }),
        }
        descriptor.next = parts.use_next.then_some(parts.next as usize);
        Ok(descriptor)
    }

    /// The distance from the base, in words, of word `index` of the execution number `execution`.
    fn offset(&self, index: u64, execution: u64) -> u64 {
        let mut rest = index;
        let mut offset = self.iteration.step * execution;
        for dimension in self.dimensions {
            let position = if dimension.wrap == 0 { rest } else { rest % dimension.wrap };
            rest = rest.checked_div(dimension.wrap).unwrap_or(0);
            offset += position * dimension.step;
        }
        offset
    }

    /// The byte address of word `index`, and how many words from there on are consecutive, up to `limit`.
    pub(super) fn run(&self, index: u64, execution: u64, limit: u64) -> (u64, u64) {
        let Dimension { wrap, step } = self.dimensions[0];
        let consecutive = match (wrap, step) {
            (0, 1) => limit,
            (wrap, 1) => limit.min(wrap - index % wrap),
            _ => 1,
        };
        (self.base + 4 * self.offset(index, execution), consecutive)
    }
}

fn tail(word: u32) -> Parts {
    Parts {
        valid: bits(word, 25, 1) != 0,
        packet: false,
        acquire_enable: bits(word, 12, 1) != 0,
        acquire_value: bits(word, 5, 7),
        acquire_id: bits(word, 0, 4),
        release_value: bits(word, 18, 7),
        release_id: bits(word, 13, 4),
        use_next: bits(word, 26, 1) != 0,
        next: bits(word, 27, 4),
    }
}

fn plain(base: u64, length: u32, dimensions: [Dimension; 4], iteration: (u32, u32, u32)) -> Descriptor {
    let (step, wrap, current) = iteration;
    Descriptor {
        base,
        length: u64::from(length),
        dimensions,
        // Unlike the others, this wrap is stored less one.
        iteration: dimension(wrap + 1, step),
        iteration_current: u64::from(current),
        next: None,
        acquire: None,
        release: None,
    }
}

fn shim(w: &[u32; 8]) -> (Parts, Descriptor) {
    let parts = Parts { packet: bits(w[2], 30, 1) != 0, ..tail(w[7]) };
    let base = u64::from(w[1] & !3) | u64::from(bits(w[2], 0, 16)) << 32;
    let dimensions = [
        dimension(bits(w[3], 20, 10), bits(w[3], 0, 20)),
        dimension(bits(w[4], 20, 10), bits(w[4], 0, 20)),
        dimension(0, bits(w[5], 0, 20)),
        ONCE,
    ];
    let iteration = (bits(w[6], 0, 20), bits(w[6], 20, 6), bits(w[6], 26, 6));
    (parts, plain(base, w[0], dimensions, iteration))
}

fn memory(w: &[u32; 8]) -> Result<(Parts, Descriptor), &'static str> {
    let parts = Parts {
        valid: bits(w[7], 31, 1) != 0,
        packet: bits(w[0], 31, 1) != 0,
        acquire_enable: bits(w[7], 15, 1) != 0,
        acquire_value: bits(w[7], 8, 7),
        acquire_id: bits(w[7], 0, 8),
        release_value: bits(w[7], 24, 7),
        release_id: bits(w[7], 16, 8),
        use_next: bits(w[1], 19, 1) != 0,
        next: bits(w[1], 20, 6),
    };
    let padding = bits(w[1], 26, 6) | bits(w[3], 27, 5) | bits(w[4], 27, 5) | bits(w[5], 17, 15);
    if padding != 0 {
        return Err("zero padding is not modelled");
    }
    let dimensions = [
        dimension(bits(w[2], 17, 10), bits(w[2], 0, 17)),
        dimension(bits(w[3], 17, 10), bits(w[3], 0, 17)),
        dimension(bits(w[4], 17, 10), bits(w[4], 0, 17)),
        dimension(0, bits(w[5], 0, 17)),
    ];
    let iteration = (bits(w[6], 0, 17), bits(w[6], 17, 6), bits(w[6], 23, 6));
    Ok((parts, plain(4 * u64::from(bits(w[1], 0, 19)), bits(w[0], 0, 17), dimensions, iteration)))
}

fn core(w: &[u32; 8]) -> (Parts, Descriptor) {
    let parts = Parts { packet: bits(w[1], 30, 2) != 0, ..tail(w[5]) };
    let dimensions = [
        dimension(bits(w[3], 13, 8), bits(w[2], 0, 13)),
        dimension(bits(w[3], 21, 8), bits(w[2], 13, 13)),
        dimension(0, bits(w[3], 0, 13)),
        ONCE,
    ];
    let iteration = (bits(w[4], 0, 13), bits(w[4], 13, 6), bits(w[4], 19, 6));
    (parts, plain(4 * u64::from(bits(w[0], 14, 14)), bits(w[0], 0, 14), dimensions, iteration))
}

/// Puts the execution that comes next into a descriptor's words.
pub(super) fn set_iteration(kind: TileKind, w: &mut [u32; 8], current: u64) {
    let (word, from) = match kind {
        TileKind::Shim => (6, 26),
        TileKind::Memory => (6, 23),
        TileKind::Core => (4, 19),
    };
    w[word] = w[word] & !(0x3f << from) | (current as u32 & 0x3f) << from;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_of_the_public_overlays() {
        // A core tile's input: 512 words at 0x3d00, lock 0 to lock 1, then descriptor 1.
        let core = Descriptor::decode(TileKind::Core, &[0x03d0_0200, 0, 0, 0, 0, 0x0e04_3fe0, 0, 0]);
        let core = core.expect("a valid descriptor");
        assert_eq!((core.base, core.length, core.next), (0x3d00, 512, Some(1)));
        assert_eq!(core.acquire, Some(Acquire { id: 0, condition: Condition::AtLeast(1) }));
        assert_eq!(core.release, Some(Release { id: 1, amount: 1 }));
        assert_eq!([0, 1, 511].map(|index| core.offset(index, 0)), [0, 1, 511]);

        // A memory tile's output of 32 × 32 int16 as blocks of 4 × 4.
        let words = [0x200, 0x003a_0c00, 0x4_0000, 0x8_000f, 0x10_0001, 0x3f, 0, 0x8142_ff43];
        let memory = Descriptor::decode(TileKind::Memory, &words).expect("a valid descriptor");
        assert_eq!((memory.base, memory.length, memory.next), (0x8_3000, 512, Some(3)));
        assert_eq!(memory.acquire, Some(Acquire { id: 0x43, condition: Condition::AtLeast(1) }));
        assert_eq!([0, 1, 2, 8, 64].map(|index| memory.offset(index, 0)), [0, 1, 16, 2, 64]);

        // A shim tile's input of 8 executions, 16 words apart.
        let words = [0x1000, 0x40, 0, 0x0100_0000, 0x8200_007f, 0x0200_0fff, 0x0070_000f, 0x0200_0000];
        let shim = Descriptor::decode(TileKind::Shim, &words).expect("a valid descriptor");
        assert_eq!((shim.base, shim.length, shim.next), (0x40, 4096, None));
        assert_eq!(shim.iteration, Dimension { wrap: 8, step: 16 });
        assert_eq!([15, 16, 512].map(|index| shim.offset(index, 0)), [15, 128, 4096]);
        assert_eq!(shim.offset(0, 7), 112);

        // AMD's: a memory tile's input that waits for 4 and takes one from another lock.
        let words = [0x4000, 0x003a_0800, 0, 0, 0, 0, 0, 0xff45_8444];
        let memory = Descriptor::decode(TileKind::Memory, &words).expect("a valid descriptor");
        assert_eq!(memory.acquire, Some(Acquire { id: 0x44, condition: Condition::Exactly(4) }));
        assert_eq!(memory.release, Some(Release { id: 0x45, amount: -1 }));
        assert_eq!(shim.run(14, 1, 100), (0x40 + 4 * 30, 2));
        assert_eq!(core.run(5, 0, 100), (0x3d00 + 20, 100));
    }

    #[test]
    fn what_is_not_modelled_is_refused() {
        let refused = [
            (TileKind::Core, [0x200, 0, 0, 0, 0, 0, 0, 0]),
            (TileKind::Core, [0x200, 0x4000_0000, 0, 0, 0, 0x0200_0000, 0, 0]),
            (TileKind::Core, [0, 0, 0, 0, 0, 0x0200_0000, 0, 0]),
            (TileKind::Memory, [0x200, 0x0400_0000, 0, 0, 0, 0, 0, 0x8000_0000]),
        ];
        for (kind, words) in refused {
            assert!(Descriptor::decode(kind, &words).is_err(), "{kind:?} {words:x?}");
        }
    }

    #[test]
    fn conditions_of_locks() {
        let mut lock = 2;
        assert!(Condition::of(2).take(&mut lock) && lock == 2, "nothing is taken");
        assert!(!Condition::of(1).take(&mut lock), "exactly");
        assert!(Condition::of(-1).take(&mut lock) && lock == 1);
        assert!(!Condition::of(-2).take(&mut lock) && lock == 1);
    }
}
