//! Stream switches: from a DMA channel's output to the channels that it feeds.

use super::Fault;
use crate::tile::{TileKind, TilePlace};

/// What is behind a port of a stream switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Port {
    Dma(usize),
    North(usize),
    South(usize),
    East(usize),
    West(usize),
    /// The tile's own control: completion tokens come from it.
    Control,
    /// A core's stream, a FIFO, or trace.
    Unmodelled,
}

/// The ports of an input or output side: kind, and how many.
type Side = &'static [(fn(usize) -> Port, usize)];

fn control(_: usize) -> Port {
    Port::Control
}

fn unmodelled(_: usize) -> Port {
    Port::Unmodelled
}

fn masters(kind: TileKind) -> Side {
    match kind {
        TileKind::Shim => &[
            (control, 1),
            (unmodelled, 1),
            (Port::South, 6),
            (Port::West, 4),
            (Port::North, 6),
            (Port::East, 4),
        ],
        TileKind::Memory => &[(Port::Dma, 6), (control, 1), (Port::South, 4), (Port::North, 6)],
        TileKind::Core => &[
            (unmodelled, 1),
            (Port::Dma, 2),
            (control, 1),
            (unmodelled, 1),
            (Port::South, 4),
            (Port::West, 4),
            (Port::North, 6),
            (Port::East, 4),
        ],
    }
}

fn slaves(kind: TileKind) -> Side {
    match kind {
        TileKind::Shim => &[
            (control, 1),
            (unmodelled, 1),
            (Port::South, 8),
            (Port::West, 4),
            (Port::North, 4),
            (Port::East, 4),
            (unmodelled, 1),
        ],
        TileKind::Memory => {
            &[(Port::Dma, 6), (control, 1), (Port::South, 6), (Port::North, 4), (unmodelled, 1)]
        }
        TileKind::Core => &[
            (unmodelled, 1),
            (Port::Dma, 2),
            (control, 1),
            (unmodelled, 1),
            (Port::South, 6),
            (Port::West, 4),
            (Port::North, 4),
            (Port::East, 4),
            (unmodelled, 2),
        ],
    }
}

/// The port with number `index`.
fn port(side: Side, mut index: usize) -> Port {
    for &(port, count) in side {
        if index < count {
            return port(index);
        }
        index -= count;
    }
    Port::Unmodelled
}

/// The number of a port.
pub(crate) fn slave_index(kind: TileKind, wanted: Port) -> Option<usize> {
    let count: usize = slaves(kind).iter().map(|(_, count)| count).sum();
    (0..count).find(|&index| wanted != Port::Unmodelled && port(slaves(kind), index) == wanted)
}

/// The number of an output port.
pub(crate) fn master_index(kind: TileKind, wanted: Port) -> Option<usize> {
    let count: usize = masters(kind).iter().map(|(_, count)| count).sum();
    (0..count).find(|&index| wanted != Port::Unmodelled && port(masters(kind), index) == wanted)
}

const ENABLE: u32 = 1 << 31;
const PACKET: u32 = 1 << 30;
/// Value of a field of the multiplexers of shim tiles that connects to DMA.
const TO_DMA: u32 = 1;
/// Output port of a shim tile, toward the controller, for completion tokens.
const TOKEN_EXIT: Port = Port::South(0);

/// The configuration of a tile's switch.
#[derive(Debug, Clone)]
pub(super) struct Switch {
    pub(super) kind: TileKind,
    pub(super) masters: Vec<u32>,
    pub(super) slaves: Vec<u32>,
    pub(super) slots: Vec<[u32; 4]>,
    pub(super) mux: u32,
    pub(super) demux: u32,
}

impl Switch {
    pub(super) fn new(kind: TileKind) -> Self {
        let layout = kind.layout();
        Self {
            kind,
            masters: vec![0; layout.masters],
            slaves: vec![0; layout.slaves],
            slots: vec![[0; 4]; layout.slaves],
            mux: 0,
            demux: 0,
        }
    }

    /// The input port that an MM2S channel feeds; `None` if it is not connected.
    pub(super) fn dma_slave(&self, channel: usize) -> Option<usize> {
        match self.kind {
            TileKind::Shim => {
                // Channel 0 can feed port South 3, channel 1 South 7.
                let (port, field) = if channel == 0 { (3, self.mux >> 10) } else { (7, self.mux >> 14) };
                (field & 3 == TO_DMA).then(|| slave_index(self.kind, Port::South(port)))?
            }
            kind => slave_index(kind, Port::Dma(channel)),
        }
    }

