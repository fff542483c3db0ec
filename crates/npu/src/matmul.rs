//! Matrix products for an engine: on the NPU where that is right and faster, otherwise where the engine computes.
//!
//! [`Matmul::start`] decides once: it compares exact products with the CPU, then asks how long the backend and the
//! engine take for one. From then on [`Matmul::multiply`] uses the NPU, or says that the engine has to compute. After
//! any error the NPU is given up for good. Sums of int8 are exact in both places, so the result does not depend on
//! where it is computed; sums of int16 are, where none leaves 32 bits. Every decision has a reason, for the log and
//! for reports of health.
//!
//! No model uses it yet.
//!
//! ```
//! use npu::gemm::Int8;
//! use npu::matmul::{Matmul, Mode, OnModel};
//!
//! let size = Int8::new(1, 1).expect("one core");
//! let backend = OnModel::new(&size.overlay()?, &size.pdi()?)?;
//! let mut matmul = Matmul::start(Mode::Force, size.overlay()?, Ok(Box::new(backend)), &mut |_| None);
//! assert!(matmul.decision().uses_npu);
//! assert_eq!(matmul.multiply((1, 2, 1), &[3i8, 4], &[5, -6]), Some(vec![3 * 5 - 4 * 6]));
//! # Ok::<(), npu::Error>(())
//! ```

use std::time::{Duration, Instant};

use crate::array::{Array, HostMemory};
use crate::error::Result;
use crate::gemm::{Factor, GemmPlan, Overlay};
use crate::runtime::{AccelIo, Context, Device};
use crate::selftest::{self, Problem, Shape};
use crate::xclbin::Pdi;

/// Runs of the benchmark, of which the shortest counts.
const REPETITIONS: usize = 5;
/// The longest K whose sums of int8 fit into 32 bits, whatever the elements: 2^14 × (2^17 − 1) is below 2^31.
const MAX_K: usize = (1 << 17) - 1;

/// Whether to use the NPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Never.
    Off,
    /// If its products are right, and faster than the engine's.
    Auto,
    /// If its products are right.
    Force,
}

/// Where products are computed, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether the NPU computes them.
    pub uses_npu: bool,
    /// Why.
    pub reason: String,
}

impl Decision {
    fn no(reason: impl Into<String>) -> Self {
        Self { uses_npu: false, reason: reason.into() }
    }
}

/// What computes a planned product.
pub trait Backend {
    /// Computes argument 2 of the plan's stream from arguments 0 and 1. The time that it took; `None` if that says
    /// nothing about the NPU.
    fn run(&mut self, plan: &GemmPlan, a: &[u8], b: &[u8], c: &mut [u8]) -> Result<Option<Duration>>;
}

/// The NPU through its driver, or a fake driver.
pub struct OnDevice<I: AccelIo> {
    // Released in this order: the context first, whose DMA uses the rest.
    context: Context<I>,
    device: Device<I>,
    timeout: Duration,
}

impl<I: AccelIo> OnDevice<I> {
    /// Loads an overlay's image into a context of the device.
    pub fn new(device: Device<I>, overlay: &Overlay, image: &[u8], timeout: Duration) -> Result<Self> {
        Ok(Self { context: device.context(u16::from(overlay.columns), image)?, device, timeout })
    }
}

impl<I: AccelIo> Backend for OnDevice<I> {
    fn run(&mut self, plan: &GemmPlan, a: &[u8], b: &[u8], c: &mut [u8]) -> Result<Option<Duration>> {
        // What the engine waits for includes copies and the stream, not only the command.
        let start = Instant::now();
        let instructions = self.device.instructions(&plan.stream()?)?;
        let buffers = [a.len(), b.len(), c.len()].map(|bytes| self.device.buffer(bytes));
        let [buffer_a, buffer_b, buffer_c] = buffers;
        let (buffer_a, buffer_b, buffer_c) = (buffer_a?, buffer_b?, buffer_c?);
        buffer_a.write(a)?;
        buffer_b.write(b)?;
        self.context.run(&instructions, &[&buffer_a, &buffer_b, &buffer_c], self.timeout)?;
        buffer_c.read(c)?;
        Ok(Some(start.elapsed()))
    }
}

/// The array model: exact, without a speed.
#[derive(Debug)]
pub struct OnModel {
    array: Array,
}

impl OnModel {
    /// Configures the model with an overlay's image.
    pub fn new(overlay: &Overlay, image: &[u8]) -> Result<Self> {
        let pdi = Pdi::decode(image)?;
        Ok(Self { array: Array::load(overlay.columns, &pdi.cdo, overlay.library())? })
    }
}

impl Backend for OnModel {
    fn run(&mut self, plan: &GemmPlan, a: &[u8], b: &[u8], c: &mut [u8]) -> Result<Option<Duration>> {
        let mut host = HostMemory::from_arguments(vec![a.to_vec(), b.to_vec(), c.to_vec()]);
        self.array.run(&plan.stream()?, &mut host)?;
        c.copy_from_slice(host.argument(2).unwrap_or_default());
        Ok(None)
    }
}

