//! The self-test: exact products on an overlay, compared with the CPU, and how long they take.
//!
//! [`on_device`] runs them through the driver; [`on_model`] runs the same on the array model, which has no time, so
//! that it measures nothing.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use crate::array::{Array, CoreLibrary, HostMemory};
use crate::error::Result;
use crate::gemm::{AmdGemm, GemmPlan, InputType, Overlay};
use crate::runtime::{AccelIo, Context, Device};
use crate::txn::{Op, Stream};
use crate::xclbin::Pdi;

/// Largest magnitude of an element: no sum of the shapes below comes near 32 bits.
fn largest(input_type: InputType) -> i16 {
    match input_type {
        InputType::Int8 => 127,
        InputType::Int16 => 255,
    }
}

/// What C holds before a run, so that an element that was not written is noticed.
const POISON: u8 = 0xa5;
/// Runs of which the shortest counts.
const REPETITIONS: usize = 10;

/// Rows of A, columns of A, columns of B.
pub type Shape = (usize, usize, usize);

/// A product that was compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Product {
    /// Its shape.
    pub shape: Shape,
    /// Elements that were compared, over all repetitions.
    pub compared: usize,
    /// Elements that were wrong.
    pub wrong: usize,
    /// The first wrong element: row, column, what was computed, and what is right.
    pub first_wrong: Option<(usize, usize, i32, i32)>,
    /// The shortest of several runs, from the submission to the end of the wait; `None` in the model.
    pub shortest: Option<Duration>,
}

impl Product {
    /// Billions of multiplications and additions per second.
    pub fn gops(&self) -> Option<f64> {
        let (m, k, n) = self.shape;
        let seconds = self.shortest?.as_secs_f64();
        (seconds > 0.0).then(|| 2.0 * m as f64 * k as f64 * n as f64 / seconds / 1e9)
    }
}

/// What the self-test found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// The products, in their order.
    pub products: Vec<Product>,
    /// The shortest run of a stream that writes one register, and the median; `None` in the model.
    pub dispatch: Option<(Duration, Duration)>,
}

impl Outcome {
    /// Whether every element of every product is right.
    pub fn passed(&self) -> bool {
        !self.products.is_empty() && self.products.iter().all(|product| product.wrong == 0)
    }
}

/// An overlay to test, and where its streams come from.
#[derive(Debug, Clone)]
pub enum Subject {
    /// This crate generates them, for any shape.
    Generated(Overlay),
    /// AMD's overlay with a stream of AMD's, for one shape.
    Amd(AmdGemm),
}

impl Subject {
    /// Name of the overlay.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Generated(overlay) => overlay.name,
            Self::Amd(_) => AmdGemm::NAME,
        }
    }

    /// SHA-256 of the overlay's file.
    pub fn file(&self) -> [u8; 32] {
        match self {
            Self::Generated(overlay) => overlay.file,
            Self::Amd(_) => AmdGemm::FILE,
        }
    }

    /// Width in columns.
    fn columns(&self) -> u8 {
        match self {
            Self::Generated(overlay) => overlay.columns,
            Self::Amd(_) => AmdGemm::COLUMNS,
        }
    }

    /// The cores' programs, for the array model.
    fn library(&self) -> CoreLibrary {
        match self {
            Self::Generated(overlay) => overlay.library(),
            Self::Amd(_) => AmdGemm::library(),
        }
    }

    /// The products, of which the last is for the speed if there are several.
    fn products(&self) -> Result<Vec<Planned<'_>>> {
        match self {
            Self::Generated(overlay) => {
                let plan = |(m, k, n): Shape| GemmPlan::new(overlay, m, k, n).map(Planned::Generated);
                shapes(overlay).into_iter().map(plan).collect()
            }
            Self::Amd(gemm) => Ok(vec![Planned::Amd(gemm)]),
        }
    }
}

/// The shapes that test an overlay: one block; one that is padded in each dimension, with K in two parts; and one of
/// 32 blocks for the speed.
pub fn shapes(overlay: &Overlay) -> [Shape; 3] {
    let (m, k, n) = overlay.block();
    [(m, k, n), (m + 5, k + 7, 2 * n - 3), (4 * m, 2 * k, 4 * n)]
}

