//! Valid and malicious GGUF headers. Every malicious file is rejected in linear time and within 64 MiB, with
//! an error that names the file, the tensor or key and the reason; nothing panics.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{REFERENCE_SHARE, assert_linear};
use checkpoint::gguf::{self, Array, Gguf, Value};
use checkpoint::{Error, Format};
use proptest::prelude::*;
use tensor::Encoding;

// Types of metadata values.
const U8: u32 = 0;
const U16: u32 = 2;
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const U64: u32 = 10;
const F64: u32 = 12;

// ggml's types of tensors.
const TENSOR_F32: u32 = 0;
const TENSOR_Q4_0: u32 = 2;
const TENSOR_IQ2_XS: u32 = 17;

/// A length-prefixed string.
fn text(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// An array: element type, claimed length and elements.
fn array(kind: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}

/// Builds valid and invalid GGUF files.
#[derive(Clone)]
struct Writer {
    magic: [u8; 4],
    version: u32,
    key_count: Option<u64>,
    tensor_count: Option<u64>,
    alignment: usize,
    keys: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: usize,
}

impl Writer {
    /// No keys, no tensors, no data.
    fn empty(version: u32) -> Writer {
        Writer {
            magic: *b"GGUF",
            version,
            key_count: None,
            tensor_count: None,
            alignment: 32,
            keys: Vec::new(),
            tensors: Vec::new(),
            data: 0,
        }
    }

    /// A key of every type, and two tensors: 'norm' with 8 f32 (32 bytes) and 'embed' with 3 × 64 Q4_0 (108
    /// bytes).
    fn valid(version: u32) -> Writer {
        let floats: Vec<u8> = [0.5_f32, -1.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        Writer::empty(version)
            .key("general.architecture", STRING, &text("gemma3"))
            .key("gemma3.block_count", U32, &18_u32.to_le_bytes())
            .key("gemma3.rope.freq_base", F32, &1e6_f32.to_le_bytes())
            .key("general.size", U64, &(1_u64 << 40).to_le_bytes())
            .key("general.double", F64, &0.25_f64.to_le_bytes())
            .key("tokenizer.ggml.add_bos_token", BOOL, &[1])
            .key(
                "tokenizer.ggml.tokens",
                ARRAY,
                &array(STRING, 3, &[text("<pad>"), text(""), text("▁é")].concat()),
            )
            .key("tokenizer.ggml.scores", ARRAY, &array(F32, 2, &floats))
            .key("tokenizer.ggml.token_type", ARRAY, &array(I32, 2, &[1, 0, 0, 0, 255, 255, 255, 255]))
            .key("general.bytes", ARRAY, &array(U8, 3, &[7, 8, 255]))
            .key("general.flags", ARRAY, &array(BOOL, 2, &[1, 0]))
            .tensor("norm", &[8], TENSOR_F32, 0)
            .tensor("embed", &[64, 3], TENSOR_Q4_0, 32)
            .data(32 + 108)
    }

    fn key(mut self, name: impl AsRef<[u8]>, kind: u32, value: &[u8]) -> Writer {
        self.keys.push([&text(name)[..], &kind.to_le_bytes(), value].concat());
        self
    }

    fn tensor(mut self, name: impl AsRef<[u8]>, dimensions: &[u64], kind: u32, offset: u64) -> Writer {
        let dimensions_bytes: Vec<u8> =
            dimensions.iter().flat_map(|dimension| dimension.to_le_bytes()).collect();
        let count = (dimensions.len() as u32).to_le_bytes();
        let entry =
            [&text(name)[..], &count, &dimensions_bytes, &kind.to_le_bytes(), &offset.to_le_bytes()].concat();
        self.tensors.push(entry);
        self
    }

    /// Bytes of tensor data after the header.
    fn data(mut self, bytes: usize) -> Writer {
        self.data = bytes;
        self
    }

    fn with(mut self, change: impl FnOnce(&mut Writer)) -> Writer {
        change(&mut self);
        self
    }

    fn header(&self) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        bytes.extend(self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        bytes.extend(self.keys.concat());
        bytes.extend(self.tensors.concat());
        bytes
    }

    fn finish(&self) -> Vec<u8> {
        let mut bytes = self.header();
        bytes.resize(bytes.len().next_multiple_of(self.alignment) + self.data, 0);
        bytes
    }

    fn save(&self, path: PathBuf) -> PathBuf {
        std::fs::write(&path, self.finish()).expect("write to the temporary folder");
        path
    }

    /// The file `hostile.gguf` in `dir`.
    fn hostile(&self, dir: &Path) -> PathBuf {
        self.save(dir.join("hostile.gguf"))
    }

    /// The same, extended to `len` bytes as a sparse file.
    fn sparse(&self, dir: &Path, len: u64) -> PathBuf {
        let path = self.hostile(dir);
        let file = File::options().write(true).open(&path).expect("open the file");
        file.set_len(len).expect("extend the file");
        path
    }

    /// Part `number` (from 0) of `count` of a model with `tensors` tensors in total.
    fn part(number: u16, count: u16, tensors: i32) -> Writer {
        Writer::empty(3)
            .key("split.no", U16, &number.to_le_bytes())
            .key("split.count", U16, &count.to_le_bytes())
            .key("split.tensors.count", I32, &tensors.to_le_bytes())
    }
}

/// Writes a malicious file into a folder and returns the file to open.
type Build = fn(&Path) -> PathBuf;

/// Asserts that opening the file from `build` fails with an error that starts with one of the files and
/// contains all of `expected`.
fn assert_rejected(build: Build, expected: &[&str]) {
    let dir = tempfile::tempdir().expect("create a temporary folder");
    let path = build(dir.path());
    let error = gguf::open(&path).expect_err("malicious file was accepted").to_string();
    println!("{error}");
    let files = std::fs::read_dir(dir.path())
        .expect("list the temporary folder")
        .map(|entry| entry.expect("directory entry").path());
    let named = files.chain([path]).any(|path| error.starts_with(&format!("{}: ", path.display())));
    assert!(named, "the error names no file: {error}");
    for expected in expected {
        assert!(error.contains(expected), "'{expected}' is not in: {error}");
    }
    assert!(error.len() < 1000, "error has {} bytes", error.len());
    assert!(!error.contains(char::is_control), "error contains control characters: {error:?}");
}

/// One test per malicious file, and `CASES` with all of them.
macro_rules! hostile {
    ($($name:ident: $build:expr => [$($expected:literal),+];)+) => {
        $(
            #[test]
            fn $name() {
                assert_rejected($build, &[$($expected),+]);
            }
        )+
        const CASES: &[(&str, Build)] = &[$((stringify!($name), $build)),+];
    };
}

hostile! {
    empty_file: |dir| {
        let path = dir.join("hostile.gguf");
        File::create(&path).expect("create the file");
        path
    } => ["magic", "truncated"];
    folder: |dir| dir.to_path_buf() => ["not a regular file"];
    other_magic: |dir| Writer::valid(3).with(|file| file.magic = *b"\x1b[1m").hostile(dir)
        => ["not a GGUF file", "\\x1b[1m"];
    lfs_pointer: |dir| Writer::valid(3).with(|file| file.magic = *b"vers").hostile(dir) => ["Git LFS pointer"];
    ggml_before_gguf: |dir| Writer::valid(3).with(|file| file.magic = *b"tjgg").hostile(dir) => ["before GGUF"];
    big_endian: |dir| Writer::valid(3_u32.swap_bytes()).hostile(dir) => ["big-endian", "little-endian"];
    big_endian_magic: |dir| Writer::valid(3).with(|file| file.magic = *b"FUGG").hostile(dir) => ["big-endian"];
    version_1: |dir| Writer::valid(1).hostile(dir) => ["GGUF version 1", "not supported", "version 2 or 3"];
    version_4: |dir| Writer::valid(4).hostile(dir) => ["GGUF version 4", "not supported"];
    huge_tensor_count: |dir| Writer::valid(3).with(|file| file.tensor_count = Some(1 << 60)).hostile(dir)
        => ["1152921504606846976 tensors", "the limit is 65536"];
    more_tensors_than_bytes: |dir| Writer::valid(3).with(|file| file.tensor_count = Some(60_000)).hostile(dir)
        => ["60000 tensors", "do not fit", "truncated"];
    huge_key_count: |dir| Writer::valid(3).with(|file| file.key_count = Some(1 << 60)).hostile(dir)
        => ["1152921504606846976 metadata keys", "the limit is 16384"];
    more_keys_than_bytes: |dir| Writer::valid(3).with(|file| file.key_count = Some(16_000)).hostile(dir)
        => ["16000 metadata keys", "do not fit", "truncated"];
    huge_key_name: |dir| {
        Writer::empty(3).with(|file| file.keys.push((1_u64 << 60).to_le_bytes().repeat(3))).hostile(dir)
    } => ["name of metadata key 1 of 1", "1152921504606846976 bytes", "do not fit"];
    key_not_utf8: |dir| Writer::valid(3).key(b"bad\xffkey", U8, &[0]).hostile(dir)
        => ["name of metadata key 12 of 12", "not UTF-8"];
    duplicate_key: |dir| Writer::valid(3).key("general.architecture", U8, &[0]).hostile(dir)
        => ["duplicate metadata key 'general.architecture'"];
    key_type_unknown: |dir| Writer::valid(3).key("odd", 13, &[0; 8]).hostile(dir) => ["metadata key 'odd'", "type 13"];
    bool_with_value_2: |dir| Writer::valid(3).key("odd", BOOL, &[2]).hostile(dir) => ["metadata key 'odd'", "2 is not a bool"];
    bool_with_value_2_in_array: |dir| Writer::valid(3).key("odd", ARRAY, &array(BOOL, 2, &[1, 2])).hostile(dir)
        => ["metadata key 'odd'", "2 is not a bool"];
    huge_string: |dir| Writer::valid(3).key("odd", STRING, &(1_u64 << 60).to_le_bytes()).hostile(dir)
        => ["metadata key 'odd'", "1152921504606846976 bytes", "do not fit"];
    string_of_max_length: |dir| Writer::valid(3).key("odd", STRING, &u64::MAX.to_le_bytes()).hostile(dir)
        => ["metadata key 'odd'", "18446744073709551615 bytes", "do not fit"];
    string_not_utf8: |dir| Writer::valid(3).key("odd", STRING, &text(b"\xc3")).hostile(dir)
        => ["metadata key 'odd'", "not UTF-8"];
    huge_array: |dir| Writer::valid(3).key("odd", ARRAY, &array(U8, 1 << 60, &[])).hostile(dir)
        => ["metadata key 'odd'", "1152921504606846976 array elements", "do not fit"];
    array_whose_bytes_overflow: |dir| Writer::valid(3).key("odd", ARRAY, &array(STRING, 1 << 61, &[])).hostile(dir)
        => ["metadata key 'odd'", "2305843009213693952 array elements", "do not fit"];
    array_type_unknown: |dir| Writer::valid(3).key("odd", ARRAY, &array(99, 0, &[])).hostile(dir)
        => ["metadata key 'odd'", "type 99"];
    nested_array: |dir| Writer::valid(3).key("odd", ARRAY, &array(ARRAY, 1, &array(ARRAY, 1, &[]))).hostile(dir)
        => ["metadata key 'odd'", "nested arrays"];
    token_not_utf8: |dir| {
        let tokens = [text("é"), text(""), text(b"a\xff"), text("b")].concat();
        Writer::valid(3).key("odd", ARRAY, &array(STRING, 4, &tokens)).hostile(dir)
    } => ["metadata key 'odd'", "string 2 of the array", "not UTF-8"];
    character_split_between_tokens: |dir| {
        let tokens = [text("a"), text(b"b\xc3"), text(b"\xa9")].concat();
        Writer::valid(3).key("odd", ARRAY, &array(STRING, 3, &tokens)).hostile(dir)
    } => ["metadata key 'odd'", "string 1 of the array", "not UTF-8"];
    sparse_string: |dir| {
        Writer::empty(3).key("odd", STRING, &(8_u64 << 30).to_le_bytes()).sparse(dir, 16 << 30)
    } => ["metadata key 'odd'", "8589934592 bytes", "header longer than"];
    sparse_array: |dir| {
        Writer::empty(3).key("odd", ARRAY, &array(STRING, 1 << 30, &[])).sparse(dir, 16 << 30)
    } => ["metadata key 'odd'", "1073741824 array elements", "header longer than"];
    sparse_keys: |dir| Writer::empty(3).with(|file| file.key_count = Some(16_000)).sparse(dir, 16 << 30)
        => ["duplicate metadata key ''"];
    sparse_tensors: |dir| Writer::empty(3).with(|file| file.tensor_count = Some(60_000)).sparse(dir, 16 << 30)
        => ["tensor ''", "0 dimensions"];
    alignment_0: |dir| Writer::valid(3).key("general.alignment", U32, &0_u32.to_le_bytes()).hostile(dir)
        => ["'general.alignment'", "0 is not a power of two"];
    alignment_4: |dir| Writer::valid(3).key("general.alignment", U32, &4_u32.to_le_bytes()).hostile(dir)
        => ["'general.alignment'", "4 is not a power of two of at least 8"];
    alignment_48: |dir| Writer::valid(3).key("general.alignment", U32, &48_u32.to_le_bytes()).hostile(dir)
        => ["'general.alignment'", "48 is not a power of two"];
    alignment_of_2_gib: |dir| Writer::valid(3).key("general.alignment", U32, &(1_u32 << 31).to_le_bytes()).hostile(dir)
        => ["tensor 'norm'", "data at byte 2147483648", "extend past the file"];
    alignment_as_text: |dir| Writer::valid(3).key("general.alignment", STRING, &text("32")).hostile(dir)
        => ["'general.alignment'", "u32 expected, found string"];
    tensor_name_not_utf8: |dir| Writer::valid(3).tensor(b"\x80", &[8], TENSOR_F32, 160).data(200).hostile(dir)
        => ["name of tensor 3 of 3", "not UTF-8"];
    tensor_name_with_control_characters: |dir| Writer::valid(3).tensor("\x1b[2J\n", &[0], TENSOR_F32, 160).hostile(dir)
        => ["tensor '\\u{1b}[2J\\n'", "dimension of 0"];
    tensor_name_of_a_megabyte: |dir| Writer::valid(3).tensor("é".repeat(1 << 19), &[0], TENSOR_F32, 160).hostile(dir)
        => ["tensor 'ééé", "é…'", "dimension of 0"];
    duplicate_tensor_name: |dir| Writer::valid(3).tensor("norm", &[8], TENSOR_F32, 160).data(200).hostile(dir)
        => ["tensor 'norm'", "duplicate name"];
    no_dimensions: |dir| Writer::valid(3).tensor("odd", &[], TENSOR_F32, 160).data(200).hostile(dir)
        => ["tensor 'odd'", "0 dimensions"];
    five_dimensions: |dir| Writer::valid(3).tensor("odd", &[1; 5], TENSOR_F32, 160).data(200).hostile(dir)
        => ["tensor 'odd'", "5 dimensions", "1 to 4"];
    four_billion_dimensions: |dir| {
        let entry = [&text("odd")[..], &[255; 40]].concat();
        Writer::valid(3).with(|file| file.tensors.push(entry)).hostile(dir)
    } => ["tensor 'odd'", "4294967295 dimensions"];
    dimension_of_0: |dir| Writer::valid(3).tensor("odd", &[8, 0], TENSOR_F32, 160).hostile(dir)
        => ["tensor 'odd'", "shape [0, 8]", "dimension of 0"];
    shape_of_2_to_the_63: |dir| Writer::valid(3).tensor("odd", &[1 << 63], TENSOR_F32, 160).hostile(dir)
        => ["tensor 'odd'", "9223372036854775808", "overflows 64 bits"];
    shape_whose_product_overflows: |dir| Writer::valid(3).tensor("odd", &[1 << 32; 4], TENSOR_F32, 160).hostile(dir)
        => ["tensor 'odd'", "4294967296, 4294967296", "overflows 64 bits"];
    shape_of_2_to_the_63_in_blocks: |dir| Writer::valid(3).tensor("odd", &[1 << 63], TENSOR_Q4_0, 160).hostile(dir)
        => ["tensor 'odd'", "5188146770730811392 bytes", "extend past the file"];
    row_of_half_a_block: |dir| Writer::valid(3).tensor("odd", &[48, 2], TENSOR_Q4_0, 160).data(300).hostile(dir)
        => ["tensor 'odd'", "rows of 48 values", "blocks of 32, as Q4_0 requires"];
    unsupported_type: |dir| Writer::valid(3).tensor("odd", &[256], TENSOR_IQ2_XS, 160).data(300).hostile(dir)
        => ["tensor 'odd' of type IQ2_XS", "not supported", "llama-quantize"];
    type_unknown: |dir| Writer::valid(3).tensor("odd", &[256], 4711, 160).data(300).hostile(dir)
        => ["tensor 'odd' of type unknown (ggml type 4711)", "not supported"];
    offset_not_aligned: |dir| Writer::valid(3).tensor("odd", &[8], TENSOR_F32, 168).data(300).hostile(dir)
        => ["tensor 'odd'", "offset 168", "multiple of the alignment 32"];
    tensor_past_the_end: |dir| Writer::valid(3).tensor("odd", &[8], TENSOR_F32, 160).data(191).hostile(dir)
        => ["tensor 'odd'", "32 bytes at offset 160", "extend past the file", "truncated"];
    offset_that_overflows: |dir| Writer::valid(3).tensor("odd", &[8], TENSOR_F32, u64::MAX - 31).hostile(dir)
        => ["tensor 'odd'", "extend past the file"];
    tensors_overlap: |dir| Writer::valid(3).tensor("odd", &[8], TENSOR_F32, 128).data(300).hostile(dir)
        => ["tensor 'odd'", "inside tensor 'embed'"];
    tensors_at_the_same_offset: |dir| Writer::empty(3)
        .tensor("one", &[8], TENSOR_F32, 0).tensor("two", &[8], TENSOR_F32, 0).data(32).hostile(dir)
        => ["inside tensor"];
    part_missing: |dir| {
        Writer::part(0, 3, 3).save(dir.join("m-00001-of-00003.gguf"));
        Writer::part(2, 3, 3).save(dir.join("m-00003-of-00003.gguf"))
    } => ["missing parts of 3", "m-00002-of-00003.gguf", "to the same folder"];
    all_other_parts_missing: |dir| Writer::part(0, u16::MAX, 3).save(dir.join("m-00001-of-65535.gguf"))
        => ["m-00002-of-65535.gguf", "and possibly more"];
    part_renamed: |dir| Writer::part(1, 2, 0).hostile(dir) => ["part 2 of 2", "must end in '-00002-of-00002.gguf'"];
    part_with_another_number: |dir| Writer::part(1, 2, 0).save(dir.join("m-00001-of-00002.gguf"))
        => ["part 2 of 2", "must end in '-00002-of-00002.gguf'"];
    part_past_the_count: |dir| Writer::part(2, 2, 0).save(dir.join("m-00003-of-00002.gguf"))
        => ["'split.no'", "2 is out of range for 2 parts"];
    part_name_without_split_metadata: |dir| Writer::valid(3).save(dir.join("m-00001-of-00002.gguf"))
        => ["named part 1 of 2", "no split.count"];
    part_of_another_split: |dir| {
        Writer::part(1, 3, 0).save(dir.join("m-00002-of-00002.gguf"));
        Writer::part(0, 2, 0).save(dir.join("m-00001-of-00002.gguf"))
    } => ["m-00002-of-00002.gguf", "is part 2 of 3", "expected part 2 of 2"];
    part_of_another_model: |dir| {
        Writer::part(1, 2, 7).save(dir.join("m-00002-of-00002.gguf"));
        Writer::part(0, 2, 0).save(dir.join("m-00001-of-00002.gguf"))
    } => ["m-00002-of-00002.gguf", "7 tensors in total", "0 tensors in total"];
    parts_with_too_few_tensors: |dir| {
        Writer::part(0, 2, 2).tensor("one", &[8], TENSOR_F32, 0).data(32).save(dir.join("m-00001-of-00002.gguf"));
        Writer::part(1, 2, 2).save(dir.join("m-00002-of-00002.gguf"))
    } => ["'split.tensors.count' is 2", "have 1"];
    parts_with_too_many_tensors: |dir| {
        Writer::part(1, 2, 0).save(dir.join("m-00002-of-00002.gguf"));
        Writer::part(0, 2, 0).tensor("one", &[8], TENSOR_F32, 0).data(32).save(dir.join("m-00001-of-00002.gguf"))
    } => ["'split.tensors.count' is 0", "have 1"];
    parts_share_a_tensor: |dir| {
        Writer::part(0, 2, 2).tensor("one", &[8], TENSOR_F32, 0).data(32).save(dir.join("m-00001-of-00002.gguf"));
        Writer::part(1, 2, 2).tensor("one", &[8], TENSOR_F32, 0).data(32).save(dir.join("m-00002-of-00002.gguf"))
    } => ["tensor 'one'", "m-00001-of-00002.gguf: the parts do not belong to one model"];
    huge_tensor_count_of_parts: |dir| Writer::part(0, 2, i32::MAX).save(dir.join("m-00001-of-00002.gguf"))
        => ["'split.tensors.count'", "2147483647 tensors", "the limit is 65536"];
    negative_tensor_count_of_parts: |dir| Writer::part(0, 2, -1).save(dir.join("m-00001-of-00002.gguf"))
        => ["'split.tensors.count'", "u64 expected, found i32 -1"];
}

/// The limit on all headers of a model, in bytes.
const MAX_HEADER: usize = 32 << 20;

/// Files that fill the header to its limit before the error: those that cost the most time and memory.
const LARGEST: &[(&str, Build)] = &[
    ("four million empty tokens", |dir| {
        let count = MAX_HEADER as u64 / 8 - 100;
        Writer::empty(3)
            .key("tokens", ARRAY, &array(STRING, count, &vec![0; count as usize * 8]))
            .key("odd", BOOL, &[2])
            .hostile(dir)
    }),
    ("one token of 31 MiB with an invalid last byte", |dir| {
        let token = ["é".repeat(31 << 19).as_bytes(), b"\xff"].concat();
        Writer::empty(3).key("tokens", ARRAY, &array(STRING, 1, &text(token))).hostile(dir)
    }),
    ("maximum number of long keys, two of them equal", |dir| {
        let prefix = "k".repeat(2000);
        (0..16_384_u32)
            .fold(Writer::empty(3), |file, key| file.key(format!("{prefix}{}", key.min(16_382)), U8, &[0]))
            .hostile(dir)
    }),
    ("maximum number of tensors with long names, two of them equal", |dir| {
        let prefix = "t".repeat(460);
        let file = (0..65_536_u64).fold(Writer::empty(3), |file, tensor| {
            file.tensor(format!("{prefix}{}", tensor.min(65_534)), &[8], TENSOR_F32, tensor * 32)
        });
        file.data(65_536 * 32).hostile(dir)
    }),
    ("two parts that each fill the limit", |dir| {
        let filler = array(U8, 31 << 20, &vec![0; 31 << 20]);
        Writer::part(0, 2, 0).key("filler", ARRAY, &filler).save(dir.join("m-00001-of-00002.gguf"));
        Writer::part(1, 2, 0).key("filler", ARRAY, &filler).save(dir.join("m-00002-of-00002.gguf"))
    }),
];

/// Maximum growth of the process while opening a file.
const MAX_MEMORY_KIB: u64 = 64 << 10;

/// Environment variable of a child process of this test: the file to open, or `ballast`.
const CHILD_OPENS: &str = "INDRIK_TEST_CHILD_OPENS";

/// Peak resident memory of this process.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("read /proc/self/status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    line.trim().trim_end_matches(" kB").parse().expect("number of KiB")
}

/// Not a test itself: run in child processes of the tests below. Peak memory never decreases, so every file
/// needs a fresh process.
#[test]
fn child() {
    let Some(path) = std::env::var_os(CHILD_OPENS) else {
        println!("skipped: runs only in child processes of the memory tests");
        return;
    };
    let before = peak_kib();
    if path == "ballast" {
        std::hint::black_box(vec![1_u8; 80 << 20]);
    } else {
        gguf::open(Path::new(&path)).expect_err("malicious file was accepted");
    }
    println!("\nmeasured {}", peak_kib() - before);
}

/// Growth of a fresh process's peak memory while it rejects `path`, in KiB.
fn peak_growth_kib(path: &Path) -> u64 {
    let this = std::env::current_exe().expect("path of this test");
    let mut child = Command::new(this);
    child.args(["--exact", "gguf_hostile::child", "--nocapture", "--test-threads=1"]).env(CHILD_OPENS, path);
    let output = child.output().expect("start a child process");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let line = text.lines().find_map(|line| line.strip_prefix("measured ")).expect("measurement");
    line.parse().expect("a number")
}

fn assert_within_memory_limit(cases: &[(&str, Build)]) {
    for (name, build) in cases {
        let dir = tempfile::tempdir().expect("create a temporary folder");
        let kib = peak_growth_kib(&build(dir.path()));
        println!("{kib:>6} KiB  {name}");
        assert!(kib < MAX_MEMORY_KIB, "{name}: {kib} KiB");
    }
}

#[test]
fn malicious_files_are_rejected_within_64_mib() {
    let kib = peak_growth_kib(Path::new("ballast"));
    assert!(kib > MAX_MEMORY_KIB, "the measurement misses an allocation of 80 MiB: {kib} KiB");
    assert_within_memory_limit(CASES);
}

#[test]
fn files_at_the_limits_are_rejected_within_64_mib() {
    assert_within_memory_limit(LARGEST);
}

#[test]
#[ignore = "measures time: `make soak` runs it"]
fn files_at_the_limits_are_rejected_in_linear_time() {
    let tokens: Vec<u8> =
        (0..MAX_HEADER / REFERENCE_SHARE / 16).flat_map(|n| text(format!("{n:08}"))).collect();
    let count = tokens.len() as u64 / 16;
    let ordinary = Writer::empty(3).key("tokens", ARRAY, &array(STRING, count, &tokens)).finish();
    for (name, build) in LARGEST {
        let dir = tempfile::tempdir().expect("create a temporary folder");
        let path = build(dir.path());
        let open_costly = || drop(gguf::open(&path).expect_err("malicious file was accepted"));
        assert_linear(name, open_costly, || drop(parse(&ordinary).expect("valid file")));
    }
}

/// Counts the bytes that are read from it.
struct CountingReader<R> {
    inner: R,
    bytes: u64,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.bytes += count as u64;
        Ok(count)
    }
}

