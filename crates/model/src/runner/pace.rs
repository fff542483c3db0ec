//! How much work goes into one submission: pure, tested without a GPU.
//!
//! Two bounds. A submission that takes too long is killed, by amdgpu after 2 s, so a step is recorded in parts, cut at layers, and
//! as many parts go into one submission as stay well below that. And a submission of many short steps would hold back its first
//! token, so it holds as many as make about 50 ms.
//!
//! What a part takes is estimated for a slow GPU until a step was measured; then the estimate is scaled by what was found, and a fast
//! GPU's large steps are recorded anew in fewer parts: an H200 made 1.7% more tokens of 128 sequences in one part than in 35.

use std::{ops::Range, time::Duration};

use checkpoint::{Config, config::LayerType};
use tensor::KvScheme;

use crate::state::MAX_STEPS;

/// Work of a layer, or of what follows the layers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Load {
    /// Bytes read.
    pub bytes: f64,
    /// Multiply-adds.
    pub products: f64,
}

/// Bytes and values of the matrices of each layer, and of the head at the end.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Matrices(pub Vec<(u64, u64)>);

/// What a slow GPU does in a second: bytes read, and multiply-adds. Half of what an APU of 2018 has.
const SLOW: Load = Load { bytes: 20e9, products: 0.25e12 };

/// Seconds of a part, by the estimate: a single layer may take more.
pub(super) const PART: f64 = 0.4;

/// Seconds of a submission. A quarter of what amdgpu allows: estimates may err, and the desktop wants its share.
const SUBMISSION: f64 = 0.5;

/// Seconds of a layer's part, which is as short as a part can be: beyond it chunks get fewer rows.
const LAYER: f64 = 1.0;

/// What a run of steps is to take: a reader sees a steady stream, and waiting for the next submission costs next to nothing.
const RUN: Duration = Duration::from_millis(50);

/// Fewest rows that chunks are cut down to: fewer would not take less time.
pub(super) const FEWEST_ROWS: usize = 8;

/// The rows of a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Extent {
    pub apart: Seeing,
    pub chunks: Vec<Seeing>,
    /// Rows whose logits are wanted.
    pub outputs: usize,
}

/// Rows and what attention reads for them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Seeing {
    pub rows: usize,
    /// Positions that the last of them sees.
    pub depth: u32,
}

impl Load {
    /// Seconds on a slow GPU.
    fn seconds(self) -> f64 {
        self.bytes / SLOW.bytes + self.products / SLOW.products
    }
}

/// Seconds on a slow GPU of each layer, and of what follows them.
pub(super) fn estimate(config: &Config, kv: KvScheme, matrices: &Matrices, extent: &Extent) -> Vec<f64> {
    let Extent { apart, chunks, outputs } = extent;
    let layers = config.layer_types.len();
    let all = apart.rows + chunks.iter().map(|chunk| chunk.rows).sum::<usize>();
    let unit = |(number, (bytes, values)): (usize, &(u64, u64))| {
        let rows = if number < layers { all } else { *outputs };
        let mut load = Load { bytes: *bytes as f64, products: (*values as f64) * rows as f64 };
        if rows == 0 {
            load = Load::default();
        }
        if let Some(kind) = config.layer_types.get(number) {
            let window = config.sliding_window.unwrap_or(u32::MAX);
            let line = f64::from(2 * config.kv_heads) * kv.head_bytes(config.head_dim) as f64;
            // Rows that are apart see a window each, those of each chunk together that much more than one.
            let chunks = chunks.iter().map(|chunk| (chunk, 1, chunk.rows as u32));
            for (rows, sequences, more) in chunks.chain([(apart, apart.rows, 0)]) {
                let seen = match kind {
                    LayerType::Global => rows.depth,
                    LayerType::Sliding => rows.depth.min(window.saturating_add(more)),
                };
                load.bytes += f64::from(seen) * line * sequences as f64;
                load.products += 2.0 * f64::from(seen) * f64::from(config.query_rows()) * rows.rows as f64;
            }
        }
        load.seconds()
    };
    matrices.0.iter().enumerate().map(unit).collect()
}

/// Puts neighbours together as long as their sum is within `limit` and their number within `most`.
fn pack(seconds: &[f64], limit: f64, most: usize) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut sum = 0.0;
    for (number, seconds) in seconds.iter().enumerate() {
        sum += seconds;
        match ranges.last_mut() {
            Some(last) if sum <= limit && last.len() < most => last.end = number + 1,
            _ => {
                sum = *seconds;
                ranges.push(number..number + 1);
            }
        }
    }
    ranges
}

