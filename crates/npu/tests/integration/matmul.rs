//! Products for an engine: the decision at the start, results, and what happens after errors.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use npu::gemm::{GemmPlan, Int8, Overlay};
use npu::matmul::{Backend, Matmul, Mode, OnDevice, OnModel};
use npu::runtime::Device;
use npu::runtime::fake::{FakeDriver, HeapRule, Outcome};
use npu::{Error, Result};

use super::{Random, small_overlay};

const TIMEOUT: Duration = Duration::from_secs(2);

fn one_core() -> (Overlay, Vec<u8>) {
    let size = Int8::new(1, 1).expect("a size");
    (size.overlay().expect("an overlay"), size.pdi().expect("a PDI"))
}

fn reference(a: &[i8], b: &[i8], k: usize, n: usize) -> Vec<i32> {
    let wide = |matrix: &[i8]| matrix.iter().map(|&value| i16::from(value)).collect::<Vec<i16>>();
    super::reference(&wide(a), &wide(b), k, n)
}

fn never(_: npu::selftest::Shape) -> Option<Duration> {
    panic!("not measured")
}

/// The array model with a speed, and with whatever a test wants to go wrong.
struct Scripted {
    model: OnModel,
    time: Option<Duration>,
    runs: Rc<Cell<usize>>,
    /// In this run, an error; in this one, a wrong element.
    error_in: Option<usize>,
    wrong_in: Option<usize>,
}

impl Backend for Scripted {
    fn run(&mut self, plan: &GemmPlan, a: &[u8], b: &[u8], c: &mut [u8]) -> Result<Option<Duration>> {
        let run = self.runs.replace(self.runs.get() + 1);
        if self.error_in == Some(run) {
            return Err(Error::Timeout { milliseconds: 7 });
        }
        // The benchmark repeats its product; its result is not what these tests are about.
        self.model.run(plan, a, b, c)?;
        c[0] ^= u8::from(self.wrong_in == Some(run));
        Ok(self.time)
    }
}

/// Starts with a script; the decision, and the runs that it took.
fn start(
    mode: Mode,
    time: Option<Duration>,
    (error_in, wrong_in): (Option<usize>, Option<usize>),
    engine: Option<Duration>,
) -> (Matmul, Rc<Cell<usize>>) {
    let overlay = small_overlay::overlay();
    let model = OnModel::new(&overlay, &small_overlay::pdi()).expect("a model");
    let runs = Rc::new(Cell::new(0));
    let backend = Scripted { model, time, runs: Rc::clone(&runs), error_in, wrong_in };
    (Matmul::start(mode, overlay, Ok(Box::new(backend)), &mut |_| engine), runs)
}

#[test]
fn the_start_decides_with_a_reason() {
    let [short, long] = [1, 2].map(Duration::from_millis);
    let none = (None, None);
    for (mode, time, script, engine, uses, reason) in [
        (
            Mode::Auto,
            Some(short),
            none,
            Some(long),
            true,
            "faster: 32 × 64 × 32 takes 1.000 ms on the NPU and 2.000 ms",
        ),
        (Mode::Auto, Some(long), none, Some(short), false, "not faster: 32 × 64 × 32 takes 2.000 ms"),
        (Mode::Auto, Some(long), none, Some(long), false, "not faster"),
        (Mode::Auto, Some(short), none, None, false, "no time to compare"),
        (Mode::Auto, None, none, Some(long), false, "reports no time"),
        (Mode::Force, None, none, None, true, "forced; the self-test passed"),
        (Mode::Force, None, (Some(0), None), None, false, "self-test failed: the NPU did not finish"),
        (
            Mode::Force,
            None,
            (None, Some(1)),
            None,
            false,
            "self-test failed: 1 elements of 13 × 39 × 13 are wrong",
        ),
        (Mode::Auto, Some(short), (None, Some(4)), Some(long), false, "benchmark failed: 1 elements"),
    ] {
        let (matmul, _) = start(mode, time, script, engine);
        let decision = matmul.decision();
        assert!(decision.uses_npu == uses && decision.reason.contains(reason), "{mode:?}: {decision:?}");
    }
    let (matmul, runs) = start(Mode::Off, Some(short), none, Some(long));
    assert_eq!((matmul.decision().reason.as_str(), runs.get()), ("the NPU is off", 0));
    let error = Err(Error::WrongDevice("no NPU here".to_owned()));
    let matmul = Matmul::start(Mode::Force, small_overlay::overlay(), error, &mut never);
    assert_eq!((matmul.decision().uses_npu, matmul.decision().reason.as_str()), (false, "no NPU here"));
}

