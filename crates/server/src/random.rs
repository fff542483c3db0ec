//! Random ids and seeds.

use std::hash::{BuildHasher, RandomState};

/// An unpredictable id of 24 hexadecimal digits.
pub(crate) fn id() -> String {
    format!("{:016x}{:08x}", number(), number() as u32)
}

/// An unpredictable number. As strong as the keys of the standard library's hash maps, which the OS seeds.
pub(crate) fn number() -> u64 {
    RandomState::new().hash_one(())
}
