//! Gemma 3: pictures of one fixed size for SigLIP, and crops of wide or tall ones.

use crate::{
    patches::{Normalization, PatchOrder, Patches},
    picture::{Picture, Region},
    resize::{Filter, resize},
};

/// The image processor of Gemma 3. Every picture is resized to a square, without keeping its aspect ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemma3 {
    /// Width and height of the resized picture in pixels; 896 in all published models.
    pub size: u32,
    /// Side of a patch in pixels; 14 in all published models.
    pub patch_size: u32,
    /// Mean and standard deviation of the checkpoint.
    pub normalization: Normalization,
    /// Additional crops of wide or tall pictures, off by default.
    pub pan_and_scan: Option<PanAndScan>,
}

impl Gemma3 {
    /// A processor with values from −1 to 1 and no crops.
    pub fn new(size: u32, patch_size: u32) -> Self {
        Self { size, patch_size, normalization: Normalization::SIGNED, pan_and_scan: None }
    }

    /// The regions that are encoded, each for a block of soft tokens: the whole picture, then crops.
    pub fn regions(&self, width: u32, height: u32) -> Vec<Region> {
        let mut regions = vec![Region { x: 0, y: 0, width, height }];
        regions.extend(self.pan_and_scan.iter().flat_map(|settings| settings.crops(width, height)));
        regions
    }

    /// Patches of each of the [`regions`](Self::regions). Values of a patch are in the order channel, row, column.
    pub fn process(&self, picture: &Picture) -> Vec<Patches> {
        let regions = self.regions(picture.width(), picture.height());
        regions.into_iter().map(|region| self.patches(picture, region)).collect()
    }

    /// Patches of one region.
    pub fn patches(&self, picture: &Picture, region: Region) -> Patches {
        let resized = resize(picture, region, self.size, self.size, Filter::Bilinear);
        Patches::cut(&resized, self.patch_size, PatchOrder::ChannelsFirst, &self.normalization)
    }
}

/// Pan-and-scan: crops along the longer side, so that details of wide or tall pictures are not lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PanAndScan {
    /// Smallest side of a crop in pixels.
    pub min_crop_size: u32,
    /// Most crops.
    pub max_crops: u32,
    /// Smallest ratio of the longer side to the shorter one.
    pub min_ratio: f64,
}

impl Default for PanAndScan {
    /// The values that the model's authors recommend.
    fn default() -> Self {
        Self { min_crop_size: 256, max_crops: 4, min_ratio: 1.2 }
    }
}

impl PanAndScan {
    /// The crops of a picture: side by side, none if it is nearly square or too small. The last one is smaller if
    /// the side does not divide evenly.
    pub fn crops(&self, width: u32, height: u32) -> Vec<Region> {
        let (long, short) = (width.max(height), width.min(height));
        let ratio = f64::from(long) / f64::from(short);
        // Not a number if a side is zero.
        if ratio.is_nan() || ratio < self.min_ratio {
            return Vec::new();
        }
        let by_size = long / self.min_crop_size.max(1);
        let count = ((ratio + 0.5) as u32).min(by_size).max(2).min(self.max_crops);
        if count == 0 {
            return Vec::new();
        }
        let length = long.div_ceil(count);
        if length.min(short) < self.min_crop_size {
            return Vec::new();
        }
        let crop = |index: u32| {
            let start = index.checked_mul(length).filter(|start| *start < long)?;
            let length = length.min(long - start);
            Some(match width >= height {
                true => Region { x: start, y: 0, width: length, height },
                false => Region { x: 0, y: start, width, height: length },
            })
        };
        (0..count).filter_map(crop).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crops(width: u32, height: u32) -> Vec<(u32, u32, u32, u32)> {
        let crops = PanAndScan::default().crops(width, height);
        crops.into_iter().map(|r| (r.x, r.y, r.width, r.height)).collect()
    }

    #[test]
    fn crops_follow_the_longer_side() {
        assert_eq!(crops(1000, 1000), []);
        assert_eq!(crops(1199, 1000), []);
        assert_eq!(crops(1200, 1000), [(0, 0, 600, 1000), (600, 0, 600, 1000)]);
        assert_eq!(crops(400, 1001), [(0, 0, 400, 334), (0, 334, 400, 334), (0, 668, 400, 333)]);
        // 10 : 1 would be ten crops; four are allowed.
        assert_eq!(crops(3000, 300).len(), 4);
        // Two crops of 250 would be too small, and so is a height of 200.
        assert_eq!(crops(500, 400), []);
        assert_eq!(crops(1000, 200), []);
    }

    #[test]
    fn extreme_settings_make_no_empty_crop() {
        let settings = PanAndScan { min_crop_size: 0, max_crops: 100, min_ratio: 0.0 };
        for (width, height) in [(5, 1), (1, 7), (u32::MAX, 1), (1, 1)] {
            for crop in settings.crops(width, height) {
                assert!(crop.width > 0 && crop.height > 0);
                assert!(crop.x + crop.width <= width && crop.y + crop.height <= height);
            }
        }
        assert!(settings.crops(0, 0).is_empty());
        assert!(PanAndScan { max_crops: 0, ..settings }.crops(5, 1).is_empty());
    }
}
