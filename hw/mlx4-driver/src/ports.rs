//! Ports: what the driver and the stack above it read through the management agent.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use ib_endpoint::PortView;
use ib_wire::mad::{AttributeModifier, Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::smp::{
    GuidInfo, LidRoutedSmp, LinkSpeed, MlnxExtPortInfo, NodeDescription, NodeInfo, PKeyTable,
    PortInfo, PortState, SmpAttribute,
};
use ib_wire::{Gid, Guid, PKey, PortNum};
use mlx4_defs::Opcode;
use mlx4_defs::mad_ifc::{MadIfcInput, MadIfcModifier, MadIfcOp, MadIfcOutput};
use mlx4_defs::set_port::SetPort;
use zerocopy::network_endian::U32;

use super::error::{oops, refused};
use super::event::Event;
use super::{Bus, Command, Driver, DriverError, Output};

/// Bit of PortInfo:CapabilityMask that the connection manager sets (`IB_PORT_CM_SUP`).
const CM_SUPPORTED: u32 = 1 << 16;

/// P_Keys in a block of the table.
const PKEYS_PER_BLOCK: u16 = 32;

/// Attributes of a port as they were read last (`struct ib_port_cache`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortCache {
    /// PortInfo as it was read last.
    pub info: PortInfo,
    /// The GUID at index 0.
    pub guid: Guid,
    /// The P_Key table.
    pub pkeys: Vec<PKey>,
}

impl PortCache {
    /// The port as the machines of `ib_endpoint` see one.
    #[must_use]
    pub fn view(&self) -> PortView {
        PortView {
            state: self.info.port_state(),
            lid: self.info.lid,
            lmc: self.info.lmc(),
            sm_lid: self.info.master_sm_lid,
            sm_sl: self.info.master_sm_sl(),
            prefix: self.info.gid_prefix,
            guids: vec![self.guid],
            pkeys: self.pkeys.clone(),
            capabilities: self.info.capability_mask,
            mtu: self.info.neighbor_mtu(),
            subnet_timeout: self.info.subnet_timeout(),
        }
    }

    /// The port's GID.
    #[must_use]
    pub fn gid(&self) -> Gid {
        Gid::from_parts(self.info.gid_prefix, self.guid)
    }

    /// Returns `true` if the port is active.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.info.port_state() == PortState::ACTIVE
    }
}

impl Driver {
    /// Asks a port's management agent (`mlx4_MAD_IFC`).
    ///
    /// # Errors
    /// Those of the command; [`DriverError::Oops`] if the answer is not one to the question.
    pub fn mad_ifc(
        &mut self,
        bus: &mut dyn Bus,
        port: PortNum,
        network_view: bool,
        mad: &Mad,
    ) -> Result<Mad, DriverError> {
        let mut op = MadIfcOp::default();
        op.set_ignore_mkey(true);
        op.set_ignore_bkey(true);
        op.set_network_view(network_view);
        let input = MadIfcInput {
            mad: *mad,
            ..MadIfcInput::default()
        };
        let modifier: [u8; 4] = zerocopy::transmute!(MadIfcModifier::new(port));
        let command = Command::new(Opcode::MAD_IFC, u32::from_be_bytes(modifier))
            .variant(op.bits)
            .with(&input)
            .giving(Output::Mailbox);
        let reply = self.core.execute(bus, &command)?;
        let answer = reply.mailbox.view::<MadIfcOutput>().mad;
        let (asked, got) = (&mad.header, &answer.header);
        if got.method != asked.method.response() || got.attribute_id != asked.attribute_id {
            return Err(oops(format!("MAD_IFC answers {got:?}")));
        }
        Ok(answer)
    }

