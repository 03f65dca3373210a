//! A switch: forwards packets, and answers for itself at port 0 (IBA chapter 18).

mod guard;
mod holding;
mod port0;
mod tables;

use hca_api::SpecialQp;
use ib_wire::notice::SwitchPKeyDetails;
use ib_wire::packet::{Deth, Lnh};
use ib_wire::{PortNum, Vl};
use zerocopy::FromBytes;

pub(crate) use guard::Guard;
pub(crate) use holding::{Holding, Output, Passage, Waiting};
pub use port0::Port0Mad;
pub(crate) use port0::{Port0, Port0Send};
pub(crate) use tables::Tables;

use crate::{DropReason, Frame, Node, PhysicalPort, RunHead, SwitchConfig};
use port0::Taken;

/// A switch of the fabric.
#[derive(Debug)]
pub(crate) struct Switch {
    pub(crate) node: Node,
    /// The queue pairs of the software on port 0, if there is any.
    pub(crate) port0: Option<Port0>,
    /// Packets that wait for places on the links.
    pub(crate) holding: Holding,
    /// The ports behind which are hosts that are not trusted.
    pub(crate) guard: Guard,
}

/// Packets that leave the switch, and the ports they leave by.
pub(crate) type Outputs = Vec<(PortNum, Frame)>;

impl Switch {
    pub(crate) fn new(config: &SwitchConfig) -> Self {
        Self {
            node: Node::switch(config),
            port0: None,
            holding: Holding::default(),
            guard: Guard::default(),
        }
    }

    /// Whether the software on port 0 has something to receive of which the fabric was not told.
    pub(crate) fn has_news(&mut self) -> bool {
        self.port0.as_mut().is_some_and(Port0::has_news)
    }

    /// Takes an SMP that is for the software on QP0 of port 0.
    pub(crate) fn deliver_smp(&mut self, frame: Frame) {
        if let Some(smp) = port0::smp(&self.node, frame) {
            port0::deliver(&mut self.node, &mut self.port0, smp);
        }
    }

    /// The next packet that the software on port 0 sends, and from which queue pair.
    pub(crate) fn next_send(&mut self) -> Option<(SpecialQp, Frame)> {
        loop {
            let send: Port0Send = self.port0.as_mut()?.next_send()?;
            if let Some(frame) = port0::frame(&self.node, &send) {
                return Some((send.special, frame));
            }
        }
    }

    /// Forwards a data packet that came by `in_port`; 0 if it comes from the switch itself.
    pub(crate) fn forward(&mut self, in_port: PortNum, frame: Frame, out: &mut Outputs) {
        let Some(lrh) = frame.lrh() else {
            return self.relay_error(in_port, DropReason::Malformed);
        };
        let (dlid, sl, lnh) = (lrh.dlid, lrh.sl(), lrh.lnh());
        let raw = matches!(lnh, Lnh::RawEthertype | Lnh::RawIpv6);
        if self.guard.contains(in_port)
            && let Err(reason) = self.check_host(in_port, &frame)
        {
            return self.refuse_host(in_port, &frame, reason);
        }
        if in_port.0 != 0 && !self.admit(in_port, &frame, raw) {
            return;
        }
        let Some(tables) = self.node.tables() else {
            return;
        };
        if dlid.is_multicast() {
            let mut ports = tables.replicate(dlid, in_port).ports().peekable();
            if ports.peek().is_none() {
                self.node.count_drop(in_port, None, DropReason::NoMembers);
            }
            for port in ports {
                self.leave(in_port, port, frame.clone(), sl, raw, out);
            }
            return;
        }
        let own = self.node.port(PortNum(0)).is_some_and(|p| p.owns_lid(dlid));
        let route = if own {
            Some(PortNum(0))
        } else {
            tables.route(dlid)
        };
        match route {
            Some(port) if port != in_port || port.0 == 0 => {
                self.leave(in_port, port, frame, sl, raw, out);
            }
            // No entry, or back where it came from.
            Some(_) | None => self.relay_error(in_port, DropReason::NoRoute),
        }
    }

