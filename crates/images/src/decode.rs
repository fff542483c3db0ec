//! From the bytes of a file to a picture.
//!
//! Every format follows the same order: read the header, compare what it announces with the limits, allocate, decode,
//! put transparent pixels on white. A bound on memory per pixel is part of each format's file; it holds because
//! pixels are decoded at most once and metadata that can be compressed is skipped.

mod bmp;
mod gif;
mod jpeg;
mod png;
mod webp;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{
    error::{Error, Result},
    exif::Orientation,
    format::Format,
    limits::Limits,
    picture::Picture,
};

/// Decodes the first frame of a PNG, JPEG, WebP, GIF or BMP file, by content. The result is upright, and what is
/// transparent in the file is on white. Colour profiles are ignored; 16-bit channels keep their upper 8 bits.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Picture> {
    let length = bytes.len() as u64;
    if length == 0 {
        return Err(Error::Empty);
    }
    if length > limits.max_bytes {
        return Err(Error::TooManyBytes { bytes: length, limit: limits.max_bytes });
    }
    let format = Format::of(bytes).ok_or(Error::UnknownFormat)?;
    let decode = match format {
        Format::Png => png::decode,
        Format::Jpeg => jpeg::decode,
        Format::WebP => webp::decode,
        Format::Gif => gif::decode,
        Format::Bmp => bmp::decode,
    };
    // Files that are known to make a decoder panic are rejected before. With an unknown one, a request fails and not the
    // server.
    let decoded = catch_unwind(AssertUnwindSafe(|| decode(bytes, limits)));
    let (stored, orientation) = decoded.unwrap_or_else(|_| Err(Error::damaged(format, PANICKED)))?;
    Ok(orientation.apply(stored))
}

/// Reason of the error after a panic. Tests look for it.
const PANICKED: &str = "the decoder failed";

/// Bytes per pixel while a picture is turned upright: a lower bound for formats with Exif metadata.
const TURNED: u64 = 6;

type Decoded = Result<(Picture, Orientation)>;

/// A picture as it is in the file.
fn picture(format: Format, width: u32, height: u32, rgb: Vec<u8>) -> Result<Picture> {
    Picture::new(width, height, rgb).ok_or_else(|| Error::damaged(format, "its size is inconsistent"))
}

/// One channel of a pixel on white.
#[inline]
fn on_white(value: u8, alpha: u8) -> u8 {
    let (value, alpha) = (u32::from(value), u32::from(alpha));
    ((value * alpha + 255 * (255 - alpha) + 127) / 255) as u8
}

/// RGBA on white, in place: four bytes per pixel become three.
fn flatten_rgba(mut pixels: Vec<u8>) -> Vec<u8> {
    let count = pixels.len() / 4;
    for index in 0..count {
        let [red, green, blue, alpha] = *pixels[index * 4..].first_chunk().expect("four bytes");
        let rgb = [red, green, blue].map(|value| on_white(value, alpha));
        pixels[index * 3..][..3].copy_from_slice(&rgb);
    }
    pixels.truncate(count * 3);
    pixels.shrink_to_fit();
    pixels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transparent_pixels_are_white() {
        let pixels = vec![10, 20, 30, 255, 10, 20, 30, 0, 0, 100, 255, 128];
        assert_eq!(flatten_rgba(pixels), [10, 20, 30, 255, 255, 255, 127, 177, 255]);
    }
}
