//! Wheels: zip archives, from which one member is copied. Names in an archive only choose the member, they never
//! become paths.

use std::{
    fs::File,
    io::{BufReader, Read, Write},
    path::Path,
};

use crate::error::{Error, Result};

/// Copies the one member whose name contains `piece`, of at most `limit` bytes, and says how many it had.
///
/// Errors of the archive are [`Error::Archive`]; those of the output are of the kind the caller gives.
pub fn extract(
    path: &Path,
    name: &str,
    piece: &str,
    limit: u64,
    output: &mut impl Write,
    output_error: impl Fn(std::io::Error) -> Error,
) -> Result<u64> {
    let damaged = |reason: String| Error::Archive { archive: name.to_string(), reason };
    let file = File::open(path).map_err(|error| Error::io(path, error))?;
    let mut archive = zip::ZipArchive::new(BufReader::with_capacity(1 << 18, file))
        .map_err(|error| damaged(format!("not a readable archive ({error})")))?;
    let fits = |name: &str| name.contains(piece) && !name.ends_with('/');
    let candidates: Vec<usize> =
        (0..archive.len()).filter(|at| archive.name_for_index(*at).is_some_and(fits)).collect();
    let [index] = candidates[..] else {
        return Err(damaged(format!("{} members are called '…{piece}…', one is expected", candidates.len())));
    };
    let mut member =
        archive.by_index(index).map_err(|error| damaged(format!("its part cannot be read ({error})")))?;
    let size = member.size();
    if size > limit {
        return Err(damaged(format!("its part has {size} bytes, more than the {limit} that are missing")));
    }
    let mut buffer = vec![0; 1 << 18];
    let mut copied = 0;
    loop {
        // The reader compares the checksum of the member at its end; a wrong one is an error here.
        let count =
            member.read(&mut buffer).map_err(|error| damaged(format!("its part is damaged ({error})")))?;
        if count == 0 {
            break;
        }
        copied += count as u64;
        // What an archive says of sizes is not believed either.
        if copied > size {
            return Err(damaged(format!("its part has more than the {size} bytes it claims")));
        }
        output.write_all(&buffer[..count]).map_err(&output_error)?;
    }
    if copied != size {
        return Err(damaged(format!("its part ends after {copied} of {size} bytes")));
    }
    Ok(copied)
}
