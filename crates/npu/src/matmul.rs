//! Exact matrix products for an engine: on the NPU where that is right and faster, otherwise where the engine computes.
//!
//! [`Matmul::start`] compares exact products with the CPU. The engine then runs one of its operations both ways, and
//! [`Matmul::compare`] decides by the times. From then on [`Matmul::multiply`] uses the NPU, or says why the engine has
//! to compute ([`Declined`]). After an error of the driver or of the hardware the NPU is given up for good; a shape that
//! the overlay does not take changes nothing. Every decision has a reason, for the log and for `/health`.
//! [`crate::linear`] multiplies floats by these products.
//!
//! ```
//! use npu::gemm::Int8;
//! use npu::matmul::{Matmul, Mode, OnModel, Operand};
//!
//! let size = Int8::new(1, 1).expect("one core");
//! let backend = OnModel::new(&size.overlay()?, &size.pdi()?)?;
//! let mut matmul = Matmul::start(Mode::Force, size.overlay()?, Ok(Box::new(backend)));
//! assert!(matmul.decision().uses_npu);
//! assert_eq!(matmul.multiply((1, 2, 1), &[3i8, 4], Operand::Values(&[5, -6])), Ok(vec![3 * 5 - 4 * 6]));
//! # Ok::<(), npu::Error>(())
//! ```

use std::collections::HashMap;
use std::time::Duration;

use crate::array::{Array, HostMemory};
use crate::error::{Error, Result};
use crate::gemm::{Element, GemmPlan, Overlay};
use crate::runtime::{AccelIo, Buffer, Context, Device, UploadedStream};
use crate::selftest::{self, Planned, Problem, Shape};
use crate::xclbin::Pdi;

/// The longest K whose sums of int8 fit into 32 bits, whatever the elements: 2^14 × (2^17 − 1) is below 2^31.
const MAX_K: usize = (1 << 17) - 1;
/// Maximum streams in the device heap, one per shape in whole blocks; when it is reached, all are dropped.
const MAX_STREAMS: usize = 256;

/// Whether to use the NPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Never.
    Off,
    /// If its products are right, and the operation is faster with them.
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

/// Why the engine has to compute a product.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    /// The NPU is not used, or was given up with this product; [`Matmul::decision`] says why.
    #[error("the NPU is not used")]
    NotUsed,
    /// The overlay does not take this product, or the device has no memory for it. The NPU computes others.
    #[error("{0}")]
    Refused(String),
}

impl From<Error> for Declined {
    fn from(error: Error) -> Self {
        Self::Refused(error.to_string())
    }
}

/// What the NPU computed or stored.
pub type Computed<T> = std::result::Result<T, Declined>;

/// Argument 1 of a stream.
#[derive(Debug, Clone, Copy)]
pub enum Packed<'a> {
    /// For one product.
    Bytes(&'a [u8]),
    /// What [`Backend::store`] keeps.
    Stored(Stored),
}

/// A matrix that a backend keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Its number in the backend.
    pub number: usize,
    /// Its size in the overlay's layout.
    pub bytes: usize,
}

/// The right factor of a product.
#[derive(Debug, Clone, Copy)]
pub enum Operand<'a, T> {
    /// `k` rows of `n` elements.
    Values(&'a [T]),
    /// What [`Matmul::store`] keeps; its type is the overlay's.
    Stored(Stored),
}

/// What computes a planned product.
pub trait Backend: Send {
    /// Keeps an argument 1 for any number of products.
    fn store(&mut self, b: &[u8]) -> Result<Stored>;

    /// Computes argument 2 of the plan's stream from arguments 0 and 1.
    fn run(&mut self, plan: &GemmPlan, a: &[u8], b: Packed, c: &mut [u8]) -> Result<()>;
}

/// The NPU through its driver, or a fake driver.
pub struct OnDevice<I: AccelIo> {
    // Released in this order: the context first, whose DMA uses the rest.
    context: Context<I>,
    /// By shape in whole blocks.
    streams: HashMap<Shape, UploadedStream<I>>,
    stored: Vec<Buffer<I>>,
    /// A, B and C of the last product, for the next that fits.
    buffers: [Option<Buffer<I>>; 3],
    device: Device<I>,
    timeout: Duration,
}

impl<I: AccelIo> OnDevice<I> {
    /// Loads an overlay's image into a context of the device. Commands that take longer than `timeout` are failures.
    pub fn new(device: Device<I>, overlay: &Overlay, image: &[u8], timeout: Duration) -> Result<Self> {
        Ok(Self {
            context: device.context(u16::from(overlay.columns), image)?,
            streams: HashMap::new(),
            stored: Vec::new(),
            buffers: [None, None, None],
            device,
            timeout,
        })
    }

