//! Patches that become soft tokens without layers, of Gemma 4 12B.

use checkpoint::{Role, Slot};
use gpu::Recorder;
use kernels::{Activations, Target};

use super::{Addend, LayerNormSlots, Recording};
use crate::{Result, image_encoder::scratch::UnifiedScratch};

impl Recording<'_> {
    /// Records the only program, from the patches to the soft tokens.
    pub(super) fn unified(&self, epsilon: f32, mut recorder: Recorder) -> Result<Recorder> {
        let scratch = self.scratch;
        let norm = |weight, bias| LayerNormSlots {
            weight: Slot::vision(None, weight),
            bias: Slot::vision(None, bias),
        };
        let UnifiedScratch { embedded, zeros } =
            scratch.unified.as_ref().expect("allocated for this encoder");
        let encoded = scratch.encoded.as_ref().expect("allocated for this encoder");
        let to = &mut recorder;
        // patches = LayerNorm(pixels); block = patch embedding · patches.
        let first = norm(Role::PatchNorm, Role::PatchNormBias);
        self.layer_norm(to, None, scratch.wide.view(), &first, epsilon, &scratch.patches)?;
        self.embed_patches(to)?;
        // embedded = LayerNorm(block + bias).
        to.fill("clear", &scratch.residual, 0)?;
        let bias = self.vector(Slot::vision(None, Role::PatchEmbedBias))?;
        let add = Addend { x: scratch.block.view(), format: Activations::F32, x_stride: embedded.k, bias };
        let second = norm(Role::PatchEmbedNorm, Role::PatchEmbedNormBias);
        self.layer_norm(to, Some(add), scratch.residual.view(), &second, epsilon, embedded)?;
        // encoded = LayerNorm(embedded + positions).
        self.embed_positions(to)?;
        let add = Addend {
            x: Target::vectors(embedded)?.y,
            format: embedded.kind(),
            x_stride: embedded.stride(),
            bias: zeros.view(),
        };
        let third = norm(Role::PositionNorm, Role::PositionNormBias);
        self.layer_norm(to, Some(add), scratch.residual.view(), &third, epsilon, encoded)?;
        self.pool(to, 1.0, None, None)?;
        self.project(to)?;
        Ok(recorder)
    }
}
