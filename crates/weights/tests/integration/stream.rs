//! Streaming files into GPU memory on Mesa's CPU driver: correct values, bounded memory, and clean failure.

use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::Duration,
};

use checkpoint::{Format, Source, Span, Tensor};
use gpu::{Arena, Lifetime, Memory};
use kernels::{Matrix, selftest::Random, transcode::StripMap};
use tensor::{Encoding, Layout, quant};
use weights::{
    Error,
    stream::{Control, Destination, Options, stream},
};

/// Small slots, so that every tensor needs several.
fn options() -> Options {
    Options {
        threads: 3,
        slots: 4,
        slot_bytes: 3000,
        timeout: Duration::from_secs(1800),
        drop_cache: true,
        fail_at: None,
    }
}

/// Tensors of several encodings in two files, with gaps between them.
struct Model {
    source: Source,
    values: Vec<Vec<f32>>,
}

const TENSORS: [(Encoding, u64, u64); 5] = [
    (Encoding::Q8_0, 40, 160),
    (Encoding::Q4_0, 33, 256),
    (Encoding::Bf16, 16, 96),
    (Encoding::Q6K, 7, 512),
    (Encoding::F32, 19, 64),
];

fn model(dir: &Path) -> Model {
    let files: Vec<PathBuf> = ["a.bin", "b.bin"].map(|name| dir.join(name)).into();
    let mut contents = [vec![0x11_u8; 7], vec![0x22_u8; 64]];
    let mut random = Random::new(5);
    let (mut tensors, mut values) = (Vec::new(), Vec::new());
    for (index, (encoding, rows, k)) in TENSORS.into_iter().enumerate() {
        let bytes = encoding.bytes(&[rows, k]).unwrap();
        let mut data: Vec<u8> = (0..bytes).map(|_| random.bits() as u8).collect();
        for block in data.chunks_mut(encoding.block_bytes() as usize) {
            let scale = half::f16::from_f32(0.01 * (1.5 + random.signed())).to_le_bytes();
            match encoding {
                Encoding::Q6K => block[208..210].copy_from_slice(&scale),
                Encoding::Bf16 | Encoding::F32 => *block.last_mut().unwrap() &= 0xbf,
                _ => block[..2].copy_from_slice(&scale),
            }
        }
        let mut want = vec![0.0; (rows * k) as usize];
        quant::dequantize(encoding, &data, &mut want).unwrap();
        values.push(want);
        let content = &mut contents[index % 2];
        let data_span = Span { file: index % 2, offset: content.len() as u64, len: bytes };
        content.extend_from_slice(&data);
        content.extend_from_slice(&[0x33; 5]);
        tensors.push(Tensor {
            name: format!("tensor.{index}"),
            shape: vec![rows, k],
            encoding,
            data: data_span,
            scales: None,
        });
    }
    for (path, content) in files.iter().zip(&contents) {
        std::fs::write(path, content).unwrap();
    }
    Model { source: Source { format: Format::Gguf, files, tensors }, values }
}

fn allocate(device: &gpu::Device, source: &Source) -> Vec<Matrix> {
    let mut arena = Arena::new(device, Lifetime::Weights, Memory::Device).with_block_size(1 << 20);
    let layout = |tensor: &Tensor| {
        Layout::new(tensor.encoding.scheme(), tensor.shape[0] as usize, tensor.shape[1] as usize).unwrap()
    };
    let make = |tensor| Matrix::allocate(&mut arena, "weights", layout(tensor), device.caps()).unwrap();
    source.tensors.iter().map(make).collect()
}

fn destinations<'a>(source: &'a Source, matrices: &'a [Matrix]) -> Vec<Destination<'a>> {
    let pairs = source.tensors.iter().zip(matrices);
    pairs.map(|(tensor, matrix)| Destination { tensor, matrix, strips: StripMap::IDENTITY }).collect()
}

#[test]
fn all_values_arrive() {
    let Some(device) = testkit::cpu_device() else { return };
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let matrices = allocate(&device, &model.source);
    let control = Control::default();
    let stats = stream(&device, &model.source, &destinations(&model.source, &matrices), &options(), &control)
        .unwrap();
    let total: u64 = model.source.tensors.iter().map(|tensor| tensor.data.len).sum();
    assert_eq!((stats.bytes, control.done.load(Ordering::Relaxed)), (total, total));
    for ((tensor, matrix), want) in model.source.tensors.iter().zip(&matrices).zip(&model.values) {
        let (_, exactness) = quant::scheme_for(tensor.encoding);
        let got: Vec<f32> = matrix.read().unwrap().concat();
        assert_eq!(got.len(), want.len());
        for (i, (got, value)) in got.iter().zip(want).enumerate() {
            let group = &want[i / 32 * 32..][..32];
            let largest = group.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            let near = match exactness {
                quant::Exactness::Exact => got.to_bits() == value.to_bits(),
                quant::Exactness::Within { .. } => (got - value).abs() <= exactness.bound(largest),
            };
            assert!(near, "{} value {i} is {got}, expected {value}", tensor.name);
        }
    }
    assert_eq!(device.allocated_bytes(Lifetime::Staging), 0, "the staging ring must be freed");
}

