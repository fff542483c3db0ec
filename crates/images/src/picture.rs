//! Decoded pictures.

use std::fmt;

use sha2::{Digest, Sha256};

/// An upright picture in 8-bit RGB, at least one pixel wide and high.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    width: u32,
    height: u32,
    rgb: Vec<u8>,
}

impl Picture {
    /// A picture of `rgb`, row by row from the top; `None` unless there are three bytes per pixel, and a pixel.
    pub fn new(width: u32, height: u32, rgb: Vec<u8>) -> Option<Self> {
        let bytes = (width as usize).checked_mul(height as usize)?.checked_mul(3)?;
        (bytes > 0 && rgb.len() == bytes).then_some(Self { width, height, rgb })
    }

    /// Width in pixels.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Height in pixels.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Three bytes per pixel, row by row from the top.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    /// The bytes of row `y`.
    #[inline]
    pub(crate) fn row(&self, y: usize) -> &[u8] {
        let stride = self.width as usize * 3;
        &self.rgb[y * stride..][..stride]
    }

    /// The whole picture as a region.
    pub fn region(&self) -> Region {
        Region { x: 0, y: 0, width: self.width, height: self.height }
    }

    /// Hash of size and pixels. A picture has the same hash in every lossless encoding, whatever metadata its file
    /// has; what a lossy encoding changes, changes the hash. Soft tokens also depend on the model and its processor:
    /// a key of soft tokens must contain the settings of [`Gemma3`](crate::Gemma3) or [`Gemma4`](crate::Gemma4) if
    /// they vary.
    pub fn content_hash(&self) -> ContentHash {
        let mut hasher = Sha256::new();
        hasher.update(b"indrik picture rgb8\0");
        hasher.update(self.width.to_le_bytes());
        hasher.update(self.height.to_le_bytes());
        hasher.update(&self.rgb);
        ContentHash(hasher.finalize().into())
    }
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Picture({} × {})", self.width, self.height)
    }
}

/// A rectangle of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Leftmost column.
    pub x: u32,
    /// Topmost row.
    pub y: u32,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
}

/// SHA-256 of a picture's size and pixels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentHash(pub [u8; 32]);

impl ContentHash {
    /// Hash of a part of the picture.
    pub fn of_region(&self, region: Region) -> Self {
        let Region { x, y, width, height } = region;
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        [x, y, width, height].iter().for_each(|number| hasher.update(number.to_le_bytes()));
        Self(hasher.finalize().into())
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentHash({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_must_match() {
        assert!(Picture::new(0, 0, vec![]).is_none());
        assert!(Picture::new(1, 1, vec![0; 4]).is_none());
        assert!(Picture::new(u32::MAX, u32::MAX, vec![]).is_none());
    }

    #[test]
    fn the_hash_depends_on_shape_and_pixels() {
        let hash = |width, height, value| {
            Picture::new(width, height, vec![value; 18]).expect("six pixels").content_hash()
        };
        assert_eq!(hash(2, 3, 7), hash(2, 3, 7));
        assert_ne!(hash(2, 3, 7), hash(3, 2, 7));
        assert_ne!(hash(2, 3, 7), hash(2, 3, 8));
        assert_eq!(hash(2, 3, 7).to_string().len(), 64);
        let part = |x| hash(2, 3, 7).of_region(Region { x, y: 0, width: 1, height: 1 });
        assert_eq!(part(1), part(1));
        assert_ne!(part(0), part(1));
    }
}