/// Products on the NPU, or not.
pub struct Matmul {
    overlay: Overlay,
    /// `None` once the NPU has been given up.
    backend: Option<Box<dyn Backend>>,
    decision: Decision,
}

impl Matmul {
    /// Decides whether to use the NPU. `backend` is what could be opened, or why not; `engine` is how long the engine
    /// takes for a product of this shape, if it knows.
    pub fn start(
        mode: Mode,
        overlay: Overlay,
        backend: Result<Box<dyn Backend>>,
        engine: &mut dyn FnMut(Shape) -> Option<Duration>,
    ) -> Self {
        let mut backend = match (mode, backend) {
            (Mode::Off, _) => return Self::without(overlay, "the NPU is off"),
            (_, Err(error)) => return Self::without(overlay, error.to_string()),
            (_, Ok(backend)) => backend,
        };
        let decision = decide(mode, &overlay, backend.as_mut(), engine);
        Self { overlay, backend: Some(backend).filter(|_| decision.uses_npu), decision }
    }

    fn without(overlay: Overlay, reason: impl Into<String>) -> Self {
        Self { overlay, backend: None, decision: Decision::no(reason) }
    }

    /// Where products are computed now, and why.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// C = A × B with exact sums: A has `m` rows of `k` elements, B `k` rows of `n`. `None` if the engine has to
    /// compute it: because the NPU is not used, from this call on after an error, or, without giving the NPU up, for
    /// shapes that the overlay does not take.
    pub fn multiply<T: Factor>(&mut self, (m, k, n): Shape, a: &[T], b: &[T]) -> Option<Vec<i32>> {
        let backend = self.backend.as_mut()?;
        if k > MAX_K || T::FACTORS != self.overlay.factors {
            return None;
        }
        let plan = GemmPlan::new(&self.overlay, m, k, n).ok()?;
        let (a, b) = (plan.pack_a(a).ok()?, plan.pack_b(b).ok()?);
        let mut c = vec![0; plan.c_bytes()];
        match backend.run(&plan, &a, &b, &mut c).and_then(|_| plan.unpack_c(&c)) {
            Ok(c) => Some(c),
            Err(error) => {
                self.decision = Decision::no(format!("given up after an error: {error}"));
                self.backend = None;
                None
            }
        }
    }
}

fn decide(
    mode: Mode,
    overlay: &Overlay,
    backend: &mut dyn Backend,
    engine: &mut dyn FnMut(Shape) -> Option<Duration>,
) -> Decision {
    let [small, padded, large] = selftest::shapes(overlay);
    for shape in [small, padded] {
        if let Err(reason) = test(overlay, backend, shape) {
            return Decision::no(format!("the self-test failed: {reason}"));
        }
    }
    if mode == Mode::Force {
        return Decision { uses_npu: true, reason: "forced; the self-test passed".to_owned() };
    }
    let mut shortest: Option<Duration> = None;
    for _ in 0..REPETITIONS {
        match test(overlay, backend, large) {
            Ok(None) => return Decision::no("the backend reports no time for its products"),
            Ok(Some(time)) => shortest = Some(shortest.map_or(time, |shortest| shortest.min(time))),
            Err(reason) => return Decision::no(format!("the benchmark failed: {reason}")),
        }
    }
    let (m, k, n) = large;
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    match (shortest, engine(large)) {
        (Some(npu), Some(engine)) => {
            let (uses_npu, word) = if npu < engine { (true, "faster") } else { (false, "not faster") };
            let (npu, engine) = (milliseconds(npu), milliseconds(engine));
            let reason = format!(
                "{word}: {m} × {k} × {n} takes {npu:.3} ms on the NPU and {engine:.3} ms in the engine"
            );
            Decision { uses_npu, reason }
        }
        _ => Decision::no("the engine has no time to compare with"),
    }
}

/// Runs a product with a known result, and compares every element.
fn test(
    overlay: &Overlay,
    backend: &mut dyn Backend,
    shape: Shape,
) -> std::result::Result<Option<Duration>, String> {
    let text = |error: crate::Error| error.to_string();
    let problem = Problem::new(overlay, shape).map_err(text)?;
    let mut c = problem.poisoned();
    let time = backend.run(&problem.plan, &problem.a, &problem.b, &mut c).map_err(text)?;
    let mut product = problem.product();
    problem.compare(&c, &mut product).map_err(text)?;
    match product.first_wrong {
        None => Ok(time),
        Some((row, column, found, right)) => {
            let (m, k, n) = shape;
            let wrong = product.wrong;
            Err(format!(
                "{wrong} elements of {m} × {k} × {n} are wrong, C[{row}][{column}] = {found}, not {right}"
            ))
        }
    }
}
