//! What is recorded of a world's packets.

use std::collections::VecDeque;

use emulated_hca::{NodeKind, TapId, TapPoint, Tapped};
use ib_capture::{FrameRecord, Interface};

use super::{HostId, World};

/// Packets of taps that may wait to be taken; more are lost, and counted.
const MAX_TAPPED: usize = 1 << 14;

/// What is recorded and not yet taken.
#[derive(Debug, Default)]
pub(super) struct Taps {
    /// Whether everything is recorded, and the taps that do.
    is_captured: bool,
    capture: Vec<TapId>,
    frames: VecDeque<FrameRecord>,
    /// What the taps of somebody else saw.
    tapped: VecDeque<(TapId, FrameRecord)>,
    missed: u64,
}

impl World {
    /// Records every packet on every link and in every VF's tunnels from now on; see
    /// [`World::poll_frame`].
    pub fn capture(&mut self) {
        if !core::mem::replace(&mut self.taps.is_captured, true) {
            let tap = self.adapters.fabric.add_tap(TapPoint::Everything);
            self.taps.capture.push(tap);
            for host in 0..self.hosts.len() {
                self.capture_tunnels(HostId(host));
            }
        }
    }

    pub(super) fn capture_tunnels(&mut self, host: HostId) {
        let host = &self.hosts[host.0];
        if self.taps.is_captured && host.context().is_some() {
            let tap = self.adapters.fabric.add_tap(TapPoint::Tunnels(host.node()));
            self.taps.capture.push(tap);
        }
    }

    /// The next packet that [`World::capture`] recorded. Its interface tells what it passed: 0 a link
    /// from an adapter to a switch, 1 one between switches, 2 one from a switch to an adapter, 3 one
    /// between adapters or a tunnel of a VF.
    pub fn poll_frame(&mut self) -> Option<FrameRecord> {
        self.taps.frames.pop_front()
    }

    /// Records what passes a point from now on; see [`World::poll_tapped`].
    pub fn add_tap(&mut self, point: TapPoint) -> TapId {
        self.adapters.fabric.add_tap(point)
    }

    /// Stops a recording that [`World::add_tap`] began. What it has seen can still be taken.
    pub fn remove_tap(&mut self, tap: TapId) {
        self.adapters.fabric.remove_tap(tap);
    }

    /// The next packet that a tap of [`World::add_tap`] saw, as [`World::poll_frame`] gives it. Of
    /// many that nobody takes only the first are kept.
    pub fn poll_tapped(&mut self) -> Option<(TapId, FrameRecord)> {
        self.taps.tapped.pop_front()
    }

    /// Packets that taps of [`World::add_tap`] would have given if somebody had taken the earlier
    /// ones.
    #[must_use]
    pub const fn taps_missed(&self) -> u64 {
        self.taps.missed
    }

    pub(super) fn record_taps(&mut self) {
        while let Some(tapped) = self.adapters.fabric.poll_tap() {
            let record = tapped.record(self.interface(&tapped));
            let taps = &mut self.taps;
            if taps.capture.contains(&tapped.tap) {
                taps.frames.push_back(record);
            } else if taps.tapped.len() < MAX_TAPPED {
                taps.tapped.push_back((tapped.tap, record));
            } else {
                taps.missed += 1;
            }
        }
    }

    fn interface(&self, tapped: &Tapped) -> Interface {
        let is_switch = |node| {
            let node = self.adapters.fabric.node(node);
            node.is_some_and(|node| node.kind() == NodeKind::Switch)
        };
        Interface::from_low_bits(
            match (is_switch(tapped.from.node), is_switch(tapped.to.node)) {
                (false, true) => 0,
                (true, true) => 1,
                (true, false) => 2,
                (false, false) => 3,
            },
        )
    }
}
