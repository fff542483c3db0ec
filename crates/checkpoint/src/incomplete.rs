//! The report on a checkpoint whose tensors do not match its config.

use std::fmt;

/// Maximum number of problems printed.
const MAX_SHOWN: usize = 20;

/// One tensor that does not match the config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A tensor is missing.
    Missing {
        /// Its name, in the naming of the other tensors.
        name: String,
        /// Its shape according to the config.
        expected: Vec<u64>,
    },
    /// Two tensors fill the same slot.
    Duplicate {
        /// Name of the first.
        name: String,
        /// Name of the second.
        second: String,
    },
    /// A tensor has a different shape than the config implies.
    ShapeMismatch {
        /// Its name.
        name: String,
        /// Its shape according to the config.
        expected: Vec<u64>,
        /// Its shape in the file.
        found: Vec<u64>,
    },
    /// The family has no such tensor.
    Unknown {
        /// Its name.
        name: String,
        /// Its shape.
        found: Vec<u64>,
    },
    /// A tensor belongs to a layer past the last one.
    BeyondLastLayer {
        /// Its name.
        name: String,
        /// Number of layers according to the config.
        layers: u32,
    },
}

impl Problem {
    /// The tensor's name.
    pub fn name(&self) -> &str {
        match self {
            Problem::Missing { name, .. }
            | Problem::Duplicate { name, .. }
            | Problem::ShapeMismatch { name, .. }
            | Problem::Unknown { name, .. }
            | Problem::BeyondLastLayer { name, .. } => name,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Missing { name, expected } => write!(f, "missing: {name}, expected {expected:?}"),
            Problem::Duplicate { name, second } if name == second => {
                write!(f, "duplicate: {name} appears twice")
            }
            Problem::Duplicate { name, second } => {
                write!(f, "duplicate: {second} is the same tensor as {name}")
            }
            Problem::ShapeMismatch { name, expected, found } => {
                write!(f, "wrong shape: {name}, expected {expected:?}, found {found:?}")
            }
            Problem::Unknown { name, found } => write!(f, "unknown: {name}, found {found:?}"),
            Problem::BeyondLastLayer { name, layers } => {
                write!(f, "unknown: {name}, but the model has {layers} layers")
            }
        }
    }
}

/// All problems of a checkpoint that is not a complete model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incomplete {
    /// Name of the family that the config declares.
    pub family: &'static str,
    /// All problems: missing tensors first, then in file order.
    pub problems: Vec<Problem>,
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.problems.len();
        let problems = if count == 1 { "problem" } else { "problems" };
        write!(f, "not a complete {} model: {count} {problems} with its tensors", self.family)?;
        for problem in self.problems.iter().take(MAX_SHOWN) {
            write!(f, "\n  {problem}")?;
        }
        if count > MAX_SHOWN {
            write!(f, "\n  … and {} more", count - MAX_SHOWN)?;
        }
        Ok(())
    }
}

impl std::error::Error for Incomplete {}
