//! Pacing: how much work goes into one submission. Pure, tested without a GPU.
//!
//! Two bounds. A driver kills a submission that takes too long, amdgpu after 2 s; so a step is recorded in
//! segments, cut at layer boundaries, and as many segments go into one submission as stay well below that.
//! And a submission of many short decode steps would delay its first token; so a run has as many steps as
//! take about 50 ms.
//!
//! The time of a step is estimated for a slow GPU. Every measured step updates the *slowdown*, the measured
//! time relative to that estimate. A fast GPU's large steps are then recorded again in fewer segments: an
//! H200 had 1.7% more throughput with 128 sequences in one segment than in 35.

mod recent;
mod work;

use std::{collections::BTreeMap, ops::Range, time::Duration};

use kernels::matmul::gemv;

use crate::{
    bucket::{bucket, buckets},
    state::MAX_STEPS,
};

use recent::RecentTimes;
pub(crate) use work::{Estimator, MatrixSizes, RowSpan, StepExtent};

/// Estimated seconds of a segment; a single layer may take more.
const SEGMENT_SECONDS: f64 = 0.4;

/// Seconds of a submission: a quarter of what amdgpu allows. Estimates may err, and the desktop needs the GPU
/// too.
const SUBMISSION_SECONDS: f64 = 0.5;

/// Seconds of a layer, the shortest possible segment: beyond it chunks get fewer rows.
const MAX_LAYER_SECONDS: f64 = 1.0;

/// Duration of a decode run: short enough for a steady stream of tokens, long enough for submissions to cost
/// next to nothing.
const RUN_DURATION: Duration = Duration::from_millis(50);

/// Minimum rows that chunks are reduced to: fewer would not take less time.
const MIN_CHUNK_ROWS: usize = 8;

/// Slowdown that a bucket is expected to have, relative to a smaller one: more rows use a GPU better.
const LARGER_BUCKET: f64 = 0.9;

/// About as many steps of a smaller bucket pass until a bucket that was slow is tried again.
const RETRY_STEPS: f64 = 16.0;

/// Slowdowns above this count as this: such a device has no watchdog, or a segment per layer.
const MAX_SLOWDOWN: f64 = 8.0;

/// Up to this many segments are not worth recording again: four segments of the 27B's step of one row take no
/// longer than one.
pub(crate) const FEW_SEGMENTS: usize = 6;

/// The longest run of a bucket so far, and the step time of the last one.
#[derive(Clone, Copy, Debug)]
struct RunStats {
    max_steps: usize,
    step_time: Duration,
}

/// Decides on segments, submissions, run lengths and chunk sizes, from estimated and measured times.
#[derive(Clone, Debug)]
pub(crate) struct Pacer {
    estimator: Estimator,
    /// Slowdown of steps with few rows, and of steps with many.
    slowdowns: [Option<f64>; 2],
    /// Slowdown by bucket.
    bucket_slowdowns: BTreeMap<usize, f64>,
    /// The same, for the size of steps: it falls again while smaller buckets are measured. Otherwise a bucket that was
    /// slow once, as the first step after a pause is, would look too slow and never be measured again.
    size_slowdowns: BTreeMap<usize, f64>,
    /// Decode runs by bucket.
    runs: BTreeMap<usize, RunStats>,
    /// Times of decode and verify steps by bucket.
    step_times: BTreeMap<usize, RecentTimes>,
    /// Maximum seconds of a segment with more than one layer.
    segment_seconds: f64,
    /// Every layer is a segment and a submission of its own.
    layer_by_layer: bool,
}

impl Pacer {
    pub fn new(estimator: Estimator) -> Self {
        Self {
            estimator,
            slowdowns: [None; 2],
            bucket_slowdowns: BTreeMap::new(),
            size_slowdowns: BTreeMap::new(),
            runs: BTreeMap::new(),
            step_times: BTreeMap::new(),
            segment_seconds: SEGMENT_SECONDS,
            layer_by_layer: false,
        }
    }

