//! File formats, recognised by their first bytes.

use std::fmt;

/// A file format that can be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Portable Network Graphics; of an animation, the default image.
    Png,
    /// JPEG: baseline and progressive, 8 bits.
    Jpeg,
    /// WebP, lossy and lossless; of an animation, the first frame.
    WebP,
    /// GIF; of an animation, the first frame.
    Gif,
    /// Windows bitmap.
    Bmp,
}

impl Format {
    /// Every format.
    pub const ALL: [Format; 5] = [Format::Png, Format::Jpeg, Format::WebP, Format::Gif, Format::Bmp];

    /// The format of a file by its first bytes, whatever its name or declared type.
    pub fn of(bytes: &[u8]) -> Option<Format> {
        if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
            Some(Format::Png)
        } else if bytes.starts_with(b"\xff\xd8\xff") {
            Some(Format::Jpeg)
        } else if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
            Some(Format::WebP)
        } else if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
            Some(Format::Gif)
        } else if bytes.starts_with(b"BM") {
            Some(Format::Bmp)
        } else {
            None
        }
    }

    /// The media type, as in a data URL.
    pub fn mime(self) -> &'static str {
        match self {
            Format::Png => "image/png",
            Format::Jpeg => "image/jpeg",
            Format::WebP => "image/webp",
            Format::Gif => "image/gif",
            Format::Bmp => "image/bmp",
        }
    }

    /// The format that a media type declares; parameters and letter case do not matter.
    pub fn from_mime(mime: &str) -> Option<Format> {
        let essence = mime.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match essence.as_str() {
            "image/png" | "image/apng" => Some(Format::Png),
            "image/jpeg" | "image/jpg" | "image/pjpeg" => Some(Format::Jpeg),
            "image/webp" => Some(Format::WebP),
            "image/gif" => Some(Format::Gif),
            "image/bmp" | "image/x-bmp" | "image/x-ms-bmp" => Some(Format::Bmp),
            _ => None,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Png => "PNG",
            Format::Jpeg => "JPEG",
            Format::WebP => "WebP",
            Format::Gif => "GIF",
            Format::Bmp => "BMP",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_name_their_format() {
        for format in Format::ALL {
            assert_eq!(Format::from_mime(format.mime()), Some(format));
        }
        assert_eq!(Format::from_mime(" IMAGE/JPG ; q=1"), Some(Format::Jpeg));
        assert_eq!(Format::from_mime("image/svg+xml"), None);
        assert_eq!(Format::from_mime(""), None);
    }

    #[test]
    fn content_decides() {
        assert_eq!(Format::of(b""), None);
        assert_eq!(Format::of(b"RIFF\0\0\0\0WAVE"), None);
        assert_eq!(Format::of(b"RIFF\0\0\0\0WEBP"), Some(Format::WebP));
        assert_eq!(Format::of(b"<svg>"), None);
    }
}
