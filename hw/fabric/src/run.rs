//! Runs of packets, before they are cut into frames.

use ib_transport::{Answer, PacketHeaders, PathMtu, RunOperation, Transfer};
use ib_wire::packet::{
    Bth, ExtendedHeaders, Grh, ICRC_SIZE, Lrh, TransportFrame, TransportService,
};
use ib_wire::{Lid, Mtu, PKey, Sl, Vl};

use crate::{Frame, FrameWriter, PacketSource};

/// Properties that all packets of a run have in common.
#[derive(Clone, Copy, Debug)]
pub struct PacketTemplate {
    /// Sender, beside the bytes, if it is known.
    pub source: Option<PacketSource>,
    /// Transport, RC or UC.
    pub service: TransportService,
    /// Path MTU by which the packets are cut.
    pub pmtu: PathMtu,
    /// Local route header, but for the length.
    pub lrh: Lrh,
    /// Global route header, if the packets have one.
    pub grh: Option<Grh>,
    /// Base transport header, but for opcode, PSN and flags.
    pub bth: Bth,
}

/// Consecutive packets of one message on their way from a queue pair to its peer.
///
/// Where nothing on the way could treat a packet unlike the others, a run is handed to the peer's adapter as it is;
/// elsewhere it is cut into frames as they leave.
#[derive(Debug)]
pub struct PacketRun {
    template: PacketTemplate,
    transfer: Transfer,
    /// Payload of the run behind `start`.
    payload: Vec<u8>,
    /// Bytes in front of the payload that is left: headers, and the payload that left in frames.
    start: usize,
}

/// Properties of a run's packets by which ports and switches decide and count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunHead {
    /// LID of the sender.
    pub slid: Lid,
    /// Destination LID.
    pub dlid: Lid,
    /// Service level.
    pub sl: Sl,
    /// Lane on the link of the sender.
    pub vl: Vl,
    /// Partition key.
    pub pkey: PKey,
    /// Packets, at least one.
    pub packets: u32,
    /// Four-byte words of all packets together, as LRH:PktLen counts them.
    pub words: u64,
    /// Words of the longest packet.
    pub longest: u64,
    /// Bytes of payload of all packets together.
    pub payload: u32,
}

impl PacketRun {
    /// Makes a run of the packets of a transfer, whose payload is `payload`.
    #[must_use]
    pub const fn new(template: PacketTemplate, transfer: Transfer, payload: Vec<u8>) -> Self {
        Self {
            template,
            transfer,
            payload,
            start: 0,
        }
    }

    /// Reads a run from one packet that stands for all of it, but has no bound of its length: the PSN of the first packet, and the
    /// opcode, flags and extended headers of a packet that is first or last in its message where the run is ([`PacketRun::headers`]).
    /// `bytes` has the extended headers from `behind` on, and then the payload; the run keeps them. The sender of the run is not known.
    ///
    /// Returns `None` if no run has such headers: the service is neither RC nor UC, the path MTU has no such code, or the operation has
    /// no such payload in packets of that size.
    #[must_use]
    pub fn from_headers(
        mtu: Mtu,
        routing: (Lrh, Option<Grh>),
        bth: &Bth,
        bytes: Vec<u8>,
        behind: usize,
    ) -> Option<Self> {
        let pmtu = PathMtu::new(mtu)?;
        let service = bth.opcode.service()?;
        if !matches!(service, TransportService::Rc | TransportService::Uc) {
            return None;
        }
        let extended = ExtendedHeaders::of(bth.opcode, bytes.get(behind..)?).ok()?;
        let empty = Transfer::from_packet(bth, &extended, 0);
        let start = behind.checked_add(empty.headers(service)?.extended().len())?;
        let len = u32::try_from(bytes.len().checked_sub(start)?).ok()?;
        let packets = pmtu.packets(len);
        let mut transfer = Transfer::from_packet(bth, &extended, len);
        // A message's last packet has a byte at least, if it is not the only one; all others are full (IBA 9.7.4.1.6).
        let is_cut = |first, last| {
            if last {
                first || len > 0
            } else {
                len == packets * pmtu.bytes()
            }
        };
        let is_legal = match &mut transfer {
            Transfer::Request(run) => {
                run.packets = packets;
                match run.operation {
                    RunOperation::Send(_) | RunOperation::Write(..) => is_cut(run.first, run.last),
                    RunOperation::AtomicWrite(_) => packets == 1,
                    RunOperation::Read(_) | RunOperation::Atomic(..) | RunOperation::Flush(..) => {
                        len == 0
                    }
                    RunOperation::Reserved => false,
                }
            }
            Transfer::Response(response) => {
                response.packets = packets;
                match response.answer {
                    Answer::Read { first, last, .. } => is_cut(first, last),
                    Answer::Acknowledge(_) | Answer::Atomic { .. } => len == 0,
                    Answer::Reserved => false,
                }
            }
        };
        let template = PacketTemplate {
            source: None,
            service,
            pmtu,
            lrh: routing.0,
            grh: routing.1,
            bth: *bth,
        };
        is_legal.then_some(Self {
            template,
            transfer,
            payload: bytes,
            start,
        })
    }