    /// The number of units that segments are ranges of: layers, and the head as the last.
    pub fn units(&self) -> usize {
        self.estimator.units()
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn set_layer_by_layer(&mut self) {
        self.layer_by_layer = true;
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn set_segments(&mut self, seconds: f64, slowdown: Option<f64>) {
        (self.segment_seconds, self.slowdowns) = (seconds, [slowdown; 2]);
        self.bucket_slowdowns.clear();
        self.size_slowdowns.clear();
    }

    /// Whether a step of the same class, few or many rows, has been measured.
    pub fn is_measured(&self, rows: usize) -> bool {
        self.slowdowns[usize::from(is_many(rows))].is_some()
    }

    /// Slowdown of steps of the same class, few or many rows; 1 before any was measured.
    fn slowdown(&self, rows: usize) -> f64 {
        self.slowdowns[usize::from(is_many(rows))].unwrap_or(1.0)
    }

    /// Slowdown of a bucket; before it was measured, that of its class.
    pub fn bucket_slowdown(&self, bucket: usize) -> f64 {
        self.bucket_slowdowns.get(&bucket).copied().unwrap_or_else(|| self.slowdown(bucket))
    }

    /// Estimated seconds of a step, for its size. A bucket without an estimate is expected to be a little more efficient
    /// than the next smaller one of its class.
    pub fn estimated_seconds(&self, bucket: usize, extent: &StepExtent) -> f64 {
        let smaller = || self.size_slowdowns.range(class_of(bucket).start..bucket).next_back();
        let slowdown = self.size_slowdowns.get(&bucket).copied();
        let slowdown = slowdown.or_else(|| smaller().map(|(_, slowdown)| LARGER_BUCKET * slowdown));
        let slowdown = slowdown.unwrap_or_else(|| self.slowdown(bucket));
        self.estimator.seconds(extent).iter().sum::<f64>() * slowdown
    }

    /// The units of each segment of a step.
    pub fn segments(&self, bucket: usize, extent: &StepExtent) -> Vec<Range<usize>> {
        if self.layer_by_layer {
            return (0..self.units()).map(|unit| unit..unit + 1).collect();
        }
        segments(&self.estimator.seconds(extent), self.segment_seconds, self.bucket_slowdown(bucket))
    }

    /// Whether segments that were cut at a slowdown should be cut again at the present one.
    pub fn is_stale(&self, bucket: usize, recorded_slowdown: f64, segments: usize) -> bool {
        is_stale(recorded_slowdown, segments, self.bucket_slowdown(bucket))
    }

    /// The segments of each submission, as ranges over `segments` repeated for every step.
    pub fn submissions<'a>(
        &self,
        bucket: usize,
        extent: &StepExtent,
        segments: impl Iterator<Item = &'a Range<usize>>,
        steps: usize,
    ) -> Vec<Range<usize>> {
        let seconds = self.estimator.seconds(extent);
        let segment_seconds = |segment: &Range<usize>| seconds[segment.clone()].iter().sum::<f64>();
        let per_segment: Vec<f64> = segments.map(segment_seconds).collect();
        let slowdown = if self.layer_by_layer { f64::INFINITY } else { self.slowdown(bucket) };
        submissions(&per_segment.repeat(steps), slowdown)
    }

    /// Records the measured time of steps.
    pub fn record_steps(&mut self, bucket: usize, extent: &StepExtent, steps: usize, elapsed: Duration) {
        let estimated = self.estimator.seconds(extent).iter().sum::<f64>() * steps as f64;
        let slowdown = &mut self.slowdowns[usize::from(is_many(bucket))];
        *slowdown = updated_slowdown(*slowdown, estimated, elapsed);
        let known = self.bucket_slowdowns.get(&bucket).copied();
        let updated = updated_slowdown(known, estimated, elapsed);
        self.bucket_slowdowns.extend(updated.map(|slowdown| (bucket, slowdown)));

        let known = self.size_slowdowns.get(&bucket).copied();
        let Some(updated) = updated_slowdown(known, estimated, elapsed) else { return };
        self.size_slowdowns.insert(bucket, updated);
        let expected = LARGER_BUCKET * updated;
        for slowdown in
            self.size_slowdowns.range_mut(bucket + 1..class_of(bucket).end).map(|(_, value)| value)
        {
            if *slowdown > expected {
                *slowdown -= (*slowdown - expected) / RETRY_STEPS;
            }
        }
    }

    /// Records the measured time of a decode run with this many steps.
    pub fn record_run(&mut self, bucket: usize, steps: usize, elapsed: Duration) {
        let longest = self.runs.get(&bucket).map_or(0, |run| run.max_steps);
        let run = RunStats { max_steps: longest.max(steps), step_time: elapsed / steps as u32 };
        self.runs.insert(bucket, run);
    }

    /// Records the measured time of a decode or verify step.
    pub fn record_step_time(&mut self, bucket: usize, time: Duration) {
        self.step_times.entry(bucket).or_default().record(time);
    }

    /// Time of a decode or verify step of this many rows, by the latest of them.
    pub fn step_time(&self, rows: usize) -> Option<Duration> {
        self.step_times.get(&bucket(rows))?.time()
    }

    /// Steps of the next decode run of this many sequences.
    pub fn decode_run_steps(&self, sequences: usize) -> usize {
        run_steps(self.runs.get(&bucket(sequences)).copied())
    }

    /// The decode batch size with the highest throughput for this many sequences.
    pub fn decode_batch_size(&self, sequences: usize) -> usize {
        let step_time = |rows: usize| self.runs.get(&rows).map(|run| run.step_time);
        let below = buckets(sequences).filter(|rows| *rows < sequences).last();
        let below = below.and_then(|below| Some((below, step_time(below)?)));
        batch_size(sequences, step_time(bucket(sequences)), below)
    }

    /// Rows of the next prefill chunk after `held` tokens, at most `max`: fewer where a layer would take too
    /// long.
    pub fn chunk_rows(&self, held: u32, max: usize) -> usize {
        let longest_layer = |rows: usize| {
            let chunk = RowSpan { rows, depth: held.saturating_add(rows as u32) };
            let extent = StepExtent { decode: RowSpan::default(), chunks: vec![chunk], outputs: 0 };
            self.estimator.seconds(&extent).into_iter().fold(0.0, f64::max)
        };
        chunk_rows(max, self.slowdown(max), longest_layer)
    }

    /// Prefill rows beside `decode` decode rows for a step within a time limit: at most `max`, and as many as
    /// fill a bucket.
    pub fn mixed_chunk_rows(
        &self,
        decode: usize,
        max: usize,
        max_step_rows: usize,
        limit: Duration,
        extent: impl Fn(usize) -> StepExtent,
    ) -> usize {
        // A partly filled bucket would cost memory for nothing, and a program of its own.
        let buckets = std::iter::successors(Some(1), |rows| (*rows < max_step_rows).then_some(2 * rows));
        let mut candidates: Vec<usize> = buckets
            .filter_map(|rows| rows.checked_sub(decode))
            .map(|rows| rows.min(max))
            .filter(|rows| *rows >= MIN_CHUNK_ROWS.min(max).max(1))
            .collect();
        candidates.dedup();
        let seconds = |rows: usize| self.estimated_seconds(bucket(decode + rows), &extent(rows));
        largest_within(&candidates, limit.as_secs_f64(), seconds)
    }
}

/// Steps with few rows are bound by memory, those with many by arithmetic: the slowdown of one does not apply
/// to the other.
pub(crate) fn is_many(rows: usize) -> bool {
    rows > gemv::MAX_COLUMNS
}

/// The buckets of the same class, few or many rows.
fn class_of(bucket: usize) -> Range<usize> {
    if is_many(bucket) { gemv::MAX_COLUMNS + 1..usize::MAX } else { 0..gemv::MAX_COLUMNS + 1 }
}

/// Joins neighbours while their sum is within `limit` and their number within `max`.
fn pack(seconds: &[f64], limit: f64, max: usize) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut sum = 0.0;
    for (index, seconds) in seconds.iter().enumerate() {
        sum += seconds;
        match ranges.last_mut() {
            Some(last) if sum <= limit && last.len() < max => last.end = index + 1,
            _ => {
                sum = *seconds;
                ranges.push(index..index + 1);
            }
        }
    }
    ranges
}

