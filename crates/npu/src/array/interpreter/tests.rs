//! Programs of a few lines, on a core alone.

use super::*;
use crate::bytes::words_of;
use crate::isa::assemble;

const PLACE: TilePlace = TilePlace { column: 1, row: 3 };

/// A core with its tile, whose memory has `n` at word `n`, and whose locks all have 1.
struct Bench {
    core: Interpreter,
    tile: Tile,
}

impl Bench {
    fn new(source: &str) -> Self {
        let mut program = assemble(source).expect("a program");
        program.resize(program.len().next_multiple_of(4), 0);
        let mut tile = Tile::new(PLACE);
        (tile.memory, tile.locks, tile.has_bus) = ((0..16 << 10).collect(), vec![1; 16], true);
        Self { core: Interpreter::new(PLACE, &words_of(&program)), tile }
    }

    /// Runs until the core waits or has ended.
    fn run(&mut self) -> Result<(), Fault> {
        while self.core.advance(&mut self.tile)? {}
        Ok(())
    }

    fn word(&self, at: usize) -> u32 {
        self.tile.memory[at / 4]
    }
}

/// Runs a program that ends with `done` and time for its stores.
fn run(source: &str) -> Bench {
    let mut bench = Bench::new(&format!("movxm p7, #0x70000\n{source}\n{}done", "nop\n".repeat(12)));
    bench.run().unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(bench.core.state, State::Done);
    bench
}

fn fault(source: &str) -> String {
    let mut bench = Bench::new(&format!("movxm p7, #0x70000\n{source}\n{}done", "nop\n".repeat(12)));
    bench.run().expect_err("a fault").to_string()
}

#[test]
fn loads_arrive_after_seven_cycles() {
    for (between, want) in [(5, 77), (6, 25)] {
        let nops = "nop\n".repeat(between);
        let bench = run(&format!("mova r0, #77\nlda r0, [p7, #100]\n{nops}st r0, [p7, #0]"));
        assert_eq!(bench.word(0), want, "{between}");
    }
}

#[test]
fn products_arrive_after_two_cycles_and_wide_loads_after_nine() {
    for (between, want) in [(0, 5), (1, 35)] {
        let nops = "nop\n".repeat(between);
        let bench = run(&format!("mova r0, #5\nmova r1, #7\nmul r0, r0, r1\n{nops}st r0, [p7, #0]"));
        assert_eq!(bench.word(0), want, "{between}");
    }
    for (between, want) in [(7, 0), (8, 9)] {
        let nops = "nop\n".repeat(between);
        let source = format!(
            "mov s0, #0\nvlda.ups.s64.s32 bml3, s0, [p7, #32]\n{nops}vst.srs.s32.s64 bml3, s0, [p7, #0]"
        );
        assert_eq!(run(&source).word(4), want, "{between}");
    }
}

#[test]
fn accumulators_are_read_in_the_third_cycle() {
    // Both factors are 1 in the first element: each product adds 1. The second reads what the first makes from
    // two cycles on, and a store from five.
    let start = "movxm r3, #0x308\nmova r0, #1\nvbcst.32 x0, r0\nvclr cm1\nnop\nnop\nnop\nnop\nnop\n";
    for (between, want) in [(0, 8), (1, 16)] {
        let nops = "nop\n".repeat(between);
        let source = format!("{start}vmac cm1, cm1, x0, x0, r3\n{nops}vmac cm1, cm1, x0, x0, r3\n");
        let bench = run(&format!("{source}nop\nnop\nnop\nnop\nvst amll1, [p7, #0]"));
        // Elements 0, 4 of the row meet rows 0 and 4 of B: two products of ones.
        assert_eq!(bench.word(0), want / 4, "{between}");
    }
    for (between, want) in [(3, 0), (4, 2)] {
        let nops = "nop\n".repeat(between);
        let bench = run(&format!("{start}vmac cm1, cm1, x0, x0, r3\n{nops}vst amll1, [p7, #0]"));
        assert_eq!(bench.word(0), want, "{between}");
    }
}

