//! BMP: uncompressed with 1 to 32 bits per pixel, with channel masks, and run lengths.
//!
//! A file header of 14 bytes, then one of several info headers whose length is its first field, then masks or a
//! palette, then rows from the bottom up, padded to four bytes.

use super::{Decoded, on_white, picture};
use crate::{
    error::{Error, Result},
    exif::Orientation,
    format::Format,
    limits::Limits,
};

/// The result, and an index of a colour per pixel while run lengths are decoded.
const BYTES_PER_PIXEL: u64 = 4;
const FILE_HEADER: usize = 14;
/// Length of the oldest info header (OS/2 1.x), with 16-bit sizes and palette entries of three bytes.
const CORE_HEADER: u32 = 12;
/// Length of the usual info header.
const INFO_HEADER: u32 = 40;
/// Info headers of at least this length have a mask of the alpha channel.
const V3_HEADER: u32 = 56;

pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Decoded {
    let header = Header::read(bytes)?;
    let pixels = limits.check(Format::Bmp, header.width, header.height, BYTES_PER_PIXEL)?;
    let data = bytes.get(header.data..).ok_or_else(truncated)?;
    let rgb = match &header.storage {
        Storage::Indexed(palette) => {
            let bits = usize::from(header.bits);
            let indices = |row: &[u8], x: usize| {
                let bit = x * bits;
                let shift = 8 - bits - bit % 8;
                usize::from(row[bit / 8] >> shift) & ((1 << bits) - 1)
            };
            header.rows(data, pixels, |row, x| color(palette, indices(row, x)))?
        }
        Storage::RunLength(palette) => {
            let indices = run_lengths(&header, data, pixels);
            let colors = indices.iter().flat_map(|index| color(palette, usize::from(*index)));
            let mut rgb = Vec::with_capacity(pixels * 3);
            rgb.extend(colors);
            rgb
        }
        Storage::Bgr => header.rows(data, pixels, |row, x| {
            let [blue, green, red] = *row[x * 3..].first_chunk().expect("the row's length");
            [red, green, blue]
        })?,
        Storage::Masks(masks) => {
            let length = usize::from(header.bits / 8);
            header.rows(data, pixels, |row, x| {
                let bytes = row[x * length..][..length].iter().rev();
                masks.rgb(bytes.fold(0, |value, byte| value << 8 | u32::from(*byte)))
            })?
        }
    };
    Ok((picture(Format::Bmp, header.width, header.height, rgb)?, Orientation::default()))
}

struct Header {
    width: u32,
    height: u32,
    /// Rows are stored from the top down.
    top_down: bool,
    /// Bits per pixel.
    bits: u16,
    /// Offset of the pixels in the file.
    data: usize,
    storage: Storage,
}

enum Storage {
    /// Indices of colours with 1, 2, 4 or 8 bits.
    Indexed(Vec<[u8; 3]>),
    /// Runs of indices with 4 or 8 bits.
    RunLength(Vec<[u8; 3]>),
    /// Three bytes.
    Bgr,
    /// 16 or 32 bits with a mask per channel.
    Masks(Masks),
}

impl Header {
    fn read(bytes: &[u8]) -> Result<Self> {
        let length = u32_at(bytes, FILE_HEADER)?;
        let field = |offset: usize| u32_at(bytes, FILE_HEADER + offset);
        let core = length == CORE_HEADER;
        if !core && length < INFO_HEADER {
            return Err(Error::damaged(Format::Bmp, "its header is too short"));
        }
        let (width, signed_height, bits) = match core {
            true => {
                let size = field(4)?;
                (size & 0xffff, (size >> 16) as i32, field(8)? >> 16)
            }
            // A negative width is none.
            false => (i32::try_from(field(4)?).unwrap_or(0) as u32, field(8)? as i32, field(12)? >> 16),
        };
        let bits = bits as u16;
        let compression = if core { 0 } else { field(16)? };
        let storage = match (compression, bits) {
            (0, 1 | 2 | 4 | 8) => Storage::Indexed(palette(bytes, length, bits)?),
            (1, 8) | (2, 4) => Storage::RunLength(palette(bytes, length, bits)?),
            (0, 24) => Storage::Bgr,
            (0, 16) => Storage::Masks(Masks::new([0x7c00, 0x03e0, 0x001f, 0])),
            // The fourth byte has no meaning.
            (0, 32) => Storage::Masks(Masks::new([0xff_0000, 0xff00, 0xff, 0])),
            // The masks follow the usual header, and are part of longer ones.
            (3 | 6, 16 | 32) => {
                let alpha = if compression == 6 || length >= V3_HEADER { field(52)? } else { 0 };
                Storage::Masks(Masks::new([field(40)?, field(44)?, field(48)?, alpha]))
            }
            _ => {
                let feature = format!("compression {compression} with {bits} bits per pixel");
                return Err(Error::Unsupported { format: Format::Bmp, feature });
            }
        };
        let data = usize::try_from(u32_at(bytes, 10)?).map_err(|_| truncated())?;
        let height = signed_height.unsigned_abs();
        Ok(Self { width, height, top_down: signed_height < 0, bits, data, storage })
    }

