//! The product that a GEMM computes.

use tensor::Layout;

use crate::{Activations, Epilogue};

/// The product to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The weights.
    pub weights: Layout,
    /// Columns of x.
    pub columns: usize,
    /// Storage format of x: f32, or int16.
    pub activations: Activations,
    /// The fused epilogue.
    pub epilogue: Epilogue,
    /// Storage format of y: f32, or int16 where x is and an epilogue produces activations.
    pub output: Activations,
}

impl Shape {
    /// Without epilogue, for f32 or int16 activations.
    pub fn plain(weights: Layout, columns: usize, activations: Activations) -> Self {
        Self { weights, columns, activations, epilogue: Epilogue::None, output: Activations::F32 }
    }
}
