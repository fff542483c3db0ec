//! Damaged and malicious safetensors: each is rejected in linear time and within 64 MiB, with an error that
//! names the file and tensor.

use std::fmt::Write;
use std::path::Path;

use crate::common::{REFERENCE_SHARE, assert_linear};
use checkpoint::safetensors::{self, Dtype, Header, MAX_ENTRIES, MAX_HEADER};
use checkpoint::{Error, Result};
use proptest::prelude::*;

/// Maximum growth of the process while opening a file.
const MAX_MEMORY_KIB: u64 = 64 << 10;

fn parse(header: impl AsRef<[u8]>, data: u64) -> Result<Header> {
    safetensors::parse_header(Path::new("x.safetensors"), header.as_ref(), data)
}

/// The error for a header that is followed by `data` bytes; it must name the file.
fn rejected(header: impl AsRef<[u8]>, data: u64) -> String {
    let text = parse(header, data).expect_err("malicious header was accepted").to_string();
    assert!(text.starts_with("x.safetensors: "), "{text}");
    assert!(text.len() < 1000, "message of {} bytes", text.len());
    text
}

/// The error for a header with one tensor `w` of this description; it must name the tensor.
fn rejected_tensor(description: &str, data: u64) -> String {
    let text = rejected(format!(r#"{{"w":{description}}}"#), data);
    assert!(text.contains("tensor 'w'"), "{text}");
    text
}

/// The error for a file with these bytes.
fn rejected_file(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    let text = safetensors::open(&path).expect_err("malicious file was accepted").to_string();
    assert!(text.contains("model.safetensors"), "{text}");
    text
}

fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[track_caller]
fn assert_contains(text: &str, part: &str) {
    assert!(text.contains(part), "'{part}' is not in: {text}");
}

const TWO: &str = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                      "b":{"dtype":"BF16","shape":[3,1],"data_offsets":[8,14]}}"#;

#[test]
fn valid_headers_are_sorted_by_data_offset() {
    let header = r#"{"__metadata__":{"format":"pt"},
        "late":{"dtype":"F16","shape":[2,2],"data_offsets":[9,17]},
        "scalar":{"dtype":"U8","shape":[],"data_offsets":[8,9]},
        "empty":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},
        "odd":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8],"note":{"deep":[1]}}}   "#;
    let header = parse(header, 17).unwrap();
    assert_eq!(header.metadata["format"], "pt");
    let names: Vec<&str> = header.entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["empty", "odd", "scalar", "late"]);
    assert_eq!(header.entries[1].dtype, Dtype::Other("F8_E4M3".to_string()));
    assert_eq!(header.entries[2].values(), 1);
    assert_eq!((header.entries[3].begin, header.entries[3].end), (9, 17));
}

#[test]
fn spans_are_relative_to_the_start_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, file(TWO, 14)).unwrap();
    let opened = safetensors::open(&path).unwrap();
    let span = opened.span(3, &opened.header.entries[1]);
    assert_eq!((span.file, span.offset, span.len), (3, 8 + TWO.len() as u64 + 8, 6));
}

#[test]
fn empty_file() {
    assert_contains(&rejected_file(b""), "has 0 bytes");
}

#[test]
fn file_shorter_than_the_length_prefix() {
    assert_contains(&rejected_file(&[2, 0, 0]), "has 3 bytes, too few for a header");
}

#[test]
fn truncated_header() {
    assert_contains(&rejected_file(&file(TWO, 0)[..40]), "but only 32 bytes follow: the file is truncated");
}

#[test]
fn header_of_2_to_the_64_bytes() {
    assert_contains(&rejected_file(&[0xff; 64]), "claims a header of 18446744073709551615 bytes");
}

#[test]
fn header_above_the_limit() {
    assert_contains(
        &rejected_file(&(MAX_HEADER + 1).to_le_bytes()),
        "claims a header of 4194305 bytes, but the limit is 4194304",
    );
}

