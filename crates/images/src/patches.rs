//! Patches: the rows of the matrix that a patch embedding multiplies.

use std::{borrow::Cow, sync::Arc};

use crate::picture::Picture;

/// Order of the values of a patch; the columns of the embedding's weight have the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchOrder {
    /// Channel, row, column: the order of a convolution's weight.
    ChannelsFirst,
    /// Row, column, channel.
    ChannelsLast,
}

/// From bytes to values: (byte / 255 − mean) / std per channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalization {
    /// Subtracted.
    pub mean: [f32; 3],
    /// Divided by.
    pub std: [f32; 3],
}

impl Normalization {
    /// Values from −1 to 1.
    pub const SIGNED: Self = Self { mean: [0.5; 3], std: [0.5; 3] };
    /// Values from 0 to 1.
    pub const UNIT: Self = Self { mean: [0.0; 3], std: [1.0; 3] };

    /// The value of each byte, per channel.
    fn table(&self) -> [[f32; 256]; 3] {
        std::array::from_fn(|channel| {
            let (mean, std) = (f64::from(self.mean[channel]), f64::from(self.std[channel]));
            std::array::from_fn(|byte| ((byte as f64 / 255.0 - mean) / std) as f32)
        })
    }
}

/// A picture cut into square patches, row by row from the top left.
#[derive(Clone, Debug, PartialEq)]
pub struct Patches {
    columns: u32,
    rows: u32,
    values_per_patch: usize,
    values: Values,
}

#[derive(Clone, Debug, PartialEq)]
enum Values {
    Floats(Vec<f32>),
    /// A quarter of the memory.
    Bytes(Vec<u8>, Arc<ByteTable>),
}

/// The value of each byte of a patch.
#[derive(Clone, Debug, PartialEq)]
pub struct ByteTable {
    /// Per channel and byte.
    pub values: [[f32; 256]; 3],
    /// Neighbouring values of a patch of the same channel: value k is of channel k / run % 3.
    pub run: usize,
}

impl Patches {
    /// Patches with these values, row by row; `None` unless they are as many as that.
    pub fn from_values(columns: u32, rows: u32, values_per_patch: usize, values: Vec<f32>) -> Option<Self> {
        let count = (columns as usize).checked_mul(rows as usize)?.checked_mul(values_per_patch)?;
        let values = (values.len() == count).then_some(Values::Floats(values))?;
        Some(Self { columns, rows, values_per_patch, values })
    }

    /// Cuts a picture into patches of `side` × `side` pixels, without those that would be incomplete.
    pub(crate) fn cut(
        picture: &Picture,
        side: u32,
        order: PatchOrder,
        normalization: &Normalization,
    ) -> Self {
        let side = side.max(1);
        let (columns, rows) = (picture.width() / side, picture.height() / side);
        let length = side as usize;
        let values_per_patch = 3 * length * length;
        // Steps between two pixels and two channels in a patch.
        let (pixel_step, channel_step) = match order {
            PatchOrder::ChannelsFirst => (1, length * length),
            PatchOrder::ChannelsLast => (3, 1),
        };
        let run = if order == PatchOrder::ChannelsFirst { channel_step } else { 1 };
        let table = Arc::new(ByteTable { values: normalization.table(), run });
        let mut bytes = vec![0; columns as usize * rows as usize * values_per_patch];
        for (index, patch) in bytes.chunks_exact_mut(values_per_patch).enumerate() {
            let (left, top) = (index % columns as usize * length, index / columns as usize * length);
            for y in 0..length {
                let (pixels, _) = picture.row(top + y)[left * 3..][..length * 3].as_chunks::<3>();
                for (x, pixel) in pixels.iter().enumerate() {
                    let at = (y * length + x) * pixel_step;
                    for channel in 0..3 {
                        patch[at + channel * channel_step] = pixel[channel];
                    }
                }
            }
        }
        Self { columns, rows, values_per_patch, values: Values::Bytes(bytes, table) }
    }

    /// Patches per row of the picture.
    pub fn columns(&self) -> u32 {
        self.columns
    }

    /// Rows of patches.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Number of patches.
    pub fn len(&self) -> usize {
        self.columns as usize * self.rows as usize
    }

