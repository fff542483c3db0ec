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

/// Radeon 780M with a 16 GB carve-out and 38 GB of GTT on a 96 GB machine; RADV lists the host heap first.
fn radeon_780m() -> Memory {
    let device = HeapInfo { host_visible: true, ..local(36 * GIB) };
    let gtt = Some(Gtt { size: 38 * GIB, system: 78 * GIB });
    Memory { gtt, ..memory(&[host(18 * GIB), device], true, 4 * GIB - 4) }
}

/// Radeon 8060S with 96 GB for the GPU.
fn radeon_8060s() -> Memory {
    memory(&[host(32 * GIB), HeapInfo { host_visible: true, ..local(64 * GIB) }], true, 4 * GIB - 4)
}

/// NVIDIA H200, with its host-visible window.
fn h200() -> Memory {
    let window = HeapInfo { host_visible: true, ..local(246 * MIB) };
    memory(&[local(gib(140.4)), host(gib(94.4)), window], false, 4 * GIB)
}

/// A 24 GB card, some of which a desktop already uses.
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
    WeightDemand {
        name,
        bytes: rows * row,
        bytes_per_token: rows * row,
        split_unit: 16 * row,
        in_host_memory: false,
    }
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
            in_host_memory: false,
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

/// Asserts that everything is placed exactly once, in blocks the driver allows, and that no heap is
/// over-committed.
fn assert_sound(memory: &Memory, demand: &Demand, placement: &Placement) {
    let kv = kv_bytes(&demand.kv_layers, demand.context_length, demand.max_sequences);
    let token = demand.kv_layers.iter().map(|layer| layer.bytes_per_token).max().unwrap_or(0);
    let mut contents: Vec<(Content, u64, u64)> =
        vec![(Content::Kv, kv, token), (Content::Scratch, demand.scratch_bytes, ALIGNMENT)];
    contents.extend(
        demand
            .weights
            .iter()
            .enumerate()
            .map(|(index, weight)| (Content::Weight(index), weight.bytes, weight.split_unit)),
    );
    for (content, bytes, split_unit) in contents {
        let mut next = 0;
        for extent in placement.extents(content) {
            assert_eq!(extent.start, next, "{content:?} has a gap");
            assert!(
                extent.start == 0 || split_unit > 0 && extent.start % split_unit == 0,
                "{content:?} is divided inside a split unit"
            );
            next += extent.bytes;
        }
        assert_eq!(next, bytes, "{content:?} is not placed completely");
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
        assert!(
            heap.planned() <= memory.margin.usable(&memory.heaps[index]),
            "heap {index} is over-committed"
        );
    }
}

fn placed(memory: &Memory, demand: &Demand) -> Placement {
    let placement = plan(memory, demand).unwrap_or_else(|error| panic!("{error}"));
    assert_sound(memory, demand, &placement);
    placement
}

