//! Reflection and code generation on real compiler output: what is accepted, and what is rejected.

use std::fs;
use std::path::{Path, PathBuf};

use shaders::reflect::{Access, Interface, Kind, LocalSize, Scalar};
use shaders::{compile, emit, reflect};

const HEADER: &str = "#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
";

/// A shader that uses every supported feature.
const FULL: &str = "
layout(local_size_x_id = 0, local_size_y = 2) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 3) const bool RESIDUAL = true;
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Weights { uvec4 data[]; };
layout(buffer_reference, scalar) writeonly buffer Output { float data[]; };
layout(push_constant, scalar) uniform Push { Weights weights; Output y; uint rows; float eps; int k; } push;
uint word(uint row) { return push.weights.data[row].x; }
void main() {
    uint row = gl_GlobalInvocationID.x;
    if (RESIDUAL && row < push.rows) push.y.data[row] = push.eps * float(word(row) << push.k);
}
";

fn words(body: &str, tier: u32) -> Vec<u32> {
    let module = compile::compile("test.comp", &format!("{HEADER}{body}"), tier, &[]).expect("compiles");
    assert_eq!(module.warnings, "");
    module.words
}

fn interface(body: &str) -> Interface {
    reflect::reflect(&words(body, 0)).expect("reflects")
}

/// The error for a shader that compiles but must be rejected.
fn rejection(body: &str) -> String {
    reflect::reflect(&words(body, 0)).expect_err("must be rejected")
}

/// The members of a push-constant block, after the given declarations.
fn push(declarations: &str, members: &str) -> Vec<(String, u32, Kind)> {
    let block = format!(
        "{declarations}\nlayout(push_constant, scalar) uniform Push {{ {members} }};\nvoid main() {{}}"
    );
    interface(&block).push.into_iter().map(|member| (member.name, member.offset, member.kind)).collect()
}

fn access(block: &str) -> Access {
    let members = push(block, "Block block;");
    match members.as_slice() {
        [(_, 0, Kind::Buffer(access))] => *access,
        other => panic!("{other:?} is not one buffer"),
    }
}

fn constants(body: &str) -> Vec<(u32, String, Scalar, u32)> {
    let constants = interface(&format!("{body}\nvoid main() {{}}")).constants;
    constants
        .into_iter()
        .map(|constant| (constant.id, constant.name, constant.scalar, constant.default))
        .collect()
}

#[test]
fn push_members_have_the_offsets_of_the_shader() {
    let buffer = "layout(buffer_reference, scalar) readonly buffer Block { float data[]; };";
    let read = Kind::Buffer(Access::Read);
    let expected = [
        ("rows".to_owned(), 0, Kind::Word(Scalar::Uint)),
        ("block".to_owned(), 8, read),
        ("eps".to_owned(), 16, Kind::Word(Scalar::Float)),
        ("shift".to_owned(), 20, Kind::Word(Scalar::Int)),
        ("far".to_owned(), 40, read),
    ];
    let members = "uint rows; Block block; float eps; int shift; layout(offset = 40) Block far;";
    assert_eq!(push(buffer, members), expected);
}

#[test]
fn push_size_ends_with_the_last_member() {
    assert_eq!(interface(FULL).push_size, 28);
    let buffer_last = "layout(buffer_reference) buffer Block { float data[]; };
        layout(push_constant) uniform Push { uint rows; Block block; };
        void main() {}";
    assert_eq!(interface(buffer_last).push_size, 16);
    assert_eq!(interface("void main() {}").push_size, 0);
    assert!(interface("void main() {}").push.is_empty());
}

#[test]
fn bool_members_are_reflected_as_uint() {
    assert_eq!(push("", "bool flag;"), [("flag".to_owned(), 0, Kind::Word(Scalar::Uint))]);
}