#[test]
fn at_most_the_header_limit_is_read() {
    // Zeros are empty strings, and the file claims to be 16 GiB of them.
    let count = MAX_HEADER as u64 / 8 - 100;
    let header = Writer::empty(3)
        .key("tokens", ARRAY, &array(STRING, count, &[]))
        .with(|file| file.key_count = Some(16_000))
        .header();
    let mut file = CountingReader { inner: header.as_slice().chain(std::io::repeat(0)), bytes: 0 };
    let error =
        gguf::parse(Path::new("memory.gguf"), &mut file, 16 << 30).expect_err("must exceed the limit");
    assert!(error.to_string().contains("header longer than the limit"), "{error}");
    let buffer = 256 << 10;
    let limit = MAX_HEADER as u64 + buffer;
    assert!((MAX_HEADER as u64 / 2..=limit).contains(&file.bytes), "{} bytes were read", file.bytes);
}

fn parse(bytes: &[u8]) -> checkpoint::Result<Gguf> {
    gguf::parse(Path::new("memory.gguf"), bytes, bytes.len() as u64)
}

/// Asserts the guarantees of a successful parse.
fn assert_sound(gguf: &Gguf, len: u64) {
    for tensor in &gguf.source.tensors {
        assert_eq!(tensor.encoding.bytes(&tensor.shape), Some(tensor.data.len));
        assert!(tensor.data.len > 0 && tensor.data.offset + tensor.data.len <= len);
        assert!(tensor.data.offset.is_multiple_of(gguf.alignment));
    }
}

