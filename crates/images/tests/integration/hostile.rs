//! Malicious and damaged files: an error, or a picture of the announced size; never a panic, and within the memory that
//! the limits allow.

use std::path::Path;
use std::process::Command;

use images::{Error, Format, Limits};
use proptest::prelude::*;

use crate::{fixture, read_fixture};

/// Small files of every format and most of its variants.
const SMALL: &[&str] = &[
    "animation.webp",
    "grey.jpg",
    "grey_alpha.png",
    "lossless.webp",
    "lossy.webp",
    "lossy_alpha.webp",
    "one_bit.bmp",
    "one_bit.png",
    "palette.bmp",
    "palette.png",
    "progressive.jpg",
    "run_length.bmp",
    "same.bmp",
    "same.png",
    "same.webp",
    "still.gif",
    "tiny.png",
];

/// Mutations may announce large pictures; decoding those would take most of the time.
const LIMITS: Limits = Limits { max_bytes: 1 << 20, max_pixels: 100_000, max_memory: 2 << 20 };

/// Decodes damaged bytes, and checks what must hold for any.
fn decode(bytes: &[u8]) -> Result<images::Picture, Error> {
    let result = images::decode(bytes, &LIMITS);
    match &result {
        Ok(picture) => {
            let pixels = u64::from(picture.width()) * u64::from(picture.height());
            assert_eq!(picture.rgb().len() as u64, pixels * 3);
            assert!((1..=LIMITS.max_pixels).contains(&pixels));
        }
        Err(error) => assert!(!error.to_string().contains("the decoder failed"), "a decoder panicked"),
    }
    result
}

fn unwrap_error(bytes: &[u8]) -> Error {
    images::decode(bytes, &Limits::default()).expect_err("a hostile file was accepted")
}

