//! Pictures for vision models: from the bytes of an untrusted file to the patches that a vision tower reads.
//!
//! 1. [`decode()`] turns PNG, JPEG, WebP, GIF or BMP bytes into a [`Picture`]: upright RGB on a white ground. Sizes
//!    come from the header and are compared with [`Limits`] before a pixel is decoded.
//! 2. [`Gemma3`] and [`Gemma4`] resize a picture as the models were trained to see it and cut it into
//!    [`Patches`]: one row per patch, so that the patch embedding is one matrix product.
//! 3. [`Picture::content_hash`] identifies the picture in a prefix cache.
//!
//! | question | answer |
//! |---|---|
//! | What does a client's file claim to be, and what is it? | [`Format::from_mime`], [`Format::of`] |
//! | How large may it be? | [`Limits`] |
//! | How many rows and which positions do patches have? | [`Patches`] |
//! | Which crops does pan-and-scan make? | [`PanAndScan::crops`] |
//!
//! Resizing is the antialiased filter of the Pillow library, with its rounding to 8 bits after each pass, since
//! models were trained on that. Tests compare with the processors of the transformers package. Embedded colour
//! profiles are ignored, as those processors do.
//!
//! ```
//! use images::{Gemma3, Gemma4, Limits, Picture};
//!
//! assert!(images::decode(b"GIF89a", &Limits::default()).is_err());
//!
//! let picture = Picture::new(2, 1, vec![255, 0, 0, 0, 0, 255]).expect("two pixels");
//! let patches = Gemma3::new(28, 14).process(&picture);
//! assert_eq!((patches[0].columns(), patches[0].rows()), (2, 2));
//! assert_eq!(patches[0].row(0).len(), 3 * 14 * 14);
//!
//! // Gemma 4 keeps the aspect ratio: 23 × 11 soft tokens of at most 280.
//! let gemma4 = Gemma4::with_tower(280);
//! assert_eq!(gemma4.soft_tokens(2, 1), 23 * 11);
//! ```

mod decode;
mod error;
mod exif;
mod format;
mod gemma3;
mod gemma4;
mod limits;
mod patches;
mod picture;
mod resize;

pub use decode::decode;
pub use error::{Error, Result};
pub use format::Format;
pub use gemma3::{Gemma3, PanAndScan};
pub use gemma4::Gemma4;
pub use limits::Limits;
pub use patches::{ByteTable, Normalization, PatchOrder, Patches};
pub use picture::{ContentHash, Picture, Region};
pub use resize::{Filter, resize};
