//! The sampler's state on the GPU: parameters, biases, masks, stop tokens and token counts that steps read,
//! and the tokens they sample.

use std::collections::{BTreeMap, btree_map::Entry};

use gpu::{Arena, Buffer, Device, Lifetime, Memory, Recorder, View};
use kernels::sample::{
    self, CountMode, CountTokens, Features, MAX_BIASES, MAX_STOP_TOKENS, NO_TOKEN, Params, Run, Sample, Top,
};

use crate::{
    DecodeRow, Limits, Result, Sampled,
    bucket::bucket,
    max_verify_rows,
    sampling::RowSampling,
    state::{HostArenas, MAX_SAMPLED, MAX_STEPS, StepState, TIMEOUT},
};

const _: () = assert!(MAX_SAMPLED as usize * MAX_STEPS <= Run::MAX_FINISHED);

/// The sampler's buffers, with host copies of the contents last written to some of them.
pub(crate) struct SamplerState {
    device: Device,
    vocab: u32,
    /// Slots of token counts.
    slots: u32,
    /// Maximum output rows of a step.
    max_rows: u32,
    /// Sampling parameters per output row, and the host's copy of them.
    params: Buffer,
    written_params: Vec<Params>,
    /// Logit biases per output row.
    biases: Buffer,
    /// Stop tokens per output row, and the host's copy of them.
    stop_tokens: Buffer,
    written_stop_tokens: Vec<u32>,
    /// Progress of a decode run.
    run: Buffer,
    /// Sampled tokens, `[step of the run][output row]`.
    sampled: Buffer,
    /// Where the sampler writes the next step's tokens and positions unless it replaces those of its rows.
    next_tokens: Buffer,
    next_positions: Buffer,
    /// How often each token occurred in each slot's sequence; allocated with the first penalty.
    counts: Option<Buffer>,
    /// Token masks per output row; allocated with the first mask.
    masks: Option<Buffer>,
    /// The most probable tokens, `[step of the run][output row]`; allocated when first requested.
    top_tokens: Option<Buffer>,
    /// Scratch memory by its size. All programs share it: they run one after another.
    scratch: BTreeMap<u64, Buffer>,
}

impl SamplerState {
    pub fn new(device: &Device, arenas: &mut HostArenas, vocab: u32, limits: Limits) -> Result<Self> {
        let HostArenas { shared, readback } = arenas;
        let max_rows = limits.sampled_rows();
        let rows = u64::from(max_rows);
        let words = u64::from(limits.max_rows()) * 4;
        let no_stop_tokens = vec![NO_TOKEN; max_rows as usize * MAX_STOP_TOKENS];
        let sampled_bytes = rows * (MAX_STEPS * sample::Sampled::WORDS) as u64 * 4;
        Ok(Self {
            device: device.clone(),
            vocab,
            slots: limits.max_sequences,
            max_rows,
            params: shared.buffer("sampling parameters", rows * Params::WORDS as u64 * 4)?,
            written_params: vec![],
            biases: shared.buffer("logit biases", rows * MAX_BIASES as u64 * 8)?,
            stop_tokens: shared.buffer_from("stop tokens", &no_stop_tokens)?,
            written_stop_tokens: vec![],
            run: shared.buffer_from("run", &Run::START)?,
            sampled: readback.buffer("sampled tokens", sampled_bytes)?,
            next_tokens: shared.buffer("next tokens", words)?,
            next_positions: shared.buffer("next positions", words)?,
            counts: None,
            masks: None,
            top_tokens: None,
            scratch: BTreeMap::new(),
        })
    }

    /// Maximum sequences that a step samples for.
    pub fn max_sequences(&self) -> u32 {
        self.slots.min(MAX_SAMPLED)
    }

    /// The word that is non-zero while a decode run has not ended.
    pub fn running(&self) -> Result<View> {
        Ok(self.run.slice(Run::RUNNING)?)
    }

    /// Allocates the buffers that programs with these features use, before they are recorded.
    pub fn prepare(&mut self, features: Features, samples: bool) -> Result<()> {
        if features.counts {
            self.counts()?;
        }
        let rows = u64::from(self.max_rows);
        if features.mask && self.masks.is_none() {
            let bytes = rows * u64::from(self.vocab.div_ceil(32)) * 4;
            let mut arena =
                Arena::new(&self.device, Lifetime::Scratch, Memory::Shared).with_block_size(bytes);
            self.masks = Some(arena.buffer("token masks", bytes)?);
        }
        if features.top && self.top_tokens.is_none() {
            let bytes = rows * (MAX_STEPS * sample::MAX_TOP * Top::WORDS * 4) as u64;
            let mut arena =
                Arena::new(&self.device, Lifetime::Scratch, Memory::Readback).with_block_size(bytes);
            self.top_tokens = Some(arena.buffer("most probable tokens", bytes)?);
        }
        if samples {
            let bytes = self.scratch_bytes(features)?;
            if let Entry::Vacant(entry) = self.scratch.entry(bytes) {
                let mut arena =
                    Arena::new(&self.device, Lifetime::Scratch, Memory::Device).with_block_size(1 << 16);
                entry.insert(arena.buffer("sampler", bytes)?);
            }
        }
        Ok(())
    }

