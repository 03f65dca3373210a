//! The software on a switch's port 0: nothing but the agents that programs use.

use emulated_hca::{Fabric, NodeId};
use hca_api::{HcaError, SpecialQp};
use ib_endpoint::{MadAddress, MadAgent, MadAgentConfig, Transmit};
use ib_vtime::{Instant, Secret};
use ib_wire::{PortNum, QKey};

/// MADs that the queue pairs of a port 0 hold each way.
const DEPTH: usize = 512;

/// The MAD agents on QP0 and QP1 of a switch's port 0.
#[derive(Debug)]
pub(super) struct SwitchSoftware {
    node: NodeId,
    gsi: MadAgent,
    smi: MadAgent,
    /// MADs that the fabric refused.
    refused_sends: u64,
}

impl SwitchSoftware {
    pub(super) fn open(
        fabric: &mut Fabric,
        node: NodeId,
        secret: Secret,
    ) -> Result<Self, HcaError> {
        fabric.open_port0(node, DEPTH)?;
        Ok(Self {
            node,
            gsi: MadAgent::new(MadAgentConfig::gsi(secret.of(b"GSI tids").seed())),
            smi: MadAgent::new(MadAgentConfig::smi(secret.of(b"SMI tids").seed())),
            refused_sends: 0,
        })
    }

    pub(super) fn agents(&mut self) -> (&mut MadAgent, Option<&mut MadAgent>) {
        (&mut self.gsi, Some(&mut self.smi))
    }

    /// Does everything that is due.
    pub(super) fn poll(&mut self, now: Instant, fabric: &mut Fabric) {
        while let Some(received) = fabric.receive_port0(self.node) {
            let (agent, qkey) = match received.special {
                SpecialQp::Gsi => (&mut self.gsi, QKey::GSI),
                SpecialQp::Smi => (&mut self.smi, QKey::SMI),
            };
            let from = MadAddress::of_sender(&received.source, qkey);
            agent.handle_mad(now, &from, &received.mad);
        }
        self.gsi.handle_timeout(now);
        self.smi.handle_timeout(now);
        while fabric.can_send_port0(self.node)
            && let Some((special, Transmit { to, mad })) = self.next(now)
        {
            let to = to.destination(PortNum::SWITCH_MANAGEMENT);
            if fabric.send_port0(self.node, special, &to, &mad).is_err() {
                self.refused_sends += 1;
            }
        }
    }

    fn next(&mut self, now: Instant) -> Option<(SpecialQp, Transmit)> {
        let smi = self.smi.poll_transmit(now);
        smi.map(|transmit| (SpecialQp::Smi, transmit)).or_else(|| {
            let transmit = self.gsi.poll_transmit(now)?;
            Some((SpecialQp::Gsi, transmit))
        })
    }

    /// When to poll at the latest; a time that has passed means at once.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        if self.gsi.has_transmit() || self.smi.has_transmit() {
            return Some(Instant::ZERO);
        }
        let timeouts = [self.gsi.poll_timeout(), self.smi.poll_timeout()];
        timeouts.into_iter().flatten().min()
    }
}
