//! The products to tune, and the result for each.

use gpu::View;
use serde::{Deserialize, Serialize};

use crate::{
    Matrix, Target, Vectors,
    matmul::gemv::{
        self, Source,
        policy::{Plan, Prologue, Shape},
    },
};

/// The source of x.
pub enum Input<'a> {
    /// Activations in memory; timing fills them with random values.
    Vectors(&'a Vectors),
    /// A norm that the product computes. Timing fills its inputs with random values, and writes the stream as
    /// decode does.
    Norm(gemv::Norm),
    /// Rows of a norm that [`gemv_norm`](crate::matmul::gemv_norm) has computed. Such products are not tuned: they get the
    /// sums of one column.
    Normed {
        /// The rows, without their factors.
        x: &'a Vectors,
        /// One f32 per row.
        factors: View,
        /// The prologue that would have computed them.
        prologue: Prologue,
    },
}

impl Input<'_> {
    /// The source in the kernel's terms.
    pub fn source(&self) -> Source<'_> {
        match self {
            Input::Vectors(x) => Source::Vectors(x),
            Input::Norm(norm) => Source::Norm(norm),
            Input::Normed { x, factors, .. } => Source::Normed { x, factors },
        }
    }
}

/// One product, as a program records it.
pub struct Product<'a> {
    /// The product to compute.
    pub shape: Shape,
    /// The weights.
    pub matrix: &'a Matrix,
    /// The activations.
    pub x: Input<'a>,
    /// Destination of the result.
    pub target: Target,
}

/// The result for one shape.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The product.
    pub shape: Shape,
    /// The policy's plan at the time; with another policy the entry is invalid.
    pub policy: Plan,
    /// The plan in use: the policy's, or a faster one.
    pub plan: Plan,
    /// GPU time of one product with the policy's plan, in microseconds.
    pub policy_us: f64,
    /// The same with the plan in use.
    pub plan_us: f64,
}

impl Entry {
    /// Whether the policy's plan was replaced.
    pub fn changed(&self) -> bool {
        self.plan != self.policy
    }
}