#[test]
fn valid_files_are_read_as_written() {
    for version in [2, 3] {
        let dir = tempfile::tempdir().expect("create a temporary folder");
        let file = Writer::valid(version);
        let path = file.save(dir.path().join("valid.gguf"));
        let header = file.clone().data(0).finish().len() as u64;
        let gguf = gguf::open(&path).expect("valid file");

        assert_eq!((gguf.version, gguf.alignment, gguf.source.format), (version, 32, Format::Gguf));
        assert_eq!(gguf.source.files, [path]);
        let [norm, embed] = &gguf.source.tensors[..] else { panic!("{:?}", gguf.source.tensors) };
        assert_eq!((norm.name.as_str(), &norm.shape[..], norm.encoding), ("norm", &[8][..], Encoding::F32));
        assert_eq!((norm.data.file, norm.data.offset, norm.data.len), (0, header, 32));
        assert_eq!(
            (embed.name.as_str(), &embed.shape[..], embed.encoding),
            ("embed", &[3, 64][..], Encoding::Q4_0)
        );
        assert_eq!((embed.data.file, embed.data.offset, embed.data.len), (0, header + 32, 108));

        let metadata = &gguf.metadata;
        let keys: Vec<&str> = metadata.iter().map(|(key, _)| key).collect();
        assert_eq!(keys[..3], ["general.architecture", "gemma3.block_count", "gemma3.rope.freq_base"]);
        assert_eq!(keys.len(), 11);
        assert_eq!(metadata.str("general.architecture").expect("string"), "gemma3");
        assert_eq!(metadata.u32("gemma3.block_count").expect("u32"), 18);
        assert_eq!(metadata.u64("gemma3.block_count").expect("wider"), 18);
        assert_eq!(metadata.i32("gemma3.block_count").expect("signed"), 18);
        assert_eq!(metadata.u64("general.size").expect("u64"), 1 << 40);
        assert_eq!(metadata.f32("gemma3.rope.freq_base").expect("f32"), 1e6);
        assert_eq!(metadata.f32("general.double").expect("narrower"), 0.25);
        assert!(metadata.bool("tokenizer.ggml.add_bos_token").expect("bool"));
        let tokens = metadata.array_str("tokenizer.ggml.tokens").expect("strings");
        assert_eq!(tokens.iter().collect::<Vec<_>>(), ["<pad>", "", "▁é"]);
        assert_eq!(
            [tokens.get(0), tokens.get(1), tokens.get(2), tokens.get(3)],
            [Some("<pad>"), Some(""), Some("▁é"), None]
        );
        assert_eq!(*metadata.array_f32("tokenizer.ggml.scores").expect("floats"), [0.5, -1.0]);
        assert_eq!(*metadata.array_i32("tokenizer.ggml.token_type").expect("integers"), [1, -1]);
        assert_eq!(*metadata.array_i32("general.bytes").expect("wider"), [7, 8, 255]);
        assert_eq!(metadata.array_bool("general.flags").expect("bools"), [true, false]);
        assert_eq!(metadata.get("general.bytes"), Some(&Value::Array(Array::U8(vec![7, 8, 255]))));
        assert_eq!(metadata.optional("absent", gguf::Metadata::u32).expect("no error"), None);
    }
}

