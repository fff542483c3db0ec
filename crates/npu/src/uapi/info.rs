//! Facts about the NPU, and its state.

use std::mem::size_of;

/// Argument of [`GET_INFO`](super::GET_INFO).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct GetInfo {
    /// What is asked.
    pub param: u32,
    pub(crate) buffer_size: u32,
    pub(crate) buffer: u64,
}

/// `param` of [`GetInfo`] for [`AieMetadata`].
pub const QUERY_AIE_METADATA: u32 = 1;
/// `param` of [`GetInfo`] for two [`Clock`]s: of the controller and of the array.
pub const QUERY_CLOCK_METADATA: u32 = 3;
/// `param` of [`GetInfo`] for a list of [`Sensor`]s, from version 0.7 of the driver.
pub const QUERY_SENSORS: u32 = 4;
/// `param` of [`GetInfo`] for the firmware's version: major, minor, patch, build.
pub const QUERY_FIRMWARE_VERSION: u32 = 8;
/// `param` of [`GetInfo`] for the power mode, in the first of eight bytes.
pub const GET_POWER_MODE: u32 = 9;

/// Argument of [`SET_STATE`](super::SET_STATE).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct SetState {
    /// What is set.
    pub param: u32,
    pub(crate) buffer_size: u32,
    pub(crate) buffer: u64,
}

/// `param` of [`SetState`] for the power mode.
pub const SET_POWER_MODE: u32 = 0;

/// Argument of [`GET_ARRAY`](super::GET_ARRAY), from version 0.1 of the driver.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct GetArray {
    /// What is asked.
    pub param: u32,
    /// Bytes of an element.
    pub element_size: u32,
    /// Number of elements.
    pub num_element: u32,
    pub(crate) pad: u32,
    pub(crate) buffer: u64,
}

/// Tiles of one kind.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TileMetadata {
    /// Number of rows.
    pub row_count: u16,
    /// First row.
    pub row_start: u16,
    /// DMA channels per tile.
    pub dma_channel_count: u16,
    /// Locks per tile.
    pub lock_count: u16,
    /// Event registers per tile.
    pub event_reg_count: u16,
    pub(crate) pad: [u16; 3],
}

/// Answer to [`QUERY_AIE_METADATA`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AieMetadata {
    /// Bytes of a column's status.
    pub col_size: u32,
    /// Columns.
    pub cols: u16,
    /// Rows.
    pub rows: u16,
    /// Version of the array: major, minor.
    pub version: [u32; 2],
    /// Core tiles.
    pub core: TileMetadata,
    /// Memory tiles.
    pub mem: TileMetadata,
    /// Shim tiles.
    pub shim: TileMetadata,
}
const _: () = assert!(size_of::<AieMetadata>() == 64);

impl AieMetadata {
    /// Reads what the driver wrote.
    pub fn from_bytes(bytes: &[u8; 64]) -> Self {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let tile = |at: usize| TileMetadata {
            row_count: u16_at(at),
            row_start: u16_at(at + 2),
            dma_channel_count: u16_at(at + 4),
            lock_count: u16_at(at + 6),
            event_reg_count: u16_at(at + 8),
            pad: [0; 3],
        };
        Self {
            col_size: u32_at(0),
            cols: u16_at(4),
            rows: u16_at(6),
            version: [u32_at(8), u32_at(12)],
            core: tile(16),
            mem: tile(32),
            shim: tile(48),
        }
    }

    /// What the driver writes.
    pub fn to_bytes(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[0..4].copy_from_slice(&self.col_size.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.cols.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.rows.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.version[0].to_le_bytes());
        bytes[12..16].copy_from_slice(&self.version[1].to_le_bytes());
        for (tile, at) in [(self.core, 16), (self.mem, 32), (self.shim, 48)] {
            let fields = [
                tile.row_count,
                tile.row_start,
                tile.dma_channel_count,
                tile.lock_count,
                tile.event_reg_count,
            ];
            for (index, field) in fields.into_iter().enumerate() {
                bytes[at + 2 * index..][..2].copy_from_slice(&field.to_le_bytes());
            }
        }
        bytes
    }
}

/// Reads a name that ends at its first zero byte.
fn name_of(bytes: &[u8]) -> String {
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

fn u32_of(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// A clock, in the answer to [`QUERY_CLOCK_METADATA`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clock {
    /// Its name.
    pub name: String,
    /// Its frequency.
    pub mhz: u32,
}

impl Clock {
    /// Size in bytes.
    pub const BYTES: usize = 24;

    /// Reads what the driver wrote.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        Self { name: name_of(&bytes[..16]), mhz: u32_of(bytes, 16) }
    }

    /// What the driver writes.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let len = self.name.len().min(15);
        bytes[..len].copy_from_slice(&self.name.as_bytes()[..len]);
        bytes[16..20].copy_from_slice(&self.mhz.to_le_bytes());
        bytes
    }
}

/// A sensor, in the answer to [`QUERY_SENSORS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sensor {
    /// The value.
    pub input: u32,
    /// Power of ten that the value is multiplied by.
    pub exponent: i8,
    /// What it measures: 0 is power in watts.
    pub kind: u8,
}

impl Sensor {
    /// Size in bytes.
    pub const BYTES: usize = 168;
    /// `kind` of power.
    pub const POWER: u8 = 0;

    /// Reads what the driver wrote.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        Self { input: u32_of(bytes, 64), exponent: i8::from_le_bytes([bytes[160]]), kind: bytes[161] }
    }

    /// What the driver writes.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[64..68].copy_from_slice(&self.input.to_le_bytes());
        bytes[160] = self.exponent.to_le_bytes()[0];
        bytes[161] = self.kind;
        bytes
    }

    /// The value in its unit.
    pub fn value(&self) -> f64 {
        f64::from(self.input) * 10f64.powi(i32::from(self.exponent))
    }
}
