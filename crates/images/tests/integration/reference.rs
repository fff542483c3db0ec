//! Pictures in every format, compared with what the image processors of the transformers package make of them
//! (`scripts/image_fixtures.py`).

use images::{Format, Gemma3, Gemma4, Limits, PanAndScan, Patches, Picture};
use serde::Deserialize;

use crate::read_fixture;

#[derive(Deserialize)]
struct Reference {
    pictures: Vec<Entry>,
    pan_and_scan: PanAndScanEntry,
    /// Width, height, budget, width and height of the result.
    target_sizes: Vec<[u32; 5]>,
}

#[derive(Deserialize)]
struct Entry {
    file: String,
    width: u32,
    height: u32,
    gemma3: Vec<Gemma3Entry>,
    gemma4: Vec<Gemma4Entry>,
}

#[derive(Deserialize)]
struct Gemma3Entry {
    size: u32,
    pixels: Samples,
}

#[derive(Deserialize)]
struct Gemma4Entry {
    max_soft_tokens: u32,
    unified: bool,
    soft_tokens: u32,
    patches: usize,
    middle_position: [u32; 2],
    last_position: [u32; 2],
    pixels: Samples,
}

#[derive(Deserialize)]
struct PanAndScanEntry {
    crops: Vec<Crops>,
    file: String,
    size: u32,
    pixels: Vec<Samples>,
}

#[derive(Deserialize)]
struct Crops {
    width: u32,
    height: u32,
    crops: Vec<[u32; 4]>,
}

/// Every `stride`-th of `count` values, in units of 1/255.
#[derive(Deserialize)]
struct Samples {
    stride: usize,
    count: usize,
    values: Vec<u8>,
}

impl Samples {
    /// The largest difference from values between 0 and 1, in units of 1/255.
    fn worst(&self, value: impl Fn(usize) -> f32) -> f32 {
        assert_eq!(self.values.len(), self.count.div_ceil(self.stride));
        let differences = self.values.iter().enumerate().map(|(sample, expected)| {
            let difference = (value(sample * self.stride) * 255.0 - f32::from(*expected)).abs();
            assert!(difference.is_finite());
            difference
        });
        differences.fold(0.0, f32::max)
    }
}

fn reference() -> Reference {
    serde_json::from_slice(&read_fixture("reference.json")).expect("the format that the script writes")
}

