//! Packets by hand.

use ib_transport::{
    Answer, AtomicOp, Ending, Flush, RemoteRange, RemoteStart, Response, Run, RunOperation,
    Transfer,
};
use ib_vtime::Instant;
use ib_wire::packet::{AethSyndrome, FlushPlacement, FlushSelectivity, NakCode};
use ib_wire::{Psn, RKey};

use crate::network::End;

pub(crate) fn psn(value: u32) -> Psn {
    Psn::from_low_bits(value)
}

/// Returns a packet that is a message by itself and asks for an acknowledgement.
pub(crate) fn only(at: u32, operation: RunOperation, len: u32) -> Run {
    Run {
        psn: psn(at),
        packets: 1,
        operation,
        first: true,
        last: true,
        len,
        ack_request: true,
        solicited: false,
    }
}

pub(crate) fn send(at: u32, len: u32) -> Run {
    only(at, RunOperation::Send(Ending::Plain), len)
}

pub(crate) fn write(at: u32, rkey: RKey, addr: u64, len: u32) -> Run {
    let range = RemoteRange { addr, rkey, len };
    only(at, RunOperation::Write(Some(range), Ending::Plain), len)
}

pub(crate) fn read(at: u32, rkey: RKey, addr: u64, len: u32) -> Run {
    only(at, RunOperation::Read(RemoteRange { addr, rkey, len }), 0)
}

pub(crate) fn add(at: u32, rkey: RKey, addr: u64, add: u64) -> Run {
    let start = RemoteStart { addr, rkey };
    only(
        at,
        RunOperation::Atomic(start, AtomicOp::FetchAdd { add }),
        0,
    )
}

pub(crate) fn atomic_write(at: u32, rkey: RKey, addr: u64, len: u32) -> Run {
    let range = RemoteRange { addr, rkey, len };
    only(at, RunOperation::AtomicWrite(range), len)
}

/// Returns a flush of a range to a placement.
pub(crate) fn flush(at: u32, placement: u8, range: RemoteRange) -> Run {
    let flush = Flush {
        placement: FlushPlacement::from_low_bits(placement),
        selectivity: FlushSelectivity::RANGE,
    };
    only(at, RunOperation::Flush(range, flush), 0)
}

/// Returns the flush of the whole region of the key instead of the range.
pub(crate) fn of_region(run: Run) -> Run {
    let RunOperation::Flush(range, flush) = run.operation else {
        panic!("{run:?}");
    };
    let flush = Flush {
        selectivity: FlushSelectivity::REGION,
        ..flush
    };
    Run {
        operation: RunOperation::Flush(range, flush),
        ..run
    }
}

/// Returns the first packet of a message.
pub(crate) fn first(run: Run) -> Run {
    Run {
        last: false,
        len: 256,
        ack_request: false,
        ..run
    }
}

/// Returns a middle packet of a message.
pub(crate) fn middle(run: Run) -> Run {
    Run {
        first: false,
        ..first(headless(run))
    }
}

/// Returns the last packet of a message.
pub(crate) fn last(run: Run) -> Run {
    Run {
        first: false,
        ..headless(run)
    }
}

fn headless(run: Run) -> Run {
    let operation = match run.operation {
        RunOperation::Write(_, ending) => RunOperation::Write(None, ending),
        other => other,
    };
    Run { operation, ..run }
}

/// Returns a response of one packet.
pub(crate) fn response(at: u32, answer: Answer) -> Response {
    Response {
        psn: psn(at),
        packets: 1,
        answer,
        msn: psn(0),
    }
}

pub(crate) const ACK: AethSyndrome = AethSyndrome::Ack { credits: 31 };

pub(crate) fn ack(at: u32) -> Response {
    response(at, Answer::Acknowledge(ACK))
}

pub(crate) fn nak(at: u32, code: NakCode) -> Response {
    response(at, Answer::Acknowledge(AethSyndrome::Nak(code)))
}

pub(crate) fn rnr(at: u32, timer: u8) -> Response {
    response(at, Answer::Acknowledge(AethSyndrome::RnrNak { timer }))
}

pub(crate) fn data(at: u32, first: bool, last: bool, len: u32) -> Response {
    let syndrome = ACK;
    response(
        at,
        Answer::Read {
            first,
            last,
            len,
            syndrome,
        },
    )
}

/// Delivers to an end a packet whose payload counts up from 0.
pub(crate) fn give(end: &mut End, now: Instant, transfer: Transfer) {
    let len = match transfer {
        Transfer::Request(run) => run.len,
        Transfer::Response(response) => response.payload_len(),
    };
    let payload: Vec<u8> = (0..=u8::MAX).cycle().take(len as usize).collect();
    end.take(now, &transfer, &payload);
}

/// Delivers a request to an end and returns its responses.
pub(crate) fn serve(end: &mut End, run: Run) -> Vec<Response> {
    give(end, Instant::ZERO, Transfer::Request(run));
    responses(end)
}

/// Returns the responses that an end has to send.
pub(crate) fn responses(end: &mut End) -> Vec<Response> {
    let polled = std::iter::from_fn(|| end.poll(Instant::ZERO, 1));
    polled
        .filter_map(|(transfer, _)| match transfer {
            Transfer::Response(response) => Some(response),
            Transfer::Request(_) => None,
        })
        .collect()
}
