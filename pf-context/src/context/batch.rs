//! Frames that are taken from queue pairs and judged together.

use hca_api::{FunctionManager, SpecialQp};
use ib_vtime::Instant;
use vf_tunnel::{DropReason, ToPf, VfId};

use super::port::{CAUSE, PfPort, Source};
use super::tunnel::Received;
use crate::look_ahead::Upcoming;
use crate::output::WireSource;

/// Frames of a batch, and frames taken from one queue pair before the next one's turn.
pub(super) const BATCH: usize = 16;

/// A frame in a batch.
#[derive(Clone, Copy, Debug)]
enum Taken {
    FromVf(VfId, SpecialQp),
    FromWire(SpecialQp, WireSource),
    Refused(VfId, DropReason),
}

/// Frames out of the reach of whoever sent them. The mux looks ahead for all of them, and then judges
/// one after the other where it lies.
#[derive(Debug, Default)]
pub(super) struct Batch {
    taken: Vec<Taken>,
    /// As many as were ever taken at once. What came from the wire has its MAD where a VF's is.
    frames: Vec<ToPf>,
    /// Queue pairs that had nothing more.
    drained: Vec<Source>,
}

impl Batch {
    const fn len(&self) -> usize {
        self.taken.len()
    }

    /// Where the next frame goes.
    fn next(&mut self) -> &mut ToPf {
        let at = self.len();
        if at == self.frames.len() {
            self.frames.push(ToPf::zeroed());
        }
        &mut self.frames[at]
    }

    fn upcoming(&self) -> impl Iterator<Item = Upcoming<'_>> {
        let frames = self.taken.iter().zip(&self.frames);
        frames.filter_map(|(taken, frame)| match taken {
            Taken::FromVf(vf, _) => Some(Upcoming::FromVf(*vf, frame)),
            Taken::FromWire(..) => Some(Upcoming::FromWire(&frame.mad)),
            Taken::Refused(..) => None,
        })
    }
}

impl PfPort {
    /// Takes up to so many frames from what is ready, and passes them on. Gives how many there were.
    pub(super) fn serve(
        &mut self,
        now: Instant,
        hca: &mut dyn FunctionManager,
        most: usize,
    ) -> usize {
        let mut batch = core::mem::take(&mut self.batch);
        self.gather(hca, &mut batch, most);
        self.mux.look_ahead(batch.upcoming());
        let served = batch.len();
        for (taken, frame) in batch.taken.drain(..).zip(&mut batch.frames) {
            self.judge(now, hca, taken, frame);
        }
        self.make_room(now, hca);
        for source in batch.drained.drain(..) {
            if self.arm(hca, source) {
                self.ready.push_back(source);
            }
        }
        self.batch = batch;
        served
    }

    /// Fills a batch. Queue pairs take turns; one whose turn the batch's end cuts short goes on with
    /// it in the next.
    fn gather(&mut self, hca: &mut dyn FunctionManager, batch: &mut Batch, most: usize) {
        while batch.len() < most
            && let Some(source) = self.ready.pop_front()
        {
            let before = batch.len();
            while batch.len() < most && self.take(hca, source, batch) {}
            if batch.len() < most {
                batch.drained.push(source);
            } else if before == 0 {
                self.ready.push_back(source);
            } else {
                self.ready.push_front(source);
            }
        }
    }

    /// Takes the next frame from a queue pair, if there is one.
    fn take(&mut self, hca: &mut dyn FunctionManager, source: Source, batch: &mut Batch) -> bool {
        let taken = match source {
            Source::Special(special) => {
                let qp = match special {
                    SpecialQp::Gsi => Some(&mut self.gsi),
                    SpecialQp::Smi => self.smi.as_mut(),
                };
                let from = qp.and_then(|qp| qp.poll_into(hca, &mut batch.next().mad));
                from.map(|from| Taken::FromWire(special, self.wire_source(&from)))
            }
            Source::Tunnel(vf, special) => {
                let Some(tunnel) = self.tunnel_mut(vf, special) else {
                    return false;
                };
                match tunnel.receive(hca, batch.next()) {
                    Some(Received::Frame) => Some(Taken::FromVf(vf, special)),
                    Some(Received::Refused(reason)) => Some(Taken::Refused(vf, reason)),
                    None => {
                        tunnel.flush(hca);
                        None
                    }
                }
            }
        };
        batch.taken.extend(taken);
        taken.is_some()
    }

    fn judge(
        &mut self,
        now: Instant,
        hca: &mut dyn FunctionManager,
        taken: Taken,
        frame: &mut ToPf,
    ) {
        let passed = match taken {
            Taken::FromVf(vf, special) => self.mux.from_vf_in_place(now, CAUSE, vf, special, frame),
            Taken::FromWire(special, source) => {
                let mad = &mut frame.mad;
                self.mux
                    .from_wire_in_place(now, CAUSE, special, &source, mad)
            }
            Taken::Refused(vf, reason) => {
                self.mux.refuse(CAUSE, Some(vf), reason);
                return self.carry_out(hca);
            }
        };
        // Outputs that are there already go first.
        self.carry_out(hca);
        self.carry_on(hca, &passed, &frame.mad);
        self.carry_out(hca);
    }
}