#[test]
fn getter_errors_name_the_key_and_both_types() {
    let gguf = parse(&Writer::valid(3).finish()).expect("valid file");
    let text = |error: Option<Error>| error.expect("wrong type must be an error").to_string();
    let metadata = &gguf.metadata;
    for (error, expected) in [
        (text(metadata.u32("absent").err()), "metadata key 'absent': u32 expected, found no such key"),
        (text(metadata.u32("general.size").err()), "'general.size': u32 expected, found u64 1099511627776"),
        (text(metadata.f32("gemma3.block_count").err()), "'gemma3.block_count': f32 expected, found u32 18"),
        (text(metadata.str("tokenizer.ggml.scores").err()), "string expected, found array of 2 f32"),
        (text(metadata.array_str("general.architecture").err()), "array of string expected, found string"),
        (
            text(metadata.array_u32("tokenizer.ggml.token_type").err()),
            "'tokenizer.ggml.token_type': array of u32 expected, but element 1 is -1",
        ),
        (
            text(metadata.optional("general.size", gguf::Metadata::u32).err()),
            "'general.size': u32 expected, found u64 1099511627776",
        ),
    ] {
        assert!(
            error.starts_with("memory.gguf: ") && error.contains(expected),
            "'{expected}' is not in: {error}"
        );
    }
}