    /// Returns the port by which packets of a run leave that come by a port, and their lane there, or `None` unless all of them go
    /// out by one.
    pub(crate) fn passes(&self, in_port: PortNum, head: &RunHead) -> Option<Output> {
        let tables = self.node.tables()?;
        let own = self.node.port(PortNum(0))?.owns_lid(head.dlid);
        let out_port = tables.route(head.dlid).filter(|_| !own)?;
        let (entry, exit) = (self.node.port(in_port)?, self.node.port(out_port)?);
        let admitted =
            |port: &PhysicalPort, enforced: bool| !enforced || port.admits_partition(head.pkey);
        let vl = tables.vl(in_port, out_port, head.sl, exit.operational_vls);
        let passes = out_port.0 != 0
            && out_port != in_port
            && admitted(entry, entry.partition_enforcement_in)
            && (!self.guard.contains(in_port)
                || Guard::check_data(tables, entry, head.slid, head.pkey).is_ok())
            && admitted(exit, exit.partition_enforcement_out)
            && vl != Vl::MANAGEMENT
            && self.holding.is_clear((out_port, vl));
        passes.then_some((out_port, vl))
    }

    /// Sends an SMP on towards its LID. SMPs stay on VL15 and need no partition.
    pub(crate) fn route_smp(&mut self, in_port: PortNum, mut frame: Frame, out: &mut Outputs) {
        let port = frame
            .lrh()
            .zip(self.node.tables())
            .and_then(|(lrh, tables)| tables.route(lrh.dlid))
            .filter(|port| port.0 != 0 && *port != in_port);
        match port {
            None => self.relay_error(in_port, DropReason::NoRoute),
            Some(_) if !frame.cross_switch() => self.relay_error(in_port, DropReason::Looping),
            Some(port) => out.push((port, frame)),
        }
    }

    /// Counts a packet that came by a port and cannot go on. What the switch itself sends has come by
    /// none.
    fn relay_error(&mut self, port: PortNum, reason: DropReason) {
        self.node.count_drop(port, None, reason);
        if port.0 != 0
            && let Some(port) = self.node.port_mut(port)
        {
            port.counters.rcv_switch_relay_errors += 1;
        }
    }

    /// The checks of the port by which a packet enters.
    fn admit(&mut self, in_port: PortNum, frame: &Frame, raw: bool) -> bool {
        let Some(port) = self.node.port_mut(in_port) else {
            return false;
        };
        let refused = if raw {
            port.filter_raw_in
        } else {
            port.partition_enforcement_in && !in_partition(port, frame)
        };
        if refused {
            port.counters.rcv_constraint_errors += 1;
            self.refuse(in_port, frame, raw);
        }
        !refused
    }

    /// Checks a data packet that came from a host which is not trusted.
    fn check_host(&self, in_port: PortNum, frame: &Frame) -> Result<(), DropReason> {
        let (tables, port) = (self.node.tables(), self.node.port(in_port));
        let (Some(tables), Some(port), Some(lrh)) = (tables, port, frame.lrh()) else {
            return Err(DropReason::Malformed);
        };
        match (lrh.lnh(), frame.bth()) {
            // A raw packet is of no partition.
            (Lnh::RawEthertype | Lnh::RawIpv6, _) => Err(DropReason::RawFiltered),
            (Lnh::IbaLocal | Lnh::IbaGlobal, Some(bth)) => {
                Guard::check_data(tables, port, lrh.slid, bth.pkey)
            }
            (Lnh::IbaLocal | Lnh::IbaGlobal, None) => Err(DropReason::Malformed),
        }
    }

    /// Returns `true` if the switch takes an SMP that came by a port. It counts one that a host which is not trusted may not send.
    pub(crate) fn admit_smp(&mut self, in_port: PortNum, frame: &mut Frame) -> bool {
        let tables = self.node.tables().filter(|_| self.guard.contains(in_port));
        let checked = tables.map_or(Ok(()), |tables| Guard::check_smp(tables, in_port, frame));
        if let Err(reason) = checked {
            self.refuse_host(in_port, frame, reason);
        }
        checked.is_ok()
    }

