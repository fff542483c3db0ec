//! How the models of a process use the NPU: when, for what, and how it is opened.
//!
//! ```
//! use npu::gemm::Int8;
//! use npu::matmul::{Mode, OnModel};
//! use npu::settings::Settings;
//!
//! let one_core = Int8::new(1, 1).expect("a size");
//! let settings = Settings::new(Mode::Force, one_core, |overlay, image| Ok(Box::new(OnModel::new(overlay, image)?)));
//! let (mut linear, operation) = settings.start("an example");
//! assert_eq!(linear.multiply_once(2, &[1.0, 0.0], &[0.5, 0.25]).map(|y| y.len()), Ok(1));
//! assert!(operation.state().is_some_and(|state| state.decision.uses_npu));
//! ```

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::gemm::{Int8, Overlay};
use crate::linear::Linear;
use crate::matmul::{Backend, Matmul, Mode, OnDevice};
use crate::report::{Operation, Report};
use crate::runtime::{Device, LinuxIo};

/// Maximum time of a command; one that takes longer is considered hung.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Opens the NPU with an overlay and its image.
type Open = dyn Fn(&Overlay, &[u8]) -> Result<Box<dyn Backend>> + Send + Sync;

/// Bytes of system memory that are available now; `None` if that is unknown.
type AvailableMemory = dyn Fn() -> Option<u64> + Send + Sync;

/// How models use the NPU. Clones share the report and whether the NPU was given up.
#[derive(Clone)]
pub struct Settings {
    mode: Mode,
    attention: bool,
    size: Int8,
    open: Arc<Open>,
    available_memory: Arc<AvailableMemory>,
    report: Report,
    /// Why no operation may use the NPU any more.
    given_up: Arc<Mutex<Option<String>>>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { mode, attention, size, .. } = self;
        f.debug_struct("Settings")
            .field("mode", mode)
            .field("attention", attention)
            .field("size", size)
            .finish()
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::off()
    }
}

impl Settings {
    /// Products on an overlay of this size, on the backend that `open` opens.
    pub fn new(
        mode: Mode,
        size: Int8,
        open: impl Fn(&Overlay, &[u8]) -> Result<Box<dyn Backend>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            mode,
            attention: false,
            size,
            open: Arc::new(open),
            available_memory: Arc::new(|| None),
            report: Report::default(),
            given_up: Arc::default(),
        }
    }

    /// The NPU is not used.
    pub fn off() -> Self {
        Self::new(Mode::Off, Int8::WHOLE, |_, _| Err(Error::WrongDevice("the NPU is off".to_owned())))
    }

    /// All cores of the NPU behind the device node that `find` finds, or why there is none.
    pub fn on_node(
        mode: Mode,
        find: impl Fn() -> std::result::Result<PathBuf, String> + Send + Sync + 'static,
    ) -> Self {
        Self::new(mode, Int8::WHOLE, move |overlay, image| {
            let device = Device::open(LinuxIo::open(&find().map_err(Error::WrongDevice)?)?)?;
            Ok(Box::new(OnDevice::new(device, overlay, image, TIMEOUT)?))
        })
    }

    /// Also for the attention of language models, if the mode is [`Mode::Force`]: its speed is not compared.
    #[must_use]
    pub fn with_attention(mut self) -> Self {
        self.attention = true;
        self
    }

    /// The same with a limit on the copies of weights for the NPU: the system memory that is available when a model is
    /// loaded.
    #[must_use]
    pub fn with_available_memory(
        mut self,
        available: impl Fn() -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        self.available_memory = Arc::new(available);
        self
    }

    /// Bytes of system memory that a copy of weights may take; `None` if that is unknown.
    pub fn available_memory(&self) -> Option<u64> {
        (self.available_memory)()
    }

    /// Whether to use the NPU.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether the attention of language models uses it.
    pub fn attention(&self) -> bool {
        self.attention
    }

    /// The operations that may use it, with their decisions.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// From now on, no operation starts on the NPU: its driver or its hardware failed.
    pub fn give_up(&self, reason: &str) {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| reason.to_owned());
    }

    /// Opens and tests the NPU for an operation of a model, and enters it in the report. If its driver or its hardware
    /// fails, it is given up for the process.
    pub fn start(&self, operation: &str) -> (Linear, Operation) {
        self.register(operation, |overlay| match self.mode {
            Mode::Off => Err(Error::WrongDevice("the NPU is off".to_owned())),
            _ => self.open(overlay),
        })
    }

    /// Enters an operation that does not use the NPU, for a reason of its own.
    pub fn start_disabled(&self, operation: &str, reason: &str) -> (Linear, Operation) {
        self.register(operation, |_| Err(Error::WrongDevice(reason.to_owned())))
    }

    fn register(
        &self,
        operation: &str,
        open: impl FnOnce(&Overlay) -> Result<Box<dyn Backend>>,
    ) -> (Linear, Operation) {
        let matmul = match self.size.overlay() {
            Ok(overlay) => {
                let backend = open(&overlay);
                Matmul::start(self.mode, overlay, backend)
            }
            // Does not happen: this crate generates the overlay, and tests it.
            Err(error) => Matmul::start(self.mode, Overlay::GEMM_256_1COL, Err(error)),
        };
        if matmul.device_failed() {
            self.give_up(&matmul.decision().reason);
        }
        let operation = self.report.register(operation, matmul.decision());
        (Linear::new(matmul), operation)
    }

    fn open(&self, overlay: &Overlay) -> Result<Box<dyn Backend>> {
        let given_up = self.given_up.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match given_up {
            Some(reason) => {
                Err(Error::WrongDevice(format!("another operation of this process gave it up: {reason}")))
            }
            None => (self.open)(overlay, &self.size.pdi()?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_machines_without_a_usable_npu() {
        let reason = |settings: &Settings| {
            let (linear, operation) = settings.start("embeddings");
            let state = operation.state().expect("entered");
            assert_eq!(&state.decision, linear.matmul().decision());
            assert!(!state.decision.uses_npu);
            state.decision.reason
        };
        assert_eq!(reason(&Settings::off()), "the NPU is off");
        let none = Settings::on_node(Mode::Auto, || Err("no AMD NPU was found".to_owned()));
        assert_eq!(reason(&none), "no AMD NPU was found");
        let missing = Settings::on_node(Mode::Force, || Ok("/nonexistent/accel0".into()));
        assert!(reason(&missing).contains("cannot open /nonexistent/accel0"));
        missing.clone().give_up("it hung");
        assert_eq!(reason(&missing), "another operation of this process gave it up: it hung");
        let (linear, _operation) = none.start_disabled("attention", "the KV cache is int8");
        assert_eq!(linear.matmul().decision().reason, "the KV cache is int8");
        assert!(missing.report().operations().is_empty(), "all have left");
    }
}
