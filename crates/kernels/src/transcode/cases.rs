//! Self-test cases: the kernel against the CPU implementation (`quant::transcode`).

use gpu::{Caps, Device, Result, Tier};
use half::f16;
use tensor::{Encoding, GROUP, Layout, STRIP, quant};

use super::{ENCODINGS, ExternalScales, Rows, StripMap, Transcode};
use crate::{
    Matrix,
    case::{Case, Comparison, Random, TIMEOUT, arena},
};

/// A tensor's rows and K in blocks of the encoding, the byte at which it starts in its buffer, the rows per
/// dispatch, and its strip map.
#[derive(Clone, Copy)]
struct Size {
    rows: usize,
    blocks: usize,
    first_byte: usize,
    rows_per_dispatch: usize,
    strip_map: StripMap,
}

const SIZES: [Size; 4] = [
    // One row of one block; odd rows in two dispatches, at an odd address; several strips after those of another
    // tensor; strips that alternate with another tensor's.
    Size { rows: 1, blocks: 1, first_byte: 0, rows_per_dispatch: 1, strip_map: StripMap::IDENTITY },
    Size { rows: 21, blocks: 5, first_byte: 3, rows_per_dispatch: 13, strip_map: StripMap::IDENTITY },
    Size {
        rows: 48,
        blocks: 2,
        first_byte: 2,
        rows_per_dispatch: 48,
        strip_map: StripMap { first_strip: 2, step: 1 },
    },
    Size {
        rows: 32,
        blocks: 3,
        first_byte: 1,
        rows_per_dispatch: 10,
        strip_map: StripMap { first_strip: 1, step: 2 },
    },
];

pub(super) fn cases(_: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for encoding in ENCODINGS {
        for size in SIZES {
            let name = format!("{encoding:?}, {} rows of {} blocks", size.rows, size.blocks);
            list.push(Case::new(name, Tier::T0, move |device| run(device, encoding, size, device.caps())));
        }
    }
    list
}

/// Columns of a size. Float encodings have no blocks, and get odd numbers of columns.
fn columns(encoding: Encoding, blocks: usize) -> usize {
    match encoding.scheme().is_float() {
        true => blocks * 37,
        false => blocks * (encoding.block_values() as usize).max(GROUP),
    }
}

/// The same with the matrix divided into blocks as `caps` requires; for tests.
#[cfg(test)]
pub(super) fn run_in_blocks(device: &Device, encoding: Encoding, caps: &Caps) -> Result<Comparison> {
    run(device, encoding, SIZES[3], caps)
}

fn run(device: &Device, encoding: Encoding, size: Size, caps: &Caps) -> Result<Comparison> {
    let k = columns(encoding, size.blocks);
    let row_bytes = encoding.bytes(&[k as u64]).expect("a multiple of the block size") as usize;
    let source = random_rows(encoding, size.rows * row_bytes, (size.rows * 97 + k) as u64);
    let external_scales = random_scales(encoding, size.rows * k);
    // Strips before, between and after the tensor's own belong to others.
    let strips = size.strip_map.first_strip + size.rows.div_ceil(STRIP) * size.strip_map.step;
    let whole = size.strip_map == StripMap::IDENTITY;
    let rows = if whole { size.rows } else { strips * STRIP };
    let layout = Layout::new(encoding.scheme(), rows, k).expect("a valid shape");

    let mut arena = arena(device);
    let mut matrix = Matrix::allocate(&mut arena, "matrix", layout, caps)?;
    for block in matrix.blocks_mut() {
        block.values.bytes_mut()?.fill(0xa5);
        if let Some(scales) = &mut block.scales {
            scales.bytes_mut()?.fill(0xa5);
        }
    }
    let mut bytes = vec![0xcc; size.first_byte];
    bytes.extend_from_slice(&source);
    bytes.resize(bytes.len().next_multiple_of(4) + 4, 0xcc);
    let buffer = arena.buffer_from("rows", &bytes)?;
    let damage = arena.buffer_from("damage", &[u32::MAX])?;
    let scales =
        if external_scales.is_empty() { None } else { Some(arena.buffer_from("scales", &external_scales)?) };
    let kernel = Transcode::new(device, encoding)?;
    let mut recorder = device.recorder()?;
    matrix.record_padding(&mut recorder, "padding")?;
    for first_row in (0..size.rows).step_by(size.rows_per_dispatch) {
        let rows = Rows {
            source: buffer.view(),
            first_byte: (size.first_byte + first_row * row_bytes) as u64,
            count: size.rows_per_dispatch.min(size.rows - first_row),
            first_row,
            scales: scales.as_ref().map(|scales| ExternalScales { view: scales.view(), first: 0 }),
        };
        kernel.record(&mut recorder, "transcode", &rows, &matrix, size.strip_map, &damage.view())?;
    }
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    comparison.equal(|| "damage".into(), &damage.read_vec::<u32>()?, &vec![u32::MAX]);
    let mut want = vec![0.0; size.rows * k];
    match external_scales.is_empty() {
        true => quant::dequantize(encoding, &source, &mut want),
        false => quant::dequantize_layerwise(encoding, &source, &external_scales, &mut want),
    }
    .expect("valid rows");
    compare(&mut comparison, encoding, size, &want, k, &matrix.read()?)?;
    if whole {
        compare_padding(&mut comparison, &matrix)?;
    }
    Ok(comparison)
}

