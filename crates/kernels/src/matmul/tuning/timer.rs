//! Times plans on the GPU, on a model's own weights, under the conditions of decode.
//!
//! A GPU that is idle for a moment, while pipelines compile, lowers its clocks and is slow for a while
//! afterwards. Everything is therefore compiled first. Then runs follow each other without a pause, except where others
//! have their turn on the GPU; after a pause, the device is kept busy until its clocks have ramped up.

use std::time::{Duration, Instant};

use gpu::{Arena, Device, Error, Lifetime, Memory, Pipeline, Program, Recorder, Result, TimestampMode, View};

use super::{
    Turn,
    product::{Input, Product},
    search::Stopwatch,
};
use crate::{
    bench::{
        probe::{Read, ReadShape},
        random::{Distribution, Random, record_vectors},
    },
    matmul::gemv::{
        Gemv,
        policy::{Plan, Shape},
    },
};

/// No run takes longer on a working device.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of weights per run: more than any cache, and still a few milliseconds on a slow device. All layers
/// of a large model would add no information.
const RUN_BYTES: u64 = 256 << 20;
/// Upper bound of cache sizes. Where a shape has fewer bytes of weights, other weights of the model are read
/// before each run, as happens in decode. A model that fits the cache as a whole finds its weights there in
/// decode as well.
const CACHE_BYTES: u64 = 128 << 20;
/// Number of runs for the median, for runs shorter than `SHORT_US` and for longer ones. Odd, so that the
/// median is a run.
const RUNS: [usize; 2] = [9, 3];
const SHORT_US: f64 = 500.0;
/// Warm-up time before the first timing and after a pause: clocks ramp up under load.
const WARM_UP: Duration = Duration::from_millis(30);
/// Minimum length of a pause.
const PAUSE: Duration = Duration::from_millis(5);
/// A shape is timed if it has at least 1/`MIN_SHARE` of all weights: smaller ones do not repay the
/// compilation of their pipelines. An example is the first layer's, whose norm differs.
const MIN_SHARE: u64 = 100;

/// The products of one shape.
struct Group<'a> {
    shape: Shape,
    products: Vec<&'a Product<'a>>,
    bytes: u64,
}

/// A shape that can be timed.
struct Ready {
    shape: Shape,
    /// Products per run.
    count: usize,
    programs: Vec<(Plan, Program)>,
    /// Reads other weights before each run, so that the cache does not hold those of the run.
    flush: Option<Program>,
}

/// A shape before its pipelines are compiled.
struct Recorded {
    shape: Shape,
    count: usize,
    programs: Vec<(Plan, Gemv, Recorder)>,
    flush: Option<Recorder>,
}

pub(super) struct Timer<'a> {
    device: &'a Device,
    all: &'a [Product<'a>],
    groups: Vec<Group<'a>>,
    turn: &'a mut Turn<'a>,
    start: Instant,
    compiled: Instant,
    /// Time of all turns so far.
    elapsed: Duration,
    /// When the last turn ended.
    last_turn: Option<Instant>,
    /// Whether there will be no further turn.
    ended: bool,
    ready: Vec<Ready>,
}

