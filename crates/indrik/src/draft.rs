//! The draft model of a loaded model: whether it fits the target, and its place in memory.

use gpu::{AdapterInfo, Device};
use model::{DraftRunner, Limits, LoadOptions, Runner, VerifySteps};
use text::Tokenizer;
use weights::{
    blueprint::Blueprint,
    plan::{self, Demand, HeapUsage, Memory},
    stream::{self, Control},
};

use crate::{Error, ModelFiles, Options, Result};

/// Vocabularies of one family may differ in special tokens at the end, as those of multimodal variants do: by at most this
/// share of the tokens that they have in common.
const MAX_UNSHARED_SHARE: f64 = 1.0 / 64.0;

impl ModelFiles {
    /// Opens a draft model for this model, by path or by its name in the local store. An error if it has another vocabulary.
    pub fn open_draft(&self, path_or_name: &str) -> Result<ModelFiles> {
        let draft = ModelFiles::open(path_or_name)?;
        // Tokens beyond the embedding table cannot be sampled.
        let sampled = self.config().vocab.min(draft.config().vocab);
        let (target_tokenizer, draft_tokenizer) = (self.language()?.tokenizer, draft.language()?.tokenizer);
        match vocabulary_difference(&target_tokenizer, &draft_tokenizer, sampled) {
            None => Ok(draft),
            Some(reason) => Err(Error::DraftModelUnusable { path: draft.path().to_owned(), reason }),
        }
    }
}

/// How the vocabularies differ, as a clause, if they do so among the first `sampled` tokens or by many after them.
fn vocabulary_difference(target: &Tokenizer, draft: &Tokenizer, sampled: u32) -> Option<String> {
    let shared = (target.vocab_size().min(draft.vocab_size()) as u32).min(sampled);
    let first = (0..shared).find(|id| target.token_bytes(*id) != draft.token_bytes(*id));
    if let Some(id) = first {
        let name = |tokenizer: &Tokenizer| {
            tokenizer.token_name(id).map_or_else(|| "missing".into(), |name| format!("{name:?}"))
        };
        let (target_name, draft_name) = (name(target), name(draft));
        return Some(format!(
            "its vocabulary differs from the target model's: token {id} is {draft_name} instead of {target_name}; use a \
             smaller model of the same family"
        ));
    }
    let used = |tokenizer: &Tokenizer| {
        let mut unshared = (shared..tokenizer.vocab_size() as u32).rev();
        unshared.find(|id| tokenizer.token_bytes(*id).is_some()).map_or(shared, |id| id + 1)
    };
    let (target_used, draft_used) = (used(target), used(draft));
    let differs = f64::from(target_used.abs_diff(draft_used)) > MAX_UNSHARED_SHARE * f64::from(shared);
    differs.then(|| {
        format!(
            "its vocabulary has {draft_used} tokens, the target model's {target_used}; use a smaller model of the same family"
        )
    })
}

/// What a draft model needs.
pub(crate) struct DraftDemand<'a> {
    files: &'a ModelFiles,
    limits: Limits,
    demand: Demand,
}

impl<'a> DraftDemand<'a> {
    /// With the limits of its target.
    pub fn new(
        files: &'a ModelFiles,
        options: &Options,
        target: &Limits,
        device: &AdapterInfo,
    ) -> Result<DraftDemand<'a>> {
        let config = files.config();
        // Beyond its own context it drafts nothing.
        let context_length = target.context_length.min(config.max_positions);
        let mut limits = Limits::new(device, config, target.max_sequences, context_length);
        limits.max_pages = target.max_pages.map(|pages| pages.max(context_length.div_ceil(limits.page_size)));
        limits.prefix_cache = target.prefix_cache;
        let mut attentions = config.attentions();
        if attentions.all(|attention| target.kv_scheme.check(attention.head_dim, limits.page_size).is_ok()) {
            limits.kv_scheme = target.kv_scheme;
        }
        limits.prefill_chunk = limits.prefill_chunk.min(options.prefill_chunk.unwrap_or(u32::MAX));
        let blueprint = Blueprint::new(files.checkpoint())?;
        let demand = blueprint.demand(config, &limits.reservation(config, options.max_sequences));
        Ok(DraftDemand { files, limits, demand })
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> u64 {
        self.demand.total_bytes()
    }

    /// Bytes to reserve in the target's plan: on a device with memory of its own, without tables that stay in the host's.
    pub fn reserved_bytes(&self, memory: &Memory) -> u64 {
        let host_tables =
            self.demand.weights.iter().filter(|weight| weight.in_host_memory && !memory.unified);
        self.bytes() - host_tables.map(|weight| weight.bytes).sum::<u64>()
    }

    /// Checks that the target does not lose its place to the draft model: whole, in the same memory, with its image encoder.
    /// `without` and `with` are its demand without and with [`DraftDemand::reserved_bytes`].
    pub fn check_fits(&self, memory: &Memory, without: &Demand, with: &Demand) -> Result<()> {
        // A target that does not fit alone has an error of its own.
        let Ok(alone) = plan::plan(memory, without) else { return Ok(()) };
        let beside = plan::plan(memory, with).map_err(|error| self.does_not_fit(&error))?;
        if beside.spill.is_some() && alone.spill.is_none() {
            let reason = "it leaves too little of the GPU's memory to the target model, whose weights would be read from the \
                          host; use a smaller draft model or a shorter context"
                .to_owned();
            return Err(Error::DraftModelUnusable { path: self.files.path().to_owned(), reason });
        }
        Ok(())
    }

    fn does_not_fit(&self, error: &plan::PlanError) -> Error {
        let reason = format!("it does not fit into memory beside the target model: {error}");
        Error::DraftModelUnusable { path: self.files.path().to_owned(), reason }
    }

    /// Loads it on the target's device. `memory` is that before the target was loaded, `heaps` the target's plan, whose scratch
    /// memory includes [`DraftDemand::reserved_bytes`].
    pub fn load(
        &self,
        device: &Device,
        memory: &Memory,
        heaps: &[HeapUsage],
        options: &Options,
        control: &Control,
    ) -> Result<DraftRunner> {
        let memory = remaining(memory.clone(), heaps, self.reserved_bytes(memory));
        let placement = plan::plan(&memory, &self.demand).map_err(|error| self.does_not_fit(&error))?;
        let load_options = LoadOptions {
            placement: &placement,
            limits: self.limits,
            reproducible: false,
            row_invariant: false,
            verify: VerifySteps::None,
            samplings: &[],
            stream: stream::Options::default(),
            encoder: None,
        };
        let (runner, _) = Runner::load(device, self.files.checkpoint(), &load_options, control)?;
        Ok(DraftRunner::new(runner.with_step_timeout(options.step_timeout)))
    }
}

/// Memory left by a plan, with `reserved` bytes of its scratch memory given back.
fn remaining(mut memory: Memory, heaps: &[HeapUsage], mut reserved: u64) -> Memory {
    let mut planned = 0;
    for (heap, usage) in memory.heaps.iter_mut().zip(heaps) {
        let returned = usage.scratch.min(reserved);
        reserved -= returned;
        heap.used += usage.planned() - returned;
        // The available system memory bounds host memory only, where the device has its own.
        if memory.unified || !heap.device_local {
            planned += usage.planned() - returned;
        }
    }
    memory.available = memory.available.map(|available| available.saturating_sub(planned));
    memory
}
