//! A check that parsing takes linear time, for `make soak`: a ratio of times, so that the machine's speed does
//! not matter.

use std::time::{Duration, Instant};

/// Maximum cost relative to the reference. Linear parsers stay below 3; a quadratic search for duplicates at
/// the limits costs more than 30 times as much.
const MAX_RATIO: f64 = 10.0;

/// Minimum and maximum number of measurements: the shortest time of each side counts, and a busy machine may
/// need several attempts to measure it.
const ROUNDS: std::ops::RangeInclusive<usize> = 3..=20;

/// An ordinary input is parsed this many times as the reference for an input this many times as large.
pub const REFERENCE_SHARE: usize = 16;

/// Asserts that `costly`, which parses an input at the size limits, takes about as long as parsing
/// [`REFERENCE_SHARE`] ordinary inputs of that fraction of the size with `ordinary`.
pub fn assert_linear(name: &str, costly: impl Fn(), ordinary: impl Fn()) {
    let time = |work: &dyn Fn()| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    let reference = || (0..REFERENCE_SHARE).for_each(|_| ordinary());
    let (mut costly_time, mut reference_time) = (Duration::MAX, Duration::MAX);
    for round in 1..=*ROUNDS.end() {
        costly_time = costly_time.min(time(&costly));
        reference_time = reference_time.min(time(&reference));
        let ratio = costly_time.as_secs_f64() / reference_time.as_secs_f64();
        if round >= *ROUNDS.start() && ratio <= MAX_RATIO {
            println!("{name}: {ratio:.2} times the reference after {round} rounds");
            return;
        }
    }
    panic!("{name} took {costly_time:?}, more than {MAX_RATIO} times the reference of {reference_time:?}");
}
