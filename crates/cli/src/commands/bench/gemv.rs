//! Matrix–vector products over different weights in turn, so that no cache helps.

use std::{process::ExitCode, time::Duration};

use anyhow::bail;
use clap::ValueEnum;
use gpu::{AdapterKind, Arena, Buffer, Device, Lifetime, Memory, Result, Stamps, View};
use kernels::{
    Layout, Matrix, Scheme, Vectors,
    gemv::{
        Gemv,
        policy::{self, Plan, Shape},
    },
    probe,
    random::{Kind, Random},
};
use serde::Serialize;
use serde_json::json;

use super::Arguments;
use crate::output;

/// A weight scheme on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Quant {
    Int8,
    Int4,
}

impl Quant {
    /// The scheme it names.
    pub fn scheme(self) -> Scheme {
        match self {
            Quant::Int8 => Scheme::Int8,
            Quant::Int4 => Scheme::Int4,
        }
    }
}

/// An activation type on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Activations {
    Int8,
    F32,
}

/// One figure.
#[derive(Serialize)]
struct Figure {
    rows: usize,
    k: usize,
    weights: Scheme,
    activations: &'static str,
    columns: usize,
    tier: gpu::Tier,
    threads: u32,
    in_flight: u32,
    groups: u32,
    /// One product with its barrier: GPU time of a chain of them, divided by their number; median of several runs.
    microseconds: f64,
    /// Weights and scales.
    bytes: u64,
    gb_per_s: f64,
    /// Share of the bandwidth measured in the same run.
    bandwidth_percent: f64,
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
    let roof =
        probe::measure(device, probe::default_bytes(device), |step| progress.say(step))?.read_bytes_per_s;
    let free = device.heaps().iter().filter(|heap| heap.device_local).map(gpu::Heap::free).max().unwrap_or(0);
    let size = arguments.size.unwrap_or(DEFAULT_BYTES.min(free / 2));

    let mut figures = Vec::new();
    for quant in &arguments.quant {
        let layout = Layout { scheme: quant.scheme(), rows, k };
        progress.say(&format!("making {} of {} weights", gpu::bytes(size), layout.scheme));
        let weights = random_weights(device, layout, size)?;
        for activations in &arguments.activations {
            for columns in &arguments.batch {
                let int8_activations = *activations == Activations::Int8;
                let shape = Shape { weights: layout, columns: usize::from(*columns), int8_activations };
                let plans = if arguments.sweep {
                    policy::candidates(device.caps(), &shape)
                } else {
                    vec![policy::plan(device.caps(), &shape)]
                };
                for plan in plans {
                    progress.say(&format!("{rows} × {k} {} × {activations:?}: {plan:?}", layout.scheme));
                    figures.push(time(device, &shape, plan, &weights, roof)?);
                }
            }
        }
    }
    drop(progress);
    let impossible = figures.iter().find(|figure| figure.bandwidth_percent > 100.0 + NOISE_PERCENT);
    if let (Some(_), AdapterKind::Cpu) = (impossible, device.info().kind) {
        eprintln!(
            "indrik: on the CPU a read is bound by its instructions and by other programs, not by the memory: percentages \
             above 100 mean only that this product was luckier than the read it is compared with"
        );
    } else if let Some(figure) = impossible {
        bail!(
            "{:.0}% of the measured bandwidth is not possible: the weights stayed in a cache or the device was busy while \
             the bandwidth was measured; try again with a larger --size",
            figure.bandwidth_percent
        );
    }
    if arguments.sweep {
        figures.sort_by(|a, b| {
            let key = |f: &Figure| (f.weights.bits(), f.activations, f.columns);
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
    let values = Random::new(device, Kind::Bits)?;
    let scales = Random::new(device, Kind::Scales)?;
    for (index, matrix) in matrices.iter().enumerate() {
        let mut recorder = device.recorder()?;
        for part in matrix.parts() {
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

fn time(device: &Device, shape: &Shape, plan: Plan, weights: &[Matrix], roof: f64) -> Result<Figure> {
    let Layout { scheme, rows, k } = shape.weights;
    let mut arena = Arena::new(device, Lifetime::Scratch, Memory::Device);
    let x = random_vectors(device, &mut arena, shape)?;
    let y: Buffer = arena.buffer("y", (rows * shape.columns * 4) as u64)?;
    let gemv = Gemv::with_plan(device, *shape, plan)?;
    let mut recorder = device.timed_recorder(Stamps::Whole)?;
    for matrix in weights {
        // All write to one y: each product waits for the one before, as in a model.
        gemv.record(&mut recorder, "gemv", matrix, &x, &y.view())?;
    }
    let program = recorder.seal()?;
    let bytes = weights[0].bytes();
    let nanoseconds = probe::median_gpu_ns(&program)? / weights.len() as f64;
    let bytes_per_s = bytes as f64 / nanoseconds * 1e9;
    Ok(Figure {
        rows,
        k,
        weights: scheme,
        activations: if shape.int8_activations { "int8" } else { "f32" },
        columns: shape.columns,
        tier: plan.tier,
        threads: plan.threads,
        in_flight: plan.in_flight,
        groups: plan.groups,
        microseconds: nanoseconds / 1e3,
        bytes,
        gb_per_s: bytes_per_s / 1e9,
        bandwidth_percent: bytes_per_s / roof * 100.0,
    })
}

fn random_vectors(device: &Device, arena: &mut Arena, shape: &Shape) -> Result<Vectors> {
    let (k, columns) = (shape.weights.k, shape.columns);
    let x = if shape.int8_activations {
        Vectors::int8(arena, "x", k, columns)?
    } else {
        Vectors::f32(arena, "x", k, columns)?
    };
    let mut recorder = device.recorder()?;
    let mut fill = |kind: Kind, to: View| Random::new(device, kind)?.record(&mut recorder, "x", &to, 1);
    match &x.data {
        kernels::VectorData::F32(values) => fill(Kind::Floats, values.view())?,
        kernels::VectorData::Int8 { values, scales } => {
            fill(Kind::Bits, values.view())?;
            fill(Kind::Floats, scales.view())?;
        }
    }
    recorder.seal()?.run(TIMEOUT)?;
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
                format!(
                    "{}, {} × {}, {} in flight",
                    figure.tier, figure.groups, figure.threads, figure.in_flight
                ),
                format!("{:.1}", figure.microseconds),
                format!("{:.1}", figure.gb_per_s),
                format!("{:.1}%", figure.bandwidth_percent),
            ]
        })
        .collect();
    output::table(&["matrix", "weights", "x", "columns", "variant", "µs", "GB/s", "of bandwidth"], &rows)
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
