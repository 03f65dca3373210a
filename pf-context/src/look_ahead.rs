//! Reading ahead for a batch of frames.
//!
//! A driver finds several completions at a time. The tables are larger than any near cache, and what
//! each frame needs of them is independent of what the others need: so it is first read for all of
//! them, step by step, and each frame then finds it near.

use ib_wire::Gid;
use ib_wire::mad::{AttributeId, Mad, Method, MgmtClass};
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

/// Steps from a hash to what a frame needs.
const STEPS: usize = 3;

/// A trail, and in whose table.
#[derive(Clone, Copy, Default)]
enum Ahead {
    Cm(Trail),
    Tid(Trail),
    Path(Trail),
    Group(Trail, MemberId),
    #[default]
    Nothing,
}

impl PortMux {
    /// Reads what the judgements of these frames will need, so that their waits for memory overlap.
    /// Nothing changes, and no verdict depends on it; call it before the frames of a batch are judged
    /// one by one.
    pub fn look_ahead<'a>(&self, frames: impl IntoIterator<Item = Upcoming<'a>>) {
        let mut frames = frames.into_iter();
        loop {
            let mut batch = [Ahead::Nothing; BATCH];
            let mut len = 0;
            for (ahead, frame) in batch.iter_mut().zip(&mut frames) {
                *ahead = self.start(frame);
                len += 1;
            }
            for _ in 0..STEPS {
                for ahead in &mut batch[..len] {
                    *ahead = self.step(*ahead);
                }
            }
            if len < BATCH {
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
            return Ahead::Cm(self.cm.egress_trail(vf, &frame.mad));
        }
        if !TidMap::is_mapped(header.method) {
            return Ahead::Nothing;
        }
        let av = &frame.header.av;
        if header.mgmt_class == MgmtClass::SUBN_ADM && self.is_sa(av.dlid) {
            match header.attribute_id {
                AttributeId::MC_MEMBER_RECORD => {
                    let guid = self.vfs.get(vf).and_then(|record| record.guid);
                    let trail = self
                        .mcast
                        .request_trail(guid.unwrap_or_default(), frame.mad.view());
                    return Ahead::Group(trail, vf.into());
                }
                AttributeId::PATH_RECORD if header.method == Method::GET => {
                    return Ahead::Path(self.paths.request_trail(&frame.mad));
                }
                _ => {}
            }
        }
        let peer = Peer {
            lid: av.dlid,
            qpn: frame.header.remote_qpn,
            gid: frame
                .header
                .global_route()
                .map_or(Gid::NONE, |route| route.remote_gid),
        };
        Ahead::Tid(self.tids.request_trail(Owner::Vf(vf), header, &peer))
    }

    fn start_from_wire(&self, mad: &Mad) -> Ahead {
        if mad.header.method.is_answer() {
            Ahead::Tid(self.tids.answer_trail(WireTid(mad.header.tid)))
        } else if mad.header.mgmt_class == MgmtClass::COM_MGT {
            Ahead::Cm(self.cm.ingress_trail(mad))
        } else {
            Ahead::Nothing
        }
    }

    fn step(&self, ahead: Ahead) -> Ahead {
        match ahead {
            Ahead::Cm(trail) => Ahead::Cm(self.cm.read_ahead(trail)),
            Ahead::Tid(trail) => Ahead::Tid(self.tids.read_ahead(trail)),
            Ahead::Path(trail) => Ahead::Path(self.paths.read_ahead(trail)),
            Ahead::Group(trail, member) => {
                Ahead::Group(self.mcast.read_ahead(trail, member), member)
            }
            Ahead::Nothing => Ahead::Nothing,
        }
    }
}
