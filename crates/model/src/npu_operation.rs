//! AMD's NPU as one operation of a model uses it: its decision in the report, and what happens when a run cannot end there.

use npu::{
    linear::{Linear, Weights},
    matmul::{Computed, Declined, Mode},
    report::Operation,
    settings::Settings,
};

use crate::{Error, Result};

/// An operation that may use the NPU.
pub(crate) struct NpuOperation {
    linear: Linear,
    operation: Operation,
    settings: Settings,
}

/// Why a run on the NPU did not end there.
#[derive(Debug)]
pub(crate) enum Interruption {
    /// The NPU did not compute a product.
    Declined(Declined),
    /// The GPU's part of the run failed, or the caller cancelled it.
    Error(Error),
}

impl From<Declined> for Interruption {
    fn from(declined: Declined) -> Self {
        Self::Declined(declined)
    }
}

impl From<Error> for Interruption {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<gpu::Error> for Interruption {
    fn from(error: gpu::Error) -> Self {
        Self::Error(error.into())
    }
}

impl NpuOperation {
    /// Tests the NPU for an operation, such as `embeddings of all-minilm`.
    pub fn start(settings: &Settings, name: &str) -> Self {
        let (linear, operation) = settings.start(name);
        Self { linear, operation, settings: settings.clone() }
    }

    /// An operation that does not use the NPU, for a reason of the model or of its options.
    pub fn without(settings: &Settings, name: &str, reason: &str) -> Self {
        let (linear, operation) = settings.start_disabled(name, reason);
        Self { linear, operation, settings: settings.clone() }
    }

    /// Whether the NPU is used now.
    pub fn is_used(&self) -> bool {
        self.linear.matmul().decision().uses_npu
    }

    /// Whether its speed has to be compared.
    pub fn needs_comparison(&self) -> bool {
        self.is_used() && self.linear.matmul().mode() == Mode::Auto
    }

    /// Products on the NPU; none are counted.
    pub fn linear(&mut self) -> &mut Linear {
        &mut self.linear
    }

    /// y = x · Wᵀ for stored weights.
    pub fn multiply(&mut self, x: &[f32], weights: &Weights) -> Computed<Vec<f32>> {
        let y = self.linear.multiply(x, weights)?;
        self.operation.count();
        Ok(y)
    }

    /// The same for weights that are used once, rows of `k` values.
    pub fn multiply_once(&mut self, k: usize, x: &[f32], weights: &[f32]) -> Computed<Vec<f32>> {
        let y = self.linear.multiply_once(k, x, weights)?;
        self.operation.count();
        Ok(y)
    }

    /// Enters the size of the weights that the NPU keeps into the report.
    pub fn report_weights(&mut self, bytes: u64) {
        self.operation.set_weight_bytes(bytes);
    }

    /// Bytes of system memory that weights for the NPU may take; `None` if that is unknown.
    pub fn available_memory(&self) -> Option<u64> {
        self.settings.available_memory()
    }

    /// Does not use the NPU from now on. Other operations may.
    pub fn give_up(&mut self, reason: impl Into<String>) {
        self.linear.matmul_mut().give_up(reason);
        self.report_decision();
    }

    /// Enters the decision into the report. If the device failed, no other operation of the process starts on it.
    pub fn report_decision(&mut self) {
        let matmul = self.linear.matmul();
        self.operation.decide(matmul.decision());
        if matmul.device_failed() {
            self.settings.give_up(&matmul.decision().reason);
        }
    }

    /// Leaves the work to the GPU from now on, counted and logged, after a run did not end on the NPU. Errors that the
    /// GPU's own programs would have too are returned: a lost device, and cancellation.
    pub fn fall_back(&mut self, interruption: Interruption) -> Result<()> {
        match interruption {
            Interruption::Error(
                error @ (Error::Cancelled
                | Error::Gpu(gpu::Error::DeviceLost { .. } | gpu::Error::Timeout { .. })),
            ) => return Err(error),
            Interruption::Error(error) => {
                self.linear.matmul_mut().give_up(format!("given up after an error of the GPU: {error}"));
            }
            Interruption::Declined(Declined::Refused(reason)) => {
                self.linear
                    .matmul_mut()
                    .give_up(format!("given up, since it does not take a product: {reason}"));
            }
            // The decision has the reason.
            Interruption::Declined(Declined::NotUsed) => {}
        }
        self.report_decision();
        let decision = self.linear.matmul().decision();
        self.operation.fall_back(decision);
        tracing::warn!(
            operation = self.name(),
            reason = decision.reason,
            "falling back to the GPU for good, which computes this anew"
        );
        Ok(())
    }

    /// Logs whether the NPU is used, and why.
    pub fn log_decision(&self) {
        let decision = self.linear.matmul().decision();
        let (operation, reason) = (self.name(), &decision.reason);
        match (decision.uses_npu, self.settings.mode()) {
            (true, _) => {
                let weight_bytes = self.operation.state().map_or(0, |state| state.weight_bytes);
                tracing::info!(operation, reason, weight_bytes, "the NPU is used");
            }
            (false, Mode::Force) => tracing::warn!(operation, reason, "the NPU is not used"),
            (false, Mode::Auto) => tracing::info!(operation, reason, "the NPU is not used"),
            (false, Mode::Off) => tracing::debug!(operation, reason, "the NPU is not used"),
        }
    }

    fn name(&self) -> String {
        self.operation.state().map_or(String::new(), |state| state.name)
    }
}
