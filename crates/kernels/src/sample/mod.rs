//! The sampler: from logits to tokens entirely on the GPU. Biases, penalties, a grammar's token mask,
//! temperature, top-k, top-p, min-p, and the state of the next step.
//!
//! A token depends only on its row's logits, parameters, counts, seed and position, never on other rows or on
//! timing: whatever is summed across threads in no fixed order is an integer. Sampling is an argmax too (the
//! Gumbel-max trick): noise with a Gumbel distribution, a function of (seed, position, token) by
//! Philox4x32-10, is added to logit / temperature, and the largest wins. Nothing depends on the order in
//! which tokens are processed, and filters need no renormalised probabilities. Another device may round a
//! logarithm differently, and so differ where two tokens nearly tie.
//! 1. `sample_blocks` reads the logits once: the best token and the log-sum-exp of each block of 2048.
//! 2. `sample_join` combines the blocks. A row that is greedy, or samples without filters, is done.
//! 3. `sample_collect` lists the candidate tokens, those above a bound that step 2 computes.
//! 4. `sample_select` applies the filters exactly, and samples.
//!
//! Steps 3 and 4 are recorded only with the feature `filters`. The feature `top` adds two steps between the
//! first two: `sample_top` and `sample_top_join` find the most probable tokens, by the model's unedited
//! logits.
//!
//! A program may be replayed several times in one submission, a [`Run`]: the sampler then writes the tokens
//! of each replay to a separate entry, and sets a flag when a row has reached a stop token, so that
//! conditional rendering skips the rest.

mod cases;
mod count;
mod params;
pub mod policy;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Address, Device, Error, Pipeline, Recorder, Result, Tier, View};

pub use count::{CountMode, CountTokens};
pub use params::{
    BAN, Bias, IN_PROMPT, MAX_BIASES, MAX_STOP_TOKENS, MAX_TOP, MIN_TEMPERATURE, NO_TOKEN, Params, Run,
    Sampled, Top,
};

use crate::{
    Kernel,
    shaders::{sample_blocks, sample_collect, sample_join, sample_select, sample_top, sample_top_join},
    variant::Variant,
};
use policy::{Plan, Scratch};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "sample",
    about: "sampler: penalties, masks, filters, sampling",
    variants: policy::variants,
    cases: cases::cases,
};

/// Maximum vocabulary size: sums of probabilities are integers with room for this many.
pub const MAX_VOCAB: usize = 1 << 24;

/// The features that some row of a program may use. Unused features cost nothing when left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features {
    /// Top-k, top-p or min-p (see [`Params::filters`]). Without it, a row that needs them gets no token.
    pub filters: bool,
    /// Penalties. Counts are updated only with this feature.
    pub counts: bool,
    /// Logit biases.
    pub biases: bool,
    /// Token masks.
    pub mask: bool,
    /// The most probable tokens are reported.
    pub top: bool,
}

impl std::ops::BitOr for Features {
    type Output = Features;

    /// The features of both.
    fn bitor(self, other: Features) -> Features {
        Features {
            filters: self.filters || other.filters,
            counts: self.counts || other.counts,
            biases: self.biases || other.biases,
            mask: self.mask || other.mask,
            top: self.top || other.top,
        }
    }
}

/// The kernel for one vocabulary.
pub struct Sample {
    features: Features,
    vocab: usize,
    blocks: Pipeline,
    join: Pipeline,
    filter: Option<[Pipeline; 2]>,
    top: Option<[Pipeline; 2]>,
}

