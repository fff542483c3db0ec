//! NVIDIA's management library, opened at run time.
//!
//! NVML is part of the driver, so it cannot be linked: a machine without NVIDIA's driver has no such library.
//! The functions are looked up by name once; one that an old driver lacks stays `None`, and so does every value
//! that a GPU does not support. Values that NVML reports are in the struct and enum layouts of `nvml.h`.
//!
//! This is the only module of the crate with `unsafe`. All of it is calls through [`Functions`]; tests fill
//! that table with functions of their own.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::mem;

use libloading::Library;

use crate::throttle::{self, Throttle};

/// The name that every driver installs; the one without a version belongs to development packages.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// `nvmlReturn_t`.
type Status = c_int;
const SUCCESS: Status = 0;

/// `nvmlDevice_t`.
type Handle = *mut c_void;

/// `NVML_DEVICE_NAME_V2_BUFFER_SIZE`.
const NAME_BYTES: usize = 96;
/// `NVML_TEMPERATURE_GPU`.
const DIE: c_uint = 0;
/// `NVML_CLOCK_SM` and `NVML_CLOCK_MEM`.
const CORE_CLOCK: c_uint = 1;
const MEMORY_CLOCK: c_uint = 2;

/// `nvmlClocksEventReason*`. A GPU that is idle (0x1) or runs at clocks that were set for it (0x2, 0x10, 0x100)
/// is not throttled. The general hardware slowdown (0x8) comes with the bit of its cause on current drivers.
const NOT_THROTTLED: u64 = 0x1 | 0x2 | 0x10 | 0x100;
const HARDWARE_SLOWDOWN: u64 = 0x8;
const THROTTLED: [(u64, Throttle); 2] = [(0x4 | 0x80, Throttle::Power), (0x20 | 0x40, Throttle::Thermal)];

/// `nvmlUtilization_t`, in percent.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Utilization {
    pub gpu: c_uint,
    pub memory: c_uint,
}

/// `nvmlMemory_t`, in bytes; what the driver reserves counts as used.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Memory {
    pub total: c_ulonglong,
    pub free: c_ulonglong,
    pub used: c_ulonglong,
}

/// `nvmlMemory_v2_t`, in bytes; what the driver reserves is separate, as in nvidia-smi.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MemoryV2 {
    pub version: c_uint,
    pub total: c_ulonglong,
    pub reserved: c_ulonglong,
    pub free: c_ulonglong,
    pub used: c_ulonglong,
}

impl MemoryV2 {
    /// `NVML_STRUCT_VERSION(Memory, 2)`.
    pub(crate) const VERSION: c_uint = mem::size_of::<Self>() as c_uint | 2 << 24;
}

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PciInfo {
    pub legacy_id: [c_char; 16],
    pub domain: c_uint,
    pub bus: c_uint,
    pub device: c_uint,
    pub device_id: c_uint,
    pub subsystem_id: c_uint,
    pub id: [c_char; 32],
}

type Get<T> = Option<unsafe extern "C" fn(Handle, *mut T) -> Status>;
type GetIndexed<T> = Option<unsafe extern "C" fn(Handle, c_uint, *mut T) -> Status>;

/// NVML's entry points.
pub(crate) struct Functions {
    pub init: unsafe extern "C" fn() -> Status,
    pub shutdown: unsafe extern "C" fn() -> Status,
    pub count: unsafe extern "C" fn(*mut c_uint) -> Status,
    pub by_index: unsafe extern "C" fn(c_uint, *mut Handle) -> Status,
    pub by_address: Option<unsafe extern "C" fn(*const c_char, *mut Handle) -> Status>,
    pub name: Option<unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> Status>,
    pub pci_info: Get<PciInfo>,
    pub power: Get<c_uint>,
    pub energy: Get<c_ulonglong>,
    pub utilization: Get<Utilization>,
    pub memory: Get<Memory>,
    pub memory_v2: Get<MemoryV2>,
    pub throttle: Get<c_ulonglong>,
    pub clock: GetIndexed<c_uint>,
    pub temperature: GetIndexed<c_uint>,
}

impl Functions {
    fn load() -> Option<Self> {
        // SAFETY: the library's constructors run with no requirement on us; it is the installed driver's own.
        let library = unsafe { Library::new(LIBRARY) }.ok()?;
        /// Looks a function up by name; its type is inferred from where it goes.
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the type is that of the function of this name in `nvml.h`.
                unsafe { library.get(concat!($name, "\0").as_bytes()) }.ok().map(|symbol| *symbol)
            };
        }
        let functions = Self {
            init: function!("nvmlInit_v2")?,
            shutdown: function!("nvmlShutdown")?,
            count: function!("nvmlDeviceGetCount_v2")?,
            by_index: function!("nvmlDeviceGetHandleByIndex_v2")?,
            by_address: function!("nvmlDeviceGetHandleByPciBusId_v2"),
            name: function!("nvmlDeviceGetName"),
            pci_info: function!("nvmlDeviceGetPciInfo_v3"),
            power: function!("nvmlDeviceGetPowerUsage"),
            energy: function!("nvmlDeviceGetTotalEnergyConsumption"),
            utilization: function!("nvmlDeviceGetUtilizationRates"),
            memory: function!("nvmlDeviceGetMemoryInfo"),
            memory_v2: function!("nvmlDeviceGetMemoryInfo_v2"),
            throttle: function!("nvmlDeviceGetCurrentClocksEventReasons")
                .or_else(|| function!("nvmlDeviceGetCurrentClocksThrottleReasons")),
            clock: function!("nvmlDeviceGetClockInfo"),
            temperature: function!("nvmlDeviceGetTemperature"),
        };
        // Never unloaded, so that the functions stay valid.
        mem::forget(library);
        Some(functions)
    }
}

