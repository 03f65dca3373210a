//! The PF's own software on the port: a tenant like its VFs, but trusted.
//!
//! Its transactions, communication ids and memberships go through the same tables as those of the VFs,
//! so none of theirs can be taken for one of its own; no class filter applies to it (conformance
//! statement 33), and no limit but that on requests of CM peers, which it does not choose.

use ib_wire::mad::{MadHeader, Method, MgmtClass};
use ib_wire::{Guid, PKeyIndex};
use mad_mux::policy::{ClassRoute, Rights};
use mad_mux::steering::Owner;
use mcast_agg::MemberId;
use vf_tunnel::{PhysicalPKeyIndex, VfId};

use crate::config::{VfConfig, VfPKeyEntry};
use crate::mux::PortMux;
use crate::vf::Vf;

/// Entries that a P_Key table can have (IBA 10.9.1, PartitionCap of real adapters).
const MAX_PKEYS: u16 = 128;

impl PortMux {
    /// Lets the PF's own software share the port. Its frames are those of [`VfId::PF`], and it gets
    /// what is for the port and for no VF, which ends as
    /// [`DropReason::NoTarget`](vf_tunnel::DropReason::NoTarget) otherwise.
    pub fn attach_pf_software(&mut self, port_guid: Guid) {
        let config = VfConfig {
            guid: Some(port_guid),
            pkeys: (0..MAX_PKEYS)
                .map(|index| Some(VfPKeyEntry::Index(PhysicalPKeyIndex(PKeyIndex(index)))))
                .collect(),
            rights: Rights {
                smi: true,
                perf_mgt: true,
                serve: true,
                trap: true,
                vendor: true,
            },
            ..VfConfig::default()
        };
        let mut record = Vf::new(config, &self.pkeys);
        record.is_pf = true;
        self.vfs.insert(VfId::PF, record);
        self.cm.lock().machine.set_quota(VfId::PF, u32::MAX);
    }

    pub(crate) fn has_pf_software(&self) -> bool {
        self.vfs.active(VfId::PF).is_some()
    }

    /// The PF's own table is the port's.
    pub(crate) fn refresh_pf_pkeys(&mut self) {
        let port = &self.pkeys;
        if let Some(record) = self.vfs.get_mut(VfId::PF) {
            record.pkeys.refresh(port);
        }
    }
}

/// Who goes on with a MAD of the PF's own software: nothing of it is refused.
pub(crate) fn route(mad: &MadHeader) -> ClassRoute {
    match mad.mgmt_class {
        MgmtClass::SUBN_LID_ROUTED | MgmtClass::SUBN_DIRECTED_ROUTE => ClassRoute::Smp,
        MgmtClass::SUBN_ADM => ClassRoute::SubnAdm,
        MgmtClass::COM_MGT if mad.method == Method::SEND => ClassRoute::Cm,
        _ => ClassRoute::Transaction,
    }
}

/// Whose a GID or a transaction is, with the port's own as the PF's.
pub(crate) const fn tenant(owner: Owner) -> VfId {
    match owner {
        Owner::Pf => VfId::PF,
        Owner::Vf(vf) => vf,
    }
}

/// The tenant behind a membership.
pub(crate) fn tenant_of(member: MemberId) -> VfId {
    member.vf().unwrap_or(VfId::PF)
}
