//! The report on a checkpoint whose tensors do not match its config.

use std::fmt;

/// Complaints that are printed one by one.
const SHOWN: usize = 20;

/// One thing wrong with a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Complaint {
    /// A tensor is not there.
    Missing {
        /// Its name, in the naming that the other tensors follow.
        name: String,
        /// The shape it would have.
        expected: Vec<u64>,
    },
    /// Two tensors are the same thing.
    Doubled {
        /// The first one's name.
        name: String,
        /// The other's.
        again: String,
    },
    /// A tensor has another shape than the config asks for.
    Misshapen {
        /// Its name.
        name: String,
        /// The shape by the config.
        expected: Vec<u64>,
        /// The shape in the file.
        found: Vec<u64>,
    },
    /// A tensor is none of this architecture's.
    Unknown {
        /// Its name.
        name: String,
        /// Its shape.
        found: Vec<u64>,
    },
    /// A tensor belongs to a layer that the config does not have.
    BeyondLastLayer {
        /// Its name.
        name: String,
        /// The number of layers by the config.
        layers: u32,
    },
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Complaint::Missing { name, expected } => write!(f, "missing: {name}, expected {expected:?}"),
            Complaint::Doubled { name, again } if name == again => {
                write!(f, "doubled: {name} is there twice")
            }
            Complaint::Doubled { name, again } => write!(f, "doubled: {again} is the same thing as {name}"),
            Complaint::Misshapen { name, expected, found } => {
                write!(f, "wrong shape: {name}, expected {expected:?}, found {found:?}")
            }
            Complaint::Unknown { name, found } => write!(f, "unknown: {name}, found {found:?}"),
            Complaint::BeyondLastLayer { name, layers } => {
                write!(f, "unknown: {name}, in a model of {layers} layers")
            }
        }
    }
}

/// Everything that keeps a source from being a whole model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incomplete {
    /// Name of the family that the config declares.
    pub family: &'static str,
    /// All of it: missing ones first, then in the order of the files.
    pub complaints: Vec<Complaint>,
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.complaints.len();
        let is = if count == 1 { "tensor is" } else { "tensors are" };
        write!(f, "the files are not a whole {} model: {count} {is} wrong", self.family)?;
        for complaint in self.complaints.iter().take(SHOWN) {
            write!(f, "\n  {complaint}")?;
        }
        if count > SHOWN {
            write!(f, "\n  … and {} more", count - SHOWN)?;
        }
        Ok(())
    }
}

impl std::error::Error for Incomplete {}