#[test]
fn moves_of_vectors_are_forwarded_to_each_other_but_not_to_stores() {
    let start = "mova r0, #9\nvbcst.32 x0, r0\nvmov x2, x0\n";
    for (between, want) in [(0, 0), (1, 9)] {
        let nops = "nop\n".repeat(between);
        assert_eq!(run(&format!("{start}{nops}vst wl2, [p7, #0]")).word(0), want, "{between}");
    }
}

#[test]
fn five_bundles_are_executed_before_a_jump() {
    let add = "add r0, r0, #1\n";
    let bench = run(&format!("mova r0, #0\nj end\n{}end: st r0, [p7, #0]", add.repeat(7)));
    assert_eq!(bench.word(0), 5);
    let bench = run(&format!(
        "mova r0, #0\nmova r1, #1\njz r1, end\n{0}jnz r1, end\n{0}end: st r0, [p7, #0]",
        add.repeat(6)
    ));
    assert_eq!(bench.word(0), 11);
}

#[test]
fn calls_return_after_their_delay_slots() {
    let bench =
        run("mova r0, #1\njl twice\nnop\nnop\nnop\nnop\nadd r0, r0, #2\nst r0, [p7, #0]\nj end\nnop\nnop\n\
                     nop\nnop\nnop\ntwice: ret lr\nnop\nnop\nnop\nnop\nadd r0, r0, r0\nend: nop");
    assert_eq!(bench.word(0), 6);
}

#[test]
fn hardware_loops_run_as_often_as_counted() {
    for count in [1, 2, 7] {
        let bench = run(&format!(
            "mova r0, #0\nmovxm ls, first\nmovxm le, last\nmova lc, #{count}\nfirst: add r0, r0, #1\nnop\n\
             last: add r0, r0, #10\nst r0, [p7, #0]"
        ));
        assert_eq!(bench.word(0), 11 * count, "{count}");
    }
}

#[test]
fn pointers_move_in_one_and_two_dimensions() {
    // Two steps of 4 bytes, then 8 from the third on to the next row.
    let bench = run("mova m0, #8\nmova dn0, #2\nmova dj0, #4\nmova dc0, #0\nmov p0, p7\nmova r0, #-1\n\
                     st.2d r0, [p0], d0\nst.2d r0, [p0], d0\nst.2d r0, [p0], d0\nst r0, [p0], m0\npadda [p0], #-4\n\
                     st r0, [p0, dj0]");
    let written: Vec<usize> = (0..16).filter(|&word| bench.tile.memory[word] == u32::MAX).collect();
    assert_eq!(written, [0, 1, 2, 4, 6]);
    let stack = run("movxm sp, #0x70000\nnop\npaddb [sp], #64\nmova r0, #3\nst r0, [sp, #-60]");
    assert_eq!(stack.word(4), 3);
}

#[test]
fn arithmetic() {
    let cases = [
        ("sub", 5, 7, -2),
        ("and", 12, 10, 8),
        ("or", 12, 10, 14),
        ("xor", 12, 10, 6),
        ("eq", 4, 4, 1),
        ("ne", 4, 4, 0),
        ("ge", -1, 1, 0),
        ("lt", -1, 1, 1),
        ("geu", -1, 1, 1),
        ("ltu", -1, 1, 0),
        ("lshl", -8, 2, -32),
        ("lshl", 8, -2, 2),
        ("ashl", -8, -2, -2),
        ("ashl", -8, -40, -1),
        ("lshl", 8, 40, 0),
        ("mul", -3, 5, -15),
    ];
    for (name, a, b, want) in cases {
        let bench = run(&format!("mova r1, #{a}\nmova r2, #{b}\n{name} r3, r1, r2\nnop\nst r3, [p7, #0]"));
        assert_eq!(bench.word(0) as i32, want, "{name} {a} {b}");
    }
    for (condition, nez, eqz) in [(0, 2, 1), (5, 1, 2)] {
        let bench = run(&format!(
            "mova r1, #1\nmova r2, #2\nmova r27, #{condition}\nsel.nez r3, r1, r2\nsel.eqz r4, r1, r2\n\
             st r3, [p7, #0]\nst r4, [p7, #4]"
        ));
        assert_eq!((bench.word(0), bench.word(4)), (nez, eqz));
    }
}