/// A device that is slower than this by the estimate is not taken for slower still: it has no watchdog, or a part for each layer.
const SLOWEST: f64 = 8.0;

/// So many parts are not worth recording anew: four of the 27B's step of one row take no longer than one.
pub(super) const FEW_PARTS: usize = 6;

/// Which layers (and, after the last, what follows them) make each part of a step. `pace` is how much longer than estimated steps took
/// so far, `part` how long one may take.
pub(super) fn parts(seconds: &[f64], part: f64, pace: f64) -> Vec<Range<usize>> {
    pack(seconds, part / pace.min(SLOWEST), usize::MAX)
}

/// Whether so many parts that were cut at a pace had better be cut anew, now that it is another: they are much shorter than need be, or
/// longer than they should.
pub(super) fn is_stale(cut: f64, parts: usize, now: f64) -> bool {
    let (cut, now) = (cut.min(SLOWEST), now.min(SLOWEST));
    parts > FEW_PARTS && 4.0 * now < cut || now > 2.0 * cut
}

/// Which parts make each submission, by their estimates. `pace` is how much longer than estimated steps took so far.
pub(super) fn submissions(seconds: &[f64], pace: f64) -> Vec<Range<usize>> {
    pack(seconds, SUBMISSION / pace, gpu::MAX_PROGRAMS_PER_SUBMIT)
}

/// The pace after a step was measured.
pub(super) fn measured(pace: Option<f64>, estimated: f64, took: Duration) -> Option<f64> {
    let found = took.as_secs_f64() / estimated;
    if !(found.is_finite() && found > 0.0) {
        return pace;
    }
    // What was once slow, for whatever else the machine did, is not slow for good.
    Some(pace.map_or(found, |pace| 0.5 * (pace + found)))
}

/// How many of `all` rows to carry forward at once: fewer where they make more tokens per second than all together. `below` is such a
/// number with what its step takes.
pub(super) fn at_once(all: usize, step: Option<Duration>, below: Option<(usize, Duration)>) -> usize {
    match (step, below) {
        // Measured times are not worth a turn for a difference of a hundredth.
        (Some(step), Some((fewer, shorter)))
            if fewer as f64 * step.as_secs_f64() > 1.01 * all as f64 * shorter.as_secs_f64() =>
        {
            fewer
        }
        _ => all,
    }
}

/// Rows of the next chunk: `most`, or half of it, and so on, so that no layer takes too long. `longest` estimates the longest layer
/// of a chunk.
pub(super) fn chunk(most: usize, pace: f64, longest: impl Fn(usize) -> f64) -> usize {
    let mut rows = most;
    while rows > FEWEST_ROWS && longest(rows) * pace > LAYER {
        rows = (rows / 2).max(FEWEST_ROWS);
    }
    rows
}

/// Rows of a chunk beside others: the largest number of `choices`, which ascend, whose step is within `limit` seconds by `seconds`; at
/// least the first.
pub(super) fn beside(choices: &[usize], limit: f64, seconds: impl Fn(usize) -> f64) -> usize {
    let fits = choices.iter().copied().rfind(|rows| seconds(*rows) <= limit);
    fits.or(choices.first().copied()).unwrap_or(0)
}

