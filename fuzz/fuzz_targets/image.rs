//! Decodes arbitrary bytes as an image.
#![no_main]

use images::Limits;
use libfuzzer_sys::fuzz_target;

/// Small, so that time goes into many files and not into large ones.
const LIMITS: Limits = Limits { max_bytes: 1 << 20, max_pixels: 1 << 20, max_memory: 16 << 20 };

fuzz_target!(|bytes: &[u8]| {
    match images::decode(bytes, &LIMITS) {
        Ok(picture) => {
            let pixels = u64::from(picture.width()) * u64::from(picture.height());
            assert!((1..=LIMITS.max_pixels).contains(&pixels));
            assert_eq!(picture.rgb().len() as u64, 3 * pixels);
        }
        // Decoders' panics are caught, and reported as this error.
        Err(error) => assert!(!error.to_string().contains("the decoder failed")),
    }
});
