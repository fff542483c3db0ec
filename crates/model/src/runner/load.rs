//! Loading a runner: pipelines compile while the weights are read.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use checkpoint::Checkpoint;
use gpu::Device;
use weights::{
    load,
    plan::Placement,
    stream::{Control, Options, Stats},
};

use super::Runner;
use crate::{Limits, Model, Result, Sampling};

/// How a runner is loaded.
pub struct LoadOptions<'a> {
    /// The memory of each matrix.
    pub placement: &'a Placement,
    /// The limits of the runner: memory for all that they allow is allocated.
    pub limits: Limits,
    /// Whether logits are batch-invariant.
    pub reproducible: bool,
    /// If not empty, the pipelines of [`Runner::prepare_first_requests`] with these samplings are compiled while the
    /// weights are read.
    pub samplings: &'a [Sampling],
    /// How the weights are read.
    pub stream: Options,
}

impl Runner {
    /// Loads a checkpoint.
    pub fn load(
        device: &Device,
        checkpoint: &Checkpoint,
        options: &LoadOptions<'_>,
        control: &Control,
    ) -> Result<(Self, Stats)> {
        let LoadOptions { placement, limits, reproducible, samplings, stream } = options;
        let weights = load::allocate(device, checkpoint, placement, stream)?;
        let model = Model::from_weights(device, checkpoint.config.clone(), weights)?;
        let model = Arc::new(model.with_reproducible(*reproducible));
        let mut runner = Runner::new(model.clone(), *limits)?;
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
        let stats = filled?;
        compiled?;
        Ok((runner, stats))
    }
}
