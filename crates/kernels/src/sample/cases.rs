//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result, Tier};

use super::{
    Bias, Features, MAX_BIASES, MAX_STOP_TOKENS, MAX_TOP, NO_TOKEN, Operands, Params, Run, Sample, Sampled,
    Top, policy, reference,
};
use crate::case::{Case, Comparison, Output, Random, TIMEOUT, arena};

/// The distribution of a case's logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Logits {
    /// Uniform between plus and minus this.
    Spread(f32),
    /// All the same.
    Equal,
    /// Whole numbers from −3 to 3: ties everywhere.
    Ties,
    /// A few tokens stand out, as with a confident model.
    Peaked,
}

pub(super) const PLAIN: Features =
    Features { filters: false, counts: false, biases: false, mask: false, top: false };
pub(super) const FULL: Features =
    Features { filters: true, counts: true, biases: true, mask: true, top: true };

/// Every distribution.
const ALL: [Logits; 5] =
    [Logits::Spread(10.0), Logits::Equal, Logits::Ties, Logits::Peaked, Logits::Spread(1e4)];

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let filters = Features { filters: true, ..PLAIN };
    let mut list = Vec::new();
    for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
        // One token, an odd handful, less than a block, and several blocks of which the last is short.
        for vocab in [1, 7, 1000, 5003] {
            list.push(case(tier, FULL, vocab, &ALL, all_params(vocab)));
        }
        for features in [PLAIN, filters, Features { counts: true, ..PLAIN }] {
            list.push(case(tier, features, 5003, &ALL[..1], all_params(5003)));
        }
        // Gemma's vocabulary: greedy, and Gemma's recommended filters.
        let gemma = Params { temperature: 1.0, top_k: 64, top_p: 0.95, seed: 1, ..Params::default() };
        let few = vec![Params::default(), gemma, Params { top_k: 0, ..gemma }];
        list.push(case(tier, filters, 262_144, &[Logits::Peaked], few));
        // Typical server use: a mask, and the most probable tokens, with one row that requests none.
        let masked = Features { filters: true, mask: true, top: true, ..PLAIN };
        let few = [0, MAX_TOP as u32].map(|top| Params { masked: true, top, ..gemma });
        list.push(case(tier, masked, 262_144, &[Logits::Peaked], few.into()));
        let top = Features { top: true, ..PLAIN };
        list.push(case(
            tier,
            top,
            5003,
            &ALL,
            [0, 1, 20].map(|top| Params { top, ..Params::default() }).into(),
        ));
    }
    list
}

/// Each filter alone, at its extremes, and together.
fn all_params(vocab: usize) -> Vec<Params> {
    let draw = Params { temperature: 0.8, seed: 0x1234_5678_9abc_def0, ..Params::default() };
    let all = Params { top_k: 50, top_p: 0.9, min_p: 0.02, ..draw };
    let list = vec![
        Params::default(),
        draw,
        Params { top_k: 1, ..draw },
        Params { top_k: 2, ..draw },
        Params { top_k: 40, ..draw },
        Params { top_k: vocab as u32, ..draw },
        Params { top_k: u32::MAX, ..draw },
        Params { top_p: 0.9, ..draw },
        Params { top_p: 0.0, ..draw },
        Params { top_p: 1e-9, ..draw },
        Params { top_p: 0.999_999, ..draw },
        Params { min_p: 0.1, ..draw },
        Params { min_p: 1.0, ..draw },
        all,
        Params { temperature: 5.0, top_k: 300, top_p: 0.5, ..draw },
        Params { temperature: 0.01, ..all },
    ];
    let edited = list.iter().enumerate().map(|(i, params)| Params {
        top: [0, 1, 5, MAX_TOP as u32][i % 4],
        repetition: 1.3,
        presence: 0.5,
        frequency: 0.25,
        bias_count: 20,
        masked: true,
        ..*params
    });
    list.iter().copied().chain(edited).collect()
}

