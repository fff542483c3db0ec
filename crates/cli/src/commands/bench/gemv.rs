//! Matrix products with one column, a few or many, over different weights in turn, so that no cache helps.

use std::{process::ExitCode, time::Duration};

use anyhow::bail;
use clap::ValueEnum;
use gpu::{Arena, Buffer, Device, Lifetime, Memory, Result, TimestampMode};
use kernels::{
    Epilogue, Matrix, Target, Vectors,
    bench::{
        probe,
        random::{Distribution, Random, fill_vectors},
    },
    matmul::{
        coopmat::{self, Coopmat, policy::SplitK},
        gemm::{self, Gemm},
        gemv::{
            Gemv, MAX_COLUMNS, Source,
            policy::{self, Plan, Shape},
        },
    },
};
use serde::Serialize;
use serde_json::json;
use tensor::{Layout, Scheme};

use super::Arguments;
use crate::output;

/// A weight scheme on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Quant {
    Int8,
    Int4,
    #[value(name = "int8+min")]
    Int8Min,
    #[value(name = "int4+min")]
    Int4Min,
    F16,
    Bf16,
    F32,
}

impl Quant {
    /// The scheme it names.
    pub fn scheme(self) -> Scheme {
        match self {
            Quant::Int8 => Scheme::Int8,
            Quant::Int4 => Scheme::Int4,
            Quant::Int8Min => Scheme::Int8Min,
            Quant::Int4Min => Scheme::Int4Min,
            Quant::F16 => Scheme::F16,
            Quant::Bf16 => Scheme::Bf16,
            Quant::F32 => Scheme::F32,
        }
    }
}

/// An activation type on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Activations {
    Int8,
    Int16,
    F16,
    F32,
}

impl Activations {
    /// The storage it names.
    fn kind(self) -> kernels::Activations {
        match self {
            Activations::Int8 => kernels::Activations::Int8,
            Activations::Int16 => kernels::Activations::Int16,
            Activations::F16 => kernels::Activations::F16,
            Activations::F32 => kernels::Activations::F32,
        }
    }
}

/// One figure.
#[derive(Serialize)]
struct Figure {
    rows: usize,
    k: usize,
    weights: Scheme,
    activations: String,
    columns: usize,
    /// Kernel, tier, grid and constants.
    variant: String,
    /// One product with its barrier: GPU time of a chain of them, divided by their number; median of several runs.
    microseconds: f64,
    /// Weights and scales.
    bytes: u64,
    gb_per_s: f64,
    /// Share of the bandwidth measured in the same run.
    bandwidth_percent: f64,
    /// Multiplications with a weight, 10⁹ a second.
    gmac_per_s: f64,
}

const TIMEOUT: Duration = Duration::from_secs(60);
/// A chain of products longer than this tells nothing more.
const MOST_MATRICES: u64 = 1024;
/// Two medians of one device differ by this much at most.
const NOISE_PERCENT: f64 = 3.0;
const DEFAULT_BYTES: u64 = 4 << 30;

/// Reads `ROWSxK`.
pub fn parse_shape(text: &str) -> Result<(usize, usize), String> {
    let wrong = || "expected ROWSxK, as in 43008x5376, with K divisible by 32".to_string();
    let (rows, k) = text.split_once(['x', '×']).ok_or_else(wrong)?;
    let (rows, k) = (rows.trim().parse().map_err(|_| wrong())?, k.trim().parse().map_err(|_| wrong())?);
    Layout::new(Scheme::Int8, rows, k).map(|_| (rows, k)).ok_or_else(wrong)
}