#[test]
fn data_starts_at_the_alignment() {
    for alignment in [8, 4096] {
        let mut file = Writer::empty(3)
            .key("general.alignment", U32, &(alignment as u32).to_le_bytes())
            .tensor("one", &[1], TENSOR_F32, 0)
            .tensor("two", &[1], TENSOR_F32, alignment as u64)
            .data(alignment + 4);
        file.alignment = alignment;
        let bytes = file.finish();
        let gguf = parse(&bytes).expect("valid file");
        assert_eq!(gguf.alignment, alignment as u64);
        assert_eq!(gguf.source.tensors[1].data.offset, bytes.len() as u64 - 4);
    }
}

#[test]
fn opening_any_part_opens_all_parts() {
    let dir = tempfile::tempdir().expect("create a temporary folder");
    let paths: Vec<PathBuf> =
        (1..=3).map(|part| dir.path().join(format!("m-0000{part}-of-00003.gguf"))).collect();
    // As llama-gguf-split does on request: the first part has the metadata and no tensors.
    Writer::part(0, 3, 3).key("general.architecture", STRING, &text("gemma3")).save(paths[0].clone());
    let second = Writer::part(1, 3, 3).tensor("one", &[8], TENSOR_F32, 0).tensor("two", &[8], TENSOR_F32, 32);
    second.data(64).save(paths[1].clone());
    Writer::part(2, 3, 3).tensor("three", &[8], TENSOR_F32, 0).data(32).save(paths[2].clone());
    for path in &paths {
        let gguf = gguf::open(path).expect("valid model");
        assert_eq!(gguf.source.files, paths);
        let tensors: Vec<(&str, usize)> =
            gguf.source.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.data.file)).collect();
        assert_eq!(tensors, [("one", 1), ("two", 1), ("three", 2)]);
        assert_eq!(gguf.metadata.str("general.architecture").expect("key of the first part"), "gemma3");
    }
}

