//! Reading the table of communication ids ahead for a batch of frames.
//!
//! With 10^6 live ids the table is larger than any near cache, and what a message needs of it is known
//! only step by step. What it needs is independent of the other messages of its batch, so each step is
//! taken for all of them before the next, and the memory answers their reads together. That saves a
//! message from a VF 100 ns, one from the wire 45 ns. While the table fits in near caches nothing is
//! read. Transactions, groups and paths are not read ahead: on the way of `PfContext` their gain stays
//! below a tenth up to 10^5 live objects (`BENCHMARKS.md`).

use ib_wire::mad::{Mad, MgmtClass};
use vf_tunnel::wire_id::Trail;
use vf_tunnel::{ToPf, VfId};

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

/// Steps at most from where a trail starts to what a message needs.
const STEPS: usize = 2;

impl PortMux {
    /// Reads what the judgements of these frames will need, so that their waits for memory overlap.
    /// No verdict depends on it; call it before the frames of a batch are judged one by one.
    pub fn look_ahead<'a>(&self, frames: impl IntoIterator<Item = Upcoming<'a>>) {
        let mut trails = [Trail::End; BATCH];
        let starts = frames.into_iter().filter_map(|frame| self.start(frame));
        let started = trails.iter_mut().zip(starts);
        let len = started.map(|(trail, start)| *trail = start).count();
        if len == 0 {
            return;
        }
        let cm = self.cm.lock();
        for _ in 0..STEPS {
            for trail in &mut trails[..len] {
                *trail = cm.machine.read_ahead(*trail);
            }
        }
    }

    /// Where the reading for a frame starts, if it is a CM message.
    fn start(&self, frame: Upcoming<'_>) -> Option<Trail> {
        let mad = match frame {
            Upcoming::FromVf(_, frame) => &frame.mad,
            Upcoming::FromWire(mad) => mad,
        };
        if mad.header.mgmt_class != MgmtClass::COM_MGT {
            return None;
        }
        let machine = &self.cm.lock().machine;
        Some(match frame {
            Upcoming::FromVf(vf, _) => machine.egress_trail(vf, mad),
            Upcoming::FromWire(_) => machine.ingress_trail(mad),
        })
    }
}