/// An initialised NVML.
pub(crate) struct Nvml {
    functions: Functions,
}

/// A GPU known to NVML.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Device(Handle);

// SAFETY: NVML may be called from any thread, and a handle is valid in the whole process.
unsafe impl Send for Device {}

impl Nvml {
    /// Opens and initialises the library; `None` if there is none, or no working driver. Initialising wakes no
    /// GPU; asking for a device does.
    pub(crate) fn open() -> Option<Self> {
        Self::new(Functions::load()?)
    }

    pub(crate) fn new(functions: Functions) -> Option<Self> {
        // SAFETY: takes no arguments.
        let status = unsafe { (functions.init)() };
        (status == SUCCESS).then_some(Self { functions })
    }

    /// The GPU at a PCI address.
    pub(crate) fn device_at(&self, address: &str) -> Option<Device> {
        let (function, address) = (self.functions.by_address?, CString::new(address).ok()?);
        let mut handle = Handle::default();
        // SAFETY: the address is a C string and `handle` a place for the result.
        let status = unsafe { function(address.as_ptr(), &mut handle) };
        (status == SUCCESS && !handle.is_null()).then_some(Device(handle))
    }

    /// Every GPU, with its PCI address. Wakes those that sleep.
    pub(crate) fn devices(&self) -> Vec<(Device, Option<String>)> {
        let mut count = 0;
        // SAFETY: `count` is a place for the result.
        if unsafe { (self.functions.count)(&mut count) } != SUCCESS {
            return Vec::new();
        }
        let device = |index| {
            let mut handle = Handle::default();
            // SAFETY: `handle` is a place for the result.
            let status = unsafe { (self.functions.by_index)(index, &mut handle) };
            (status == SUCCESS && !handle.is_null()).then_some(Device(handle))
        };
        (0..count).filter_map(device).map(|device| (device, self.address(device))).collect()
    }

    fn address(&self, device: Device) -> Option<String> {
        let info = get(self.functions.pci_info, device)?;
        // A GPU is function 0; NVML writes the address in upper case with a domain of eight digits.
        Some(format!("{:04x}:{:02x}:{:02x}.0", info.domain, info.bus, info.device))
    }

    pub(crate) fn name(&self, device: Device) -> Option<String> {
        let mut name = [0u8; NAME_BYTES];
        let function = self.functions.name?;
        // SAFETY: the buffer has as many bytes as we say.
        let status = unsafe { function(device.0, name.as_mut_ptr().cast(), NAME_BYTES as c_uint) };
        let name = CStr::from_bytes_until_nul(&name).ok()?.to_str().ok()?;
        (status == SUCCESS && !name.is_empty()).then(|| name.to_owned())
    }

    /// Power draw of the board.
    pub(crate) fn watts(&self, device: Device) -> Option<f64> {
        Some(f64::from(get(self.functions.power, device)?) / 1e3)
    }

    /// Energy since the driver was loaded.
    pub(crate) fn millijoules(&self, device: Device) -> Option<u64> {
        get(self.functions.energy, device)
    }

    /// Share of time that kernels ran, and that memory was accessed, 0 to 1.
    pub(crate) fn busy(&self, device: Device) -> Option<(f64, f64)> {
        let Utilization { gpu, memory } = get(self.functions.utilization, device)?;
        (gpu <= 100 && memory <= 100).then(|| (f64::from(gpu) / 100.0, f64::from(memory) / 100.0))
    }

    /// Bytes in use and in total.
    pub(crate) fn memory(&self, device: Device) -> Option<(u64, u64)> {
        let sized = MemoryV2 { version: MemoryV2::VERSION, ..MemoryV2::default() };
        let v2 = get_into(self.functions.memory_v2, device, sized).map(|memory| (memory.used, memory.total));
        v2.or_else(|| get(self.functions.memory, device).map(|memory| (memory.used, memory.total)))
    }

    /// Clocks of the multiprocessors and of the memory.
    pub(crate) fn clocks_hz(&self, device: Device) -> (Option<u64>, Option<u64>) {
        let hertz = |kind| Some(u64::from(get_indexed(self.functions.clock, device, kind)?) * 1_000_000);
        (hertz(CORE_CLOCK), hertz(MEMORY_CLOCK))
    }

    pub(crate) fn celsius(&self, device: Device) -> Option<f64> {
        get_indexed(self.functions.temperature, device, DIE).map(f64::from)
    }

    pub(crate) fn throttle(&self, device: Device) -> Option<Vec<Throttle>> {
        let reasons = get(self.functions.throttle, device)? & !NOT_THROTTLED;
        let causes = reasons & !HARDWARE_SLOWDOWN;
        Some(throttle::from_bits(if causes == 0 { reasons } else { causes }, &THROTTLED))
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: takes no arguments, and ends what `init` began. Devices are not used without an `Nvml`.
        unsafe { (self.functions.shutdown)() };
    }
}

fn get<T: Default>(function: Get<T>, device: Device) -> Option<T> {
    get_into(function, device, T::default())
}

fn get_into<T>(function: Get<T>, device: Device, mut value: T) -> Option<T> {
    // SAFETY: the handle came from NVML, and `value` has the layout that the function writes.
    let status = unsafe { function?(device.0, &mut value) };
    (status == SUCCESS).then_some(value)
}

fn get_indexed<T: Default>(function: GetIndexed<T>, device: Device, index: c_uint) -> Option<T> {
    let mut value = T::default();
    // SAFETY: as in `get_into`.
    let status = unsafe { function?(device.0, index, &mut value) };
    (status == SUCCESS).then_some(value)
}

#[cfg(test)]
#[path = "nvml_tests.rs"]
pub(crate) mod tests;
