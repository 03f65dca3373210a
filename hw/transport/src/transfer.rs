//! Requests and responses as packets have them: opcodes and extended headers (IBA 9.2, 9.3).

use ib_wire::Psn;
use ib_wire::packet::{
    Aeth, AethSyndrome, AtomicAckEth, AtomicEth, AtomicMasks, Bth, BthOpcode, ExtendedHeaders,
    Feth, Ieth, ImmDt, Reth, TransportService,
};
use zerocopy::IntoBytes;

use crate::request::{AtomicOp, Flush, RemoteRange, RemoteStart};
use crate::run::{Answer, Ending, Response, Run, RunOperation};
use crate::timing::PathMtu;

/// Consecutive packets in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// For the peer's responder.
    Request(Run),
    /// For the peer's requester.
    Response(Response),
}

/// The transport headers of one packet, but for what follows from its path: P_Key, destination, migration state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHeaders {
    /// Opcode.
    pub opcode: BthOpcode,
    /// PSN.
    pub psn: Psn,
    /// The packet asks for an acknowledgement.
    pub ack_request: bool,
    /// The packet asks for a solicited event.
    pub solicited: bool,
    extended: [u8; MAX_EXTENDED],
    extended_len: usize,
}

/// Bytes of the longest extended headers here, of a masked compare and swap.
const MAX_EXTENDED: usize = size_of::<AtomicEth>() + size_of::<AtomicMasks>();

impl PacketHeaders {
    const fn new(service: TransportService, operation: u8, psn: Psn) -> Self {
        let bits = match service {
            TransportService::Rc => 0,
            TransportService::Uc => 1,
            TransportService::Rd => 2,
            TransportService::Ud => 3,
            TransportService::Xrc => 5,
        };
        Self {
            opcode: BthOpcode::new(bits << 5 | operation),
            psn,
            ack_request: false,
            solicited: false,
            extended: [0; MAX_EXTENDED],
            extended_len: 0,
        }
    }

    /// Returns the extended headers, back to back.
    #[must_use]
    pub fn extended(&self) -> &[u8] {
        self.extended.get(..self.extended_len).unwrap_or(&[])
    }

    fn with(mut self, header: &[u8]) -> Self {
        let end = self.extended_len + header.len();
        if let Some(place) = self.extended.get_mut(self.extended_len..end) {
            place.copy_from_slice(header);
            self.extended_len = end;
        }
        self
    }
}

impl Transfer {
    /// Reads a packet of an RC or UC queue pair. Nothing is judged but the opcode: lengths and sequence are the
    /// machines' to check, in their order.
    #[must_use]
    pub fn from_packet(bth: &Bth, extended: &ExtendedHeaders<'_>, payload_len: u32) -> Self {
        let opcode = bth.opcode;
        if opcode.is_response() {
            return Self::Response(Response {
                psn: bth.psn,
                packets: 1,
                answer: answer(opcode, extended, payload_len),
                msn: extended.aeth.map(|aeth| aeth.msn).unwrap_or_default(),
            });
        }
        Self::Request(Run {
            psn: bth.psn,
            packets: 1,
            operation: operation(opcode, extended),
            first: opcode.is_first_or_only(),
            last: opcode.is_last_or_only(),
            len: payload_len,
            ack_request: bth.ack_request(),
            solicited: bth.solicited(),
        })
    }

    /// Returns the headers of a transfer of one packet, or `None` for a longer one or a reserved opcode.
    #[must_use]
    pub fn headers(&self, service: TransportService) -> Option<PacketHeaders> {
        match self {
            Self::Request(run) if run.packets == 1 => request_headers(run, service),
            Self::Response(response) if response.packets == 1 => {
                response_headers(response, service)
            }
            _ => None,
        }
    }

    /// Returns the packets, at least one.
    #[must_use]
    pub const fn packets(&self) -> u32 {
        match self {
            Self::Request(run) => run.packets,
            Self::Response(response) => response.packets,
        }
    }

    /// Returns the bytes of payload.
    #[must_use]
    pub const fn payload_len(&self) -> u32 {
        match self {
            Self::Request(run) => run.len,
            Self::Response(response) => response.payload_len(),
        }
    }

