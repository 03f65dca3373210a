//! From packets of the adapter to datagrams of the simulator, and back.

use std::collections::VecDeque;

use ib_fabric::Frame;
use ib_wire::mad::{AttributeId, MAD_SIZE, Mad, MgmtClass};
use ib_wire::packet::{Packet, UdFrame};
use ib_wire::{Lid, PKey, Psn, QKey, Qpn, Sl, Tid, Vl};
use zerocopy::IntoBytes;

use super::statistics::Loss;
use super::tid;
use crate::codec::MadDatagram;

/// Transaction ids with something in the bits that the simulator overwrites, of requests that may
/// still be answered: so many are remembered.
const MAX_TALL: usize = 1024;

/// What a packet of the adapter is to the uplink.
#[derive(Debug)]
pub(super) enum Leaving {
    /// An SMP, by directed route or not.
    Smp(Mad),
    /// A MAD for QP1 of a port.
    Gmp {
        slid: Lid,
        dlid: Lid,
        mad: Mad,
        had_grh: bool,
    },
}

/// Reads a packet of the adapter.
pub(super) fn leaving(mut frame: Frame) -> Result<Leaving, Loss> {
    if !frame.vcrc_matches() || !frame.icrc_matches() {
        return Err(Loss::Damaged);
    }
    let packet = Packet::parse(frame.bytes()).map_err(|_| Loss::Damaged)?;
    let transport = packet.transport().ok_or(Loss::UserData)?;
    if transport.extended.deth.is_none() {
        return Err(Loss::UserData);
    }
    let mad = || Mad::from_bytes(transport.payload).ok_or(Loss::Damaged);
    if packet.lrh.vl() == Vl::MANAGEMENT {
        return mad().map(Leaving::Smp);
    }
    if packet.lrh.dlid.is_multicast() {
        return Err(Loss::Multicast);
    }
    if transport.bth.dest_qp != Qpn::GSI {
        return Err(Loss::UserData);
    }
    Ok(Leaving::Gmp {
        slid: packet.lrh.slid,
        dlid: packet.lrh.dlid,
        mad: mad()?,
        had_grh: packet.grh.is_some(),
    })
}

/// What the simulator delivered.
#[derive(Clone, Debug)]
pub(super) struct Arrived {
    pub(super) slid: Lid,
    pub(super) dlid: Lid,
    pub(super) sqp: Qpn,
    pub(super) dqp: u32,
    /// A request that could not be delivered, and came back.
    pub(super) bounced: bool,
    /// Bytes of the MAD that mean something; the others are zero.
    pub(super) length: usize,
    pub(super) mad: Mad,
}

/// Reads a datagram of the simulator.
pub(super) fn arrived(bytes: &[u8]) -> Result<Arrived, Loss> {
    let datagram = MadDatagram::parse(bytes).ok_or(Loss::Malformed)?;
    let bounced = match datagram.status.get() {
        0 => false,
        MadDatagram::TIMED_OUT => true,
        _ => return Err(Loss::Malformed),
    };
    let length = usize::try_from(datagram.length.get());
    let length = length.ok().filter(|length| *length <= MAD_SIZE);
    Ok(Arrived {
        slid: datagram.slid.lid,
        dlid: datagram.dlid.lid,
        sqp: Qpn::from_low_bits(datagram.sqp.get()),
        dqp: datagram.dqp.get(),
        bounced,
        length: length.ok_or(Loss::Malformed)?,
        mad: datagram.mad(),
    })
}

/// A MAD to QP1 of a port, as the simulator takes it.
pub(super) fn to_port(slid: Lid, dlid: Lid, mad: &Mad) -> MadDatagram {
    MadDatagram::new(slid, dlid, Qpn::GSI.get(), Qpn::GSI.get(), mad)
}

/// One of the uplink's SMPs: to a port's QP0, or to the own node by directed route.
pub(super) fn to_agent(dlid: Option<Lid>, mad: &Mad) -> MadDatagram {
    let (slid, dlid) = match dlid {
        // The simulator fills the source in.
        Some(dlid) => (Lid::NONE, dlid),
        None => (Lid::PERMISSIVE, Lid::PERMISSIVE),
    };
    MadDatagram::new(slid, dlid, Qpn::SMI.get(), Qpn::SMI.get(), mad)
}

/// The packet that brings a MAD to the adapter. The protocol tells neither service level nor
/// partition, so the level is 0; `pkey` is what the caller takes for the partition.
pub(super) fn arriving(arrived: &Arrived, mad: &Mad, pkey: PKey) -> Option<Frame> {
    let mut buffer = [0; MAD_SIZE + 64];
    let packet = UdFrame {
        vl: Vl::default(),
        sl: Sl::default(),
        slid: arrived.slid,
        dlid: arrived.dlid,
        grh: None,
        pkey,
        dest_qp: Qpn::GSI,
        src_qp: arrived.sqp,
        qkey: QKey::GSI,
        psn: Psn::default(),
        solicited: false,
        immediate: None,
        payload: mad.as_bytes(),
    };
    let len = packet.write(&mut buffer).ok()?;
    Some(Frame::sealed(&buffer[..len]))
}

/// What stood in the bits of transaction ids that the simulator overwrote.
#[derive(Debug, Default)]
pub(super) struct TallTids {
    ids: VecDeque<Tid>,
}

impl TallTids {
    /// Takes note of a MAD that the adapter sends.
    pub(super) fn sent(&mut self, mad: &Mad) {
        let tid = mad.header.tid;
        if mad.header.method.is_response() || tid::top(tid) == 0 || self.ids.contains(&tid) {
            return;
        }
        if self.ids.len() == MAX_TALL {
            self.ids.pop_front();
        }
        self.ids.push_back(tid);
    }

    /// Gives an answer the transaction id of its request. Requests keep what the simulator wrote:
    /// it is what brings their answers back.
    pub(super) fn restore(&self, mad: &mut Mad) {
        let answers = mad.header.method.is_response() || answers_in_cm(mad);
        if !answers {
            return;
        }
        let low = tid::without_slot(mad.header.tid);
        let sent = self.ids.iter().find(|id| tid::without_slot(**id) == low);
        mad.header.tid = sent.copied().unwrap_or_else(|| Tid::new(low));
    }
}

/// Whether a message of the CM has the transaction id of the other side's (IBA 12.6): those that answer.
fn answers_in_cm(mad: &Mad) -> bool {
    mad.header.mgmt_class == MgmtClass::COM_MGT
        && [
            AttributeId::CM_MRA,
            AttributeId::CM_REJ,
            AttributeId::CM_REP,
            AttributeId::CM_DREP,
            AttributeId::CM_SIDR_REP,
            AttributeId::CM_APR,
        ]
        .contains(&mad.header.attribute_id)
}