#[test]
fn git_lfs_pointer() {
    assert_contains(
        &rejected_file(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n"),
        "git lfs pull",
    );
}

#[test]
fn folder_instead_of_file() {
    let folder = tempfile::tempdir().unwrap();
    assert_contains(&safetensors::open(folder.path()).unwrap_err().to_string(), "is not a regular file");
}

#[test]
fn missing_file() {
    let error = safetensors::open(Path::new("/nonexistent/w.safetensors")).unwrap_err();
    assert!(matches!(&error, Error::Io { path, .. } if path.ends_with("w.safetensors")), "{error}");
}

#[test]
fn truncated_data() {
    let text = rejected_file(&file(TWO, 13));
    assert_contains(&text, "tensor 'b': data ends at byte 14 of 13: the file is truncated");
}

#[test]
fn not_utf_8() {
    assert_contains(&rejected(b"{\"a\xff\":1}", 0), "the header is not valid UTF-8 at byte 3");
}

#[test]
fn lone_surrogate() {
    assert_contains(&rejected(r#"{"\ud800":{}}"#, 0), "invalid header");
}

#[test]
fn not_json() {
    assert_contains(&rejected("GGUF", 0), "does not start with '{'");
    assert_contains(&rejected("", 0), "does not start with '{'");
    assert_contains(&rejected("{\"a\":", 0), "tensor 'a'");
    assert_contains(&rejected("{,}", 0), "invalid header");
}

#[test]
fn text_after_the_header() {
    assert_contains(&rejected(format!("{TWO}x"), 14), "trailing characters");
}

#[test]
fn deep_nesting() {
    for open in ["[", r#"{"x":"#] {
        let deep = open.repeat(100_000);
        assert_contains(&rejected_tensor(&format!(r#"{{"x":{deep}"#), 0), "invalid description");
        assert_contains(
            &rejected_tensor(&format!(r#"{{"shape":[{deep}"#), 0),
            "expected an unsigned 64-bit integer",
        );
        assert_contains(&rejected(format!(r#"{{"__metadata__":{{"k":{deep}"#), 0), "expected a string");
    }
}

#[test]
fn list_instead_of_tensor() {
    assert_contains(
        &rejected_tensor(r#"["F32",[1],[0,4]]"#, 4),
        "expected an object with dtype, shape and data_offsets",
    );
}

#[test]
fn number_instead_of_dtype() {
    assert_contains(
        &rejected_tensor(r#"{"dtype":4,"shape":[1],"data_offsets":[0,4]}"#, 4),
        "invalid type: integer `4`",
    );
}

#[test]
fn string_instead_of_shape() {
    let text = rejected_tensor(r#"{"dtype":"F32","shape":"1","data_offsets":[0,4]}"#, 4);
    assert_contains(&text, "expected a list of unsigned 64-bit integers");
}

#[test]
fn long_strings_are_not_quoted_in_errors() {
    let long = "\u{200b}".repeat(1_000_000);
    let text = rejected_tensor(&format!(r#"{{"shape":["{long}"]}}"#), 0);
    assert_contains(&text, "invalid type: a string, expected an unsigned 64-bit integer");
    assert_contains(
        &rejected(format!(r#"{{"__metadata__":"{long}"}}"#), 0),
        "a string, expected __metadata__",
    );
    assert_contains(&rejected_tensor(&format!(r#""{long}""#), 0), "a string, expected an object");
}

#[test]
fn invalid_dimensions() {
    for dimension in ["-1", "1.5", "18446744073709551616", "1e400", "null", "[1]"] {
        let tensor = format!(r#"{{"dtype":"F32","shape":[{dimension}],"data_offsets":[0,4]}}"#);
        assert_contains(&rejected_tensor(&tensor, 4), "invalid description");
    }
}

#[test]
fn too_many_dimensions() {
    let shape = "1,".repeat(1_000_000) + "1";
    let text = rejected_tensor(&format!(r#"{{"dtype":"F32","shape":[{shape}],"data_offsets":[0,4]}}"#), 4);
    assert_contains(&text, "list of more than 8 numbers");
}

#[test]
fn value_count_overflow() {
    let tensor = r#"{"dtype":"U8","shape":[9223372036854775808,2],"data_offsets":[0,0]}"#;
    assert_contains(&rejected_tensor(tensor, 0), "overflows 64 bits");
    // A type of unknown width, and a zero after the overflow.
    let tensor = r#"{"dtype":"X","shape":[9223372036854775808,4,0],"data_offsets":[0,0]}"#;
    assert_contains(&rejected_tensor(tensor, 0), "overflows 64 bits");
}

#[test]
fn byte_count_overflow() {
    let tensor = r#"{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,0]}"#;
    assert_contains(&rejected_tensor(tensor, 0), "overflows 64 bits");
}

#[test]
fn shape_that_does_not_match_the_data() {
    let text = rejected_tensor(r#"{"dtype":"BF16","shape":[3,2],"data_offsets":[0,16]}"#, 16);
    assert_contains(&text, "[3, 2] of BF16 needs 12 bytes, but the data has 16");
}

#[test]
fn three_offsets() {
    let text = rejected_tensor(r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}"#, 4);
    assert_contains(&text, "data_offsets has 3 numbers, expected 2");
}

#[test]
fn end_before_begin() {
    let text = rejected_tensor(r#"{"dtype":"F32","shape":[1],"data_offsets":[4,0]}"#, 4);
    assert_contains(&text, "ends at byte 0, before it begins at byte 4");
}

#[test]
fn offset_of_2_to_the_64() {
    let text = rejected_tensor(r#"{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}"#, 4);
    assert_contains(&text, "ends at byte 18446744073709551615 of 4");
}

#[test]
fn missing_field() {
    assert_contains(&rejected_tensor(r#"{"dtype":"F32","shape":[1]}"#, 4), "missing field `data_offsets`");
    assert_contains(&rejected_tensor("{}", 4), "missing field `dtype`");
}

#[test]
fn duplicate_field() {
    let text = rejected_tensor(r#"{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}"#, 4);
    assert_contains(&text, "duplicate shape");
}

#[test]
fn overlapping_tensors() {
    let text = rejected(TWO.replace("[8,14]", "[4,10]"), 10);
    assert_contains(&text, "tensor 'b': data begins at byte 4, inside tensor 'a', which ends at byte 8");
}

#[test]
fn gaps_before_and_between_tensors() {
    assert_contains(&rejected(TWO.replace("[8,14]", "[10,16]"), 16), "tensor 'b': data begins at byte 10");
    assert_contains(
        &rejected_tensor(r#"{"dtype":"U8","shape":[1],"data_offsets":[1,2]}"#, 2),
        "the previous tensor ends at byte 0",
    );
}

#[test]
fn data_outside_of_tensors() {
    assert_contains(&rejected(TWO, 20), "6 bytes after byte 14 of the data belong to no tensor");
    assert_contains(&rejected("{}", 1), "1 bytes after byte 0");
}

#[test]
fn duplicate_tensor() {
    let text = rejected(TWO.replace("\"b\"", "\"a\""), 14);
    assert_contains(&text, "tensor 'a': duplicate name in the header");
}

#[test]
fn duplicate_metadata() {
    assert_contains(&rejected(r#"{"__metadata__":{},"__metadata__":{}}"#, 0), "duplicate __metadata__");
    assert_contains(
        &rejected(r#"{"__metadata__":{"k":"1","k":"2"}}"#, 0),
        "__metadata__ has duplicate key 'k'",
    );
}

#[test]
fn metadata_that_is_not_strings() {
    assert_contains(&rejected(r#"{"__metadata__":{"k":1}}"#, 0), "expected a string");
    assert_contains(&rejected(r#"{"__metadata__":[]}"#, 0), "expected __metadata__, an object of strings");
}

#[test]
fn unprintable_names() {
    assert_contains(&rejected(r#"{"":{}}"#, 0), "empty name");
    assert_contains(&rejected(r#"{"a\u001b[2J":{}}"#, 0), r"control characters: 'a\u{1b}[2J'");
    assert_contains(
        &rejected(format!(r#"{{"{}":{{}}}}"#, "n".repeat(513)), 0),
        "name of 513 bytes, but the limit is 512",
    );
}

#[test]
fn too_many_tensors() {
    assert_contains(&rejected(many_tensors(MAX_ENTRIES + 1), 0), "more than 32768 tensors");
    let mut metadata = r#"{"__metadata__":{"#.to_string();
    (0..=MAX_ENTRIES).for_each(|number| write!(metadata, r#""{number}":"","#).unwrap());
    assert_contains(&rejected(metadata, 0), "__metadata__ has more than 32768 entries");
}

fn many_tensors(count: usize) -> String {
    let mut header = "{".to_string();
    for number in 0..count {
        let comma = if number == 0 { "" } else { "," };
        write!(header, r#"{comma}"{number}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#).unwrap();
    }
    header + "}"
}

/// The most expensive headers up to the size limit.
fn costly() -> Vec<String> {
    let size = MAX_HEADER as usize;
    let padded = |header: String| header + &" ".repeat(size);
    let wide = "\u{200b}".repeat((size - 100) / 3);
    let headers = [
        many_tensors(MAX_ENTRIES),
        format!(r#"{{"w":{{"shape":["{wide}"]}}}}"#),
        format!(r#"{{"__metadata__":"{wide}"}}"#),
        format!(r#"{{"__metadata__":{{"k":"{}"}}}}"#, r"\n".repeat(size / 2 - 20)),
        format!(
            r#"{{"__metadata__":{{{}}}}}"#,
            (0..MAX_ENTRIES).map(|n| format!(r#""{n}":"","#)).collect::<String>()
        ),
        format!(r#"{{"w":{{"x":[{}"#, "0,".repeat(size / 2 - 20)),
    ];
    let cut = |mut header: String| {
        header.truncate(size);
        header
    };
    headers.into_iter().map(padded).map(cut).collect()
}

#[test]
#[ignore = "measures time: `make soak` runs it"]
fn most_expensive_headers_take_linear_time() {
    let ordinary = many_tensors(MAX_ENTRIES / REFERENCE_SHARE);
    for (number, header) in costly().iter().enumerate() {
        let parse_costly = || drop(parse(header, 0));
        assert_linear(&format!("header {number}"), parse_costly, || drop(parse(&ordinary, 0)));
    }
}

/// Runs itself once per header in a separate process and measures its peak memory.
#[test]
#[cfg(target_os = "linux")]
fn most_expensive_headers_stay_within_the_memory_limit() {
    const CHILD: &str = "INDRIK_COSTLY_HEADER";
    if let Ok(path) = std::env::var(CHILD) {
        let before = peak_kib();
        let _ = safetensors::open(Path::new(&path));
        println!("peak:{}", peak_kib() - before);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (number, header) in costly().iter().enumerate() {
        let path = folder.path().join("costly.safetensors");
        std::fs::write(&path, file(header, 0)).unwrap();
        let name = "safetensors_hostile::most_expensive_headers_stay_within_the_memory_limit";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args([name, "--exact", "--nocapture"]).env(CHILD, &path).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let peak = text.split("peak:").nth(1).and_then(|rest| rest.split_whitespace().next());
        let peak: u64 = peak.expect(&text).parse().unwrap();
        println!("header {number}: {} bytes, {peak} KiB", header.len());
        assert!(peak < MAX_MEMORY_KIB, "header {number}: {peak} KiB");
    }
}

#[cfg(target_os = "linux")]
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

proptest! {
    // proptest cannot persist failures beside an integration test; add failing cases as tests by hand.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), data in any::<u64>()) {
        let _ = parse(bytes, data);
    }

    #[test]
    fn mutations_of_a_valid_header_never_panic(at in 0..TWO.len(), byte in any::<u8>(), data in 0_u64..20) {
        let mut bytes = TWO.as_bytes().to_vec();
        bytes[at] = byte;
        let _ = parse(bytes, data);
    }

    #[test]
    fn accepted_headers_cover_the_data_exactly(
        numbers in prop::collection::vec((0_u64..4, 0_u64..4, 0_u64..9, 0_u64..9), 0..4),
        data in 0_u64..20,
    ) {
        let tensors = numbers.iter().enumerate().map(|(number, (rows, width, begin, end))| {
            format!(r#""{number}":{{"dtype":"F16","shape":[{rows},{width}],"data_offsets":[{begin},{end}]}}"#)
        });
        let header = format!("{{{}}}", tensors.collect::<Vec<_>>().join(","));
        if let Ok(header) = parse(header, data) {
            let bytes: u64 = header.entries.iter().map(|entry| 2 * entry.values()).sum();
            prop_assert_eq!(bytes, data);
        }
    }
}