    /// Cuts the transfer in front of its packet number `at`, counted from 0.
    ///
    /// Returns `None` if one side would have no packet.
    #[must_use]
    pub fn split(&self, at: u32, pmtu: PathMtu) -> Option<(Self, Self)> {
        match self {
            Self::Request(run) => run
                .split(at, pmtu)
                .map(|(front, back)| (Self::Request(front), Self::Request(back))),
            Self::Response(response) => response
                .split(at, pmtu)
                .map(|(front, back)| (Self::Response(front), Self::Response(back))),
        }
    }
}

fn answer(opcode: BthOpcode, extended: &ExtendedHeaders<'_>, len: u32) -> Answer {
    let middle = AethSyndrome::Ack {
        credits: crate::requester::NO_CREDITS,
    };
    let syndrome = extended.aeth.map_or(middle, Aeth::syndrome);
    match opcode.operation() {
        0x0d..=0x10 => Answer::Read {
            first: opcode.is_first_or_only(),
            last: opcode.is_last_or_only(),
            len,
            syndrome,
        },
        0x11 => Answer::Acknowledge(syndrome),
        0x12 => Answer::Atomic {
            syndrome,
            original: extended
                .atomic_ack_eth
                .map_or(0, |header| header.original.get()),
        },
        _ => Answer::Reserved,
    }
}

fn operation(opcode: BthOpcode, extended: &ExtendedHeaders<'_>) -> RunOperation {
    let ending = match (extended.immediate, extended.ieth) {
        (Some(immediate), _) => Ending::Immediate(immediate.data),
        (None, Some(ieth)) => Ending::Invalidate(ieth.rkey),
        (None, None) => Ending::Plain,
    };
    let range = extended.reth.map(|reth| RemoteRange {
        addr: reth.virtual_address.get(),
        rkey: reth.rkey,
        len: reth.dma_length.get(),
    });
    // Opcodes that no service defines fall through, and so do those without the headers that they need.
    match (opcode.operation(), range, extended.atomic_eth) {
        (0x00..=0x05 | 0x16 | 0x17, ..) => RunOperation::Send(ending),
        (0x06..=0x0b, ..) => RunOperation::Write(range, ending),
        (0x0c, Some(range), _) => RunOperation::Read(range),
        (0x1c, Some(range), _) => match extended.feth {
            Some(feth) => RunOperation::Flush(range, flush(feth)),
            None => RunOperation::Reserved,
        },
        (0x1d, Some(range), _) => RunOperation::AtomicWrite(range),
        (0x13 | 0x14, _, Some(header)) => {
            let start = RemoteStart {
                addr: header.virtual_address.get(),
                rkey: header.rkey,
            };
            RunOperation::Atomic(start, atomic(opcode, header, extended.atomic_masks))
        }
        _ => RunOperation::Reserved,
    }
}

fn flush(feth: &Feth) -> Flush {
    Flush {
        placement: feth.placement(),
        selectivity: feth.selectivity(),
    }
}

fn atomic(opcode: BthOpcode, header: &AtomicEth, masks: Option<&AtomicMasks>) -> AtomicOp {
    let (value, compare) = (header.swap_add.get(), header.compare.get());
    match (opcode, masks) {
        (_, Some(masks)) => AtomicOp::MaskedCompareSwap {
            compare,
            compare_mask: masks.compare_mask.get(),
            swap: value,
            swap_mask: masks.swap_mask.get(),
        },
        (BthOpcode::RC_MASKED_FETCH_ADD, None) => AtomicOp::MaskedFetchAdd {
            add: value,
            boundary: compare,
        },
        _ if opcode.operation() == 0x13 => AtomicOp::CompareSwap {
            compare,
            swap: value,
        },
        _ => AtomicOp::FetchAdd { add: value },
    }
}

