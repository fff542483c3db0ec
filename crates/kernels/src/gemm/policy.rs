//! Which variant multiplies a matrix of a shape with many columns on a device: pure, tested without a GPU.

use gpu::{Caps, Tier};

use super::{lanes, variant};
use crate::{Epilogue, Layout, Scheme, variant::Variant};

/// What is to be multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The weights.
    pub weights: Layout,
    /// Columns of x.
    pub columns: usize,
    /// What becomes of the sums.
    pub epilogue: Epilogue,
}

/// How a workgroup goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// 64 × 32 outputs through shared memory.
    Tiles,
    /// A row a lane, for CPU drivers.
    Lanes(lanes::Tile),
}

/// A variant of the kernel and its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// T0 or T1.
    pub tier: Tier,
    /// The shader.
    pub method: Method,
    /// Most workgroups along the rows; each takes tiles in turn.
    pub groups: u32,
}

/// The plan for a shape.
pub fn plan(caps: &Caps, shape: &Shape) -> Plan {
    at_tier(caps, shape, caps.tier().unwrap_or(Tier::T0).min(Tier::T1))
}

/// The plan at a tier that need not be the device's best.
pub fn at_tier(caps: &Caps, shape: &Shape, tier: Tier) -> Plan {
    let method = match lanes::fits(caps, tier) {
        true => Method::Lanes(tile(shape)),
        false => Method::Tiles,
    };
    Plan { tier, method, groups: caps.max_groups }
}

/// One strip and 16 columns are fastest on Mesa's CPU driver, 8 columns take 1.15 times as long for each of them; but what a
/// tile has past the last column is computed for nothing. Two strips leave registers for 8.
fn tile(shape: &Shape) -> lanes::Tile {
    let strips = shape.epilogue.strips() as u32;
    let columns = shape.columns as u32;
    let sixteen = strips == 1 && columns.next_multiple_of(16) * 20 < columns.next_multiple_of(8) * 23;
    lanes::Tile { strips, columns: if sixteen { 16 } else { 8 } }
}

/// All pipelines that the policy may ask for on such a device: every scheme and epilogue, at each tier.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let tiers = [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier));
    let mut list = Vec::new();
    for tier in tiers {
        for scheme in Scheme::ALL {
            for epilogue in Epilogue::ALL {
                // A tile more or less full: what the policy tells apart.
                for columns in [16, 24] {
                    let shape = Shape { weights: Layout { scheme, rows: 4096, k: 640 }, columns, epilogue };
                    let new = variant(&shape, &at_tier(caps, &shape, tier));
                    if !list.iter().any(|known: &Variant| (known.tier, &known.label) == (new.tier, &new.label)) {
                        list.push(new);
                    }
                }
            }
        }
    }
    list
}
