//! PNG. Chunks that hold compressed metadata are skipped: a few bytes of them can stand for gigabytes.

use std::io::Cursor;

use png::{ColorType, Decoder, DecodingError, Transformations};

use super::{Decoded, flatten_rgba, on_white, picture};
use crate::{
    error::{Error, Result},
    exif::Orientation,
    format::Format,
    limits::Limits,
};

/// Grey with alpha, and the result beside it, is 5; turning the result is 6.
const BYTES_PER_PIXEL: u64 = super::TURNED;

pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Decoded {
    let max_memory = usize::try_from(limits.max_memory).unwrap_or(usize::MAX);
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), png::Limits { bytes: max_memory });
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(Transformations::normalize_to_color8());
    let header = decoder.read_header_info().map_err(error)?;
    let (width, height) = (header.width, header.height);
    let pixels = limits.check(Format::Png, width, height, BYTES_PER_PIXEL)?;

    let mut reader = decoder.read_info().map_err(error)?;
    check_palette(reader.info().palette.as_deref().unwrap_or_default())?;
    let exif = reader.info().exif_metadata.as_deref();
    let orientation = exif.map(Orientation::from_exif).unwrap_or_default();
    let (color, _) = reader.output_color_type();
    let size = reader.output_buffer_size();
    let size = size.filter(|size| pixels.checked_mul(color.samples()) == Some(*size));
    let size = size.ok_or_else(|| Error::damaged(Format::Png, "its size is inconsistent"))?;
    let mut buffer = vec![0; size];
    reader.next_frame(&mut buffer).map_err(error)?;
    let rgb = to_rgb(buffer, color)?;
    Ok((picture(Format::Png, width, height, rgb)?, orientation))
}

/// Colours of three bytes, at most 256 (PNG specification, section 11.2.2). The decoder panics on others
/// (image-png issues 671 and 694).
fn check_palette(palette: &[u8]) -> Result<()> {
    match palette.len().is_multiple_of(3) && palette.len() <= 3 * 256 {
        true => Ok(()),
        false => Err(Error::damaged(Format::Png, "its palette has an invalid length")),
    }
}

fn to_rgb(buffer: Vec<u8>, color: ColorType) -> Result<Vec<u8>> {
    Ok(match color {
        ColorType::Rgb => buffer,
        ColorType::Rgba => flatten_rgba(buffer),
        ColorType::Grayscale => {
            let mut rgb = vec![0; buffer.len() * 3];
            rgb.chunks_exact_mut(3).zip(buffer).for_each(|(pixel, grey)| pixel.fill(grey));
            rgb
        }
        ColorType::GrayscaleAlpha => {
            let mut rgb = vec![0; buffer.len() / 2 * 3];
            let pairs = buffer.chunks_exact(2);
            rgb.chunks_exact_mut(3)
                .zip(pairs)
                .for_each(|(pixel, pair)| pixel.fill(on_white(pair[0], pair[1])));
            rgb
        }
        // The transformation resolves palettes.
        ColorType::Indexed => return Err(Error::damaged(Format::Png, "its palette is missing")),
    })
}

fn error(error: DecodingError) -> Error {
    Error::damaged(Format::Png, error)
}
