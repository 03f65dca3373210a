//! A subnet manager on a host's port.

use hca_api::{Hca, HcaError, PortModify, SpecialQp};
use ib_endpoint::MadQp;
use ib_vtime::Instant;
use ib_wire::smp::CapabilityMask;
use ib_wire::{GidIndex, PortNum};
use subnet_lite::SubnetConfig;
use subnet_lite::sm::{Sm, SmEvent};

/// SMPs that fit into QP0's queues, each way.
const QUEUE_DEPTH: u32 = 512;

/// A subnet manager with its QP0.
#[derive(Debug)]
pub struct Manager {
    /// The subnet manager.
    pub sm: Sm,
    qp0: MadQp,
    events: Vec<SmEvent>,
    unsent: u64,
}

impl Manager {
    pub(super) fn start(
        hca: &mut dyn Hca,
        port: PortNum,
        config: SubnetConfig,
        seed: u64,
    ) -> Result<Self, HcaError> {
        let guid = hca.query_gid(port, GidIndex(0))?.interface_id();
        let qp0 = MadQp::open(hca, SpecialQp::Smi, port, QUEUE_DEPTH)?;
        announce(hca, port, true)?;
        Ok(Self {
            sm: Sm::new(config, port, guid, seed),
            qp0,
            events: Vec::new(),
            unsent: 0,
        })
    }

    pub(super) fn stop(self, hca: &mut dyn Hca) -> Result<(), HcaError> {
        let port = self.port();
        self.qp0.close(hca);
        announce(hca, port, false)
    }

    /// The port it runs on.
    #[must_use]
    pub const fn port(&self) -> PortNum {
        self.qp0.port()
    }

    /// What has happened since it was started.
    #[must_use]
    pub fn events(&self) -> &[SmEvent] {
        &self.events
    }

    /// MADs that QP0 did not take.
    #[must_use]
    pub const fn unsent(&self) -> u64 {
        self.unsent
    }

    /// Does everything that is due. Whether there was anything.
    pub(super) fn poll(&mut self, now: Instant, hca: &mut dyn Hca) -> bool {
        let mut busy = self.poll_timeout().is_some_and(|at| at <= now);
        if busy {
            self.sm.handle_timeout(now);
        }
        while let Some((from, mad)) = self.qp0.poll(hca) {
            self.sm.handle_smp(now, &from, &mad);
            busy = true;
        }
        while self.qp0.can_send()
            && let Some(transmit) = self.sm.poll_transmit(now)
        {
            let sent = self.qp0.send(hca, &transmit.to, &transmit.mad);
            self.unsent += u64::from(sent.is_err());
            busy = true;
        }
        self.events
            .extend(std::iter::from_fn(|| self.sm.poll_event()));
        busy
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.sm.poll_timeout()
    }
}

/// Sets or clears PortInfo:CapabilityMask.IsSM, as the kernel does when a program opens or closes
/// `/dev/infiniband/issm`.
fn announce(hca: &mut dyn Hca, port: PortNum, is_sm: bool) -> Result<(), HcaError> {
    let bit = CapabilityMask::IS_SM.get();
    let change = PortModify {
        set_capabilities: if is_sm { bit } else { 0 },
        clear_capabilities: if is_sm { 0 } else { bit },
        ..PortModify::default()
    };
    hca.modify_port(port, &change)
}