/// One row for each distribution of the logits with each of `params`.
fn case(
    tier: Tier,
    features: Features,
    vocab: usize,
    logits: &'static [Logits],
    params: Vec<Params>,
) -> Case {
    let has = |has: bool, text: &'static str| if has { text } else { "" };
    let name = format!(
        "{} × {vocab}{}{}{}{}{}",
        params.len() * logits.len(),
        has(features.filters, ", filters"),
        has(features.counts, ", counts"),
        has(features.biases, ", biases"),
        has(features.mask, ", masks"),
        has(features.top, ", most probable"),
    );
    Case::new(name, tier, move |device| {
        let setup = Setup::random(features, vocab, logits, &params);
        let mut comparison = Comparison::default();
        let outcome = setup.run(device, policy::at_tier(device.caps(), tier), &mut comparison)?;
        setup.compare(&outcome, &mut comparison);
        Ok(comparison)
    })
}

/// Inputs of a call. Output row i is row `rows[i]` of the step.
#[derive(Clone)]
pub(super) struct Setup {
    pub features: Features,
    pub vocab: usize,
    /// One per output row.
    pub logits: Vec<Vec<f32>>,
    pub params: Vec<Params>,
    pub biases: Vec<Vec<Bias>>,
    pub masks: Vec<Vec<u32>>,
    pub rows: Vec<u32>,
    /// One per row of the step.
    pub positions: Vec<u32>,
    pub slots: Vec<u32>,
    /// One per slot.
    pub counts: Vec<Vec<u32>>,
    pub active: usize,
}

/// The outputs.
pub(super) struct Outcome {
    pub sampled: Vec<Sampled>,
    pub next_tokens: Vec<u32>,
    pub next_positions: Vec<u32>,
    pub counts: Vec<u32>,
    pub run: Vec<u32>,
    /// One per row, where the features include them.
    pub top: Vec<Vec<Top>>,
}

impl Setup {
    /// A row for each distribution of the logits with each of `params`, and one more that is inactive.
    pub fn random(features: Features, vocab: usize, distributions: &[Logits], params: &[Params]) -> Self {
        let mut random = Random::new(vocab as u64 + 77);
        let params = params.repeat(distributions.len());
        let active = params.len();
        let count = active + 1;
        let mut logit = |row: usize| match distributions[row * distributions.len() / count] {
            Logits::Spread(spread) => random.signed() * spread,
            Logits::Equal => -2.5,
            Logits::Ties => random.integer(-3, 3) as f32,
            Logits::Peaked => random.signed().powi(31) * 25.0,
        };
        let mut logits: Vec<Vec<f32>> =
            (0..count).map(|row| (0..vocab).map(|_| logit(row)).collect()).collect();
        if vocab > 7 {
            logits.iter_mut().for_each(|logits| logits[5] = f32::NEG_INFINITY);
        }
        let mut below = |end: usize| random.integer(0, end as i64 - 1) as u32;
        // Every other row of the step, in reverse.
        let rows: Vec<u32> = (0..count as u32).rev().map(|row| row * 2 + 1).collect();
        let slots: Vec<u32> = (0..2 * count as u32).map(|row| row / 2).collect();
        let positions = (0..2 * count).map(|_| below(100_000)).collect();
        let counts = (0..count)
            .map(|_| (0..vocab).map(|_| if below(4) > 0 { 0 } else { below(3) | below(2) << 31 }).collect());
        let counts = counts.collect();
        let words = vocab.div_ceil(32);
        let masks = (0..count).map(|row| match row % 4 {
            // Only the last token, and only the last word, with bits past the end of the vocabulary.
            1 => (0..words).map(|word| if word + 1 < words { 0 } else { 1 << ((vocab - 1) % 32) }).collect(),
            2 => (0..words).map(|word| if word + 1 < words { 0 } else { u32::MAX }).collect(),
            _ => (0..words).map(|_| below(1 << 31) << 1 | 1).collect(),
        });
        let masks = masks.collect();
        let biases = logits.iter().map(|logits| biases(logits, vocab)).collect();
        // Drops what the features do not include.
        let params = params.iter().copied().chain([Params::default()]).map(|params| Params {
            repetition: if features.counts { params.repetition } else { 1.0 },
            presence: if features.counts { params.presence } else { 0.0 },
            frequency: if features.counts { params.frequency } else { 0.0 },
            bias_count: if features.biases { params.bias_count.min(vocab as u32) } else { 0 },
            masked: features.mask && params.masked,
            top: if features.top { params.top } else { 0 },
            ..params
        });
        let params = params.collect();
        Self { features, vocab, logits, params, biases, masks, rows, positions, slots, counts, active }
    }

