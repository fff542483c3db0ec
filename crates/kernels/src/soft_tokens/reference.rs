//! CPU reference.

use super::SOFT_TOKEN;

/// The embedding that replaces the row of `token`, if it is a soft token with an index within `soft`, rows of `hidden`
/// values.
pub fn soft_token<T>(soft: &[T], hidden: usize, token: u32) -> Option<&[T]> {
    let index = token.checked_sub(SOFT_TOKEN)? as usize;
    soft.chunks_exact(hidden).nth(index)
}
