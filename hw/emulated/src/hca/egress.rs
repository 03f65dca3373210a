//! Packets that wait to leave by a port.

use std::collections::VecDeque;

use hca_api::FunctionId;
use ib_wire::Vl;

use super::backlog::Backlog;
use super::memory::{Memory, Piece};
use super::qpn::QpRef;
use crate::{Frame, Lanes, PacketRun};

/// A frame, or packets that become frames when they leave.
#[derive(Debug)]
pub(super) enum Leaving {
    Frame(Frame),
    Run {
        from: QpRef,
        run: PacketRun,
        /// Payload of a run whose bytes are in memory.
        pieces: Vec<Piece>,
    },
}

impl Leaving {
    const fn packets(&self) -> usize {
        match self {
            Self::Frame(_) => 1,
            Self::Run { run, .. } => run.transfer().packets() as usize,
        }
    }

    fn lane(&self) -> Vl {
        match self {
            Self::Frame(frame) => frame.lane(),
            Self::Run { run, .. } => run.template().lrh.vl(),
        }
    }
}

/// Packets that wait to leave by one port, and queue pairs that have more.
#[derive(Debug, Default)]
pub(super) struct Egress {
    leaving: VecDeque<Leaving>,
    packets: usize,
    /// Queue pairs with something to send.
    pub(super) backlog: Backlog,
    /// The backlog was left while the egress had room, and is to be served again at once.
    pub(super) interrupted: bool,
}

impl Egress {
    /// Returns the packets that wait.
    pub(super) const fn len(&self) -> usize {
        self.packets
    }

    /// Adds a frame or a run that leaves last.
    pub(super) fn push(&mut self, leaving: Leaving) {
        self.packets += leaving.packets();
        self.leaving.push_back(leaving);
    }

    /// Returns the run that leaves next, or `None` if a frame does or nothing waits.
    pub(super) fn front_run(&self) -> Option<(QpRef, &PacketRun, &[Piece])> {
        match self.leaving.front()? {
            Leaving::Frame(_) => None,
            Leaving::Run { from, run, pieces } => Some((*from, run, pieces)),
        }
    }

    /// Copies the payload of a function's runs out of its memory, before the function is held.
    pub(super) fn copy_payload(&mut self, function: FunctionId, memory: &Memory) {
        for leaving in &mut self.leaving {
            if let Leaving::Run { from, run, pieces } = leaving
                && from.function == function
                && !pieces.is_empty()
                && let Ok(bytes) = memory.read_pieces(pieces)
            {
                run.set_payload(bytes);
                pieces.clear();
            }
        }
    }

    /// Takes the frame or the run that leaves next, of those on some lanes.
    pub(super) fn pop(&mut self, lanes: Lanes) -> Option<Leaving> {
        let is_next = |leaving: &Leaving| lanes.contains(leaving.lane());
        let leaving = if lanes == Lanes::ALL || self.leaving.front().is_some_and(is_next) {
            self.leaving.pop_front()?
        } else {
            let next = self.leaving.iter().position(is_next)?;
            self.leaving.remove(next)?
        };
        self.packets -= leaving.packets();
        Some(leaving)
    }

    /// Puts the rest of a run back in front of all others.
    pub(super) fn put_back(&mut self, from: QpRef, run: PacketRun) {
        let leaving = Leaving::Run {
            from,
            run,
            pieces: Vec::new(),
        };
        self.packets += leaving.packets();
        self.leaving.push_front(leaving);
    }
}

#[cfg(test)]
mod tests {
    use hca_api::{AccessFlags, AddressSpace, HostMemory, MrKind, MrSpec, PdHandle, Sge};
    use ib_transport::{Ending, PathMtu, Run, RunOperation, Transfer};
    use ib_wire::packet::{Bth, Lrh, TransportService};
    use ib_wire::{Mtu, Psn, Qpn};

    use super::super::LIMITS;
    use super::super::memory::Gathered;
    use super::*;
    use crate::{PacketSource, PacketTemplate};

    #[test]
    fn payload_of_a_function_is_copied_out_of_its_memory_and_of_no_other_one() {
        const PD: PdHandle = PdHandle(1);
        const LEN: u32 = 4096;

        let mut space = HostMemory::new();
        let addr = space.allocate(LEN as usize).unwrap().addr;
        space.write(addr, &[7; LEN as usize]).unwrap();
        let mut memory = Memory::new(Box::new(space), 1.into());
        let spec = MrSpec {
            pd: PD,
            kind: MrKind::Virtual {
                addr,
                len: LEN.into(),
            },
            access: AccessFlags::LOCAL_WRITE,
            key: None,
        };
        let lkey = memory.register(&spec, &LIMITS).unwrap().lkey;
        let sges = [Sge {
            addr,
            len: LEN,
            lkey,
        }];
        let run = Transfer::Request(Run {
            psn: Psn::default(),
            packets: 1,
            operation: RunOperation::Send(Ending::Plain),
            first: true,
            last: true,
            len: LEN,
            ack_request: true,
            solicited: false,
        });
        let functions = [FunctionId(1), FunctionId(2)];
        let mut egress = Egress::default();
        for function in functions {
            let template = PacketTemplate {
                source: Some(PacketSource {
                    function,
                    qpn: Qpn::default(),
                }),
                service: TransportService::Rc,
                pmtu: PathMtu::new(Mtu::MTU_4096).unwrap(),
                lrh: Lrh::default(),
                grh: None,
                bth: Bth::default(),
            };
            let mut found = Gathered::default();
            let is_found = memory.find_range(PD, &sges, &(0..LEN.into()), &mut found);
            assert_eq!(is_found, Ok(true));
            egress.push(Leaving::Run {
                from: QpRef { function, index: 0 },
                run: PacketRun::new(template, run, Vec::new()),
                pieces: found.into_parts().1,
            });
        }
        egress.copy_payload(functions[0], &memory);
        let (_, run, pieces) = egress.front_run().unwrap();
        assert_eq!((run.payload(), pieces.len()), (&[7; LEN as usize][..], 0));
        egress.pop(Lanes::ALL);
        let (_, run, pieces) = egress.front_run().unwrap();
        assert_eq!((run.payload(), pieces.len()), (&[][..], 1));
    }
}