#[test]
fn read_errors_name_file_tensor_and_offset_and_free_all_memory() {
    let Some(device) = testkit::cpu_device() else { return };
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let total: u64 = model.source.tensors.iter().map(|tensor| tensor.data.len).sum();
    let matrices = allocate(&device, &model.source);
    let failing = Options { fail_at: Some(total / 2), ..options() };
    let destinations = destinations(&model.source, &matrices);
    let error = stream(&device, &model.source, &destinations, &failing, &Control::default()).unwrap_err();
    assert!(matches!(error, Error::Checkpoint(checkpoint::Error::Read { .. })), "{error}");
    let text = error.to_string();
    assert!(
        text.contains(".bin: tensor 'tensor.") && text.contains("at byte") && text.contains("injected"),
        "{text}"
    );
    drop(destinations);
    drop(matrices);
    assert_eq!(device.allocated_bytes(Lifetime::Weights) + device.allocated_bytes(Lifetime::Staging), 0);
}

#[test]
fn failed_reads_return_their_slot() {
    let Some(device) = testkit::cpu_device() else { return };
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let matrices = allocate(&device, &model.source);
    // A lost slot would block the other readers for an hour.
    let timeout = Duration::from_secs(3600);
    let failing = Options { fail_at: Some(10_000), threads: 3, slots: 3, timeout, ..options() };
    let destinations = destinations(&model.source, &matrices);
    let error = stream(&device, &model.source, &destinations, &failing, &Control::default()).unwrap_err();
    assert!(matches!(error, Error::Checkpoint(checkpoint::Error::Read { .. })), "{error}");
}

#[test]
fn non_finite_floats_are_reported_with_tensor_and_row() {
    let Some(device) = testkit::cpu_device() else { return };
    let dir = tempfile::tempdir().unwrap();
    for (index, bits) in [(2, &[0x80, 0x7f][..]), (4, &[0, 0, 0xc0, 0x7f][..])] {
        let model = model(dir.path());
        let tensor = &model.source.tensors[index];
        let path = &model.source.files[tensor.data.file];
        let mut content = std::fs::read(path).unwrap();
        let row_bytes = tensor.data.len as usize / tensor.shape[0] as usize;
        // The last value of row 9.
        let end = tensor.data.offset as usize + 10 * row_bytes;
        content[end - bits.len()..end].copy_from_slice(bits);
        std::fs::write(path, content).unwrap();
        let matrices = allocate(&device, &model.source);
        let destinations = destinations(&model.source, &matrices);
        let error =
            stream(&device, &model.source, &destinations, &options(), &Control::default()).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(&format!("tensor 'tensor.{index}': row 9 has a value that is not finite")),
            "{text}"
        );
    }
}

#[test]
fn truncated_files_are_read_errors() {
    let Some(device) = testkit::cpu_device() else { return };
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let file = std::fs::OpenOptions::new().write(true).open(&model.source.files[1]).unwrap();
    file.set_len(file.metadata().unwrap().len() - 600).unwrap();
    let matrices = allocate(&device, &model.source);
    let destinations = destinations(&model.source, &matrices);
    let error = stream(&device, &model.source, &destinations, &options(), &Control::default()).unwrap_err();
    assert!(error.to_string().contains("b.bin: tensor 'tensor.3'"), "{error}");
}

#[test]
fn cancelling_stops_the_stream() {
    let Some(device) = testkit::cpu_device() else { return };
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let matrices = allocate(&device, &model.source);
    let destinations = destinations(&model.source, &matrices);
    let control = Control::default();
    // Cancelled once something has been read.
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            while control.done.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            control.cancel.store(true, Ordering::Relaxed);
        });
        let sequential = Options { threads: 1, slots: 1, slot_bytes: 400, ..options() };
        stream(&device, &model.source, &destinations, &sequential, &control).unwrap_err()
    });
    assert!(matches!(error, Error::Cancelled), "{error}");
    let total: u64 = model.source.tensors.iter().map(|tensor| tensor.data.len).sum();
    assert!((1..total).contains(&control.done.load(Ordering::Relaxed)), "must stop before the end");
    drop(destinations);
    drop(matrices);
    assert_eq!(device.allocated_bytes(Lifetime::Weights) + device.allocated_bytes(Lifetime::Staging), 0);
}

#[test]
fn device_loss_is_reported_and_frees_all_memory() {
    let Some(device) = testkit::cpu_device() else { return };
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let matrices = allocate(&device, &model.source);
    device.inject(gpu::Fault::DeviceLost { submission: 5 });
    let destinations = destinations(&model.source, &matrices);
    let error = stream(&device, &model.source, &destinations, &options(), &Control::default()).unwrap_err();
    assert!(matches!(error, Error::Gpu(gpu::Error::DeviceLost { .. })), "{error}");
    drop(destinations);
    drop(matrices);
    assert_eq!(device.allocated_bytes(Lifetime::Weights) + device.allocated_bytes(Lifetime::Staging), 0);
}

#[test]
fn non_finite_scales_are_reported_with_tensor_and_row() {
    let Some(device) = testkit::cpu_device() else { return };
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let q8 = &model.source.tensors[0];
    let mut content = std::fs::read(&model.source.files[0]).unwrap();
    // Row 23 has 5 blocks of 34 bytes; the scale of the third one.
    let at = (q8.data.offset + (23 * 5 + 2) * 34) as usize;
    content[at..at + 2].copy_from_slice(&half::f16::INFINITY.to_le_bytes());
    std::fs::File::create(&model.source.files[0]).unwrap().write_all(&content).unwrap();
    let matrices = allocate(&device, &model.source);
    let destinations = destinations(&model.source, &matrices);
    let error = stream(&device, &model.source, &destinations, &options(), &Control::default()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("a.bin: tensor 'tensor.0': row 23 has a value that is not finite"), "{text}");
}
