//! From logits to tokens, wholly on the GPU: biases, penalties, a grammar's mask, temperature, top-k, top-p, min-p, and the state
//! of the next step.
//!
//! A token depends on its row's logits, parameters, counts, seed and position alone, never on other rows or on timing: what is
//! summed across threads in no fixed order are integers. Drawing is an argmax too: noise with Gumbel's distribution, a function of
//! (seed, position, token) by Philox4x32-10, is added to logit / temperature, and the largest wins. So nothing depends on
//! the order in which tokens are looked at, and filters need no renormalised probabilities. Another device may round a
//! logarithm differently, and so differ where two tokens all but tie.
//!
//! 1. `sample_blocks` reads the logits once: the best token and the log probability's sum of each block of 2048.
//! 2. `sample_join` joins the blocks. A row that takes the best token, or draws from all, is done.
//! 3. `sample_collect` lists the tokens that filters may keep, those above a bound that step 2 knows.
//! 4. `sample_select` finds exactly which of them stay, and draws.
//!
//! Steps 3 and 4 are recorded only for a [`Features`] with filters. One with `top` has two steps between the first two: `sample_top` and
//! `sample_top_join` find the most probable tokens, by the logits as the model gave them.
//!
//! A program may be replayed several times in one submission, a [`Run`]: the sampler then leaves what each replay sampled in an entry
//! of its own, and says when a row has met a token that ends it, for a condition to skip the rest.

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

/// For the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "sample",
    about: "logits to tokens: penalties, filters, drawing",
    variants: policy::variants,
    cases: cases::cases,
};

/// Largest vocabulary: sums of probabilities are integers with room for this many.
pub const MAX_VOCAB: usize = 1 << 24;

/// What any row of a program may ask for. What no row needs costs nothing when it is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features {
    /// Top-k, top-p or min-p (see [`Params::filters`]). Without it a row that asks for them gets no token.
    pub filters: bool,
    /// Penalties. Counts are kept up to date only with it.
    pub counts: bool,
    /// Logit biases.
    pub biases: bool,
    /// Masks of allowed tokens.
    pub mask: bool,
    /// The most probable tokens are told.
    pub top: bool,
}

impl std::ops::BitOr for Features {
    type Output = Features;

    /// What either asks for.
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

/// The buffers of one call, each with an entry for every output row unless it says otherwise.
pub struct Operands {
    /// One u32: output rows in use. The others are left alone.
    pub active: View,
    /// f32, `[output row][vocab]`, aligned to 16 bytes.
    pub logits: View,
    /// [`Params`] an output row, as words.
    pub params: View,
    /// u32: which row of the step each output row is.
    pub rows: View,
    /// u32 a row of the step: its position.
    pub positions: View,
    /// u32 a row of the step: the slot of its sequence. Read only with counts.
    pub slots: View,
    /// u32, `[slot][vocab]`, read and written, if the features has them: bits 0–30 say how often the sequence generated the token,
    /// bit 31 ([`IN_PROMPT`]) whether its prompt has it.
    pub counts: Option<View>,
    /// [`Bias`] as words, `[output row][MAX_BIASES]`, if the features has them.
    pub biases: Option<View>,
    /// Bits, `[output row][vocab / 32, rounded up]`: bit t % 32 of word t / 32 allows token t, if the features has them.
    pub mask: Option<View>,
    /// [`Top`] as words, `[step of the run][output row in use][MAX_TOP]`, written, if the features has them: as many as each row asks for,
    /// the most probable first.
    pub top: Option<View>,
    /// As [`Sample::scratch_bytes`] says; nothing in it outlives the call.
    pub scratch: View,
    /// [`Sampled`] as words, `[step of the run][output row in use]`, written; steps that do not fit are left out.
    pub sampled: View,
    /// u32, written: the token of the next step, [`NO_TOKEN`] where there is none. May be the step's own tokens where every output
    /// row is the row of the same number (`rows[i] == i`): then decoding needs nothing from the host.
    pub next_tokens: View,
    /// u32, written: the row's position + 1. May be `positions` itself on the same condition; otherwise it must not overlap it.
    pub next_positions: View,
    /// u32, `[output row][MAX_STOP_TOKENS]`: the tokens that end a row, [`NO_TOKEN`] for those that it has not.
    pub stop_tokens: View,
    /// [`Run`] as words, read and written.
    pub run: View,
}

impl Sample {
    /// Chooses the variants for this device and compiles them.
    pub fn new(device: &Device, features: Features, vocab: usize) -> Result<Self> {
        Self::with_plan(device, features, vocab, policy::plan(device.caps()))
    }

    /// The same with a plan given.
    pub fn with_plan(device: &Device, features: Features, vocab: usize, plan: Plan) -> Result<Self> {
        if vocab == 0 || vocab > MAX_VOCAB {
            let reason = format!("a vocabulary of {vocab} tokens; 1 to {MAX_VOCAB} are possible");
            return Err(Error::InvalidUse { what: "sample".into(), reason });
        }
        let variants = pipelines(features, plan, vocab.is_multiple_of(4));
        let both = |pair: Option<[Variant; 2]>| {
            pair.map(|[one, other]| Ok([one.pipeline(device)?, other.pipeline(device)?])).transpose()
        };
        let (blocks, join) = (variants.blocks.pipeline(device)?, variants.join.pipeline(device)?);
        Ok(Self { features, vocab, blocks, join, filter: both(variants.filter)?, top: both(variants.top)? })
    }

