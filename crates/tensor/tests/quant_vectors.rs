//! The reference arithmetic against test vectors of the `gguf` Python package (scripts/make_gguf_vectors.py),
//! and transcoding to the GPU's schemes: bit for bit where promised, within the stated error otherwise.

use half::f16;
use proptest::prelude::*;
use tensor::{
    Encoding, GROUP, Scheme,
    quant::{
        Exactness, Groups, QuantError, check_scales, dequantize, scheme_for, transcode, transcode_layerwise,
    },
};

const FLOATS: [Encoding; 3] = [Encoding::F32, Encoding::F16, Encoding::Bf16];
const EXACT: [Encoding; 5] = [Encoding::Q8_0, Encoding::Q4_0, Encoding::Q5_0, Encoding::Q4_1, Encoding::Q5_1];
const ROUNDING: [Encoding; 3] = [Encoding::Q4K, Encoding::Q5K, Encoding::Q6K];

/// Blocks and their values as the `gguf` package decodes them.
fn vectors(encoding: Encoding) -> (&'static [u8], Vec<f32>) {
    macro_rules! file {
        ($name:literal) => {
            include_bytes!(concat!("fixtures/gguf_vectors/", $name, ".bin")).as_slice()
        };
    }
    let file = match encoding {
        Encoding::F32 => file!("f32"),
        Encoding::F16 => file!("f16"),
        Encoding::Bf16 => file!("bf16"),
        Encoding::Q8_0 => file!("q8_0"),
        Encoding::Q4_0 => file!("q4_0"),
        Encoding::Q4_1 => file!("q4_1"),
        Encoding::Q5_0 => file!("q5_0"),
        Encoding::Q5_1 => file!("q5_1"),
        Encoding::Q4K => file!("q4_k"),
        Encoding::Q5K => file!("q5_k"),
        Encoding::Q6K => file!("q6_k"),
        other => panic!("no vectors for {other:?}"),
    };
    let (count, rest) = file.split_at(4);
    let count = u32::from_le_bytes(count.try_into().unwrap()) as usize;
    let (blocks, values) = rest.split_at(count * encoding.block_bytes() as usize);
    let values: Vec<f32> = values.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert_eq!(values.len(), count * encoding.block_values() as usize);
    (blocks, values)
}