impl<'a> Timer<'a> {
    pub fn new(
        device: &'a Device,
        all: &'a [Product<'a>],
        turn: &'a mut Turn<'a>,
        mut is_new: impl FnMut(&Shape) -> bool,
    ) -> Self {
        let start = Instant::now();
        let mut groups: Vec<Group<'a>> = Vec::new();
        for product in all {
            let bytes = product.matrix.bytes();
            match groups.iter_mut().find(|group| group.shape == product.shape) {
                Some(group) => {
                    group.products.push(product);
                    group.bytes += bytes;
                }
                None => groups.push(Group { shape: product.shape, products: vec![product], bytes }),
            }
        }
        let total: u64 = groups.iter().map(|group| group.bytes).sum();
        groups.retain(|group| group.bytes * MIN_SHARE >= total && is_new(&group.shape));
        // The most expensive shapes come first, in case the budget does not cover all.
        groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
        Self {
            device,
            all,
            groups,
            turn,
            start,
            compiled: start,
            elapsed: Duration::ZERO,
            last_turn: None,
            ended: false,
            ready: vec![],
        }
    }

    pub fn shapes(&self) -> Vec<Shape> {
        self.groups.iter().map(|group| group.shape).collect()
    }

    /// Time of compiling and timing, without waiting for turns.
    pub fn seconds(&self) -> f64 {
        self.compile_seconds() + self.elapsed.as_secs_f64()
    }

    pub fn compile_seconds(&self) -> f64 {
        (self.compiled - self.start).as_secs_f64()
    }

    /// Reads other weights of the model, unless the shape's own exceed any cache.
    fn flush(&self, shape: &Shape, run_bytes: u64) -> Result<Option<Recorder>> {
        let others = self.all.iter().filter(|product| product.shape != *shape);
        let blocks = others.flat_map(|product| product.matrix.blocks());
        let mut remaining = CACHE_BYTES;
        let mut views = Vec::new();
        for block in blocks {
            if remaining == 0 || run_bytes >= CACHE_BYTES {
                break;
            }
            let bytes = block.values.len().min(remaining) / 16 * 16;
            if bytes > 0 {
                views.push(block.values.slice(0..bytes)?);
            }
            remaining = remaining.saturating_sub(block.values.len());
        }
        if views.is_empty() {
            return Ok(None);
        }
        let read_shape = ReadShape::candidates(self.device.caps())[0];
        let mut arena = Arena::new(self.device, Lifetime::Scratch, Memory::Device).with_block_size(1 << 16);
        let result = arena.buffer("results", u64::from(read_shape.groups) * 4)?;
        let read = Read::new(self.device, read_shape)?;
        let mut recorder = self.device.recorder()?;
        for view in &views {
            read.record(&mut recorder, "other weights", view, &result.view())?;
        }
        Ok(Some(recorder))
    }

    /// Fills the inputs of products with random values: zeros, or uninitialised memory, may cost less or
    /// more.
    fn fill(&self) -> Result<Recorder> {
        let mut recorder = self.device.recorder()?;
        let floats = Random::new(self.device, Distribution::Floats)?;
        // One x serves all layers of a model.
        let mut filled: Vec<u64> = Vec::new();
        for product in self.groups.iter().flat_map(|group| &group.products) {
            match &product.x {
                Input::Vectors(x) | Input::Normed { x, .. } => {
                    let address = std::ptr::from_ref(*x).addr() as u64;
                    if !filled.contains(&address) {
                        record_vectors(&mut recorder, self.device, x)?;
                        filled.push(address);
                    }
                }
                Input::Norm(norm) => {
                    let sublayer = norm.sublayer.as_ref().map(|sublayer| &sublayer.output);
                    let views: Vec<&View> = sublayer.into_iter().chain([&norm.residual]).collect();
                    for view in views {
                        if !filled.contains(&view.address()) {
                            floats.record(&mut recorder, "residual stream", view, 2)?;
                            filled.push(view.address());
                        }
                    }
                }
            }
        }
        Ok(recorder)
    }

    /// The programs of a shape.
    fn record(&self, shape: &Shape, plans: &[Plan]) -> Result<Recorded> {
        let group = self.groups.iter().find(|group| group.shape == *shape).expect("a shape of this timer");
        let mut run_bytes = 0;
        let fits_run = |product: &&&Product<'_>| {
            let first = run_bytes == 0;
            run_bytes += product.matrix.bytes();
            first || run_bytes <= RUN_BYTES
        };
        let products: Vec<&Product<'_>> = group.products.iter().take_while(fits_run).copied().collect();
        let mut programs = Vec::new();
        for (index, plan) in plans.iter().enumerate() {
            let kernel = match Gemv::with_plan(self.device, *shape, *plan) {
                Ok(kernel) => kernel,
                // The policy's own plan must be possible.
                Err(Error::Unsupported { .. } | Error::InvalidUse { .. }) if index > 0 => continue,
                Err(error) => return Err(error),
            };
            let mut recorder = self.device.timed_recorder(TimestampMode::Whole)?;
            for product in &products {
                let x = product.x.source();
                kernel.record(&mut recorder, "tuning", product.matrix, x, &product.target)?;
            }
            programs.push((*plan, kernel, recorder));
        }
        let flush = self.flush(shape, products.iter().map(|product| product.matrix.bytes()).sum())?;
        Ok(Recorded { shape: *shape, count: products.len(), programs, flush })
    }
}

