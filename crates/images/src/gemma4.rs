//! Gemma 4: pictures of any size that a budget of soft tokens allows, with the aspect ratio kept.

use crate::{
    patches::{Normalization, PatchOrder, Patches},
    picture::Picture,
    resize::{Filter, resize},
};

/// Side of a patch of the vision tower in pixels.
const PATCH: u32 = 16;
/// Patches per side that a soft token pools.
const POOL: u32 = 3;

/// The image processor of Gemma 4.
///
/// | models | patches | values | rows |
/// |---|---|---|---|
/// | E2B, E4B, 26B, 31B: [`with_tower`](Self::with_tower) | 16 × 16 pixels, pooled 3 × 3 to a soft token | −1 to 1 | of the tower's patches |
/// | 12B: [`unified`](Self::unified) | 48 × 48 pixels, one per soft token | 0 to 1 | of soft tokens |
///
/// The processor of the transformers package has values from 0 to 1 for both; the tower's patch embedding then
/// computes 2·x − 1, which is done here instead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemma4 {
    /// Maximum soft tokens per picture. The models were trained with [`SOFT_TOKENS`](Self::SOFT_TOKENS).
    pub max_soft_tokens: u32,
    /// Side of the square that becomes a soft token, in pixels.
    pub token_size: u32,
    /// Side of a patch in pixels; divides `token_size`.
    pub patch_size: u32,
    /// Order of a patch's values: channels last in Hugging Face checkpoints, first in GGUF files.
    pub order: PatchOrder,
    /// Range of the values.
    pub normalization: Normalization,
}

impl Gemma4 {
    /// Budgets of soft tokens that the models were trained with.
    pub const SOFT_TOKENS: [u32; 5] = [70, 140, 280, 560, 1120];
    /// The budget of a picture unless asked otherwise.
    pub const DEFAULT_SOFT_TOKENS: u32 = 280;

    /// For the models with a vision tower.
    pub fn with_tower(max_soft_tokens: u32) -> Self {
        Self {
            max_soft_tokens,
            token_size: PATCH * POOL,
            patch_size: PATCH,
            order: PatchOrder::ChannelsLast,
            normalization: Normalization::SIGNED,
        }
    }

    /// For the 12B, whose embedding reads pixels directly.
    pub fn unified(max_soft_tokens: u32) -> Self {
        Self {
            patch_size: PATCH * POOL,
            normalization: Normalization::UNIT,
            ..Self::with_tower(max_soft_tokens)
        }
    }

    /// Soft tokens per row and column: the most within the budget at about the aspect ratio of the picture, at least
    /// one each.
    pub fn grid(&self, width: u32, height: u32) -> (u32, u32) {
        let budget = self.max_soft_tokens.max(1);
        let token_size = f64::from(self.token_size.max(1));
        let (width, height) = (f64::from(width.max(1)), f64::from(height.max(1)));
        let factor = (f64::from(budget) * token_size * token_size / (width * height)).sqrt();
        let columns = (factor * width / token_size) as u32;
        let rows = (factor * height / token_size) as u32;
        match (columns, rows) {
            // One token high, and as wide as the ratio of the sides, if the budget allows it.
            (columns, 0) if columns > 0 => (((width / height) as u32).clamp(1, budget), 1),
            (0, rows) if rows > 0 => (1, ((height / width) as u32).clamp(1, budget)),
            (columns, rows) => (columns.max(1), rows.max(1)),
        }
    }

    /// Number of soft tokens that a picture becomes.
    pub fn soft_tokens(&self, width: u32, height: u32) -> u32 {
        let (columns, rows) = self.grid(width, height);
        columns * rows
    }

    /// Patches of a picture, row by row; [`Patches::positions`] are those of the position tables. Tower patches of
    /// one soft token are not adjacent: a token at (x, y) pools columns 3·x to 3·x + 2 and rows 3·y to 3·y + 2.
    pub fn process(&self, picture: &Picture) -> Patches {
        let (columns, rows) = self.grid(picture.width(), picture.height());
        let (width, height) = (columns * self.token_size, rows * self.token_size);
        let resized = resize(picture, picture.region(), width, height, Filter::Bicubic);
        Patches::cut(&resized, self.patch_size, self.order, &self.normalization)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_stay_within_the_budget() {
        let sides = [1, 2, 47, 48, 49, 100, 281, 1000, 1121, 4032, 65_535, 50_000_000, u32::MAX];
        for budget in Gemma4::SOFT_TOKENS.into_iter().chain([0, 1, 2]) {
            for width in sides {
                for height in sides {
                    let (columns, rows) = Gemma4::with_tower(budget).grid(width, height);
                    assert!(columns > 0 && rows > 0, "{width} × {height}");
                    let tokens = u64::from(columns) * u64::from(rows);
                    assert!(tokens <= u64::from(budget.max(1)), "{width} × {height}: {columns} × {rows}");
                }
            }
        }
    }

    #[test]
    fn extreme_pictures_have_one_row() {
        assert_eq!(Gemma4::with_tower(70).grid(10_000, 10), (70, 1));
        assert_eq!(Gemma4::with_tower(70).grid(10, 10_000), (1, 70));
        assert_eq!(Gemma4::with_tower(280).grid(1000, 1000), (16, 16));
    }
}