fn dequantized(encoding: Encoding, blocks: &[u8]) -> Vec<f32> {
    let count = blocks.len() / encoding.block_bytes() as usize * encoding.block_values() as usize;
    let mut values = vec![f32::NAN; count];
    dequantize(encoding, blocks, &mut values).unwrap();
    values
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Asserts that the groups are well formed and every value is within the bound of its group.
fn assert_within(groups: &Groups, exact: &[f32], exactness: Exactness) {
    assert_well_formed(groups, exact.len());
    let values = groups.dequantize();
    for (group, (exact, values)) in exact.chunks(GROUP).zip(values.chunks(GROUP)).enumerate() {
        let largest = exact.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let bound = f64::from(exactness.bound(largest));
        for (exact, value) in exact.iter().zip(values) {
            let error = (f64::from(*exact) - f64::from(*value)).abs();
            assert!(
                error <= bound,
                "group {group}: {exact:e} became {value:e}, off by {error:e} > {bound:e}"
            );
        }
    }
}

fn assert_well_formed(groups: &Groups, values: usize) {
    assert_eq!(groups.q.len(), values);
    assert_eq!(groups.scales.len() * GROUP, values);
    assert_eq!(groups.mins.as_ref().map(Vec::len), groups.scheme.has_min().then_some(values / GROUP));
    if matches!(groups.scheme, Scheme::Int4 | Scheme::Int4Min) {
        assert!(groups.q.iter().all(|q| (-8..8).contains(q)), "4-bit integers must be in −8…7");
    }
}

#[test]
fn dequantized_values_match_the_gguf_package_bit_for_bit() {
    for encoding in [&FLOATS[..], &EXACT, &ROUNDING].concat() {
        let (blocks, expected) = vectors(encoding);
        assert_eq!(bits(&dequantized(encoding, blocks)), bits(&expected), "{encoding:?}");
    }
}

#[test]
fn vectors_cover_the_edge_cases() {
    for encoding in EXACT {
        let (_, values) = vectors(encoding);
        assert!(values.iter().any(|value| value.to_bits() == 0x8000_0000), "{encoding:?} has no −0");
        assert!(
            values.iter().any(|value| *value != 0.0 && value.abs() < 6.2e-5),
            "{encoding:?} has no subnormal scale"
        );
        assert!(values.iter().any(|value| value.abs() > 65_504.0), "{encoding:?} lacks the largest scale");
    }
}

#[test]
fn exact_schemes_preserve_the_vectors_bit_for_bit() {
    for encoding in EXACT {
        let (blocks, expected) = vectors(encoding);
        let groups = transcode(encoding, blocks).unwrap();
        assert_eq!(scheme_for(encoding), (groups.scheme, Exactness::Exact));
        assert_well_formed(&groups, expected.len());
        assert_eq!(bits(&groups.dequantize()), bits(&expected), "{encoding:?}");
    }
}

#[test]
fn rounding_schemes_stay_within_the_stated_error_on_the_vectors() {
    for encoding in ROUNDING {
        let (blocks, expected) = vectors(encoding);
        let (scheme, exactness) = scheme_for(encoding);
        let (size, per_block) = (encoding.block_bytes() as usize, encoding.block_values() as usize);
        let mut rejected = 0;
        for (block, expected) in blocks.chunks(size).zip(expected.chunks(per_block)) {
            match transcode(encoding, block) {
                Ok(groups) => {
                    assert_eq!(groups.scheme, scheme);
                    assert_within(&groups, expected, exactness);
                }
                Err(QuantError::TooLarge { block: 0, value }) => {
                    assert!(value > 65_504.0);
                    rejected += 1;
                }
                Err(other) => panic!("{encoding:?}: {other}"),
            }
        }
        // The vectors have a few blocks with the largest f16 as scale; all others must pass.
        assert!(rejected <= 10, "{encoding:?}: {rejected} blocks rejected");
    }
}

#[test]
fn stated_errors_are_tight() {
    // A bound that is too wide would hide regressions of the transcoder.
    for encoding in ROUNDING {
        let (_, exactness) = scheme_for(encoding);
        let mut worst = 0.0_f64;
        for seed in 0..4000_u64 {
            let block = weight_like_block(encoding, seed);
            let values = transcode(encoding, &block).unwrap().dequantize();
            let exact = dequantized(encoding, &block);
            for (exact, values) in exact.chunks(GROUP).zip(values.chunks(GROUP)) {
                let largest = exact.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
                let error = exact.iter().zip(values).fold(0.0_f32, |worst, (a, b)| worst.max((a - b).abs()));
                worst = worst.max(f64::from(error) / f64::from(exactness.bound(largest)));
            }
        }
        assert!((0.7..=1.0).contains(&worst), "{encoding:?}: the worst error is {worst} of the bound");
    }
}

/// A block whose values are centred around zero like weights: the minimum is about half of the range.
fn weight_like_block(encoding: Encoding, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut block: Vec<u8> = (0..encoding.block_bytes()).map(|_| (next() >> 32) as u8).collect();
    let d = 1e-4 * (1.0 + (next() >> 40) as f32 / (1 << 24) as f32);
    if encoding == Encoding::Q6K {
        block[208..].copy_from_slice(&f16::from_f32(d).to_le_bytes());
        return block;
    }
    let half = if encoding == Encoding::Q4K { 7.5 } else { 15.5 };
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    block[2..4].copy_from_slice(&f16::from_f32(d * half).to_le_bytes());
    // Sub-blocks 0–3 have the same 6 bits for scale and minimum.
    for j in 0..4 {
        block[8 + j] = block[4 + j];
    }
    block
}

#[test]
fn non_finite_scales_are_rejected_by_name() {
    for (encoding, offsets) in [
        (Encoding::Q8_0, &[(0, "scale")][..]),
        (Encoding::Q4_0, &[(0, "scale")]),
        (Encoding::Q5_0, &[(0, "scale")]),
        (Encoding::Q4_1, &[(0, "scale"), (2, "minimum")]),
        (Encoding::Q5_1, &[(0, "scale"), (2, "minimum")]),
        (Encoding::Q4K, &[(0, "scale"), (2, "scale of the minima")]),
        (Encoding::Q5K, &[(0, "scale"), (2, "scale of the minima")]),
        (Encoding::Q6K, &[(208, "scale")]),
    ] {
        let size = encoding.block_bytes() as usize;
        for (at, name) in offsets {
            for bad in [f16::NAN, f16::INFINITY, f16::NEG_INFINITY] {
                let mut blocks = vec![0_u8; 5 * size];
                blocks[3 * size + at..][..2].copy_from_slice(&bad.to_le_bytes());
                let error = check_scales(encoding, &blocks).unwrap_err();
                assert!(
                    matches!(error, QuantError::NotFinite { what, block: 3, .. } if what == *name),
                    "{encoding:?}: {error}"
                );
                assert!(transcode(encoding, &blocks).is_err());
                assert!(error.to_string().contains(&format!("the {name} of block 3 is")), "{error}");
            }
        }
        assert_eq!(check_scales(encoding, &vec![0; 5 * size]), Ok(()));
    }
}

#[test]
fn super_blocks_that_overflow_f16_are_rejected() {
    // The scale fits f16, but times the largest code (15 or 31) it overflows. The limit is on the largest
    // value that the codes can express.
    for (encoding, codes) in [(Encoding::Q4K, 15), (Encoding::Q5K, 31)] {
        let mut block = vec![0_u8; encoding.block_bytes() as usize];
        block[..2].copy_from_slice(&f16::from_f32(1024.0).to_le_bytes());
        block[4] = (65_504 / 1024 / codes) as u8;
        assert!(transcode(encoding, &block).unwrap().scales[0].is_finite());
        block[4] += 1;
        assert!(matches!(transcode(encoding, &block), Err(QuantError::TooLarge { block: 0, .. })));
        block[4] = 0;
        (block[2..4]).copy_from_slice(&f16::from_f32(-1024.0).to_le_bytes());
        block[8] = 63;
        assert_eq!(transcode(encoding, &block).unwrap().mins.unwrap()[0], f16::from_f32(63.0 * 1024.0));
    }
    // 32·3 times the largest f16 fits 127 steps of it, 32·4 does not.
    let mut block = [0_u8; 210];
    block[208..].copy_from_slice(&f16::MAX.to_le_bytes());
    block[192] = 3;
    assert_within(
        &transcode(Encoding::Q6K, &block).unwrap(),
        &dequantized(Encoding::Q6K, &block),
        scheme_for(Encoding::Q6K).1,
    );
    block[192] = -4_i8 as u8;
    assert!(matches!(transcode(Encoding::Q6K, &block), Err(QuantError::TooLarge { block: 0, .. })));
}

#[test]
fn mismatched_lengths_are_errors() {
    let mut out = [0.0; 32];
    assert!(matches!(
        dequantize(Encoding::Q8_0, &[0; 33], &mut out),
        Err(QuantError::Length { bytes: 33, .. })
    ));
    assert!(matches!(
        dequantize(Encoding::Q8_0, &[0; 68], &mut out),
        Err(QuantError::Length { values: 32, .. })
    ));
    assert!(matches!(transcode(Encoding::Q4K, &[0; 143]), Err(QuantError::Length { .. })));
    assert!(matches!(transcode(Encoding::F16, &[0; 64]), Err(QuantError::Scheme { scheme: Scheme::F16 })));
    assert!(matches!(
        dequantize(Encoding::Int8Symmetric, &[0; 32], &mut out),
        Err(QuantError::Scales { .. })
    ));
    assert!(matches!(transcode(Encoding::Int4Grouped, &[0; 32]), Err(QuantError::Scales { .. })));
    assert!(matches!(transcode_layerwise(Encoding::Q8_0, &[0; 34], &[]), Err(QuantError::Scales { .. })));
}

/// Any block of an encoding with finite scales, including subnormal, negative and zero scales.
fn any_block(encoding: Encoding) -> impl Strategy<Value = Vec<u8>> {
    let offsets: &[usize] = match encoding {
        Encoding::Q6K => &[208],
        Encoding::Q8_0 | Encoding::Q4_0 | Encoding::Q5_0 => &[0],
        _ => &[0, 2],
    };
    let half = prop_oneof![
        any::<u16>().prop_map(f16::from_bits).prop_filter("finite", |half| half.is_finite()),
        (-0.01_f32..0.01).prop_map(f16::from_f32),
    ];
    // Arbitrary codes, and blocks of only two different bytes: groups with a narrow range.
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), encoding.block_bytes() as usize),
        (any::<u8>(), any::<u8>(), prop::collection::vec(any::<bool>(), encoding.block_bytes() as usize))
            .prop_map(|(a, b, which)| which.iter().map(|which| if *which { a } else { b }).collect()),
    ];
    (bytes, prop::collection::vec(half, offsets.len())).prop_map(move |(mut bytes, halves)| {
        for (at, half) in offsets.iter().zip(halves) {
            bytes[*at..at + 2].copy_from_slice(&half.to_le_bytes());
        }
        bytes
    })
}