/// The units of each segment, of at most `limit` seconds at this slowdown.
fn segments(seconds: &[f64], limit: f64, slowdown: f64) -> Vec<Range<usize>> {
    pack(seconds, limit / slowdown.min(MAX_SLOWDOWN), usize::MAX)
}

/// Whether segments that were cut at one slowdown should be cut again at another: they are much shorter than
/// necessary, or longer than they should be.
fn is_stale(recorded: f64, segments: usize, now: f64) -> bool {
    let (recorded, now) = (recorded.min(MAX_SLOWDOWN), now.min(MAX_SLOWDOWN));
    segments > FEW_SEGMENTS && 4.0 * now < recorded || now > 2.0 * recorded
}

/// The segments of each submission, by their estimated seconds.
fn submissions(seconds: &[f64], slowdown: f64) -> Vec<Range<usize>> {
    pack(seconds, SUBMISSION_SECONDS / slowdown, gpu::MAX_PROGRAMS_PER_SUBMIT)
}

/// The slowdown after a measurement.
fn updated_slowdown(slowdown: Option<f64>, estimated: f64, elapsed: Duration) -> Option<f64> {
    let measured = elapsed.as_secs_f64() / estimated;
    if !(measured.is_finite() && measured > 0.0) {
        return slowdown;
    }
    // A single slow step, whatever the reason, does not make a device slow for good.
    Some(slowdown.map_or(measured, |slowdown| 0.5 * (slowdown + measured)))
}

