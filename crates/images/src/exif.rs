//! Orientation from Exif metadata: cameras store pixels as the sensor read them and note how it was held.

use crate::picture::Picture;

/// Exif tag of the orientation, in the first directory.
const ORIENTATION: u16 = 0x0112;
/// Type of a 16-bit value.
const SHORT: u16 = 3;
const ENTRY: usize = 12;

/// How stored rows and columns relate to the upright picture, numbered 1 to 8 in the Exif standard (section 4.6.4, tag
/// 0x0112).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Orientation {
    /// Stored rows are columns of the upright picture. Applied before the flips.
    transpose: bool,
    /// Mirrored left to right.
    flip_x: bool,
    /// Mirrored top to bottom.
    flip_y: bool,
}

impl Orientation {
    /// The orientation in a TIFF structure, with or without the prefix "Exif\0\0"; upright if there is none.
    pub(crate) fn from_exif(exif: &[u8]) -> Self {
        let tiff = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
        Self::find(tiff).and_then(Self::from_number).unwrap_or_default()
    }

    fn find(tiff: &[u8]) -> Option<u16> {
        let little = match tiff.get(..4)? {
            b"II*\0" => true,
            b"MM\0*" => false,
            _ => return None,
        };
        let u16_at = |offset: usize| {
            let bytes = tiff.get(offset..)?.first_chunk()?;
            Some(if little { u16::from_le_bytes(*bytes) } else { u16::from_be_bytes(*bytes) })
        };
        let offset = tiff.get(4..)?.first_chunk()?;
        let offset = if little { u32::from_le_bytes(*offset) } else { u32::from_be_bytes(*offset) };
        let directory = usize::try_from(offset).ok()?;
        let count = usize::from(u16_at(directory)?);
        for index in 0..count {
            let entry = directory.checked_add(2 + index * ENTRY)?;
            if u16_at(entry)? == ORIENTATION && u16_at(entry + 2)? == SHORT {
                return u16_at(entry + 8);
            }
        }
        None
    }

    fn from_number(number: u16) -> Option<Self> {
        let (transpose, flip_x, flip_y) = match number {
            1 => (false, false, false),
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, true, false),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => return None,
        };
        Some(Self { transpose, flip_x, flip_y })
    }

    /// Turns a stored picture upright.
    pub(crate) fn apply(self, stored: Picture) -> Picture {
        if self == Self::default() {
            return stored;
        }
        let (width, height) = match self.transpose {
            true => (stored.height(), stored.width()),
            false => (stored.width(), stored.height()),
        };
        let mut rgb = Vec::with_capacity(stored.rgb().len());
        let stride = stored.width() as usize;
        for y in 0..height as usize {
            let y = if self.flip_y { height as usize - 1 - y } else { y };
            for x in 0..width as usize {
                let x = if self.flip_x { width as usize - 1 - x } else { x };
                let pixel = if self.transpose { x * stride + y } else { y * stride + x };
                rgb.extend_from_slice(&stored.rgb()[pixel * 3..][..3]);
            }
        }
        Picture::new(width, height, rgb).expect("as many pixels as before")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(little: bool, entries: &[(u16, u16, u16)]) -> Vec<u8> {
        let two = |value: u16| if little { value.to_le_bytes() } else { value.to_be_bytes() };
        let four = |value: u32| if little { value.to_le_bytes() } else { value.to_be_bytes() };
        let mut bytes = if little { b"II*\0".to_vec() } else { b"MM\0*".to_vec() };
        bytes.extend(four(8));
        bytes.extend(two(entries.len() as u16));
        for (tag, kind, value) in entries {
            bytes.extend(two(*tag));
            bytes.extend(two(*kind));
            bytes.extend(four(1));
            bytes.extend(two(*value));
            bytes.extend(two(0));
        }
        bytes
    }

    #[test]
    fn both_byte_orders_are_read() {
        for little in [true, false] {
            let exif = directory(little, &[(0x010f, 2, 0), (ORIENTATION, SHORT, 6)]);
            let expected = Orientation { transpose: true, flip_x: true, flip_y: false };
            assert_eq!(Orientation::from_exif(&exif), expected);
            assert_eq!(Orientation::from_exif(&[b"Exif\0\0", &exif[..]].concat()), expected);
            for len in 0..exif.len() - 2 {
                assert_eq!(Orientation::from_exif(&exif[..len]), Orientation::default(), "{len} bytes");
            }
        }
        let invalid = directory(true, &[(ORIENTATION, SHORT, 9)]);
        assert_eq!(Orientation::from_exif(&invalid), Orientation::default());
    }

    #[test]
    fn all_eight_orientations() {
        // a b c
        // d e f
        let stored = || Picture::new(3, 2, b"aaabbbcccdddeeefff".to_vec()).expect("six pixels");
        let expected =
            ["abc/def", "cba/fed", "fed/cba", "def/abc", "ad/be/cf", "da/eb/fc", "fc/eb/da", "cf/be/ad"];
        for (number, expected) in (1..).zip(expected) {
            let upright = Orientation::from_number(number).expect("1 to 8").apply(stored());
            let pixels: Vec<u8> = upright.rgb().chunks(3).map(|pixel| pixel[0]).collect();
            let rows: Vec<&str> = pixels
                .chunks(upright.width() as usize)
                .map(|row| std::str::from_utf8(row).expect("letters"))
                .collect();
            assert_eq!(rows.join("/"), expected, "orientation {number}");
        }
    }
}