#[test]
fn merged_files_are_read_as_complete_models() {
    let file = Writer::valid(3).key("split.count", U16, &[0, 0]).key("split.no", U16, &[0, 0]);
    let dir = tempfile::tempdir().expect("create a temporary folder");
    assert_eq!(gguf::open(&file.hostile(dir.path())).expect("valid file").source.tensors.len(), 2);
}

#[test]
fn every_truncation_is_an_error() {
    let dir = tempfile::tempdir().expect("create a temporary folder");
    for version in [2, 3] {
        let file = Writer::valid(version);
        let (header, bytes) = (file.header().len(), file.finish());
        parse(&bytes).expect("valid file");
        for len in 0..bytes.len() {
            let error = parse(&bytes[..len]).expect_err("truncated file was accepted").to_string();
            assert!(error.starts_with("memory.gguf: ") && error.contains("truncated"), "{len}: {error}");
            // A file that shrinks while being read: it ends before its reported length.
            let shrunk = gguf::parse(Path::new("memory.gguf"), &bytes[..len], bytes.len() as u64);
            assert_eq!(shrunk.is_err(), len < header, "{len}");
        }
        let path = dir.path().join("truncated.gguf");
        std::fs::write(&path, &bytes[..bytes.len() - 1]).expect("write to the temporary folder");
        let error = gguf::open(&path).expect_err("truncated file was accepted").to_string();
        assert!(error.contains("truncated.gguf: tensor 'embed'"), "{error}");
    }
}