/// The device and the demand after following an advice.
fn apply(memory: &Memory, demand: &Demand, advice: &Advice) -> (Memory, Demand) {
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
fn sizes_of_the_27b_are_as_expected() {
    let total = |scheme| weights_27b(scheme).iter().map(|weight| weight.bytes).sum::<u64>() as f64 / 1e9;
    assert!((total(Scheme::Int8) - 28.7).abs() < 0.05 && (total(Scheme::Int4) - 15.2).abs() < 0.05);
    let kv = |context| kv_bytes(&kv_27b(), context, 1) as f64 / 1e9;
    assert!(
        (kv(1024) - 0.52).abs() < 0.005
            && (kv(8192) - 1.11).abs() < 0.005
            && (kv(32_768) - 3.12).abs() < 0.005
    );
    assert_eq!(kv_bytes(&kv_27b(), 100, 1), 8192 * 62 * 100, "sliding layers keep at most the context");
    assert_eq!(kv_bytes(&kv_27b(), 8192, 3), 3 * kv_bytes(&kv_27b(), 8192, 1));
    assert_eq!(kv_bytes(&kv_27b(), u64::MAX, 2), u64::MAX);
}

#[test]
fn int8_fits_the_device_local_heap_of_the_780m() {
    let placement = placed(&radeon_780m(), &demand_27b(Scheme::Int8, 8192));
    assert_eq!(placement.heaps[0].planned(), 0);
    assert_eq!(placement.spill, None);
    assert!(placement.extents(Content::Weight(0)).count() == 1, "1.5 GB must not be divided");
}

#[test]
fn a_table_of_which_tokens_read_rows_stays_in_host_memory() {
    let mut demand = demand_27b(Scheme::Int8, 8192);
    let table = matrix("table".into(), 262_144, 8960, Scheme::Int8);
    let table = WeightDemand { bytes_per_token: table.bytes / 262_144, in_host_memory: true, ..table };
    demand.weights.push(table.clone());
    let index = demand.weights.len() - 1;
    let heap = |memory: &Memory| {
        let placement = placed(memory, &demand);
        assert_eq!(placement.spill, None, "it belongs there: nothing spills");
        let extents: Vec<_> = placement.extents(Content::Weight(index)).collect();
        assert_eq!(extents.iter().map(|extent| extent.bytes).sum::<u64>(), table.bytes);
        let heaps: Vec<usize> = extents.iter().map(|extent| placement.blocks[extent.block].heap).collect();
        assert!(heaps.iter().all(|heap| *heap == heaps[0]), "{heaps:?}");
        heaps[0]
    };
    assert_eq!(heap(&h200()), 1, "the host's heap");
    assert_eq!(heap(&radeon_780m()), 1, "unified memory is all the same: the device-local heap");
    // Without enough host memory it is placed like any other.
    let small_host = memory(&[local(gib(140.4)), host(GIB)], false, 4 * GIB);
    assert_eq!(heap(&small_host), 0);
}

#[test]
fn bf16_needs_both_heaps_of_the_780m() {
    let demand = demand_27b(Scheme::Bf16, 8192);
    let placement = placed(&radeon_780m(), &demand);
    assert!(placement.heaps[1].planned() > 34 * GIB, "the device-local heap must be filled first");
    assert!(placement.heaps[0].planned() > 14 * GIB);
    assert_eq!(placement.spill, None, "unified memory does not spill");
    for index in 0..demand.weights.len() {
        assert_eq!(
            placement.extents(Content::Weight(index)).count(),
            1,
            "weight {index} is divided unnecessarily"
        );
    }
}

#[test]
fn shortfall_on_the_780m_advises_what_would_fit() {
    let (memory, demand) = (radeon_780m(), demand_27b(Scheme::Bf16, 131_072));
    let shortfall = shortfall(&memory, &demand);
    assert_eq!(shortfall.usable, 54 * GIB - GIB - 18 * GIB / 32);
    let unusable = shortfall.usable + shortfall.bytes - shortfall.needed;
    assert!(unusable < MIB, "split units leave too much unused: {unusable}");
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
        let (memory, demand) = apply(&memory, &demand, advice);
        placed(&memory, &demand);
    }
    let longer = Demand { context_length: context_length + 256, ..demand.clone() };
    assert!(plan(&memory, &longer).is_err(), "a longer context would fit too");
    let less = Advice::PagesLimit { pages: (gtt - GIB) / 4096, gtt: gtt - GIB };
    let (memory, demand) = apply(&memory, &demand, &less);
    assert!(plan(&memory, &demand).is_err(), "a smaller limit would suffice");
}

#[test]
fn bf16_with_long_contexts_fits_the_8060s() {
    let placement = placed(&radeon_8060s(), &demand_27b(Scheme::Bf16, 131_072));
    assert_eq!(placement.heaps[0].planned(), 0);
    let many = Demand { max_sequences: 4, ..demand_27b(Scheme::Bf16, 131_072) };
    let placement = placed(&radeon_8060s(), &many);
    assert!(placement.heaps[0].planned() > 24 * GIB && placement.heaps[1].planned() > 60 * GIB);
    assert_eq!(placement.spill, None);
}

#[test]
fn everything_stays_on_the_h200() {
    for scheme in [Scheme::Int4, Scheme::Int8, Scheme::Bf16] {
        let placement = placed(&h200(), &demand_27b(scheme, 131_072));
        assert_eq!(placement.spill, None);
        assert_eq!(
            (placement.heaps[1].blocks, placement.heaps[2].blocks),
            (0, 0),
            "neither host memory nor the window may be used"
        );
    }
    let blocks = placed(&h200(), &demand_27b(Scheme::Int8, 8192)).heaps[0].blocks;
    assert!((8..=10).contains(&blocks), "28.7 GB in blocks of 4 GiB: {blocks}");
}

#[test]
fn memory_in_use_is_not_planned_with() {
    let mut busy = h200();
    (busy.heaps[0].budget, busy.heaps[0].used) = (Some(31 * GIB), GIB);
    let placement = placed(&busy, &demand_27b(Scheme::Int8, 8192));
    assert_eq!(placement.heaps[0].usable, 31 * GIB - GIB - GIB);
    assert_eq!(placement.spill, None);
    busy.heaps[0].used = 3 * GIB;
    assert!(placed(&busy, &demand_27b(Scheme::Int8, 8192)).spill.is_some());
}