/// Runs the products on the array model: all but the one for the speed.
pub fn on_model(subject: &Subject, image: &[u8], report: &mut dyn FnMut(&Product)) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut products = subject.products()?;
    if products.len() > 1 {
        products.pop();
    }
    for planned in products {
        let problem = Problem::new(planned)?;
        let pdi = Pdi::decode(image)?;
        let mut array = Array::load(subject.columns(), &pdi.cdo, subject.library())?;
        let places = problem.planned.places();
        let mut arguments = vec![Vec::new(); places.len()];
        for (place, bytes) in places.into_iter().zip([&problem.a, &problem.b, &problem.poisoned()]) {
            arguments[place].clone_from(bytes);
        }
        let mut host = HostMemory::from_arguments(arguments);
        array.run(problem.planned.stream()?.as_ref(), &mut host)?;
        let mut product = problem.product();
        problem.compare(host.argument(places[2]).unwrap_or_default(), &mut product)?;
        report(&product);
        outcome.products.push(product);
    }
    Ok(outcome)
}

/// Runs the products through the driver.
pub fn on_device<I: AccelIo>(
    device: &Device<I>,
    subject: &Subject,
    image: &[u8],
    timeout: Duration,
    report: &mut dyn FnMut(&Product),
) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let context = device.context(u16::from(subject.columns()), image)?;
    let products = subject.products()?;
    for planned in &products {
        let product = Problem::new(planned.clone())?.run(device, &context, timeout)?;
        report(&product);
        outcome.products.push(product);
    }
    outcome.dispatch = Some(dispatch(device, &context, subject.columns(), &products[0], timeout)?);
    Ok(outcome)
}

/// Shortest and median time of a stream that only writes a register that each product's stream writes.
fn dispatch<I: AccelIo>(
    device: &Device<I>,
    context: &Context<I>,
    columns: u8,
    product: &Planned<'_>,
    timeout: Duration,
) -> Result<(Duration, Duration)> {
    let stream = product.stream()?;
    let writes = |op: &&Op| matches!(op, Op::Write { .. } | Op::MaskWrite { .. });
    let first = stream.ops().find(writes).cloned().into_iter().collect();
    let instructions = device.instructions(&Stream::new(columns, first))?;
    let mut times = Vec::new();
    for _ in 0..REPETITIONS {
        let start = Instant::now();
        context.run(&instructions, &[], timeout)?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok((times[0], times[REPETITIONS / 2]))
}

/// How an overlay computes a product: its stream, and the layouts of its arguments.
#[derive(Debug, Clone)]
pub(crate) enum Planned<'a> {
    Generated(GemmPlan<'a>),
    Amd(&'a AmdGemm),
}

impl Planned<'_> {
    fn shape(&self) -> Shape {
        match self {
            Self::Generated(plan) => plan.shape(),
            Self::Amd(gemm) => gemm.shape(),
        }
    }

    fn input_type(&self) -> InputType {
        match self {
            Self::Generated(plan) => plan.overlay().input_type,
            Self::Amd(_) => InputType::Int8,
        }
    }

    fn stream(&self) -> Result<Cow<'_, Stream>> {
        Ok(match self {
            Self::Generated(plan) => Cow::Owned(plan.stream()?),
            Self::Amd(gemm) => Cow::Borrowed(gemm.stream()),
        })
    }

    /// Places of A, B and C among the arguments of the command.
    fn places(&self) -> [usize; 3] {
        match self {
            Self::Generated(_) => [0, 1, 2],
            Self::Amd(_) => AmdGemm::ARGUMENTS,
        }
    }

    /// The arguments of A and B.
    fn pack(&self, a: &[i16], b: &[i16]) -> Result<(Vec<u8>, Vec<u8>)> {
        let narrow = |matrix: &[i16]| matrix.iter().map(|&value| value as i8).collect::<Vec<i8>>();
        Ok(match (self, self.input_type()) {
            (Self::Generated(plan), InputType::Int16) => (plan.pack_a(a)?, plan.pack_b(b)?),
            (Self::Generated(plan), InputType::Int8) => (plan.pack_a(&narrow(a))?, plan.pack_b(&narrow(b))?),
            (Self::Amd(gemm), _) => (gemm.pack_a(&narrow(a))?, gemm.pack_b(&narrow(b))?),
        })
    }

    fn c_bytes(&self) -> usize {
        match self {
            Self::Generated(plan) => plan.c_bytes(),
            Self::Amd(gemm) => gemm.c_bytes(),
        }
    }

    fn unpack_c(&self, bytes: &[u8]) -> Result<Vec<i32>> {
        match self {
            Self::Generated(plan) => plan.unpack_c(bytes),
            Self::Amd(gemm) => gemm.unpack_c(bytes),
        }
    }
}