    /// Runs the kernel.
    pub fn run(&self, device: &Device, plan: policy::Plan, comparison: &mut Comparison) -> Result<Outcome> {
        let mut arena = arena(device);
        let count = self.rows.len();
        let kernel = Sample::with_plan(device, self.features, self.vocab, plan)?;
        let params: Vec<[u32; 16]> = self.params.iter().map(Params::to_words).collect();
        let counts = arena.buffer_from("counts", &self.counts.concat())?;
        let mut biases = vec![[0_u32; 2]; count * MAX_BIASES];
        for (row, list) in self.biases.iter().enumerate() {
            for (i, bias) in list.iter().enumerate() {
                biases[row * MAX_BIASES + i] = bias.to_words();
            }
        }
        let biases = arena.buffer_from("biases", &biases)?;
        let mask = arena.buffer_from("mask", &self.masks.concat())?;
        let sampled = Output::new(&mut arena, count * Sampled::WORDS)?;
        let top = Output::new(&mut arena, count * MAX_TOP * Top::WORDS)?;
        let next_tokens = Output::new(&mut arena, count)?;
        let next_positions = Output::new(&mut arena, count)?;
        let stop_tokens: Vec<u32> = (0..count).flat_map(|row| self.stop_tokens(row)).collect();
        let run = arena.buffer_from("run", &Run::START)?;
        let operands = Operands {
            active: arena.buffer_from("active", &[self.active as u32])?.view(),
            logits: arena.buffer_from("logits", &self.logits.concat())?.view(),
            params: arena.buffer_from("params", &params)?.view(),
            rows: arena.buffer_from("rows", &self.rows)?.view(),
            positions: arena.buffer_from("positions", &self.positions)?.view(),
            slots: arena.buffer_from("slots", &self.slots)?.view(),
            counts: self.features.counts.then(|| counts.view()),
            biases: self.features.biases.then(|| biases.view()),
            mask: self.features.mask.then(|| mask.view()),
            top: self.features.top.then(|| top.buffer.view()),
            scratch: arena.buffer("scratch", kernel.scratch_bytes(count))?.view(),
            sampled: sampled.buffer.view(),
            next_tokens: next_tokens.buffer.view(),
            next_positions: next_positions.buffer.view(),
            stop_tokens: arena.buffer_from("stop_tokens", &stop_tokens)?.view(),
            run: run.view(),
        };
        let untouched = next_tokens.read(&mut Comparison::default())?[0];
        let mut recorder = device.recorder()?;
        kernel.record(&mut recorder, "sample", count, &operands)?;
        recorder.seal()?.run(TIMEOUT)?;

        let words = sampled.read(comparison)?;
        let (next_tokens, next_positions) = (next_tokens.read(comparison)?, next_positions.read(comparison)?);
        let inactive = words[self.active * Sampled::WORDS..].iter();
        for word in inactive.chain(&next_tokens[self.active..]).chain(&next_positions[self.active..]) {
            comparison.equal(|| "an inactive row".into(), word, &untouched);
        }
        let reported = top.read(comparison)?;
        let mut most_probable = vec![];
        for (row, words) in reported.chunks(MAX_TOP * Top::WORDS).enumerate() {
            let wanted = if row < self.active { self.params[row].top as usize } else { 0 };
            let (requested, unused) = words.split_at(wanted * Top::WORDS);
            unused.iter().for_each(|word| {
                comparison.equal(|| "a token that was not requested".into(), word, &untouched)
            });
            let records: &[[u32; Top::WORDS]] = bytemuck::cast_slice(requested);
            most_probable.push(records.iter().map_while(|words| Top::from_words(*words)).collect());
        }
        let words: &[[u32; Sampled::WORDS]] = bytemuck::cast_slice(&words);
        let sampled = words[..self.active].iter().map(|words| Sampled::from_words(*words)).collect();
        let (counts, run) = (counts.read_vec()?, run.read_vec()?);
        Ok(Outcome { sampled, next_tokens, next_positions, counts, run, top: most_probable })
    }

    /// Every third row stops at any of the lower even tokens, in the first and in the last place.
    fn stop_tokens(&self, row: usize) -> [u32; MAX_STOP_TOKENS] {
        let mut stop_tokens = [NO_TOKEN; MAX_STOP_TOKENS];
        if row % 3 == 1 {
            (0..MAX_STOP_TOKENS as u32).for_each(|i| stop_tokens[i as usize] = 2 * i);
        }
        stop_tokens
    }

