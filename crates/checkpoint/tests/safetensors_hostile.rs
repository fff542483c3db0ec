//! Damaged and hostile safetensors: each gives its own error, which names the file and the tensor, soon and cheaply.

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use checkpoint::safetensors::{self, Dtype, Header, MAX_ENTRIES, MAX_HEADER};
use checkpoint::{Error, Result};
use proptest::prelude::*;

/// What a header may cost.
const MAX_TIME: Duration = Duration::from_millis(100);
const MAX_MEMORY_KIB: u64 = 64 << 10;

fn parse(header: impl AsRef<[u8]>, data: u64) -> Result<Header> {
    safetensors::parse_header(Path::new("x.safetensors"), header.as_ref(), data)
}

/// The error of a header that `data` bytes follow. It has to name the file.
fn refused(header: impl AsRef<[u8]>, data: u64) -> String {
    let text = parse(header, data).expect_err("a hostile header was taken").to_string();
    assert!(text.starts_with("x.safetensors: "), "{text}");
    assert!(text.len() < 1000, "{} bytes of message", text.len());
    text
}

/// The error of a header with one tensor `w` of this description; it has to name the tensor.
fn refused_tensor(description: &str, data: u64) -> String {
    let text = refused(format!(r#"{{"w":{description}}}"#), data);
    assert!(text.contains("tensor 'w'"), "{text}");
    text
}

/// The error of a file with these bytes.
fn refused_file(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    let text = safetensors::open(&path).expect_err("a hostile file was taken").to_string();
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
fn says(text: &str, part: &str) {
    assert!(text.contains(part), "'{text}' does not say '{part}'");
}

const TWO: &str = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                      "b":{"dtype":"BF16","shape":[3,1],"data_offsets":[8,14]}}"#;

#[test]
fn a_sound_header_is_read_in_the_order_of_its_data() {
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
fn spans_count_from_the_start_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, file(TWO, 14)).unwrap();
    let opened = safetensors::open(&path).unwrap();
    let span = opened.span(3, &opened.header.entries[1]);
    assert_eq!((span.file, span.offset, span.len), (3, 8 + TWO.len() as u64 + 8, 6));
}

#[test]
fn empty_file() {
    says(&refused_file(b""), "has 0 bytes");
}

#[test]
fn file_shorter_than_the_length_of_its_header() {
    says(&refused_file(&[2, 0, 0]), "has 3 bytes, too few for a header");
}

#[test]
fn header_cut_short() {
    says(&refused_file(&file(TWO, 0)[..40]), "but only 32 follow: the file is cut short");
}

#[test]
fn header_of_two_to_the_64() {
    says(&refused_file(&[0xff; 64]), "claims a header of 18446744073709551615 bytes");
}

#[test]
fn header_larger_than_is_read() {
    says(
        &refused_file(&(MAX_HEADER + 1).to_le_bytes()),
        "claims a header of 4194305 bytes, where at most 4194304",
    );
}

#[test]
fn git_lfs_pointer() {
    says(&refused_file(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n"), "git lfs pull");
}

#[test]
fn a_folder_in_place_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    says(&safetensors::open(folder.path()).unwrap_err().to_string(), "is not a regular file");
}

#[test]
fn no_file() {
    let error = safetensors::open(Path::new("/nonexistent/w.safetensors")).unwrap_err();
    assert!(matches!(&error, Error::Io { path, .. } if path.ends_with("w.safetensors")), "{error}");
}

#[test]
fn data_cut_short() {
    let text = refused_file(&file(TWO, 13));
    says(&text, "tensor 'b': its data ends at byte 14 of 13: the file is cut short");
}

#[test]
fn not_utf_8() {
    says(&refused(b"{\"a\xff\":1}", 0), "the header is not UTF-8 from its byte 3 on");
}

#[test]
fn lone_surrogate() {
    says(&refused(r#"{"\ud800":{}}"#, 0), "the header is wrong");
}

#[test]
fn not_json() {
    says(&refused("GGUF", 0), "does not start with '{'");
    says(&refused("", 0), "does not start with '{'");
    says(&refused("{\"a\":", 0), "tensor 'a'");
    says(&refused("{,}", 0), "the header is wrong");
}

#[test]
fn text_after_the_header() {
    says(&refused(format!("{TWO}x"), 14), "trailing characters");
}

#[test]
fn nesting_without_end() {
    for open in ["[", r#"{"x":"#] {
        let deep = open.repeat(100_000);
        says(&refused_tensor(&format!(r#"{{"x":{deep}"#), 0), "its description is wrong");
        says(&refused_tensor(&format!(r#"{{"shape":[{deep}"#), 0), "expected a whole number below 2^64");
        says(&refused(format!(r#"{{"__metadata__":{{"k":{deep}"#), 0), "expected a string");
    }
}

#[test]
fn a_list_in_place_of_a_tensor() {
    says(&refused_tensor(r#"["F32",[1],[0,4]]"#, 4), "expected an object with dtype, shape and data_offsets");
}

#[test]
fn a_number_in_place_of_a_type() {
    says(&refused_tensor(r#"{"dtype":4,"shape":[1],"data_offsets":[0,4]}"#, 4), "invalid type: integer `4`");
}

#[test]
fn text_in_place_of_a_shape() {
    let text = refused_tensor(r#"{"dtype":"F32","shape":"1","data_offsets":[0,4]}"#, 4);
    says(&text, "expected a list of whole numbers");
}

#[test]
fn a_long_text_in_place_of_a_number_is_not_quoted() {
    let long = "\u{200b}".repeat(1_000_000);
    let text = refused_tensor(&format!(r#"{{"shape":["{long}"]}}"#), 0);
    says(&text, "invalid type: a string, expected a whole number below 2^64");
    says(&refused(format!(r#"{{"__metadata__":"{long}"}}"#), 0), "a string, expected __metadata__");
    says(&refused_tensor(&format!(r#""{long}""#), 0), "a string, expected an object");
}

#[test]
fn a_dimension_that_is_negative_or_a_fraction_or_too_large() {
    for dimension in ["-1", "1.5", "18446744073709551616", "1e400", "null", "[1]"] {
        let tensor = format!(r#"{{"dtype":"F32","shape":[{dimension}],"data_offsets":[0,4]}}"#);
        says(&refused_tensor(&tensor, 4), "its description is wrong");
    }
}

#[test]
fn more_dimensions_than_a_tensor_has() {
    let shape = "1,".repeat(1_000_000) + "1";
    let text = refused_tensor(&format!(r#"{{"dtype":"F32","shape":[{shape}],"data_offsets":[0,4]}}"#), 4);
    says(&text, "a list of more than 8 numbers");
}

#[test]
fn values_beyond_64_bits() {
    let tensor = r#"{"dtype":"U8","shape":[9223372036854775808,2],"data_offsets":[0,0]}"#;
    says(&refused_tensor(tensor, 0), "more values than 64 bits can count");
    // A type of unknown width, and a zero that comes too late.
    let tensor = r#"{"dtype":"X","shape":[9223372036854775808,4,0],"data_offsets":[0,0]}"#;
    says(&refused_tensor(tensor, 0), "more values than 64 bits can count");
}

#[test]
fn bytes_beyond_64_bits() {
    let tensor = r#"{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,0]}"#;
    says(&refused_tensor(tensor, 0), "more bytes than 64 bits can count");
}

#[test]
fn a_shape_that_does_not_fill_the_data() {
    let text = refused_tensor(r#"{"dtype":"BF16","shape":[3,2],"data_offsets":[0,16]}"#, 16);
    says(&text, "[3, 2] of BF16 takes 12 bytes, its data has 16");
}

#[test]
fn offsets_that_are_not_two() {
    let text = refused_tensor(r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}"#, 4);
    says(&text, "data_offsets has 3 numbers, not 2");
}

#[test]
fn offsets_that_run_backwards() {
    let text = refused_tensor(r#"{"dtype":"F32","shape":[1],"data_offsets":[4,0]}"#, 4);
    says(&text, "would end at byte 0, before it begins at 4");
}

#[test]
fn offsets_of_two_to_the_64() {
    let text = refused_tensor(r#"{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}"#, 4);
    says(&text, "ends at byte 18446744073709551615 of 4");
}

#[test]
fn a_field_left_out() {
    says(&refused_tensor(r#"{"dtype":"F32","shape":[1]}"#, 4), "missing field `data_offsets`");
    says(&refused_tensor("{}", 4), "missing field `dtype`");
}

#[test]
fn a_field_twice() {
    let text = refused_tensor(r#"{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}"#, 4);
    says(&text, "shape is there twice");
}

#[test]
fn overlapping_tensors() {
    let text = refused(TWO.replace("[8,14]", "[4,10]"), 10);
    says(&text, "tensor 'b': its data begins at byte 4, inside that of 'a', which ends at 8");
}

#[test]
fn a_gap_before_and_between_tensors() {
    says(&refused(TWO.replace("[8,14]", "[10,16]"), 16), "tensor 'b': its data begins at byte 10");
    says(&refused_tensor(r#"{"dtype":"U8","shape":[1],"data_offsets":[1,2]}"#, 2), "before it ends at 0");
}

#[test]
fn data_of_no_tensor() {
    says(&refused(TWO, 20), "6 bytes after byte 14 of its data belong to no tensor");
    says(&refused("{}", 1), "1 bytes after byte 0");
}

#[test]
fn a_tensor_twice() {
    let text = refused(TWO.replace("\"b\"", "\"a\""), 14);
    says(&text, "tensor 'a': the header names it twice");
}

#[test]
fn metadata_twice() {
    says(&refused(r#"{"__metadata__":{},"__metadata__":{}}"#, 0), "__metadata__ is there twice");
    says(&refused(r#"{"__metadata__":{"k":"1","k":"2"}}"#, 0), "__metadata__ has 'k' twice");
}

#[test]
fn metadata_that_is_not_text() {
    says(&refused(r#"{"__metadata__":{"k":1}}"#, 0), "expected a string");
    says(&refused(r#"{"__metadata__":[]}"#, 0), "expected __metadata__, an object of strings");
}

#[test]
fn names_that_cannot_be_shown() {
    says(&refused(r#"{"":{}}"#, 0), "a name is empty");
    says(&refused(r#"{"a\u001b[2J":{}}"#, 0), r"control characters: 'a\u{1b}[2J'");
    says(&refused(format!(r#"{{"{}":{{}}}}"#, "n".repeat(513)), 0), "a name has 513 bytes, more than 512");
}

#[test]
fn more_tensors_than_are_read() {
    says(&refused(many_tensors(MAX_ENTRIES + 1), 0), "more than 32768 tensors");
    let mut metadata = r#"{"__metadata__":{"#.to_string();
    (0..=MAX_ENTRIES).for_each(|number| write!(metadata, r#""{number}":"","#).unwrap());
    says(&refused(metadata, 0), "__metadata__ has more than 32768 entries");
}

fn many_tensors(count: usize) -> String {
    let mut header = "{".to_string();
    for number in 0..count {
        let comma = if number == 0 { "" } else { "," };
        write!(header, r#"{comma}"{number}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#).unwrap();
    }
    header + "}"
}

/// The headers that cost most, up to the size that is read.
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
fn the_most_costly_headers_stay_within_time() {
    for (number, header) in costly().iter().enumerate() {
        // The least of a few: other tests run beside this one.
        let took = (0..5).map(|_| {
            let start = Instant::now();
            let _ = parse(header, 0);
            start.elapsed()
        });
        let took = took.min().unwrap();
        println!("header {number}: {} bytes, {took:?}", header.len());
        assert!(took < MAX_TIME, "header {number} took {took:?}");
    }
}

/// Runs itself once per header in a process of its own, whose peak memory the system counts.
#[test]
#[cfg(target_os = "linux")]
fn the_most_costly_headers_stay_within_memory() {
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
        let name = "the_most_costly_headers_stay_within_memory";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args([name, "--exact", "--nocapture"]).env(CHILD, &path).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let peak = text.split("peak:").nth(1).and_then(|rest| rest.split_whitespace().next());
        let peak: u64 = peak.expect(&text).parse().unwrap();
        println!("header {number}: {} bytes, {peak} KiB", header.len());
        assert!(peak < MAX_MEMORY_KIB, "header {number} took {peak} KiB");
    }
}

#[cfg(target_os = "linux")]
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

proptest! {
    // Failing cases go into tests of their own by hand: proptest finds no place for them beside an integration test.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), data in any::<u64>()) {
        let _ = parse(bytes, data);
    }

    #[test]
    fn no_change_to_a_sound_header_makes_it_panic(at in 0..TWO.len(), byte in any::<u8>(), data in 0_u64..20) {
        let mut bytes = TWO.as_bytes().to_vec();
        bytes[at] = byte;
        let _ = parse(bytes, data);
    }

    #[test]
    fn whatever_is_taken_fills_the_data_exactly(
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