    /// Scratch bytes of a sampler for the maximum number of rows. Samplers with filters need so much that
    /// those with top tokens as well, which need little more, share their size. They sample a row per sequence, or verify
    /// drafts; the others may score a prompt as well.
    fn scratch_bytes(&self, features: Features) -> Result<u64> {
        let features = Features { top: features.top || features.filters, ..features };
        let kernel = Sample::new(&self.device, features, self.vocab as usize)?;
        let verified = (max_verify_rows(self.device.caps()) as u32).min(self.max_rows);
        let rows = if features.filters { self.max_sequences().max(verified) } else { self.max_rows };
        Ok(kernel.scratch_bytes(bucket(rows as usize)))
    }

    /// The token counts of all slots.
    fn counts(&mut self) -> Result<&Buffer> {
        match &mut self.counts {
            Some(counts) => Ok(counts),
            none => {
                let bytes = u64::from(self.slots) * u64::from(self.vocab) * 4;
                let mut arena =
                    Arena::new(&self.device, Lifetime::Scratch, Memory::Device).with_block_size(1 << 16);
                Ok(none.insert(arena.buffer("token counts", bytes)?))
            }
        }
    }

    /// Records the counting of a step's input tokens. Generated tokens pass here too, as the next step's
    /// input, and change nothing: they have been counted already.
    pub fn record_counting(&self, recorder: &mut Recorder, rows: usize, state: &StepState) -> Result<()> {
        let Some(counts) = &self.counts else { return Ok(()) };
        let [tokens, slots] = [&state.tokens, &state.slots].map(Buffer::view);
        let kernel = CountTokens::new(&self.device, CountMode::Prompt, self.vocab as usize)?;
        let operands = [&state.active, &tokens, &slots, &counts.view()];
        Ok(kernel.record(recorder, "count tokens", rows, operands)?)
    }