#[test]
fn access_follows_readonly_and_writeonly() {
    let cases = [
        ("readonly buffer Block { uvec4 data[]; }", Access::Read),
        ("writeonly buffer Block { vec4 data[]; }", Access::Write),
        ("buffer Block { float16_t data[]; }", Access::ReadWrite),
        ("restrict readonly buffer Block { uint8_t data[]; }", Access::Read),
        ("readonly buffer Block { uint count; i8vec4 data[16]; }", Access::Read),
        ("writeonly buffer Block { Tile tiles[]; }", Access::Write),
        ("buffer Block { readonly uint count; readonly float data[]; }", Access::Read),
        ("buffer Block { readonly uint count; float data[]; }", Access::ReadWrite),
        ("buffer Block { readonly uint count; writeonly float data[]; }", Access::ReadWrite),
    ];
    for (block, expected) in cases {
        let declared =
            format!("struct Tile {{ float scale; uint q[4]; }};\nlayout(buffer_reference, scalar) {block};");
        assert_eq!(access(&declared), expected, "{block}");
    }
}

#[test]
fn forward_declared_buffers_are_reflected() {
    let list = "layout(buffer_reference) buffer Block;
        layout(buffer_reference, scalar) readonly buffer Block { Block next; float data[]; };";
    assert_eq!(access(list), Access::Read);
}

#[test]
fn unsupported_push_members_are_named() {
    let buffer =
        "layout(buffer_reference, scalar) buffer Block { float data[]; };\nstruct Inner { uint a; };";
    for odd in [
        "vec2 odd",
        "uint64_t odd",
        "float16_t odd",
        "double odd",
        "uint odd[4]",
        "Block odd[2]",
        "Inner odd",
    ] {
        let error = rejection(&format!(
            "{buffer}\nlayout(push_constant, scalar) uniform Push {{ uint fine; {odd}; }};\nvoid main() {{}}"
        ));
        assert!(error.contains("`odd`"), "{odd}: {error}");
    }
}

#[test]
fn push_blocks_over_128_bytes_are_rejected() {
    let block = |bytes: u32| {
        let last = bytes - 4;
        format!(
            "layout(push_constant) uniform Push {{ layout(offset = {last}) uint last; }};\nvoid main() {{}}"
        )
    };
    assert_eq!(interface(&block(128)).push_size, 128);
    assert!(rejection(&block(132)).contains("132 bytes"));
}

#[test]
fn descriptors_are_rejected_by_name() {
    for (declaration, name) in [
        ("layout(binding = 0) buffer Block { float data[]; } instance;", "`instance`"),
        ("layout(binding = 0) buffer Block { float data[]; };", "`Block`"),
        ("layout(binding = 0) uniform Block { float scale; } instance;", "`instance`"),
        ("layout(binding = 0, r32f) uniform image2D picture;", "`picture`"),
    ] {
        let error = rejection(&format!("{declaration}\nvoid main() {{}}"));
        assert!(error.contains(name) && error.contains("descriptor"), "{declaration}: {error}");
    }
}

#[test]
fn constants_of_each_type_keep_their_defaults() {
    let declared = constants(
        "layout(constant_id = 9) const float SCALE = -0.5;
        layout(constant_id = 2) const uint ROWS = 4000000000u;
        layout(constant_id = 4) const int SHIFT = -3;
        layout(constant_id = 5) const bool ON = true;
        layout(constant_id = 6) const bool OFF = false;
        const uint DERIVED = ROWS / 2;",
    );
    let expected = [
        (2, "ROWS".to_owned(), Scalar::Uint, 4_000_000_000),
        (4, "SHIFT".to_owned(), Scalar::Int, (-3_i32) as u32),
        (5, "ON".to_owned(), Scalar::Bool, 1),
        (6, "OFF".to_owned(), Scalar::Bool, 0),
        (9, "SCALE".to_owned(), Scalar::Float, (-0.5_f32).to_bits()),
    ];
    assert_eq!(declared, expected);
}