    /// Reads an attribute of a port.
    ///
    /// # Errors
    /// As [`Self::mad_ifc`]; [`DriverError::Refused`] for an error status.
    pub fn read_attribute<T: SmpAttribute + Copy>(
        &mut self,
        bus: &mut dyn Bus,
        port: PortNum,
        modifier: u32,
    ) -> Result<T, DriverError> {
        let header = MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::GET, T::ID);
        let mut mad = Mad::new(header);
        mad.header.attribute_modifier = AttributeModifier::new(modifier);
        let answer = self.mad_ifc(bus, port, false, &mad)?;
        if answer.header.status != MadStatus::OK {
            return Err(refused(format!("MAD status {}", answer.header.status)));
        }
        let smp: &LidRoutedSmp = answer.view();
        Ok(*smp.attribute::<T>())
    }

    /// The node's name and GUIDs (`init_node_data`).
    pub(super) fn read_node(
        &mut self,
        bus: &mut dyn Bus,
    ) -> Result<(NodeDescription, NodeInfo), DriverError> {
        let description = self.read_attribute(bus, PortNum(1), 0)?;
        let info = self.read_attribute(bus, PortNum(1), 0)?;
        Ok((description, info))
    }

    /// PortInfo, and what `ib_link_query_port` asks after it.
    fn read_port(&mut self, bus: &mut dyn Bus, port: PortNum) -> Result<PortInfo, DriverError> {
        let info: PortInfo = self.read_attribute(bus, port, u32::from(port.0))?;
        if info.link_speed_active() == LinkSpeed::QDR {
            self.read_attribute::<MlnxExtPortInfo>(bus, port, u32::from(port.0))?;
        }
        Ok(info)
    }

    fn read_guid(&mut self, bus: &mut dyn Bus, port: PortNum) -> Result<Guid, DriverError> {
        let block: GuidInfo = self.read_attribute(bus, port, 0)?;
        let [own, others @ ..] = block.guids;
        if others.iter().any(|guid| *guid != Guid::NONE) {
            return Err(oops("GUIDInfo shows GUIDs of others"));
        }
        Ok(own)
    }

    /// The P_Key table: one question for each entry, as the kernel asks.
    fn read_pkeys(&mut self, bus: &mut dyn Bus, port: PortNum) -> Result<Vec<PKey>, DriverError> {
        let len = self.core.caps.ports[port.index() - 1].pkeys;
        (0..len)
            .map(|index| {
                let block = u32::from(index / PKEYS_PER_BLOCK);
                let table: PKeyTable = self.read_attribute(bus, port, block)?;
                Ok(table.pkeys[usize::from(index % PKEYS_PER_BLOCK)])
            })
            .collect()
    }

    /// Fills a port's cache (`ib_cache_update`).
    pub(super) fn read_cache(
        &mut self,
        bus: &mut dyn Bus,
        port: PortNum,
    ) -> Result<PortCache, DriverError> {
        let info = self.read_port(bus, port)?;
        let gids = self.core.caps.ports[port.index() - 1].gids;
        for _ in 0..gids {
            self.read_port(bus, port)?;
        }
        let guid = self.read_guid(bus, port)?;
        let pkeys = self.read_pkeys(bus, port)?;
        Ok(PortCache { info, guid, pkeys })
    }

    /// Reads again what an event says that has changed (`ib_cache_event_task`).
    pub(super) fn refresh(&mut self, bus: &mut dyn Bus, event: &Event) -> Result<(), DriverError> {
        use mlx4_defs::eqe::PortManagementSubtype as Subtype;
        let (port, gids, pkeys) = match *event {
            Event::PortChange { port, .. } => (port, false, false),
            Event::PortManagement { port, what, .. } => match what {
                Subtype::GUID_INFO => (port, true, false),
                Subtype::PKEY_TABLE => (port, false, true),
                _ => (port, true, false),
            },
            _ => return Ok(()),
        };
        let Some(at) = port
            .index()
            .checked_sub(1)
            .filter(|at| *at < self.caches.len())
        else {
            return Err(oops(format!("an event of port {}", port.0)));
        };
        self.caches[at].info = self.read_port(bus, port)?;
        if gids {
            self.caches[at].guid = self.read_guid(bus, port)?;
        }
        if pkeys {
            self.caches[at].pkeys = self.read_pkeys(bus, port)?;
        }
        let is_active = self.caches[at].is_active();
        if let Event::PortChange { active, .. } = *event
            && active != is_active
            && self.core.events.is_empty()
        {
            return Err(oops("PortInfo does not say what the event says"));
        }
        Ok(())
    }

    /// Says that a connection manager runs on a port, or no longer (`ib_modify_port`).
    ///
    /// # Errors
    /// Those of the commands.
    pub fn set_cm_supported(
        &mut self,
        bus: &mut dyn Bus,
        port: PortNum,
        supported: bool,
    ) -> Result<(), DriverError> {
        let info = self.read_port(bus, port)?;
        let before = info.capability_mask.get();
        let mask = if supported {
            before | CM_SUPPORTED
        } else {
            before & !CM_SUPPORTED
        };
        self.set_port(bus, port, mask)
    }

    /// Sets a port's capability mask.
    ///
    /// # Errors
    /// Those of the command.
    pub fn set_port(
        &mut self,
        bus: &mut dyn Bus,
        port: PortNum,
        capability_mask: u32,
    ) -> Result<(), DriverError> {
        let input = SetPort {
            capability_mask: U32::new(capability_mask),
            ..SetPort::default()
        };
        let command = Command::new(Opcode::SET_PORT, u32::from(port.0)).with(&input);
        self.core.execute(bus, &command).map(|_| ())
    }
}

const _: () = assert!(size_of::<MadIfcModifier>() == 4);