/// SplitMix64, for the same mutations on every run and machine.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) % limit as u64) as usize
    }
}

/// The fuzz target in a bounded form for stable Rust.
#[test]
fn fifty_thousand_mutations_never_panic() {
    const EXTREMES: [u64; 8] = [0, 1, 255, 1 << 31, 1 << 32, 1 << 60, 1 << 63, u64::MAX];
    let valid = Writer::valid(3).finish();
    let mut random = Random(3);
    let mut read = 0;
    for _ in 0..50_000 {
        let mut bytes = valid.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            match random.below(5) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = random.below(256) as u8,
                2 => bytes.truncate(at + 1),
                3 => {
                    let extreme = EXTREMES[random.below(EXTREMES.len())].to_le_bytes();
                    bytes.iter_mut().skip(at).zip(extreme).for_each(|(byte, extreme)| *byte = extreme);
                }
                _ => {
                    let copy: Vec<u8> = bytes[at..].iter().take(random.below(64)).copied().collect();
                    let to = random.below(bytes.len());
                    bytes.splice(to..to, copy);
                }
            }
        }
        if let Ok(gguf) = parse(&bytes) {
            assert_sound(&gguf, bytes.len() as u64);
            read += 1;
        }
    }
    println!("{read} of 50,000 mutated files were still valid");
    assert!(read > 0, "if every mutation breaks the file, code after the first checks is not reached");
}