/// The tiers share one struct of constants, which works as long as glslang keeps constants that a tier does
/// not use.
#[test]
fn unused_constants_and_members_survive_compilation() {
    let body = "
        layout(constant_id = 1) const uint A = 1;
        layout(constant_id = 2) const uint B = 2;
        layout(push_constant) uniform Push { uint rows; } push;
        shared uint cells[4];
        uint uncalled() { return A; }
        void main() {
            #if TIER == 1
            cells[0] = A + B + push.rows;
            #endif
        }";
    let tiers = [0, 1].map(|tier| (tier, reflect::reflect(&words(body, tier)).expect("reflects")));
    reflect::agree(&tiers).expect("agrees");
    assert_eq!((tiers[0].1.constants.len(), tiers[0].1.push.len()), (2, 1));
}

#[test]
fn unsupported_constants_are_named() {
    for odd in ["double ODD = 1.0lf", "uint64_t ODD = 1ul", "uint16_t ODD = 1us", "float16_t ODD = 1.0hf"] {
        let error = rejection(&format!("layout(constant_id = 1) const {odd};\nvoid main() {{}}"));
        assert!(error.contains("`ODD`"), "{odd}: {error}");
    }
}

#[test]
fn constant_ids_on_expressions_are_rejected() {
    let error = rejection(
        "layout(constant_id = 0) const uint A = 4;
        layout(constant_id = 1) const uint HALF = A / 2;
        void main() {}",
    );
    assert!(error.contains("`HALF`"), "{error}");
}

#[test]
fn local_size_is_fixed_or_indexes_the_constants() {
    use LocalSize::{Constant, Fixed};
    let declared = "layout(constant_id = 2) const uint SPLITS = 1;
        layout(constant_id = 5) const uint ROWS = 4;
        layout(constant_id = 7) const uint THREADS = 256;";
    let cases = [
        ("local_size_x = 64, local_size_y = 2", [Fixed(64), Fixed(2), Fixed(1)]),
        ("local_size_x_id = 7", [Constant(2), Fixed(1), Fixed(1)]),
        ("local_size_x_id = 7, local_size_y = 3, local_size_z_id = 5", [Constant(2), Fixed(3), Constant(1)]),
    ];
    for (layout, expected) in cases {
        let shader = interface(&format!("{declared}\nlayout({layout}) in;\nvoid main() {{}}"));
        assert_eq!(shader.local_size, expected, "{layout}");
        assert_eq!(shader.constants.len(), 3, "{layout}");
        assert_eq!(
            shader.constants[2].default, 256,
            "{layout}: the declared default, not that of the unnamed constant that glslang adds"
        );
    }
}

/// glslang writes `LocalSizeId` for SPIR-V 1.6, and the built-in constant for older targets.
#[test]
fn local_size_may_come_from_the_workgroup_size_built_in() {
    const HEADER_WORDS: usize = 5;
    let mut module = words(FULL, 0);
    let mut at = HEADER_WORDS;
    while module[at] & 0xffff != 51 {
        if module[at] & 0xffff == 331 {
            // OpExecutionModeId becomes OpNop, one per word.
            let length = (module[at] >> 16) as usize;
            module[at..at + length].fill(1 << 16);
        }
        at += (module[at] >> 16) as usize;
    }
    assert!(
        reflect::reflect(&module).expect_err("the module has no workgroup size").contains("workgroup size")
    );
    // OpDecorate of the OpSpecConstantComposite: BuiltIn WorkgroupSize.
    let decorate = [4 << 16 | 71, module[at + 2], 11, 25];
    module.splice(HEADER_WORDS..HEADER_WORDS, decorate);
    let local_size = reflect::reflect(&module).expect("reflects").local_size;
    assert_eq!(local_size, [LocalSize::Constant(0), LocalSize::Fixed(2), LocalSize::Fixed(1)]);
}

#[test]
fn a_local_size_constant_must_be_declared_and_uint() {
    let error = rejection("layout(local_size_x_id = 3) in;\nvoid main() {}");
    assert!(error.contains("constant_id = 3"), "{error}");
    let error = rejection(
        "layout(local_size_x_id = 3) in;
        layout(constant_id = 3) const int THREADS = 64;
        void main() {}",
    );
    assert!(error.contains("`THREADS`"), "{error}");
}