fn request_headers(run: &Run, service: TransportService) -> Option<PacketHeaders> {
    let (operation, ending, range) = match run.operation {
        RunOperation::Send(ending) => {
            let operation = match (run.first, run.last, ending) {
                (true, false, _) => 0x00,
                (false, false, _) => 0x01,
                (false, true, Ending::Plain) => 0x02,
                (false, true, Ending::Immediate(_)) => 0x03,
                (false, true, Ending::Invalidate(_)) => 0x16,
                (true, true, Ending::Plain) => 0x04,
                (true, true, Ending::Immediate(_)) => 0x05,
                (true, true, Ending::Invalidate(_)) => 0x17,
            };
            (operation, ending, None)
        }
        RunOperation::Write(range, ending) => {
            let operation = match (run.first, run.last, ending) {
                (true, false, _) => 0x06,
                (false, false, _) => 0x07,
                (false, true, Ending::Immediate(_)) => 0x09,
                (false, true, _) => 0x08,
                (true, true, Ending::Immediate(_)) => 0x0b,
                (true, true, _) => 0x0a,
            };
            (operation, ending, range)
        }
        RunOperation::Read(range) => (0x0c, Ending::Plain, Some(range)),
        RunOperation::Flush(range, _) => (0x1c, Ending::Plain, Some(range)),
        RunOperation::AtomicWrite(range) => (0x1d, Ending::Plain, Some(range)),
        RunOperation::Atomic(start, op) => return Some(atomic_headers(run, service, start, op)),
        RunOperation::Reserved => return None,
    };
    let mut headers = PacketHeaders::new(service, operation, run.psn);
    if let RunOperation::Flush(_, flush) = run.operation {
        let mut feth = Feth::default();
        feth.set_placement(flush.placement);
        feth.set_selectivity(flush.selectivity);
        headers = headers.with(feth.as_bytes());
    }
    if let Some(range) = range {
        let reth = Reth {
            virtual_address: range.addr.into(),
            rkey: range.rkey,
            dma_length: range.len.into(),
        };
        headers = headers.with(reth.as_bytes());
    }
    headers = match ending {
        Ending::Immediate(data) if run.last => headers.with(ImmDt { data }.as_bytes()),
        Ending::Invalidate(rkey) if run.last => headers.with(Ieth { rkey }.as_bytes()),
        _ => headers,
    };
    Some(PacketHeaders {
        ack_request: run.ack_request,
        solicited: run.solicited,
        ..headers
    })
}

fn atomic_headers(
    run: &Run,
    service: TransportService,
    start: RemoteStart,
    op: AtomicOp,
) -> PacketHeaders {
    let mut masks = None;
    let (operation, swap_add, compare) = match op {
        AtomicOp::CompareSwap { compare, swap } => (0x13, swap, compare),
        AtomicOp::FetchAdd { add } => (0x14, add, 0),
        AtomicOp::MaskedCompareSwap {
            compare,
            compare_mask,
            swap,
            swap_mask,
        } => {
            masks = Some(AtomicMasks {
                swap_mask: swap_mask.into(),
                compare_mask: compare_mask.into(),
            });
            (0x13, swap, compare)
        }
        AtomicOp::MaskedFetchAdd { add, boundary } => (0x14, add, boundary),
    };
    let header = AtomicEth {
        virtual_address: start.addr.into(),
        rkey: start.rkey,
        swap_add: swap_add.into(),
        compare: compare.into(),
    };
    let mut headers = PacketHeaders::new(service, operation, run.psn).with(header.as_bytes());
    if let Some(masks) = masks {
        headers = headers.with(masks.as_bytes());
        headers.opcode = BthOpcode::RC_MASKED_COMPARE_SWAP;
    } else if matches!(op, AtomicOp::MaskedFetchAdd { .. }) {
        headers.opcode = BthOpcode::RC_MASKED_FETCH_ADD;
    }
    PacketHeaders {
        ack_request: run.ack_request,
        solicited: run.solicited,
        ..headers
    }
}

fn response_headers(response: &Response, service: TransportService) -> Option<PacketHeaders> {
    let (operation, syndrome, original) = match response.answer {
        Answer::Acknowledge(syndrome) => (0x11, Some(syndrome), None),
        Answer::Atomic { syndrome, original } => (0x12, Some(syndrome), Some(original)),
        Answer::Read {
            first,
            last,
            syndrome,
            ..
        } => match (first, last) {
            (true, false) => (0x0d, Some(syndrome), None),
            (false, false) => (0x0e, None, None),
            (false, true) => (0x0f, Some(syndrome), None),
            (true, true) => (0x10, Some(syndrome), None),
        },
        Answer::Reserved => return None,
    };
    let mut headers = PacketHeaders::new(service, operation, response.psn);
    if let Some(syndrome) = syndrome {
        let mut aeth = Aeth {
            msn: response.msn,
            ..Aeth::default()
        };
        aeth.set_syndrome(syndrome);
        headers = headers.with(aeth.as_bytes());
    }
    if let Some(original) = original {
        let original = original.into();
        headers = headers.with(AtomicAckEth { original }.as_bytes());
    }
    Some(headers)
}
