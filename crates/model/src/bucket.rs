//! Buckets: the numbers of rows that programs are recorded for.

/// The bucket of a number of rows: a power of two, or a width between them that products have tiles for. Rows of a bucket that are not
/// in use cost little, since kernels leave them out.
pub(crate) fn bucket(rows: usize) -> usize {
    let power = rows.next_power_of_two();
    BETWEEN
        .into_iter()
        .find(|between| (power / 2..=*between).contains(&rows) && *between < power)
        .unwrap_or(power)
}

/// The largest bucket with fewer rows than these.
pub(crate) fn full_bucket_below(rows: usize) -> Option<usize> {
    let powers = (0..usize::BITS).map(|bit| 1 << bit).take_while(|power| *power < rows);
    powers.chain(BETWEEN.into_iter().filter(|between| *between < rows)).max()
}

/// Rows of all buckets up to that of so many.
pub(crate) fn rows_of_buckets(most: usize) -> usize {
    let powers = 2 * most.next_power_of_two() - 1;
    powers + BETWEEN.into_iter().filter(|between| *between <= bucket(most)).sum::<usize>()
}

/// Buckets that are no powers of two.
const BETWEEN: [usize; 2] = [48, 96];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_into_the_smallest_bucket_that_holds_them() {
        let of = [1, 2, 3, 8, 9, 32, 33, 48, 49, 64, 65, 96, 97, 128, 129, 300].map(bucket);
        assert_eq!(of, [1, 2, 4, 8, 16, 32, 48, 48, 64, 64, 96, 96, 128, 128, 256, 512]);
        let below = [1, 2, 5, 33, 48, 49, 64, 65, 97, 200].map(full_bucket_below);
        let expected =
            [None, Some(1), Some(4), Some(32), Some(32), Some(48), Some(48), Some(64), Some(96), Some(128)];
        assert_eq!(below, expected);
        let mut all: Vec<usize> = (1..=300).map(bucket).collect();
        all.dedup();
        for most in [1, 4, 33, 48, 64, 100, 300] {
            let sum: usize = all.iter().filter(|rows| **rows <= bucket(most)).sum();
            assert_eq!(rows_of_buckets(most).max(sum), rows_of_buckets(most), "{most}");
        }
    }
}
