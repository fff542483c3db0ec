//! The tensor list: entries read and checked, offsets resolved.

use std::io::Read;
use std::path::Path;

use super::header::{DAMAGED, Header, Subject, shown};
use crate::error::{Error, Result};
use crate::source::{Span, Tensor};
use tensor::Encoding;

/// Maximum number of tensors. The largest real model with one tensor per expert has 47,000.
pub(super) const MAX_TENSORS: u64 = 1 << 16;

/// Minimum bytes of an entry: length of the name, dimension count, one dimension, type and offset.
const MIN_BYTES: u64 = 8 + 4 + 8 + 4 + 8;

/// GGML_MAX_DIMS.
const MAX_DIMENSIONS: u32 = 4;

/// Checks the tensor count that a file claims against the capacity of the rest of the header.
pub(super) fn count<R: Read>(header: &Header<R>, claimed: u64) -> Result<usize> {
    header.bounded_count("tensors", claimed, MIN_BYTES, MAX_TENSORS, Subject::Field("tensor list"))
}

/// Reads the list of `claimed` tensors, which refer to file `file`. Offsets are as in the file: relative to
/// the data and not yet checked.
pub(super) fn read<R: Read>(header: &mut Header<R>, claimed: u64, file: usize) -> Result<Vec<Tensor>> {
    let count = count(header, claimed)?;
    let mut tensors = Vec::with_capacity(count);
    for index in 0..count {
        tensors.push(read_one(header, index, count, file)?);
    }
    Ok(tensors)
}

fn read_one<R: Read>(header: &mut Header<R>, index: usize, count: usize, file: usize) -> Result<Tensor> {
    let name = header.string(Subject::TensorName { index, count })?;
    let subject = Subject::Tensor(&name);
    let dimensions = header.u32(subject)?;
    if dimensions == 0 || dimensions > MAX_DIMENSIONS {
        return Err(
            header.damaged(subject, format!("{dimensions} dimensions, expected 1 to {MAX_DIMENSIONS}"))
        );
    }
    let mut shape = (0..dimensions).map(|_| header.u64(subject)).collect::<Result<Vec<_>>>()?;
    // GGUF lists the contiguous dimension first.
    shape.reverse();
    let kind = header.u32(subject)?;
    let (type_name, encoding) = ggml_type(kind);
    let Some(encoding) = encoding else { return Err(unsupported(header.path(), &name, kind)) };
    let offset = header.u64(subject)?;

    if shape.contains(&0) {
        return Err(header.damaged(subject, format!("shape {shape:?} has a dimension of 0")));
    }
    let row = shape.last().copied().unwrap_or(1);
    if !row.is_multiple_of(encoding.block_values()) {
        let block = encoding.block_values();
        let reason =
            format!("rows of {row} values do not divide into blocks of {block}, as {type_name} requires");
        return Err(header.damaged(subject, reason));
    }
    let Some(len) = encoding.bytes(&shape) else {
        return Err(header.damaged(subject, format!("the size of shape {shape:?} overflows 64 bits")));
    };
    Ok(Tensor { name, shape, encoding, data: Span { file, offset, len }, scales: None })
}

/// Makes the tensors' offsets absolute, and checks that tensors are aligned, inside the file and do not
/// overlap.
pub(super) fn resolve_offsets(
    path: &Path,
    tensors: &mut [Tensor],
    data: u64,
    alignment: u64,
    len: u64,
) -> Result<()> {
    for tensor in tensors.iter_mut() {
        let Span { offset, len: bytes, .. } = tensor.data;
        let wrong = |reason: String| Error::tensor(path, &shown(&tensor.name), reason);
        if !offset.is_multiple_of(alignment) {
            return Err(wrong(format!(
                "offset {offset} is not a multiple of the alignment {alignment}: {DAMAGED}"
            )));
        }
        let first = data.checked_add(offset);
        match first.and_then(|first| first.checked_add(bytes)) {
            Some(end) if end <= len => tensor.data.offset = data + offset,
            _ => {
                return Err(wrong(format!(
                    "{bytes} bytes at offset {offset} of the data at byte {data} extend past the file's {len} bytes: the \
                     file is truncated or damaged, download it again"
                )));
            }
        }
    }
    let mut order: Vec<&Tensor> = tensors.iter().collect();
    order.sort_unstable_by_key(|tensor| tensor.data.offset);
    for pair in order.windows(2) {
        let (before, after) = (&pair[0], &pair[1]);
        let end = before.data.offset + before.data.len;
        if after.data.offset < end {
            let reason = format!(
                "starts at byte {}, inside tensor '{}', which ends at {end}: {DAMAGED}",
                after.data.offset,
                shown(&before.name)
            );
            return Err(Error::tensor(path, &shown(&after.name), reason));
        }
    }
    Ok(())
}

