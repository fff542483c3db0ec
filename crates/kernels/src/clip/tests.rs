use gpu::{View, known};

use super::{Clip, ClipGated, ClipRange, GatedOperands, Operands, policy, reference};
use crate::{Activations, OutputFormat, Target, Vectors, case::arena};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn reference_clamps_as_torch_does() {
    let range = |low, high| ClipRange { low, high };
    assert_eq!(reference::clamp(0.5, range(-1.0, 1.0)), 0.5);
    assert_eq!(reference::clamp(-7.0, range(-1.0, 1.0)), -1.0);
    assert_eq!(reference::clamp(f64::INFINITY, range(-1.0, 1.0)), 1.0);
    assert_eq!(reference::clamp(f64::INFINITY, ClipRange::NONE), f64::INFINITY);
    assert_eq!(reference::clamp(0.0, range(2.0, 1.0)), 1.0);
    assert!(reference::clamp(f64::NAN, range(-1.0, 1.0)).is_nan());
}

#[test]
fn every_row_of_the_encoder_has_a_variant() {
    for caps in [
        known::h200(),
        known::radeon_780m(),
        known::mesa_cpu(),
        known::mesa_cpu_wide(),
        known::bare_vulkan_13(),
    ] {
        let variants = policy::variants(&caps);
        for gated in [0, 1] {
            let listed = variants.iter().filter(|variant| variant.constants.0.last() == Some(&gated)).count();
            assert!(listed >= 2, "{} variants, {listed} of them with gated {gated}", variants.len());
        }
    }
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let rejected = |output, n| Clip::new(&device, output, n).err().expect("rejected").to_string();
    assert!(rejected(Activations::F32, 66).contains("multiple of 4"));
    assert!(rejected(Activations::F16, 0).contains("multiple of 4"));
    assert!(rejected(Activations::Int16, 64).contains("not int16"));
    assert!(ClipGated::new(&device, Activations::Int8, 64).is_err());

    let mut arena = arena(&device);
    let kernel = Clip::new(&device, Activations::F32, 64).unwrap();
    let rows = arena.buffer("rows", 1024).unwrap().view();
    let (ranges, active) =
        (arena.buffer("ranges", 512).unwrap().view(), arena.buffer("active", 4).unwrap().view());
    let y = Vectors::f32(&mut arena, "y", 64, 2).unwrap();
    let to_y = Target::vectors(&y).unwrap();
    let operands = || Operands {
        x: rows.clone(),
        x_stride: 64,
        ranges: ranges.clone(),
        target: &to_y,
        active: active.clone(),
    };
    let mut recorder = device.recorder().unwrap();
    let mut record = |operands: &Operands<'_>| {
        kernel.record(&mut recorder, "clip", 2, operands).map_err(|error| error.to_string())
    };
    record(&operands()).unwrap();
    let in_place = Target::contiguous(rows.slice(0..512).unwrap(), 64);
    record(&Operands { target: &in_place, ..operands() }).unwrap();
    let mut fails = |operands: Operands<'_>, with: &str| {
        let error = record(&operands).unwrap_err();
        assert!(error.contains(with), "{error}, expected {with}");
    };
    let part = |view: &View, bytes| view.slice(bytes).unwrap();
    fails(Operands { x: part(&rows, 0..508), ..operands() }, "x has 508 bytes");
    fails(Operands { x: part(&rows, 4..1024), ..operands() }, "x does not start");
    fails(Operands { x_stride: 60, ..operands() }, "a stride of 60");
    fails(Operands { x_stride: 66, ..operands() }, "a stride of 66");
    fails(Operands { ranges: part(&ranges, 0..508), ..operands() }, "ranges has 508 bytes");
    fails(Operands { active: part(&active, 0..0), ..operands() }, "active has 0 bytes");
    let target = |y: View, first, stride| Target { y, format: OutputFormat::F32, first, stride };
    fails(Operands { target: &target(rows.clone(), 2, 68), ..operands() }, "from value 2");
    // Not the rows of x themselves, but some of their bytes.
    fails(Operands { target: &target(rows.clone(), 4, 68), ..operands() }, "overlap");
    fails(Operands { x: part(&rows, 16..1024), target: &in_place, ..operands() }, "overlap");
    let f16 = Vectors::f16(&mut arena, "y", 64, 2).unwrap();
    fails(Operands { target: &Target::vectors(&f16).unwrap(), ..operands() }, "f16");
    let few = Vectors::f32(&mut arena, "y", 64, 1).unwrap();
    fails(Operands { target: &Target::vectors(&few).unwrap(), ..operands() }, "2 columns of 64 values");

    let kernel = ClipGated::new(&device, Activations::F32, 64).unwrap();
    let range = ClipRange { low: -1.0, high: 1.0 };
    let y = Vectors::f32(&mut arena, "y", 64, 1).unwrap();
    let operands = || GatedOperands {
        x: rows.clone(),
        x_stride: 128,
        gate: range,
        up: ClipRange::NONE,
        product: range,
        active: active.clone(),
        y: &y,
    };
    let mut record = |operands: &GatedOperands<'_>| {
        kernel.record(&mut recorder, "clip", operands).map_err(|error| error.to_string())
    };
    record(&operands()).unwrap();
    let mut fails = |operands: GatedOperands<'_>, with: &str| {
        let error = record(&operands).unwrap_err();
        assert!(error.contains(with), "{error}, expected {with}");
    };
    fails(GatedOperands { x: part(&rows, 0..508), ..operands() }, "x has 508 bytes");
    fails(GatedOperands { x_stride: 64, ..operands() }, "a stride of 64");
    let nan = ClipRange { low: f32::NAN, ..range };
    fails(GatedOperands { up: nan, ..operands() }, "the range of up is NaN to 1");
    let wide = Vectors::f32(&mut arena, "y", 128, 1).unwrap();
    fails(GatedOperands { y: &wide, ..operands() }, "rows of 128");
}
