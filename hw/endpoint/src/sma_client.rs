//! What a host knows of its own port, read from the port's subnet management agent and read again
//! when the HCA says that something changed.

use alloc::vec::Vec;

use hca_api::{AsyncEvent, Hca, HcaError, LocalMad, MadView, PortChange};
use ib_wire::mad::{AttributeModifier, Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::smp::{
    CapabilityMask, GuidInfo, LidRoutedSmp, PKeyTable, PortInfo, PortState, SmpAttribute,
};
use ib_wire::{Gid, GidIndex, Guid, Lid, Lmc, Mtu, PKey, PKeyIndex, PortNum, Sl, SubnetPrefix};

use crate::MadAddress;

/// A port as its host sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortView {
    /// Logical state.
    pub state: PortState,
    /// Base LID; [`Lid::NONE`] until the SM gives one.
    pub lid: Lid,
    /// LID mask count.
    pub lmc: Lmc,
    /// Where the subnet manager is.
    pub sm_lid: Lid,
    /// Service level to reach it.
    pub sm_sl: Sl,
    /// Subnet prefix.
    pub prefix: SubnetPrefix,
    /// GUID table; unassigned entries are 0.
    pub guids: Vec<Guid>,
    /// P_Key table; empty entries are 0.
    pub pkeys: Vec<PKey>,
    /// What the port supports.
    pub capabilities: CapabilityMask,
    /// MTU of the link.
    pub mtu: Mtu,
    /// How long packets may travel: 4.096 µs × 2^value.
    pub subnet_timeout: u8,
}

impl PortView {
    /// The GID at an index; `None` where the table has no GUID.
    #[must_use]
    pub fn gid(&self, index: GidIndex) -> Option<Gid> {
        let guid = self.guids.get(usize::from(index.0))?;
        (!guid.is_none()).then(|| Gid::from_parts(self.prefix, *guid))
    }

    /// The index of a P_Key. A full and a limited key of one partition are different keys here.
    #[must_use]
    pub fn pkey_index(&self, pkey: PKey) -> Option<PKeyIndex> {
        let index = self.pkeys.iter().position(|entry| *entry == pkey)?;
        u16::try_from(index).ok().map(PKeyIndex)
    }

    /// The index of the key by which the port is in a partition: the very key if there is one, else
    /// the full one of the partition, else the limited one.
    #[must_use]
    pub fn partition_index(&self, pkey: PKey) -> Option<PKeyIndex> {
        let mut keys = [pkey, pkey.full(), PKey::new(pkey.base())].into_iter();
        keys.find_map(|key| self.pkey_index(key).filter(|_| key.is_valid()))
    }

    /// Where the SA is: QP1 of the subnet manager's port, in the default partition. `None` while the
    /// port is not active or has no subnet manager.
    #[must_use]
    pub fn sa_address(&self) -> Option<MadAddress> {
        if self.state != PortState::ACTIVE || !self.sm_lid.is_unicast() {
            return None;
        }
        let default = self
            .pkey_index(PKey::DEFAULT_FULL)
            .or_else(|| self.pkey_index(PKey::DEFAULT_LIMITED));
        Some(MadAddress {
            sl: self.sm_sl,
            pkey_index: default.unwrap_or_default(),
            ..MadAddress::gsi(self.sm_lid)
        })
    }

    /// What is different in a later view.
    fn changes_to(&self, later: &Self) -> PortChange {
        let mut change = PortChange::empty();
        if self.state != later.state {
            change.set(PortChange::ACTIVE, later.state == PortState::ACTIVE);
            change.set(PortChange::DOWN, self.state == PortState::ACTIVE);
        }
        let lid = (self.lid, self.lmc) != (later.lid, later.lmc);
        let sm = (self.sm_lid, self.sm_sl) != (later.sm_lid, later.sm_sl);
        let gids = (self.prefix, &self.guids) != (later.prefix, &later.guids);
        change.set(PortChange::LID, lid);
        change.set(PortChange::SM, sm);
        change.set(PortChange::GID_TABLE, gids);
        change.set(PortChange::PKEY_TABLE, self.pkeys != later.pkeys);
        change
    }
}

