//! Products for an engine: the decision at the start, results, and what happens after errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use npu::Error;
use npu::gemm::{GemmPlan, Int8, Overlay};
use npu::linear::{self, Linear};
use npu::matmul::{Backend, Declined, Matmul, Mode, OnDevice, OnModel, Operand, Packed, Stored};
use npu::report::Operation;
use npu::runtime::Device;
use npu::runtime::fake::{CommandOutcome, FakeDriver, HeapRule};
use npu::settings::Settings;
use npu::uapi::CommandState;

use super::{Random, small_overlay};

const TIMEOUT: Duration = Duration::from_secs(2);
const ENOMEM: i32 = 12;

fn one_core() -> (Overlay, Vec<u8>) {
    let size = Int8::new(1, 1).expect("a size");
    (size.overlay().expect("an overlay"), size.pdi().expect("a PDI"))
}

fn reference(a: &[i8], b: &[i8], k: usize, n: usize) -> Vec<i32> {
    let wide = |matrix: &[i8]| matrix.iter().map(|&value| i16::from(value)).collect::<Vec<i16>>();
    super::reference(&wide(a), &wide(b), k, n)
}

/// The array model, with whatever a test wants to go wrong.
struct Scripted {
    model: OnModel,
    runs: Arc<AtomicUsize>,
    /// In this run, an error; in this one, a wrong element.
    error_in: Option<usize>,
    wrong_in: Option<usize>,
}

impl Backend for Scripted {
    fn store(&mut self, b: &[u8]) -> npu::Result<Stored> {
        self.model.store(b)
    }

    fn run(&mut self, plan: &GemmPlan, a: &[u8], b: Packed, c: &mut [u8]) -> npu::Result<()> {
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        if self.error_in == Some(run) {
            return Err(Error::Timeout { milliseconds: 7 });
        }
        self.model.run(plan, a, b, c)?;
        c[0] ^= u8::from(self.wrong_in == Some(run));
        Ok(())
    }
}

/// Starts with a script; the decision, and the runs that it took.
fn start(mode: Mode, error_in: Option<usize>, wrong_in: Option<usize>) -> (Matmul, Arc<AtomicUsize>) {
    let overlay = small_overlay::overlay();
    let model = OnModel::new(&overlay, &small_overlay::pdi()).expect("a model");
    let runs = Arc::new(AtomicUsize::new(0));
    let backend = Scripted { model, runs: Arc::clone(&runs), error_in, wrong_in };
    (Matmul::start(mode, overlay, Ok(Box::new(backend))), runs)
}

#[test]
fn the_self_test_and_the_speed_decide_with_a_reason() {
    let [short, long] = [1, 2].map(Duration::from_millis);
    for (mode, error_in, wrong_in, times, uses, reason) in [
        (
            Mode::Auto,
            None,
            None,
            Some((short, long)),
            true,
            "faster: a batch takes 1.000 ms with the NPU and 2.000 ms without",
        ),
        (Mode::Auto, None, None, Some((long, short)), false, "not faster: a batch takes 2.000 ms"),
        (Mode::Auto, None, None, Some((long, long)), false, "not faster"),
        (Mode::Auto, None, None, None, true, "not compared yet"),
        (Mode::Force, None, None, None, true, "forced; the self-test passed"),
        (Mode::Force, None, None, Some((long, short)), true, "forced; the self-test passed"),
        (Mode::Force, Some(0), None, None, false, "self-test failed: the NPU did not finish"),
        (Mode::Force, None, Some(1), None, false, "self-test failed: 1 elements of 13 × 39 × 13 are wrong"),
        (Mode::Auto, None, Some(0), Some((short, long)), false, "self-test failed: 1 elements"),
    ] {
        let (mut matmul, _) = start(mode, error_in, wrong_in);
        if let Some((npu, engine)) = times {
            matmul.compare("a batch", npu, engine);
        }
        let decision = matmul.decision().clone();
        assert!(decision.uses_npu == uses && decision.reason.contains(reason), "{mode:?}: {decision:?}");
        let product = matmul.multiply((1, 2, 1), &[2i16, 3], Operand::Values(&[5, 7]));
        assert_eq!(product.ok(), uses.then(|| vec![31]));
    }
    let (matmul, runs) = start(Mode::Off, None, None);
    assert_eq!((matmul.decision().reason.as_str(), runs.load(Ordering::Relaxed)), ("the NPU is off", 0));
    let error = Err(Error::WrongDevice("no NPU here".to_owned()));
    let matmul = Matmul::start(Mode::Force, small_overlay::overlay(), error);
    assert_eq!((matmul.decision().uses_npu, matmul.decision().reason.as_str()), (false, "no NPU here"));
}