/// The decode batch size for `all` sequences: the next smaller bucket `below`, given with its step time, if
/// it has more throughput than all together.
fn batch_size(all: usize, step_time: Option<Duration>, below: Option<(usize, Duration)>) -> usize {
    match (step_time, below) {
        // A difference of 1% is within the noise of the measurements, and not worth rotating sequences.
        (Some(step_time), Some((fewer, shorter)))
            if fewer as f64 * step_time.as_secs_f64() > 1.01 * all as f64 * shorter.as_secs_f64() =>
        {
            fewer
        }
        _ => all,
    }
}

/// Rows of the next chunk: `max`, halved until no layer takes too long. `longest_layer` estimates the longest
/// layer of a chunk.
fn chunk_rows(max: usize, slowdown: f64, longest_layer: impl Fn(usize) -> f64) -> usize {
    let mut rows = max;
    while rows > MIN_CHUNK_ROWS && longest_layer(rows) * slowdown > MAX_LAYER_SECONDS {
        rows = (rows / 2).max(MIN_CHUNK_ROWS);
    }
    rows
}

/// The largest of the ascending `candidates` whose step is within `limit` seconds; at least the first.
fn largest_within(candidates: &[usize], limit: f64, seconds: impl Fn(usize) -> f64) -> usize {
    let fits = candidates.iter().copied().rfind(|rows| seconds(*rows) <= limit);
    fits.or(candidates.first().copied()).unwrap_or(0)
}

/// Steps of the next run: one at first, then as many as fit into [`RUN_DURATION`], at most twice the longest
/// run so far.
fn run_steps(known: Option<RunStats>) -> usize {
    let Some(RunStats { max_steps, step_time }) = known else { return 1 };
    let fit = (RUN_DURATION.as_secs_f64() / step_time.as_secs_f64().max(1e-9)).round() as usize;
    fit.clamp(1, MAX_STEPS.min(2 * max_steps.max(1)))
}

#[cfg(test)]
mod tests {
    use super::{work::tests::estimator, *};
    use crate::size::Size;

    #[test]
    fn a_few_sequences_beyond_a_bucket_rotate() {
        let micros = Duration::from_micros;
        // 32 at once decode 2,560 tok/s, 33 would decode 2,130.
        assert_eq!(batch_size(33, Some(micros(15_500)), Some((32, micros(12_500)))), 32);
        assert_eq!(batch_size(48, Some(micros(15_500)), Some((32, micros(12_500)))), 48);
        assert_eq!(batch_size(33, None, Some((32, micros(12_500)))), 33, "must be measured once");
        assert_eq!(batch_size(33, Some(micros(15_500)), None), 33);
    }

    fn extent(rows: usize, depth: u32) -> StepExtent {
        StepExtent { decode: RowSpan::default(), chunks: vec![RowSpan { rows, depth }], outputs: 1 }
    }

    fn estimates(size: Size, extent: StepExtent) -> Vec<f64> {
        estimator(size).seconds(&extent)
    }

