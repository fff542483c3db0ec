//! Loading a 4 GB model takes at most 512 MiB beyond the GPU's own buffers (which on a CPU driver are in the same process).

use gpu::{Arena, Lifetime, Memory};
use kernels::{Encoding, Layout, Matrix, transcode::Placement};
use weights::{
    Format, Source, Span, Tensor,
    stream::{Control, Destination, Options, stream},
};

/// A figure of /proc/self/status, in bytes.
fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

// The only test of this binary: the peak is the whole process's.
#[test]
fn a_4_gb_model_takes_at_most_512_mib_more_than_its_buffers() {
    const ROWS: u64 = 43008;
    const K: u64 = 5376;
    const COUNT: u64 = 17;
    let Some(device) =
        testkit::cpu_device_with(&gpu::DeviceOptions { cache_dir: None, ..Default::default() })
    else {
        return;
    };
    let bytes = Encoding::Q8_0.bytes(&[ROWS, K]).unwrap();
    // Sparse: the file system makes the zeros as they are read, and the page cache holds them like any others.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.bin");
    std::fs::File::create(&path).unwrap().set_len(bytes * COUNT).unwrap();
    let tensor = |index: u64| Tensor {
        name: format!("tensor.{index}"),
        shape: vec![ROWS, K],
        encoding: Encoding::Q8_0,
        data: Span { file: 0, offset: index * bytes, len: bytes },
        scales: None,
    };
    let source =
        Source { format: Format::Gguf, files: vec![path], tensors: (0..COUNT).map(tensor).collect() };

    let before = status("VmRSS");
    let mut arena = Arena::new(&device, Lifetime::Weights, Memory::Device);
    let layout = Layout::new(Encoding::Q8_0.scheme(), ROWS as usize, K as usize).unwrap();
    let matrices: Vec<Matrix> =
        (0..COUNT).map(|_| Matrix::allocate(&mut arena, "weights", layout, device.caps()).unwrap()).collect();
    let pairs = source.tensors.iter().zip(&matrices);
    let destinations: Vec<_> =
        pairs.map(|(tensor, matrix)| Destination { tensor, matrix, placement: Placement::WHOLE }).collect();
    let stats = stream(&device, &source, &destinations, &Options::default(), &Control::default()).unwrap();

    assert!(stats.bytes > 4_000_000_000, "{} bytes are no 4 GB", stats.bytes);
    let buffers: u64 = matrices.iter().map(Matrix::bytes).sum();
    let extra = status("VmHWM").saturating_sub(before + buffers);
    println!(
        "{} loaded in {:.1} s, peak extra {}",
        gpu::bytes(stats.bytes),
        stats.seconds,
        gpu::bytes(extra)
    );
    // Hardly more was taken from the device than the matrices need.
    let taken = device.in_use(Lifetime::Weights);
    assert!(taken <= buffers + buffers / 20, "{} taken for {}", gpu::bytes(taken), gpu::bytes(buffers));
    // The buffers are in this process and the ring is seen, or the figure means nothing.
    assert!(extra >= 16 << 20, "only {} beyond the buffers: less than one slot", gpu::bytes(extra));
    assert!(extra <= 512 << 20, "{} beyond the buffers", gpu::bytes(extra));
}
