use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use Throttle::{Other, Power, Thermal};

const NOT_SUPPORTED: Status = 3;
const INVALID_ARGUMENT: Status = 2;
const VERSION_MISMATCH: Status = 25;

/// The address of the fake GPU.
pub(crate) const ADDRESS: &str = "0000:c1:00.0";

/// Functions of a driver with one GPU, an H200 that never sleeps.
pub(crate) fn h200() -> Functions {
    Functions {
        init: succeed,
        shutdown: succeed,
        count: one,
        by_index,
        by_address: Some(by_address),
        name: Some(name),
        pci_info: Some(pci_info),
        power: Some(power),
        energy: Some(energy),
        utilization: Some(utilization),
        memory: Some(memory),
        memory_v2: Some(memory_v2),
        throttle: Some(throttle_reasons),
        clock: Some(clock),
        temperature: Some(temperature),
    }
}

/// Functions of a driver that supports nothing of its GPU.
pub(crate) fn old_gpu() -> Functions {
    Functions {
        name: Some(no_name),
        pci_info: None,
        by_address: None,
        power: Some(unsupported),
        energy: Some(unsupported),
        utilization: Some(unsupported),
        memory: Some(unsupported),
        memory_v2: None,
        throttle: None,
        clock: Some(unsupported_indexed),
        temperature: None,
        ..h200()
    }
}

// Handles need only differ from null.
const GPU: Handle = std::ptr::dangling_mut::<u64>().cast();

static ENERGY: AtomicU64 = AtomicU64::new(5_000_000_000);

extern "C" fn succeed() -> Status {
    SUCCESS
}

extern "C" fn fail() -> Status {
    999
}

unsafe extern "C" fn one(count: *mut c_uint) -> Status {
    put(count, 1)
}

unsafe extern "C" fn by_index(index: c_uint, handle: *mut Handle) -> Status {
    if index == 0 { put(handle, GPU) } else { INVALID_ARGUMENT }
}

unsafe extern "C" fn by_address(address: *const c_char, handle: *mut Handle) -> Status {
    // SAFETY: callers pass a C string.
    let address = unsafe { CStr::from_ptr(address) };
    if address.to_str() == Ok(ADDRESS) { put(handle, GPU) } else { INVALID_ARGUMENT }
}

unsafe extern "C" fn name(_: Handle, name: *mut c_char, len: c_uint) -> Status {
    let text = b"NVIDIA H200\0";
    assert!(len as usize >= text.len());
    // SAFETY: callers pass a buffer of `len` bytes.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), text.len()) };
    SUCCESS
}

unsafe extern "C" fn no_name(_: Handle, _: *mut c_char, _: c_uint) -> Status {
    NOT_SUPPORTED
}

unsafe extern "C" fn endless_name(_: Handle, name: *mut c_char, len: c_uint) -> Status {
    // SAFETY: callers pass a buffer of `len` bytes.
    unsafe { std::ptr::write_bytes(name, b'x', len as usize) };
    SUCCESS
}

unsafe extern "C" fn pci_info(_: Handle, info: *mut PciInfo) -> Status {
    put(info, PciInfo { domain: 0, bus: 0xc1, device: 0, device_id: 0x2335_10de, ..PciInfo::default() })
}

unsafe extern "C" fn power(_: Handle, milliwatts: *mut c_uint) -> Status {
    put(milliwatts, 651_250)
}

unsafe extern "C" fn energy(_: Handle, millijoules: *mut c_ulonglong) -> Status {
    put(millijoules, ENERGY.fetch_add(1, Ordering::Relaxed))
}

unsafe extern "C" fn utilization(_: Handle, utilization: *mut Utilization) -> Status {
    put(utilization, Utilization { gpu: 97, memory: 61 })
}

unsafe extern "C" fn impossible_utilization(_: Handle, utilization: *mut Utilization) -> Status {
    put(utilization, Utilization { gpu: 101, memory: 0 })
}

unsafe extern "C" fn memory(_: Handle, memory: *mut Memory) -> Status {
    put(memory, Memory { total: 150_754_820_096, free: 40_000_000_000, used: 110_754_820_096 })
}

unsafe extern "C" fn memory_v2(_: Handle, memory: *mut MemoryV2) -> Status {
    // SAFETY: callers pass a struct whose version they set.
    if unsafe { (*memory).version } != 0x0200_0028 {
        return VERSION_MISMATCH;
    }
    let (total, reserved, free) = (150_754_820_096, 754_820_096, 40_000_000_000);
    put(memory, MemoryV2 { version: 0x0200_0028, total, reserved, free, used: 110_000_000_000 })
}

unsafe extern "C" fn throttle_reasons(_: Handle, reasons: *mut c_ulonglong) -> Status {
    put(reasons, 0x4)
}

unsafe extern "C" fn clock(_: Handle, kind: c_uint, megahertz: *mut c_uint) -> Status {
    match kind {
        1 => put(megahertz, 1980),
        2 => put(megahertz, 3201),
        _ => INVALID_ARGUMENT,
    }
}