#[test]
fn locks_stop_the_clock() {
    // The load before arrives only while the core runs.
    let mut bench = Bench::new(
        "movxm p7, #0x70000\nmova r1, #-2\nmova r2, #3\nlda r0, [p7, #100]\nnop\nnop\nnop\nacq #49, r1\n\
         nop\nnop\nnop\nst r0, [p7, #0]\nnop\nnop\nnop\nnop\nrel #50, r2\nnop\ndone",
    );
    bench.run().expect("a wait");
    assert_eq!((bench.core.state, bench.word(0)), (State::Waiting, 0));
    assert!(bench.core.waits().is_some_and(|text| text.contains("until lock 1 has 2")));
    bench.tile.locks[1] = 3;
    bench.run().expect("an end");
    assert_eq!((bench.core.state, bench.word(0), &bench.tile.locks[..3]), (State::Done, 25, &[1, 1, 4][..]));
}

#[test]
fn what_is_not_modelled_is_a_fault_that_says_where() {
    for (source, want) in [
        ("movxm p0, #0x70000\nlda.tm r0, [p0]", "0x70000 is no register of core(1,3)"),
        ("movxm p0, #0xb2000\nst.tm r0, [p0]", "core(1,3) core.control is a register that the model"),
        ("mov crSCDEn, r0", "switching the cascade"),
        ("vaddmac cm0, cm1, x0, x0, r0", "multiplier"),
        ("lda r0, [p0, #0]", "0x0 is not in the tile's own memory"),
        ("vlda wl0, [p7, dj0]; movx r0, #1\nnop", ""),
        ("mov dj0, #4\nvlda wl0, [p7, dj0]", "0x70004 is no multiple of 32"),
        ("vmac cm0, cm0, x0, x0, r0\nmova r1, #2\nvmac cm0, cm0, x0, x0, r1", "multiplier"),
        ("acq #3, r0", "lock 3 is not the tile's own"),
        ("rel #49, r0\nacq #49, r0", "an amount of 0"),
        ("mova r0, #1\nst r0, [p7, #0]\nrel #49, r0", "released while a load or store is in flight"),
        ("j #0\nnop\nj #0", "delay slots of another jump"),
        ("movxm r0, #0x0\nmovxm p0, #-4\nmov r0, p0", "extended to 32 bits"),
        ("mova r0, #46\nvshuffle x0, x0, x0, r0", "mode 46 of shuffles"),
        ("j #4096", "the program has"),
    ] {
        if want.is_empty() {
            run(source);
            continue;
        }
        let text = fault(source);
        assert!(text.contains(want) && text.starts_with("core(1,3) "), "{source}: {text}");
    }
    assert!(fault("acq #3, r0").starts_with("core(1,3) at 0x6: `acq #3, r0`"));
    let mut bench = Bench { core: Interpreter::new(PLACE, &[0x1_8001 | 0x1000_0000]), ..Bench::new("nop") };
    assert!(bench.run().is_err(), "no bundle");
    // An instruction of another overlay: its slot and bits.
    let unknown = crate::bundle::Bundle::new(&[(crate::bundle::Slot::Alu, 0x38)]).expect("a bundle").encode();
    let mut bench = Bench { core: Interpreter::new(PLACE, &words_of(&unknown)), ..Bench::new("nop") };
    let text = bench.run().expect_err("unknown").to_string();
    assert_eq!(text, "core(1,3) at 0x0: `alu 0x38`: the model does not know this instruction");
}

#[test]
fn pointers_in_three_dimensions() {
    // Two words, three times 16 bytes apart, then 64 bytes on from where the last pass began.
    let source = "mov dn0, #1; movx r5, #0\nmova dc0, #0; mov dj0, #4\nmova dc4, #0; mov dn4, #2\n\
        mova m0, #28; mov dj4, #12\nmov p0, p7\n"
        .to_owned()
        + &"padda.3d [p0], d0\n".repeat(6)
        + "mov r0, p0\nst r0, [p7, #0]\nmov r0, dc0\nst r0, [p7, #4]\nmov r0, dc4\nst r0, [p7, #8]";
    let bench = run(&source);
    assert_eq!([bench.word(0), bench.word(4), bench.word(8)], [0x7_0000 + 2 * (4 + 12) + 4 + 28, 0, 0]);
    let bench = run(&source.replacen("padda.3d [p0], d0\n", "", 3));
    assert_eq!([bench.word(0), bench.word(4), bench.word(8)], [0x7_0000 + 4 + 12 + 4, 1, 1]);
}

