//! Runs: consecutive packets of one message.
//!
//! A run is what the machines of this crate exchange. On a link it is cut into frames, each of which is a run
//! of one packet; between queue pairs that reach each other without a link it is handed over whole. The
//! machines treat both alike: taking `a` and then `b` leaves the same state, memory, completions and events
//! as taking [`a.join(b)`](Run::join).

use ib_wire::packet::AethSyndrome;
use ib_wire::{Psn, RKey};

use crate::request::{AtomicOp, Flush, Operation, RemoteRange, RemoteStart};
use crate::timing::PathMtu;

/// The operation of a run of request packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOperation {
    /// Send.
    Send(Ending),
    /// RDMA write. The range is in the first packet of the message only.
    Write(Option<RemoteRange>, Ending),
    /// Request of an RDMA read, always a run of one.
    Read(RemoteRange),
    /// Atomic operation, always a run of one.
    Atomic(RemoteStart, AtomicOp),
    /// Atomic write, always a run of one.
    AtomicWrite(RemoteRange),
    /// Flush, always a run of one.
    Flush(RemoteRange, Flush),
    /// An opcode that the service does not have.
    Reserved,
}

impl RunOperation {
    /// Returns the operation with those extended headers only that a run carries with the message's first packet,
    /// with its last one, with both or with neither.
    pub(crate) const fn within(self, first: bool, last: bool) -> Self {
        match self {
            Self::Send(_) if !last => Self::Send(Ending::Plain),
            Self::Write(range, ending) => Self::Write(
                if first { range } else { None },
                if last { ending } else { Ending::Plain },
            ),
            other => other,
        }
    }
}

impl Operation {
    /// Returns the operation of the packets of a whole send or write of `len` bytes; `None` for others.
    pub(crate) const fn as_message(self, len: u32) -> Option<RunOperation> {
        let (to, ending) = match self {
            Self::Send => return Some(RunOperation::Send(Ending::Plain)),
            Self::SendImmediate(data) => return Some(RunOperation::Send(Ending::Immediate(data))),
            Self::SendInvalidate(key) => return Some(RunOperation::Send(Ending::Invalidate(key))),
            Self::Write(to) => (to, Ending::Plain),
            Self::WriteImmediate(to, data) => (to, Ending::Immediate(data)),
            Self::Read(_)
            | Self::Atomic(..)
            | Self::AtomicWrite(_)
            | Self::Flush(..)
            | Self::Local { .. } => return None,
        };
        let RemoteStart { addr, rkey } = to;
        Some(RunOperation::Write(
            Some(RemoteRange { addr, rkey, len }),
            ending,
        ))
    }
}

/// The extended header of a message's last packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// None.
    #[default]
    Plain,
    /// Immediate data.
    Immediate([u8; 4]),
    /// A key to invalidate; sends only.
    Invalidate(RKey),
}

/// Consecutive request packets of one message. Its payload travels beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// PSN of the first packet.
    pub psn: Psn,
    /// Packets, at least one.
    pub packets: u32,
    /// Operation, with the extended headers that the packets of this run carry.
    pub operation: RunOperation,
    /// The run begins with the message's first packet.
    pub first: bool,
    /// The run ends with the message's last packet.
    pub last: bool,
    /// Payload in bytes.
    pub len: u32,
    /// The last packet of the run asks for an acknowledgement.
    pub ack_request: bool,
    /// The last packet of the run asks for a solicited event.
    pub solicited: bool,
}

impl Run {
    /// Cuts the run in front of its packet number `at`, counted from 0.
    ///
    /// Returns `None` if one side would have no packet.
    #[must_use]
    pub fn split(&self, at: u32, pmtu: PathMtu) -> Option<(Self, Self)> {
        if at == 0 || at >= self.packets {
            return None;
        }
        let len = at.saturating_mul(pmtu.bytes()).min(self.len);
        Some((
            Self {
                packets: at,
                operation: self.operation.within(self.first, false),
                last: false,
                len,
                ack_request: false,
                solicited: false,
                ..*self
            },
            Self {
                psn: self.psn.wrapping_add(at),
                packets: self.packets - at,
                operation: self.operation.within(false, self.last),
                first: false,
                len: self.len - len,
                ..*self
            },
        ))
    }

    /// Returns both runs as one, if `next` continues the message where `self` ends and no packet inside asks
    /// for an acknowledgement.
    #[must_use]
    pub fn join(&self, next: &Self) -> Option<Self> {
        let operation = match (self.operation, next.operation) {
            (RunOperation::Send(Ending::Plain), RunOperation::Send(ending)) => {
                RunOperation::Send(ending)
            }
            (RunOperation::Write(range, Ending::Plain), RunOperation::Write(None, ending)) => {
                RunOperation::Write(range, ending)
            }
            _ => return None,
        };
        let follows = self.psn.wrapping_add(self.packets) == next.psn;
        if !follows || self.last || next.first || self.ack_request || self.solicited {
            return None;
        }
        Some(Self {
            packets: self.packets.checked_add(next.packets)?,
            operation,
            first: self.first,
            len: self.len.checked_add(next.len)?,
            psn: self.psn,
            ..*next
        })
    }

