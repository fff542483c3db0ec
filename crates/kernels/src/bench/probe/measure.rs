//! Measurements of a device's peak memory bandwidth and command overhead. Every percentage that Indrik prints
//! is relative to these.

use std::time::{Duration, Instant};

use gpu::{
    AdapterKind, Arena, Buffer, Device, Error, Lifetime, Memory, Program, Result, TimestampMode, View,
};
use serde::Serialize;

use super::{Read, ReadShape, Touch};
use crate::bench::random::{Distribution, Random};

/// Read bandwidth of a device, and the cost of its commands.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Bytes per read for the bandwidth figures.
    pub bytes: u64,
    /// Read bandwidth, bytes per second, at the best shape.
    pub read_bytes_per_s: f64,
    /// The shape that read fastest.
    pub shape: ReadShape,
    /// Every shape tried, with its bandwidth.
    pub shapes: Vec<(ReadShape, f64)>,
    /// One read with its barrier: bytes and nanoseconds.
    pub sizes: Vec<(u64, f64)>,
    /// An independent dispatch, in nanoseconds.
    pub dispatch_ns: f64,
    /// A dispatch that depends on the previous one, in nanoseconds.
    pub dependent_dispatch_ns: f64,
    /// Host time per submission, in nanoseconds.
    pub submit_ns: f64,
    /// Round trip of a nearly empty submission, in nanoseconds.
    pub round_trip_ns: f64,
}

/// Timeout per measurement: none takes this long on a working device.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Runs per measurement; odd, so that the median is one of them.
const REPEATS: usize = 5;

/// Default number of bytes to read: many times any cache, and fast even on a slow device.
pub fn default_bytes(device: &Device) -> u64 {
    let max_bytes = if device.info().kind == AdapterKind::Cpu { 256 << 20 } else { 8 << 30 };
    let free = device.heaps().iter().filter(|heap| heap.device_local).map(gpu::Heap::free).max().unwrap_or(0);
    // Less would measure a cache; where even that is not free, the allocation fails.
    max_bytes.min(free / 2).max(16 << 20)
}

/// Measures a device by reading `bytes` of its memory; `progress` gets a description of each step.
pub fn measure(device: &Device, bytes: u64, mut progress: impl FnMut(&str)) -> Result<Measured> {
    let bytes = bytes / 16 * 16;
    if bytes == 0 {
        return Err(Error::InvalidUse {
            what: "bandwidth".into(),
            reason: "there must be at least 16 bytes to read".into(),
        });
    }
    progress(&format!("filling {} with random words", gpu::format_bytes(bytes)));
    let blocks = random_blocks(device, bytes)?;
    let result = results(device)?;
    let shapes = time_shapes(device, &blocks, &result, &mut progress)?;
    let (shape, read_bytes_per_s) = fastest(&shapes);

    progress("timing single reads");
    let mut sizes = Vec::new();
    for size in [1_u64, 4, 16, 64, 256, 1024].map(|mib| mib << 20) {
        if let Some(views) = rotating(&blocks, size)? {
            let count = views.len() as f64;
            sizes.push((size, time_reads(device, shape, &views, &result)? / count));
        }
    }
    progress("timing dispatches and barriers");
    let (dispatch_ns, dependent_dispatch_ns) = time_dispatches(device)?;
    let (submit_ns, round_trip_ns) = time_submissions(device)?;
    Ok(Measured {
        bytes,
        read_bytes_per_s,
        shape,
        shapes,
        sizes,
        dispatch_ns,
        dependent_dispatch_ns,
        submit_ns,
        round_trip_ns,
    })
}

/// The peak read bandwidth of a device's memory, in bytes per second: the roofline. Takes less memory and
/// time than [`measure`]. A CPU driver is compute-bound before it is memory-bound, so there the host itself
/// does the reading.
pub fn read_bandwidth(device: &Device) -> Result<f64> {
    read_bandwidth_of(device, default_bytes(device) / 4)
}