#[test]
fn counters_and_divisions() {
    // The body runs once more than the counter says.
    let bench = run("movx r0, #3; mov r1, #0\nmovxm p0, #32\nnop\nnop\nnop\n.align 32\n\
        jnzd r0, r0, p0\nadd r1, r1, #1\nnop\nnop\nnop\nnop\nst r1, [p7, #0]\nst r0, [p7, #4]");
    assert_eq!([bench.word(0), bench.word(4)], [4, u32::MAX]);
    for (dividend, divisor) in [(100, 7), (7, 100), (0xffff_ffff, 2), (1, 1), (0x8000_0001, 0xffff_fffe)] {
        let steps = "divs r3, r31, r3, r1\n".repeat(32);
        let bench = run(&format!(
            "movxm r31, #{}\nmovxm r1, #{}\nmovx r3, #0\n{steps}st r31, [p7, #0]\nst r3, [p7, #4]",
            dividend as i32, divisor as i32
        ));
        assert_eq!([bench.word(0), bench.word(4)], [dividend / divisor, dividend % divisor]);
    }
}

#[test]
fn a_product_is_added_to_two_accumulators() {
    // All elements of x0 are 1, of x1 2: each sum has 8 products.
    let bench = run("movx r2, #776; mov r0, #1\nmovx r1, #2\nvbcst.8 x0, r0\nvbcst.8 x1, r1\nnop\n\
        vmul cm0, x0, x1, r2\nvmul cm1, x1, x1, r2\nnop\nvaddmac cm0, cm1, x0, x1, r2\n\
        nop\nnop\nnop\nnop\nvst amll0, [p7, #0]");
    assert_eq!(bench.word(0), 16 + 32 + 16);
}

#[test]
fn cascades_move_halves_of_accumulators() {
    let mut bench = Bench::new(
        "movxm p7, #0x70000\nvmov.lo cm1, scd\nvmov.hi cm2, scd\nnop\nnop\nnop\nnop\nnop\nnop\n\
         vmov mcd, bml1\nvmov mcd, bmh1\nvmov mcd, bmh2\nvmov mcd, bml2\nvmov mcd, bmh2\ndone\nnop",
    );
    bench.run().expect("it waits");
    assert!(bench.core.pending().is_some_and(|work| work.contains("for the cascade")));
    let word = |first: u32| [std::array::from_fn(|lane| first + lane as u32), [9; 8]];
    bench.tile.cascade_in.extend([word(100), word(200)]);
    bench.run().expect("it waits until there is room");
    assert_eq!(bench.tile.cascade_out.len(), CASCADE_WORDS);
    // What is not read is zero.
    let zero = [[0; 8]; 2];
    assert_eq!(bench.tile.cascade_out, [word(100), zero, word(200), zero]);
    bench.tile.cascade_out.clear();
    bench.run().expect("the rest");
    assert_eq!((bench.core.state, &bench.tile.cascade_out[0]), (State::Done, &word(200)));
}

#[test]
fn cores_use_the_registers_of_their_tile() {
    let lock5 = "movxm p0, #0x9f050\nmova r0, #7\nst.tm r0, [p0]\nnop\nnop\nnop\nnop\nlda.tm r1, [p0]\n";
    let bench = run(&format!("{lock5}nop\nnop\nnop\nnop\nnop\nnop\nst r1, [p7, #0]"));
    assert_eq!((bench.word(0), bench.tile.locks[5]), (7, 7));
    let early = run(&format!("movx r1, #3\n{lock5}nop\nnop\nnop\nnop\nnop\nst r1, [p7, #0]"));
    assert_eq!(early.word(0), 3, "it arrives after seven cycles");
    let mut off = Bench::new(lock5);
    off.tile.has_bus = false;
    let text = off.run().expect_err("a fault").to_string();
    assert!(text.contains("core(1,3) lock5") && text.contains("processor bus is off"), "{text}");
    let id = run("mov r0, core_id\nst r0, [p7, #0]");
    assert_eq!(id.word(0), 1 << 16 | 3);
}