#[test]
fn int8_spills_on_a_24_gb_card_with_a_warning() {
    let demand = demand_27b(Scheme::Int8, 8192);
    let placement = placed(&card_24gb(), &demand);
    let spill = placement.spill.unwrap();
    let needed = 256 * MIB
        + kv_bytes(&kv_27b(), 8192, 1)
        + demand.weights.iter().map(|weight| weight.bytes).sum::<u64>();
    let usable = gib(23.2) - 24 * GIB / 32;
    let strip = 16 * 5376 / 32 * 34;
    assert!(
        (needed - usable..needed - usable + 2 * strip).contains(&spill.bytes),
        "the card must be filled: {spill:?}"
    );
    assert_eq!(spill.bytes_per_token, spill.bytes, "with tied embeddings, a token reads everything");
    assert_eq!(
        placement.heaps[1].kv + placement.heaps[1].scratch,
        0,
        "KV cache and scratch must stay on the card"
    );
    let text = placement.to_string();
    assert!(
        text.contains("warning: ") && text.contains("across the bus") && text.contains(" ms at 25 GB/s"),
        "{text}"
    );
    assert_eq!(placed(&card_24gb(), &demand_27b(Scheme::Int4, 8192)).spill, None);
}

#[test]
fn least_read_weights_spill_first() {
    let mut demand = demand_27b(Scheme::Int8, 8192);
    // Untied head: a token reads only one row of the embeddings.
    demand.weights.push(WeightDemand { name: "head".into(), ..demand.weights[0].clone() });
    demand.weights[0].bytes_per_token = 5376 * 34 / 32;
    let placement = placed(&card_24gb(), &demand);
    let heaps = |index| {
        let extents = placement.extents(Content::Weight(index));
        extents.map(|extent| placement.blocks[extent.block].heap).collect::<Vec<_>>()
    };
    assert_eq!(heaps(0), [1], "the embeddings come first in the list but must be placed last");
    let spill = placement.spill.unwrap();
    assert!(spill.bytes_per_token < spill.bytes - demand.weights[0].bytes + MIB, "{spill:?}");
    let divided =
        (0..demand.weights.len()).filter(|index| heaps(*index).windows(2).any(|w| w[0] != w[1])).count();
    assert!(divided <= 1, "at most one tensor may be divided between heaps: {divided}");
}

#[test]
fn shortfall_on_mesas_cpu_driver_advises_int4() {
    let demand = demand_27b(Scheme::Int8, 8192);
    let shortfall = shortfall(&mesa_cpu(), &demand);
    let [Advice::Scheme { scheme: Scheme::Int4, context_length: 8192, weights }] = shortfall.advice[..]
    else {
        panic!("{:?}", shortfall.advice)
    };
    assert_eq!(weights, weights_27b(Scheme::Int4).iter().map(|weight| weight.bytes).sum::<u64>());
    let placement = placed(&mesa_cpu(), &demand_27b(Scheme::Int4, 8192));
    assert!(placement.blocks.iter().all(|block| block.bytes <= 2 * GIB));
}

#[test]
fn tensors_larger_than_an_allocation_are_divided_at_split_units() {
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
fn memory_held_by_other_programs_is_reported_separately() {
    let tight = Memory { available: Some(20 * GIB), ..radeon_780m() };
    let demand = demand_27b(Scheme::Int8, 8192);
    let shortfall = shortfall(&tight, &demand);
    assert_eq!(shortfall.usable, 20 * GIB);
    let free_memory = shortfall
        .advice
        .iter()
        .find(|advice| matches!(advice, Advice::FreeMemory { .. }))
        .expect("freeing memory must be advised");
    assert!(
        !shortfall.advice.iter().any(|advice| matches!(advice, Advice::PagesLimit { .. })),
        "GTT is large enough"
    );
    let (memory, demand) = apply(&tight, &demand, free_memory);
    placed(&memory, &demand);
    // On a discrete GPU it limits host memory only.
    let card = Memory { available: Some(0), ..h200() };
    placed(&card, &demand_27b(Scheme::Int8, 8192));
}

#[test]
fn contexts_below_the_minimum_are_not_advised() {
    let mut demand = demand_27b(Scheme::Int8, 1 << 20);
    demand.smaller.clear();
    let weights: u64 = demand.weights.iter().map(|weight| weight.bytes.next_multiple_of(ALIGNMENT)).sum();
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
fn placements_and_shortfalls_are_formatted_as_documented() {
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
            in_host_memory: false,
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
    fn plans_are_sound_and_advice_works(memory in any_memory(), demand in any_demand()) {
        match plan(&memory, &demand) {
            Ok(placement) => {
                assert_sound(&memory, &demand, &placement);
                let hosted = placement.heaps.iter().any(|heap| !heap.heap.device_local && heap.planned() > 0);
                prop_assert_eq!(placement.spill.is_some(), !memory.unified && hosted);
            }
            Err(PlanError::Shortfall(shortfall)) => {
                prop_assert!(shortfall.bytes > 0 && shortfall.bytes <= shortfall.needed);
                for advice in &shortfall.advice {
                    // The simulated 2 : 1 split only holds for RADV's heaps.
                    if !matches!(advice, Advice::PagesLimit { .. }) {
                        let (memory, demand) = apply(&memory, &demand, advice);
                        prop_assert!(plan(&memory, &demand).is_ok(), "{:?}", advice);
                    }
                }
            }
            Err(PlanError::SplitUnit { split_unit, limit, .. }) => prop_assert!(split_unit > limit),
        }
    }
}
