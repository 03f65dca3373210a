//! A switch's management port as a destination of data packets: its QP1.

use hca_api::LocalMad;
use ib_wire::mad::{MAD_SIZE, Mad};
use ib_wire::packet::{Grh, Packet, UdFrame};
use ib_wire::{PortNum, Psn, QKey, Qpn};
use zerocopy::IntoBytes;

use crate::{BadKey, Frame, Node, WrongKey, pma};

/// Takes a packet for port 0 and gives the response, if there is one. Port 0 has no software: what
/// its agents do not answer ends here.
pub(super) fn receive(node: &mut Node, mut frame: Frame) -> Option<Frame> {
    if !frame.icrc_matches() {
        return None;
    }
    let packet = Packet::parse(frame.bytes()).ok()?;
    let transport = packet.transport()?;
    let deth = transport.extended.deth?;
    if transport.bth.dest_qp != Qpn::GSI {
        return None;
    }
    let port0 = PortNum::SWITCH_MANAGEMENT;
    let bad_key = |key| BadKey {
        key,
        slid: packet.lrh.slid,
        dlid: packet.lrh.dlid,
        sl: packet.lrh.sl(),
        src_qpn: deth.src_qp,
        dest_qpn: transport.bth.dest_qp,
        gids: packet.grh.map(|grh| (grh.sgid, grh.dgid)),
    };
    if node
        .port(port0)?
        .matching_pkey(transport.bth.pkey)
        .is_none()
    {
        node.report_bad_key(port0, &bad_key(WrongKey::PKey(transport.bth.pkey)));
        return None;
    }
    if deth.qkey != QKey::GSI {
        node.report_bad_key(port0, &bad_key(WrongKey::QKey(deth.qkey)));
        return None;
    }
    let mad = Mad::from_bytes(transport.payload)?;
    let LocalMad::Reply(reply) = pma::process(node, port0, &mad) else {
        return None;
    };
    let mut buffer = [0; MAD_SIZE + 128];
    let len = UdFrame {
        vl: packet.lrh.vl(),
        sl: packet.lrh.sl(),
        slid: packet.lrh.dlid,
        dlid: packet.lrh.slid,
        grh: packet.grh.map(|grh| Grh::new(grh.dgid, grh.sgid, 1)),
        pkey: transport.bth.pkey,
        dest_qp: deth.src_qp,
        src_qp: Qpn::GSI,
        qkey: QKey::GSI,
        psn: Psn::default(),
        solicited: false,
        immediate: None,
        payload: reply.as_bytes(),
    }
    .write(&mut buffer)
    .ok()?;
    Some(Frame::sealed(&buffer[..len]))
}