#[test]
fn after_an_error_the_npu_is_given_up_for_good() {
    // Two runs of the self-test, one that is right, one that fails.
    let (mut matmul, runs) = start(Mode::Force, Some(3), None);
    let (a, b) = ([2i16, 3], Operand::Values(&[5i16, 7][..]));
    assert_eq!(matmul.multiply((1, 2, 1), &a, b), Ok(vec![31]));
    assert_eq!(matmul.multiply((1, 2, 1), &a, b), Err(Declined::NotUsed));
    assert_eq!(runs.load(Ordering::Relaxed), 4);
    assert!(matmul.decision().reason.contains("given up after an error: the NPU did not finish"));
    assert_eq!(matmul.multiply((1, 2, 1), &a, b), Err(Declined::NotUsed));
    assert_eq!(runs.load(Ordering::Relaxed), 4, "it is not tried again");
}

#[test]
fn products_that_the_overlay_does_not_take_are_refused() {
    let (mut matmul, runs) = start(Mode::Force, None, None);
    let runs_before = runs.load(Ordering::Relaxed);
    let values = |values: &'static [i16]| Operand::Values(values);
    let refused = |product: Result<Vec<i32>, Declined>, expected: &str| match product {
        Err(Declined::Refused(reason)) => assert!(reason.contains(expected), "{reason}"),
        other => panic!("{other:?}"),
    };
    refused(matmul.multiply((1, 2, 1), &[1i8, 2], Operand::Values(&[3, 4])), "not Int8");
    refused(matmul.multiply((1, 2, 1), &[1i16], values(&[3, 4])), "1 × 2 has 1 elements");
    let (long, ones) = (1 << 17, vec![1i16; 1 << 17]);
    refused(matmul.multiply((1, long, 1), &ones, Operand::Values(&ones)), "may exceed 32 bits");
    assert!(matmul.store(1 << 17, 1, &ones).is_err() && matmul.store(2, 1, &[1i16]).is_err());
    assert!(runs.load(Ordering::Relaxed) == runs_before && matmul.decision().uses_npu, "not given up");
    assert_eq!(matmul.multiply((1, 2, 1), &[2i16, 3], values(&[5, 7])), Ok(vec![31]), "others are computed");
}

#[test]
fn products_of_int8_through_the_driver_and_on_the_model() {
    let (overlay, image) = one_core();
    let driver = FakeDriver::new(HeapRule::Fixed, overlay.library());
    let device = Device::open(driver.open()).expect("a device");
    let backends: [Box<dyn Backend>; 2] = [
        Box::new(OnDevice::new(device, &overlay, &image, TIMEOUT).expect("a context")),
        Box::new(OnModel::new(&overlay, &image).expect("a model")),
    ];
    for backend in backends {
        let mut matmul = Matmul::start(Mode::Force, overlay.clone(), Ok(backend));
        assert!(matmul.decision().uses_npu, "{:?}", matmul.decision());
        let mut random = Random(47);
        for (m, k, n) in [(1, 768, 40), (65, 513, 33), (7, 5, 3)] {
            let mut matrix = |len: usize| -> Vec<i8> { (0..len).map(|_| random.next() as i8).collect() };
            let (a, b) = (matrix(m * k), matrix(k * n));
            let stored = Operand::Stored(matmul.store(k, n, &b).expect("a stored matrix"));
            for b_of_product in [Operand::Values(&b[..]), stored, stored] {
                let c = matmul.multiply((m, k, n), &a, b_of_product).expect("a product");
                assert!(c == reference(&a, &b, k, n), "{m} × {k} × {n}");
            }
        }
        // The most that sums of int8 come to.
        let k = 1024;
        let c = matmul.multiply((1, k, 1), &vec![-128i8; k], Operand::Values(&vec![-128; k]));
        assert_eq!(c, Ok(vec![128 * 128 * k as i32]));
    }
    assert_eq!(driver.leaks(), [""; 0]);
}