    /// Makes the buffer of an argument large enough.
    fn reserve(&mut self, argument: usize, bytes: usize) -> Result<()> {
        let buffer = &mut self.buffers[argument];
        if buffer.as_ref().is_none_or(|buffer| buffer.size() < bytes as u64) {
            // The smaller one is closed first.
            *buffer = None;
            *buffer = Some(self.device.buffer(bytes)?);
        }
        Ok(())
    }
}

impl<I: AccelIo> Backend for OnDevice<I>
where
    Self: Send,
{
    fn store(&mut self, b: &[u8]) -> Result<Stored> {
        let buffer = self.device.buffer(b.len())?;
        buffer.write(b)?;
        self.stored.push(buffer);
        Ok(Stored { number: self.stored.len() - 1, bytes: b.len() })
    }

    fn run(&mut self, plan: &GemmPlan, a: &[u8], b: Packed, c: &mut [u8]) -> Result<()> {
        if !self.streams.contains_key(&plan.padded()) {
            if self.streams.len() == MAX_STREAMS {
                self.streams.clear();
            }
            self.streams.insert(plan.padded(), self.device.instructions(&plan.stream()?)?);
        }
        self.reserve(0, a.len())?;
        self.reserve(2, c.len())?;
        if let Packed::Bytes(bytes) = b {
            self.reserve(1, bytes.len())?;
        }
        let Self { context, streams, stored, buffers: [buffer_a, buffer_b, buffer_c], timeout, .. } = self;
        let buffer_b = match b {
            Packed::Bytes(_) => buffer_b.as_ref(),
            Packed::Stored(b) => stored.get(b.number),
        };
        let (Some(instructions), Some(buffer_a), Some(buffer_b), Some(buffer_c)) =
            (streams.get(&plan.padded()), buffer_a.as_ref(), buffer_b, buffer_c.as_ref())
        else {
            return Err(Error::NotStored);
        };
        buffer_a.write(a)?;
        if let Packed::Bytes(bytes) = b {
            buffer_b.write(bytes)?;
        }
        context.run(instructions, &[buffer_a, buffer_b, buffer_c], *timeout)?;
        buffer_c.read(c)
    }
}

/// The array model: exact, without a speed.
#[derive(Debug)]
pub struct OnModel {
    array: Array,
    stored: Vec<Vec<u8>>,
}

impl OnModel {
    /// Configures the model with an overlay's image.
    pub fn new(overlay: &Overlay, image: &[u8]) -> Result<Self> {
        let pdi = Pdi::decode(image)?;
        let array = Array::load(overlay.columns, &pdi.cdo, overlay.library())?;
        Ok(Self { array, stored: Vec::new() })
    }
}

impl Backend for OnModel {
    fn store(&mut self, b: &[u8]) -> Result<Stored> {
        self.stored.push(b.to_vec());
        Ok(Stored { number: self.stored.len() - 1, bytes: b.len() })
    }

    fn run(&mut self, plan: &GemmPlan, a: &[u8], b: Packed, c: &mut [u8]) -> Result<()> {
        let b = match b {
            Packed::Bytes(bytes) => bytes,
            Packed::Stored(b) => self.stored.get(b.number).ok_or(Error::NotStored)?,
        };
        let mut host = HostMemory::from_arguments(vec![a.to_vec(), b.to_vec(), c.to_vec()]);
        self.array.run(&plan.stream()?, &mut host)?;
        c.copy_from_slice(host.argument(2).unwrap_or_default());
        Ok(())
    }
}

/// Exact products on the NPU, until it is given up.
pub struct Matmul {
    overlay: Overlay,
    mode: Mode,
    /// `None` once the NPU has been given up.
    backend: Option<Box<dyn Backend>>,
    decision: Decision,
    device_failed: bool,
}

impl Matmul {
    /// Tests the products of `backend`: what could be opened, or why not. With [`Mode::Auto`], [`Self::compare`] has to
    /// follow.
    pub fn start(mode: Mode, overlay: Overlay, backend: Result<Box<dyn Backend>>) -> Self {
        let mut backend = match (mode, backend) {
            (Mode::Off, _) => return Self::without(overlay, "the NPU is off"),
            (_, Err(error)) => {
                let device_failed = error.is_of_device();
                return Self { device_failed, ..Self::without(overlay, error.to_string()) };
            }
            (_, Ok(backend)) => backend,
        };
        let [small, padded, _] = selftest::shapes(&overlay);
        for shape in [small, padded] {
            let (reason, device_failed) = match test(&overlay, backend.as_mut(), shape) {
                Ok(None) => continue,
                // Whatever runs there next would be as wrong.
                Ok(Some(wrong)) => (wrong, true),
                Err(error) => (error.to_string(), error.is_of_device()),
            };
            let reason = format!("the self-test failed: {reason}");
            return Self { device_failed, ..Self::without(overlay, reason) };
        }
        let reason = match mode {
            Mode::Force => "forced; the self-test passed",
            _ => "the self-test passed; the speed was not compared yet",
        };
        let decision = Decision { uses_npu: true, reason: reason.to_owned() };
        Self { overlay, mode, backend: Some(backend), decision, device_failed: false }
    }