/// Compares every value: exact encodings bit for bit, others within the error that `quant` states.
fn compare(
    comparison: &mut Comparison,
    encoding: Encoding,
    size: Size,
    want: &[f32],
    k: usize,
    got: &[Vec<f32>],
) -> Result<()> {
    let (_, exactness) = quant::scheme_for(encoding);
    for row in 0..size.rows {
        let strip = size.strip_map.first_strip + row / STRIP * size.strip_map.step;
        let got = &got[strip * STRIP + row % STRIP];
        for (group, want) in want[row * k..(row + 1) * k].chunks(GROUP).enumerate() {
            let largest = want.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            let allowed = f64::from(exactness.bound(largest));
            for (i, want) in want.iter().enumerate() {
                let got = got[group * GROUP + i];
                let at = || format!("row {row}, column {}", group * GROUP + i);
                match exactness {
                    quant::Exactness::Exact => comparison.equal(at, &got.to_bits(), &want.to_bits()),
                    quant::Exactness::Within { .. } => {
                        comparison.close(at, f64::from(got), f64::from(*want), allowed);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Rows and columns past the end are zero, scales included.
fn compare_padding(comparison: &mut Comparison, matrix: &Matrix) -> Result<()> {
    let layout = matrix.layout();
    for block in matrix.blocks() {
        let bytes: Vec<u8> = block.values.read_vec()?;
        let value_bytes = (layout.scheme.bits() as usize).div_ceil(8);
        for row in 0..block.layout.strips() * STRIP {
            for k in 0..block.layout.quads() * tensor::QUAD {
                if row >= block.layout.rows || k >= layout.k {
                    let (at, _) = block.layout.value_at(row, k);
                    let is_high_nibble_of_values = layout.scheme.bits() == 4
                        && row < block.layout.rows
                        && k % 64 >= 32
                        && k - 32 < layout.k;
                    if !is_high_nibble_of_values {
                        let bytes = &bytes[at..at + value_bytes];
                        comparison.equal(
                            || format!("padding of row {row}, column {k}"),
                            &bytes.iter().all(|b| *b == 0),
                            &true,
                        );
                    }
                }
            }
        }
    }
    Ok(())
}

/// Scales of the encodings that store them in a separate tensor.
fn random_scales(encoding: Encoding, values: usize) -> Vec<f32> {
    let mut random = Random::new(values as u64);
    match encoding {
        Encoding::Int8Symmetric => vec![0.0123],
        Encoding::Int4Grouped => {
            (0..values.div_ceil(quant::LAYERWISE_GROUP)).map(|_| 0.05 * (1.5 + random.signed())).collect()
        }
        Encoding::Int8Asymmetric => vec![0.0123, 101.4],
        _ => vec![],
    }
}

/// Random blocks with ordinary scales.
fn random_rows(encoding: Encoding, bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut rows: Vec<u8> = (0..bytes).map(|_| random.bits() as u8).collect();
    let mut half = |to: &mut [u8], scale: f32| {
        to.copy_from_slice(&f16::from_f32(scale * (1.5 + random.signed())).to_le_bytes());
    };
    for (index, block) in rows.chunks_mut(encoding.block_bytes() as usize).enumerate() {
        let tiny = index % 3 == 1;
        match encoding {
            // Any bits except those of non-finite numbers.
            Encoding::F32 | Encoding::F16 | Encoding::Bf16 => {
                let last = block.len() - 1;
                block[last] &= 0xbf;
            }
            Encoding::Int4Grouped => block[0] = (block[0] % 16).wrapping_sub(8),
            Encoding::Int8Symmetric | Encoding::Int8Asymmetric => {}
            // Some so small that the scale of a group is subnormal in f16.
            Encoding::Q6K => half(&mut block[208..210], if tiny { 2e-7 } else { 0.001 }),
            Encoding::Q4_1 | Encoding::Q5_1 | Encoding::Q4K | Encoding::Q5K => {
                half(&mut block[0..2], 0.01);
                half(&mut block[2..4], -0.05);
            }
            _ => half(&mut block[0..2], 0.01),
        }
    }
    rows
}
