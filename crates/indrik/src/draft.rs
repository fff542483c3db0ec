//! The draft model of a loaded model: whether it fits the target, and its place in memory.

use checkpoint::config::Config;
use gpu::{AdapterInfo, Device};
use model::{DraftModel, Limits, LoadOptions, Runner};
use text::Tokenizer;
use weights::{
    blueprint::Blueprint,
    plan::{self, Demand, HeapUsage, Memory},
    stream::{self, Control},
};

use crate::{Error, ModelFiles, Options, Result, memory::device_memory};

/// Opens a draft model by path or by its name in the local store, and checks that it has the vocabulary of the target.
pub(crate) fn open(target: &ModelFiles, path_or_name: &str) -> Result<ModelFiles> {
    let draft = ModelFiles::open(path_or_name)?;
    let (ours, theirs) = (target.language()?.tokenizer, draft.language()?.tokenizer);
    match difference(&ours, &theirs, target.config(), draft.config()) {
        None => Ok(draft),
        Some(reason) => Err(Error::Draft { path: draft.path().to_owned(), reason }),
    }
}

/// How the vocabularies differ, if that matters. Models of one family may differ in unused entries at the end.
fn difference(target: &Tokenizer, draft: &Tokenizer, ours: &Config, theirs: &Config) -> Option<String> {
    let tokens =
        target.vocab_size().min(draft.vocab_size()).min(ours.vocab.min(theirs.vocab) as usize) as u32;
    let first = (0..tokens).find(|id| target.token_bytes(*id) != draft.token_bytes(*id));
    if let Some(id) = first {
        let name = |tokenizer: &Tokenizer| {
            tokenizer.token_name(id).map_or_else(|| "nothing".into(), |name| format!("{name:?}"))
        };
        let (target, draft) = (name(target), name(draft));
        return Some(format!(
            "it has another vocabulary than the model that it drafts for: token {id} is {draft} instead of {target}"
        ));
    }
    let used = |tokenizer: &Tokenizer| {
        let named =
            (tokens..tokenizer.vocab_size() as u32).rev().find(|id| tokenizer.token_bytes(*id).is_some());
        named.map_or(tokens, |id| id + 1)
    };
    // Multimodal variants add a few special tokens, which are rarely drafted; another vocabulary differs by thousands.
    let (target, draft) = (used(target), used(draft));
    (target.abs_diff(draft) > tokens / 64).then(|| {
        format!("it has a vocabulary of {draft} tokens, the model that it drafts for one of {target}")
    })
}

/// A draft model that is about to be loaded.
pub(crate) struct DraftPlan<'a> {
    files: &'a ModelFiles,
    limits: Limits,
    demand: Demand,
}

impl<'a> DraftPlan<'a> {
    /// With the limits of its target.
    pub fn new(
        files: &'a ModelFiles,
        options: &Options,
        target: &Limits,
        device: &AdapterInfo,
    ) -> Result<DraftPlan<'a>> {
        let config = files.config();
        // Beyond its own context it drafts nothing.
        let context_length = target.context_length.min(config.max_positions);
        let mut limits = Limits::new(device, config, target.max_sequences, context_length);
        limits.max_pages = target.max_pages.map(|pages| pages.max(context_length.div_ceil(limits.page_size)));
        limits.prefix_cache = target.prefix_cache;
        limits.prefill_chunk = limits.prefill_chunk.min(options.prefill_chunk.unwrap_or(u32::MAX));
        let blueprint = Blueprint::new(files.checkpoint())?;
        let demand = blueprint.demand(config, &limits.reservation(config, options.max_sequences));
        Ok(DraftPlan { files, limits, demand })
    }

    /// Bytes of device memory that it takes.
    pub fn bytes(&self) -> u64 {
        self.demand.total_bytes()
    }

    /// The error of a target that does not fit beside it.
    pub fn does_not_fit(&self, error: &plan::PlanError) -> Error {
        let reason = format!("it does not fit into memory beside the model that it drafts for: {error}");
        Error::Draft { path: self.files.path().to_owned(), reason }
    }

    /// Loads it beside its target, which uses `heaps`, with the memory of the draft model as a part of its scratch memory.
    pub fn load(
        &self,
        device: &Device,
        heaps: &[HeapUsage],
        options: &Options,
        control: &Control,
    ) -> Result<DraftModel> {
        let memory = remaining(device_memory(device.info()), heaps, self.bytes());
        let placement = plan::plan(&memory, &self.demand).map_err(|error| self.does_not_fit(&error))?;
        let load_options = LoadOptions {
            placement: &placement,
            limits: self.limits,
            reproducible: false,
            row_invariant: false,
            verifies: false,
            samplings: &[],
            stream: stream::Options::default(),
            encoder: None,
        };
        let (runner, _) = Runner::load(device, self.files.checkpoint(), &load_options, control)?;
        Ok(DraftModel::new(runner.with_step_timeout(options.step_timeout)))
    }
}

/// What a plan leaves of the memory, if `reserved` bytes of its scratch memory are not used by it.
fn remaining(mut memory: Memory, heaps: &[HeapUsage], mut reserved: u64) -> Memory {
    let mut planned = 0;
    for (heap, usage) in memory.heaps.iter_mut().zip(heaps) {
        let left = usage.scratch.min(reserved);
        reserved -= left;
        heap.used += usage.planned() - left;
        planned += usage.planned() - left;
    }
    memory.available = memory.available.map(|available| available.saturating_sub(planned));
    memory
}
