//! Extracting one member from a wheel, which is a zip archive. Names in an archive only select the member;
//! they never become paths.

use std::{
    fs::File,
    io::{BufReader, Read, Write},
    path::Path,
};

use crate::error::{Error, Result};

/// Copies the only member whose name contains `pattern`, of at most `limit` bytes, and returns its size.
///
/// Errors of the archive are [`Error::Archive`]; `output_error` converts those of the output.
pub fn extract(
    path: &Path,
    name: &str,
    pattern: &str,
    limit: u64,
    output: &mut impl Write,
    output_error: impl Fn(std::io::Error) -> Error,
) -> Result<u64> {
    let damaged = |reason: String| Error::Archive { archive: name.to_string(), reason };
    let file = File::open(path).map_err(|error| Error::io(path, error))?;
    let mut archive = zip::ZipArchive::new(BufReader::with_capacity(1 << 18, file))
        .map_err(|error| damaged(format!("not a readable archive ({error})")))?;
    let matches = |name: &str| name.contains(pattern) && !name.ends_with('/');
    let candidates: Vec<usize> =
        (0..archive.len()).filter(|index| archive.name_for_index(*index).is_some_and(matches)).collect();
    let [index] = candidates[..] else {
        return Err(damaged(format!("{} members match '…{pattern}…', expected one", candidates.len())));
    };
    let mut member =
        archive.by_index(index).map_err(|error| damaged(format!("the member cannot be read ({error})")))?;
    let size = member.size();
    if size > limit {
        return Err(damaged(format!("the member has {size} bytes, more than the {limit} that are missing")));
    }
    let mut buffer = vec![0; 1 << 18];
    let mut copied = 0;
    loop {
        // The reader verifies the member's CRC at its end; a mismatch is an error here.
        let count =
            member.read(&mut buffer).map_err(|error| damaged(format!("the member is damaged ({error})")))?;
        if count == 0 {
            break;
        }
        copied += count as u64;
        // The size in the archive's directory is not trusted either.
        if copied > size {
            return Err(damaged(format!("the member has more than the {size} bytes it declares")));
        }
        output.write_all(&buffer[..count]).map_err(&output_error)?;
    }
    if copied != size {
        return Err(damaged(format!("the member ends after {copied} of {size} bytes")));
    }
    Ok(copied)
}
