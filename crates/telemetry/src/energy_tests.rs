use std::time::Duration;

use super::*;

const POWER: fn(f64) -> Option<EnergyReading> =
    |watts| Some(EnergyReading::Power { source: EnergySource::AmdgpuPower, watts });

/// NVML's counter, in millijoules.
fn counter(value: u64) -> Option<EnergyReading> {
    Some(EnergyReading::Counter {
        source: EnergySource::NvmlCounter,
        value,
        joules_per_unit: 1e-3,
        wraps_after: None,
    })
}

/// RAPL's counter, in microjoules.
fn rapl(value: u64) -> Option<EnergyReading> {
    let wraps_after = Some(262_143_328_850);
    Some(EnergyReading::Counter { source: EnergySource::Rapl, value, joules_per_unit: 1e-6, wraps_after })
}

/// The joules after readings that are a second apart.
fn joules(readings: &[Option<EnergyReading>]) -> Option<f64> {
    let start = Instant::now();
    let sum = Arc::new(Sum::default());
    let meter = EnergyMeter::new(Arc::clone(&sum));
    let mut accumulator = Accumulator::new(sum);
    for (second, reading) in (0..).zip(readings) {
        accumulator.add(start + Duration::from_secs(second), *reading);
    }
    assert_eq!(meter.joules(), accumulator.joules());
    meter.joules().map(|joules| (joules * 1e6).round() / 1e6)
}

#[test]
fn a_meter_without_readings_knows_nothing() {
    assert_eq!(joules(&[]), None);
    assert_eq!(joules(&[None, None]), None);
    assert_eq!(EnergyMeter::new(Arc::default()).source(), None);
}

#[test]
fn counters_count_from_the_first_reading() {
    assert_eq!(joules(&[counter(500_000_000)]), Some(0.0));
    assert_eq!(joules(&[counter(500_000_000), counter(500_300_000), counter(500_300_500)]), Some(300.5));
}

#[test]
fn a_counter_that_was_reset_goes_on_from_zero() {
    assert_eq!(
        joules(&[counter(9_000_000), counter(9_100_000), counter(20_000), counter(50_000)]),
        Some(150.0)
    );
    // A misread value neither counts itself nor the way back.
    let glitch =
        [counter(9_000_000_000), counter(4_000_000_000), counter(9_000_001_000), counter(9_000_002_000)];
    assert_eq!(joules(&glitch), Some(1.0));
}

#[test]
fn a_counter_that_wraps_goes_on_from_zero() {
    assert_eq!(joules(&[rapl(262_143_328_850 - 7_000_000), rapl(3_000_000)]), Some(10.0));
    // Beyond the end that the kernel announced.
    assert_eq!(joules(&[rapl(u64::MAX), rapl(3_000_000)]), Some(3.0));
}

#[test]
fn power_is_integrated_by_trapezoids() {
    assert_eq!(joules(&[POWER(10.0), POWER(20.0), POWER(20.0)]), Some(35.0));
    assert_eq!(joules(&[POWER(10.0)]), Some(0.0));
}

#[test]
fn a_gap_adds_nothing() {
    assert_eq!(joules(&[POWER(10.0), None, POWER(1000.0), POWER(10.0)]), Some(505.0));
    assert_eq!(joules(&[counter(0), None, counter(9_000_000), counter(9_001_000)]), Some(1.0));
    assert_eq!(joules(&[counter(0), POWER(5.0), POWER(5.0)]), Some(5.0));
}

#[test]
fn the_source_is_the_one_of_the_last_reading() {
    let sum = Arc::new(Sum::default());
    let meter = EnergyMeter::new(Arc::clone(&sum));
    let mut accumulator = Accumulator::new(sum);
    accumulator.add(Instant::now(), counter(1));
    assert_eq!(meter.source(), Some("nvml counter"));
    accumulator.add(Instant::now(), None);
    assert_eq!((meter.source(), meter.joules()), (Some("nvml counter"), Some(0.0)));
    accumulator.add(Instant::now(), POWER(1.0));
    assert_eq!(meter.clone().source(), Some("amdgpu power"));
}

#[test]
fn marks_measure_work_between_two_readings() {
    let start = Instant::now();
    let sum = Arc::new(Sum::default());
    let meter = EnergyMeter::new(Arc::clone(&sum));
    let mut accumulator = Accumulator::new(sum);
    let mut read = |milliseconds, reading| {
        accumulator.add(start + Duration::from_millis(milliseconds), reading);
        meter.mark()
    };
    let first = read(0, POWER(100.0)).unwrap();
    let soon = read(50, POWER(100.0)).unwrap();
    let second = read(1000, POWER(100.0)).unwrap();
    assert_eq!(first.until(&soon), None, "too close together");
    let (joules, seconds) = first.until(&second).unwrap();
    assert!((joules - 100.0).abs() < 1e-9 && (seconds - 1.0).abs() < 1e-9, "{joules} J in {seconds} s");
    assert_eq!(read(2000, None), None);
    let after_gap = read(3000, POWER(100.0)).unwrap();
    assert_eq!(first.until(&after_gap), None, "nothing is known of the time without readings");
    assert_eq!(after_gap.until(&first), None);
    let other_source = read(4000, counter(1)).unwrap();
    assert_eq!(after_gap.until(&other_source), None);
}

#[test]
fn an_interval_begins_with_the_next_reading() {
    let start = Instant::now();
    let sum = Arc::new(Sum::default());
    let meter = EnergyMeter::new(Arc::clone(&sum));
    let mut accumulator = Accumulator::new(sum);
    let mut read = |milliseconds, reading| {
        accumulator.add(start + Duration::from_millis(milliseconds), reading);
    };
    read(0, POWER(10.0));
    read(1000, POWER(10.0));
    // Work begins after a second of idling, and takes another one.
    let first = meter.next_mark();
    assert_eq!(first.get(), None);
    read(1100, None);
    assert_eq!(first.get(), None, "the GPU could not be read");
    read(1200, POWER(300.0));
    read(2000, POWER(300.0));
    let (joules, seconds) = first.get().unwrap().until(&meter.mark().unwrap()).unwrap();
    assert!((joules - 240.0).abs() < 1e-9 && (seconds - 0.8).abs() < 1e-9, "{joules} J in {seconds} s");
    drop(meter.next_mark());
    let waiting = meter.next_mark();
    assert_eq!(meter.sum.pending.lock().unwrap().len(), 1, "nobody waits for the first one");
    drop(waiting);
}