#[test]
fn a_driver_that_hangs_is_given_up_without_leaks() {
    let (overlay, image) = one_core();
    let start = |driver: &FakeDriver| {
        let backend = Device::open(driver.open())
            .and_then(|device| OnDevice::new(device, &overlay, &image, TIMEOUT))
            .map(|backend| Box::new(backend) as Box<dyn Backend>);
        Matmul::start(Mode::Force, overlay.clone(), backend)
    };
    let driver = FakeDriver::new(HeapRule::Fixed, overlay.library());
    let mut matmul = start(&driver);
    assert!(matmul.decision().uses_npu, "{:?}", matmul.decision());
    driver.set_outcome(CommandOutcome::Hang);
    assert_eq!(matmul.multiply((1, 2, 1), &[1i8, 2], Operand::Values(&[3, 4])), Err(Declined::NotUsed));
    assert!(matmul.device_failed());
    let reason = &matmul.decision().reason;
    assert!(reason.contains("given up after an error: the NPU did not finish"), "{reason}");
    assert_eq!(driver.leaks(), [""; 0], "given up, it holds nothing");

    // Without memory for a matrix, others are multiplied.
    let driver = FakeDriver::new(HeapRule::Fixed, overlay.library());
    let mut matmul = start(&driver);
    driver.fail_raw(driver.calls().len(), ENOMEM);
    assert!(matches!(matmul.store(2, 1, &[3i8, 4]), Err(Declined::Refused(_))));
    let stored = Operand::Stored(matmul.store(2, 1, &[3i8, 4]).expect("a stored matrix"));
    assert_eq!(matmul.multiply((1, 2, 1), &[1i8, 2], stored), Ok(vec![11]));
    assert!(!matmul.device_failed());

    let driver = FakeDriver::new(HeapRule::Fixed, overlay.library());
    driver.set_outcome(CommandOutcome::Hang);
    let matmul = start(&driver);
    assert!(matmul.decision().reason.contains("the self-test failed: the NPU did not finish"));
    assert!(matmul.device_failed());
    assert_eq!(driver.leaks(), [""; 0]);
}

/// Operations on the NPU of one core behind this driver, each with the node opened anew.
fn settings(driver: &FakeDriver) -> Settings {
    let driver = driver.clone();
    Settings::new(Mode::Force, Int8::new(1, 1).expect("a size"), move |overlay, image| {
        let device = Device::open(driver.open())?;
        Ok(Box::new(OnDevice::new(device, overlay, image, TIMEOUT)?))
    })
}

fn uses_npu((linear, operation): &(Linear, Operation)) -> bool {
    let uses_npu = linear.matmul().decision().uses_npu;
    assert_eq!(operation.state().map(|state| state.decision.uses_npu), Some(uses_npu));
    uses_npu
}

#[test]
fn a_failure_in_the_self_test_ends_the_npu_for_the_process() {
    let (overlay, _) = one_core();
    for (outcome, expected) in [
        (CommandOutcome::Hang, "the NPU did not finish"),
        (CommandOutcome::End(CommandState::Error), "the NPU ended the command in state"),
        // It completes without having computed anything.
        (CommandOutcome::End(CommandState::Completed), "elements of"),
    ] {
        let driver = FakeDriver::new(HeapRule::Fixed, overlay.library());
        let settings = settings(&driver);
        driver.set_outcome(outcome);
        let first = settings.start("first");
        let reason = &first.0.matmul().decision().reason;
        assert!(!uses_npu(&first) && reason.starts_with("the self-test failed: "), "{outcome:?}: {reason}");
        assert!(reason.contains(expected), "{outcome:?}: {reason}");
        let calls = driver.calls().len();
        let second = settings.start("second");
        let reason = &second.0.matmul().decision().reason;
        assert!(!uses_npu(&second) && reason.contains("gave it up: the self-test failed"), "{reason}");
        assert_eq!(driver.calls().len(), calls, "{outcome:?}: it is not opened again");
        assert_eq!(driver.leaks(), [""; 0], "{outcome:?}");
    }
}