fn picture(name: &str) -> Picture {
    images::decode(&read_fixture(name), &Limits::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Largest difference, in units of 1/255. It is zero, but for the rounding of f32, if the format defines every pixel.
/// JPEG leaves the rounding of coefficients, colours and upsampled chroma to the decoder: Pillow's (libjpeg-turbo) and
/// ours differ by up to 2 in smooth pictures before they are resized, and by up to 4 with 4:2:0 (subsampled.jpg).
fn tolerance(file: &str) -> f32 {
    let whole = match file {
        "subsampled.jpg" => 3.0,
        _ if file.ends_with(".jpg") => 2.0,
        _ => 0.0,
    };
    whole + 1e-3
}

const GEMMA3_PATCH: usize = 14;

/// From indices of (channel, row, column) of the whole picture to values in its patches.
fn gemma3_values(patches: &Patches, size: usize) -> impl Fn(usize) -> f32 {
    let values = patches.values();
    move |index| {
        let (channel, y, x) = (index / (size * size), index / size % size, index % size);
        let row = y / GEMMA3_PATCH * patches.columns() as usize + x / GEMMA3_PATCH;
        let column = (channel * GEMMA3_PATCH + y % GEMMA3_PATCH) * GEMMA3_PATCH + x % GEMMA3_PATCH;
        (values[row * patches.values_per_patch() + column] + 1.0) / 2.0
    }
}

#[test]
fn processors_see_what_the_reference_sees() {
    let mut overall = 0.0_f32;
    for entry in reference().pictures {
        let picture = picture(&entry.file);
        assert_eq!((picture.width(), picture.height()), (entry.width, entry.height), "{}", entry.file);
        let worst = gemma3_worst(&entry, &picture).max(gemma4_worst(&entry, &picture));
        println!("{}: {worst:.3}/255", entry.file);
        assert!(worst <= tolerance(&entry.file), "{}: {worst}/255", entry.file);
        overall = overall.max(worst);
    }
    println!("worst: {overall:.3}/255");
}

fn gemma3_worst(entry: &Entry, picture: &Picture) -> f32 {
    let case_worst = |case: &Gemma3Entry| {
        let [patches] = &Gemma3::new(case.size, GEMMA3_PATCH as u32).process(picture)[..] else {
            panic!("one block without pan-and-scan")
        };
        assert_eq!(case.pixels.count, patches.values().len(), "{}", entry.file);
        case.pixels.worst(gemma3_values(patches, case.size as usize))
    };
    entry.gemma3.iter().map(case_worst).fold(0.0, f32::max)
}

fn gemma4_worst(entry: &Entry, picture: &Picture) -> f32 {
    let case_worst = |case: &Gemma4Entry| {
        let processor = match case.unified {
            true => Gemma4::unified(case.max_soft_tokens),
            false => Gemma4::with_tower(case.max_soft_tokens),
        };
        assert_eq!(processor.soft_tokens(picture.width(), picture.height()), case.soft_tokens);
        let patches = processor.process(picture);
        let positions: Vec<[u32; 2]> = patches.positions().collect();
        assert_eq!(positions.len(), case.patches, "{}", entry.file);
        assert_eq!(positions[case.patches / 2], case.middle_position, "{}", entry.file);
        assert_eq!(positions.last(), Some(&case.last_position), "{}", entry.file);
        let values = patches.values();
        assert_eq!(case.pixels.count, values.len(), "{}", entry.file);
        // Values of the reference are from 0 to 1 for both kinds.
        case.pixels.worst(|index| match case.unified {
            true => values[index],
            false => (values[index] + 1.0) / 2.0,
        })
    };
    entry.gemma4.iter().map(case_worst).fold(0.0, f32::max)
}

#[test]
fn gemma4_sizes_are_those_of_the_reference() {
    let sizes = reference().target_sizes;
    assert!(sizes.len() > 500);
    for [width, height, budget, target_width, target_height] in sizes {
        let processor = Gemma4::with_tower(budget);
        let (columns, rows) = processor.grid(width, height);
        let size = (columns * processor.token_size, rows * processor.token_size);
        assert_eq!(size, (target_width, target_height), "{width} × {height}, {budget} tokens");
    }
}

#[test]
fn pan_and_scan_crops_are_those_of_the_reference() {
    let reference = reference().pan_and_scan;
    for case in reference.crops {
        let crops = PanAndScan::default().crops(case.width, case.height);
        let crops: Vec<[u32; 4]> = crops.into_iter().map(|r| [r.x, r.y, r.width, r.height]).collect();
        assert_eq!(crops, case.crops, "{} × {}", case.width, case.height);
    }
    let picture = picture(&reference.file);
    let processor = Gemma3 {
        pan_and_scan: Some(PanAndScan::default()),
        ..Gemma3::new(reference.size, GEMMA3_PATCH as u32)
    };
    let blocks = processor.process(&picture);
    assert_eq!(blocks.len(), reference.pixels.len());
    for (index, (patches, pixels)) in blocks.iter().zip(&reference.pixels).enumerate() {
        let worst = pixels.worst(gemma3_values(patches, reference.size as usize));
        println!("block {index}: {worst:.3}/255");
        assert!(worst <= tolerance(&reference.file), "block {index}: {worst}/255");
    }
}

#[test]
fn formats_are_found_by_content() {
    for entry in reference().pictures {
        let bytes = read_fixture(&entry.file);
        let extension = entry.file.rsplit('.').next().expect("an extension");
        assert_eq!(Format::of(&bytes), Format::from_mime(&format!("image/{extension}")), "{}", entry.file);
    }
}

#[test]
fn lossless_encodings_of_a_picture_share_their_hash() {
    let hash = |name: &str| picture(name).content_hash();
    assert_eq!(hash("landscape.png"), hash("landscape.png"));
    assert_ne!(hash("landscape.png"), hash("portrait.png"));
    // The same pixels in three formats.
    assert_eq!(hash("same.png"), hash("same.bmp"));
    assert_eq!(hash("same.png"), hash("same.webp"));
}