    fn without(overlay: Overlay, reason: impl Into<String>) -> Self {
        Self { overlay, mode: Mode::Off, backend: None, decision: Decision::no(reason), device_failed: false }
    }

    /// Where products are computed now, and why.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Whether to use the NPU, as asked for; [`Mode::Off`] if the start failed.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Decides by the times of `operation` with and without the NPU, unless it is forced.
    pub fn compare(&mut self, operation: &str, npu: Duration, engine: Duration) {
        if self.backend.is_none() || self.mode != Mode::Auto {
            return;
        }
        let uses_npu = npu < engine;
        let word = if uses_npu { "faster" } else { "not faster" };
        let [npu, engine] = [npu, engine].map(|time| time.as_secs_f64() * 1e3);
        let reason = format!("{word}: {operation} takes {npu:.3} ms with the NPU and {engine:.3} ms without");
        self.decision = Decision { uses_npu, reason };
        if !uses_npu {
            self.backend = None;
        }
    }

    /// Gives the NPU up for good.
    pub fn give_up(&mut self, reason: impl Into<String>) {
        self.decision = Decision::no(reason);
        self.backend = None;
    }

    /// Whether the NPU is not used because its driver or its hardware failed, at the start or later: other operations
    /// would fail too.
    pub fn device_failed(&self) -> bool {
        self.device_failed
    }

    /// Bytes that [`Self::store`] takes for a matrix of `k` rows of `n` elements.
    pub fn stored_bytes(&self, k: usize, n: usize) -> Result<usize> {
        Ok(GemmPlan::new(&self.overlay, 1, k, n)?.b_bytes())
    }

    /// Keeps a matrix of `k` rows of `n` elements, for any number of products.
    pub fn store<T: Element>(&mut self, k: usize, n: usize, b: &[T]) -> Computed<Stored> {
        self.check(k)?;
        let packed = GemmPlan::new(&self.overlay, 1, k, n)?.pack_b(b)?;
        let backend = self.backend.as_mut().ok_or(Declined::NotUsed)?;
        let stored = backend.store(&packed);
        stored.map_err(|error| self.decline(error))
    }

    /// C = A × B with exact sums: A has `m` rows of `k` elements, B `k` rows of `n`.
    pub fn multiply<T: Element>(
        &mut self,
        (m, k, n): Shape,
        a: &[T],
        b: Operand<'_, T>,
    ) -> Computed<Vec<i32>> {
        self.check(k)?;
        let plan = GemmPlan::new(&self.overlay, m, k, n)?;
        let a = plan.pack_a(a)?;
        let packed;
        let b = match b {
            Operand::Values(values) => {
                packed = plan.pack_b(values)?;
                Packed::Bytes(&packed)
            }
            // Another shape's: the NPU would read past its end.
            Operand::Stored(stored) if stored.bytes != plan.b_bytes() => return Err(Error::NotStored.into()),
            Operand::Stored(stored) => Packed::Stored(stored),
        };
        let mut c = vec![0; plan.c_bytes()];
        let backend = self.backend.as_mut().ok_or(Declined::NotUsed)?;
        let product = backend.run(&plan, &a, b, &mut c).and_then(|()| plan.unpack_c(&c));
        product.map_err(|error| self.decline(error))
    }

    /// Checks what no plan does.
    fn check(&self, k: usize) -> Computed<()> {
        if self.backend.is_none() {
            return Err(Declined::NotUsed);
        }
        if k > MAX_K {
            let reason =
                format!("sums of {k} products may exceed 32 bits, which hold {MAX_K}; split the product");
            return Err(Declined::Refused(reason));
        }
        Ok(())
    }

    /// Gives the NPU up after an error of the device; any other concerns the product alone.
    fn decline(&mut self, error: Error) -> Declined {
        if !error.is_of_device() {
            return error.into();
        }
        self.device_failed = true;
        self.give_up(format!("given up after an error: {error}"));
        Declined::NotUsed
    }
}

/// Runs a product with a known result, and compares every element: what is wrong, if anything is.
fn test(overlay: &Overlay, backend: &mut dyn Backend, shape: Shape) -> Result<Option<String>> {
    let (m, k, n) = shape;
    let plan = GemmPlan::new(overlay, m, k, n)?;
    let problem = Problem::new(Planned::Generated(plan.clone()))?;
    let mut c = problem.poisoned();
    backend.run(&plan, &problem.a, Packed::Bytes(&problem.b), &mut c)?;
    let mut product = problem.product();
    problem.compare(&c, &mut product)?;
    let wrong = product.wrong;
    Ok(product.first_wrong.map(|(row, column, found, right)| {
        format!("{wrong} elements of {m} × {k} × {n} are wrong, C[{row}][{column}] = {found}, not {right}")
    }))
}