unsafe extern "C" fn temperature(_: Handle, sensor: c_uint, celsius: *mut c_uint) -> Status {
    if sensor == 0 { put(celsius, 54) } else { INVALID_ARGUMENT }
}

unsafe extern "C" fn unsupported<T>(_: Handle, _: *mut T) -> Status {
    NOT_SUPPORTED
}

unsafe extern "C" fn unsupported_indexed(_: Handle, _: c_uint, _: *mut c_uint) -> Status {
    NOT_SUPPORTED
}

fn put<T>(place: *mut T, value: T) -> Status {
    // SAFETY: every caller passes on the place that `Nvml` passed to it.
    unsafe { place.write(value) };
    SUCCESS
}

#[test]
fn structs_have_the_layout_of_the_header() {
    assert_eq!(mem::size_of::<PciInfo>(), 68);
    assert_eq!((mem::offset_of!(PciInfo, domain), mem::offset_of!(PciInfo, id)), (16, 36));
    assert_eq!((mem::size_of::<Utilization>(), mem::size_of::<Memory>()), (8, 24));
    assert_eq!((mem::size_of::<MemoryV2>(), mem::offset_of!(MemoryV2, total)), (40, 8));
}

#[test]
fn every_value_of_a_gpu_is_read() {
    let nvml = Nvml::new(h200()).unwrap();
    let devices = nvml.devices();
    assert_eq!(devices.len(), 1);
    let (device, address) = &devices[0];
    assert_eq!(address.as_deref(), Some(ADDRESS));
    assert_eq!(nvml.name(*device).as_deref(), Some("NVIDIA H200"));
    assert_eq!(nvml.watts(*device), Some(651.25));
    assert!(nvml.millijoules(*device) < nvml.millijoules(*device));
    assert_eq!(nvml.busy(*device), Some((0.97, 0.61)));
    assert_eq!(nvml.memory(*device), Some((110_000_000_000, 150_754_820_096)));
    assert_eq!(nvml.clocks_hz(*device), (Some(1_980_000_000), Some(3_201_000_000)));
    assert_eq!(nvml.celsius(*device), Some(54.0));
    assert_eq!(nvml.throttle(*device), Some(vec![Power]));
}

#[test]
fn a_gpu_is_found_by_its_address() {
    let nvml = Nvml::new(h200()).unwrap();
    assert!(nvml.device_at(ADDRESS).is_some());
    assert!(nvml.device_at("0000:c2:00.0").is_none() && nvml.device_at("a\0b").is_none());
}

#[test]
fn what_is_not_supported_is_none() {
    let nvml = Nvml::new(old_gpu()).unwrap();
    assert!(nvml.device_at(ADDRESS).is_none());
    let (device, address) = nvml.devices().remove(0);
    assert_eq!((address, nvml.name(device)), (None, None));
    assert_eq!((nvml.watts(device), nvml.millijoules(device), nvml.busy(device)), (None, None, None));
    assert_eq!((nvml.memory(device), nvml.celsius(device), nvml.throttle(device)), (None, None, None));
    assert_eq!(nvml.clocks_hz(device), (None, None));
}

#[test]
fn a_library_that_does_not_initialise_is_not_used() {
    assert!(Nvml::new(Functions { init: fail, ..h200() }).is_none());
}

#[test]
fn memory_of_older_drivers_is_read() {
    for memory_v2 in [None, Some(unsupported::<MemoryV2> as unsafe extern "C" fn(_, _) -> _)] {
        let nvml = Nvml::new(Functions { memory_v2, ..h200() }).unwrap();
        let device = nvml.device_at(ADDRESS).unwrap();
        assert_eq!(nvml.memory(device), Some((110_754_820_096, 150_754_820_096)));
    }
}

#[test]
fn odd_values_are_none() {
    let odd = Functions { name: Some(endless_name), utilization: Some(impossible_utilization), ..h200() };
    let nvml = Nvml::new(odd).unwrap();
    let device = nvml.device_at(ADDRESS).unwrap();
    assert_eq!((nvml.name(device), nvml.busy(device)), (None, None));
}

#[test]
fn only_limits_count_as_throttling() {
    unsafe extern "C" fn reasons<const REASONS: u64>(_: Handle, reasons: *mut c_ulonglong) -> Status {
        put(reasons, REASONS)
    }
    let throttle = |function: unsafe extern "C" fn(Handle, *mut c_ulonglong) -> Status| {
        let nvml = Nvml::new(Functions { throttle: Some(function), ..h200() }).unwrap();
        nvml.throttle(nvml.device_at(ADDRESS).unwrap()).unwrap()
    };
    assert_eq!(throttle(reasons::<0>), []);
    // Idle, clocks set by an application, by a sync boost group, by a display.
    assert_eq!(throttle(reasons::<{ 0x1 | 0x2 | 0x10 | 0x100 }>), []);
    assert_eq!(throttle(reasons::<{ 0x8 | 0x40 }>), [Thermal]);
    assert_eq!(throttle(reasons::<{ 0x8 | 0x80 | 0x20 }>), [Power, Thermal]);
    assert_eq!(throttle(reasons::<0x8>), [Other]);
    assert_eq!(throttle(reasons::<{ 1 << 40 }>), [Other]);
}
