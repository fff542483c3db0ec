//! RoPE frequencies.

use std::f64::consts::TAU;

use checkpoint::{Attention, AttentionSpan, Config, config::RopeScaling};
use kernels::attention::rope::inverse_frequencies;

/// Radians per position of each pair of a head.
pub(crate) fn rope_frequencies(config: &Config, attention: &Attention) -> Vec<f64> {
    let plain = |theta: f32| inverse_frequencies(attention.head_dim as usize, f64::from(theta), 1.0);
    match attention.span {
        // Positions of sliding-window layers are never scaled.
        AttentionSpan::Sliding { .. } => plain(config.rope_theta_local),
        AttentionSpan::Full => scaled(plain(config.rope_theta_global), &config.rope_scaling),
    }
}

/// Factor of cosines and sines, and thereby of queries and keys.
pub(crate) fn rotation_factor(config: &Config, attention: &Attention) -> f64 {
    match (attention.span, &config.rope_scaling) {
        (AttentionSpan::Full, RopeScaling::Yarn { attention_factor, .. }) => f64::from(*attention_factor),
        _ => 1.0,
    }
}

fn scaled(plain: Vec<f64>, scaling: &RopeScaling) -> Vec<f64> {
    match scaling {
        RopeScaling::None => plain,
        RopeScaling::Linear { factor } => plain.iter().map(|plain| plain / f64::from(*factor)).collect(),
        RopeScaling::Llama3 { factor, low, high, original } => {
            let [factor, low, high] = [*factor, *low, *high].map(f64::from);
            let scale = |plain: &f64| {
                let turns = f64::from(*original) * plain / TAU;
                // 0 for frequencies that are divided by the factor, 1 for those that are kept.
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                plain * (kept + (1.0 - kept) / factor)
            };
            plain.iter().map(scale).collect()
        }
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original, .. } => {
            let turns = |plain: f64| f64::from(*original) * plain / TAU;
            // The indices of the pairs that turn so often, rounded outwards.
            let pairs = plain.len() as f64;
            let base = plain.get(1).map_or(1.0, |second| 1.0 / second);
            let index = |beta: f32| (turns(1.0) / f64::from(beta)).ln() / base.ln();
            let low = index(*beta_fast).floor().max(0.0);
            let high = index(*beta_slow).ceil().min(2.0 * pairs - 1.0);
            let divided = |index: f64| ((index - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            let scale = |(index, plain): (usize, &f64)| {
                let divided = divided(index as f64);
                plain * (1.0 - divided + divided / f64::from(*factor))
            };
            plain.iter().enumerate().map(scale).collect()
        }
        RopeScaling::Proportional { rotated, factor } => {
            let count = (f64::from(*rotated) * plain.len() as f64).floor() as usize;
            let scale = |(index, plain): (usize, &f64)| {
                if index < count { plain / f64::from(*factor) } else { 0.0 }
            };
            plain.iter().enumerate().map(scale).collect()
        }
        RopeScaling::Each { divisors } => {
            plain.iter().zip(divisors).map(|(plain, divisor)| plain / f64::from(*divisor)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_scales_low_frequencies_and_keeps_high_ones() {
        let plain = inverse_frequencies(128, 5e5, 1.0);
        let scaling = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192 };
        let scaled = scaled(plain.clone(), &scaling);
        let ratios: Vec<f64> = plain.iter().zip(&scaled).map(|(plain, scaled)| plain / scaled).collect();
        assert!(ratios.is_sorted(), "{ratios:?}");
        assert_eq!(ratios.iter().filter(|ratio| **ratio == 1.0).count(), 29);
        assert_eq!(ratios.iter().filter(|ratio| (**ratio - 8.0).abs() < 1e-12).count(), 29);
        // A pair in between, by hand: 500000^(−62 / 128) turns 2.26345 times in 8192 positions, 0.42115 of
        // the way from 1 to 4.
        assert!((ratios[31] - 1.0 / (0.42115 + (1.0 - 0.42115) / 8.0)).abs() < 1e-4, "{}", ratios[31]);
    }

    #[test]
    fn yarn_divides_low_frequencies_and_keeps_high_ones() {
        let plain = inverse_frequencies(128, 1e6, 1.0);
        let (factor, beta_fast, beta_slow, original, attention_factor) = (16.0, 32.0, 1.0, 16384, 1.0);
        let yarn = RopeScaling::Yarn { factor, beta_fast, beta_slow, original, attention_factor };
        let ratios: Vec<f64> = plain.iter().zip(scaled(plain.clone(), &yarn)).map(|(a, b)| a / b).collect();
        assert!(ratios.is_sorted(), "{ratios:?}");
        // By hand: 16384 / 64π turns at index 20.36, 16384 / 2π at 36.42, rounded outwards.
        assert!(ratios[..=20].iter().all(|ratio| *ratio == 1.0) && ratios[21] > 1.0, "{ratios:?}");
        assert!((ratios[37] - 16.0).abs() < 1e-9 && ratios[36] < 16.0, "{ratios:?}");
    }

    #[test]
    fn only_the_first_pairs_rotate_where_it_is_proportional() {
        let plain = inverse_frequencies(512, 1e6, 1.0);
        let scaled = scaled(plain.clone(), &RopeScaling::Proportional { rotated: 0.25, factor: 1.0 });
        assert_eq!(scaled[..64], plain[..64]);
        assert!(scaled[64..].iter().all(|frequency| *frequency == 0.0));
    }

    #[test]
    fn rope_freqs_divide_each_pair_by_its_own_factor() {
        let divisors = vec![1.0, 2.0, 4.0];
        assert_eq!(scaled(vec![1.0, 1.0, 0.5], &RopeScaling::Each { divisors }), [1.0, 0.5, 0.125]);
    }
}
