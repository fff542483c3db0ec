//! Weights that are warm when their product begins: see docs/forward.md.

use kernels::{
    Activations, Matrix,
    matmul::prefetch::{self, Prefetch},
};
use weights::blueprint::MatrixId;

use super::{Step, layer_products};
use crate::{Model, Result};

impl Step<'_> {
    /// Brings a little of every page of a place's weights into the cache, beside what was recorded before: it takes few of the device's compute
    /// units and little of its memory's time.
    pub fn warm(&mut self, place: MatrixId) -> Result<()> {
        let (Some(sums), Some(matrix)) = (&self.scratch.warm, self.model.weights.by_id(place).next()) else {
            return Ok(());
        };
        let device = &self.model.device;
        let Some(ranges) = prefetch::policy::ranges(device.caps(), &matrix.layout()) else {
            return Ok(());
        };
        let values = matrix.blocks()[0].values.view();
        // Of a matrix in several parts, which are large, the first may be shorter: it does without.
        if values.len() < ranges.end() {
            return Ok(());
        }
        Ok(Prefetch::new(device)?.record(self.recorder, "prefetch", &values, &sums.view(), ranges)?)
    }
}

/// Workgroups that bring weights into the cache ahead of a product, at most: 0 where steps of so many rows do without.
pub(super) fn most_groups(model: &Model, rows: usize) -> u32 {
    let pays = rows <= prefetch::policy::MAX_ROWS && model.weights.bytes() >= prefetch::policy::MIN_BYTES;
    if !pays || model.activations(rows) != Activations::F16 {
        return 0;
    }
    let ranges = |(matrix, _): (&Matrix, _)| prefetch::policy::ranges(model.device.caps(), &matrix.layout());
    layer_products(model).filter_map(ranges).map(|ranges| ranges.groups()).max().unwrap_or(0)
}
