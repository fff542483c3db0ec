//! A weight matrix in GPU memory. Scheme, layout and scales are part of it: no kernel can be given the bytes
//! without them.

use gpu::{Arena, Buffer, Caps, Error, Recorder, Result};
use half::f16;

use tensor::{Layout, STRIP};

/// Weights of one matrix product, `rows` × `k`, on the device.
#[derive(Debug)]
pub struct Matrix {
    layout: Layout,
    blocks: Vec<MatrixBlock>,
}

/// A block of whole strips in its own buffers: the largest matrices exceed a device's maximum allocation
/// size.
#[derive(Debug)]
pub struct MatrixBlock {
    /// First row of the block in the matrix.
    pub first_row: usize,
    /// Layout of the block alone.
    pub layout: Layout,
    /// The tiles.
    pub values: Buffer,
    /// The scale plane; floats have none.
    pub scales: Option<Buffer>,
}

impl MatrixBlock {
    /// Bytes read by one product.
    pub fn bytes(&self) -> u64 {
        self.values.len() + self.scales.as_ref().map_or(0, Buffer::len)
    }
}

impl Matrix {
    /// Allocates memory for a matrix; its content is undefined until it is filled.
    pub fn allocate(arena: &mut Arena, what: &str, layout: Layout, caps: &Caps) -> Result<Self> {
        let strips =
            strips_per_block(&layout, caps.max_allocation).ok_or_else(|| Error::AllocationTooLarge {
                what: what.to_string(),
                wanted: layout.strip_value_bytes() as u64,
                limit: caps.max_allocation,
            })?;
        let blocks = (0..layout.strips())
            .step_by(strips)
            .map(|first| {
                let rows = (layout.rows - first * STRIP).min(strips * STRIP);
                let block = Layout { rows, ..layout };
                let scales = match block.scale_bytes() {
                    0 => None,
                    bytes => Some(arena.buffer(what, bytes as u64)?),
                };
                let values = arena.buffer(what, block.value_bytes() as u64)?;
                Ok(MatrixBlock { first_row: first * STRIP, layout: block, values, scales })
            })
            .collect::<Result<_>>()?;
        Ok(Self { layout, blocks })
    }

    /// Fills a matrix in mapped memory from its tiles and scale plane, each laid out for the whole matrix.
    pub fn write(&mut self, values: &[u8], scales: &[f16]) -> Result<()> {
        let (mut value_at, mut scale_at) = (0, 0);
        for block in &mut self.blocks {
            let bytes = block.layout.value_bytes();
            block.values.write(0, &values[value_at..value_at + bytes])?;
            value_at += bytes;
            if let Some(buffer) = &mut block.scales {
                let count = block.layout.scale_bytes() / size_of::<f16>();
                buffer.write(0, bytemuck::cast_slice(&bits(&scales[scale_at..scale_at + count])))?;
                scale_at += count;
            }
        }
        Ok(())
    }

    /// Records zeros into the rows past the end of the last strip, which no tensor fills.
    pub fn record_padding(&self, recorder: &mut Recorder, name: &str) -> Result<()> {
        let Some(block) = self.blocks.last().filter(|block| !block.layout.rows.is_multiple_of(STRIP)) else {
            return Ok(());
        };
        let last_bytes =
            |buffer: &Buffer, count: usize| buffer.slice(buffer.len() - count as u64..buffer.len());
        recorder.fill(name, last_bytes(&block.values, block.layout.strip_value_bytes())?, 0)?;
        match &block.scales {
            Some(scales) => recorder.fill(name, last_bytes(scales, block.layout.strip_scale_bytes())?, 0),
            None => Ok(()),
        }
    }

    /// Every row of a matrix in mapped memory, dequantised as kernels do.
    pub fn read(&self) -> Result<Vec<Vec<f32>>> {
        let mut rows = Vec::with_capacity(self.layout.rows);
        for block in &self.blocks {
            let values: Vec<u8> = block.values.read_vec()?;
            let scales: Vec<u16> = block.scales.as_ref().map_or(Ok(vec![]), Buffer::read_vec)?;
            let row = |row: usize| {
                (0..block.layout.k).map(|k| block.layout.value(&values, &scales, row, k)).collect()
            };
            rows.extend((0..block.layout.rows).map(row));
        }
        Ok(rows)
    }

    /// Shape and scheme.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The blocks, in row order.
    pub fn blocks(&self) -> &[MatrixBlock] {
        &self.blocks
    }

    /// The blocks, to be filled by the CPU where it can map them.
    pub fn blocks_mut(&mut self) -> &mut [MatrixBlock] {
        &mut self.blocks
    }

    /// Bytes read by one product: values and scales.
    pub fn bytes(&self) -> u64 {
        self.blocks.iter().map(MatrixBlock::bytes).sum()
    }
}

fn bits(scales: &[f16]) -> Vec<u16> {
    scales.iter().map(|scale| scale.to_bits()).collect()
}

/// Strips per allocation, rounded to whole pairs so that a strip of gate and its strip of up stay together;
/// none when not even one strip fits.
fn strips_per_block(layout: &Layout, max_allocation: u64) -> Option<usize> {
    let fit = max_allocation / layout.strip_value_bytes() as u64;
    let strips = layout.strips();
    match usize::try_from(fit).unwrap_or(usize::MAX) {
        0 => None,
        1 => Some(1),
        fit if fit >= strips => Some(strips),
        fit => Some(fit & !1),
    }
}

#[cfg(test)]
mod tests {
    use tensor::Scheme;

    use super::*;

    #[test]
    fn large_matrices_are_divided_into_blocks() {
        // The head of a 27B model in int8 on a driver with a maximum allocation of 1 GiB.
        let head = Layout::new(Scheme::Int8, 262_144, 5376).unwrap();
        let strips = strips_per_block(&head, 1 << 30).unwrap();
        assert!(strips * head.strip_value_bytes() <= 1 << 30);
        assert!((strips + 2) * head.strip_value_bytes() > 1 << 30);
        assert!(strips.is_multiple_of(2), "pairs of gate and up stay together");
        assert_eq!(strips_per_block(&head, 4 << 30), Some(head.strips()));
        assert_eq!(strips_per_block(&head, 1000), None);
    }
}