    /// Decodes rows of a fixed length.
    fn rows(&self, data: &[u8], pixels: usize, pixel: impl Fn(&[u8], usize) -> [u8; 3]) -> Result<Vec<u8>> {
        let width = self.width as usize;
        let stride = (width * usize::from(self.bits)).div_ceil(32) * 4;
        let row_bytes = (width * usize::from(self.bits)).div_ceil(8);
        // Of the last row, the padding may be missing.
        let needed = stride * (self.height as usize - 1) + row_bytes;
        let data = data.get(..needed).ok_or_else(truncated)?;
        let mut rgb = Vec::with_capacity(pixels * 3);
        for y in 0..self.height as usize {
            let y = if self.top_down { y } else { self.height as usize - 1 - y };
            let row = &data[y * stride..][..row_bytes];
            rgb.extend((0..width).flat_map(|x| pixel(row, x)));
        }
        Ok(rgb)
    }
}

/// Bit masks of red, green, blue and alpha.
struct Masks([u32; 4]);

impl Masks {
    fn new(masks: [u32; 4]) -> Self {
        Self(masks)
    }

    fn rgb(&self, value: u32) -> [u8; 3] {
        let [red, green, blue, alpha] = self.0;
        let alpha = if alpha == 0 { 255 } else { channel(value, alpha) };
        [red, green, blue].map(|mask| on_white(channel(value, mask), alpha))
    }
}

/// The bits under a mask, scaled to 0…255.
fn channel(value: u32, mask: u32) -> u8 {
    let Some(shift) = mask.checked_ilog2().map(|_| mask.trailing_zeros()) else { return 0 };
    let (value, max) = (u64::from((value & mask) >> shift), u64::from(mask >> shift));
    ((value * 255 + max / 2) / max) as u8
}

/// The colours behind the header, blue first.
fn palette(bytes: &[u8], length: u32, bits: u16) -> Result<Vec<[u8; 3]>> {
    let (entry, used) = match length {
        CORE_HEADER => (3, 0),
        _ => (4, u32_at(bytes, FILE_HEADER + 32)?),
    };
    let all = 1_usize << bits;
    let count = if used == 0 { all } else { all.min(used as usize) };
    let entries = bytes.get(FILE_HEADER.saturating_add(length as usize)..).ok_or_else(truncated)?;
    let entries = entries.get(..count * entry).ok_or_else(truncated)?;
    Ok(entries.chunks_exact(entry).map(|entry| [entry[2], entry[1], entry[0]]).collect())
}

/// A colour; black beyond the palette.
fn color(palette: &[[u8; 3]], index: usize) -> [u8; 3] {
    palette.get(index).copied().unwrap_or_default()
}

/// Decodes runs of indices. Pixels that no run covers keep index 0; data that ends early ends the picture there.
fn run_lengths(header: &Header, data: &[u8], pixels: usize) -> Vec<u8> {
    let (width, height) = (header.width as usize, header.height as usize);
    let mut indices = vec![0; pixels];
    let (mut x, mut y) = (0_usize, 0_usize);
    let mut put = |x: &mut usize, y: usize, index: u8| {
        if *x < width && y < height {
            let row = if header.top_down { y } else { height - 1 - y };
            indices[row * width + *x] = index;
        }
        *x += 1;
    };
    let nibble = |byte: u8, odd: bool| if odd { byte & 15 } else { byte >> 4 };
    let index = |byte: u8, position: usize| match header.bits {
        4 => nibble(byte, position % 2 == 1),
        _ => byte,
    };
    let mut bytes = data.iter().copied();
    while let (Some(first), Some(second)) = (bytes.next(), bytes.next()) {
        match (first, second) {
            // A run.
            (count @ 1.., value) => {
                (0..usize::from(count)).for_each(|position| put(&mut x, y, index(value, position)));
            }
            // End of the line, end of the picture, a step right and down.
            (0, 0) => (x, y) = (0, y + 1),
            (0, 1) => break,
            (0, 2) => {
                let (Some(right), Some(down)) = (bytes.next(), bytes.next()) else { break };
                (x, y) = (x + usize::from(right), y + usize::from(down));
            }
            // Literal indices, padded to two bytes.
            (0, count) => {
                let per_byte = if header.bits == 4 { 2 } else { 1 };
                let length = usize::from(count).div_ceil(per_byte);
                let literal: Vec<u8> = bytes.by_ref().take(length.next_multiple_of(2)).collect();
                for position in 0..usize::from(count) {
                    let Some(byte) = literal.get(position / per_byte) else { break };
                    put(&mut x, y, index(*byte, position));
                }
            }
        }
    }
    indices
}

fn u32_at(bytes: &[u8], offset: usize) -> Result<u32> {
    let field = bytes.get(offset..).and_then(|rest| rest.first_chunk());
    field.map(|field| u32::from_le_bytes(*field)).ok_or_else(truncated)
}

fn truncated() -> Error {
    Error::damaged(Format::Bmp, "it ends early")
}