    /// The output ports that a circuit-switched input port feeds.
    fn outputs(&self, slave: usize) -> impl Iterator<Item = Port> + '_ {
        let connected = self.slaves[slave] & (ENABLE | PACKET) == ENABLE;
        self.masters.iter().enumerate().filter_map(move |(index, &config)| {
            let selected = config & (ENABLE | PACKET) == ENABLE && (config & 0x7f) as usize == slave;
            (connected && selected).then(|| port(masters(self.kind), index))
        })
    }

    /// The S2MM channel below an output port to the south of a shim tile.
    fn shim_channel(&self, south: usize) -> Option<usize> {
        // Port South 2 can feed channel 0, South 3 channel 1.
        let (channel, field) = match south {
            2 => (0, self.demux >> 4),
            3 => (1, self.demux >> 6),
            _ => return None,
        };
        (field & 3 == TO_DMA).then_some(channel)
    }

    /// Whether completion tokens with this controller id reach the controller.
    pub(super) fn routes_token(&self, id: u32) -> bool {
        let Some(slave) = slave_index(self.kind, Port::Control) else { return false };
        if self.kind != TileKind::Shim || self.slaves[slave] & (ENABLE | PACKET) != ENABLE | PACKET {
            return false;
        }
        let matches = |slot: u32| {
            let (rule_id, mask) = (slot >> 24 & 0x1f, slot >> 16 & 0x1f);
            slot & 1 << 8 != 0 && id & mask == rule_id & mask
        };
        let Some(&slot) = self.slots[slave].iter().find(|&&slot| matches(slot)) else { return false };
        let (select, arbiter) = (slot >> 4 & 3, slot & 7);
        self.masters.iter().enumerate().any(|(index, &config)| {
            let takes = config & (ENABLE | PACKET) == ENABLE | PACKET
                && config & 7 == arbiter
                && config >> 3 & 0xf & 1 << select != 0;
            takes && port(masters(self.kind), index) == TOKEN_EXIT
        })
    }
}

/// Where a route ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Route {
    /// S2MM channels.
    pub(super) ends: Vec<(TilePlace, usize)>,
    /// Whether a branch ends nowhere, so that no word ever passes.
    pub(super) blocked: bool,
}

/// Follows a circuit from an input port of the tile at `place`.
pub(super) fn follow<'a>(
    switch_at: &impl Fn(TilePlace) -> Option<&'a Switch>,
    place: TilePlace,
    slave: usize,
) -> Result<Route, Fault> {
    let mut route = Route::default();
    let mut visited = Vec::new();
    let mut pending = vec![(place, slave)];
    while let Some((place, slave)) = pending.pop() {
        if visited.contains(&(place, slave)) {
            return Err(Fault::Route { place, port: slave, reason: "leads in a circle" });
        }
        visited.push((place, slave));
        let Some(switch) = switch_at(place) else {
            route.blocked = true;
            continue;
        };
        let mut branches = 0;
        for output in switch.outputs(slave) {
            branches += 1;
            match step(switch, place, output) {
                Step::End(channel) => route.ends.push((place, channel)),
                Step::Tile(place, input) => match slave_index(place.kind(), input) {
                    Some(slave) => pending.push((place, slave)),
                    None => route.blocked = true,
                },
                Step::Nowhere => route.blocked = true,
                Step::Unmodelled => {
                    let reason =
                        "leads to a core's stream, a FIFO or a tile's control, which are not modelled";
                    return Err(Fault::Route { place, port: slave, reason });
                }
            }
        }
        route.blocked |= branches == 0;
    }
    route.ends.sort_unstable();
    Ok(route)
}

enum Step {
    End(usize),
    Tile(TilePlace, Port),
    Nowhere,
    Unmodelled,
}

fn step(switch: &Switch, place: TilePlace, output: Port) -> Step {
    let TilePlace { column, row } = place;
    let to = |column: Option<u8>, row: Option<u8>, port| match (column, row) {
        (Some(column), Some(row)) => Step::Tile(TilePlace { column, row }, port),
        _ => Step::Nowhere,
    };
    match output {
        Port::Dma(channel) => Step::End(channel),
        Port::North(index) => to(Some(column), row.checked_add(1), Port::South(index)),
        Port::South(index) if row == 0 => switch.shim_channel(index).map_or(Step::Nowhere, Step::End),
        Port::South(index) => to(Some(column), row.checked_sub(1), Port::North(index)),
        Port::East(index) => to(column.checked_add(1), Some(row), Port::West(index)),
        Port::West(index) => to(column.checked_sub(1), Some(row), Port::East(index)),
        Port::Control | Port::Unmodelled => Step::Unmodelled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_numbers() {
        assert_eq!(port(masters(TileKind::Shim), 15), Port::North(3));
        assert_eq!(port(masters(TileKind::Memory), 12), Port::North(1));
        assert_eq!(port(masters(TileKind::Core), 6), Port::South(1));
        assert_eq!(slave_index(TileKind::Shim, Port::South(7)), Some(9));
        assert_eq!(slave_index(TileKind::Memory, Port::North(1)), Some(14));
        assert_eq!(slave_index(TileKind::Core, Port::East(2)), Some(21));
        for kind in [TileKind::Shim, TileKind::Memory, TileKind::Core] {
            let count = |side: Side| side.iter().map(|(_, count)| count).sum::<usize>();
            assert_eq!(count(masters(kind)), kind.layout().masters);
            assert_eq!(count(slaves(kind)), kind.layout().slaves);
        }
    }

    #[test]
    fn tokens_leave_only_by_their_rule() {
        let mut shim = Switch::new(TileKind::Shim);
        assert!(!shim.routes_token(15));
        shim.masters[2] = 0xc000_0045;
        shim.slaves[0] = 0xc000_0000;
        shim.slots[0][0] = 0x0f1f_0135;
        assert!(shim.routes_token(15));
        assert!(!shim.routes_token(14), "another id");
        shim.masters[2] = 0xc000_0044;
        assert!(!shim.routes_token(15), "another arbiter");
    }
}
