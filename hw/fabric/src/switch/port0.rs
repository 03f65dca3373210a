//! A switch's management port as the end of packets: its agents, and the software on QP0 and QP1 if
//! there is any.

use std::collections::VecDeque;

use hca_api::{
    GlobalRoute, HcaError, LocalMad, SourceAddress, SpecialQp, UdAddress, UdDestination,
};
use ib_wire::mad::{MAD_SIZE, Mad, MadStatus, Method};
use ib_wire::packet::{Grh, Packet, UdFrame};
use ib_wire::{GidIndex, PortNum, Psn, QKey, Qpn, Vl};
use zerocopy::IntoBytes;

use crate::{BadKey, DropReason, Frame, Node, WrongKey, pma};

const PORT0: PortNum = PortNum::SWITCH_MANAGEMENT;

/// A MAD that came to the software on a switch's port 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port0Mad {
    /// QP0 or QP1.
    pub special: SpecialQp,
    /// Its sender.
    pub source: SourceAddress,
    /// The MAD. Of a directed-route SMP the hop pointer is where the route ends: one beyond the hop
    /// count on the way out, 0 on the way back.
    pub mad: Mad,
}

/// A MAD that the software sends.
#[derive(Debug)]
pub(crate) struct Port0Send {
    pub(crate) special: SpecialQp,
    to: UdDestination,
    mad: Mad,
}

/// The two queue pairs of the software on a port 0.
#[derive(Debug)]
pub(crate) struct Port0 {
    depth: usize,
    received: VecDeque<Port0Mad>,
    sends: VecDeque<Port0Send>,
    overrun: u64,
    /// The fabric knows that there is something to receive.
    is_told: bool,
}

impl Port0 {
    /// Two queue pairs that hold so many MADs each way.
    pub(crate) const fn new(depth: usize) -> Self {
        Self {
            depth,
            received: VecDeque::new(),
            sends: VecDeque::new(),
            overrun: 0,
            is_told: false,
        }
    }

    fn deliver(&mut self, mad: Port0Mad) -> Result<(), DropReason> {
        if self.received.len() >= self.depth {
            self.overrun += 1;
            return Err(DropReason::NoReceive);
        }
        self.received.push_back(mad);
        Ok(())
    }

    /// Whether there is something to receive of which the fabric was not told.
    pub(crate) fn has_news(&mut self) -> bool {
        !self.received.is_empty() && !core::mem::replace(&mut self.is_told, true)
    }

    pub(crate) fn receive(&mut self) -> Option<Port0Mad> {
        let mad = self.received.pop_front();
        self.is_told = !self.received.is_empty();
        mad
    }

    pub(crate) const fn overrun(&self) -> u64 {
        self.overrun
    }

    pub(crate) fn can_send(&self) -> bool {
        self.sends.len() < self.depth
    }

    pub(crate) fn send(
        &mut self,
        special: SpecialQp,
        to: UdDestination,
        mad: Mad,
    ) -> Result<(), HcaError> {
        if !self.can_send() {
            return Err(HcaError::QueueFull);
        }
        self.sends.push_back(Port0Send { special, to, mad });
        Ok(())
    }

    pub(crate) fn next_send(&mut self) -> Option<Port0Send> {
        self.sends.pop_front()
    }
}

/// Hands a MAD to the software on port 0, if there is any and it has room.
pub(super) fn deliver(node: &mut Node, port0: &mut Option<Port0>, mad: Port0Mad) {
    let special = mad.special;
    let delivered = match port0 {
        Some(port0) => port0.deliver(mad),
        None => Err(DropReason::NoQp),
    };
    let Err(reason) = delivered else { return };
    node.count_drop(PORT0, None, reason);
    if let Some(port) = node.port_mut(PORT0)
        && reason == DropReason::NoReceive
    {
        match special {
            SpecialQp::Smi => port.counters.vl15_dropped += 1,
            SpecialQp::Gsi => port.counters.qp1_dropped += 1,
        }
    }
}

/// What became of a packet for port 0.
#[expect(clippy::large_enum_variant, reason = "taken apart at once")]
pub(super) enum Taken {
    /// The port's agents answer it.
    Answer(Frame),
    /// It is for the software.
    Software(Port0Mad),
    /// It ends here.
    Nothing,
}

/// Takes a packet for port 0, on which software runs or not.
pub(super) fn receive(node: &mut Node, has_software: bool, frame: Frame) -> Taken {
    take(node, has_software, frame).unwrap_or_else(|reason| {
        node.count_drop(PORT0, None, reason);
        Taken::Nothing
    })
}