    /// Counts a packet of a host that is not trusted.
    fn refuse_host(&mut self, in_port: PortNum, frame: &Frame, reason: DropReason) {
        if let Some(port) = self.node.port_mut(in_port) {
            port.counters.rcv_constraint_errors += 1;
        }
        self.node.count_drop(in_port, None, reason);
        if reason == DropReason::BadPKey {
            self.tell_bad_pkey(in_port, frame);
        }
    }

    /// The checks of the port by which a packet leaves, and the lane it takes there.
    fn leave(
        &mut self,
        in_port: PortNum,
        out_port: PortNum,
        mut frame: Frame,
        sl: ib_wire::Sl,
        raw: bool,
        out: &mut Outputs,
    ) {
        if out_port.0 == 0 {
            match port0::receive(&mut self.node, self.port0.is_some(), frame) {
                Taken::Answer(answer) => self.forward(PortNum(0), answer, out),
                Taken::Software(mad) => port0::deliver(&mut self.node, &mut self.port0, mad),
                Taken::Nothing => {}
            }
            return;
        }
        let Some(port) = self.node.port_mut(out_port) else {
            return self.relay_error(in_port, DropReason::NoRoute);
        };
        let refused = if raw {
            port.filter_raw_out
        } else {
            port.partition_enforcement_out && !in_partition(port, &frame)
        };
        if refused {
            port.counters.xmit_constraint_errors += 1;
            return self.refuse(out_port, &frame, raw);
        }
        if !frame.cross_switch() {
            port.counters.xmit_discards += 1;
            return self.node.count_drop(out_port, None, DropReason::Looping);
        }
        let operational_vls = port.operational_vls;
        let Some(tables) = self.node.tables() else {
            return;
        };
        let vl = tables.vl(in_port, out_port, sl, operational_vls);
        if vl == Vl::MANAGEMENT {
            return self.relay_error(in_port, DropReason::NoDataLane);
        }
        if frame.lrh().is_some_and(|lrh| lrh.vl() != vl) {
            frame.rewrite_variant(|lrh| lrh.set_vl(vl));
        }
        out.push((out_port, frame));
    }

    /// Counts a packet that a port refused to filter raw packets or for its P_Key, and tells the SM of
    /// the latter.
    fn refuse(&mut self, port: PortNum, frame: &Frame, raw: bool) {
        if raw {
            self.node.count_drop(port, None, DropReason::RawFiltered);
        } else {
            self.node.count_drop(port, None, DropReason::BadPKey);
            self.tell_bad_pkey(port, frame);
        }
    }

    /// Tells the SM of a packet that a port refused for its P_Key.
    fn tell_bad_pkey(&mut self, port: PortNum, frame: &Frame) {
        // All fields but the two GIDs are given (IBA 14.2.5.1, trap 259).
        const WITHOUT_GIDS: u16 = 0b11_0011_1111;
        let (Some(lrh), Some(bth)) = (frame.lrh(), frame.bth()) else {
            return;
        };
        let mut details = SwitchPKeyDetails {
            data_valid: WITHOUT_GIDS.into(),
            lid1: lrh.slid,
            lid2: lrh.dlid,
            pkey: bth.pkey,
            qp2: bth.dest_qp,
            ..SwitchPKeyDetails::default()
        };
        details.set_sl(lrh.sl());
        let deth = size_of::<ib_wire::packet::Lrh>() + size_of::<ib_wire::packet::Bth>();
        if lrh.lnh() == Lnh::IbaLocal
            && let Some(rest) = frame.bytes().get(deth..)
            && let Ok((deth, _)) = Deth::ref_from_prefix(rest)
        {
            details.qp1 = deth.src_qp;
        }
        if let Some(sw_lid) = self.node.port(PortNum(0)).map(|p| p.lid) {
            details.switch_lid = sw_lid;
        }
        details.port = port;
        self.node.trap_switch_bad_pkey(&details);
    }
}

/// Whether a packet is of a partition of the host behind a port; one too short for a P_Key is not.
fn in_partition(port: &PhysicalPort, frame: &Frame) -> bool {
    frame
        .bth()
        .is_some_and(|bth| port.admits_partition(bth.pkey))
}

#[cfg(test)]
mod tests;
