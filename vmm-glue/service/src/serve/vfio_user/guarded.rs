//! VFs whose VMM's memory may wait: a thread of the VMM's own carries their writes out, and whatever has to come behind these
//! waits for it.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;

use ib_vtime::Duration;

use super::client::Client;
use super::{Owner, Turn, VfioUserSockets, log};
use vhca::device::Provider;
use vhca::watch::EventSet;
use vhca::world::HostFunction;

/// Time within which a posted write is done, or its VMM is let go.
const DONE_WITHIN: Duration = Duration::from_secs(1);

/// VFs whose memory is guarded.
#[derive(Debug, Default)]
pub(super) struct Guarded {
    vfs: BTreeSet<HostFunction>,
    /// Of these, those without turns, since too much is posted.
    held: BTreeSet<HostFunction>,
    /// Of these, those whose VMM's replies or messages wait for posted writes.
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
            let posted = seat.and_then(|seat| seat.memory.posted());
            match posted {
                Some(posted) if posted.age > DONE_WITHIN => {
                    let text = "its memory did not take a write within a second";
                    self.part(turn, at, &text);
                    continue;
                }
                Some(posted) if posted.is_full => {
                    if self.guarded.held.insert(at) {
                        turn.lab.world_mut().hold(at, true);
                    }
                }
                _ => self.release(turn, at),
            }
            if let Some(posted) = posted {
                let late = turn.now + (DONE_WITHIN - posted.age) + Duration::from_millis(1);
                self.again = Some(self.again.map_or(late, |again| again.min(late)));
            }
            let door = self.doors.get(&at);
            let client = door.and_then(|door| door.client.as_ref());
            let waits = client.is_some_and(Client::waits_for_memory);
            if !waits && self.guarded.unheard.remove(&at) {
                self.unfinished.add(at);
            }
        }
    }

    /// Watches for news of guarded memory.
    pub(super) fn watch_guarded(&mut self, turn: &mut Turn<'_>) {
        // There is one since the sockets were claimed.
        if let Ok(event) = turn.lab.guard_notice.event() {
            turn.watches.add(event, EventSet::IN);
            self.owners.insert(event.as_raw_fd(), Owner::Memory);
        }
    }

    fn note_guarded(&mut self, turn: &mut Turn<'_>) {
        let seats = turn.lab.seats.values();
        let guarded = seats.filter(|seat| seat.memory.is_guarded());
        let guarded: BTreeSet<_> = guarded.map(|seat| seat.at).collect();
        for at in guarded.difference(&self.guarded.vfs) {
            let text = "waits for pages of its VMM's memory: a thread of its own writes there until it has not waited for a while";
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
