//! Which programs there are, and what each holds: recorded once, when the first step of its kind comes.

use std::collections::btree_map::Entry;

use gpu::{Arena, Buffer, Lifetime, Memory, Program, Recorder};
use kernels::{
    sample::{self, CountPrompt, Sample},
    score::{self, Score},
};

use super::Runner;
use crate::{
    Result, gemma3,
    step::{Outputs, Rows, Scratch, Step},
};

/// What becomes of the last layer's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Output {
    /// Nothing: only keys and values were wanted.
    None,
    /// A token for each of so many rows.
    Sample { rows: usize },
    /// The logits of so many rows.
    Logits { rows: usize },
    /// The probability of a given token in each of so many rows.
    Score { rows: usize },
}

impl Output {
    pub(super) fn rows(self) -> usize {
        match self {
            Output::None => 0,
            Output::Sample { rows } | Output::Logits { rows } | Output::Score { rows } => rows,
        }
    }
}

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) rows: usize,
    pub(super) kind: Rows,
    pub(super) output: Output,
    /// What any of its rows asks of the sampler.
    pub(super) form: sample::Form,
}

impl Key {
    pub(super) fn new(rows: usize, kind: Rows, output: Output, form: sample::Form) -> Self {
        // One row of one sequence is no different from rows of several.
        let kind = if rows == 1 { Rows::Mixed } else { kind };
        Self { rows: bucket(rows), kind, output, form }
    }
}

impl Runner {
    /// Records the program if this is the first step of its kind.
    pub(super) fn prepare_key(&mut self, key: Key) -> Result<()> {
        if !self.programs.contains_key(&key) {
            let recorder = self.model.device.recorder()?;
            let program = self.record(key, recorder)?;
            self.programs.insert(key, program);
            self.usage.programs += 1;
        }
        Ok(())
    }

    pub(super) fn record(&mut self, key: Key, mut recorder: Recorder) -> Result<Program> {
        if let Entry::Vacant(entry) = self.scratch.entry(key.rows) {
            entry.insert(Scratch::new(&self.model, key.rows, self.cache.limits())?);
        }
        let output_rows = key.output.rows();
        if output_rows > 0
            && let Entry::Vacant(entry) = self.outputs.entry(output_rows)
        {
            entry.insert(Outputs::new(&self.model, output_rows)?);
        }
        if key.form.counts {
            self.counts()?;
        }
        let outputs = self.outputs.get(&output_rows);
        let mut step = Step {
            model: &self.model,
            cache: &self.cache,
            state: &self.state,
            scratch: &self.scratch[&key.rows],
            outputs,
            rows: key.kind,
            recorder: &mut recorder,
        };
        gemma3::layers(&mut step)?;
        if let (true, Some(counts)) = (key.form.counts, &self.counts) {
            let [active, tokens, slots] =
                [&self.state.active, &self.state.tokens, &self.state.slots].map(Buffer::view);
            let kernel = CountPrompt::new(&self.model.device, self.model.config.vocab as usize)?;
            // Generated tokens pass here too, as the next step's input. The mark changes nothing for them: they count as
            // occurred already.
            kernel.record(
                step.recorder,
                "count tokens",
                key.rows,
                [&active, &tokens, &slots, &counts.view()],
            )?;
        }
        if let Some(outputs) = outputs {
            gemma3::head(&mut step)?;
            self.record_output(&mut recorder, key, outputs)?;
        }
        Ok(recorder.seal()?)
    }

    /// What follows the head.
    fn record_output(&self, recorder: &mut Recorder, key: Key, outputs: &Outputs) -> Result<()> {
        let (device, state) = (&self.model.device, &self.state);
        let vocab = self.model.config.vocab as usize;
        match key.output {
            Output::None | Output::Logits { .. } => Ok(()),
            Output::Score { rows } => {
                let operands = score::Operands {
                    active: state.outputs.view(),
                    logits: outputs.logits.view(),
                    targets: state.targets.view(),
                    nll: state.nll.view(),
                };
                Ok(Score::new(device, vocab)?.record(recorder, "score", rows, &operands)?)
            }
            Output::Sample { rows } => {
                let kernel = Sample::new(device, key.form, vocab)?;
                let mut arena =
                    Arena::new(device, Lifetime::Scratch, Memory::Device).with_block_size(1 << 16);
                let scratch = arena.buffer("sampler", kernel.scratch_bytes(rows))?;
                // With an output for every row the sampler prepares the next step in place.
                let (tokens, positions) = match rows == key.rows {
                    true => (&state.tokens, &state.positions),
                    false => (&state.next_tokens, &state.next_positions),
                };
                let operands = sample::Operands {
                    active: state.outputs.view(),
                    logits: outputs.logits.view(),
                    params: state.params.view(),
                    rows: state.output_rows.view(),
                    positions: state.positions.view(),
                    slots: state.slots.view(),
                    counts: self.counts.as_ref().filter(|_| key.form.counts).map(Buffer::view),
                    biases: key.form.biases.then(|| state.biases.view()),
                    mask: None,
                    scratch: scratch.view(),
                    sampled: state.sampled.view(),
                    next_tokens: tokens.view(),
                    next_positions: positions.view(),
                };
                Ok(kernel.record(recorder, "sample", rows, &operands)?)
            }
        }
    }

    /// The counts of all slots.
    pub(super) fn counts(&mut self) -> Result<&Buffer> {
        let words = u64::from(self.cache.limits().sequences) * u64::from(self.model.config.vocab);
        match &mut self.counts {
            Some(counts) => Ok(counts),
            none => {
                let mut arena = Arena::new(&self.model.device, Lifetime::Scratch, Memory::Device);
                Ok(none.insert(arena.buffer("token counts", words * 4)?))
            }
        }
    }
}

/// The bucket of a number of rows: powers of two. Rows of a bucket that are not in use cost little, since kernels leave them out.
pub(super) fn bucket(rows: usize) -> usize {
    rows.next_power_of_two()
}