    /// Whether there is no patch, since the picture is smaller than one.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Values of a patch: the length of a row of the matrix.
    pub fn values_per_patch(&self) -> usize {
        self.values_per_patch
    }

    /// The matrix: one row of [`values_per_patch`](Self::values_per_patch) values per patch.
    pub fn values(&self) -> Cow<'_, [f32]> {
        self.range(0, self.len())
    }

    /// The values of one patch.
    pub fn row(&self, index: usize) -> Cow<'_, [f32]> {
        self.range(index, 1)
    }

    /// The same matrix as bytes, with their values; `None` for patches that were made of values.
    pub fn bytes(&self) -> Option<(&[u8], &Arc<ByteTable>)> {
        match &self.values {
            Values::Floats(_) => None,
            Values::Bytes(bytes, table) => Some((bytes, table)),
        }
    }

    fn range(&self, first: usize, count: usize) -> Cow<'_, [f32]> {
        let length = self.values_per_patch;
        let range = first * length..(first + count) * length;
        match &self.values {
            Values::Floats(values) => Cow::Borrowed(&values[range]),
            Values::Bytes(bytes, table) => {
                let value =
                    |(at, byte): (usize, &u8)| table.values[at % length / table.run % 3][usize::from(*byte)];
                Cow::Owned(bytes[range].iter().enumerate().map(value).collect())
            }
        }
    }

    /// Position of each patch as (column, row), in the order of the matrix's rows.
    pub fn positions(&self) -> impl ExactSizeIterator<Item = [u32; 2]> + use<> {
        let columns = self.columns.max(1) as usize;
        (0..self.len()).map(move |index| [(index % columns) as u32, (index / columns) as u32])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_are_rows_in_the_order_of_the_weight() {
        // 5 × 2 pixels, the last column incomplete; channel c of pixel i is 10·i + c.
        let rgb = (0..10).flat_map(|i| [10 * i, 10 * i + 1, 10 * i + 2]).collect();
        let picture = Picture::new(5, 2, rgb).expect("ten pixels");
        let bytes = |order, index| -> Vec<u32> {
            let patches = Patches::cut(&picture, 2, order, &Normalization::UNIT);
            assert_eq!((patches.columns(), patches.rows(), patches.values_per_patch()), (2, 1, 12));
            assert_eq!(patches.positions().collect::<Vec<_>>(), [[0, 0], [1, 0]]);
            patches.row(index).iter().map(|value| (value * 255.0).round() as u32).collect()
        };
        // As bytes they have the same order.
        for order in [PatchOrder::ChannelsFirst, PatchOrder::ChannelsLast] {
            let patches = Patches::cut(&picture, 2, order, &Normalization::UNIT);
            let (list, table) = patches.bytes().expect("cut from bytes");
            assert_eq!(list[12..].iter().map(|byte| u32::from(*byte)).collect::<Vec<_>>(), bytes(order, 1));
            assert_eq!(table.run, if order == PatchOrder::ChannelsFirst { 4 } else { 1 });
        }
        let first = bytes(PatchOrder::ChannelsFirst, 1);
        assert_eq!(first, [20, 30, 70, 80, 21, 31, 71, 81, 22, 32, 72, 82]);
        let last = bytes(PatchOrder::ChannelsLast, 1);
        assert_eq!(last, [20, 21, 22, 30, 31, 32, 70, 71, 72, 80, 81, 82]);
    }

    #[test]
    fn normalization_is_per_channel() {
        let picture = Picture::new(1, 1, vec![0, 255, 51]).expect("a pixel");
        let signed = Patches::cut(&picture, 1, PatchOrder::ChannelsLast, &Normalization::SIGNED);
        assert_eq!(*signed.values(), [-1.0, 1.0, -0.6]);
        let other = Normalization { mean: [0.0, 0.5, 0.2], std: [1.0, 0.25, 0.5] };
        let values = Patches::cut(&picture, 1, PatchOrder::ChannelsFirst, &other);
        assert_eq!(values.values()[..2], [0.0, 2.0]);
        assert!(values.values()[2].abs() < 1e-7);
    }
}