/// Steps of the next run, by the most that a run had and what a step of the last took: one at first, then at most twice as many as
/// ever before.
pub(super) fn steps(known: Option<(usize, Duration)>) -> usize {
    let Some((most, step)) = known else { return 1 };
    let fit = (RUN.as_secs_f64() / step.as_secs_f64().max(1e-9)).round() as usize;
    fit.clamp(1, MAX_STEPS.min(2 * most.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::Size;

    #[test]
    fn a_few_more_than_a_bucket_take_turns() {
        let ms = Duration::from_micros;
        // 32 at once make 2,560 tokens a second, 33 would make 2,130.
        assert_eq!(at_once(33, Some(ms(15_500)), Some((32, ms(12_500)))), 32);
        assert_eq!(at_once(48, Some(ms(15_500)), Some((32, ms(12_500)))), 48);
        assert_eq!(at_once(33, None, Some((32, ms(12_500)))), 33, "it has to be measured once");
        assert_eq!(at_once(33, Some(ms(15_500)), None), 33);
    }

    /// A model of one byte a weight.
    fn matrices(config: &Config) -> Matrices {
        let hidden = u64::from(config.hidden);
        let kv = u64::from(config.kv_rows());
        let (query, inner) = (u64::from(config.query_rows()), u64::from(config.intermediate));
        let layer = hidden * (2 * query + 2 * kv + 3 * inner);
        let head = hidden * u64::from(config.vocab);
        let layers = config.layer_types.iter().map(|_| (layer, layer));
        Matrices(layers.chain([(head, head)]).collect())
    }

    fn extent(rows: usize, depth: u32) -> Extent {
        Extent { apart: Seeing::default(), chunks: vec![Seeing { rows, depth }], outputs: 1 }
    }

    fn estimates(size: Size, extent: Extent) -> Vec<f64> {
        let config = size.config().unwrap();
        estimate(&config, KvScheme::F16, &matrices(&config), &extent)
    }

    #[test]
    fn small_models_decode_in_one_part_and_no_part_is_long() {
        assert_eq!(parts(&estimates(Size::Gemma1B, extent(1, 32768)), PART, 1.0).len(), 1);
        assert_eq!(parts(&estimates(Size::Gemma4B, extent(1, 8192)), PART, 1.0).len(), 1);
        for size in Size::ALL {
            for (rows, depth) in [(1, 100), (8, 4096), (512, 512), (512, 32768)] {
                let seconds = estimates(size, extent(rows, depth));
                let parts = parts(&seconds, PART, 1.0);
                assert_eq!((parts[0].start, parts[parts.len() - 1].end), (0, seconds.len()));
                assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
                for part in parts {
                    let sum: f64 = seconds[part.clone()].iter().sum();
                    assert!(part.len() == 1 || sum <= PART + 1e-9, "{size:?}, {rows} rows: {part:?} {sum}");
                }
            }
        }
        // 27 GB are four parts.
        assert!((3..=5).contains(&parts(&estimates(Size::Gemma27B, extent(1, 1024)), PART, 1.0).len()));
    }

    #[test]
    fn what_turns_out_fast_is_cut_into_fewer_parts() {
        let seconds = estimates(Size::Gemma27B, extent(128, 1024));
        let (slow, fast) = (parts(&seconds, PART, 1.0), parts(&seconds, PART, 0.002));
        assert!(slow.len() > 30, "{slow:?}");
        assert_eq!((fast.len(), &fast[0]), (1, &(0..seconds.len())), "28 ms on an H200");
        // A tenth of the estimate is more than a second all the same.
        let between = parts(&seconds, PART, 0.1);
        assert!((2..slow.len()).contains(&between.len()));
        for part in &between {
            assert!(seconds[part.clone()].iter().sum::<f64>() * 0.1 <= PART + 1e-9);
        }
        assert!(parts(&seconds, PART, 50.0).len() > slow.len());

        assert!(
            is_stale(1.0, 35, 0.2) && !is_stale(1.0, 35, 0.3) && !is_stale(1.0, FEW_PARTS, 0.001),
            "what is worth it"
        );
        assert!(is_stale(0.01, 1, 0.03) && !is_stale(0.01, 1, 0.015), "what takes too long");
        assert!(is_stale(1.0, 1, 5.0) && !is_stale(20.0, 63, 5.0), "slow is slow");
    }

    #[test]
    fn a_fast_device_gets_one_submission_and_a_slow_one_several() {
        let seconds = estimates(Size::Gemma27B, extent(512, 512));
        let total: f64 = seconds.iter().sum();
        // Before anything is known: each part alone.
        assert_eq!(submissions(&seconds, 1.0).len(), seconds.len());
        // 0.3 s, as a fast GPU takes: all at once, as far as Vulkan's call takes them.
        assert_eq!(submissions(&seconds, 0.3 / total).len(), seconds.len().div_ceil(64));
        // 10 s: none of the submissions takes more than half a second.
        let pace = 10.0 / total;
        for range in submissions(&seconds, pace) {
            assert!(seconds[range].iter().sum::<f64>() * pace <= SUBMISSION + 1e-9);
        }
        assert_eq!(submissions(&[1.0, 2.0, 0.1], 1e9), [0..1, 1..2, 2..3], "a part cannot be cut");
        assert!(submissions(&[], 1.0).is_empty());
    }

    #[test]
    fn chunks_shrink_where_a_layer_takes_too_long() {
        let config = Size::Gemma27B.config().unwrap();
        let matrices = matrices(&config);
        let longest = |depth: u32| {
            let (config, matrices) = (&config, &matrices);
            move |rows: usize| {
                let seconds = estimate(config, KvScheme::F16, matrices, &extent(rows, depth));
                seconds.into_iter().fold(0.0, f64::max)
            }
        };
        assert_eq!(chunk(512, 1.0, longest(512)), 512, "not before it is known to be slow");
        assert_eq!(chunk(512, 2.0, longest(512)), 256);
        assert_eq!(chunk(512, 1.0, longest(131_072)), 128, "deep in a long context attention is most of it");
        assert_eq!(chunk(512, 0.01, longest(131_072)), 512);
        assert_eq!((chunk(512, 1e9, longest(512)), chunk(3, 1e9, longest(512))), (8, 3));
    }

    #[test]
    fn rows_of_both_kinds_take_what_each_takes_but_for_the_weights() {
        let of_chunks = |apart: Seeing, chunks: Vec<Seeing>| {
            estimates(Size::Gemma1B, Extent { apart, chunks, outputs: 0 }).iter().sum::<f64>()
        };
        let seconds = |apart: Seeing, chunk: Seeing| of_chunks(apart, vec![chunk]);
        let none = Seeing::default();
        let (apart, chunk) = (Seeing { rows: 8, depth: 9000 }, Seeing { rows: 248, depth: 4000 });
        let config = Size::Gemma1B.config().unwrap();
        let layers = &matrices(&config).0[..config.layer_types.len()];
        let weights = layers.iter().map(|(bytes, _)| *bytes as f64 / SLOW.bytes).sum::<f64>();
        let both = seconds(apart, chunk);
        assert!((both - (seconds(apart, none) + seconds(none, chunk) - weights)).abs() < 1e-9 * both);
        // And each counts with its own depth.
        assert!(both < seconds(apart, Seeing { depth: 9000, ..chunk }));
        assert!(both < seconds(Seeing { depth: 9500, ..apart }, chunk));
        // Chunks that see few positions beside one that sees many cost what they see; each has keys of its own to read.
        let parts = [(8, 4000), (120, 200), (120, 120)].map(|(rows, depth)| Seeing { rows, depth }).to_vec();
        assert!(of_chunks(none, parts) < seconds(none, chunk));
        let pairs = vec![Seeing { rows: 2, ..chunk }; 4];
        assert!(of_chunks(none, pairs) > 1.01 * seconds(none, Seeing { rows: 8, ..chunk }));
    }

    #[test]
    fn a_chunk_beside_others_keeps_to_the_time_it_is_given() {
        let choices = [8, 24, 56, 120];
        let seconds = |rows: usize| 0.001 * rows as f64;
        assert_eq!(beside(&choices, 1.0, seconds), 120);
        assert_eq!(beside(&choices, 0.1, seconds), 56);
        assert_eq!(beside(&choices, 0.001, seconds), 8, "fewer would not take less time");
        assert_eq!(beside(&[], 1.0, seconds), 0);
    }

    #[test]
    fn what_was_measured_counts_half_against_what_was_known() {
        assert_eq!(measured(None, 2.0, Duration::from_secs(1)), Some(0.5));
        assert_eq!(measured(Some(1.5), 2.0, Duration::from_secs(1)), Some(1.0));
        assert_eq!(measured(Some(1.5), 0.0, Duration::from_secs(1)), Some(1.5));
        assert_eq!(measured(None, 2.0, Duration::ZERO), None);
    }

    #[test]
    fn runs_grow_to_twenty_milliseconds() {
        let millis = Duration::from_millis;
        assert_eq!(steps(None), 1);
        assert_eq!(steps(Some((1, millis(1)))), 2);
        assert_eq!(steps(Some((8, millis(1)))), 16);
        assert_eq!(steps(Some((32, millis(2)))), 25);
        assert_eq!(steps(Some((32, Duration::from_micros(100)))), 32);
        assert_eq!(steps(Some((20, millis(5)))), 10);
        assert_eq!(steps(Some((2, millis(30)))), 2);
        assert_eq!(steps(Some((1, millis(400)))), 1);
        assert_eq!(steps(Some((4, Duration::ZERO))), 8);
    }
}
