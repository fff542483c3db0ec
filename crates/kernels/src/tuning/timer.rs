//! Times plans on the GPU, on a model's own weights, as decoding would meet them.

use std::time::{Duration, Instant};

use gpu::{Arena, Device, Error, Lifetime, Memory, Pipeline, Program, Result, Stamps};

use super::{Product, search::Stopwatch};
use crate::{
    Vectors,
    gemv::{
        Gemv,
        policy::{Plan, Shape},
    },
    probe::{Read, ReadShape},
    random::fill_vectors,
};

/// No run takes longer on a device that works.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Weights that are read in one run: many times any cache, and on a slow device still a few milliseconds. All layers of a large
/// model would tell nothing more.
const CHAIN_BYTES: u64 = 512 << 20;
/// What a cache holds at most. Where the weights of a shape are fewer, others of the model are read before each run: in
/// decoding they come between too. A model that is smaller than the cache as a whole finds its weights there in decoding as well.
const CACHE_BYTES: u64 = 256 << 20;
/// Odd, so that the median is a run.
const RUNS: usize = 3;
/// Work before the first time counts: clocks rise when a device gets something to do.
const WARM_UP: Duration = Duration::from_millis(10);

/// The products of one shape.
struct Group<'a> {
    shape: Shape,
    products: Vec<&'a Product<'a>>,
    bytes: u64,
}

pub(super) struct Timer<'a> {
    device: &'a Device,
    all: &'a [Product<'a>],
    groups: Vec<Group<'a>>,
    start: Instant,
    /// Of the shape that is being timed: products in a run, the plans with their programs, and what is read before each run.
    count: usize,
    programs: Vec<(Plan, Program)>,
    flush: Option<Program>,
}

impl<'a> Timer<'a> {
    pub fn new(device: &'a Device, all: &'a [Product<'a>], mut wanted: impl FnMut(&Shape) -> bool) -> Self {
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
        groups.retain(|group| wanted(&group.shape));
        // What a token spends most time in comes first, should the budget not suffice.
        groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
        Self { device, all, groups, start, count: 0, programs: vec![], flush: None }
    }

    pub fn shapes(&self) -> Vec<Shape> {
        self.groups.iter().map(|group| group.shape).collect()
    }

    pub fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// A program that reads other weights of the model than a shape's, unless that shape's alone are more than any cache.
    fn flush(&self, shape: &Shape, chain: u64) -> Result<Option<Program>> {
        let others = self.all.iter().filter(|product| product.shape != *shape);
        let parts = others.flat_map(|product| product.matrix.parts());
        let mut left = CACHE_BYTES;
        let mut views = Vec::new();
        for part in parts {
            if left == 0 || chain >= CACHE_BYTES {
                break;
            }
            let bytes = part.values.len().min(left) / 16 * 16;
            if bytes > 0 {
                views.push(part.values.slice(0..bytes)?);
            }
            left = left.saturating_sub(part.values.len());
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
        Ok(Some(recorder.seal()?))
    }

    fn run(&self, program: &Program) -> Result<f64> {
        if let Some(flush) = &self.flush {
            flush.run(TIMEOUT)?;
        }
        program.run(TIMEOUT)?;
        Ok(program.timings()?.iter().map(|timing| timing.nanoseconds).sum::<f64>() / 1e3)
    }
}

impl Stopwatch for Timer<'_> {
    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn prepare(&mut self, shape: &Shape, plans: &[Plan]) -> Result<Vec<Plan>> {
        self.programs.clear();
        let group = self.groups.iter().find(|group| group.shape == *shape).expect("a shape of this timer");
        let mut chain = 0;
        let within = |product: &&&Product<'_>| {
            let first = chain == 0;
            chain += product.matrix.bytes();
            first || chain <= CHAIN_BYTES
        };
        let products: Vec<&Product<'_>> = group.products.iter().take_while(within).copied().collect();
        // One x serves all layers of a model.
        let mut filled: Vec<&Vectors> = Vec::new();
        for x in products.iter().map(|product| product.x) {
            if !filled.iter().any(|known| std::ptr::eq(*known, x)) {
                fill_vectors(self.device, x)?;
                filled.push(x);
            }
        }
        self.count = products.len();
        let mut recorded = Vec::new();
        for (index, plan) in plans.iter().enumerate() {
            let kernel = match Gemv::with_plan(self.device, *shape, *plan) {
                Ok(kernel) => kernel,
                // The policy's own plan must be possible.
                Err(Error::Unsupported { .. } | Error::InvalidUse { .. }) if index > 0 => continue,
                Err(error) => return Err(error),
            };
            let mut recorder = self.device.timed_recorder(Stamps::Whole)?;
            for product in &products {
                kernel.record(&mut recorder, "tuning", product.matrix, product.x, &product.target)?;
            }
            recorded.push((*plan, kernel, recorder));
        }
        let pipelines: Vec<Pipeline> =
            recorded.iter().map(|(_, kernel, _)| kernel.pipeline().clone()).collect();
        self.device.compile(&pipelines)?;
        for (index, (plan, kernel, recorder)) in recorded.into_iter().enumerate() {
            if index == 0 || !spills(kernel.pipeline())? {
                self.programs.push((plan, recorder.seal()?));
            }
        }
        self.flush = self.flush(shape, products.iter().map(|product| product.matrix.bytes()).sum())?;
        let warm = Instant::now();
        while warm.elapsed() < WARM_UP {
            self.run(&self.programs[0].1)?;
        }
        Ok(self.programs.iter().map(|(plan, _)| *plan).collect())
    }

    fn time(&mut self, plan: &Plan) -> Result<f64> {
        let (_, program) =
            self.programs.iter().find(|(known, _)| known == plan).expect("a plan that was prepared");
        // The first run of a program pays for more than the work.
        self.run(program)?;
        let mut runs = [0.0; RUNS];
        for run in &mut runs {
            *run = self.run(program)?;
        }
        runs.sort_by(f64::total_cmp);
        Ok(runs[RUNS / 2] / self.count as f64)
    }
}

/// Whether the compiler says that registers did not suffice. It says so only on devices that were opened for it; on others the time
/// itself must tell.
fn spills(pipeline: &Pipeline) -> Result<bool> {
    let executables = pipeline.executables()?;
    let mut statistics = executables.iter().flat_map(|executable| &executable.statistics);
    Ok(statistics.any(|statistic| statistic.name.to_lowercase().contains("spill") && statistic.value > 0.0))
}
