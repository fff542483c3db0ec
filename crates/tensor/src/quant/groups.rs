//! Quantised values in groups, before they are packed into tiles.

use half::f16;

use crate::layout::{GROUP, Scheme};

/// A tensor in one of the integer schemes, row-major, before it is packed into tiles.
#[derive(Clone, Debug, PartialEq)]
pub struct Groups {
    /// The scheme.
    pub scheme: Scheme,
    /// The stored integers; −8…7 in 4-bit schemes.
    pub q: Vec<i8>,
    /// One scale per [`GROUP`] of `q`.
    pub scales: Vec<f16>,
    /// One minimum per [`GROUP`] of `q`, in schemes with minima.
    pub mins: Option<Vec<f16>>,
}

impl Groups {
    pub(super) fn with_capacity(scheme: Scheme, values: usize) -> Self {
        let groups = values / GROUP;
        Self {
            scheme,
            q: Vec::with_capacity(values),
            scales: Vec::with_capacity(groups),
            mins: scheme.has_min().then(|| Vec::with_capacity(groups)),
        }
    }

    pub(super) fn push(&mut self, scale: f16, min: f16, q: impl IntoIterator<Item = i8>) {
        self.scales.push(scale);
        if let Some(mins) = &mut self.mins {
            mins.push(min);
        }
        self.q.extend(q);
        debug_assert_eq!(self.q.len(), self.scales.len() * GROUP, "one scale per group");
    }

    /// The values, computed as on the GPU: in f32, scale times integer plus minimum.
    pub fn dequantize(&self) -> Vec<f32> {
        let mut values = Vec::with_capacity(self.q.len());
        for (group, q) in self.q.chunks(GROUP).enumerate() {
            let d = self.scales[group].to_f32();
            let products = q.iter().map(|q| d * factor(self.scheme, *q));
            match &self.mins {
                Some(mins) => values.extend(products.map(|product| product + mins[group].to_f32())),
                None => values.extend(products),
            }
        }
        values
    }
}

/// The integer that the scale is multiplied with, as f32.
fn factor(scheme: Scheme, q: i8) -> f32 {
    match scheme {
        Scheme::Int4Min => f32::from(q) + 8.0,
        _ => f32::from(q),
    }
}
