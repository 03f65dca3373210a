//! The software on port 0 of a switch: its QP0 and QP1.

use hca_api::{HcaError, LocalMad, MadView, SpecialQp, UdDestination};
use ib_wire::PortNum;
use ib_wire::mad::Mad;

use super::{Body, Fabric, NodeId};
use crate::switch::{Port0, Switch};
use crate::{EndNode, Endpoint, Port0Mad, pma, sma, smi};

impl<D: EndNode> Fabric<D> {
    /// Gives the software on a switch's port 0 its QP0 and QP1, which hold so many MADs each way. What
    /// the port's own agents do not take comes there from now on.
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`] if the node is no switch, [`HcaError::SpecialQpTaken`] if its
    /// queue pairs were given already.
    pub fn open_port0(&mut self, node: NodeId, depth: usize) -> Result<(), HcaError> {
        let switch = self.switch_mut(node).ok_or(HcaError::InvalidParameter)?;
        if switch.port0.is_some() {
            return Err(HcaError::SpecialQpTaken);
        }
        switch.port0 = Some(Port0::new(depth));
        Ok(())
    }

    /// Takes the queue pairs of the software on a switch's port 0 back; what waits in them is lost.
    pub fn close_port0(&mut self, node: NodeId) {
        if let Some(switch) = self.switch_mut(node) {
            switch.port0 = None;
        }
    }

    /// The next switch whose software on port 0 has something to receive. It is told of again only
    /// when something comes after all was received.
    pub fn poll_port0_ready(&mut self) -> Option<NodeId> {
        self.port0_ready.pop_front()
    }

    /// The next MAD for the software on a switch's port 0.
    pub fn receive_port0(&mut self, node: NodeId) -> Option<Port0Mad> {
        self.port0_mut(node)?.receive()
    }

    /// Whether [`Fabric::send_port0`] takes a MAD.
    #[must_use]
    pub fn can_send_port0(&self, node: NodeId) -> bool {
        match self.slots.get(node.index()).map(|slot| &slot.body) {
            Some(Body::Switch(switch)) => switch.port0.as_ref().is_some_and(Port0::can_send),
            _ => false,
        }
    }

    /// Sends a MAD from a switch's port 0; it leaves with the next poll. A directed-route SMP has its
    /// route before it (hop pointer 0) or, as an answer, is as it was received but for the direction.
    ///
    /// # Errors
    /// [`HcaError::QueueFull`] if the software sends faster than the fabric is polled,
    /// [`HcaError::InvalidHandle`] if port 0 is not open.
    pub fn send_port0(
        &mut self,
        node: NodeId,
        special: SpecialQp,
        to: &UdDestination,
        mad: &Mad,
    ) -> Result<(), HcaError> {
        let port0 = self.port0_mut(node).ok_or(HcaError::InvalidHandle)?;
        port0.send(special, *to, *mad)?;
        self.touch(node);
        Ok(())
    }

    /// MADs that a switch's port 0 could not keep for its software.
    #[must_use]
    pub fn port0_overrun(&self, node: NodeId) -> u64 {
        match self.slots.get(node.index()).map(|slot| &slot.body) {
            Some(Body::Switch(switch)) => switch.port0.as_ref().map_or(0, Port0::overrun),
            _ => 0,
        }
    }

    /// Has the agents of a node process a MAD of the software on one of its ports, as the driver of a
    /// real one does.
    pub fn process_local_mad(&mut self, at: Endpoint, view: &MadView, mad: &Mad) -> LocalMad {
        let now = self.now;
        let Some(slot) = self.slots.get_mut(at.node.index()) else {
            return LocalMad::NotHandled;
        };
        let node = slot.node_mut();
        node.set_now(now);
        let outcome = if mad.header.mgmt_class.is_smp() {
            sma::process(node, at.port, view, mad)
        } else {
            pma::process(node, at.port, mad)
        };
        self.touch(at.node);
        outcome
    }

    /// Sets and clears bits of the capability mask of a switch's port 0, as its software does. The
    /// functions of a channel adapter have [`hca_api::Hca::modify_port`] for that.
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`] if the node is no switch.
    pub fn change_port0_capabilities(
        &mut self,
        node: NodeId,
        set: u32,
        clear: u32,
    ) -> Result<(), HcaError> {
        let now = self.now;
        let switch = self.switch_mut(node).ok_or(HcaError::InvalidParameter)?;
        switch.node.set_now(now);
        switch
            .node
            .change_capabilities(PortNum::SWITCH_MANAGEMENT, set, clear);
        self.touch(node);
        Ok(())
    }

    /// Sends what the software on a switch's port 0 has to send.
    pub(super) fn pull_port0(&mut self, id: NodeId) {
        while let Some(switch) = self.switch_mut(id)
            && !switch.holding.has_from(PortNum::SWITCH_MANAGEMENT)
            && let Some((special, frame)) = switch.next_send()
        {
            let from = id.port(0);
            match special {
                SpecialQp::Smi => {
                    let outcome = smi::send(&mut switch.node, from.port, frame);
                    self.follow(from, outcome);
                }
                SpecialQp::Gsi => {
                    self.deliver(from, frame, None);
                }
            }
        }
    }

    /// Notes that the software on a switch's port 0 has something to receive, if it has.
    pub(super) fn note_port0(&mut self, id: NodeId) {
        if self.switch_mut(id).is_some_and(Switch::has_news) {
            self.port0_ready.push_back(id);
        }
    }

    fn port0_mut(&mut self, node: NodeId) -> Option<&mut Port0> {
        self.switch_mut(node)?.port0.as_mut()
    }

    pub(super) fn switch_mut(&mut self, node: NodeId) -> Option<&mut Switch> {
        match &mut self.slots.get_mut(node.index())?.body {
            Body::Switch(switch) => Some(switch),
            Body::EndNode(_) | Body::Gateway(_) => None,
        }
    }
}