#[test]
fn operations_of_one_process_share_the_contexts_of_the_npu() {
    let (overlay, _) = one_core();
    let driver = FakeDriver::new(HeapRule::Fixed, overlay.library());
    let settings = settings(&driver);
    let mut operations: Vec<_> =
        (0..7).map(|number| settings.start(&format!("operation {number}"))).collect();
    let used: Vec<bool> = operations.iter().map(uses_npu).collect();
    assert_eq!(used, [true, true, true, true, true, true, false]);
    let reason = &operations[6].0.matmul().decision().reason;
    assert!(reason.contains("CREATE_HWCTX") && reason.contains("all contexts may be in use"), "{reason}");
    // In turns, with weights of their own.
    let weights: Vec<_> = operations[..6]
        .iter_mut()
        .zip(1u8..)
        .map(|((linear, _), number)| linear.store(2, &[f32::from(number), 0.0]).expect("stored weights"))
        .collect();
    for _ in 0..2 {
        for ((linear, _), (weights, number)) in operations.iter_mut().zip(weights.iter().zip(1u8..)) {
            let y = linear.multiply(&[1.0, 0.5], weights).expect("a product");
            assert!((y[0] - f32::from(number)).abs() < 1e-3, "{y:?}");
        }
    }
    // The seventh has not ended the NPU for the process.
    drop(operations.remove(0));
    let another = settings.start("another");
    assert!(uses_npu(&another), "{:?}", another.0.matmul().decision());
    // A hang is noticed by each for itself, and no other starts.
    driver.set_outcome(CommandOutcome::Hang);
    let (linear, _) = &mut operations[0];
    assert_eq!(linear.multiply(&[1.0, 0.5], &weights[1]), Err(Declined::NotUsed));
    assert!(linear.matmul().device_failed());
    driver.set_outcome(CommandOutcome::Run);
    let (linear, _) = &mut operations[1];
    assert!(linear.multiply(&[1.0, 0.5], &weights[2]).is_ok());
    drop((operations, another));
    assert_eq!(driver.leaks(), [""; 0]);
}

#[test]
fn a_stored_matrix_is_used_only_with_its_own_shape() {
    let (mut matmul, runs) = start(Mode::Force, None, None);
    let stored = Operand::Stored(matmul.store(2, 1, &[5i16, 7]).expect("a stored matrix"));
    assert_eq!(matmul.multiply((1, 2, 1), &[2i16, 3], stored), Ok(vec![31]));
    let runs_before = runs.load(Ordering::Relaxed);
    // The NPU would read past its end.
    assert!(matches!(matmul.multiply((1, 2, 100), &[2i16, 3], stored), Err(Declined::Refused(_))));
    assert_eq!(runs.load(Ordering::Relaxed), runs_before);
}

/// Floats of very different sizes by rows.
fn floats(random: &mut Random, rows: usize, k: usize) -> Vec<f32> {
    let mut value = |row: usize| {
        let fraction = (random.next() % 20_001) as f32 / 10_000.0 - 1.0;
        fraction.powi(3) * 10f32.powi(row as i32 % 5 - 2)
    };
    (0..rows * k).map(|index| value(index / k)).collect()
}

#[test]
fn products_of_floats_are_within_the_stated_error() {
    let (overlay, image) = one_core();
    let backend = OnModel::new(&overlay, &image).expect("a model");
    let matmul = Matmul::start(Mode::Force, overlay, Ok(Box::new(backend)));
    let mut linear = Linear::new(matmul);
    let mut random = Random(11);
    let largest = |row: &[f32]| row.iter().fold(0.0f64, |largest, value| largest.max(f64::from(value.abs())));
    let mut worst = 0.0f64;
    for (m, k, n) in [(1, 1, 1), (13, 96, 20), (40, 520, 9)] {
        let (x, w) = (floats(&mut random, m, k), floats(&mut random, n, k));
        let weights = linear.store(k, &w).expect("stored weights");
        assert_eq!((weights.k(), weights.rows()), (k, n));
        let y = linear.multiply(&x, &weights).expect("a product");
        assert_eq!(Ok(&y), linear.multiply_once(k, &x, &w).as_ref());
        for (row, (x, y)) in x.chunks_exact(k).zip(y.chunks_exact(n)).enumerate() {
            for (column, (w, y)) in w.chunks_exact(k).zip(y).enumerate() {
                let exact: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                let bound = linear::ERROR * k as f64 * largest(x) * largest(w);
                let error = (f64::from(*y) - exact).abs();
                assert!(error <= bound, "{m} × {k} × {n} at {row}, {column}: {error} > {bound}");
                worst = worst.max(error / bound);
            }
        }
    }
    // Far below the bound, the test would not notice a wrong half.
    assert!(worst > 0.02, "{worst}");
    let y = linear.multiply_once(2, &[1.0, f32::NAN, 1.0, 2.0], &[3.0, 4.0]).expect("a product");
    assert!(y[0].is_nan() && (y[1] - 11.0).abs() < 1e-3, "{y:?}");
    assert!(linear.multiply_once(2, &[1.0], &[3.0, 4.0]).is_err() && linear.matmul().decision().uses_npu);
}
