//! Offsets of the fields in every known version of the table.

use std::ops::Range;

use crate::throttle::Throttle::{self, Current, Other, Power, Thermal};

/// Where one version keeps its fields.
pub(super) struct Layout {
    /// Format and content revision.
    pub version: (u8, u8),
    /// Bytes of the struct.
    pub size: usize,
    pub units: Units,
    pub temperature: Option<usize>,
    pub hotspot: Option<usize>,
    pub activity: usize,
    pub memory_activity: Option<usize>,
    pub power: usize,
    pub energy: Option<usize>,
    /// Current clock, then average clock: drivers of APUs fill in only one of them.
    pub core_clock: [Option<usize>; 2],
    pub memory_clock: [Option<usize>; 2],
    pub throttling: Throttling,
    pub npu: Option<Npu>,
}

/// How many units of a field make one degree or watt, and which value is full load.
pub(super) struct Units {
    pub per_degree: f64,
    pub full_load: f64,
    pub per_watt: f64,
    /// Whether power has 32 bits.
    pub wide_power: bool,
}

/// How a version reports throttling.
pub(super) enum Throttling {
    /// A bit mask of 32 bits, with the meaning of its bits as far as all chips of this version agree.
    Status(usize, &'static [(u64, Throttle)]),
    /// A bit mask of 64 bits with the same meaning for every chip: [`INDEPENDENT`].
    Independent(usize),
    /// Counters of the time spent at each limit.
    Residency(&'static [(usize, Throttle)]),
}

/// The NPU's fields.
pub(super) struct Npu {
    /// Load of each column.
    pub activity: Range<usize>,
    /// Load of each CPU core, in the same unit.
    pub core_activity: Range<usize>,
    pub power: usize,
}

/// Bits 0 to 15 are power limits, 16 to 31 current limits, 32 to 55 temperature limits.
pub(super) const INDEPENDENT: [(u64, Throttle); 4] = [
    (0x0000_0000_0000_ffff, Power),
    (0x0000_0000_ffff_0000, Current),
    (0x00ff_ffff_0000_0000, Thermal),
    (0xff00_0000_0000_0000, Other),
];

/// What the bits mean differs from one discrete chip to the next.
const CHIP_DEPENDENT: &[(u64, Throttle)] = &[];
/// The bits of Renoir, Rembrandt, Phoenix and Mendocino: SPL, FPPT, SPPT and SPPT of the APU; temperatures of
/// cores, GPU and SoC; sustained currents of two rails; PROCHOT of CPU and GPU; peak currents of both.
const APU: &[(u64, Throttle)] =
    &[(0x000f, Power), (0x0070, Thermal), (0x0180, Current), (0x0600, Thermal), (0x1800, Current)];

const DISCRETE: Units = Units { per_degree: 1.0, full_load: 100.0, per_watt: 1.0, wide_power: false };
const APU_V2: Units = Units { per_degree: 100.0, full_load: 10_000.0, per_watt: 1000.0, wide_power: false };
const APU_V3: Units = Units { wide_power: true, ..APU_V2 };

/// v1.1 to v1.3, which append to each other.
const fn discrete(content: u8, size: usize, throttling: Throttling) -> Layout {
    Layout {
        version: (1, content),
        size,
        units: DISCRETE,
        temperature: Some(4),
        hotspot: Some(6),
        activity: 16,
        memory_activity: Some(18),
        power: 22,
        // Chips of these versions count in different units.
        energy: None,
        core_clock: [Some(54), Some(40)],
        memory_clock: [Some(58), Some(44)],
        throttling,
        npu: None,
    }
}

/// v1.4 to v1.8, of Instinct accelerators: the same first 16 bytes, then different ones.
const fn instinct(
    content: u8,
    size: usize,
    energy: usize,
    clocks: (usize, usize),
    throttling: Throttling,
) -> Layout {
    Layout {
        version: (1, content),
        size,
        units: DISCRETE,
        temperature: None,
        hotspot: Some(4),
        activity: 12,
        memory_activity: Some(14),
        power: 10,
        energy: Some(energy),
        core_clock: [Some(clocks.0), None],
        memory_clock: [Some(clocks.1), None],
        throttling,
        npu: None,
    }
}

/// v2.1 to v2.4, which append to each other.
const fn apu(content: u8, size: usize, throttling: Throttling) -> Layout {
    Layout {
        version: (2, content),
        size,
        units: APU_V2,
        temperature: Some(4),
        hotspot: None,
        activity: 28,
        memory_activity: None,
        power: 40,
        energy: None,
        core_clock: [Some(76), Some(64)],
        memory_clock: [Some(80), Some(68)],
        throttling,
        npu: None,
    }
}

pub(super) const LAYOUTS: [Layout; 15] = [
    // v1.0 and v2.0 begin with the timestamp, after four bytes of padding.
    Layout {
        temperature: Some(16),
        hotspot: Some(18),
        activity: 28,
        memory_activity: Some(30),
        power: 34,
        ..discrete(0, 80, Throttling::Status(68, CHIP_DEPENDENT))
    },
    discrete(1, 96, Throttling::Status(68, CHIP_DEPENDENT)),
    discrete(2, 104, Throttling::Status(68, CHIP_DEPENDENT)),
    discrete(3, 120, Throttling::Independent(112)),
    instinct(4, 288, 24, (240, 280), Throttling::Status(40, CHIP_DEPENDENT)),
    instinct(5, 360, 88, (312, 352), Throttling::Status(104, CHIP_DEPENDENT)),
    // Kernels under development had a shorter v1.6 with other offsets; its size rules it out.
    instinct(6, 1664, 16, (264, 304), Throttling::Residency(&INSTINCT_V1_6)),
    instinct(7, 2208, 24, (296, 336), Throttling::Residency(&INSTINCT_V1_7)),
    instinct(8, 3872, 24, (296, 336), Throttling::Residency(&INSTINCT_V1_7)),
    Layout {
        temperature: Some(16),
        activity: 40,
        power: 44,
        core_clock: [Some(80), Some(68)],
        memory_clock: [Some(84), Some(72)],
        ..apu(0, 120, Throttling::Status(112, APU))
    },
    apu(1, 120, Throttling::Status(108, APU)),
    apu(2, 128, Throttling::Independent(120)),
    apu(3, 152, Throttling::Independent(120)),
    apu(4, 168, Throttling::Independent(120)),
    Layout {
        version: (3, 0),
        units: APU_V3,
        activity: 42,
        power: 112,
        core_clock: [Some(174), None],
        memory_clock: [Some(186), None],
        npu: Some(Npu { activity: 46..62, core_activity: 62..94, power: 116 }),
        ..apu(0, 264, Throttling::Residency(&APU_V3_RESIDENCY))
    },
];

/// PROCHOT, package power, then temperatures of socket, voltage regulators and HBM.
const INSTINCT_V1_6: [(usize, Throttle); 5] =
    [(36, Thermal), (40, Power), (44, Thermal), (48, Thermal), (52, Thermal)];
const INSTINCT_V1_7: [(usize, Throttle); 5] =
    [(44, Thermal), (48, Power), (52, Thermal), (56, Thermal), (60, Thermal)];
/// PROCHOT, SPL, FPPT, SPPT, then temperatures of cores, GPU and SoC.
const APU_V3_RESIDENCY: [(usize, Throttle); 7] = [
    (228, Thermal),
    (232, Power),
    (236, Power),
    (240, Power),
    (244, Thermal),
    (248, Thermal),
    (252, Thermal),
];