/// Operands, and the right result.
pub(crate) struct Problem<'a> {
    planned: Planned<'a>,
    pub(crate) a: Vec<u8>,
    pub(crate) b: Vec<u8>,
    right: Vec<i32>,
}

impl<'a> Problem<'a> {
    pub(crate) fn new(planned: Planned<'a>) -> Result<Self> {
        let (m, k, n) = planned.shape();
        let mut random = Random(0x5eed + (m * k * n) as u64);
        let largest = largest(planned.input_type());
        let (a, b) = (random.matrix(m * k, largest), random.matrix(k * n, largest));
        let mut right = vec![0i32; m * n];
        for (row, a) in right.chunks_exact_mut(n).zip(a.chunks_exact(k)) {
            for (&a, b) in a.iter().zip(b.chunks_exact(n)) {
                for (sum, &b) in row.iter_mut().zip(b) {
                    *sum += i32::from(a) * i32::from(b);
                }
            }
        }
        let (a, b) = planned.pack(&a, &b)?;
        Ok(Self { a, b, planned, right })
    }

    /// What C holds before a run.
    pub(crate) fn poisoned(&self) -> Vec<u8> {
        vec![POISON; self.planned.c_bytes()]
    }

    pub(crate) fn product(&self) -> Product {
        Product { shape: self.planned.shape(), compared: 0, wrong: 0, first_wrong: None, shortest: None }
    }

    fn run<I: AccelIo>(
        &self,
        device: &Device<I>,
        context: &Context<I>,
        timeout: Duration,
    ) -> Result<Product> {
        let instructions = device.instructions(self.planned.stream()?.as_ref())?;
        let (a, b) = (device.buffer(self.a.len())?, device.buffer(self.b.len())?);
        let c = device.buffer(self.planned.c_bytes())?;
        a.write(&self.a)?;
        b.write(&self.b)?;
        let mut arguments = [&c; 3];
        for (place, buffer) in self.planned.places().into_iter().zip([&a, &b, &c]) {
            arguments[place] = buffer;
        }
        let mut product = self.product();
        let poison = self.poisoned();
        let mut bytes = vec![0; poison.len()];
        for _ in 0..REPETITIONS {
            c.write(&poison)?;
            let start = Instant::now();
            context.run(&instructions, &arguments, timeout)?;
            let elapsed = start.elapsed();
            product.shortest = Some(product.shortest.map_or(elapsed, |shortest| shortest.min(elapsed)));
            c.read(&mut bytes)?;
            self.compare(&bytes, &mut product)?;
        }
        Ok(product)
    }

    pub(crate) fn compare(&self, bytes: &[u8], product: &mut Product) -> Result<()> {
        let found = self.planned.unpack_c(bytes)?;
        let (_, _, columns) = self.planned.shape();
        product.compared += found.len();
        for (index, (&found, &right)) in found.iter().zip(&self.right).enumerate() {
            if found != right {
                product.wrong += 1;
                product.first_wrong.get_or_insert((index / columns, index % columns, found, right));
            }
        }
        Ok(())
    }
}

/// Deterministic elements.
struct Random(u64);

impl Random {
    fn matrix(&mut self, count: usize, largest: i16) -> Vec<i16> {
        (0..count).map(|_| self.element(largest)).collect()
    }

    fn element(&mut self, largest: i16) -> i16 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let values = 2 * largest as u64 + 1;
        ((self.0 >> 33) % values) as i16 - largest
    }
}
