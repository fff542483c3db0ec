//! The binary `gpu_metrics` table of amdgpu: one read for power, load, temperatures, clocks and throttling.
//!
//! The table is a C struct whose layout depends on two revision numbers in its header. Format 1 is that of
//! discrete GPUs, 2 and 3 those of APUs. Revisions are not supersets of each other, so each has a row of
//! offsets, from the declarations in Linux's `kgd_pp_interface.h` with the alignment of x86-64.
//! A field of all ones is one that the driver did not fill in.
//!
//! Units differ and are not in the table. They come from the driver's own conversions for its hwmon files:
//!
//! | | format 1 | format 2 | format 3 |
//! |---|---|---|---|
//! | temperature | °C | 0.01 °C | 0.01 °C |
//! | GPU load | % | 0.01 % | 0.01 % |
//! | power | W | mW | mW |
//! | energy (1.4 and later) | 2⁻¹⁶ J | | |
//! | clocks | MHz | MHz | MHz |

use crate::throttle::{self, Throttle};

mod layout;

use layout::{LAYOUTS, Layout, Throttling};

/// Bytes of the longest table, v1.8, rounded up to the page that sysfs allows.
pub const MAX_BYTES: usize = 4096;

/// Joules per unit of [`GpuMetrics::energy_counter`].
pub const JOULES_PER_UNIT: f64 = 1.0 / 65536.0;

/// An APU that runs draws more than this. Firmware of Renoir reports whole watts where all others report
/// milliwatts, so a smaller value is in an unknown unit.
const LEAST_APU_WATTS: f64 = 0.5;

/// What a `gpu_metrics` table says. `None` is a value that this version does not have, that the driver did not
/// fill in, or that is out of range.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuMetrics {
    /// Format and content revision.
    pub version: (u8, u8),
    /// Temperature of the GPU: at the edge of the die for discrete GPUs, of the graphics part for APUs.
    pub temperature_celsius: Option<f64>,
    /// Temperature of the hottest point of the die.
    pub hotspot_celsius: Option<f64>,
    /// Share of time that the shader engines were busy, 0 to 1.
    pub busy: Option<f64>,
    /// Share of time that the memory controller was busy, 0 to 1.
    pub memory_busy: Option<f64>,
    /// Power draw of the board, or of the whole package for an APU.
    pub socket_watts: Option<f64>,
    /// Energy since boot in units of [`JOULES_PER_UNIT`].
    pub energy_counter: Option<u64>,
    /// Clock of the shader engines.
    pub core_clock_hz: Option<u64>,
    /// Clock of the memory.
    pub memory_clock_hz: Option<u64>,
    /// Limits that lower the clocks now; `None` if the table does not say.
    pub throttle: Option<Vec<Throttle>>,
    /// Time spent at each limit since boot, in an unknown unit: a limit whose count grows is in effect.
    pub throttle_residency: Vec<(Throttle, u32)>,
    /// Load of the NPU's busiest column, 0 to 1.
    pub npu_busy: Option<f64>,
    /// Power draw of the NPU.
    pub npu_watts: Option<f64>,
}

impl GpuMetrics {
    /// Reads a table. `None` if the version is unknown, or if the table is shorter than the version's layout.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let &[size_low, size_high, format, content, ..] = bytes else { return None };
        let size = usize::from(u16::from_le_bytes([size_low, size_high]));
        let version = (format, content);
        let layout = LAYOUTS.iter().find(|layout| layout.version == version)?;
        let table = Table(bytes.get(..size).filter(|_| size >= layout.size)?);
        Some(Self::read(&table, layout))
    }

    fn read(table: &Table, layout: &Layout) -> Self {
        let units = &layout.units;
        let celsius = |offset| table.u16(offset).map(|value| f64::from(value) / units.per_degree);
        let busy = |offset| share(table.u16(offset)?, units.full_load);
        let hertz = |offsets: [Option<usize>; 2]| {
            let value = offsets.into_iter().flatten().find_map(|offset| table.u16(offset))?;
            Some(u64::from(value) * 1_000_000)
        };
        let power =
            if units.wide_power { table.u32(layout.power) } else { table.u16(layout.power).map(u32::from) };
        let watts = power.map(|value| f64::from(value) / units.per_watt);
        let apu = layout.version.0 >= 2;
        Self {
            version: layout.version,
            temperature_celsius: layout.temperature.and_then(celsius),
            hotspot_celsius: layout.hotspot.and_then(celsius),
            busy: busy(layout.activity),
            memory_busy: layout.memory_activity.and_then(busy),
            socket_watts: watts.filter(|watts| !apu || *watts >= LEAST_APU_WATTS),
            energy_counter: layout.energy.and_then(|offset| table.u64(offset)),
            core_clock_hz: hertz(layout.core_clock),
            memory_clock_hz: hertz(layout.memory_clock),
            throttle: throttling(table, &layout.throttling),
            throttle_residency: residency(table, &layout.throttling),
            npu_busy: layout.npu.as_ref().and_then(|npu| npu_busy(table, npu)),
            npu_watts: layout
                .npu
                .as_ref()
                .and_then(|npu| Some(f64::from(table.u16(npu.power)?) / units.per_watt)),
        }
    }
}

/// A load as a share of one.
fn share(load: u16, full_load: f64) -> Option<f64> {
    let share = f64::from(load) / full_load;
    (share <= 1.0).then_some(share)
}

fn throttling(table: &Table, throttling: &Throttling) -> Option<Vec<Throttle>> {
    match *throttling {
        Throttling::Status(offset, masks) => Some(throttle::from_bits(table.u32(offset)?.into(), masks)),
        Throttling::Independent(offset) => {
            Some(throttle::from_bits(table.u64(offset)?, &layout::INDEPENDENT))
        }
        Throttling::Residency(_) => None,
    }
}

fn residency(table: &Table, throttling: &Throttling) -> Vec<(Throttle, u32)> {
    let Throttling::Residency(counters) = throttling else { return Vec::new() };
    counters.iter().filter_map(|(offset, reason)| Some((*reason, table.u32(*offset)?))).collect()
}

/// The header describes the NPU's and the CPU cores' load as percent, and the GPU's too, which the driver
/// divides by 100. A load above 100 shows that the unit is 0.01 %; without one the unit is unknown.
fn npu_busy(table: &Table, npu: &layout::Npu) -> Option<f64> {
    let columns = npu.activity.clone().step_by(2).filter_map(|offset| table.u16(offset));
    let busiest = columns.max()?;
    let cores = npu.core_activity.clone().step_by(2).filter_map(|offset| table.u16(offset));
    match cores.max().unwrap_or(0).max(busiest) {
        _ if busiest == 0 => Some(0.0),
        largest if largest > 100 => share(busiest, 10_000.0),
        _ => None,
    }
}

/// Little-endian fields of a table. A field of all ones is unknown.
struct Table<'a>(&'a [u8]);

impl Table<'_> {
    fn field<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let field: [u8; N] = self.0.get(offset..)?.get(..N)?.try_into().ok()?;
        (field != [0xff; N]).then_some(field)
    }

    fn u16(&self, offset: usize) -> Option<u16> {
        self.field(offset).map(u16::from_le_bytes)
    }

    fn u32(&self, offset: usize) -> Option<u32> {
        self.field(offset).map(u32::from_le_bytes)
    }

    fn u64(&self, offset: usize) -> Option<u64> {
        self.field(offset).map(u64::from_le_bytes)
    }
}

#[cfg(test)]
#[path = "gpu_metrics_tests.rs"]
mod tests;
