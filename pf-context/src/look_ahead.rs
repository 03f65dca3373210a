//! Reading ahead for a batch of frames.
//!
//! A driver finds several completions at a time. The tables are larger than any near cache, and what
//! each frame needs of them is independent of what the others need: so it is first read for all of
//! them, step by step, and each frame then finds it near.

use ib_wire::mad::{AttributeId, Mad, Method, MgmtClass};
use ib_wire::{Gid, Tid};
use mad_mux::steering::Owner;
use mad_mux::tid::{Peer, TidMap};
use mcast_agg::MemberId;
use vf_tunnel::wire_id::Trail;
use vf_tunnel::{ToPf, VfId, WireTid};

use crate::mux::PortMux;

/// A frame that is about to be judged.
#[derive(Clone, Copy, Debug)]
pub enum Upcoming<'a> {
    /// It came through a VF's tunnel.
    FromVf(VfId, &'a ToPf),
    /// It came to a special QP of the port.
    FromWire(&'a Mad),
}

/// Frames that are looked at together: more than the memory answers at once.
const BATCH: usize = 16;

/// Steps at most from where a trail starts to what a frame needs.
const STEPS: usize = 2;

/// The table that a trail leads through.
#[derive(Clone, Copy)]
enum Table {
    Cm,
    Paths,
    Groups(MemberId),
}

#[derive(Clone, Copy)]
struct Ahead {
    table: Table,
    trail: Trail,
}

impl Ahead {
    const NOTHING: Self = Self {
        table: Table::Cm,
        trail: Trail::End,
    };
}

impl PortMux {
    /// Reads what the judgements of these frames will need, so that their waits for memory overlap.
    /// No verdict depends on it; call it before the frames of a batch are judged
    /// one by one.
    pub fn look_ahead<'a>(&mut self, frames: impl IntoIterator<Item = Upcoming<'a>>) {
        let mut frames = frames.into_iter();
        loop {
            let mut batch = [Ahead::NOTHING; BATCH];
            let mut answers = [WireTid(Tid::default()); BATCH];
            let (mut seen, mut len, mut answered) = (0, 0, 0);
            for frame in frames.by_ref().take(BATCH) {
                seen += 1;
                if let Upcoming::FromWire(mad) = frame
                    && mad.header.method.is_answer()
                {
                    answers[answered] = WireTid(mad.header.tid);
                    answered += 1;
                    continue;
                }
                let ahead = self.start(frame);
                if ahead.trail != Trail::End {
                    batch[len] = ahead;
                    len += 1;
                }
            }
            if answered > 0 {
                self.tids.expect_answers(answers.into_iter().take(answered));
            }
            for _ in 0..STEPS {
                for ahead in &mut batch[..len] {
                    ahead.trail = self.step(*ahead);
                }
            }
            if seen < BATCH {
                return;
            }
        }
    }

    fn start(&self, frame: Upcoming<'_>) -> Ahead {
        match frame {
            Upcoming::FromVf(vf, frame) => self.start_from_vf(vf, frame),
            Upcoming::FromWire(mad) => self.start_from_wire(mad),
        }
    }

    fn start_from_vf(&self, vf: VfId, frame: &ToPf) -> Ahead {
        let header = &frame.mad.header;
        if header.mgmt_class == MgmtClass::COM_MGT {
            return Ahead {
                table: Table::Cm,
                trail: self.cm.lock().machine.egress_trail(vf, &frame.mad),
            };
        }
        if !TidMap::is_mapped(header.method) {
            return Ahead::NOTHING;
        }
        let av = &frame.header.av;
        if header.mgmt_class == MgmtClass::SUBN_ADM && self.is_sa(av.dlid) {
            match header.attribute_id {
                AttributeId::MC_MEMBER_RECORD => {
                    let guid = self.vfs.get(vf).and_then(|record| record.guid);
                    let trail = self
                        .mcast
                        .request_trail(guid.unwrap_or_default(), frame.mad.view());
                    return Ahead {
                        table: Table::Groups(vf.into()),
                        trail,
                    };
                }
                AttributeId::PATH_RECORD if header.method == Method::GET => {
                    return Ahead {
                        table: Table::Paths,
                        trail: self.paths.request_trail(&frame.mad),
                    };
                }
                _ => {}
            }
        }
        let route = frame.header.global_route();
        let peer = Peer {
            lid: av.dlid,
            qpn: frame.header.remote_qpn,
            gid: route.map_or(Gid::NONE, |route| route.remote_gid),
        };
        self.tids.expect_request(Owner::Vf(vf), header, &peer);
        Ahead::NOTHING
    }

    fn start_from_wire(&self, mad: &Mad) -> Ahead {
        if mad.header.mgmt_class == MgmtClass::COM_MGT {
            Ahead {
                table: Table::Cm,
                trail: self.cm.lock().machine.ingress_trail(mad),
            }
        } else {
            Ahead::NOTHING
        }
    }

    fn step(&self, ahead: Ahead) -> Trail {
        match ahead.table {
            Table::Cm => self.cm.lock().machine.read_ahead(ahead.trail),
            Table::Paths => self.paths.read_ahead(ahead.trail),
            Table::Groups(member) => self.mcast.read_ahead(ahead.trail, member),
        }
    }
}