    /// Bytes of scratch memory for so many output rows: with filters 8 a token, for the rows that keep them all.
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
        let part = |[start, end]: [u64; 2]| operands.scratch.slice(start..end);
        let some = |view: &View| Address::from(view.clone());
        let optional = |view: &Option<View>| view.clone().map_or(Address::NONE, Address::from);
        let filtered = |range: [u64; 2]| -> Result<Address> {
            if self.features.filters { part(range).map(Address::from) } else { Ok(Address::NONE) }
        };
        let (partials, states) = (Address::from(part(scratch.partials)?), filtered(scratch.states)?);
        let candidates = filtered(scratch.candidates)?;
        let entries = (operands.sampled.len() / (Sampled::WORDS as u64 * 4)).try_into().unwrap_or(u32::MAX);
        let (vocab, blocks, rows) = (self.vocab as u32, policy::blocks(self.vocab) as u32, rows as u32);

        let push = sample_blocks::Push {
            logits: some(&operands.logits),
            params: some(&operands.params),
            active_rows: some(&operands.active),
            rows: some(&operands.rows),
            positions: some(&operands.positions),
            slots: some(&operands.slots),
            counts: optional(&operands.counts),
            biases: optional(&operands.biases),
            mask: optional(&operands.mask),
            partials: partials.clone(),
            vocab,
        };
        recorder.dispatch(name, &self.blocks, [blocks, rows, 1], &push)?;
        if let (Some([top, join]), Some(told)) = (&self.top, &operands.top) {
            let tops = Address::from(part(scratch.tops)?);
            let push = sample_top::Push {
                logits: some(&operands.logits),
                params: some(&operands.params),
                active_rows: some(&operands.active),
                tops: tops.clone(),
                vocab,
            };
            recorder.dispatch(name, top, [blocks, rows, 1], &push)?;
            let push = sample_top_join::Push {
                logits: some(&operands.logits),
                params: some(&operands.params),
                active_rows: some(&operands.active),
                partials: partials.clone(),
                tops,
                run: some(&operands.run),
                top: some(told),
                vocab,
                entries: (told.len() / (MAX_TOP * Top::WORDS * 4) as u64).try_into().unwrap_or(u32::MAX),
                blocks,
            };
            recorder.dispatch(name, join, [rows, 1, 1], &push)?;
        }
        let push = sample_join::Push {
            logits: some(&operands.logits),
            params: some(&operands.params),
            active_rows: some(&operands.active),
            rows: some(&operands.rows),
            positions: some(&operands.positions),
            slots: some(&operands.slots),
            counts: optional(&operands.counts),
            partials: partials.clone(),
            states: states.clone(),
            sampled: some(&operands.sampled),
            next_tokens: some(&operands.next_tokens),
            next_positions: some(&operands.next_positions),
            stop_tokens: some(&operands.stop_tokens),
            run: some(&operands.run),
            vocab,
            entries,
            blocks,
        };
        recorder.dispatch(name, &self.join, [rows, 1, 1], &push)?;
        let Some([collect, select]) = &self.filter else { return Ok(()) };
        let push = sample_collect::Push {
            logits: some(&operands.logits),
            params: some(&operands.params),
            active_rows: some(&operands.active),
            rows: some(&operands.rows),
            slots: some(&operands.slots),
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
            logits: some(&operands.logits),
            params: some(&operands.params),
            active_rows: some(&operands.active),
            rows: some(&operands.rows),
            positions: some(&operands.positions),
            slots: some(&operands.slots),
            counts: optional(&operands.counts),
            states,
            candidates,
            sampled: some(&operands.sampled),
            next_tokens: some(&operands.next_tokens),
            next_positions: some(&operands.next_positions),
            stop_tokens: some(&operands.stop_tokens),
            run: some(&operands.run),
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
                "counts, biases, mask and top must be given exactly when the features has them".into(),
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
                "{} bytes of scratch, {} are needed",
                operands.scratch.len(),
                self.scratch_bytes(rows)
            ));
        }
        if !operands.logits.address().is_multiple_of(16) || !operands.scratch.address().is_multiple_of(16) {
            return wrong("logits and scratch must be aligned to 16 bytes".into());
        }
        // Shaders count words in 31 bits.
        let counts = operands.counts.as_ref().map_or(0, View::len);
        if rows * vocab >= 1 << 31 || counts >= 1 << 33 {
            return wrong("8 GiB or more of logits or counts: the kernel's indices end there".into());
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
    /// The most probable of blocks, and of a row.
    top: Option<[Variant; 2]>,
}

fn pipelines(features: Features, plan: Plan, wide: bool) -> Variants {
    let Features { filters, counts, biases, mask, top } = features;
    let edits =
        [(counts, " + counts"), (biases, " + biases"), (mask, " + mask"), (!wide, ", odd vocabulary")];
    let label = |step: &str, edits: &[(bool, &str)], threads: u32| {
        let edits: String = edits.iter().filter(|(has, _)| *has).map(|(_, text)| *text).collect();
        format!("{step}{edits}, {threads} threads")
    };
    let threads = plan.block_threads;
    let constants = sample_blocks::Constants { threads, wide, counts, biases, mask };
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
    let constants = sample_collect::Constants { threads, wide, counts, biases, mask };
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