/// The buffers of one call, with one entry per output row unless noted otherwise.
pub struct Operands {
    /// One u32: the number of active output rows. The others are left unchanged.
    pub active: View,
    /// f32, `[output row][vocab]`, aligned to 16 bytes.
    pub logits: View,
    /// [`Params`] per output row, as words.
    pub params: View,
    /// u32: the index of each output row in the step.
    pub rows: View,
    /// u32 per row of the step: its position.
    pub positions: View,
    /// u32 per row of the step: the slot of its sequence. Read only with counts.
    pub slots: View,
    /// u32, `[slot][vocab]`, read and written, with the feature `counts`: bits 0–30 hold how often the
    /// sequence generated the token, bit 31 ([`IN_PROMPT`]) whether its prompt contains it.
    pub counts: Option<View>,
    /// [`Bias`] as words, `[output row][MAX_BIASES]`, with the feature `biases`.
    pub biases: Option<View>,
    /// Bits, `[output row][vocab / 32, rounded up]`, with the feature `mask`: bit t % 32 of word t / 32
    /// allows token t.
    pub mask: Option<View>,
    /// [`Top`] as words, `[step of the run][active output row][MAX_TOP]`, written, with the feature `top`: as
    /// many as each row requests, the most probable first.
    pub top: Option<View>,
    /// [`Sample::scratch_bytes`] bytes; its content does not outlive the call.
    pub scratch: View,
    /// [`Sampled`] as words, `[step of the run][active output row]`, written; steps that do not fit are
    /// dropped.
    pub sampled: View,
    /// u32, written: the token of the next step, or [`NO_TOKEN`]. May alias the step's own tokens if every
    /// output row is the row of the same index (`rows[i] == i`): decode then needs nothing from the host.
    pub next_tokens: View,
    /// u32, written: the row's position + 1. May alias `positions` under the same condition; otherwise it
    /// must not overlap it.
    pub next_positions: View,
    /// u32, `[output row][MAX_STOP_TOKENS]`: the stop tokens of a row, padded with [`NO_TOKEN`].
    pub stop_tokens: View,
    /// [`Run`] as words, read and written.
    pub run: View,
}

impl Sample {
    /// Selects the variants for this device and compiles them.
    pub fn new(device: &Device, features: Features, vocab: usize) -> Result<Self> {
        Self::with_plan(device, features, vocab, policy::plan(device.caps()))
    }

    /// The same with a given plan.
    pub fn with_plan(device: &Device, features: Features, vocab: usize, plan: Plan) -> Result<Self> {
        if vocab == 0 || vocab > MAX_VOCAB {
            let reason = format!(
                "a vocabulary of {vocab} tokens is not supported: the sampler takes 1 to {MAX_VOCAB}"
            );
            return Err(Error::InvalidUse { what: "sample".into(), reason });
        }
        let variants = pipelines(features, plan, vocab.is_multiple_of(4));
        let both = |pair: Option<[Variant; 2]>| {
            pair.map(|[one, other]| Ok([one.pipeline(device)?, other.pipeline(device)?])).transpose()
        };
        let (blocks, join) = (variants.blocks.pipeline(device)?, variants.join.pipeline(device)?);
        Ok(Self { features, vocab, blocks, join, filter: both(variants.filter)?, top: both(variants.top)? })
    }

    /// Scratch bytes for `rows` output rows: with filters 8 per token, for rows that keep them all.
    pub fn scratch_bytes(&self, rows: usize) -> u64 {
        Scratch::new(self.vocab, rows, self.features).bytes()
    }

