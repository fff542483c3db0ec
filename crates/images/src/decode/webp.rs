//! WebP, lossy and lossless. The size that a file announces and the size of its bitstream are separate fields, and
//! the decoder allocates for the latter before it compares them; they are compared here first.

use std::io::Cursor;

use image_webp::{DecodingError, WebPDecoder};

use super::{Decoded, flatten_rgba, picture};
use crate::{
    error::{Error, Result},
    exif::Orientation,
    format::Format,
    limits::Limits,
};

/// An animation has the frame, the canvas and the result at once, with four bytes each; a lossy picture with alpha
/// has 1.5 for planes and 6 for alpha beside the result.
const BYTES_PER_PIXEL: u64 = 12;

/// Exif metadata of a photo with its thumbnail is at most 64 KiB in JPEG, from which it is copied.
const MAX_EXIF: usize = 1 << 20;

pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Decoded {
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(error)?;
    let (width, height) = decoder.dimensions();
    let pixels = limits.check(Format::WebP, width, height, BYTES_PER_PIXEL)?;
    check_bitstreams(bytes, width, height)?;

    decoder.set_memory_limit(MAX_EXIF.min(bytes.len()));
    let exif = match decoder.exif_metadata() {
        Err(DecodingError::MemoryLimitExceeded) => None,
        exif => exif.map_err(error)?,
    };
    let orientation = exif.map(|exif| Orientation::from_exif(&exif)).unwrap_or_default();
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let mut buffer = vec![0; pixels * channels];
    decoder.read_image(&mut buffer).map_err(error)?;
    let rgb = if channels == 4 { flatten_rgba(buffer) } else { buffer };
    Ok((picture(Format::WebP, width, height, rgb)?, orientation))
}

/// Checks that no lossy bitstream announces more than the whole picture. Lossless ones are checked by the decoder
/// before it allocates.
fn check_bitstreams(bytes: &[u8], width: u32, height: u32) -> Result<()> {
    let chunks = bytes.get(12..).unwrap_or_default();
    for (name, data) in Chunks(chunks) {
        match &name {
            b"VP8 " => check_lossy(data, width, height)?,
            // Only the first frame is decoded. Its own header has 16 bytes.
            b"ANMF" => {
                let frame = data.get(16..).unwrap_or_default();
                for (_, data) in Chunks(frame).filter(|(name, _)| name == b"VP8 ") {
                    check_lossy(data, width, height)?;
                }
                break;
            }
            _ => {}
        }
    }
    Ok(())
}

/// A key frame begins with three bytes of flags and a start code, then its size in 14 bits each (RFC 6386, 9.1).
fn check_lossy(data: &[u8], width: u32, height: u32) -> Result<()> {
    let size = data.get(6..10).and_then(|size| size.first_chunk::<4>());
    let Some([w0, w1, h0, h1]) = size else { return Err(Error::damaged(Format::WebP, "it ends early")) };
    let side = |low: u8, high: u8| u32::from(u16::from_le_bytes([low, high]) & 0x3fff);
    match side(*w0, *w1) <= width && side(*h0, *h1) <= height {
        true => Ok(()),
        false => Err(Error::damaged(Format::WebP, "a frame is larger than the picture")),
    }
}

/// Chunks of a RIFF file: four letters, a length, and data padded to an even length. The last may be cut.
struct Chunks<'a>(&'a [u8]);

impl<'a> Iterator for Chunks<'a> {
    type Item = ([u8; 4], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, rest) = self.0.split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length) as usize;
        self.0 = rest.get(length.saturating_add(length % 2)..).unwrap_or_default();
        Some((*name, &rest[..length.min(rest.len())]))
    }
}

fn error(error: DecodingError) -> Error {
    match error {
        DecodingError::UnsupportedFeature(feature) => Error::Unsupported { format: Format::WebP, feature },
        other => Error::damaged(Format::WebP, other),
    }
}
