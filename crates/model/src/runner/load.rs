//! Loading a runner: pipelines compile while the weights are read.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use checkpoint::{Checkpoint, Vision};
use gpu::{Device, Memory};
use weights::{
    load,
    plan::Placement,
    stream::{Control, Options, Stats},
    vision::VisionBlueprint,
};

use super::Runner;
use crate::{EncoderLimits, Error, ImageEncoder, Limits, Model, Result, Sampling};

/// How a runner is loaded.
pub struct LoadOptions<'a> {
    /// The memory of each matrix.
    pub placement: &'a Placement,
    /// The limits of the runner: memory for all that they allow is allocated.
    pub limits: Limits,
    /// Whether logits are batch-invariant.
    pub reproducible: bool,
    /// Whether logits of few rows are row-invariant: see [`Model::with_row_invariant`].
    pub row_invariant: bool,
    /// Whether and how drafts will be verified.
    pub verify: VerifySteps,
    /// If not empty, the pipelines of [`Runner::prepare_first_requests`] with these samplings are compiled while the
    /// weights are read.
    pub samplings: &'a [Sampling],
    /// How the weights are read.
    pub stream: Options,
    /// The image encoder, if it is to be loaded too.
    pub encoder: Option<EncoderLoadOptions<'a>>,
}

/// Whether drafts will be verified, so that the programs of verify steps are recorded ahead, and with which kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerifySteps {
    /// No drafts.
    #[default]
    None,
    /// The fastest kernels for each number of rows.
    Fastest,
    /// Exact verify steps ([`Runner::with_exact_verify`]); no drafts if unavailable.
    Exact,
    /// Exact verify steps; the fastest kernels if unavailable.
    ExactOrFastest,
}

/// How an image encoder is loaded.
pub struct EncoderLoadOptions<'a> {
    /// Its files.
    pub vision: &'a Vision,
    /// The sizes of its buffers.
    pub limits: EncoderLimits,
    /// The memory of its weights.
    pub memory: Memory,
}

impl Runner {
    /// Loads a checkpoint.
    pub fn load(
        device: &Device,
        checkpoint: &Checkpoint,
        options: &LoadOptions<'_>,
        control: &Control,
    ) -> Result<(Self, Stats)> {
        let LoadOptions {
            placement,
            limits,
            reproducible,
            row_invariant,
            verify,
            samplings,
            stream,
            encoder,
        } = options;
        let weights = load::allocate(device, checkpoint, placement, stream)?;
        let model = Model::from_weights(device, checkpoint.config.clone(), weights)?;
        let model = model.with_reproducible(*reproducible).with_row_invariant(*row_invariant);
        let model = Arc::new(model);
        let mut runner = Runner::new(model.clone(), *limits)?;
        if let VerifySteps::Exact | VerifySteps::ExactOrFastest = verify {
            runner = runner.with_exact_verify();
        }
        runner.verifies = match verify {
            VerifySteps::None => false,
            VerifySteps::Exact => runner.exact_verify,
            VerifySteps::Fastest | VerifySteps::ExactOrFastest => true,
        };
        if let (VerifySteps::Exact, Err(reason)) = (verify, model.check_exact_verify()) {
            tracing::info!(%reason, "speculative decoding is off: verify steps would round logits differently; `fastest` allows that");
        }
        let vision = encoder.as_ref().map(|options| VisionBlueprint::new(options.vision)).transpose()?;
        if let (Some(blueprint), Some(encoder)) = (&vision, encoder) {
            let soft_tokens = encoder.vision.config.max_soft_tokens();
            if limits.prefill_chunk < soft_tokens {
                return Err(Error::Limits(format!(
                    "prefill chunks of {} tokens: an image has {soft_tokens}, which are prefilled in one step",
                    limits.prefill_chunk
                )));
            }
            let weights = blueprint.allocate(device, encoder.memory, stream)?;
            let (config, units) = (encoder.vision.config.clone(), model.matrix_units());
            runner = runner.with_encoder(ImageEncoder::new(device, config, weights, units, encoder.limits)?);
        }
        if !samplings.is_empty() {
            runner.allocate_first_requests(samplings)?;
        }
        let failed = AtomicBool::new(false);
        let (filled, compiled) = std::thread::scope(|scope| {
            let compile = || match samplings {
                [] => Ok(()),
                samplings => runner.compile_first_requests(samplings, &failed),
            };
            let compiling = scope.spawn(compile);
            let filled = model.weights.fill(device, checkpoint, stream, control);
            failed.store(filled.is_err(), Ordering::Relaxed);
            let compiled = compiling.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (filled, compiled)
        });
        let mut stats = filled?;
        compiled?;
        if let (Some(blueprint), Some(encoder)) = (&vision, runner.encoder()) {
            let more = blueprint.fill(encoder.weights(), device, stream, control)?;
            stats = Stats { bytes: stats.bytes + more.bytes, seconds: stats.seconds + more.seconds };
        }
        Ok((runner, stats))
    }
}
