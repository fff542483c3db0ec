//! Loading checkpoints on Mesa's CPU driver: every matrix holds the rows of its tensors in the right
//! order.

use std::path::Path;

use crate::common::{place, rows, tiny_folder, tiny_layerwise_folder};
use checkpoint::{Checkpoint, Role};
use tensor::STRIP;
use weights::{
    blueprint::MatrixId,
    load::load,
    stream::{Control, Options},
};

#[test]
fn matrices_hold_the_rows_of_their_tensors_in_order() {
    let Some(device) = testkit::cpu_device() else { return };
    let dir = tempfile::tempdir().unwrap();
    tiny_folder(dir.path());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let (weights, stats) =
        load(&device, &checkpoint, &place(&device, &checkpoint), &Options::default(), &Control::default())
            .unwrap();
    assert!(stats.bytes > 0);
    let only = |id| {
        let [matrix] = weights.by_id(id).collect::<Vec<_>>()[..] else {
            panic!("tensors of one encoding must share a matrix")
        };
        matrix.read().unwrap()
    };
    for layer in 0..2 {
        let tensor = |role| rows(&checkpoint, checkpoint.inventory.get(Some(layer), role).unwrap());
        let expected = [tensor(Role::Query), tensor(Role::Key), tensor(Role::Value)].concat();
        assert_eq!(only(MatrixId::Qkv(layer)), expected, "QKV of layer {layer}");
        assert_eq!(only(MatrixId::Down(layer)), tensor(Role::Down));
        assert_eq!(only(MatrixId::AttentionOutput(layer)), tensor(Role::Output));
        let gate_up = only(MatrixId::GateUp(layer));
        for (row, (gate, up)) in tensor(Role::Gate).iter().zip(&tensor(Role::Up)).enumerate() {
            let at = row / STRIP * 2 * STRIP + row % STRIP;
            assert_eq!(&gate_up[at], gate, "gate row {row}");
            assert_eq!(&gate_up[at + STRIP], up, "up row {row}");
        }
    }
    let embed = checkpoint.inventory.get(None, Role::Embed).unwrap();
    assert_eq!(only(MatrixId::Embedding), rows(&checkpoint, embed));
    assert_eq!(weights.by_id(MatrixId::Head).count(), 0, "the head is tied");
    assert_eq!(weights.norms.len(), 1 + 2 * 6);
    for (slot, norm) in &weights.norms {
        let tensor = checkpoint.inventory.get(slot.layer, slot.role).unwrap();
        let expected: Vec<f32> = checkpoint.read_vector(tensor).unwrap().iter().map(|w| w + 1.0).collect();
        assert_eq!(norm.read_vec::<f32>().unwrap(), expected, "{}", tensor.name);
    }
    let taken = device.allocated_bytes(gpu::Lifetime::Weights);
    assert!(
        taken <= weights.bytes() + (64 << 20) + (4 << 20),
        "more than the weights and one shared block per arena: {taken}"
    );
    drop(weights);
    assert_eq!(device.allocated_bytes(gpu::Lifetime::Weights), 0);
}

#[test]
fn layerwise_folder_loads_within_the_stated_error() {
    let Some(device) = testkit::cpu_device() else { return };
    let dir = tempfile::tempdir().unwrap();
    tiny_layerwise_folder(dir.path());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.source.format, checkpoint::Format::Layerwise);
    let placement = place(&device, &checkpoint);
    // Slots of a few rows, so that chunks start inside groups of 128 values.
    let options = Options { slot_bytes: 700, slots: 3, ..Options::default() };
    let (weights, _) = load(&device, &checkpoint, &placement, &options, &Control::default()).unwrap();
    let within = |got: &[Vec<f32>], role: Role, layer: Option<u32>| {
        let tensor = checkpoint.inventory.get(layer, role).unwrap();
        let (_, exactness) = tensor::quant::scheme_for(tensor.encoding);
        let want = rows(&checkpoint, tensor);
        assert_eq!(got.len(), want.len());
        for (row, (got, want)) in got.iter().zip(&want).enumerate() {
            for (got, want) in got.chunks(32).zip(want.chunks(32)) {
                let largest = want.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
                for (got, want) in got.iter().zip(want) {
                    let near = (got - want).abs() <= exactness.bound(largest);
                    assert!(near, "{} row {row} is {got}, expected {want}", tensor.name);
                }
            }
        }
    };
    let only = |id| weights.by_id(id).next().unwrap().read().unwrap();
    for layer in 0..2 {
        within(&only(MatrixId::Qkv(layer))[..64], Role::Query, Some(layer));
        within(&only(MatrixId::Qkv(layer))[64..96], Role::Key, Some(layer));
        within(&only(MatrixId::Down(layer)), Role::Down, Some(layer));
        let strips = only(MatrixId::GateUp(layer));
        let gate: Vec<Vec<f32>> = strips.chunks(2 * STRIP).flat_map(|pair| pair[..STRIP].to_vec()).collect();
        within(&gate, Role::Gate, Some(layer));
    }
    within(&only(MatrixId::Embedding), Role::Embed, None);
}

#[test]
fn real_270m_loads_within_the_stated_error() {
    let Some(path) = std::env::var_os("INDRIK_TEST_GGUF") else {
        eprintln!("skipped: INDRIK_TEST_GGUF is not set to a Gemma 3 GGUF file");
        return;
    };
    let Some(device) = testkit::cpu_device() else { return };
    let checkpoint = Checkpoint::open(Path::new(&path)).unwrap();
    let (weights, _) =
        load(&device, &checkpoint, &place(&device, &checkpoint), &Options::default(), &Control::default())
            .unwrap();
    for layer in [0, 17] {
        let tensor = checkpoint.inventory.get(Some(layer), Role::Down).unwrap();
        let (_, exactness) = tensor::quant::scheme_for(tensor.encoding);
        let got = weights.by_id(MatrixId::Down(layer)).next().unwrap().read().unwrap();
        for (got, want) in got.iter().zip(rows(&checkpoint, tensor)) {
            for (got, want) in got.chunks(32).zip(want.chunks(32)) {
                let largest = want.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
                for (got, want) in got.iter().zip(want) {
                    assert!(
                        (got - want).abs() <= exactness.bound(largest),
                        "{got} for {want} in {}",
                        tensor.name
                    );
                }
            }
        }
    }
}
