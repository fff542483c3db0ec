//! Prefetching weights into the cache ahead of their product: see docs/forward.md.

use kernels::{
    Activations, Matrix,
    matmul::prefetch::{self, Prefetch},
};
use weights::blueprint::MatrixId;

use super::{Step, StepBuffers, split_k::layer_products};
use crate::{Model, Result};

impl Step<'_> {
    /// Reads a little of every page of a matrix's weights into the cache, concurrently with the preceding
    /// commands: it takes few of the device's compute units and little memory bandwidth.
    pub fn prefetch(&mut self, matrix: MatrixId) -> Result<()> {
        let StepBuffers { model, scratch, .. } = self.buffers;
        let (Some(sums), Some(matrix)) = (&scratch.prefetch_sums, model.weights.by_id(matrix).next()) else {
            return Ok(());
        };
        let Some(ranges) = prefetch::policy::ranges(model.device.caps(), &matrix.layout()) else {
            return Ok(());
        };
        let values = matrix.blocks()[0].values.view();
        // The first of several blocks, which are large, may be too short: such a matrix is not prefetched.
        if values.len() < ranges.end() {
            return Ok(());
        }
        let kernel = Prefetch::new(&model.device)?;
        Ok(kernel.record(self.recorder, "prefetch", &values, &sums.view(), ranges)?)
    }
}

/// Maximum workgroups that prefetch a matrix: 0 where steps of this many rows do not prefetch.
pub(super) fn max_workgroups(model: &Model, rows: usize) -> u32 {
    let worthwhile =
        rows <= prefetch::policy::MAX_ROWS && model.weights.bytes() >= prefetch::policy::MIN_BYTES;
    if !worthwhile || model.activations(rows) != Activations::F16 {
        return 0;
    }
    let ranges = |(matrix, _): (&Matrix, _)| prefetch::policy::ranges(model.device.caps(), &matrix.layout());
    layer_products(model).filter_map(ranges).map(|ranges| ranges.groups()).max().unwrap_or(0)
}
