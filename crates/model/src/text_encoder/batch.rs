//! Which texts are encoded together. Pure; tested without a GPU.

use std::ops::Range;

/// Consecutive texts in batches of at most `max_rows` tokens and `max_texts` texts. A text alone may have more.
pub(super) fn batches(lengths: &[usize], max_rows: usize, max_texts: usize) -> Vec<Range<usize>> {
    let mut batches: Vec<Range<usize>> = vec![];
    let mut rows = 0;
    for (text, length) in lengths.iter().enumerate() {
        match batches.last_mut() {
            Some(batch) if rows + length <= max_rows && batch.len() < max_texts => {
                batch.end += 1;
                rows += length;
            }
            _ => {
                batches.push(text..text + 1);
                rows = *length;
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_respect_both_limits_and_keep_the_order() {
        assert!(batches(&[], 8, 2).is_empty());
        assert_eq!(batches(&[3, 3, 3, 1, 1, 9, 2], 6, 2), [0..2, 2..4, 4..5, 5..6, 6..7]);
        assert_eq!(batches(&[1; 5], 100, 3), [0..3, 3..5]);
    }
}
