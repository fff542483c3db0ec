//! GIF: the first frame on its canvas.

use std::num::NonZeroU64;

use gif::{ColorOutput, DecodeOptions, DecodingError, MemoryLimit};

use super::{Decoded, picture};
use crate::{error::Error, exif::Orientation, format::Format, limits::Limits};

/// The canvas in RGB and the frame as indices of colours, which is checked for itself: it may be larger.
const BYTES_PER_PIXEL: u64 = 4;

pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Decoded {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    options
        .set_memory_limit(MemoryLimit::Bytes(NonZeroU64::new(limits.max_memory).unwrap_or(NonZeroU64::MIN)));
    let mut decoder = options.read_info(bytes).map_err(error)?;
    let (width, height) = (u32::from(decoder.width()), u32::from(decoder.height()));
    let pixels = limits.check(Format::Gif, width, height, BYTES_PER_PIXEL)?;

    let frame = decoder.next_frame_info().map_err(error)?;
    let frame = frame.ok_or_else(|| Error::damaged(Format::Gif, "it has no frame"))?;
    let (left, top) = (usize::from(frame.left), usize::from(frame.top));
    let (frame_width, transparent) = (usize::from(frame.width), frame.transparent);
    let frame_pixels =
        limits.check(Format::Gif, u32::from(frame.width), u32::from(frame.height), BYTES_PER_PIXEL)?;
    let mut indices = vec![0; frame_pixels];
    decoder.read_into_buffer(&mut indices).map_err(error)?;

    // What the frame does not cover is transparent, as in browsers.
    let mut rgb = vec![255; pixels * 3];
    let palette = decoder.palette().map_err(error)?;
    let rows = rgb.chunks_exact_mut(width as usize * 3).skip(top);
    for (row, indices) in rows.zip(indices.chunks_exact(frame_width)) {
        for (pixel, index) in row.chunks_exact_mut(3).skip(left).zip(indices) {
            if transparent != Some(*index) {
                // An index beyond the palette is black, as in browsers.
                let color = palette.get(usize::from(*index) * 3..).and_then(|rest| rest.first_chunk::<3>());
                pixel.copy_from_slice(color.unwrap_or(&[0; 3]));
            }
        }
    }
    Ok((picture(Format::Gif, width, height, rgb)?, Orientation::default()))
}

fn error(error: DecodingError) -> Error {
    Error::damaged(Format::Gif, error)
}