/// Microseconds of one run.
fn run(device: &Device, flush: Option<&Program>, program: &Program) -> Result<f64> {
    let programs: Vec<&Program> = flush.into_iter().chain([program]).collect();
    device.wait(device.submit(&programs)?, TIMEOUT)?;
    Ok(program.timings()?.iter().map(|timing| timing.nanoseconds).sum::<f64>() / 1e3)
}

/// Microseconds of the median run.
fn median_run(device: &Device, flush: Option<&Program>, program: &Program) -> Result<f64> {
    // The first run of a program has additional costs.
    let first = run(device, flush, program)?;
    let count = RUNS[usize::from(first >= SHORT_US)];
    let mut runs = (0..count).map(|_| run(device, flush, program)).collect::<Result<Vec<f64>>>()?;
    runs.sort_by(f64::total_cmp);
    Ok(runs[count / 2])
}

/// Keeps the device busy without a pause.
fn warm_up(device: &Device, program: &Program) -> Result<()> {
    let start = Instant::now();
    let mut last = program.submit()?;
    while start.elapsed() < WARM_UP {
        // The next submission is queued before the last has finished.
        let next = program.submit()?;
        device.wait(last, TIMEOUT)?;
        last = next;
    }
    device.wait(last, TIMEOUT)
}

impl Stopwatch for Timer<'_> {
    fn prepare(&mut self, work: &[(Shape, Vec<Plan>)]) -> Result<Vec<Vec<Plan>>> {
        let fill = self.fill()?;
        let recorded =
            work.iter().map(|(shape, plans)| self.record(shape, plans)).collect::<Result<Vec<Recorded>>>()?;
        let programs = recorded.iter().flat_map(|shape| &shape.programs);
        let recorders = programs.map(|(_, _, recorder)| recorder);
        let recorders =
            recorders.chain(recorded.iter().filter_map(|shape| shape.flush.as_ref())).chain([&fill]);
        let pipelines: Vec<Pipeline> = recorders.flat_map(Recorder::pipelines).collect();
        self.device.compile(&pipelines)?;
        for Recorded { shape, count, programs, flush } in recorded {
            let mut sealed = Vec::new();
            for (index, (plan, kernel, recorder)) in programs.into_iter().enumerate() {
                if index == 0 || !spills(kernel.pipeline())? {
                    sealed.push((plan, recorder.seal()?));
                }
            }
            let flush = flush.map(Recorder::seal).transpose()?;
            self.ready.push(Ready { shape, count, programs: sealed, flush });
        }
        self.compiled = Instant::now();
        let fill = fill.seal()?;
        self.ended = !(self.turn)(&mut || fill.run(TIMEOUT))?;
        let plans = |ready: &Ready| ready.programs.iter().map(|(plan, _)| *plan).collect();
        Ok(self.ready.iter().map(plans).collect())
    }

    fn elapsed(&self) -> Duration {
        self.elapsed
    }

    fn time(&mut self, shape: &Shape, plan: &Plan) -> Result<Option<f64>> {
        if self.ended {
            return Ok(None);
        }
        let ready = self.ready.iter().find(|ready| ready.shape == *shape).expect("a shape that was prepared");
        let (_, program) =
            ready.programs.iter().find(|(known, _)| known == plan).expect("a plan that was prepared");
        let (device, flush, last_turn) = (self.device, ready.flush.as_ref(), self.last_turn);
        let (mut median, elapsed) = (None, &mut self.elapsed);
        self.ended = !(self.turn)(&mut || {
            let start = Instant::now();
            if last_turn.is_none_or(|last| last.elapsed() > PAUSE) {
                warm_up(device, program)?;
            }
            median = Some(median_run(device, flush, program)? / ready.count as f64);
            *elapsed += start.elapsed();
            Ok(())
        })?;
        self.last_turn = Some(Instant::now());
        Ok(median)
    }
}

/// Whether the compiler reports register spills. It does so only on devices opened with statistics; on others
/// the timing has to show it.
fn spills(pipeline: &Pipeline) -> Result<bool> {
    let executables = pipeline.executables()?;
    let mut statistics = executables.iter().flat_map(|executable| &executable.statistics);
    Ok(statistics.any(|statistic| statistic.name.to_lowercase().contains("spill") && statistic.value > 0.0))
}
