//! `indrik bench --gemv`: matrix products with one, few or many columns. Each uses different weights, so that
//! caches do not help.

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
        coopmat::{
            self, Coopmat,
            policy::{Bias, SplitK},
        },
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

/// Weight scheme argument.
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
    /// The scheme.
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

/// Activation type argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Activations {
    Int8,
    Int16,
    F16,
    F32,
}

impl Activations {
    /// The activation type.
    fn kind(self) -> kernels::Activations {
        match self {
            Activations::Int8 => kernels::Activations::Int8,
            Activations::Int16 => kernels::Activations::Int16,
            Activations::F16 => kernels::Activations::F16,
            Activations::F32 => kernels::Activations::F32,
        }
    }
}

/// One measurement.
#[derive(Serialize)]
struct Measurement {
    rows: usize,
    k: usize,
    weights: Scheme,
    activations: String,
    columns: usize,
    /// Kernel and its plan.
    variant: String,
    /// GPU time per product, including its barrier: the time of a chain of products divided by their number;
    /// median of several runs.
    microseconds: f64,
    /// Bytes of weights and scales.
    bytes: u64,
    gb_per_s: f64,
    /// Percentage of the read bandwidth measured in the same run.
    bandwidth_percent: f64,
    /// Multiply-accumulates per second, in 10⁹.
    gmac_per_s: f64,
}

const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of matrices. Longer chains give no better measurement.
const MAX_MATRICES: u64 = 1024;
/// Maximum difference between two medians on one device.
const NOISE_PERCENT: f64 = 3.0;
const DEFAULT_BYTES: u64 = 4 << 30;

/// Parses `ROWSxK`.
pub fn parse_shape(text: &str) -> Result<(usize, usize), String> {
    let invalid = || "expected ROWSxK, such as 43008x5376, with K divisible by 32".to_string();
    let (rows, k) = text.split_once(['x', '×']).ok_or_else(invalid)?;
    let (rows, k) = (rows.trim().parse().map_err(|_| invalid())?, k.trim().parse().map_err(|_| invalid())?);
    Layout::new(Scheme::Int8, rows, k).map(|_| (rows, k)).ok_or_else(invalid)
}

