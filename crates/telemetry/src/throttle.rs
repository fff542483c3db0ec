//! Why a GPU runs below the clocks that were asked for.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of limit that lowers a GPU's clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Throttle {
    /// A power limit, for instance of the package or the board.
    Power,
    /// A current limit of a voltage regulator.
    Current,
    /// A temperature limit.
    Thermal,
    /// A limit whose meaning depends on the chip, or that is none of the above.
    Other,
}

impl fmt::Display for Throttle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Throttle::Power => "power",
            Throttle::Current => "current",
            Throttle::Thermal => "thermal limit",
            Throttle::Other => "another limit",
        })
    }
}

/// The reasons whose bits are set in `status`, each once, in the order of [`Throttle`].
pub(crate) fn from_bits(status: u64, masks: &[(u64, Throttle)]) -> Vec<Throttle> {
    let known = masks.iter().fold(0, |known, (mask, _)| known | mask);
    let unknown = (status & !known != 0).then_some(Throttle::Other);
    let named = masks.iter().filter(|(mask, _)| status & mask != 0).map(|(_, reason)| *reason);
    let mut reasons: Vec<Throttle> = named.chain(unknown).collect();
    reasons.sort_unstable();
    reasons.dedup();
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use Throttle::{Other, Power, Thermal};

    #[test]
    fn reasons_are_unique_and_unknown_bits_are_other() {
        let masks = [(0b1100, Thermal), (0b0011, Power)];
        assert_eq!(from_bits(0, &masks), []);
        assert_eq!(from_bits(0b1111, &masks), [Power, Thermal]);
        assert_eq!(from_bits(0b1_0001, &masks), [Power, Other]);
        assert_eq!(from_bits(1 << 63, &[]), [Other]);
    }
}