    #[test]
    fn small_models_decode_in_one_segment_and_no_segment_is_long() {
        let segments = |seconds: &[f64]| segments(seconds, SEGMENT_SECONDS, 1.0);
        assert_eq!(segments(&estimates(Size::Gemma3Of1B, extent(1, 32768))).len(), 1);
        assert_eq!(segments(&estimates(Size::Gemma3Of4B, extent(1, 8192))).len(), 1);
        for size in Size::ALL {
            for (rows, depth) in [(1, 100), (8, 4096), (512, 512), (512, 32768)] {
                let seconds = estimates(size, extent(rows, depth));
                let segments = segments(&seconds);
                assert_eq!((segments[0].start, segments[segments.len() - 1].end), (0, seconds.len()));
                assert!(segments.windows(2).all(|pair| pair[0].end == pair[1].start));
                for segment in segments {
                    let sum: f64 = seconds[segment.clone()].iter().sum();
                    assert!(
                        segment.len() == 1 || sum <= SEGMENT_SECONDS + 1e-9,
                        "{size:?}, {rows} rows: {segment:?} {sum}"
                    );
                }
            }
        }
        // 27 GB are four segments.
        assert!((3..=5).contains(&segments(&estimates(Size::Gemma3Of27B, extent(1, 1024))).len()));
    }

    #[test]
    fn fast_devices_get_fewer_segments() {
        let seconds = estimates(Size::Gemma3Of27B, extent(128, 1024));
        let segments = |slowdown: f64| segments(&seconds, SEGMENT_SECONDS, slowdown);
        let (slow, fast) = (segments(1.0), segments(0.002));
        assert!(slow.len() > 30, "{slow:?}");
        assert_eq!((fast.len(), &fast[0]), (1, &(0..seconds.len())), "28 ms on an H200");
        // A tenth of the estimate is still more than a second.
        let between = segments(0.1);
        assert!((2..slow.len()).contains(&between.len()));
        for segment in &between {
            assert!(seconds[segment.clone()].iter().sum::<f64>() * 0.1 <= SEGMENT_SECONDS + 1e-9);
        }
        assert!(segments(50.0).len() > slow.len());

        assert!(
            is_stale(1.0, 35, 0.2) && !is_stale(1.0, 35, 0.3) && !is_stale(1.0, FEW_SEGMENTS, 0.001),
            "shorter than necessary"
        );
        assert!(is_stale(0.01, 1, 0.03) && !is_stale(0.01, 1, 0.015), "longer than they should be");
        assert!(is_stale(1.0, 1, 5.0) && !is_stale(20.0, 63, 5.0), "the slowdown is capped");
    }

    #[test]
    fn a_fast_device_gets_one_submission_and_a_slow_one_several() {
        let seconds = estimates(Size::Gemma3Of27B, extent(512, 512));
        let total: f64 = seconds.iter().sum();
        // Before anything is measured: one segment per submission.
        assert_eq!(submissions(&seconds, 1.0).len(), seconds.len());
        // 0.3 s, as on a fast GPU: all at once, as far as one vkQueueSubmit takes them.
        assert_eq!(submissions(&seconds, 0.3 / total).len(), seconds.len().div_ceil(64));
        // 10 s: no submission takes more than half a second.
        let slowdown = 10.0 / total;
        for range in submissions(&seconds, slowdown) {
            assert!(seconds[range].iter().sum::<f64>() * slowdown <= SUBMISSION_SECONDS + 1e-9);
        }
        assert_eq!(submissions(&[1.0, 2.0, 0.1], 1e9), [0..1, 1..2, 2..3], "a segment cannot be cut");
        assert!(submissions(&[], 1.0).is_empty());
    }

    #[test]
    fn chunks_shrink_where_a_layer_takes_too_long() {
        let estimator = estimator(Size::Gemma3Of27B);
        let longest = |depth: u32| {
            let estimator = &estimator;
            move |rows: usize| estimator.seconds(&extent(rows, depth)).into_iter().fold(0.0, f64::max)
        };
        assert_eq!(chunk_rows(512, 1.0, longest(512)), 512, "not before it is known to be slow");
        assert_eq!(chunk_rows(512, 2.0, longest(512)), 256);
        assert_eq!(chunk_rows(512, 1.0, longest(131_072)), 128, "attention dominates deep in a long context");
        assert_eq!(chunk_rows(512, 0.01, longest(131_072)), 512);
        assert_eq!((chunk_rows(512, 1e9, longest(512)), chunk_rows(3, 1e9, longest(512))), (8, 3));
    }

