//! JPEG, baseline and progressive.

use zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions};
use zune_jpeg::{JpegDecoder, errors::DecodeErrors};

use super::{Decoded, picture};
use crate::{
    error::{Error, Result},
    exif::Orientation,
    format::Format,
    limits::Limits,
};

/// The result, and 16-bit coefficients of every component: progressive files need them all at once.
fn bytes_per_pixel(components: u8) -> u64 {
    (3 + 2 * u64::from(components)).max(super::TURNED)
}

/// Scans of a progressive file. Encoders write about ten; each costs a pass over all blocks, however few bytes it has.
const MAX_SCANS: usize = 64;

pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Decoded {
    // Cameras write files that contradict the standard in harmless ways: the lenient mode. It also fills what is
    // missing with grey, so the end is looked for here.
    let options = DecoderOptions::default()
        .set_strict_mode(false)
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_max_scans(MAX_SCANS)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(error)?;
    let info = decoder.info().ok_or_else(|| Error::damaged(Format::Jpeg, "it has no header"))?;
    let (width, height) = (u32::from(info.width), u32::from(info.height));
    let pixels = limits.check(Format::Jpeg, width, height, bytes_per_pixel(info.components))?;
    check_end(bytes)?;
    let orientation = decoder.exif().map(|exif| Orientation::from_exif(exif)).unwrap_or_default();

    let mut rgb = vec![0; pixels * 3];
    decoder.decode_into(&mut rgb).map_err(error)?;
    Ok((picture(Format::Jpeg, width, height, rgb)?, orientation))
}

/// Finds the marker of the end behind the start of the first scan. Coded data cannot contain it by chance, since a
/// zero byte follows each 0xff there; a thumbnail in the metadata can, so segments before the scan are skipped.
fn check_end(bytes: &[u8]) -> Result<()> {
    const START_OF_SCAN: u8 = 0xda;
    const END: &[u8] = b"\xff\xd9";
    let truncated = || Error::damaged(Format::Jpeg, "it ends early");
    let mut rest = bytes.get(2..).ok_or_else(truncated)?;
    loop {
        // Fill bytes may precede a marker.
        let start = rest.iter().position(|byte| *byte == 0xff).ok_or_else(truncated)?;
        let marker = rest[start..].iter().position(|byte| *byte != 0xff).ok_or_else(truncated)? + start;
        let kind = rest[marker];
        rest = &rest[marker + 1..];
        if kind == START_OF_SCAN {
            break;
        }
        // Markers without a segment: restarts, TEM, and zero, which is none.
        if !matches!(kind, 0x00 | 0x01 | 0xd0..=0xd8) {
            let length = rest.first_chunk().ok_or_else(truncated)?;
            rest = rest.get(usize::from(u16::from_be_bytes(*length))..).ok_or_else(truncated)?;
        }
    }
    match rest.windows(END.len()).any(|window| window == END) {
        true => Ok(()),
        false => Err(truncated()),
    }
}

fn error(error: DecodeErrors) -> Error {
    match error {
        DecodeErrors::Unsupported(scheme) => {
            Error::Unsupported { format: Format::Jpeg, feature: format!("{scheme:?}") }
        }
        other => Error::damaged(Format::Jpeg, other),
    }
}