    /// The reference's result for an output row.
    pub fn reference(&self, row: usize) -> Vec<reference::Scored> {
        let slot = self.slots[self.rows[row] as usize] as usize;
        reference::kept(&reference::Row {
            logits: &self.logits[row],
            params: self.params[row],
            counts: if self.features.counts { &self.counts[slot] } else { &[] },
            biases: &self.biases[row],
            mask: &self.masks[row],
            position: self.positions[self.rows[row] as usize],
        })
    }

    /// Compares every active row with the reference.
    pub fn compare(&self, outcome: &Outcome, comparison: &mut Comparison) {
        let mut counts = self.counts.concat();
        for row in 0..self.active {
            let kept = self.reference(row);
            let Sampled { token, logprob } = outcome.sampled[row];
            let at = |what: &str| format!("{what} of row {row} with {:?}", self.params[row]);
            let supported = self.features.filters || !self.params[row].filters(self.vocab);
            match kept.first().filter(|_| supported) {
                None => comparison.equal(|| at("token"), &token, &NO_TOKEN),
                Some(best) => {
                    // Where two tokens nearly tie, rounding decides: no other token may be clearly better.
                    let found = kept.iter().find(|scored| scored.token == token);
                    let score = found.map_or(f64::NEG_INFINITY, |scored| scored.score);
                    let what = || at(&format!("score of token {token} (best is {})", best.token));
                    comparison.close(what, score, best.score, 1e-5 * (best.score.abs() + 1.0));
                }
            }
            if token != NO_TOKEN {
                let want = reference::logprob(&self.logits[row], token);
                comparison.close(|| at("logprob"), f64::from(logprob), want, 1e-5 * (want.abs() + 1.0));
                let slot = self.slots[self.rows[row] as usize] as usize;
                counts[slot * self.vocab + token as usize] += u32::from(self.features.counts);
            }
            let want = reference::top(&self.logits[row], self.params[row].top as usize);
            let tokens = |list: &[Top]| list.iter().map(|top| top.token).collect::<Vec<u32>>();
            let reported = &outcome.top[row];
            let expected: Vec<u32> = want.iter().map(|(token, _)| *token).collect();
            comparison.equal(|| at("most probable tokens"), &tokens(reported), &expected);
            for (reported, (_, want)) in reported.iter().zip(want) {
                let what = || at(&format!("logprob of token {}", reported.token));
                comparison.close(what, f64::from(reported.logprob), want, 1e-5 * (want.abs() + 1.0));
                if reported.token == token {
                    comparison.close(
                        || at("logprob reported twice"),
                        f64::from(reported.logprob),
                        f64::from(logprob),
                        1e-6 * (want.abs() + 1.0),
                    );
                }
            }
            comparison.equal(|| at("next token"), &outcome.next_tokens[row], &token);
            let position = self.positions[self.rows[row] as usize];
            comparison.equal(|| at("next position"), &outcome.next_positions[row], &(position + 1));
        }
        comparison.equal(|| "the counts".into(), &outcome.counts, &counts);
        let stops = |(row, sampled): (usize, &Sampled)| {
            sampled.token == NO_TOKEN || self.stop_tokens(row).contains(&sampled.token)
        };
        let stopped = outcome.sampled.iter().enumerate().filter(|row| stops(*row)).count();
        comparison.equal(
            || "finished and stopped rows".into(),
            &outcome.run[0],
            &((stopped << 16 | self.active) as u32),
        );
        comparison.equal(|| "whether the run continues".into(), &outcome.run[1], &u32::from(stopped == 0));
    }
}

/// Twenty biases: the best token is banned, the second gets less and others more.
fn biases(logits: &[f32], vocab: usize) -> Vec<Bias> {
    let mut order: Vec<u32> = (0..vocab as u32).collect();
    order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
    let bias = |i: usize| match i {
        0 if vocab > 1 => -100.0,
        1 => -3.0,
        2 => f32::NEG_INFINITY,
        _ => 0.25 * i as f32,
    };
    order.into_iter().take(20).enumerate().map(|(i, token)| Bias { token, bias: bias(i) }).collect()
}
