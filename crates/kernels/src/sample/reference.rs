//! CPU reference in f64, token by token, by sorting.

use super::params::{BAN, Bias, IN_PROMPT, MIN_TEMPERATURE, Params};

/// The inputs of one output row.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    /// The model's unedited logits.
    pub logits: &'a [f32],
    /// The sampling parameters.
    pub params: Params,
    /// Counts of the sequence, one per token; empty if there are none.
    pub counts: &'a [u32],
    /// The row's biases.
    pub biases: &'a [Bias],
    /// Mask bits, one per token; empty if there is no mask.
    pub mask: &'a [u32],
    /// Position of the row in its sequence.
    pub position: u32,
}

/// A token's score: the largest is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// The token.
    pub token: u32,
    /// Its logit, or, when sampling, the logit over the temperature plus noise.
    pub score: f64,
}

/// Every token that the filters leave, best first; none if a logit is NaN or plus infinity.
pub fn kept(row: &Row<'_>) -> Vec<Scored> {
    let params = &row.params;
    if row.logits.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY) {
        return vec![];
    }
    let mut tokens: Vec<Scored> = (0..row.logits.len() as u32)
        .map(|token| Scored { token, score: edited(row, token) })
        .filter(|scored| scored.score > f64::NEG_INFINITY)
        .collect();
    sort(&mut tokens);
    if tokens.is_empty() || params.temperature < MIN_TEMPERATURE {
        return tokens;
    }
    let temperature = f64::from(params.temperature);
    let largest = tokens[0].score;
    let mass = |scored: &Scored| ((scored.score - largest) / temperature).exp();
    if params.top_k > 0 {
        tokens.truncate(params.top_k as usize);
    }
    if params.top_p < 1.0 {
        let wanted = f64::from(params.top_p) * tokens.iter().map(mass).sum::<f64>();
        let mut sum = 0.0;
        let reached = tokens.iter().position(|scored| {
            sum += mass(scored);
            sum >= wanted
        });
        let last = tokens[reached.unwrap_or(tokens.len() - 1)].score;
        tokens.retain(|scored| scored.score >= last);
    }
    tokens.retain(|scored| mass(scored) >= f64::from(params.min_p));
    for scored in &mut tokens {
        scored.score =
            (scored.score - largest) / temperature + gumbel(noise(params.seed, row.position, scored.token));
    }
    sort(&mut tokens);
    tokens
}

/// Log probability by the unedited logits.
pub fn logprob(logits: &[f32], token: u32) -> f64 {
    -crate::score::reference::nll(logits, token)
}

/// The `count` most probable tokens with their log probabilities, the most probable first, ties to the
/// lowest.
pub fn top(logits: &[f32], count: usize) -> Vec<(u32, f64)> {
    let possible = (0..).zip(logits).filter(|(_, logit)| **logit > f32::NEG_INFINITY);
    let mut tokens: Vec<Scored> =
        possible.map(|(token, logit)| Scored { token, score: f64::from(*logit) }).collect();
    sort(&mut tokens);
    tokens.truncate(count);
    tokens.into_iter().map(|scored| (scored.token, logprob(logits, scored.token))).collect()
}

/// Best first, ties to the lowest token.
fn sort(tokens: &mut [Scored]) {
    tokens.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.token.cmp(&b.token)));
}

/// A logit with bias, penalties and mask.
fn edited(row: &Row<'_>, token: u32) -> f64 {
    let at = token as usize;
    let mut logit = f64::from(row.logits[at]);
    let listed = row.biases.iter().take(row.params.bias_count as usize);
    if let Some(bias) = listed.clone().find(|bias| bias.token == token) {
        logit = if bias.bias <= BAN { f64::NEG_INFINITY } else { logit + f64::from(bias.bias) };
    }
    let count = row.counts.get(at).copied().unwrap_or(0);
    if count != 0 {
        let repetition = f64::from(row.params.repetition);
        logit = if logit > 0.0 { logit / repetition } else { logit * repetition };
    }
    let generated = count & !IN_PROMPT;
    if generated > 0 {
        logit -= f64::from(row.params.presence) + f64::from(row.params.frequency) * f64::from(generated);
    }
    let allowed = row.mask.get(at / 32).is_none_or(|word| word >> (at % 32) & 1 == 1);
    if row.params.masked && !allowed { f64::NEG_INFINITY } else { logit }
}

/// The random word of a token.
pub fn noise(seed: u64, position: u32, token: u32) -> u32 {
    philox([token / 4, position, 0, 0], [seed as u32, (seed >> 32) as u32])[token as usize % 4]
}

/// Gumbel noise from a random word.
fn gumbel(bits: u32) -> f64 {
    let uniform = (f64::from(bits) + 0.5) / 4_294_967_296.0;
    -(-(-uniform).ln_1p()).ln()
}

/// Philox4x32-10: high and low halves of products, mixed ten times.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = 0xd251_1f53_u64 * u64::from(counter[0]);
        let b = 0xcd9e_8d57_u64 * u64::from(counter[2]);
        let high = |product: u64| (product >> 32) as u32;
        counter = [high(b) ^ counter[1] ^ key[0], b as u32, high(a) ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    #[test]
    fn philox_gives_its_published_words() {
        let zeros = super::philox([0; 4], [0; 2]);
        assert_eq!(zeros, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let pi =
            super::philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
        assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }
}