/// The same, reading at most `max_bytes` at once.
pub fn read_bandwidth_of(device: &Device, max_bytes: u64) -> Result<f64> {
    if device.info().kind == AdapterKind::Cpu {
        return Ok(cpu_read_bandwidth());
    }
    // Still more than any cache.
    let bytes = max_bytes.min(default_bytes(device) / 4);
    let blocks = random_blocks(device, bytes / 16 * 16)?;
    Ok(fastest(&time_shapes(device, &blocks, &results(device)?, &mut |_| ())?).1)
}

/// Memory read bandwidth of all cores together, without a driver: the best of several runs.
fn cpu_read_bandwidth() -> f64 {
    const WORDS: usize = (256 << 20) / 8;
    let words: Vec<u64> = (0..WORDS as u64).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let read_all = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for slice in words.chunks(WORDS.div_ceil(cores)) {
                // Eight independent sums: with one, each operation would wait for the previous one.
                scope.spawn(|| {
                    let mut sums = [0_u64; 8];
                    for words in slice.as_chunks::<8>().0 {
                        for (sum, word) in sums.iter_mut().zip(words) {
                            *sum ^= word;
                        }
                    }
                    std::hint::black_box(sums);
                });
            }
        });
        (WORDS * 8) as f64 / start.elapsed().as_secs_f64()
    };
    (0..REPEATS).map(|_| read_all()).fold(0.0, f64::max)
}

/// A buffer for the results of reads: without a result, a compiler could eliminate the read.
fn results(device: &Device) -> Result<View> {
    let max_groups = ReadShape::candidates(device.caps()).iter().map(|shape| shape.groups).max().unwrap_or(1);
    let mut scratch = Arena::new(device, Lifetime::Scratch, Memory::Device).with_block_size(1 << 20);
    Ok(scratch.buffer("results", u64::from(max_groups) * 4)?.view())
}

/// Every shape worth trying, with its bandwidth in bytes per second.
fn time_shapes(
    device: &Device,
    blocks: &[Buffer],
    result: &View,
    progress: &mut impl FnMut(&str),
) -> Result<Vec<(ReadShape, f64)>> {
    let bytes: u64 = blocks.iter().map(Buffer::len).sum();
    let views: Vec<View> = blocks.iter().map(Buffer::view).collect();
    let time = |shape: ReadShape| {
        progress(&format!("reading with {} groups of {} threads", shape.groups, shape.threads));
        Ok((shape, bytes as f64 / time_reads(device, shape, &views, result)? * 1e9))
    };
    ReadShape::candidates(device.caps()).into_iter().map(time).collect()
}

fn fastest(shapes: &[(ReadShape, f64)]) -> (ReadShape, f64) {
    shapes.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)).expect("there is always a candidate")
}

/// Buffers of random words, `bytes` in total; all are allocated before the first is filled.
fn random_blocks(device: &Device, bytes: u64) -> Result<Vec<Buffer>> {
    let largest = device.caps().max_allocation.min(bytes) / 16 * 16;
    let mut arena = Arena::new(device, Lifetime::Scratch, Memory::Device).with_block_size(largest);
    let mut blocks = Vec::new();
    let mut left = bytes;
    while left > 0 {
        let block = arena.buffer("bandwidth measurement", left.min(largest))?;
        left -= block.len();
        blocks.push(block);
    }
    let random = Random::new(device, Distribution::Bits)?;
    for (seed, block) in (0..).zip(&blocks) {
        let mut recorder = device.recorder()?;
        random.record(&mut recorder, "random", &block.view(), seed)?;
        recorder.seal()?.run(TIMEOUT)?;
    }
    Ok(blocks)
}

/// Disjoint views of one size, so that no read hits a cache; none when there are fewer than three.
fn rotating(blocks: &[Buffer], size: u64) -> Result<Option<Vec<View>>> {
    const MAX_VIEWS: usize = 32;
    let mut views = Vec::new();
    for block in blocks {
        // Spread over the block: neighbours would still be cached from the previous run.
        let fit = block.len() / size;
        let step = (fit / MAX_VIEWS as u64).max(1);
        for index in (0..fit).step_by(step as usize) {
            views.push(block.slice(index * size..(index + 1) * size)?);
        }
    }
    views.truncate(MAX_VIEWS);
    Ok((views.len() >= 3).then_some(views))
}

