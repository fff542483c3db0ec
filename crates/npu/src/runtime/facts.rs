//! What the driver says about the NPU.

use super::heap::call;
use super::io::{AccelIo, Call};
use crate::error::{Error, Result};
use crate::uapi::{
    AieMetadata, Clock, DRIVER_NAME, GET_POWER_MODE, GetInfo, QUERY_AIE_METADATA, QUERY_CLOCK_METADATA,
    QUERY_FIRMWARE_VERSION, QUERY_SENSORS, Sensor,
};

/// Sensors that are asked for; drivers have one.
const MAX_SENSORS: usize = 4;

/// What the driver says about the NPU. Asking wakes the NPU, but takes nothing from it.
#[derive(Debug, Clone, PartialEq)]
pub struct DriverFacts {
    /// Version of the driver's interface: major, minor.
    pub version: (i32, i32),
    /// Size and version of the array.
    pub array: AieMetadata,
    /// Version of the firmware: major, minor, patch, build.
    pub firmware: Option<[u32; 4]>,
    /// Clocks of the controller and of the array.
    pub clocks: Vec<Clock>,
    /// Power mode, as a word.
    pub power_mode: Option<&'static str>,
    /// Power draw, where the driver can read it.
    pub watts: Option<f64>,
}

impl DriverFacts {
    /// Asks the driver. What an older driver does not know is missing.
    pub fn query<I: AccelIo>(io: &I) -> Result<Self> {
        let version = version(io)?;
        let array = metadata(io)?;
        let mut firmware = [0; 16];
        let firmware = info(io, QUERY_FIRMWARE_VERSION, &mut firmware).ok().map(|_| {
            let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| firmware[4 * at + byte]));
            [word(0), word(1), word(2), word(3)]
        });
        let mut clocks = [0; 2 * Clock::BYTES];
        let clocks = info(io, QUERY_CLOCK_METADATA, &mut clocks)
            .map_or_else(|_| Vec::new(), |_| clocks.as_chunks().0.iter().map(Clock::from_bytes).collect());
        let mut mode = [0; 8];
        let power_mode = info(io, GET_POWER_MODE, &mut mode).ok().and_then(|_| power_mode(mode[0]));
        let mut sensors = [0; MAX_SENSORS * Sensor::BYTES];
        let watts = info(io, QUERY_SENSORS, &mut sensors).ok().and_then(|bytes| {
            let (sensors, _) = sensors.get(..bytes)?.as_chunks();
            let power = sensors.iter().map(Sensor::from_bytes).find(|sensor| sensor.kind == Sensor::POWER)?;
            Some(power.value())
        });
        Ok(Self { version, array, firmware, clocks, power_mode, watts })
    }
}

/// Version of the driver's interface, if it is the NPU's driver.
pub(super) fn version<I: AccelIo>(io: &I) -> Result<(i32, i32)> {
    let (mut name, mut version) = (String::new(), (0, 0));
    call(io, Call::Version { name: &mut name, version: &mut version })?;
    if name != DRIVER_NAME {
        return Err(Error::WrongDevice(format!(
            "the device's driver is {name}, not {DRIVER_NAME}; choose the node of an AMD NPU"
        )));
    }
    Ok(version)
}

/// Size and version of the array.
pub(super) fn metadata<I: AccelIo>(io: &I) -> Result<AieMetadata> {
    let mut bytes = [0; 64];
    info(io, QUERY_AIE_METADATA, &mut bytes)?;
    let metadata = AieMetadata::from_bytes(&bytes);
    if metadata.core.row_count == 0 || metadata.cols == 0 {
        return Err(Error::WrongDevice(format!(
            "the driver reports {} columns with {} rows of cores; update the NPU's firmware",
            metadata.cols, metadata.core.row_count
        )));
    }
    Ok(metadata)
}

/// Asks for one thing; bytes of the answer.
fn info<I: AccelIo>(io: &I, param: u32, buffer: &mut [u8]) -> Result<usize> {
    let mut args = GetInfo { param, ..GetInfo::default() };
    call(io, Call::Info { args: &mut args, buffer })?;
    Ok(args.buffer_size as usize)
}

fn power_mode(mode: u8) -> Option<&'static str> {
    ["default", "low", "medium", "high", "turbo"].get(usize::from(mode)).copied()
}