    /// Records the sampling of output rows from their logits. `in_place` writes the next step's rows over
    /// those of this one.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        features: Features,
        rows: usize,
        in_place: bool,
        state: &StepState,
        logits: View,
    ) -> Result<()> {
        let kernel = Sample::new(&self.device, features, self.vocab as usize)?;
        let (tokens, positions) = match in_place {
            true => (&state.tokens, &state.positions),
            false => (&self.next_tokens, &self.next_positions),
        };
        let operands = sample::Operands {
            active: state.outputs.view(),
            logits,
            params: self.params.view(),
            rows: state.output_rows.view(),
            positions: state.positions.view(),
            slots: state.slots.view(),
            counts: self.counts.as_ref().filter(|_| features.counts).map(Buffer::view),
            biases: features.biases.then(|| self.biases.view()),
            mask: self.masks.as_ref().filter(|_| features.mask).map(Buffer::view),
            top: self.top_tokens.as_ref().filter(|_| features.top).map(Buffer::view),
            scratch: self.scratch[&self.scratch_bytes(features)?].view(),
            sampled: self.sampled.view(),
            next_tokens: tokens.view(),
            next_positions: positions.view(),
            stop_tokens: self.stop_tokens.view(),
            run: self.run.view(),
        };
        Ok(kernel.record(recorder, "sample", rows, &operands)?)
    }

    /// Resets the run, and writes the sampling parameters, biases and masks of the output rows; parameters
    /// only if they have changed.
    pub fn write(&mut self, rows: &[RowSampling<'_>], samples: bool) -> Result<()> {
        self.run.write(0, bytemuck::cast_slice(&Run::START))?;
        let params: Vec<Params> = rows.iter().map(RowSampling::params).collect();
        if samples && params != self.written_params {
            let words: Vec<u32> = params.iter().flat_map(Params::to_words).collect();
            self.params.write(0, bytemuck::cast_slice(&words))?;
            self.written_params = params;
        }
        for (number, row) in rows.iter().enumerate() {
            if let (Some(mask), Some(masks)) = (row.mask, &mut self.masks) {
                masks.write((number * size_of_val(mask)) as u64, bytemuck::cast_slice(mask))?;
            }
            if row.sampling.biases.is_empty() {
                continue;
            }
            let biases = row.sampling.unique_biases();
            let words: Vec<u32> = biases.into_iter().flat_map(sample::Bias::to_words).collect();
            self.biases.write((number * MAX_BIASES * 8) as u64, bytemuck::cast_slice(&words))?;
        }
        Ok(())
    }

    /// Writes the stop tokens of each row, if they have changed.
    pub fn write_stop_tokens(&mut self, batch: &[DecodeRow<'_>]) -> Result<()> {
        let mut words = vec![NO_TOKEN; batch.len() * MAX_STOP_TOKENS];
        for (words, row) in words.chunks_mut(MAX_STOP_TOKENS).zip(batch) {
            // A row with more than fit decodes a single step; the host checks its token.
            let count = row.stop_token_ids.len().min(MAX_STOP_TOKENS);
            words[..count].copy_from_slice(&row.stop_token_ids[..count]);
        }
        if words != self.written_stop_tokens {
            self.stop_tokens.write(0, bytemuck::cast_slice(&words))?;
            self.written_stop_tokens = words;
        }
        Ok(())
    }

    /// Reads the tokens that a step of the last run sampled for this many output rows, `None` where logits are not finite.
    /// Returns them with the number of bytes read.
    pub fn read(&self, step: usize, rows: usize) -> Result<(Vec<Option<Sampled>>, u64)> {
        let mut words = vec![[0_u32; sample::Sampled::WORDS]; rows];
        let bytes = size_of_val(&words[..]) as u64;
        self.sampled.read(step as u64 * bytes, bytemuck::cast_slice_mut(&mut words))?;
        let sampled = |(output, words): (usize, [u32; sample::Sampled::WORDS])| {
            let sample::Sampled { token, logprob } = sample::Sampled::from_words(words);
            match token {
                NO_TOKEN => Ok(None),
                token => {
                    Ok(Some(Sampled { token, logprob, top: self.read_top(step * rows + output, output)? }))
                }
            }
        };
        let sampled: Result<Vec<Option<Sampled>>> = words.into_iter().enumerate().map(sampled).collect();
        Ok((sampled?, bytes))
    }

    /// Reads the most probable tokens of an output row from this entry of the buffer; none unless the row's
    /// parameters request them.
    fn read_top(&self, entry: usize, output: usize) -> Result<Vec<(u32, f32)>> {
        let count = self.written_params.get(output).map_or(0, |params| params.top as usize);
        let (Some(top_tokens), 1..) = (&self.top_tokens, count) else { return Ok(vec![]) };
        let mut words = vec![[0_u32; Top::WORDS]; count];
        let first = entry * sample::MAX_TOP * size_of_val(&words[0]);
        top_tokens.read(first as u64, bytemuck::cast_slice_mut(&mut words))?;
        let top = words.into_iter().map_while(Top::from_words);
        Ok(top.map(|top| (top.token, top.logprob)).collect())
    }

    /// Sets the token counts of a slot to those of a prompt and of the tokens generated after it.
    pub fn reset_counts(
        &mut self,
        state: &mut StepState,
        slot: u32,
        prompt: &[u32],
        generated: &[u32],
    ) -> Result<()> {
        let (device, vocab) = (self.device.clone(), self.vocab);
        let bytes = u64::from(vocab) * 4;
        let counts = self.counts()?.view().slice(u64::from(slot) * bytes..u64::from(slot + 1) * bytes)?;
        let mut recorder = device.recorder()?;
        if generated.is_empty() {
            recorder.fill("token counts", counts, 0)?;
            recorder.seal()?.run(TIMEOUT)?;
            return self.count(state, CountMode::Prompt, slot, prompt);
        }
        let mut words = vec![0_u32; vocab as usize];
        // Soft tokens of an image may lie past the vocabulary.
        for token in prompt.iter().filter(|token| **token < vocab) {
            words[*token as usize] = sample::IN_PROMPT;
        }
        for token in generated.iter().filter(|token| **token < vocab) {
            words[*token as usize] += 1;
        }
        let mut arena = Arena::new(&device, Lifetime::Staging, Memory::Upload).with_block_size(bytes);
        let staging = arena.buffer_from("token counts", &words)?;
        recorder.copy("token counts", &staging, counts)?;
        Ok(recorder.seal()?.run(TIMEOUT)?)
    }

    /// Removes generated tokens from the counts of a slot.
    pub fn uncount(&mut self, state: &mut StepState, slot: u32, tokens: &[u32]) -> Result<()> {
        self.count(state, CountMode::Revert, slot, tokens)
    }

    /// Changes the counts of tokens of one slot.
    fn count(&mut self, state: &mut StepState, mode: CountMode, slot: u32, tokens: &[u32]) -> Result<()> {
        let kernel = CountTokens::new(&self.device, mode, self.vocab as usize)?;
        let counts = self.counts()?.view();
        for tokens in tokens.chunks(state.capacity()) {
            state.write_tokens(slot, tokens)?;
            let [ids, slots] = [&state.tokens, &state.slots].map(Buffer::view);
            let mut recorder = self.device.recorder()?;
            let operands = [&state.active, &ids, &slots, &counts];
            kernel.record(&mut recorder, "count tokens", tokens.len(), operands)?;
            recorder.seal()?.run(TIMEOUT)?;
        }
        Ok(())
    }
}
