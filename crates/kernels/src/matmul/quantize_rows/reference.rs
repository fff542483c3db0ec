//! CPU reference in f64, 16 values at a time.

/// The largest q: 127 in both bytes.
pub const LARGEST: f64 = 32639.0;

/// Scale, high bytes and low bytes of values that share a scale.
pub fn quantize(values: &[f32]) -> (f64, Vec<i8>, Vec<i8>) {
    let largest = values.iter().fold(0.0_f64, |largest, value| largest.max(f64::from(*value).abs()));
    let scale = largest / LARGEST;
    let split = |value: &f32| {
        let q = if scale == 0.0 { 0 } else { (f64::from(*value) / scale).round() as i32 };
        let low = ((q + 128) & 255) - 128;
        (((q - low) / 256) as i8, low as i8)
    };
    let (high, low) = values.iter().map(split).unzip();
    (scale, high, low)
}

/// The value that two bytes and a scale represent.
pub fn value(scale: f64, high: i8, low: i8) -> f64 {
    f64::from(256 * i32::from(high) + i32::from(low)) * scale
}