    /// Records the sampling of up to `rows` output rows.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: usize,
        operands: &Operands,
    ) -> Result<()> {
        self.check(name, rows, operands)?;
        let scratch = Scratch::new(self.vocab, rows, self.features);
        let region = |[start, end]: [u64; 2]| operands.scratch.slice(start..end);
        let address = |view: &View| Address::from(view.clone());
        let optional = |view: &Option<View>| view.clone().map_or(Address::NONE, Address::from);
        let filtered = |range: [u64; 2]| -> Result<Address> {
            if self.features.filters { region(range).map(Address::from) } else { Ok(Address::NONE) }
        };
        let (partials, states) = (Address::from(region(scratch.partials)?), filtered(scratch.states)?);
        let candidates = filtered(scratch.candidates)?;
        let entries = (operands.sampled.len() / (Sampled::WORDS as u64 * 4)).try_into().unwrap_or(u32::MAX);
        let (vocab, blocks, rows) = (self.vocab as u32, policy::blocks(self.vocab) as u32, rows as u32);

        let push = sample_blocks::Push {
            logits: address(&operands.logits),
            params: address(&operands.params),
            active_rows: address(&operands.active),
            rows: address(&operands.rows),
            positions: address(&operands.positions),
            slots: address(&operands.slots),
            counts: optional(&operands.counts),
            biases: optional(&operands.biases),
            mask: optional(&operands.mask),
            partials: partials.clone(),
            vocab,
        };
        recorder.dispatch(name, &self.blocks, [blocks, rows, 1], &push)?;
        if let (Some([top, join]), Some(reported)) = (&self.top, &operands.top) {
            let tops = Address::from(region(scratch.tops)?);
            let push = sample_top::Push {
                logits: address(&operands.logits),
                params: address(&operands.params),
                active_rows: address(&operands.active),
                tops: tops.clone(),
                vocab,
            };
            recorder.dispatch(name, top, [blocks, rows, 1], &push)?;
            let push = sample_top_join::Push {
                logits: address(&operands.logits),
                params: address(&operands.params),
                active_rows: address(&operands.active),
                partials: partials.clone(),
                tops,
                run: address(&operands.run),
                top: address(reported),
                vocab,
                entries: (reported.len() / (MAX_TOP * Top::WORDS * 4) as u64).try_into().unwrap_or(u32::MAX),
                blocks,
            };
            recorder.dispatch(name, join, [rows, 1, 1], &push)?;
        }
        let push = sample_join::Push {
            logits: address(&operands.logits),
            params: address(&operands.params),
            active_rows: address(&operands.active),
            rows: address(&operands.rows),
            positions: address(&operands.positions),
            slots: address(&operands.slots),
            counts: optional(&operands.counts),
            partials: partials.clone(),
            states: states.clone(),
            sampled: address(&operands.sampled),
            next_tokens: address(&operands.next_tokens),
            next_positions: address(&operands.next_positions),
            stop_tokens: address(&operands.stop_tokens),
            run: address(&operands.run),
            vocab,
            entries,
            blocks,
        };
        recorder.dispatch(name, &self.join, [rows, 1, 1], &push)?;
        let Some([collect, select]) = &self.filter else { return Ok(()) };
        let push = sample_collect::Push {
            logits: address(&operands.logits),
            params: address(&operands.params),
            active_rows: address(&operands.active),
            rows: address(&operands.rows),
            slots: address(&operands.slots),
            counts: optional(&operands.counts),
            biases: optional(&operands.biases),
            mask: optional(&operands.mask),
            partials,
            states: states.clone(),
            candidates: candidates.clone(),
            vocab,
        };
        recorder.dispatch(name, collect, [blocks, rows, 1], &push)?;
        let push = sample_select::Push {
            logits: address(&operands.logits),
            params: address(&operands.params),
            active_rows: address(&operands.active),
            rows: address(&operands.rows),
            positions: address(&operands.positions),
            slots: address(&operands.slots),
            counts: optional(&operands.counts),
            states,
            candidates,
            sampled: address(&operands.sampled),
            next_tokens: address(&operands.next_tokens),
            next_positions: address(&operands.next_positions),
            stop_tokens: address(&operands.stop_tokens),
            run: address(&operands.run),
            vocab,
            entries,
        };
        recorder.dispatch(name, select, [rows, 1, 1], &push)
    }

    fn check(&self, name: &str, rows: usize, operands: &Operands) -> Result<()> {
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        let features = self.features;
        let Operands { counts, biases, mask, top, .. } = operands;
        let given = [counts, biases, mask, top].map(Option::is_some);
        if given != [features.counts, features.biases, features.mask, features.top] {
            return wrong(
                "counts, biases, mask and top must be given if and only if the features include them".into(),
            );
        }
        let vocab = self.vocab;
        let needed = [
            ("active", Some(&operands.active), 1),
            ("logits", Some(&operands.logits), rows * vocab),
            ("params", Some(&operands.params), rows * Params::WORDS),
            ("rows", Some(&operands.rows), rows),
            ("counts", operands.counts.as_ref(), vocab),
            ("biases", operands.biases.as_ref(), rows * MAX_BIASES * 2),
            ("mask", operands.mask.as_ref(), rows * vocab.div_ceil(32)),
            ("top", operands.top.as_ref(), rows * MAX_TOP * Top::WORDS),
            ("sampled", Some(&operands.sampled), rows * Sampled::WORDS),
            ("stop_tokens", Some(&operands.stop_tokens), rows * MAX_STOP_TOKENS),
            ("run", Some(&operands.run), Run::WORDS),
            ("next_tokens", Some(&operands.next_tokens), rows),
            ("next_positions", Some(&operands.next_positions), rows),
        ];
        for (what, view, words) in needed {
            if view.is_some_and(|view| view.len() < words as u64 * 4) {
                return wrong(format!("{what} is too short for {rows} rows of {vocab} tokens"));
            }
        }
        if operands.scratch.len() < self.scratch_bytes(rows) {
            return wrong(format!(
                "scratch has {} bytes, but needs {}",
                operands.scratch.len(),
                self.scratch_bytes(rows)
            ));
        }
        if !operands.logits.address().is_multiple_of(16) || !operands.scratch.address().is_multiple_of(16) {
            return wrong("logits and scratch must be aligned to 16 bytes".into());
        }
        // Shaders index words with 31 bits.
        let counts = operands.counts.as_ref().map_or(0, View::len);
        if rows * vocab >= 1 << 31 || counts >= 1 << 33 {
            return wrong(
                "logits and counts must be smaller than 8 GiB, the range of the kernel's indices".into(),
            );
        }
        Ok(())
    }
}

