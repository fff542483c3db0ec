//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result, Tier};
use half::f16;
use tensor::{Layout, Scheme};

use super::{Embed, Operands, reference};
use crate::{
    Matrix,
    case::{Case, Comparison, Output, Random, TIMEOUT, arena},
    soft_tokens::SOFT_TOKEN,
};

/// The factor of Gemma 3 1B: √1152.
const FACTOR: f32 = 33.941_125;

/// Tokens and columns: one group; a strip and a quad; a row and a group more; the 270M's length; more than
/// one workgroup.
const SHAPES: [(usize, usize); 5] = [(1, 32), (16, 128), (17, 160), (40, 640), (33, 1152)];
/// Lengths that only float schemes support.
const ODD: [(usize, usize); 4] = [(1, 1), (3, 7), (18, 130), (5, 1029)];

pub(super) fn cases(_: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for scheme in Scheme::ALL {
        let odd = if scheme.is_float() { &ODD[..] } else { &[] };
        for (vocab, hidden) in SHAPES.iter().chain(odd).copied() {
            let layout = Layout { scheme, rows: vocab, k: hidden };
            let name = format!("{vocab} × {hidden} {scheme}");
            list.push(Case::new(name, Tier::T0, move |device| run(device, layout, device.caps())));
        }
    }
    list
}

/// Looks up every token, one past the last, a soft token and one inactive row, from embeddings divided into blocks as
/// `caps` requires.
pub(super) fn run(device: &Device, layout: Layout, caps: &Caps) -> Result<Comparison> {
    let Layout { rows: vocab, k: hidden, .. } = layout;
    let mut random = Random::new((vocab * 131 + hidden) as u64);
    let mut arena = arena(device);
    let mut embeddings = Matrix::allocate(&mut arena, "embeddings", layout, caps)?;
    fill(&mut embeddings, &mut random)?;
    // In reverse, so that a row's index and its token differ.
    let tokens: Vec<u32> = (0..=vocab as u32).rev().chain([SOFT_TOKEN | 1, 0]).collect();
    // Left unchanged where the vocabulary is even.
    let soft_token = (!vocab.is_multiple_of(2)).then_some(vocab as u32 / 2);
    let rows = tokens.len();
    let active = rows - 1;
    let output = Output::new(&mut arena, rows * hidden)?;
    let operands = Operands {
        embeddings: &embeddings,
        active: arena.buffer_from("active", &[active as u32])?.view(),
        tokens: arena.buffer_from("tokens", &tokens)?.view(),
        soft_token,
        residual: output.buffer.slice(0..(rows * hidden * 4) as u64)?,
    };
    let untouched: Vec<u32> = output.buffer.read_vec()?;
    let mut recorder = device.recorder()?;
    Embed::new(device, layout.scheme)?.record(&mut recorder, "embed", rows, FACTOR, &operands)?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    let got = output.read(&mut comparison)?;
    let weights = embeddings.read()?;
    for (row, token) in tokens.iter().enumerate() {
        let got = &got[row * hidden..][..hidden];
        match reference::embed(&weights, *token, soft_token, FACTOR).filter(|_| row < active) {
            Some(want) => {
                for (k, (got, want)) in got.iter().zip(want).enumerate() {
                    let got = f64::from(f32::from_bits(*got));
                    comparison.close(
                        || format!("token {token}, {k}"),
                        got,
                        want,
                        2.0_f64.powi(-23) * want.abs(),
                    );
                }
            }
            None => comparison.equal(|| format!("row {row}, untouched"), &got, &&untouched[..hidden]),
        }
    }
    Ok(comparison)
}

/// Random bits for integer schemes, random floats otherwise, small f16 among them.
fn fill(embeddings: &mut Matrix, random: &mut Random) -> Result<()> {
    let scheme = embeddings.layout().scheme;
    let mut half = |index: usize| {
        let small = if index.is_multiple_of(5) { 1e-4 } else { 1.0 };
        f16::from_f32(random.signed() * 0.02 * small).to_bits()
    };
    for block in embeddings.blocks_mut() {
        if let Some(scales) = &mut block.scales {
            let halves: Vec<u16> = (0..scales.len() as usize / 2).map(&mut half).collect();
            scales.write(0, bytemuck::cast_slice(&halves))?;
        }
        let bytes = block.values.len() as usize;
        let values: Vec<u8> = match scheme {
            Scheme::F16 => (0..bytes / 2).flat_map(|i| half(i).to_le_bytes()).collect(),
            Scheme::Bf16 => (0..bytes / 2)
                .flat_map(|i| ((f16::from_bits(half(i)).to_f32().to_bits() >> 16) as u16).to_le_bytes())
                .collect(),
            Scheme::F32 => {
                (0..bytes / 4).flat_map(|i| f16::from_bits(half(i)).to_f32().sin().to_le_bytes()).collect()
            }
            _ => (0..bytes).map(|i| (half(i) >> 3) as u8).collect(),
        };
        block.values.write(0, &values)?;
    }
    Ok(())
}
