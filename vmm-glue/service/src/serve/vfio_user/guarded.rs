//! VFs whose VMM's memory may wait: a thread of the VMM's own carries their writes out, and whatever has to come behind these
//! waits for it.

use std::collections::BTreeSet;

use ib_vtime::Duration;

use super::Turn;
use super::VfioUserSockets;
use super::log;
use vhca::device::Provider;
use vhca::world::HostFunction;

/// Time within which a posted write is done, or its VMM is let go.
const DONE_WITHIN: Duration = Duration::from_secs(1);

/// Time between two looks at a queue that is not empty.
const LOOK: Duration = Duration::from_micros(100);

/// VFs whose memory is guarded.
#[derive(Debug, Default)]
pub(super) struct Guarded {
    vfs: BTreeSet<HostFunction>,
    /// Of these, those without turns, since too much is posted.
    held: BTreeSet<HostFunction>,
    /// Of these, those whose VMM's messages wait until nothing is posted.
    unheard: BTreeSet<HostFunction>,
}

impl Guarded {
    /// Notes that the messages of a VF's VMM wait.
    pub(super) fn wait(&mut self, at: HostFunction) {
        self.unheard.insert(at);
    }
}

impl VfioUserSockets {
    /// Looks at the VFs whose memory is guarded: holds and releases them, and ends connections of VMMs whose memory takes no writes.
    pub(super) fn look_at_guarded(&mut self, turn: &mut Turn<'_>) {
        if turn.lab.guard_notice.take() {
            self.note_guarded(turn);
        }
        for at in self.guarded.vfs.clone() {
            let seat = turn.lab.seats.get(&at);
            match seat.and_then(|seat| seat.memory.posted()) {
                None => {
                    self.release(turn, at);
                    if self.guarded.unheard.remove(&at) {
                        self.unfinished.add(at);
                    }
                }
                Some(posted) if posted.age > DONE_WITHIN => {
                    let text = "its memory did not take a write within a second";
                    self.part(turn, at, &text);
                }
                Some(posted) => {
                    if posted.is_full && self.guarded.held.insert(at) {
                        turn.lab.world_mut().hold(at, true);
                    } else if !posted.is_full {
                        self.release(turn, at);
                    }
                    self.again = Some(turn.now + LOOK);
                }
            }
        }
    }

    fn note_guarded(&mut self, turn: &mut Turn<'_>) {
        let seats = turn.lab.seats.values();
        let guarded = seats.filter(|seat| seat.memory.is_guarded());
        let guarded: BTreeSet<_> = guarded.map(|seat| seat.at).collect();
        for at in guarded.difference(&self.guarded.vfs) {
            let text =
                "waits for pages of its VMM's memory: a thread of its own writes there from now on";
            log(&mut self.doors, turn.now, *at, &text);
        }
        self.guarded.vfs = guarded;
    }

    /// Ends that a VF has no turns.
    pub(super) fn release(&mut self, turn: &mut Turn<'_>, at: HostFunction) {
        if self.guarded.held.remove(&at) {
            turn.lab.world_mut().hold(at, false);
        }
    }
}
