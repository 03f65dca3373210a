//! The sending side of one RMPP transfer (IBA 13.6.6.1).

use ib_wire::rmpp::RmppStatus;

/// What an acknowledgement did to a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckOutcome {
    /// An old or repeated acknowledgement: nothing changes.
    Stale,
    /// The window moved or opened further.
    Progress,
    /// Everything is acknowledged.
    Complete,
    /// The acknowledgement breaks the protocol; the transfer ends with this status.
    Violation(RmppStatus),
}

/// The window of a transfer. Segments are counted from 1.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    segments: u32,
    /// Everything up to this segment is acknowledged (WF - 1 in IBA 13.6.6.1).
    acked: u32,
    /// The last segment that may be sent (WL).
    window_last: u32,
    /// The segment to send next (NS).
    next: u32,
    /// The highest segment ever sent.
    sent: u32,
    resends: u8,
    resends_left: u8,
}

impl Sender {
    /// A transfer of so many segments. The window is one segment until the receiver opens it, or
    /// closed if `window` is 0: a responder of a dual-sided transfer waits for the turn-around
    /// (IBA 13.6.5.2).
    pub(crate) const fn new(segments: u32, window: u32, resends: u8) -> Self {
        Self {
            segments,
            acked: 0,
            window_last: window,
            next: 1,
            sent: 0,
            resends,
            resends_left: resends,
        }
    }

    /// Whether a segment may go out now.
    pub(crate) fn can_send(&self) -> bool {
        self.next <= self.window_last.min(self.segments)
    }

    /// Takes the number of the segment to send now.
    pub(crate) fn next_segment(&mut self) -> Option<u32> {
        self.can_send().then(|| {
            let number = self.next;
            self.next += 1;
            self.sent = self.sent.max(number);
            number
        })
    }

    /// Opens a window that was closed until the turn-around.
    pub(crate) fn open(&mut self, window: u32) {
        self.window_last = self.window_last.max(window.max(1));
    }

    /// Takes an ACK of everything up to `segment` that lets segments up to `new_window_last` go.
    pub(crate) fn acknowledge(&mut self, segment: u32, new_window_last: u32) -> AckOutcome {
        if new_window_last < segment {
            return AckOutcome::Violation(RmppStatus::NEW_WINDOW_TOO_SMALL);
        }
        // A receiver that kept an earlier, identical transfer acknowledges all of it at once.
        if segment == self.segments {
            self.acked = segment;
            return AckOutcome::Complete;
        }
        if segment > self.sent {
            return AckOutcome::Violation(RmppStatus::SEGMENT_TOO_BIG);
        }
        if segment < self.acked || new_window_last < self.window_last {
            return AckOutcome::Stale;
        }
        if segment == self.acked && new_window_last == self.window_last {
            return AckOutcome::Stale;
        }
        if segment > self.acked {
            self.resends_left = self.resends;
        }
        self.acked = segment;
        self.window_last = new_window_last;
        self.next = self.next.max(segment + 1);
        AckOutcome::Progress
    }

    /// No acknowledgement came in time: goes back to the first unacknowledged segment. `false` when
    /// it did so too often.
    pub(crate) fn go_back(&mut self) -> bool {
        if self.resends_left == 0 {
            return false;
        }
        self.resends_left -= 1;
        if !self.can_send() {
            self.next = self.acked + 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn drain(sender: &mut Sender) -> Vec<u32> {
        core::iter::from_fn(|| sender.next_segment()).collect()
    }

    #[test]
    fn one_segment_goes_until_the_window_opens() {
        let mut sender = Sender::new(5, 1, 3);
        assert_eq!(drain(&mut sender), [1]);
        assert_eq!(sender.acknowledge(1, 4), AckOutcome::Progress);
        assert_eq!(drain(&mut sender), [2, 3, 4]);
        assert_eq!(sender.acknowledge(4, 8), AckOutcome::Progress);
        assert_eq!(drain(&mut sender), [5]);
        assert_eq!(sender.acknowledge(5, 8), AckOutcome::Complete);
    }

    #[test]
    fn a_timeout_resends_from_the_first_unacknowledged_segment() {
        let mut sender = Sender::new(5, 1, 2);
        drain(&mut sender);
        sender.acknowledge(1, 4);
        drain(&mut sender);
        assert!(sender.go_back());
        assert_eq!(drain(&mut sender), [2, 3, 4]);
        assert!(sender.go_back());
        assert!(!sender.go_back(), "two resends were allowed");
    }

    #[test]
    fn progress_restores_the_resends() {
        let mut sender = Sender::new(5, 1, 1);
        drain(&mut sender);
        assert!(sender.go_back());
        drain(&mut sender);
        sender.acknowledge(1, 2);
        drain(&mut sender);
        assert!(sender.go_back());
    }

    #[test]
    fn an_ack_beyond_what_was_sent_is_a_violation() {
        let mut sender = Sender::new(5, 1, 1);
        drain(&mut sender);
        assert_eq!(
            sender.acknowledge(2, 9),
            AckOutcome::Violation(RmppStatus::SEGMENT_TOO_BIG)
        );
    }

    #[test]
    fn a_window_below_the_acked_segment_is_a_violation() {
        let mut sender = Sender::new(5, 1, 1);
        drain(&mut sender);
        assert_eq!(
            sender.acknowledge(1, 0),
            AckOutcome::Violation(RmppStatus::NEW_WINDOW_TOO_SMALL)
        );
    }

    #[test]
    fn an_old_ack_changes_nothing() {
        let mut sender = Sender::new(9, 1, 1);
        drain(&mut sender);
        sender.acknowledge(1, 4);
        drain(&mut sender);
        sender.acknowledge(3, 8);
        assert_eq!(sender.acknowledge(1, 4), AckOutcome::Stale);
        assert_eq!(drain(&mut sender), [5, 6, 7, 8]);
    }

    #[test]
    fn an_ack_of_the_whole_by_a_receiver_that_has_it_completes() {
        let mut sender = Sender::new(9, 1, 1);
        drain(&mut sender);
        assert_eq!(sender.acknowledge(9, 65), AckOutcome::Complete);
    }
}