    /// Returns the transport headers that one packet in place of all that are left would have, or `None` for operations that no
    /// packet has.
    #[must_use]
    pub fn headers(&self) -> Option<PacketHeaders> {
        let mut whole = self.transfer;
        match &mut whole {
            Transfer::Request(run) => run.packets = 1,
            Transfer::Response(response) => response.packets = 1,
        }
        whole.headers(self.template.service)
    }

    /// Returns the run as one that a queue pair sent.
    #[must_use]
    pub const fn sent_by(mut self, source: PacketSource) -> Self {
        self.template.source = Some(source);
        self
    }

    /// Returns the run as it is on a link with this lane.
    pub(crate) fn on_lane(mut self, lane: Vl) -> Self {
        self.template.lrh.set_vl(lane);
        self
    }

    /// Returns the properties that all of its packets have in common.
    #[must_use]
    pub const fn template(&self) -> &PacketTemplate {
        &self.template
    }

    /// Returns the packets that are left, as the connection's machines exchange them.
    #[must_use]
    pub const fn transfer(&self) -> &Transfer {
        &self.transfer
    }

    /// Returns the properties by which ports and switches on the way decide and count, or `None` for operations that no packet
    /// has.
    #[must_use]
    pub fn head(&self) -> Option<RunHead> {
        let packets = self.transfer.packets();
        let extended = |transfer: &Transfer| {
            let headers = transfer.headers(self.template.service)?;
            Some(headers.extended().len() as u64)
        };
        let (first, last) = if packets == 1 {
            (extended(&self.transfer)?, 0)
        } else {
            let (first, _) = self.transfer.split(1, self.template.pmtu)?;
            let (_, last) = self.transfer.split(packets - 1, self.template.pmtu)?;
            (extended(&first)?, extended(&last)?)
        };
        let grh = if self.template.grh.is_some() {
            size_of::<Grh>()
        } else {
            0
        };
        let fixed = (size_of::<Lrh>() + grh + size_of::<Bth>() + ICRC_SIZE) as u64;
        let pmtu = u64::from(self.template.pmtu.bytes());
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
            slid: self.template.lrh.slid,
            dlid: self.template.lrh.dlid,
            sl: self.template.lrh.sl(),
            vl: self.template.lrh.vl(),
            pkey: self.template.bth.pkey,
            packets,
            words: bytes / 4,
            longest: (fixed + longest) / 4,
            payload: self.transfer.payload_len(),
        })
    }

    /// Returns the bytes of payload of the packets that are left.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        let len = self.transfer.payload_len() as usize;
        let end = self.payload.len().min(self.start.saturating_add(len));
        self.payload.get(self.start..end).unwrap_or_default()
    }

    /// Sets the payload of a run that was made without it.
    pub fn set_payload(&mut self, payload: Vec<u8>) {
        self.payload = payload;
    }

    /// Returns the buffer of the payload, for another run.
    #[must_use]
    pub fn into_payload(self) -> Vec<u8> {
        self.payload
    }

    /// Returns the transport headers of the first packet and the bytes of its payload, or `None` for operations that no packet
    /// has.
    #[must_use]
    pub fn first(&self) -> Option<(PacketHeaders, &[u8])> {
        let first = match self.transfer.split(1, self.template.pmtu) {
            Some((first, _)) => first,
            None => self.transfer,
        };
        let payload = self.payload();
        let len = payload.len().min(first.payload_len() as usize);
        Some((first.headers(self.template.service)?, &payload[..len]))
    }

    /// Returns a packet of the run, from transport headers and payload as [`PacketRun::first`] returns them.
    #[must_use]
    pub fn packet<'a>(&self, headers: &'a PacketHeaders, payload: &'a [u8]) -> TransportFrame<'a> {
        let mut bth = Bth {
            opcode: headers.opcode,
            psn: headers.psn,
            ..self.template.bth
        };
        bth.set_solicited(headers.solicited);
        bth.set_ack_request(headers.ack_request);
        TransportFrame {
            lrh: self.template.lrh,
            grh: self.template.grh,
            bth,
            extended: headers.extended(),
            payload,
        }
    }

    /// Writes the first packet. Returns `None` if it cannot be written: it has no opcode or is too long.
    pub fn frame(&self, writer: &mut FrameWriter) -> Option<Frame> {
        let (headers, payload) = self.first()?;
        let frame = writer.write(&self.packet(&headers, payload)).ok()?;
        Some(match self.template.source {
            Some(source) => frame.sent_by(source),
            None => frame,
        })
    }

    /// Drops the first packet. Returns `false` if there is none behind it.
    pub fn advance(&mut self) -> bool {
        let Some((first, rest)) = self.transfer.split(1, self.template.pmtu) else {
            return false;
        };
        self.start += first.payload_len() as usize;
        self.transfer = rest;
        true
    }
}
