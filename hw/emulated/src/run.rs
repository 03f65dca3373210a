//! Runs of packets, before they are cut into frames.

use ib_transport::{PacketHeaders, PathMtu, Transfer};
use ib_wire::packet::{Bth, Grh, ICRC_SIZE, Lrh, TransportFrame, TransportService};
use ib_wire::{Lid, PKey, Sl};

use crate::{Frame, FrameWriter, PacketSource};

/// Consecutive packets of one message on their way from a queue pair to its peer.
///
/// Where nothing on the way could treat a packet unlike the others, a run is handed to the peer's adapter as it is;
/// elsewhere it is cut into frames as they leave.
#[derive(Debug)]
pub struct PacketRun {
    /// Sender, beside the bytes.
    pub(crate) source: PacketSource,
    pub(crate) service: TransportService,
    /// Path MTU by which the packets are cut.
    pub(crate) pmtu: PathMtu,
    pub(crate) lrh: Lrh,
    pub(crate) grh: Option<Grh>,
    /// Header of every packet, but for opcode, PSN and flags.
    pub(crate) bth: Bth,
    pub(crate) transfer: Transfer,
    /// Payload of the run behind `start`.
    pub(crate) payload: Vec<u8>,
    /// Bytes that left in frames.
    pub(crate) start: usize,
}

/// Properties of a run's packets by which ports and switches decide and count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunHead {
    /// Destination LID.
    pub dlid: Lid,
    /// Service level.
    pub sl: Sl,
    /// Partition key.
    pub pkey: PKey,
    /// Packets, at least one.
    pub packets: u32,
    /// Four-byte words of all packets together, as LRH:PktLen counts them.
    pub words: u64,
    /// Words of the longest packet.
    pub longest: u64,
}

impl PacketRun {
    /// Returns what ports and switches on the way look at, or `None` for operations that no packet has.
    pub(crate) fn head(&self) -> Option<RunHead> {
        let packets = self.transfer.packets();
        let extended = |transfer: &Transfer| {
            let headers = transfer.headers(self.service)?;
            Some(headers.extended().len() as u64)
        };
        let (first, last) = if packets == 1 {
            (extended(&self.transfer)?, 0)
        } else {
            let (first, _) = self.transfer.split(1, self.pmtu)?;
            let (_, last) = self.transfer.split(packets - 1, self.pmtu)?;
            (extended(&first)?, extended(&last)?)
        };
        let grh = if self.grh.is_some() {
            size_of::<Grh>()
        } else {
            0
        };
        let fixed = (size_of::<Lrh>() + grh + size_of::<Bth>() + ICRC_SIZE) as u64;
        let pmtu = u64::from(self.pmtu.bytes());
        let before_last = u64::from(packets - 1) * pmtu;
        let last_len = u64::from(self.transfer.payload_len()).saturating_sub(before_last);
        let (full, rest) = (pmtu, last_len.next_multiple_of(4));
        let bytes = u64::from(packets) * fixed + first + last + before_last + rest;
        let longest = if packets == 1 {
            first + rest
        } else {
            (first + full).max(last + rest)
        };
        Some(RunHead {
            dlid: self.lrh.dlid,
            sl: self.lrh.sl(),
            pkey: self.bth.pkey,
            packets,
            words: bytes / 4,
            longest: (fixed + longest) / 4,
        })
    }

    /// Returns the bytes of payload.
    pub(crate) fn payload(&self) -> &[u8] {
        let len = self.transfer.payload_len() as usize;
        let end = self.payload.len().min(self.start.saturating_add(len));
        self.payload.get(self.start..end).unwrap_or_default()
    }

    /// Returns the transport headers of the first packet and the bytes of its payload.
    pub(crate) fn first(&self) -> Option<(PacketHeaders, &[u8])> {
        let first = match self.transfer.split(1, self.pmtu) {
            Some((first, _)) => first,
            None => self.transfer,
        };
        let payload = self.payload();
        let len = payload.len().min(first.payload_len() as usize);
        Some((first.headers(self.service)?, &payload[..len]))
    }

    /// Returns a packet of the run.
    pub(crate) fn packet<'a>(
        &self,
        headers: &'a PacketHeaders,
        payload: &'a [u8],
    ) -> TransportFrame<'a> {
        let mut bth = Bth {
            opcode: headers.opcode,
            psn: headers.psn,
            ..self.bth
        };
        bth.set_solicited(headers.solicited);
        bth.set_ack_request(headers.ack_request);
        TransportFrame {
            lrh: self.lrh,
            grh: self.grh,
            bth,
            extended: headers.extended(),
            payload,
        }
    }

    /// Writes the first packet.
    pub(crate) fn frame(&self, writer: &mut FrameWriter) -> Option<Frame> {
        let (headers, payload) = self.first()?;
        let frame = writer.write(&self.packet(&headers, payload)).ok()?;
        Some(frame.sent_by(self.source))
    }

    /// Drops the first packet. Returns `false` if there is none behind it.
    pub(crate) fn advance(&mut self) -> bool {
        let Some((first, rest)) = self.transfer.split(1, self.pmtu) else {
            return false;
        };
        self.start += first.payload_len() as usize;
        self.transfer = rest;
        true
    }
}