#[test]
fn after_an_error_the_npu_is_given_up_for_good() {
    // Two runs of the self-test, one that is right, one that fails.
    let (mut matmul, runs) = start(Mode::Force, None, (Some(3), None), None);
    let (a, b) = ([2i16, 3], [5i16, 7]);
    assert_eq!(matmul.multiply((1, 2, 1), &a, &b), Some(vec![31]));
    assert_eq!(matmul.multiply((1, 2, 1), &a, &b), None);
    assert_eq!(runs.get(), 4);
    assert!(matmul.decision().reason.contains("given up after an error: the NPU did not finish"));
    assert_eq!((matmul.multiply((1, 2, 1), &a, &b), runs.get()), (None, 4), "it is not tried again");
}

#[test]
fn what_the_overlay_does_not_take_is_the_engines() {
    let (mut matmul, runs) = start(Mode::Force, None, (None, None), None);
    let runs_before = runs.get();
    assert_eq!(matmul.multiply((1, 2, 1), &[1i8, 2], &[3, 4]), None, "another type");
    assert_eq!(matmul.multiply((1, 2, 1), &[1i16], &[3, 4]), None, "too few elements");
    assert_eq!(matmul.multiply((1, 1 << 17, 1), &vec![1i16; 1 << 17], &vec![1; 1 << 17]), None, "K");
    assert!(runs.get() == runs_before && matmul.decision().uses_npu, "the NPU is not given up");
}

#[test]
fn products_of_int8_through_the_driver_and_on_the_model() {
    let (overlay, image) = one_core();
    let driver = FakeDriver::new(HeapRule::Fixed, overlay.library());
    let device = Device::open(driver.clone()).expect("a device");
    let backends: [Box<dyn Backend>; 2] = [
        Box::new(OnDevice::new(device, &overlay, &image, TIMEOUT).expect("a context")),
        Box::new(OnModel::new(&overlay, &image).expect("a model")),
    ];
    for backend in backends {
        let mut matmul = Matmul::start(Mode::Force, overlay.clone(), Ok(backend), &mut never);
        assert!(matmul.decision().uses_npu, "{:?}", matmul.decision());
        let mut random = Random(47);
        for (m, k, n) in [(1, 768, 40), (65, 513, 33), (7, 5, 3)] {
            let mut matrix = |len: usize| -> Vec<i8> { (0..len).map(|_| random.next() as i8).collect() };
            let (a, b) = (matrix(m * k), matrix(k * n));
            let c = matmul.multiply((m, k, n), &a, &b).expect("a product");
            assert!(c == reference(&a, &b, k, n), "{m} × {k} × {n}");
        }
        // The most that sums of int8 come to.
        let k = 1024;
        let c = matmul.multiply((1, k, 1), &vec![-128i8; k], &vec![-128; k]);
        assert_eq!(c, Some(vec![128 * 128 * k as i32]));
    }
    assert_eq!(driver.leaks(), [""; 0]);
}

#[test]
fn a_driver_that_hangs_is_given_up_without_leaks() {
    let (overlay, image) = one_core();
    let start = |driver: &FakeDriver| {
        let backend = Device::open(driver.clone())
            .and_then(|device| OnDevice::new(device, &overlay, &image, TIMEOUT))
            .map(|backend| Box::new(backend) as Box<dyn Backend>);
        Matmul::start(Mode::Force, overlay.clone(), backend, &mut never)
    };
    let driver = FakeDriver::new(HeapRule::Fixed, overlay.library());
    let mut matmul = start(&driver);
    assert!(matmul.decision().uses_npu, "{:?}", matmul.decision());
    driver.set_outcome(Outcome::Hang);
    assert_eq!(matmul.multiply((1, 2, 1), &[1i8, 2], &[3, 4]), None);
    let reason = &matmul.decision().reason;
    assert!(reason.contains("given up after an error: the NPU did not finish"), "{reason}");
    assert_eq!(driver.leaks(), [""; 0], "given up, it holds nothing");

    let driver = FakeDriver::new(HeapRule::Fixed, overlay.library());
    driver.set_outcome(Outcome::Hang);
    let matmul = start(&driver);
    assert!(matmul.decision().reason.contains("the self-test failed: the NPU did not finish"));
    assert_eq!(driver.leaks(), [""; 0]);
}