#[test]
fn tiers_must_have_the_same_interface() {
    let disagreement = |body: &str| {
        let tiers = [0, 2].map(|tier| (tier, reflect::reflect(&words(body, tier)).expect("reflects")));
        reflect::agree(&tiers)
    };
    let either =
        |low: &str, high: &str| format!("#if TIER == 0\n{low}\n#else\n{high}\n#endif\nvoid main() {{}}");
    let push = |members: &str| format!("layout(push_constant) uniform Push {{ uint rows; {members} }};");
    let cases = [
        (push("uint odd;"), push("float odd;")),
        (push(""), push("uint odd;")),
        (push("uint odd;"), String::new()),
        (push("layout(offset = 8) uint odd;"), push("layout(offset = 12) uint odd;")),
        (String::new(), "layout(constant_id = 1) const uint odd = 1;".to_owned()),
        (
            "layout(constant_id = 1) const uint odd = 1;".to_owned(),
            "layout(constant_id = 1) const int odd = 1;".to_owned(),
        ),
        (
            "layout(constant_id = 1) const uint odd = 1;".to_owned(),
            "layout(constant_id = 2) const uint odd = 1;".to_owned(),
        ),
        (
            "layout(constant_id = 1) const uint odd = 1;".to_owned(),
            "layout(constant_id = 1) const uint odd = 2;".to_owned(),
        ),
    ];
    for (low, high) in cases {
        let error = disagreement(&either(&low, &high)).expect_err("disagrees");
        let named = error.contains("`odd`") || (high.is_empty() && error.contains("`rows`"));
        assert!(named && error.contains("T0") && error.contains("T2"), "{low} / {high}: {error}");
    }
    let sizes = either("layout(local_size_x = 64) in;", "layout(local_size_x = 32) in;");
    disagreement(&sizes).expect("each tier has its own workgroup size");
}

#[test]
fn every_truncation_is_an_error() {
    let module = words(FULL, 0);
    reflect::reflect(&module).expect("the complete module is valid");
    for length in 0..module.len() {
        assert!(
            reflect::reflect(&module[..length]).is_err(),
            "truncated to {length} of {} words",
            module.len()
        );
    }
}

#[test]
fn corrupt_modules_do_not_panic() {
    let module = words(FULL, 0);
    for at in 0..module.len() {
        let word = module[at];
        for value in
            [0, 1, u32::MAX, word ^ 1, word ^ 1 << 16, word.wrapping_add(1 << 16), word.rotate_left(16)]
        {
            let mut corrupt = module.clone();
            corrupt[at] = value;
            // Most are rejected, some only change a name; none may panic.
            let _ = reflect::reflect(&corrupt);
        }
    }
    assert!(reflect::reflect(&[0x5eed; 64]).is_err());
}

#[test]
fn tiers_are_parsed_strictly() {
    assert_eq!(compile::tiers("#version 460\n  #pragma tiers(T0, T1 ,T3)\n"), Ok(vec![0, 1, 3]));
    assert_eq!(compile::tiers("#pragma tiers (T2)"), Ok(vec![2]));
    for malformed in [
        "()", "(T0,)", "(T1, T0)", "(T0, T0)", "(T4)", "(0)", "(t0)", "(T-1)", "(T+1)", " T0", "(T0",
        "(T0) x",
    ] {
        let error = compile::tiers(&format!("#version 460\n#pragma tiers{malformed}")).expect_err(malformed);
        assert!(error.contains("line 2"), "{malformed}: {error}");
    }
    assert!(compile::tiers("#version 460\n// #pragma tiers(T0)").is_err());
    assert!(compile::tiers("#pragma tiers(T0)\n#pragma tiers(T1)").is_err());
}

/// A temporary folder with the given files, for one test.
fn folder(name: &str, files: &[(&str, &str)]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).expect("a folder for includes");
    for (file, text) in files {
        fs::write(folder.join(file), text).expect("an include is written");
    }
    folder
}

const INCLUDING: &str = "#version 460
#extension GL_GOOGLE_include_directive : require
#include \"included.glsl\"
void main() { uint value = INCLUDED; }
";