/// Why a port could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SmaError {
    /// The HCA refused the call.
    #[error(transparent)]
    Hca(#[from] HcaError),
    /// The port's agent answered with an error status.
    #[error("the port's agent refused: status {}", .0.of(MgmtClass::SUBN_LID_ROUTED))]
    Status(MadStatus),
    /// The port's agent gave no answer.
    #[error("the port's agent did not answer")]
    NoAnswer,
}

/// A client of the subnet management agent of one's own port.
#[derive(Debug)]
pub struct SmaClient {
    port: PortNum,
    view: PortView,
}

impl SmaClient {
    /// Reads a port.
    ///
    /// # Errors
    /// See [`SmaError`].
    pub fn open(hca: &mut dyn Hca, port: PortNum) -> Result<Self, SmaError> {
        let view = read(hca, port)?;
        Ok(Self { port, view })
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> PortNum {
        self.port
    }

    /// The port as it was read last.
    #[must_use]
    pub const fn view(&self) -> &PortView {
        &self.view
    }

    /// Reads the port again. Gives what changed.
    ///
    /// # Errors
    /// See [`SmaError`]; the old view stays.
    pub fn refresh(&mut self, hca: &mut dyn Hca) -> Result<PortChange, SmaError> {
        let later = read(hca, self.port)?;
        let change = self.view.changes_to(&later);
        self.view = later;
        Ok(change)
    }

    /// Reads the port again if an event is about it. Gives what changed, and whether the subnet
    /// manager wants clients to register again.
    ///
    /// # Errors
    /// See [`SmaError`]; the old view stays.
    pub fn handle_event(
        &mut self,
        hca: &mut dyn Hca,
        event: &AsyncEvent,
    ) -> Result<PortChange, SmaError> {
        match event {
            AsyncEvent::Port { port, change } if *port == self.port => {
                let told = *change & (PortChange::CLIENT_REREGISTER | PortChange::QOS);
                Ok(self.refresh(hca)? | told)
            }
            _ => Ok(PortChange::empty()),
        }
    }
}

fn read(hca: &mut dyn Hca, port: PortNum) -> Result<PortView, SmaError> {
    let lengths = hca.query_port(port)?;
    let info: PortInfo = get(hca, port, u32::from(port.0))?;
    let mut guids = Vec::new();
    for block in blocks(lengths.gid_table_len, GuidInfo::ENTRIES) {
        guids.extend(get::<GuidInfo>(hca, port, block)?.guids);
    }
    guids.truncate(usize::from(lengths.gid_table_len));
    let mut pkeys = Vec::new();
    for block in blocks(lengths.pkey_table_len, PKeyTable::ENTRIES) {
        pkeys.extend(get::<PKeyTable>(hca, port, block)?.pkeys);
    }
    pkeys.truncate(usize::from(lengths.pkey_table_len));
    Ok(PortView {
        state: info.port_state(),
        lid: info.lid,
        lmc: info.lmc(),
        sm_lid: info.master_sm_lid,
        sm_sl: info.master_sm_sl(),
        prefix: info.gid_prefix,
        guids,
        pkeys,
        capabilities: info.capability_mask,
        mtu: info.neighbor_mtu(),
        subnet_timeout: info.subnet_timeout(),
    })
}

/// The numbers of the blocks that hold a table of so many entries.
fn blocks(entries: u16, per_block: usize) -> impl Iterator<Item = u32> {
    0_u32..u32::from(entries).div_ceil(u32::try_from(per_block).unwrap_or(1))
}

fn get<A: SmpAttribute + Copy>(
    hca: &mut dyn Hca,
    port: PortNum,
    modifier: u32,
) -> Result<A, SmaError> {
    let mut header = MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::GET, A::ID);
    header.attribute_modifier = AttributeModifier::new(modifier);
    match hca.process_local_mad(port, MadView::Host, &Mad::new(header))? {
        LocalMad::Reply(reply) if reply.header.status == MadStatus::OK => {
            Ok(*reply.view::<LidRoutedSmp>().attribute::<A>())
        }
        LocalMad::Reply(reply) => Err(SmaError::Status(reply.header.status)),
        LocalMad::Consumed | LocalMad::NotHandled => Err(SmaError::NoAnswer),
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn view() -> PortView {
        PortView {
            state: PortState::ACTIVE,
            lid: Lid::new(5),
            lmc: Lmc::default(),
            sm_lid: Lid::new(1),
            sm_sl: Sl::from_low_bits(3),
            prefix: SubnetPrefix::DEFAULT,
            guids: vec![Guid::new(7), Guid::NONE],
            pkeys: vec![PKey::new(0x8001), PKey::DEFAULT_LIMITED],
            capabilities: CapabilityMask::new(0),
            mtu: Mtu::MTU_2048,
            subnet_timeout: 18,
        }
    }

    #[test]
    fn the_sa_is_asked_in_the_default_partition_wherever_that_is() {
        let address = view().sa_address().unwrap();
        assert_eq!(address.lid, Lid::new(1));
        assert_eq!(address.sl, Sl::from_low_bits(3));
        assert_eq!(address.pkey_index, PKeyIndex(1));
        let mut down = view();
        down.state = PortState::INIT;
        assert_eq!(down.sa_address(), None);
        let mut alone = view();
        alone.sm_lid = Lid::NONE;
        assert_eq!(alone.sa_address(), None);
    }

    #[test]
    fn a_partition_is_found_by_its_full_and_its_limited_key() {
        let view = view();
        assert_eq!(view.partition_index(PKey::new(1)), Some(PKeyIndex(0)));
        assert_eq!(view.partition_index(PKey::DEFAULT_FULL), Some(PKeyIndex(1)));
        assert_eq!(view.partition_index(PKey::new(2)), None);
        assert_eq!(view.partition_index(PKey::INVALID), None);
    }

    #[test]
    fn each_difference_between_views_has_its_own_bit() {
        let change = |edit: &dyn Fn(&mut PortView)| {
            let mut later = view();
            edit(&mut later);
            view().changes_to(&later)
        };
        assert_eq!(change(&|_| {}), PortChange::empty());
        assert_eq!(change(&|v| v.lid = Lid::new(6)), PortChange::LID);
        assert_eq!(change(&|v| v.sm_lid = Lid::new(2)), PortChange::SM);
        assert_eq!(change(&|v| v.sm_sl = Sl::default()), PortChange::SM);
        assert_eq!(
            change(&|v| v.pkeys[0] = PKey::INVALID),
            PortChange::PKEY_TABLE
        );
        assert_eq!(
            change(&|v| v.guids[1] = Guid::new(9)),
            PortChange::GID_TABLE
        );
        assert_eq!(
            change(&|v| v.prefix = SubnetPrefix::new(1)),
            PortChange::GID_TABLE
        );
        assert_eq!(change(&|v| v.state = PortState::DOWN), PortChange::DOWN);
        let mut down = view();
        down.state = PortState::DOWN;
        assert_eq!(down.changes_to(&view()), PortChange::ACTIVE);
    }

    #[test]
    fn unassigned_guids_make_no_gid() {
        assert_eq!(
            view().gid(GidIndex(0)),
            Some(Gid::from_parts(SubnetPrefix::DEFAULT, Guid::new(7)))
        );
        assert_eq!(view().gid(GidIndex(1)), None);
        assert_eq!(view().gid(GidIndex(2)), None);
    }

    #[test]
    fn blocks_cover_the_table() {
        assert_eq!(blocks(0, 8).count(), 0);
        assert_eq!(blocks(8, 8).count(), 1);
        assert_eq!(blocks(9, 8).count(), 2);
        assert_eq!(blocks(128, 32).count(), 4);
    }
}