/// Checks that tensor names are unique. `path` returns the file of a tensor.
pub(super) fn check_names<'a>(tensors: &[Tensor], path: impl Fn(&Tensor) -> &'a Path) -> Result<()> {
    let mut order: Vec<&Tensor> = tensors.iter().collect();
    // Stable: of two tensors with the same name, the error names the later one.
    order.sort_by(|a, b| a.name.cmp(&b.name));
    let Some(pair) = order.windows(2).find(|pair| pair[0].name == pair[1].name) else { return Ok(()) };
    let (before, after) = (path(pair[0]), path(pair[1]));
    let reason = if before == after {
        format!("duplicate name: {DAMAGED}")
    } else {
        format!("also in {}: the parts do not belong to one model, download all again", before.display())
    };
    Err(Error::tensor(after, &shown(&pair[1].name), reason))
}

/// Name of a ggml type, and its encoding if supported. Types that ggml has removed keep their old names.
fn ggml_type(kind: u32) -> (&'static str, Option<Encoding>) {
    match kind {
        0 => ("F32", Some(Encoding::F32)),
        1 => ("F16", Some(Encoding::F16)),
        2 => ("Q4_0", Some(Encoding::Q4_0)),
        3 => ("Q4_1", Some(Encoding::Q4_1)),
        4 => ("Q4_2", None),
        5 => ("Q4_3", None),
        6 => ("Q5_0", Some(Encoding::Q5_0)),
        7 => ("Q5_1", Some(Encoding::Q5_1)),
        8 => ("Q8_0", Some(Encoding::Q8_0)),
        9 => ("Q8_1", None),
        10 => ("Q2_K", None),
        11 => ("Q3_K", None),
        12 => ("Q4_K", Some(Encoding::Q4K)),
        13 => ("Q5_K", Some(Encoding::Q5K)),
        14 => ("Q6_K", Some(Encoding::Q6K)),
        15 => ("Q8_K", None),
        16 => ("IQ2_XXS", None),
        17 => ("IQ2_XS", None),
        18 => ("IQ3_XXS", None),
        19 => ("IQ1_S", None),
        20 => ("IQ4_NL", None),
        21 => ("IQ3_S", None),
        22 => ("IQ2_S", None),
        23 => ("IQ4_XS", None),
        24 => ("I8", None),
        25 => ("I16", None),
        26 => ("I32", None),
        27 => ("I64", None),
        28 => ("F64", None),
        29 => ("IQ1_M", None),
        30 => ("BF16", Some(Encoding::Bf16)),
        31 => ("Q4_0_4_4", None),
        32 => ("Q4_0_4_8", None),
        33 => ("Q4_0_8_8", None),
        34 => ("TQ1_0", None),
        35 => ("TQ2_0", None),
        36 => ("IQ4_NL_4_4", None),
        37 => ("IQ4_NL_4_8", None),
        38 => ("IQ4_NL_8_8", None),
        39 => ("MXFP4", None),
        40 => ("NVFP4", None),
        41 => ("Q1_0", None),
        _ => ("unknown", None),
    }
}

fn unsupported(path: &Path, tensor: &str, kind: u32) -> Error {
    let (tensor, (name, _)) = (shown(tensor), ggml_type(kind));
    Error::Unsupported {
        path: path.to_path_buf(),
        what: format!("tensor '{tensor}' of type {name} (ggml type {kind})"),
        fix: "use a file of types F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K, such as a Q4_0, \
              Q4_K_M or Q8_0 download, or make one with llama-quantize"
            .into(),
    }
}