proptest! {
    #[test]
    fn exact_schemes_preserve_every_bit(
        (encoding, block) in prop::sample::select(&EXACT[..]).prop_flat_map(|e| (Just(e), any_block(e)))
    ) {
        let groups = transcode(encoding, &block).unwrap();
        prop_assert_eq!(bits(&groups.dequantize()), bits(&dequantized(encoding, &block)));
    }

    #[test]
    fn rounding_schemes_stay_within_the_stated_error(
        (encoding, block) in prop::sample::select(&ROUNDING[..]).prop_flat_map(|e| (Just(e), any_block(e)))
    ) {
        prop_assert_eq!(transcode(encoding, &block).map(|_| ()), check_scales(encoding, &block));
        if let Ok(groups) = transcode(encoding, &block) {
            assert_within(&groups, &dequantized(encoding, &block), scheme_for(encoding).1);
        }
    }

    #[test]
    fn fused_multiply_add_gives_the_same_bits(
        (encoding, block) in prop::sample::select(&[Encoding::Q4_1, Encoding::Q5_1, Encoding::Q4K, Encoding::Q5K][..])
            .prop_flat_map(|e| (Just(e), any_block(e)))
    ) {
        if let Ok(groups) = transcode(encoding, &block) {
            let offset = if groups.scheme == Scheme::Int4Min { 8.0 } else { 0.0 };
            let mins = groups.mins.as_ref().unwrap();
            let fused: Vec<f32> = groups.q.iter().enumerate().map(|(k, q)| {
                let (d, m) = (groups.scales[k / GROUP].to_f32(), mins[k / GROUP].to_f32());
                (f32::from(*q) + offset).mul_add(d, m)
            }).collect();
            prop_assert_eq!(bits(&fused), bits(&groups.dequantize()));
        }
    }
}