    #[test]
    fn a_bucket_that_was_slow_is_tried_again() {
        let mut pacer = Pacer::new(estimator(Size::Gemma3Of27B));
        let millis = Duration::from_millis;
        let record = |pacer: &mut Pacer, rows: usize, time: u64| {
            pacer.record_steps(rows, &extent(rows, 512), 1, millis(time));
        };
        let rows_within = |pacer: &Pacer, limit: u64| {
            pacer.mixed_chunk_rows(0, 2048, 2048, millis(limit), |rows| extent(rows, rows as u32))
        };
        let steps_until_tried = |pacer: &mut Pacer| {
            let mut steps = 0;
            while rows_within(pacer, 100) < 512 && steps < 1000 {
                record(pacer, 256, 50);
                steps += 1;
            }
            steps
        };
        // The first step, at low clocks.
        record(&mut pacer, 512, 300);
        assert_eq!(rows_within(&pacer, 200), 256);
        assert!((8..100).contains(&steps_until_tried(&mut pacer)));
        // At full clocks it fits, and so does a larger one that was never measured.
        for _ in 0..4 {
            record(&mut pacer, 512, 85);
        }
        assert_eq!((rows_within(&pacer, 100), rows_within(&pacer, 200)), (512, 1024));
        // A bucket that is always slow is tried now and then only.
        for _ in 0..4 {
            record(&mut pacer, 512, 300);
        }
        for _ in 0..4 {
            assert!((8..100).contains(&steps_until_tried(&mut pacer)));
            record(&mut pacer, 512, 300);
        }
    }

    #[test]
    fn the_size_of_a_step_depends_on_steps_of_its_class() {
        let mut pacer = Pacer::new(estimator(Size::Gemma3Of27B));
        let millis = Duration::from_millis;
        let seconds = |pacer: &Pacer, rows: usize| pacer.estimated_seconds(rows, &extent(rows, 512));
        pacer.record_steps(512, &extent(512, 512), 1, millis(100));
        let before = seconds(&pacer, 512);
        // A single row is limited by memory, and a smaller bucket tells nothing about a larger one that is faster.
        pacer.record_steps(1, &extent(1, 512), 1, millis(1));
        pacer.record_steps(256, &extent(256, 512), 1, millis(1000));
        assert_eq!(seconds(&pacer, 512), before);
        assert!(seconds(&pacer, 256) > 0.99, "nor a larger one about a smaller one that is slower");
    }

    #[test]
    fn a_mixed_chunk_keeps_to_its_time_limit() {
        let candidates = [8, 24, 56, 120];
        let seconds = |rows: usize| 0.001 * rows as f64;
        assert_eq!(largest_within(&candidates, 1.0, seconds), 120);
        assert_eq!(largest_within(&candidates, 0.1, seconds), 56);
        assert_eq!(largest_within(&candidates, 0.001, seconds), 8, "fewer would not take less time");
        assert_eq!(largest_within(&[], 1.0, seconds), 0);
    }

    #[test]
    fn a_measurement_counts_half_against_earlier_ones() {
        assert_eq!(updated_slowdown(None, 2.0, Duration::from_secs(1)), Some(0.5));
        assert_eq!(updated_slowdown(Some(1.5), 2.0, Duration::from_secs(1)), Some(1.0));
        assert_eq!(updated_slowdown(Some(1.5), 0.0, Duration::from_secs(1)), Some(1.5));
        assert_eq!(updated_slowdown(None, 2.0, Duration::ZERO), None);
    }

    #[test]
    fn runs_grow_to_fifty_milliseconds() {
        let steps =
            |max_steps: usize, step_time: Duration| run_steps(Some(RunStats { max_steps, step_time }));
        let millis = Duration::from_millis;
        assert_eq!(run_steps(None), 1);
        assert_eq!(steps(1, millis(1)), 2);
        assert_eq!(steps(8, millis(1)), 16);
        assert_eq!(steps(32, millis(2)), 25);
        assert_eq!(steps(32, Duration::from_micros(100)), 32);
        assert_eq!(steps(20, millis(5)), 10);
        assert_eq!(steps(2, millis(30)), 2);
        assert_eq!(steps(1, millis(400)), 1);
        assert_eq!(steps(4, Duration::ZERO), 8);
    }
}
