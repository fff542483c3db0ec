//! Placement on the heaps that real devices report.

use proptest::prelude::*;
use tensor::Scheme;
use weights::plan::{
    ALIGNMENT, Advice, Content, Demand, Gtt, HeapInfo, KvLayerDemand, MIN_CONTEXT, Margin, Memory, Placement,
    PlanError, Shortfall, WeightDemand, kv_bytes, plan,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn gib(count: f64) -> u64 {
    (count * GIB as f64) as u64
}

fn local(size: u64) -> HeapInfo {
    HeapInfo { size, budget: Some(size), used: 0, device_local: true, host_visible: false }
}

fn host(size: u64) -> HeapInfo {
    HeapInfo { size, budget: Some(size), used: 0, device_local: false, host_visible: true }
}

fn memory(heaps: &[HeapInfo], unified: bool, max_allocation: u64) -> Memory {
    let heaps = heaps.to_vec();
    Memory { heaps, unified, max_allocation, available: None, margin: Margin::default(), gtt: None }
}

/// Radeon 780M, 16 GB carve-out + 38 GB GTT of a 96 GB machine; RADV lists the host's heap first.
fn radeon_780m() -> Memory {
    let device = HeapInfo { host_visible: true, ..local(36 * GIB) };
    let gtt = Some(Gtt { size: 38 * GIB, system: 78 * GIB });
    Memory { gtt, ..memory(&[host(18 * GIB), device], true, 4 * GIB - 4) }
}

/// Radeon 8060S with 96 GB for the GPU.
fn radeon_8060s() -> Memory {
    memory(&[host(32 * GIB), HeapInfo { host_visible: true, ..local(64 * GIB) }], true, 4 * GIB - 4)
}

/// NVIDIA H200, with its window for the CPU.
fn h200() -> Memory {
    let window = HeapInfo { host_visible: true, ..local(246 * MIB) };
    memory(&[local(gib(140.4)), host(gib(94.4)), window], false, 4 * GIB)
}

/// A card of 24 GB on which a desktop already uses some.
fn card_24gb() -> Memory {
    let card = HeapInfo { budget: Some(gib(23.2)), ..local(24 * GIB) };
    memory(&[card, host(48 * GIB)], false, 4 * GIB)
}

/// Mesa's CPU driver.
fn mesa_cpu() -> Memory {
    memory(&[HeapInfo { host_visible: true, ..local(gib(23.5)) }], true, 2 * GIB)
}

fn matrix(name: String, rows: u64, k: u64, scheme: Scheme) -> WeightDemand {
    let row = k / 32 * scheme.group_bytes();
    WeightDemand { name, bytes: rows * row, bytes_per_token: rows * row, split_unit: 16 * row }
}

/// Gemma 3 27B.
fn weights_27b(scheme: Scheme) -> Vec<WeightDemand> {
    let mut items = vec![matrix("embed".into(), 262_144, 5376, scheme)];
    for layer in 0..62 {
        for (role, rows, k) in
            [("qkv", 8192, 5376), ("o", 5376, 4096), ("gate_up", 43_008, 5376), ("down", 5376, 21_504)]
        {
            items.push(matrix(format!("{role}.{layer}"), rows, k, scheme));
        }
        items.push(WeightDemand {
            name: format!("norms.{layer}"),
            bytes: 4 * 5376 * 4,
            bytes_per_token: 4 * 5376 * 4,
            split_unit: 0,
        });
    }
    items
}

/// 10 full and 52 sliding layers, 16 KV heads of 128 elements in f16.
fn kv_27b() -> Vec<KvLayerDemand> {
    let layer = |max_tokens| KvLayerDemand { bytes_per_token: 2 * 16 * 256, max_tokens };
    [vec![layer(None); 10], vec![layer(Some(1024)); 52]].concat()
}

fn demand_27b(scheme: Scheme, context_length: u64) -> Demand {
    let smaller = [Scheme::Int8, Scheme::Int4]
        .into_iter()
        .filter(|smaller| smaller.group_bytes() < scheme.group_bytes())
        .map(|smaller| (smaller, weights_27b(smaller)))
        .collect();
    let weights = weights_27b(scheme);
    Demand {
        weights,
        kv_layers: kv_27b(),
        context_length,
        max_sequences: 1,
        scratch_bytes: 256 * MIB,
        smaller,
    }
}

fn shortfall(memory: &Memory, demand: &Demand) -> Shortfall {
    match plan(memory, demand) {
        Err(PlanError::Shortfall(shortfall)) => shortfall,
        other => panic!("expected a shortfall, got {other:?}"),
    }
}

/// Everything is placed once, in blocks the driver allows, and no heap is overdrawn.
fn assert_sound(memory: &Memory, demand: &Demand, placement: &Placement) {
    let kv = kv_bytes(&demand.kv_layers, demand.context_length, demand.max_sequences);
    let token = demand.kv_layers.iter().map(|layer| layer.bytes_per_token).max().unwrap_or(0);
    let mut parts: Vec<(Content, u64, u64)> =
        vec![(Content::Kv, kv, token), (Content::Scratch, demand.scratch_bytes, ALIGNMENT)];
    parts.extend(
        demand.weights.iter().enumerate().map(|(i, item)| (Content::Weight(i), item.bytes, item.split_unit)),
    );
    for (part, bytes, strip) in parts {
        let mut next = 0;
        for extent in placement.extents(part) {
            assert_eq!(extent.start, next, "{part:?} has a gap");
            assert!(
                extent.start == 0 || strip > 0 && extent.start % strip == 0,
                "{part:?} is divided within a strip"
            );
            next += extent.bytes;
        }
        assert_eq!(next, bytes, "{part:?} is not placed whole");
    }
    let mut ends = vec![0; placement.blocks.len()];
    for extent in &placement.extents {
        assert_eq!(extent.offset % ALIGNMENT, 0);
        assert!(extent.bytes > 0 && extent.offset >= ends[extent.block], "extents overlap");
        ends[extent.block] = extent.offset + extent.bytes;
        assert_eq!(placement.blocks[extent.block].kind, extent.content.block_kind());
    }
    let mut totals = vec![(0, 0); memory.heaps.len()];
    for (block, end) in placement.blocks.iter().zip(ends) {
        assert!(end > 0 && end <= block.bytes && block.bytes <= memory.max_allocation);
        totals[block.heap].0 += block.bytes;
        totals[block.heap].1 += 1;
    }
    for (index, heap) in placement.heaps.iter().enumerate() {
        assert_eq!((heap.planned(), heap.blocks), totals[index]);
        assert!(heap.planned() <= memory.margin.usable(&memory.heaps[index]), "heap {index} is overdrawn");
    }
}

fn placed(memory: &Memory, demand: &Demand) -> Placement {
    let placement = plan(memory, demand).unwrap_or_else(|error| panic!("{error}"));
    assert_sound(memory, demand, &placement);
    placement
}

/// The device and the demand after one advice was followed.
fn followed(memory: &Memory, demand: &Demand, advice: &Advice) -> (Memory, Demand) {
    let (mut memory, mut demand) = (memory.clone(), demand.clone());
    match advice {
        Advice::Scheme { scheme, context_length, .. } => {
            demand.weights = demand.smaller.iter().find(|(smaller, _)| smaller == scheme).unwrap().1.clone();
            demand.context_length = *context_length;
        }
        Advice::Context { context_length } => demand.context_length = *context_length,
        Advice::FreeMemory { bytes } => memory.available = Some(memory.available.unwrap() + bytes),
        Advice::PagesLimit { pages, gtt } => {
            assert_eq!(pages * 4096, *gtt);
            let total =
                memory.heaps.iter().map(|heap| heap.size).sum::<u64>() + gtt - memory.gtt.unwrap().size;
            for heap in &mut memory.heaps {
                heap.size = if heap.device_local { total * 2 / 3 } else { total - total * 2 / 3 };
                heap.budget = Some(heap.size);
            }
        }
    }
    (memory, demand)
}

#[test]
fn the_sizes_are_those_of_the_design() {
    let total = |scheme| weights_27b(scheme).iter().map(|item| item.bytes).sum::<u64>() as f64 / 1e9;
    assert!((total(Scheme::Int8) - 28.7).abs() < 0.05 && (total(Scheme::Int4) - 15.2).abs() < 0.05);
    let kv = |context| kv_bytes(&kv_27b(), context, 1) as f64 / 1e9;
    assert!(
        (kv(1024) - 0.52).abs() < 0.005
            && (kv(8192) - 1.11).abs() < 0.005
            && (kv(32_768) - 3.12).abs() < 0.005
    );
    assert_eq!(kv_bytes(&kv_27b(), 100, 1), 8192 * 62 * 100, "sliding layers hold no more than there is");
    assert_eq!(kv_bytes(&kv_27b(), 8192, 3), 3 * kv_bytes(&kv_27b(), 8192, 1));
    assert_eq!(kv_bytes(&kv_27b(), u64::MAX, 2), u64::MAX);
}

#[test]
fn the_780m_holds_int8_in_its_device_local_heap() {
    let placement = placed(&radeon_780m(), &demand_27b(Scheme::Int8, 8192));
    assert_eq!(placement.heaps[0].planned(), 0);
    assert_eq!(placement.spill, None);
    assert!(placement.extents(Content::Weight(0)).count() == 1, "1.5 GB need not be divided");
}

#[test]
fn the_780m_needs_both_heaps_for_bf16() {
    let demand = demand_27b(Scheme::Bf16, 8192);
    let placement = placed(&radeon_780m(), &demand);
    assert!(placement.heaps[1].planned() > 34 * GIB, "the device-local heap is filled first");
    assert!(placement.heaps[0].planned() > 14 * GIB);
    assert_eq!(placement.spill, None, "all of it is the same memory");
    for index in 0..demand.weights.len() {
        assert_eq!(placement.extents(Content::Weight(index)).count(), 1, "{index} is divided without need");
    }
}

#[test]
fn the_780m_says_what_would_make_bf16_fit_with_a_long_context() {
    let (memory, demand) = (radeon_780m(), demand_27b(Scheme::Bf16, 131_072));
    let shortfall = shortfall(&memory, &demand);
    assert_eq!(shortfall.usable, 54 * GIB - GIB - 18 * GIB / 32);
    let unusable = shortfall.usable + shortfall.bytes - shortfall.needed;
    assert!(unusable < MIB, "strips leave a little: {unusable}");
    let [
        Advice::Scheme { scheme: Scheme::Int8, context_length: 131_072, .. },
        Advice::Scheme { scheme: Scheme::Int4, context_length: 131_072, .. },
        Advice::Context { context_length },
        Advice::PagesLimit { gtt, .. },
    ] = shortfall.advice[..]
    else {
        panic!("{:?}", shortfall.advice)
    };
    for advice in &shortfall.advice {
        let (memory, demand) = followed(&memory, &demand, advice);
        placed(&memory, &demand);
    }
    let longer = Demand { context_length: context_length + 256, ..demand.clone() };
    assert!(plan(&memory, &longer).is_err(), "a longer one would fit too");
    let less = Advice::PagesLimit { pages: (gtt - GIB) / 4096, gtt: gtt - GIB };
    let (memory, demand) = followed(&memory, &demand, &less);
    assert!(plan(&memory, &demand).is_err(), "a smaller limit would do");
}

#[test]
fn the_8060s_holds_bf16_with_long_contexts() {
    let placement = placed(&radeon_8060s(), &demand_27b(Scheme::Bf16, 131_072));
    assert_eq!(placement.heaps[0].planned(), 0);
    let many = Demand { max_sequences: 4, ..demand_27b(Scheme::Bf16, 131_072) };
    let placement = placed(&radeon_8060s(), &many);
    assert!(placement.heaps[0].planned() > 24 * GIB && placement.heaps[1].planned() > 60 * GIB);
    assert_eq!(placement.spill, None);
}

#[test]
fn the_h200_keeps_everything_on_the_card() {
    for scheme in [Scheme::Int4, Scheme::Int8, Scheme::Bf16] {
        let placement = placed(&h200(), &demand_27b(scheme, 131_072));
        assert_eq!(placement.spill, None);
        assert_eq!((placement.heaps[1].blocks, placement.heaps[2].blocks), (0, 0), "neither host nor window");
    }
    let blocks = placed(&h200(), &demand_27b(Scheme::Int8, 8192)).heaps[0].blocks;
    assert!((8..=10).contains(&blocks), "28.7 GB in blocks of 4 GiB: {blocks}");
}

#[test]
fn what_others_use_of_the_budget_is_not_planned_with() {
    let mut busy = h200();
    (busy.heaps[0].budget, busy.heaps[0].used) = (Some(31 * GIB), GIB);
    let placement = placed(&busy, &demand_27b(Scheme::Int8, 8192));
    assert_eq!(placement.heaps[0].usable, 31 * GIB - GIB - GIB);
    assert_eq!(placement.spill, None);
    busy.heaps[0].used = 3 * GIB;
    assert!(placed(&busy, &demand_27b(Scheme::Int8, 8192)).spill.is_some());
}

#[test]
fn a_24_gb_card_spills_and_says_so() {
    let demand = demand_27b(Scheme::Int8, 8192);
    let placement = placed(&card_24gb(), &demand);
    let spill = placement.spill.unwrap();
    let needed =
        256 * MIB + kv_bytes(&kv_27b(), 8192, 1) + demand.weights.iter().map(|item| item.bytes).sum::<u64>();
    let usable = gib(23.2) - 24 * GIB / 32;
    let strip = 16 * 5376 / 32 * 34;
    assert!(
        (needed - usable..needed - usable + 2 * strip).contains(&spill.bytes),
        "the card is filled: {spill:?}"
    );
    assert_eq!(spill.bytes_per_token, spill.bytes, "tied embeddings: a token reads all there is");
    assert_eq!(placement.heaps[1].kv + placement.heaps[1].scratch, 0, "KV and scratch stay on the card");
    let text = placement.to_string();
    assert!(
        text.contains("warning: ") && text.contains("across the bus") && text.contains(" ms at 25 GB/s"),
        "{text}"
    );
    assert_eq!(placed(&card_24gb(), &demand_27b(Scheme::Int4, 8192)).spill, None);
}

#[test]
fn on_a_card_the_least_read_spills_first() {
    let mut demand = demand_27b(Scheme::Int8, 8192);
    // An output matrix of its own: of the input embedding a token reads one row.
    demand.weights.push(WeightDemand { name: "head".into(), ..demand.weights[0].clone() });
    demand.weights[0].bytes_per_token = 5376 * 34 / 32;
    let placement = placed(&card_24gb(), &demand);
    let heaps = |index| {
        let extents = placement.extents(Content::Weight(index));
        extents.map(|extent| placement.blocks[extent.block].heap).collect::<Vec<_>>()
    };
    assert_eq!(heaps(0), [1], "the embedding is first in the list, and still goes last");
    let spill = placement.spill.unwrap();
    assert!(spill.bytes_per_token < spill.bytes - demand.weights[0].bytes + MIB, "{spill:?}");
    let divided =
        (0..demand.weights.len()).filter(|index| heaps(*index).windows(2).any(|w| w[0] != w[1])).count();
    assert!(divided <= 1, "one tensor at most lies on both sides of the border: {divided}");
}

#[test]
fn mesas_cpu_driver_has_no_room_for_int8_and_says_int4() {
    let demand = demand_27b(Scheme::Int8, 8192);
    let shortfall = shortfall(&mesa_cpu(), &demand);
    let [Advice::Scheme { scheme: Scheme::Int4, context_length: 8192, weights }] = shortfall.advice[..]
    else {
        panic!("{:?}", shortfall.advice)
    };
    assert_eq!(weights, weights_27b(Scheme::Int4).iter().map(|item| item.bytes).sum::<u64>());
    let placement = placed(&mesa_cpu(), &demand_27b(Scheme::Int4, 8192));
    assert!(placement.blocks.iter().all(|block| block.bytes <= 2 * GIB));
}

#[test]
fn a_tensor_larger_than_an_allocation_is_divided_at_a_strip() {
    let mut demand = demand_27b(Scheme::Bf16, 8192);
    demand.weights.truncate(1);
    let placement = placed(&mesa_cpu(), &demand);
    let starts: Vec<u64> = placement.extents(Content::Weight(0)).map(|extent| extent.start).collect();
    assert_eq!(starts, [0, 2 * GIB / (16 * 5376 * 2) * (16 * 5376 * 2)]);
    demand.weights[0].split_unit = 0;
    let error = plan(&mesa_cpu(), &demand).unwrap_err();
    assert!(matches!(&error, PlanError::SplitUnit { name, .. } if name == "embed"), "{error}");
}

#[test]
fn memory_that_others_hold_is_told_apart() {
    let tight = Memory { available: Some(20 * GIB), ..radeon_780m() };
    let demand = demand_27b(Scheme::Int8, 8192);
    let shortfall = shortfall(&tight, &demand);
    assert_eq!(shortfall.usable, 20 * GIB);
    let close = shortfall
        .advice
        .iter()
        .find(|advice| matches!(advice, Advice::FreeMemory { .. }))
        .expect("closing helps");
    assert!(
        !shortfall.advice.iter().any(|advice| matches!(advice, Advice::PagesLimit { .. })),
        "GTT is not short"
    );
    let (memory, demand) = followed(&tight, &demand, close);
    placed(&memory, &demand);
    // On a card only the host's part is limited by it.
    let card = Memory { available: Some(0), ..h200() };
    placed(&card, &demand_27b(Scheme::Int8, 8192));
}

#[test]
fn a_context_too_short_to_use_is_no_advice() {
    let mut demand = demand_27b(Scheme::Int8, 1 << 20);
    demand.smaller.clear();
    let weights: u64 = demand.weights.iter().map(|item| item.bytes.next_multiple_of(ALIGNMENT)).sum();
    let kv = kv_bytes(&demand.kv_layers, MIN_CONTEXT, 1);
    let margin = Margin { divisor: 1, min: GIB, max: GIB };
    let exact = |bytes| Memory { margin, ..memory(&[local(bytes + GIB)], true, 4 * GIB) };
    let just = exact(weights + demand.scratch_bytes + kv);
    assert_eq!(shortfall(&just, &demand).advice, [Advice::Context { context_length: MIN_CONTEXT }]);
    let short = shortfall(&exact(weights + demand.scratch_bytes + kv - MIB), &demand);
    assert_eq!(short.advice, []);
    assert!(short.to_string().ends_with("Use a smaller model, or a device with more memory."), "{short}");
}

#[test]
fn people_can_read_it() {
    let placement = placed(&radeon_780m(), &demand_27b(Scheme::Int8, 8192));
    let expected = "\
heap  memory              size      usable     weights          kv     scratch blocks
   0  host           18.00 GiB   17.44 GiB           –           –           –      0
   1  device-local   36.00 GiB   35.00 GiB   26.73 GiB    1.03 GiB   256.0 MiB      9
";
    assert_eq!(placement.to_string(), expected);
    let text = shortfall(&radeon_780m(), &demand_27b(Scheme::Bf16, 131_072)).to_string();
    let expected = "\
does not fit: 8.53 GiB short (60.97 GiB needed, 52.44 GiB usable). Any of these makes it fit:
  - weights in int8 (indrik quantize --quant int8), 26.73 GiB
  - weights in int4 (indrik quantize --quant int4), 14.15 GiB
  - a context of 19200 instead of 131072
  - the kernel parameter ttm.pages_limit=12320768 and a restart, for 47.00 GiB of GTT";
    assert_eq!(text, expected);
}

fn any_memory() -> impl Strategy<Value = Memory> {
    let heap =
        (0_u64..4000, any::<bool>(), any::<bool>(), 0_u64..500).prop_map(|(mib, device, mapped, used)| {
            HeapInfo {
                budget: None,
                used: used * MIB,
                host_visible: mapped,
                device_local: device,
                ..local(mib * MIB + 77)
            }
        });
    let available = prop::option::of((0_u64..6000).prop_map(|mib| mib * MIB));
    (prop::collection::vec(heap, 0..4), any::<bool>(), 1_u64..2000, available, any::<bool>()).prop_map(
        |(heaps, unified, max, available, amd)| Memory {
            available,
            gtt: amd.then_some(Gtt { size: GIB, system: 16 * GIB }),
            ..memory(&heaps, unified, max * MIB + 123)
        },
    )
}

fn any_demand() -> impl Strategy<Value = Demand> {
    let weight = (0_u64..300 * MIB, 0_u64..300 * MIB, prop_oneof![Just(0), 1_u64..MIB]).prop_map(
        |(bytes, bytes_per_token, split_unit)| WeightDemand {
            name: String::new(),
            bytes,
            bytes_per_token,
            split_unit,
        },
    );
    let layer = (1_u64..4000, prop::option::of(0_u64..2000))
        .prop_map(|(bytes_per_token, max_tokens)| KvLayerDemand { bytes_per_token, max_tokens });
    let kv_layers = prop::collection::vec(layer, 0..5);
    let weights = prop::collection::vec(weight, 0..30);
    (weights, kv_layers, 0_u64..100_000, 0_u64..5, 0_u64..200 * MIB).prop_map(
        |(weights, kv_layers, context_length, max_sequences, scratch_bytes)| {
            let half = |weight: &WeightDemand| WeightDemand { bytes: weight.bytes / 2, ..weight.clone() };
            let smaller = vec![(Scheme::Int4, weights.iter().map(half).collect())];
            Demand { weights, kv_layers, context_length, max_sequences, scratch_bytes, smaller }
        },
    )
}

proptest! {
    #[test]
    fn every_plan_is_sound_and_every_advice_works(memory in any_memory(), demand in any_demand()) {
        match plan(&memory, &demand) {
            Ok(placement) => {
                assert_sound(&memory, &demand, &placement);
                let hosted = placement.heaps.iter().any(|heap| !heap.heap.device_local && heap.planned() > 0);
                prop_assert_eq!(placement.spill.is_some(), !memory.unified && hosted);
            }
            Err(PlanError::Shortfall(shortfall)) => {
                prop_assert!(shortfall.bytes > 0 && shortfall.bytes <= shortfall.needed);
                for advice in &shortfall.advice {
                    // Only heaps as RADV has them are divided 2 : 1.
                    if !matches!(advice, Advice::PagesLimit { .. }) {
                        let (memory, demand) = followed(&memory, &demand, advice);
                        prop_assert!(plan(&memory, &demand).is_ok(), "{:?}", advice);
                    }
                }
            }
            Err(PlanError::SplitUnit { split_unit, limit, .. }) => prop_assert!(split_unit > limit),
        }
    }
}
