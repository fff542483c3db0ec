use gpu::View;

use super::{Operands, Pool, Shape, Standardise, policy::GEMMA3, squares};
use crate::{Activations, Vectors, case::arena};

const SHAPE: Shape = Shape { side: 2, n: 16, ..GEMMA3 };

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn squares_are_those_of_the_grid_line_by_line() {
    let of = |first_row, columns, rows, side| -> Vec<[u32; 2]> {
        squares(first_row, columns, rows, side).unwrap().collect()
    };
    assert_eq!(of(0, 1, 1, 1), [[0, 1]]);
    // Lines of 6 patches: the second line of squares starts after two of them.
    assert_eq!(of(100, 6, 4, 2), [100, 102, 104, 112, 114, 116].map(|first| [first, 6]));
    assert_eq!(of(7, 3, 9, 3), [7, 16, 25].map(|first| [first, 3]));
    assert_eq!(of(4096, 64, 64, 4).len(), 256, "soft tokens of an image of Gemma 3");
}

#[test]
fn grids_that_are_not_whole_squares_are_rejected() {
    let rejected = |first_row, columns, rows, side| match squares(first_row, columns, rows, side) {
        Ok(_) => panic!("{columns} × {rows} by {side}"),
        Err(error) => error.to_string(),
    };
    assert!(rejected(0, 4, 2, 0).contains("squares of 0"));
    assert!(rejected(0, 5, 2, 2).contains("grid of 5 × 2"));
    assert!(rejected(0, 4, 3, 2).contains("grid of 4 × 3"));
    assert!(rejected(0, 4, 0, 2).contains("grid of 4 × 0"));
    assert!(rejected(u32::MAX as usize, 4, 2, 2).contains("past 2³²"));
    assert!(rejected(0, usize::MAX - 1, 2, 2).contains("past 2³²"));
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let rejected = |shape| Pool::new(&device, shape).err().expect("rejected").to_string();
    assert!(rejected(Shape { n: 18, ..SHAPE }).contains("multiple of 4"));
    assert!(rejected(Shape { side: 0, ..SHAPE }).contains("squares of 0"));
    assert!(rejected(Shape { side: 1 << 20, ..SHAPE }).contains("1 to 1024"));
    assert!(rejected(Shape { output: Activations::Int8, ..SHAPE }).contains("not int8"));

    let mut arena = arena(&device);
    let kernel = Pool::new(&device, SHAPE).unwrap();
    let rows = arena.buffer("rows", 8 * 16 * 4 + 16).unwrap().view();
    let words = arena.buffer("words", 16).unwrap().view();
    let mut recorder = device.recorder().unwrap();
    let y = Vectors::f32(&mut arena, "y", 16, 2).unwrap();
    let operands = || Operands {
        x: rows.clone(),
        x_stride: 16,
        squares: words.clone(),
        standardise: None,
        weight: Some(rows.clone()),
        active: words.clone(),
        y: &y,
    };
    let mut record = |kernel: &Pool, operands: &Operands<'_>| {
        kernel.record(&mut recorder, "pool", operands).map_err(|error| error.to_string())
    };
    record(&kernel, &operands()).unwrap();
    let mut fails = |kernel: &Pool, operands: Operands<'_>, with: &str| {
        let error = record(kernel, &operands).unwrap_err();
        assert!(error.contains(with), "{error}, expected {with}");
    };
    let part = |view: &View, bytes| view.slice(bytes).unwrap();
    fails(&kernel, Operands { x_stride: 20, ..operands() }, "x has 528 bytes");
    fails(&kernel, Operands { x_stride: 12, ..operands() }, "a stride of 12");
    fails(&kernel, Operands { x_stride: 18, ..operands() }, "a stride of 18");
    fails(&kernel, Operands { x: part(&rows, 4..528), ..operands() }, "x does not start");
    fails(
        &kernel,
        Operands { squares: part(&words, 0..12), ..operands() },
        "squares has 12 bytes, but needs 16",
    );
    fails(&kernel, Operands { active: part(&words, 0..0), ..operands() }, "active has 0 bytes");
    fails(&kernel, Operands { weight: Some(part(&rows, 0..48)), ..operands() }, "weight has 48 bytes");
    let more = Vectors::f32(&mut arena, "y", 16, 3).unwrap();
    fails(&kernel, Operands { y: &more, ..operands() }, "x has 528 bytes");
    let wide = Vectors::f32(&mut arena, "y", 32, 2).unwrap();
    fails(&kernel, Operands { y: &wide, ..operands() }, "rows of 32");
    let f16 = Vectors::f16(&mut arena, "y", 16, 2).unwrap();
    fails(&kernel, Operands { y: &f16, ..operands() }, "f16");
    // Vectors that the shape has, and those that it has not.
    let standardise = |bytes| Some(Standardise { bias: rows.clone(), scale: part(&rows, 0..bytes) });
    fails(&kernel, Operands { weight: None, ..operands() }, "if and only if");
    fails(&kernel, Operands { standardise: standardise(64), ..operands() }, "if and only if");
    let kernel = Pool::new(&device, Shape { standardise: true, ..SHAPE }).unwrap();
    fails(&kernel, operands(), "if and only if");
    fails(&kernel, Operands { standardise: standardise(60), ..operands() }, "the scale has 60 bytes");
}