fn take(node: &mut Node, has_software: bool, mut frame: Frame) -> Result<Taken, DropReason> {
    if !frame.icrc_matches() {
        return Err(DropReason::BadIcrc);
    }
    let packet = Packet::parse(frame.bytes()).map_err(|_| DropReason::Malformed)?;
    let transport = packet.transport().ok_or(DropReason::Malformed)?;
    let deth = transport
        .extended
        .deth
        .ok_or(DropReason::UnsupportedOpcode)?;
    if transport.bth.dest_qp != Qpn::GSI {
        return Err(DropReason::NoQp);
    }
    // A GRH that names another port's GID is no way to this one (IBA 9.6.1.2).
    let sgid_index = match packet.grh {
        Some(grh) => {
            let port = node.port(PORT0).ok_or(DropReason::NoQp)?;
            port.gid_index(grh.dgid).ok_or(DropReason::ForeignGid)?
        }
        None => GidIndex(0),
    };
    let bad_key = |key| BadKey {
        key,
        slid: packet.lrh.slid,
        dlid: packet.lrh.dlid,
        sl: packet.lrh.sl(),
        src_qpn: deth.src_qp,
        dest_qpn: transport.bth.dest_qp,
        gids: packet.grh.map(|grh| (grh.sgid, grh.dgid)),
    };
    let port = node.port(PORT0).ok_or(DropReason::NoQp)?;
    let Some(pkey_index) = port.matching_pkey(transport.bth.pkey) else {
        node.report_bad_key(PORT0, &bad_key(WrongKey::PKey(transport.bth.pkey)));
        return Err(DropReason::BadPKey);
    };
    if deth.qkey != QKey::GSI {
        node.report_bad_key(PORT0, &bad_key(WrongKey::QKey(deth.qkey)));
        return Err(DropReason::BadQKey);
    }
    let mad = Mad::from_bytes(transport.payload).ok_or(DropReason::NotAMad)?;
    let reply = match pma::process(node, PORT0, &mad) {
        LocalMad::Reply(reply) => reply,
        _ if has_software => {
            let port = node.port(PORT0).ok_or(DropReason::NoQp)?;
            let source = SourceAddress {
                port: PORT0,
                slid: packet.lrh.slid,
                src_qpn: deth.src_qp,
                sl: packet.lrh.sl(),
                dlid_path_bits: path_bits(packet.lrh.dlid, port.lmc),
                pkey_index,
                grh: packet.grh.map(|grh| GlobalRoute {
                    remote_gid: grh.sgid,
                    sgid_index,
                    flow_label: grh.flow_label(),
                    hop_limit: grh.hop_limit,
                    traffic_class: grh.traffic_class(),
                }),
            };
            return Ok(Taken::Software(Port0Mad {
                special: SpecialQp::Gsi,
                source,
                mad,
            }));
        }
        _ => refusal(&mad).ok_or(DropReason::NoQp)?,
    };
    let mut buffer = [0; MAD_SIZE + 128];
    let len = UdFrame {
        vl: packet.lrh.vl(),
        sl: packet.lrh.sl(),
        slid: packet.lrh.dlid,
        dlid: packet.lrh.slid,
        grh: packet.grh.map(Grh::back),
        // Its own entry: the requester may be a limited member, who takes answers from full ones only.
        pkey: node
            .port(PORT0)
            .and_then(|port| port.pkey(pkey_index))
            .ok_or(DropReason::NoPKey)?,
        dest_qp: deth.src_qp,
        src_qp: Qpn::GSI,
        qkey: QKey::GSI,
        psn: Psn::default(),
        solicited: false,
        immediate: None,
        payload: reply.as_bytes(),
    }
    .write(&mut buffer)
    .map_err(|_| DropReason::Malformed)?;
    Ok(Taken::Answer(Frame::sealed(&buffer[..len])))
}

/// Returns the answer to a Get or Set of a class that nothing on the switch speaks: unsupported method and attribute,
/// as that of Linux (`generate_unmatched_resp` in `ib_core`), so that who asks need not wait in vain. Any other MAD
/// has none.
fn refusal(mad: &Mad) -> Option<Mad> {
    let header = &mad.header;
    let is_refused =
        matches!(header.method, Method::GET | Method::SET) && !header.mgmt_class.is_smp();
    is_refused.then(|| {
        let mut refusal = *mad;
        refusal.header.method = header.method.response();
        refusal.header.status = MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE;
        refusal
    })
}

/// The SMP in a packet that ends at port 0, for the software on QP0.
pub(super) fn smp(node: &Node, mut frame: Frame) -> Option<Port0Mad> {
    let lrh = *frame.lrh()?;
    let source = SourceAddress {
        dlid_path_bits: path_bits(lrh.dlid, node.port(PORT0)?.lmc),
        ..SourceAddress::of_smp(PORT0, lrh.slid, lrh.sl())
    };
    Some(Port0Mad {
        special: SpecialQp::Smi,
        source,
        mad: frame.smp()?,
    })
}

/// The packet of a MAD that the software sends; `None` if no packet can be made of it.
pub(super) fn frame(node: &Node, send: &Port0Send) -> Option<Frame> {
    let UdAddress::Vector(vector) = send.to.address else {
        return None;
    };
    let port = node.port(PORT0)?;
    if send.special == SpecialQp::Smi {
        let slid = if vector.dlid == ib_wire::Lid::PERMISSIVE {
            ib_wire::Lid::PERMISSIVE
        } else {
            port.source_lid(vector.path_bits)
        };
        return Frame::of_smp(&send.mad, slid, vector.dlid, vector.sl);
    }
    let grh = match vector.grh {
        Some(route) => {
            let sgid = port.gid(route.sgid_index)?;
            let mut grh = Grh::new(sgid, route.remote_gid, route.hop_limit);
            grh.set_traffic_class(route.traffic_class);
            grh.set_flow_label(route.flow_label);
            Some(grh)
        }
        None => None,
    };
    let mut buffer = [0; MAD_SIZE + 128];
    let len = UdFrame {
        // The port by which it leaves the switch chooses the lane.
        vl: Vl::default(),
        sl: vector.sl,
        slid: port.source_lid(vector.path_bits),
        dlid: vector.dlid,
        grh,
        pkey: port.pkey(send.to.pkey_index.unwrap_or_default())?,
        dest_qp: send.to.qpn,
        src_qp: Qpn::GSI,
        qkey: send.to.qkey,
        psn: Psn::default(),
        solicited: false,
        immediate: None,
        payload: send.mad.as_bytes(),
    }
    .write(&mut buffer)
    .ok()?;
    Some(Frame::sealed(&buffer[..len]))
}

/// The bits of a LID within a port's LMC.
const fn path_bits(lid: ib_wire::Lid, lmc: ib_wire::Lmc) -> u8 {
    lid.get().to_be_bytes()[1] & lmc.mask().to_be_bytes()[1]
}