pub fn run(device: &Device, arguments: &Arguments, (rows, k): (usize, usize)) -> anyhow::Result<ExitCode> {
    let mut progress = output::Progress::new();
    let roof = probe::read_bandwidth(device)?;
    let free = device.heaps().iter().filter(|heap| heap.device_local).map(gpu::Heap::free).max().unwrap_or(0);
    let size = arguments.size.unwrap_or(DEFAULT_BYTES.min(free / 2));

    let mut figures = Vec::new();
    let quants = if arguments.quant.is_empty() { &[Quant::Int8, Quant::Int4][..] } else { &arguments.quant };
    for quant in quants {
        let layout = Layout { scheme: quant.scheme(), rows, k };
        progress.say(&format!("making {} of {} weights", gpu::format_bytes(size), layout.scheme));
        let weights = random_weights(device, layout, size)?;
        for (activations, columns) in arguments
            .activations
            .iter()
            .flat_map(|a| arguments.batch.iter().map(move |c| (*a, usize::from(*c))))
        {
            let activations = activations.kind();
            let matrix_units = activations == kernels::Activations::F16;
            let many = columns > MAX_COLUMNS && !takes_many(device, activations);
            if !matrix_units && (many || !policy::schemes(activations).contains(&layout.scheme)) {
                continue;
            }
            let products = products(device, arguments.sweep, layout, columns, activations)?;
            let wanted = |product: &Product| arguments.only.iter().all(|text| product.name().contains(text));
            for product in products.into_iter().filter(wanted) {
                progress.say(&format!("{rows} × {k} {} × {activations}: {product:?}", layout.scheme));
                figures.push(time(device, &product, &weights, roof)?);
            }
        }
    }
    drop(progress);
    if figures.is_empty() && !arguments.only.is_empty() {
        bail!("no variant has {} in its name: see the names without --only", arguments.only.join(" and "));
    }
    if figures.is_empty() {
        bail!(
            "int8 activations are multiplied with int8 and int4 weights, int16 ones with all integers; int8 ones with 1 to \
             {MAX_COLUMNS} columns alone, int16 ones with more where there are packed dot products; f16 ones by matrix units alone (`indrik devices` says whether there are any): give \
             --activations f32"
        );
    }
    let impossible = figures.iter().find(|figure| figure.bandwidth_percent > 100.0 + NOISE_PERCENT);
    if let Some(figure) = impossible {
        bail!(
            "{:.0}% of the measured bandwidth is not possible: the weights stayed in a cache or the device was busy while \
             the bandwidth was measured; try again with a larger --size",
            figure.bandwidth_percent
        );
    }
    if arguments.sweep {
        figures.sort_by(|a, b| {
            let key = |f: &Figure| (f.weights.bits(), f.activations.clone(), f.columns);
            key(b).cmp(&key(a)).then(a.microseconds.total_cmp(&b.microseconds))
        });
    }
    let info = device.info();
    if arguments.json {
        output::print_json(&json!({
            "device": info.name,
            "driver": info.driver,
            "read_bytes_per_s": roof,
            "gemv": figures,
        }))?;
    } else {
        output::print(&format!(
            "{}, {}\nread bandwidth {:.1} GB/s\n\n{}",
            info.name,
            info.driver,
            roof / 1e9,
            text(&figures)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// As many different matrices as fit the size, at least two.
fn random_weights(device: &Device, layout: Layout, size: u64) -> Result<Vec<Matrix>> {
    let each = (layout.value_bytes() + layout.scale_bytes()) as u64;
    let count = (size / each).clamp(2, MOST_MATRICES);
    // All are allocated before the first is filled: what does not fit is said before any work.
    let mut arena = Arena::new(device, Lifetime::Weights, Memory::Device);
    let matrices = (0..count)
        .map(|_| Matrix::allocate(&mut arena, "weights", layout, device.caps()))
        .collect::<Result<Vec<Matrix>>>()?;
    // Random bits make floats that are no numbers, or so small that CPUs stumble over them: scales are sound ones, of 16 or 32 bits.
    let values = Random::new(
        device,
        if layout.scheme.is_float() { Distribution::Scales } else { Distribution::Bits },
    )?;
    let scales = Random::new(device, Distribution::Scales)?;
    for (index, matrix) in matrices.iter().enumerate() {
        let mut recorder = device.recorder()?;
        for part in matrix.blocks() {
            let seed = (index * 1000 + part.first_row) as u32;
            values.record(&mut recorder, "values", &part.values.view(), seed)?;
            if let Some(plane) = &part.scales {
                scales.record(&mut recorder, "scales", &plane.view(), seed)?;
            }
        }
        recorder.seal()?.run(TIMEOUT)?;
    }
    Ok(matrices)
}

/// Whether more columns than a matrix–vector product has are multiplied without matrix units.
fn takes_many(device: &Device, activations: kernels::Activations) -> bool {
    match activations {
        kernels::Activations::F32 => true,
        kernels::Activations::Int16 => gemm::packed::is_supported(device.caps()),
        kernels::Activations::Int8 | kernels::Activations::F16 => false,
    }
}

/// A kernel with its plan.
#[derive(Clone, Copy, Debug)]
enum Product {
    Gemv(Shape, Plan),
    Gemm(gemm::policy::Shape, gemm::policy::Plan),
    Coopmat(coopmat::policy::Shape, coopmat::policy::Plan),
}

impl Product {
    /// The kernel and what its plan is made of.
    fn name(&self) -> String {
        match self {
            Product::Gemv(_, Plan { lanes: Some(tile), tier, groups, .. }) => {
                format!("gemv {tier}, {groups} × {tile:?}")
            }
            Product::Gemv(_, plan) => format!(
                "gemv {}, {} × {} in {} teams × {} strips, {} in flight",
                plan.tier, plan.groups, plan.threads, plan.teams, plan.strips, plan.in_flight
            ),
            Product::Gemm(_, plan) => format!("gemm {}, {:?}", plan.tier, plan.method),
            Product::Coopmat(shape, plan) => format!(
                "matmul {}, {} × {} in {} × {}, {} ahead, {} splits{}{}",
                if plan.direct { "direct" } else { "staged" },
                plan.tile.rows,
                plan.tile.columns,
                plan.tile.own_rows,
                plan.tile.own_columns,
                plan.ahead,
                plan.splits,
                if shape.split_k == SplitK::Partial { " apart" } else { "" },
                if plan.unsplit > 0 { format!(" after {}", plan.unsplit) } else { String::new() },
            ),
        }
    }
}

/// The kernels to time for a shape: the one that would run, or all that are worth trying.
fn products(
    device: &Device,
    sweep: bool,
    weights: Layout,
    columns: usize,
    activations: kernels::Activations,
) -> Result<Vec<Product>> {
    let (caps, epilogue) = (device.caps(), Epilogue::None);
    if activations == kernels::Activations::F16 {
        let output = kernels::Activations::F32;
        let fragments = coopmat::fragments(device)?;
        let mut products = Vec::new();
        for parts in [SplitK::Reduced, SplitK::Partial].into_iter().take(if sweep { 2 } else { 1 }) {
            let shape = coopmat::policy::Shape { weights, columns, epilogue, output, split_k: parts };
            let plans = coopmat::policy::candidates(caps, fragments, &shape).into_iter();
            let all = plans.take(if sweep { usize::MAX } else { 1 });
            products.extend(all.map(|plan| Product::Coopmat(shape, plan)));
        }
        return Ok(products);
    }
    if columns > MAX_COLUMNS {
        let shape = gemm::policy::Shape::plain(weights, columns, activations);
        let plans =
            gemm::policy::candidates(caps, &shape).into_iter().take(if sweep { usize::MAX } else { 1 });
        return Ok(plans.map(|plan| Product::Gemm(shape, plan)).collect());
    }
    let shape = Shape { epilogue, ..Shape::plain(weights, columns, activations) };
    let plans = if sweep { policy::candidates(caps, &shape) } else { vec![policy::plan(caps, &shape)] };
    Ok(plans.into_iter().map(|plan| Product::Gemv(shape, plan)).collect())
}

fn time(device: &Device, product: &Product, weights: &[Matrix], roof: f64) -> Result<Figure> {
    let (columns, activations) = match product {
        Product::Gemv(shape, _) => (shape.columns, shape.activations),
        Product::Gemm(shape, _) => (shape.columns, shape.activations),
        Product::Coopmat(shape, _) => (shape.columns, kernels::Activations::F16),
    };
    let Layout { scheme, rows, k } = weights[0].layout();
    let mut arena = Arena::new(device, Lifetime::Scratch, Memory::Device);
    let x = random_vectors(device, &mut arena, k, columns, activations)?;
    let planes = if let Product::Coopmat(shape, plan) = product
        && shape.split_k == SplitK::Partial
    {
        plan.splits
    } else {
        1
    };
    let y: Buffer = arena.buffer("y", (rows * columns * 4) as u64 * u64::from(planes))?;
    let active: Buffer = arena.buffer("active", 4)?;
    let mut recorder = device.recorder()?;
    recorder.fill("active", &active, columns as u32)?;
    recorder.seal()?.run(TIMEOUT)?;
    // All write to one y: each product waits for the one before, as in a model.
    let target = Target::whole(&y, rows);
    let mut recorder = device.timed_recorder(TimestampMode::Whole)?;
    match product {
        Product::Gemv(shape, plan) => {
            let kernel = Gemv::with_plan(device, *shape, *plan)?;
            for matrix in weights {
                kernel.record(&mut recorder, "gemv", matrix, Source::Vectors(&x), &target)?;
            }
        }
        Product::Gemm(shape, plan) => {
            let kernel = Gemm::with_plan(device, *shape, *plan)?;
            for matrix in weights {
                kernel.record(&mut recorder, "gemm", matrix, &x, &target, &active.view())?;
            }
        }
        Product::Coopmat(shape, plan) => {
            let kernel = Coopmat::with_plan(device, *shape, *plan)?;
            let scratch = match kernel.scratch_bytes() {
                0 => None,
                bytes => Some(arena.buffer("scratch", bytes)?),
            };
            if let Some(scratch) = &scratch {
                // Not part of what is timed.
                let mut clear = device.recorder()?;
                clear.fill("clear", scratch, 0)?;
                clear.seal()?.run(TIMEOUT)?;
            }
            for w in weights {
                let scratch = scratch.as_ref().map(Buffer::view);
                let operands =
                    coopmat::Operands { w, x: &x, target: &target, active: active.view(), scratch };
                kernel.record(&mut recorder, "matmul", &operands)?;
            }
        }
    }
    let program = recorder.seal()?;
    let bytes = weights[0].bytes();
    let nanoseconds = probe::median_gpu_ns(&program)? / weights.len() as f64;
    let bytes_per_s = bytes as f64 / nanoseconds * 1e9;
    Ok(Figure {
        rows,
        k,
        weights: scheme,
        activations: activations.to_string(),
        columns,
        variant: product.name(),
        microseconds: nanoseconds / 1e3,
        bytes,
        gb_per_s: bytes_per_s / 1e9,
        bandwidth_percent: bytes_per_s / roof * 100.0,
        gmac_per_s: (rows * k * columns) as f64 / nanoseconds,
    })
}

fn random_vectors(
    device: &Device,
    arena: &mut Arena,
    k: usize,
    columns: usize,
    kind: kernels::Activations,
) -> Result<Vectors> {
    let x = Vectors::new(arena, "x", kind, k, columns)?;
    fill_vectors(device, &x)?;
    Ok(x)
}

fn text(figures: &[Figure]) -> String {
    let rows: Vec<Vec<String>> = figures
        .iter()
        .map(|figure| {
            vec![
                format!("{} × {}", figure.rows, figure.k),
                figure.weights.to_string(),
                figure.activations.to_string(),
                figure.columns.to_string(),
                figure.variant.clone(),
                format!("{:.1}", figure.microseconds),
                format!("{:.1}", figure.gb_per_s),
                format!("{:.1}%", figure.bandwidth_percent),
                format!("{:.2}", figure.gmac_per_s),
            ]
        })
        .collect();
    output::table(
        &["matrix", "weights", "x", "columns", "variant", "µs", "GB/s", "of bandwidth", "GMAC/s"],
        &rows,
    )
}

#[cfg(test)]
mod tests {
    use super::parse_shape;

    #[test]
    fn shapes() {
        assert_eq!(parse_shape("43008x5376"), Ok((43008, 5376)));
        for wrong in ["", "5", "0x32", "16x33", "16x0", "ax32", "99999999999x32"] {
            assert!(parse_shape(wrong).is_err(), "{wrong}");
        }
    }
}
