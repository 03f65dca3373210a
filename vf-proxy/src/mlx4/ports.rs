//! The guest's ports: what the driver asks and changes of them, and what it is told.

mod events;

use std::collections::BTreeMap;

use hca_api::{Hca, PortChange, PortModify};
use ib_wire::PortNum;
use ib_wire::smp::CapabilityMask;
use mlx4_defs::eqe::Eqe;
use mlx4_defs::mad_ifc::MadIfcOutput;
use mlx4_defs::set_port::SetPort;
use mlx4_defs::{Mailbox, Status};

use self::events::PortEvents;
use super::mad_ifc::{MANAGERS, MadRequest};
use super::pd::status_of;

/// What is kept of the guest's ports. A reset forgets it.
#[derive(Debug, Default)]
pub(super) struct Ports {
    /// No more than the function has ports.
    ports: BTreeMap<PortNum, Port>,
}

#[derive(Debug, Default)]
struct Port {
    events: PortEvents,
    /// What the port's counter said when the guest set it back: the counter is the physical port's,
    /// and other functions look at it, too.
    qkey_violations: u16,
}

/// What a guest wants of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortSettings {
    port: PortNum,
    reset_qkey_violations: bool,
    capabilities: CapabilityMask,
}

impl PortSettings {
    /// What the command says.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for settings of an Ethernet port.
    pub(super) fn parse(modifier: u32, op_modifier: u8, mailbox: &Mailbox) -> Result<Self, Status> {
        const INFINIBAND: u8 = 0;

        if op_modifier != INFINIBAND {
            return Err(Status::BAD_PARAM);
        }
        let [.., port] = modifier.to_be_bytes();
        let settings: &SetPort = mailbox.view();
        Ok(Self {
            port: PortNum(port),
            reset_qkey_violations: settings.reset_qkey_violations(),
            capabilities: CapabilityMask::new(settings.capability_mask.get()),
        })
    }
}

impl Ports {
    /// Answers a question to a port's management agent.
    ///
    /// # Errors
    /// Those of [`MadRequest::ask`].
    pub(super) fn ask(
        &self,
        hca: &mut dyn Hca,
        request: &MadRequest,
    ) -> Result<Box<Mailbox>, Status> {
        let port = self.ports.get(&request.port());
        let qkey_violations = port.map_or(0, |port| port.qkey_violations);
        let mad = request.ask(hca, qkey_violations)?;
        Ok(Box::new(Mailbox::with(&MadIfcOutput { mad })))
    }

    /// Changes a port.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for a port that the function does not have, and if a manager shall be
    /// announced behind it.
    pub(super) fn change(
        &mut self,
        hca: &mut dyn Hca,
        settings: &PortSettings,
    ) -> Result<(), Status> {
        let port = settings.port;
        let attributes = hca.query_port(port).map_err(status_of)?;
        let (wanted, seen) = (settings.capabilities.get(), attributes.capability_mask);
        if wanted & MANAGERS.get() != 0 {
            return Err(Status::BAD_PARAM);
        }
        let change = PortModify {
            set_capabilities: wanted & !seen,
            clear_capabilities: seen & !wanted,
            ..PortModify::default()
        };
        hca.modify_port(port, &change).map_err(status_of)?;
        if settings.reset_qkey_violations {
            let counted = attributes.bad_qkey_counter;
            self.ports.entry(port).or_default().qkey_violations =
                u16::try_from(counted).unwrap_or(u16::MAX);
        }
        Ok(())
    }

    /// The adapter says that a port has changed. What the guest reads of it has changed already.
    pub(super) fn handle_port_change(&mut self, hca: &dyn Hca, port: PortNum, change: PortChange) {
        if let Ok(attributes) = hca.query_port(port) {
            let gid = hca.query_gid(port, ib_wire::GidIndex(0)).ok();
            let known = self.ports.entry(port).or_default();
            known.events.note(attributes.state, gid, change);
        }
    }

    /// The next thing to tell the guest.
    pub(super) fn poll_event(&mut self) -> Option<Eqe> {
        self.ports
            .iter_mut()
            .find_map(|(port, known)| known.events.poll(*port))
    }
}

#[cfg(test)]
mod tests;