/// GPU nanoseconds for reading all of `views`, one after the other: the median of several runs, each long enough for a
/// GPU to raise its clocks and for its start and end not to matter.
fn time_reads(device: &Device, shape: ReadShape, views: &[View], result: &View) -> Result<f64> {
    const MIN_NS: f64 = 5e6;
    let read = Read::new(device, shape)?;
    let record = |passes: u32| {
        let mut recorder = device.timed_recorder(TimestampMode::Whole)?;
        for _ in 0..passes {
            for view in views {
                read.record(&mut recorder, "read", view, result)?;
            }
        }
        recorder.seal()
    };
    let once = record(1)?;
    once.run(TIMEOUT)?;
    let pass_ns = gpu_ns(&once)?;
    if pass_ns >= MIN_NS {
        return median_gpu_ns(&once);
    }
    // Bounded, for a timer that reports 0.
    let passes = (MIN_NS / pass_ns.max(1.0)).ceil().min(256.0) as u32;
    Ok(median_gpu_ns(&record(passes)?)? / f64::from(passes))
}

fn time_dispatches(device: &Device) -> Result<(f64, f64)> {
    const COUNT: u64 = 512;
    // Counters at this distance share no cache line.
    const SPACING: u64 = 256;
    let mut arena = Arena::new(device, Lifetime::Scratch, Memory::Device).with_block_size(1 << 20);
    let words = arena.buffer("counters", COUNT * SPACING)?;
    let touch = Touch::new(device, false)?;
    let time = |step: u64| {
        // Wall-clock time of the whole minus that of an empty program: a timestamp after each dispatch would
        // cost more than the dispatch.
        let mut recorder = device.recorder()?;
        for index in 0..COUNT {
            let at = index * step;
            touch.record(&mut recorder, "touch", &words.slice(at..at + 4)?)?;
        }
        let program = recorder.seal()?;
        let empty = device.recorder()?.seal()?;
        Ok::<_, Error>((median_wall_ns(&program)? - median_wall_ns(&empty)?).max(0.0) / COUNT as f64)
    };
    Ok((time(SPACING)?, time(0)?))
}

fn time_submissions(device: &Device) -> Result<(f64, f64)> {
    const COUNT: u32 = 100;
    let program = device.recorder()?.seal()?;
    program.run(TIMEOUT)?;
    let round_trip = median_wall_ns(&program)?;
    let start = Instant::now();
    let mut last = program.submit()?;
    for _ in 1..COUNT {
        last = program.submit()?;
    }
    let submit = start.elapsed().as_nanos() as f64 / f64::from(COUNT);
    device.wait(last, TIMEOUT)?;
    Ok((submit, round_trip))
}

/// GPU time of a timed program: the median of several runs after one warm-up run.
pub fn median_gpu_ns(program: &Program) -> Result<f64> {
    program.run(TIMEOUT)?;
    median(|| {
        program.run(TIMEOUT)?;
        gpu_ns(program)
    })
}

/// GPU time of a timed program's last run.
fn gpu_ns(program: &Program) -> Result<f64> {
    Ok(program.timings()?.iter().map(|timing| timing.nanoseconds).sum())
}

fn median_wall_ns(program: &Program) -> Result<f64> {
    program.run(TIMEOUT)?;
    median(|| {
        let start = Instant::now();
        program.run(TIMEOUT)?;
        Ok(start.elapsed().as_nanos() as f64)
    })
}

fn median(mut run: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut runs = (0..REPEATS).map(|_| run()).collect::<Result<Vec<f64>>>()?;
    runs.sort_by(f64::total_cmp);
    Ok(runs[REPEATS / 2])
}
