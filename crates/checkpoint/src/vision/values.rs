//! The few values of an encoder that are read as numbers: position tables and clipping ranges.

use super::{
    EncoderKind, Vision,
    names::{Bound, BoundSlot},
};
use crate::{
    error::{Error, Result},
    slot::Role,
    source::{Format, Span, Tensor},
};

/// The ranges to which the inputs and the outputs of a matrix are clamped: minimum and maximum, which may be infinite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClipRanges {
    /// Of the values that the matrix is multiplied by.
    pub input: [f32; 2],
    /// Of the values of the product.
    pub output: [f32; 2],
}

impl Vision {
    /// Reads the clipping ranges of a layer's matrix; `None` if the encoder has none.
    pub fn clip_ranges(&self, layer: u32, matrix: Role) -> Result<Option<ClipRanges>> {
        let EncoderKind::Gemma4 { clipped: true, .. } = self.config.encoder else { return Ok(None) };
        let range = |bounds: [Bound; 2]| -> Result<[f32; 2]> {
            let [min, max] = bounds.map(|bound| BoundSlot { layer, matrix, bound });
            let range = [self.read_bound(min)?, self.read_bound(max)?];
            match range[0] <= range[1] {
                true => Ok(range),
                false => {
                    let reason = format!("is {}, below the minimum {}", range[1], range[0]);
                    Err(self.wrong_values(self.bound(max)?, reason))
                }
            }
        };
        Ok(Some(ClipRanges {
            input: range([Bound::InputMin, Bound::InputMax])?,
            output: range([Bound::OutputMin, Bound::OutputMax])?,
        }))
    }

    fn bound(&self, slot: BoundSlot) -> Result<&Tensor> {
        self.tensors.bounds.get(&slot).ok_or_else(|| {
            let BoundSlot { layer, matrix, .. } = slot;
            Error::invalid(&self.path, format!("has no clipping range of {matrix:?} in layer {layer}"))
        })
    }

    fn read_bound(&self, slot: BoundSlot) -> Result<f32> {
        let tensor = self.bound(slot)?;
        match self.source.decode(tensor)?[..] {
            [value] if !value.is_nan() => Ok(value),
            _ => Err(self.wrong_values(tensor, "is not a number")),
        }
    }

    /// Reads the position embeddings of the first `count` columns, and of as many rows: a row of `hidden` values each.
    /// Only the encoders of Gemma 4 have such tables.
    ///
    /// | files | layout of [`Role::PositionEmbed`] |
    /// |---|---|
    /// | all but the following | `[table][position][hidden]`, the table of columns first |
    /// | Hugging Face, 12B | `[position][table][hidden]` |
    pub fn position_tables(&self, count: u32) -> Result<[Vec<f32>; 2]> {
        let (positions, unified) = match self.config.encoder {
            EncoderKind::Siglip { .. } => {
                let reason = "has position embeddings per patch, not per column and row";
                return Err(Error::invalid(&self.path, reason));
            }
            EncoderKind::Gemma4 { positions, .. } => (positions, false),
            EncoderKind::Gemma4Unified { positions, .. } => (positions, true),
        };
        let tensor = self.tensor(None, Role::PositionEmbed)?;
        if count > positions {
            let reason = format!("has {positions} positions, but images have up to {count} columns or rows");
            return Err(self.wrong_values(tensor, reason));
        }
        let [count, positions] = [count, positions].map(u64::from);
        if !unified || self.source.format == Format::Gguf {
            return Ok([self.read_rows(tensor, 0, count)?, self.read_rows(tensor, positions, count)?]);
        }
        let hidden = self.config.hidden as usize;
        let both = self.read_rows(tensor, 0, 2 * count)?;
        let table = |first: usize| {
            both.chunks(hidden).skip(first).step_by(2).flatten().copied().collect::<Vec<f32>>()
        };
        Ok([table(0), table(1)])
    }

    /// Reads rows of `hidden` values.
    fn read_rows(&self, tensor: &Tensor, first: u64, count: u64) -> Result<Vec<f32>> {
        let hidden = u64::from(self.config.hidden);
        let bytes = |rows: u64| tensor.encoding.bytes(&[rows, hidden]).filter(|_| tensor.scales.is_none());
        let (Some(before), Some(len)) = (bytes(first), bytes(count)) else {
            return Err(self.wrong_values(tensor, format!("cannot be read by row in {}", tensor.encoding)));
        };
        let data = Span { offset: tensor.data.offset + before, len, ..tensor.data };
        self.source.read_vector(&Tensor { shape: vec![count, hidden], data, ..tensor.clone() })
    }

    fn wrong_values(&self, tensor: &Tensor, reason: impl Into<String>) -> Error {
        Error::tensor(&self.source.files[tensor.data.file], &tensor.name, reason)
    }
}