#[test]
fn includes_beside_the_shader_come_before_shared_ones() {
    let good = folder("include_good", &[("included.glsl", "#define INCLUDED 1\n")]);
    let bad = folder("include_bad", &[("included.glsl", "\n#error shared\n")]);
    let empty = folder("include_empty", &[]);
    let compile = |folders: &[&Path]| compile::compile("a/b.comp", INCLUDING, 0, folders);
    compile(&[&good, &bad]).expect("the first folder wins");
    compile(&[&empty, &good]).expect("the second folder is searched");
    let error = compile(&[&bad, &good]).expect_err("the first folder wins");
    assert!(error.contains("include_bad/included.glsl:2:"), "{error}");
    let error = compile(&[&empty]).expect_err("there is none");
    assert!(error.contains("a/b.comp:3:") && error.contains("included.glsl"), "{error}");
}

#[test]
fn compile_errors_name_file_and_line() {
    let good = folder("include_lines", &[("included.glsl", "\n\n\n#define INCLUDED nothing\n")]);
    let error = compile::compile("a/b.comp", INCLUDING, 0, &[&good]).expect_err("`nothing` is not declared");
    assert!(error.contains("a/b.comp:4:") && error.contains("'nothing'"), "{error}");
    let linking = compile::compile("a/b.comp", "#version 460\nvoid f();\nvoid main() { f(); }", 0, &[]);
    assert!(linking.expect_err("f has no body").contains("f("));
    let warned = "#version 460\n#extension GL_NOT_THERE : enable\nvoid main() {}";
    let module = compile::compile("a/b.comp", warned, 0, &[]).expect("compiles");
    assert!(module.warnings.contains("a/b.comp:2:"), "{}", module.warnings);
    assert_eq!(module.warnings.lines().count(), 1, "{}", module.warnings);
}

#[test]
fn emitted_modules_match_the_gpu_interface() {
    let tiers: Vec<_> =
        [0, 1].map(|tier| (tier, reflect::reflect(&words(FULL, tier)).expect("reflects"))).into();
    let text = emit::module("gemv", "src/gemv/gemv.comp", &tiers);
    for line in [
        "/// Generated from `src/gemv/gemv.comp`.\npub mod gemv {\n",
        "        /// Read by the shader.\n        pub weights: gpu::Address,\n",
        "        const SIZE: u32 = 28;\n",
        "            writer.buffer(0, &self.weights, gpu::Access::Read);\n",
        "            writer.buffer(8, &self.y, gpu::Access::Write);\n",
        "            writer.word(16, self.rows);\n",
        "            writer.word(20, self.eps.to_bits());\n",
        "            writer.word(24, self.k as u32);\n",
        "        pub threads: u32,\n",
        "            Self { threads: 256, residual: true }\n",
        "            vec![self.threads, u32::from(self.residual)]\n",
        "        name: \"gemv.t1\",\n",
        "        constant_ids: &[0, 3],\n",
        " local_size: [gpu::LocalSize::Constant(0), gpu::LocalSize::Fixed(2), gpu::LocalSize::Fixed(1)],\n",
        "    pub static TIERS: &[(u32, &gpu::Shader)] = &[(0, &T0), (1, &T1)];\n",
    ] {
        assert!(text.contains(line), "no {line:?} in:\n{text}");
    }
}

/// A default must parse back to the same bits, and clippy requires Default to be derived when it is all
/// zeros.
#[test]
fn emitted_defaults_are_exact() {
    let emitted = |default: &str| {
        let shader =
            interface(&format!("layout(constant_id = 1) const float SCALE = {default};\nvoid main() {{}}"));
        emit::module("k", "k.comp", &[(0, shader)])
    };
    assert!(emitted("0.1").contains(" scale: 0.1 "));
    assert!(emitted("1.0e-30").contains(" scale: 1e-30 "));
    assert!(emitted("-0.0").contains(" scale: -0.0 "));
    assert!(emitted("1.0 / 0.0").contains(" scale: f32::from_bits(0x7f800000) "));
    assert!(emitted("0.0").contains("Debug, Default, PartialEq"));
}
