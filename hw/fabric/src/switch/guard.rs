//! Ports of a switch behind which is a host that is not trusted.

use ib_wire::mad::Method;
use ib_wire::packet::{Lnh, Lrh};
use ib_wire::smp::PortMask;
use ib_wire::{Lid, PKey, PortNum};

use super::tables::Tables;
use crate::{DropReason, Frame, PhysicalPort};

/// The ports whose peers are hosts, and the checks of packets that come from them.
///
/// A host speaks for its own LIDs alone, in the partitions of the port, and manages no subnet. All of that holds whatever the SM has set
/// up: a port enforces its partitions here although `PortInfo:PartitionEnforcementInbound` is off.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Guard {
    ports: PortMask,
}

impl Guard {
    pub(crate) fn set(&mut self, port: PortNum, is_guarded: bool) {
        match is_guarded {
            true => self.ports.insert(port),
            false => self.ports.remove(port),
        }
    }

    pub(crate) fn contains(&self, port: PortNum) -> bool {
        self.ports.contains(port)
    }

    /// Checks a data packet of a host, or a run.
    ///
    /// # Errors
    /// [`DropReason::ForeignSlid`] if packets to its sender would leave by another port, and [`DropReason::BadPKey`].
    pub(super) fn check_data(
        tables: &Tables,
        port: &PhysicalPort,
        slid: Lid,
        pkey: PKey,
    ) -> Result<(), DropReason> {
        if tables.route(slid) != Some(port.number) {
            Err(DropReason::ForeignSlid)
        } else if !port.admits_partition(pkey) {
            Err(DropReason::BadPKey)
        } else {
            Ok(())
        }
    }

    /// Checks a packet on VL15 of a host: agents answer, and send traps.
    ///
    /// # Errors
    /// [`DropReason::ForeignSlid`] as for data, if it is routed by LID, and [`DropReason::ForeignSmp`] for all that managers send.
    pub(super) fn check_smp(
        tables: &Tables,
        port: PortNum,
        frame: &mut Frame,
    ) -> Result<(), DropReason> {
        let Some(lrh) = frame.lrh().copied() else {
            return Err(DropReason::Malformed);
        };
        if !matches!(lrh.lnh(), Lnh::IbaLocal) {
            return Err(DropReason::Malformed);
        }
        let method = frame.smp().map(|smp| smp.header.method);
        let answers = method.is_some_and(|method| method.is_response() || method == Method::TRAP);
        if !answers {
            Err(DropReason::ForeignSmp)
        } else if is_by_lid(&lrh) && tables.route(lrh.slid) != Some(port) {
            Err(DropReason::ForeignSlid)
        } else {
            Ok(())
        }
    }
}

/// Returns `true` unless the packet is of the directed part of a route, whose sender has no LID as yet.
fn is_by_lid(lrh: &Lrh) -> bool {
    lrh.slid != Lid::PERMISSIVE && lrh.dlid != Lid::PERMISSIVE
}
