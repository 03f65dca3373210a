//! Taps on links, queue pairs and tunnels.

use super::{Body, Fabric};
use crate::{EndNode, TapId, TapPoint, Tapped};

impl<D: EndNode> Fabric<D> {
    /// Listens at a point from now on.
    pub fn add_tap(&mut self, point: TapPoint) -> TapId {
        let id = TapId(self.next_tap);
        self.next_tap += 1;
        self.taps.push((id, point));
        self.watch_tunnels(point);
        id
    }

    /// Stops listening. Packets that the tap has seen can still be taken.
    pub fn remove_tap(&mut self, tap: TapId) {
        let gone = self.taps.iter().find(|(id, _)| *id == tap).copied();
        self.taps.retain(|(id, _)| *id != tap);
        if let Some((_, point)) = gone {
            self.watch_tunnels(point);
        }
    }

    /// Makes a device keep copies of packets in its tunnels while a tap listens there.
    fn watch_tunnels(&mut self, point: TapPoint) {
        if let TapPoint::Tunnels(node) = point
            && let Some(slot) = self.slots.get_mut(node.index())
            && let Body::EndNode(device) = &mut slot.body
        {
            device.watch_tunnels(self.taps.iter().any(|(_, tap)| *tap == point));
        }
    }

    /// Takes the oldest packet that a tap saw.
    pub fn poll_tap(&mut self) -> Option<Tapped> {
        self.tapped.pop_front()
    }

    /// Packets that taps would have seen if someone had taken the earlier ones.
    #[must_use]
    pub const fn taps_missed(&self) -> u64 {
        self.taps_missed
    }
}
