//! CPU reference in f64.

/// The row at (`x`, `y`): the sum of an embedding of each table, rows of `n` values. Past the end it is the last one.
pub fn row(columns: &[f32], rows: &[f32], n: usize, [x, y]: [u32; 2]) -> Vec<f64> {
    let embedding = |table: &[f32], position: u32| -> Vec<f64> {
        let position = (position as usize).min(table.len() / n - 1);
        table[position * n..][..n].iter().map(|value| f64::from(*value)).collect()
    };
    let terms = embedding(columns, x).into_iter().zip(embedding(rows, y));
    terms.map(|(column, row)| column + row).collect()
}
