//! Buckets: the numbers of rows that programs are recorded for.

/// The bucket of a number of rows: a power of two, or a width between powers that products have tiles for.
/// Unused rows of a bucket cost little, since kernels skip them.
pub(crate) fn bucket(rows: usize) -> usize {
    let power = rows.next_power_of_two();
    INTERMEDIATE
        .into_iter()
        .find(|width| (power / 2..=*width).contains(&rows) && *width < power)
        .unwrap_or(power)
}

/// All buckets up to that of `max` rows.
pub(crate) fn buckets(max: usize) -> impl Iterator<Item = usize> {
    let last = bucket(max);
    std::iter::successors(Some(1), move |rows| (*rows < last).then(|| bucket(rows + 1)))
}

/// Buckets that are not powers of two.
const INTERMEDIATE: [usize; 7] = [40, 48, 72, 80, 96, 112, 192];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_into_the_smallest_bucket_that_holds_them() {
        let found = [1, 2, 3, 8, 9, 32, 33, 41, 49, 64, 65, 73, 96, 97, 128, 129, 193, 300].map(bucket);
        assert_eq!(found, [1, 2, 4, 8, 16, 32, 40, 48, 64, 64, 72, 80, 96, 112, 128, 192, 256, 512]);
        assert_eq!(buckets(1).collect::<Vec<_>>(), [1]);
        assert_eq!(buckets(100).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 40, 48, 64, 72, 80, 96, 112]);
    }
}