/// The variants of each step.
pub(crate) struct Variants {
    blocks: Variant,
    join: Variant,
    /// Collect and select.
    filter: Option<[Variant; 2]>,
    /// The most probable tokens of blocks, and of a row.
    top: Option<[Variant; 2]>,
}

fn pipelines(features: Features, plan: Plan, vec4_loads: bool) -> Variants {
    let Features { filters, counts, biases, mask, top } = features;
    let edits =
        [(counts, " + counts"), (biases, " + biases"), (mask, " + mask"), (!vec4_loads, ", scalar loads")];
    let label = |step: &str, edits: &[(bool, &str)], threads: u32| {
        let edits: String = edits.iter().filter(|(has, _)| *has).map(|(_, text)| *text).collect();
        format!("{step}{edits}, {threads} threads")
    };
    let threads = plan.block_threads;
    let constants = sample_blocks::Constants { threads, vec4_loads, counts, biases, mask };
    let blocks = Variant::new(
        label("blocks", &edits, threads),
        sample_blocks::TIERS,
        plan.tier,
        &constants,
        plan.subgroup,
    );
    let constants = sample_join::Constants { threads: plan.join_threads, counts, filters };
    let text = label("join", &[edits[0], (filters, " + filters")], plan.join_threads);
    let join = Variant::new(text, sample_join::TIERS, plan.tier, &constants, plan.subgroup);
    // The other steps use nothing above T0.
    let constants = sample_collect::Constants { threads, vec4_loads, counts, biases, mask };
    let text = label("collect", &edits, threads);
    let collect = Variant::new(text, sample_collect::TIERS, Tier::T0, &constants, plan.subgroup);
    let constants = sample_select::Constants { threads: plan.select_threads, counts };
    let text = label("select", &edits[..1], plan.select_threads);
    let select = Variant::new(text, sample_select::TIERS, Tier::T0, &constants, plan.subgroup);
    let constants = sample_top::Constants { threads };
    let most_probable =
        Variant::new(label("top", &[], threads), sample_top::TIERS, Tier::T0, &constants, plan.subgroup);
    let constants = sample_top_join::Constants { threads: plan.join_threads };
    let text = label("top join", &[], plan.join_threads);
    let top_join = Variant::new(text, sample_top_join::TIERS, plan.tier, &constants, plan.subgroup);
    Variants {
        blocks,
        join,
        filter: filters.then_some([collect, select]),
        top: top.then_some([most_probable, top_join]),
    }
}