pub fn run(device: &Device, arguments: &Arguments, (rows, k): (usize, usize)) -> anyhow::Result<ExitCode> {
    let mut progress = output::Progress::new();
    let roof = probe::read_bandwidth(device)?;
    let free = device.heaps().iter().filter(|heap| heap.device_local).map(gpu::Heap::free).max().unwrap_or(0);
    let size = arguments.size.unwrap_or(DEFAULT_BYTES.min(free / 2));

    let mut measurements = Vec::new();
    let quants = if arguments.quant.is_empty() { &[Quant::Int8, Quant::Int4][..] } else { &arguments.quant };
    for quant in quants {
        let layout = Layout { scheme: quant.scheme(), rows, k };
        progress.show(&format!("generating {} of {} weights", gpu::format_bytes(size), layout.scheme));
        let weights = random_weights(device, layout, size)?;
        for (activations, columns) in arguments
            .activations
            .iter()
            .flat_map(|a| arguments.batch.iter().map(move |c| (*a, usize::from(*c))))
        {
            let activations = activations.kind();
            let matrix_units = activations == kernels::Activations::F16;
            let too_many = columns > MAX_COLUMNS && !supports_gemm(device, activations);
            if !matrix_units && (too_many || !policy::schemes(activations).contains(&layout.scheme)) {
                continue;
            }
            let products = products(device, arguments.sweep, layout, columns, activations)?;
            let selected =
                |product: &Product| arguments.only.iter().all(|text| product.name().contains(text));
            for product in products.into_iter().filter(selected) {
                progress.show(&format!("{rows} × {k} {} × {activations}: {product:?}", layout.scheme));
                measurements.push(time(device, &product, &weights, roof)?);
            }
        }
    }
    drop(progress);
    if measurements.is_empty() && !arguments.only.is_empty() {
        bail!(
            "no variant name contains {}: run without --only to see the names",
            arguments.only.join(" and ")
        );
    }
    if measurements.is_empty() {
        bail!(
            "no kernel supports this combination: int8 activations need int8 or int4 weights and at most {MAX_COLUMNS} columns; \
             int16 activations need integer weights and, for more columns, packed dot products; f16 activations need \
             cooperative matrices (see `indrik devices`). Try --activations f32"
        );
    }
    let impossible = measurements.iter().find(|m| m.bandwidth_percent > 100.0 + NOISE_PERCENT);
    if let Some(m) = impossible {
        bail!(
            "{:.0}% of the measured bandwidth is impossible: the weights were cached, or the device was busy while the \
             bandwidth was measured; try again with a larger --size",
            m.bandwidth_percent
        );
    }
    if arguments.sweep {
        measurements.sort_by(|a, b| {
            let key = |f: &Measurement| (f.weights.bits(), f.activations.clone(), f.columns);
            key(b).cmp(&key(a)).then(a.microseconds.total_cmp(&b.microseconds))
        });
    }
    let info = device.info();
    if arguments.json {
        output::print_json(&json!({
            "device": info.name,
            "driver": info.driver,
            "read_bytes_per_s": roof,
            "gemv": measurements,
        }))?;
    } else {
        output::print(&format!(
            "{}, {}\nread bandwidth {:.1} GB/s\n\n{}",
            info.name,
            info.driver,
            roof / 1e9,
            text(&measurements)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// As many different matrices as fit into `size` bytes; at least two.
fn random_weights(device: &Device, layout: Layout, size: u64) -> Result<Vec<Matrix>> {
    let each = (layout.value_bytes() + layout.scale_bytes()) as u64;
    let count = (size / each).clamp(2, MAX_MATRICES);
    // All are allocated before the first is filled, so that running out of memory is reported first.
    let mut arena = Arena::new(device, Lifetime::Weights, Memory::Device);
    let matrices = (0..count)
        .map(|_| Matrix::allocate(&mut arena, "weights", layout, device.caps()))
        .collect::<Result<Vec<Matrix>>>()?;
    // Random bits would give NaN and denormal floats, which are slow on CPUs. Scales are normal numbers of 16
    // or 32 bits.
    let values = Random::new(
        device,
        if layout.scheme.is_float() { Distribution::Scales } else { Distribution::Bits },
    )?;
    let scales = Random::new(device, Distribution::Scales)?;
    for (index, matrix) in matrices.iter().enumerate() {
        let mut recorder = device.recorder()?;
        for block in matrix.blocks() {
            let seed = (index * 1000 + block.first_row) as u32;
            values.record(&mut recorder, "values", &block.values.view(), seed)?;
            if let Some(plane) = &block.scales {
                scales.record(&mut recorder, "scales", &plane.view(), seed)?;
            }
        }
        recorder.seal()?.run(TIMEOUT)?;
    }
    Ok(matrices)
}

/// Whether GEMM supports these activations without cooperative matrices.
fn supports_gemm(device: &Device, activations: kernels::Activations) -> bool {
    match activations {
        kernels::Activations::F32 => true,
        kernels::Activations::Int16 => gemm::packed::is_supported(device.caps()),
        kernels::Activations::Int8 | kernels::Activations::F16 => false,
    }
}

/// A kernel and its plan.
#[derive(Clone, Copy, Debug)]
enum Product {
    Gemv(Shape, Plan),
    Gemm(gemm::policy::Shape, gemm::policy::Plan),
    Coopmat(coopmat::policy::Shape, coopmat::policy::Plan),
}

impl Product {
    /// The kernel and its plan, for display.
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
                "coopmat {}, {} × {} in {} × {}, prefetch {}, {} splits{}{}",
                if plan.direct { "direct" } else { "staged" },
                plan.tile.rows,
                plan.tile.columns,
                plan.tile.subgroup_rows,
                plan.tile.subgroup_columns,
                plan.prefetch_depth,
                plan.splits,
                if shape.split_k == SplitK::Partial { " (partial sums)" } else { "" },
                if plan.unsplit > 0 { format!(" after {}", plan.unsplit) } else { String::new() },
            ),
        }
    }
}

/// The kernels to time for a shape: the selected one, or all candidates.
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
        for split_k in [SplitK::Reduced, SplitK::Partial].into_iter().take(if sweep { 2 } else { 1 }) {
            let shape =
                coopmat::policy::Shape { weights, columns, epilogue, output, split_k, bias: Bias::None };
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

fn time(device: &Device, product: &Product, weights: &[Matrix], roof: f64) -> Result<Measurement> {
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
    // All write to the same y, so that each product waits for the previous one, as in a model.
    let target = Target::contiguous(&y, rows);
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
                // Not timed.
                let mut clear = device.recorder()?;
                clear.fill("clear", scratch, 0)?;
                clear.seal()?.run(TIMEOUT)?;
            }
            for w in weights {
                let scratch = scratch.as_ref().map(Buffer::view);
                let operands = coopmat::Operands {
                    w,
                    x: &x,
                    target: &target,
                    active: active.view(),
                    scratch,
                    bias: None,
                };
                kernel.record(&mut recorder, "coopmat", &operands)?;
            }
        }
    }
    let program = recorder.seal()?;
    let bytes = weights[0].bytes();
    let nanoseconds = probe::median_gpu_ns(&program)? / weights.len() as f64;
    let bytes_per_s = bytes as f64 / nanoseconds * 1e9;
    Ok(Measurement {
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

fn text(measurements: &[Measurement]) -> String {
    let rows: Vec<Vec<String>> = measurements
        .iter()
        .map(|m| {
            vec![
                format!("{} × {}", m.rows, m.k),
                m.weights.to_string(),
                m.activations.to_string(),
                m.columns.to_string(),
                m.variant.clone(),
                format!("{:.1}", m.microseconds),
                format!("{:.1}", m.gb_per_s),
                format!("{:.1}%", m.bandwidth_percent),
                format!("{:.2}", m.gmac_per_s),
            ]
        })
        .collect();
    output::table(
        &["matrix", "weights", "x", "columns", "variant", "µs", "GB/s", "% of bandwidth", "GMAC/s"],
        &rows,
    )
}

#[cfg(test)]
mod tests {
    use super::parse_shape;

    #[test]
    fn shapes_are_validated() {
        assert_eq!(parse_shape("43008x5376"), Ok((43008, 5376)));
        for invalid in ["", "5", "0x32", "16x33", "16x0", "ax32", "99999999999x32"] {
            assert!(parse_shape(invalid).is_err(), "{invalid}");
        }
    }
}