proptest! {
    #[test]
    fn flipped_bytes_never_panic(flips in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 1..8)) {
        let mut bytes = Writer::valid(2).finish();
        for (at, flip) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
        }
        if let Ok(gguf) = parse(&bytes) {
            assert_sound(&gguf, bytes.len() as u64);
        }
    }

    #[test]
    fn random_bytes_after_the_magic_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let bytes = [&b"GGUF\x03\0\0\0"[..], &bytes].concat();
        if let Ok(gguf) = parse(&bytes) {
            assert_sound(&gguf, bytes.len() as u64);
        }
    }
}

#[test]
fn real_file_is_read() {
    let Some(path) = std::env::var_os("INDRIK_TEST_GGUF") else {
        println!("skipped: INDRIK_TEST_GGUF is not set");
        return;
    };
    let path = PathBuf::from(path);
    let gguf = gguf::open(&path).expect("valid file");
    let (keys, tensors) = (gguf.metadata.len(), gguf.source.tensors.len());
    println!("{}: version {}, {keys} keys, {tensors} tensors", path.display(), gguf.version);
    for (key, value) in gguf.metadata.iter() {
        println!("  {key}: {}", value.describe());
    }
    let len = std::fs::metadata(&path).expect("file metadata").len();
    assert_sound(&gguf, len);
    assert!(keys > 0 && tensors > 0);
}