/// A PNG chunk with its checksum.
fn png_chunk(name: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let body = [&name[..], data].concat();
    let mut crc = u32::MAX;
    for byte in &body {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    [&(data.len() as u32).to_be_bytes()[..], &body, &(!crc).to_be_bytes()].concat()
}

/// A PNG that announces a size and holds a few bytes.
fn png(width: u32, height: u32) -> Vec<u8> {
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
    let chunks = [png_chunk(b"IHDR", &header), png_chunk(b"IDAT", &[0x78, 0x9c, 1]), png_chunk(b"IEND", &[])];
    [&b"\x89PNG\r\n\x1a\n"[..], &chunks.concat()].concat()
}

/// A PNG of 2 × 2 pixels whose palette has `length` bytes.
fn palette_png(length: usize) -> Vec<u8> {
    let header = [0, 0, 0, 2, 0, 0, 0, 2, 8, 3, 0, 0, 0];
    // A stored block of six bytes: two rows of a filter byte and two indices, and the checksum.
    let data = [0x78, 1, 1, 6, 0, 0xf9, 0xff, 0, 0, 0, 0, 0, 0, 0, 6, 0, 1];
    let chunks = [
        png_chunk(b"IHDR", &header),
        png_chunk(b"PLTE", &vec![9; length]),
        png_chunk(b"IDAT", &data),
        png_chunk(b"IEND", &[]),
    ];
    [&b"\x89PNG\r\n\x1a\n"[..], &chunks.concat()].concat()
}

/// A GIF with a frame of another size than its canvas.
fn gif(canvas: [u16; 2], frame: [u16; 2]) -> Vec<u8> {
    let size = |[width, height]: [u16; 2]| [width.to_le_bytes(), height.to_le_bytes()].concat();
    let palette = [0x80, 0, 0, 1, 2, 3, 4, 5, 6];
    // Codes of three bits, the lowest first: clear, index 1 twice, end.
    let data = [2, 2, 0b0100_1100, 0b1010, 0, b';'];
    [b"GIF89a", &size(canvas)[..], &palette, b",\0\0\0\0", &size(frame), &[0], &data].concat()
}

/// A JPEG that announces a size: start of image, frame, scan without data, end.
fn jpeg(width: u16, height: u16) -> Vec<u8> {
    let [h0, h1] = height.to_be_bytes();
    let [w0, w1] = width.to_be_bytes();
    let frame = [0xff, 0xc0, 0, 11, 8, h0, h1, w0, w1, 1, 1, 0x11, 0];
    let scan = [0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0];
    [&[0xff, 0xd8][..], &frame, &scan, &[0xff, 0xd9]].concat()
}

fn bmp(width: i32, height: i32, bits: u16, compression: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"BM\0\0\0\0\0\0\0\0".to_vec();
    bytes.extend(54_u32.to_le_bytes());
    bytes.extend(40_u32.to_le_bytes());
    bytes.extend(width.to_le_bytes());
    bytes.extend(height.to_le_bytes());
    bytes.extend(1_u16.to_le_bytes());
    bytes.extend(bits.to_le_bytes());
    bytes.extend(compression.to_le_bytes());
    bytes.extend([0; 20]);
    bytes.extend(data);
    bytes
}

/// A WebP with an extended header that announces `canvas`, and a lossy bitstream that announces `frame`.
fn webp(canvas: [u32; 2], frame: [u16; 2]) -> Vec<u8> {
    let chunk = |name: &[u8; 4], data: &[u8]| {
        [name, &(data.len() as u32).to_le_bytes()[..], data, &vec![0; data.len() % 2]].concat()
    };
    let side = |side: u32| (side - 1).to_le_bytes()[..3].to_vec();
    let header = [vec![0; 4], side(canvas[0]), side(canvas[1])].concat();
    let [width, height] = frame.map(u16::to_le_bytes);
    let lossy = [&[0x10, 0, 0, 0x9d, 0x01, 0x2a][..], &width, &height, &[0; 64]].concat();
    let chunks = [chunk(b"VP8X", &header), chunk(b"VP8 ", &lossy)].concat();
    [b"RIFF", &(chunks.len() as u32 + 4).to_le_bytes()[..], b"WEBP", &chunks].concat()
}

#[test]
fn no_picture_at_all() {
    assert_eq!(unwrap_error(b""), Error::Empty);
    for bytes in
        [&b"\0"[..], b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7", b"PNG", b"RIFF\0\0\0\0AVI "]
    {
        assert_eq!(unwrap_error(bytes), Error::UnknownFormat);
    }
    // The magic bytes of one format before the content of another.
    let mut mixed = read_fixture("same.png");
    mixed[..6].copy_from_slice(b"GIF89a");
    unwrap_error(&mixed);
}

#[test]
fn announced_sizes_are_checked_first() {
    let too_many = |bytes: &[u8]| matches!(unwrap_error(bytes), Error::TooManyPixels { .. });
    assert!(too_many(&png(100_000, 100_000)));
    assert!(too_many(&png(10_000, 10_000)));
    assert!(too_many(&gif([65_535, 65_535], [1, 1])));
    assert!(too_many(&gif([1, 1], [65_535, 65_535])));
    assert!(too_many(&jpeg(65_535, 65_535)));
    assert!(too_many(&bmp(100_000, 100_000, 24, 0, &[])));
    assert!(too_many(&bmp(100_000, i32::MIN, 8, 1, &[0; 1024])));
    assert!(too_many(&webp([16_000, 16_000], [16, 16])));
    let message = unwrap_error(&png(10_000, 10_000)).to_string();
    assert_eq!(
        message,
        "the image has 10,000 × 10,000 pixels, more than the limit of 50,000,000: scale it down"
    );

    let memory = Limits { max_memory: 1000, ..Limits::default() };
    let error = images::decode(&read_fixture("same.png"), &memory).expect_err("more memory than allowed");
    assert!(matches!(error, Error::TooMuchMemory { bytes: 2592, limit: 1000, .. }), "{error}");
    let bytes = Limits { max_bytes: 10, ..Limits::default() };
    let error = images::decode(&read_fixture("same.png"), &bytes).expect_err("more bytes than allowed");
    assert!(matches!(error, Error::TooManyBytes { limit: 10, .. }), "{error}");
}

#[test]
fn pictures_without_pixels_are_rejected() {
    for (width, height) in [(0, 0), (0, 5), (5, 0)] {
        unwrap_error(&png(width, height));
        unwrap_error(&gif([width as u16, height as u16], [1, 1]));
        unwrap_error(&gif([1, 1], [width as u16, height as u16]));
        unwrap_error(&jpeg(width as u16, height as u16));
        unwrap_error(&bmp(width as i32, height as i32, 24, 0, &[0; 100]));
        unwrap_error(&webp([5, 5], [width as u16, height as u16]));
    }
    unwrap_error(&bmp(-5, 5, 24, 0, &[0; 100]));
}

#[test]
fn announced_and_contained_sizes_must_agree() {
    let error = unwrap_error(&webp([16, 16], [16_383, 16_383]));
    assert!(error.to_string().contains("a frame is larger than the picture"), "{error}");
    // A frame that is larger than its canvas is cut.
    let picture = decode(&gif([1, 1], [2, 1])).expect("a GIF");
    assert_eq!((picture.width(), picture.height(), picture.rgb()), (1, 1, &[4, 5, 6][..]));
    let unsupported = unwrap_error(&bmp(4, 4, 24, 4, &[0; 64]));
    assert!(matches!(unsupported, Error::Unsupported { format: Format::Bmp, .. }), "{unsupported}");
}

#[test]
fn palettes_of_invalid_length_are_rejected() {
    assert_eq!(decode(&palette_png(6)).expect("a PNG").rgb(), [9; 12]);
    for length in [0, 1, 2, 4, 5, 7, 8, 767, 769, 770, 774, 3000] {
        assert!(decode(&palette_png(length)).is_err(), "{length} bytes");
    }
}

#[test]
fn every_prefix_is_an_error_or_a_picture() {
    for name in SMALL {
        let bytes = read_fixture(name);
        let whole = decode(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        // Long files by larger steps, with all lengths around the header and the end.
        let step = bytes.len() / 400 + 1;
        let lengths = (0..bytes.len()).filter(|len| len % step == 0 || *len < 100 || bytes.len() - len < 20);
        for len in lengths {
            if let Ok(picture) = decode(&bytes[..len]) {
                assert_eq!(
                    (picture.width(), picture.height()),
                    (whole.width(), whole.height()),
                    "{name}, {len}"
                );
                // Half a file is never a picture, but for run lengths, whose end may be anywhere.
                assert!(len > bytes.len() / 2 || *name == "run_length.bmp", "{name}: {len} bytes suffice");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes_are_an_error_or_a_picture(
        file in 0..SMALL.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        // Half of the changes are in the header.
        in_header in any::<bool>(),
    ) {
        let mut bytes = read_fixture(SMALL[file]);
        let end = if in_header { bytes.len().min(80) } else { bytes.len() };
        for (index, value) in changes {
            bytes[index.index(end)] = value;
        }
        let _ = decode(&bytes);
    }

    #[test]
    fn arbitrary_bytes_behind_a_header_are_an_error_or_a_picture(
        file in 0..SMALL.len(),
        kept in 4..60_usize,
        tail in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let bytes = read_fixture(SMALL[file]);
        let _ = decode(&[&bytes[..kept.min(bytes.len())], &tail].concat());
    }
}

/// Environment variable of a child process of this test: the file to decode, or `ballast`.
const CHILD_DECODES: &str = "INDRIK_TEST_CHILD_DECODES";

/// Peak resident memory of this process.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("read /proc/self/status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    line.trim().trim_end_matches(" kB").parse().expect("number of KiB")
}

/// Not a test itself: run in child processes of the test below. Peak memory never decreases, so every file needs a
/// fresh process.
#[test]
fn child() {
    let Some(path) = std::env::var_os(CHILD_DECODES) else {
        println!("skipped: runs only in child processes of the memory test");
        return;
    };
    if path == "ballast" {
        let before = peak_kib();
        std::hint::black_box(vec![1_u8; 16 << 20]);
        println!("\nmeasured {}", peak_kib() - before);
        return;
    }
    let bytes = std::fs::read(path).expect("the file");
    let before = peak_kib();
    let _ = std::hint::black_box(images::decode(&bytes, &Limits::default()));
    println!("\nmeasured {}", peak_kib() - before);
}

/// Growth of a fresh process's peak memory while it decodes `path`, in KiB.
fn peak_growth_kib(path: &Path) -> u64 {
    let this = std::env::current_exe().expect("path of this test");
    let mut child = Command::new(this);
    child.args(["--exact", "hostile::child", "--nocapture", "--test-threads=1"]).env(CHILD_DECODES, path);
    let output = child.output().expect("start a child process");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let line = text.lines().find_map(|line| line.strip_prefix("measured ")).expect("measurement");
    line.parse().expect("a number")
}

#[test]
fn memory_is_bounded() {
    /// What decoders need beside pixels: tables, rows.
    const BASE_KIB: u64 = 4 << 10;
    let kib = peak_growth_kib(Path::new("ballast"));
    assert!(kib > BASE_KIB, "the measurement misses an allocation of 16 MiB: {kib} KiB");

    let folder = tempfile::tempdir().expect("create a temporary folder");
    let hostile: [(&str, Vec<u8>); 6] = [
        ("huge.png", png(100_000, 100_000)),
        ("canvas.gif", gif([65_535, 65_535], [1, 1])),
        ("frame.gif", gif([1, 1], [65_535, 65_535])),
        ("huge.jpg", jpeg(65_535, 65_535)),
        ("frame.webp", webp([16, 16], [16_383, 16_383])),
        // The pixels would be within the limits.
        ("pixels.bmp", bmp(7000, 7000, 24, 0, &[0; 100])),
    ];
    for (name, bytes) in &hostile {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("write a file");
        let kib = peak_growth_kib(&path);
        println!("{kib:>6} KiB  {name}");
        assert!(kib < BASE_KIB, "{name}: {kib} KiB");
    }

    // Pixels, and bytes per pixel that the format's decoder is assumed to need at most.
    let valid = [
        ("bomb.png", 16 * 16, 6),
        ("huge.png", 3000 * 2100, 6),
        ("large.jpg", 2000 * 1500, 9),
        ("large.webp", 2000 * 1500, 12),
        ("large_lossy.webp", 2000 * 1500, 12),
    ];
    for (name, pixels, bytes_per_pixel) in valid {
        let kib = peak_growth_kib(&fixture(name));
        let assumed = pixels * bytes_per_pixel / 1024;
        println!("{kib:>6} KiB of {assumed:>6}  {name}");
        assert!(kib < assumed + BASE_KIB, "{name}: {kib} KiB, {assumed} assumed");
    }
}