    /// Returns `true` if the payload is one that these packets may carry: the path MTU in each, 1 byte to the
    /// path MTU in a message's last packet, 0 too in its only one (IBA 9.7.4.1.6).
    pub(crate) fn has_legal_length(&self, pmtu: PathMtu) -> bool {
        let only = self.packets == 1 && self.first;
        let len = u64::from(self.len);
        let full = u64::from(self.packets) * u64::from(pmtu.bytes());
        if !self.last {
            return len == full;
        }
        let least = full - u64::from(pmtu.bytes()) + u64::from(!only);
        (least..=full).contains(&len)
    }
}

/// Content of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Acknowledgement, positive or negative.
    Acknowledge(AethSyndrome),
    /// Packets of a read response.
    Read {
        /// The run begins with a "first" or "only" packet.
        first: bool,
        /// The run ends with a "last" or "only" packet.
        last: bool,
        /// Payload in bytes.
        len: u32,
        /// Syndrome of the packets with an AETH: first, last and only.
        syndrome: AethSyndrome,
    },
    /// Response of an atomic operation.
    Atomic {
        /// Syndrome.
        syndrome: AethSyndrome,
        /// Value before the operation.
        original: u64,
    },
    /// A response opcode that the service does not have.
    Reserved,
}

/// Consecutive response packets that answer one request. The payload of a read response travels beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// PSN of the first packet.
    pub psn: Psn,
    /// Packets, at least one; more only in read responses.
    pub packets: u32,
    /// Answer.
    pub answer: Answer,
    /// Message sequence number: requests that the responder has completed, modulo 2^24.
    pub msn: Psn,
}

impl Response {
    /// Returns the bytes of payload.
    #[must_use]
    pub const fn payload_len(&self) -> u32 {
        match self.answer {
            Answer::Read { len, .. } => len,
            _ => 0,
        }
    }

    /// Cuts a read response in front of its packet number `at`, counted from 0.
    ///
    /// Returns `None` if one side would have no packet, and for other responses.
    #[must_use]
    pub fn split(&self, at: u32, pmtu: PathMtu) -> Option<(Self, Self)> {
        let Answer::Read {
            first,
            last,
            len,
            syndrome,
        } = self.answer
        else {
            return None;
        };
        if at == 0 || at >= self.packets {
            return None;
        }
        let front = at.saturating_mul(pmtu.bytes()).min(len);
        let part = |first, last, len| Answer::Read {
            first,
            last,
            len,
            syndrome,
        };
        Some((
            Self {
                packets: at,
                answer: part(first, false, front),
                ..*self
            },
            Self {
                psn: self.psn.wrapping_add(at),
                packets: self.packets - at,
                answer: part(false, last, len - front),
                ..*self
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::Mtu;

    use super::*;

    fn pmtu() -> PathMtu {
        PathMtu::new(Mtu::MTU_256).unwrap()
    }

    fn run() -> Run {
        Run {
            psn: Psn::from_low_bits(0xff_fffe),
            packets: 5,
            operation: RunOperation::Write(
                Some(RemoteRange {
                    addr: 7,
                    rkey: RKey::new(3),
                    len: 1100,
                }),
                Ending::Immediate([1; 4]),
            ),
            first: true,
            last: true,
            len: 1100,
            ack_request: true,
            solicited: true,
        }
    }

    #[test]
    fn t005_headers_stand_in_the_packets_that_the_standard_names() {
        let (front, back) = run().split(1, pmtu()).unwrap();
        assert!(matches!(
            front.operation,
            RunOperation::Write(Some(_), Ending::Plain)
        ));
        let immediate = RunOperation::Write(None, Ending::Immediate([1; 4]));
        assert_eq!(back.operation, immediate);
        assert!(!front.ack_request && !front.solicited && back.ack_request && back.solicited);
        assert_eq!((front.len, back.len), (256, 844));
        assert_eq!(back.psn, Psn::from_low_bits(0xff_ffff));
    }

    #[test]
    fn joining_what_was_split_is_the_identity() {
        for at in 1..5 {
            let (front, back) = run().split(at, pmtu()).unwrap();
            assert_eq!(front.join(&back), Some(run()));
            assert_eq!(back.join(&front), None);
        }
        assert_eq!(run().split(0, pmtu()), None);
        assert_eq!(run().split(5, pmtu()), None);
    }

    #[test]
    fn t004_first_and_middle_packets_are_full_and_a_last_one_has_a_byte() {
        let legal = |packets, first, last, len| {
            let run = Run {
                packets,
                first,
                last,
                len,
                ..run()
            };
            run.has_legal_length(pmtu())
        };
        assert!(legal(1, true, false, 256) && !legal(1, true, false, 255));
        assert!(!legal(1, false, false, 257));
        assert!(legal(1, false, true, 1) && !legal(1, false, true, 0));
        assert!(legal(1, true, true, 0) && legal(1, true, true, 256));
        assert!(!legal(1, true, true, 257));
        assert!(legal(3, true, true, 513) && !legal(3, true, true, 512));
        assert!(!legal(3, true, true, 769));
    }
}
