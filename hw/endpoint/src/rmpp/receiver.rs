//! The receiving side of one RMPP transfer (IBA 13.6.6.2).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use ib_wire::mad::Mad;
use ib_wire::rmpp::{RmppFlags, RmppMad, RmppStatus, SegmentLayout};

use crate::message::Message;

/// What to acknowledge: everything up to `segment`, and how far the sender may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) segment: u32,
    pub(crate) window_last: u32,
}

/// What a segment did to a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Kept; the sender goes on without an answer.
    Kept,
    /// A repetition that tells nothing new.
    Repeated,
    /// Beyond the window: dropped.
    OutsideWindow,
    /// Acknowledge.
    Acknowledge(Ack),
    /// The last piece: acknowledge and take the message.
    Complete(Ack),
    /// The segment breaks the protocol; the transfer ends with this status.
    Violation(RmppStatus),
    /// The payload is longer than allowed.
    TooLong,
}

#[derive(Clone, Debug)]
struct Segment {
    data: Vec<u8>,
    last: bool,
}

/// Reassembles one message.
///
/// Segments may come in any order within the window; memory is bounded by `max_bytes` and the
/// window.
#[derive(Clone, Debug)]
pub(crate) struct Receiver {
    layout: SegmentLayout,
    first: Mad,
    data: Vec<u8>,
    /// The last segment received in order (ES - 1 in IBA 13.6.6.2).
    in_order: u32,
    /// The last segment the sender may send (WL).
    window_last: u32,
    acked: u32,
    early: BTreeMap<u32, Segment>,
    /// How many segments the first one's PayloadLength announced; `None` if it was 0.
    announced: Option<u32>,
    window: u32,
    max_bytes: usize,
}

impl Receiver {
    /// Starts with a first segment; feed it to [`Self::receive`] next.
    pub(crate) fn new(first: Mad, layout: SegmentLayout, window: u32, max_bytes: usize) -> Self {
        Self {
            layout,
            first,
            data: Vec::new(),
            in_order: 0,
            window_last: 1,
            acked: 0,
            early: BTreeMap::new(),
            announced: None,
            window: window.max(1),
            max_bytes,
        }
    }

    /// Bytes held.
    pub(crate) fn buffered(&self) -> usize {
        self.data.len() + self.early.values().map(|s| s.data.len()).sum::<usize>()
    }

    /// The first MAD, whose headers an acknowledgement repeats.
    pub(crate) const fn first(&self) -> &Mad {
        &self.first
    }

    /// The last segment received in order.
    pub(crate) const fn in_order(&self) -> u32 {
        self.in_order
    }

    /// Takes a DATA segment whose header was found to be well formed.
    pub(crate) fn receive(&mut self, mad: &Mad) -> Received {
        let view = mad.view::<RmppMad>();
        let flags = view.rmpp.flags();
        let number = view.rmpp.segment_number.get();
        if number == 0 || flags.contains(RmppFlags::FIRST) != (number == 1) {
            return Received::Violation(RmppStatus::INCONSISTENT_FIRST_AND_SEGMENT);
        }
        if number > self.window_last {
            return Received::OutsideWindow;
        }
        if number <= self.in_order || self.early.contains_key(&number) {
            return self.repeated(number);
        }
        let last = flags.contains(RmppFlags::LAST);
        if number == 1
            && !last
            && let Err(refusal) = self.note_announced(view.rmpp.data2.get())
        {
            return refusal;
        }
        // Last ends a message wherever it comes; only to pass the stated length without it is wrong.
        if !last && self.announced.is_some_and(|n| number >= n) {
            return Received::Violation(RmppStatus::INCONSISTENT_LAST_AND_LENGTH);
        }
        let length = if last {
            // A length that no segment can have is that of a whole one; Linux does so with one too long (`get_mad_len`).
            let length = view.rmpp.data2.get() as usize;
            self.layout.data_in_last(length).unwrap_or(self.layout.data)
        } else {
            self.layout.data
        };
        // Whatever the order of arrival, the message will reach at least to this segment's end.
        let end = (number as usize - 1).saturating_mul(self.layout.data) + length;
        if end > self.max_bytes {
            return Received::TooLong;
        }
        let start = self.layout.class_header;
        let data = view.payload[start..start + length].to_vec();
        self.early.insert(number, Segment { data, last });
        self.advance()
    }

    /// The acknowledgement that stands, to be repeated.
    pub(crate) const fn last_ack(&self) -> Ack {
        Ack {
            segment: self.acked,
            window_last: self.window_last,
        }
    }

    /// The whole message, once [`Received::Complete`] was given.
    pub(crate) fn into_message(self) -> Option<Message> {
        Message::rmpp(self.first, self.data)
    }

    fn note_announced(&mut self, payload_length: u32) -> Result<(), Received> {
        if payload_length == 0 {
            return Ok(());
        }
        let per_segment = u32::try_from(self.layout.class_header + self.layout.data)
            .map_or(u32::MAX, |bytes| bytes.max(1));
        let segments = payload_length.div_ceil(per_segment);
        let headers = (segments as usize).saturating_mul(self.layout.class_header);
        if (payload_length as usize).saturating_sub(headers) > self.max_bytes {
            return Err(Received::TooLong);
        }
        self.announced = Some(segments);
        Ok(())
    }

    /// A segment seen before. If it was acknowledged, the ACK was lost: repeat it. If not, the
    /// sender went back, so tell it how far we are.
    fn repeated(&mut self, number: u32) -> Received {
        if number <= self.acked || self.in_order > self.acked {
            self.acked = self.in_order;
            Received::Acknowledge(self.last_ack())
        } else {
            Received::Repeated
        }
    }

    fn advance(&mut self) -> Received {
        while let Some(segment) = self.early.remove(&(self.in_order + 1)) {
            self.in_order += 1;
            self.data.extend_from_slice(&segment.data);
            if segment.last {
                self.early.clear();
                self.acked = self.in_order;
                return Received::Complete(self.last_ack());
            }
        }
        if self.in_order == self.window_last {
            self.window_last = self.window_last.saturating_add(self.window);
            self.acked = self.in_order;
            Received::Acknowledge(self.last_ack())
        } else {
            Received::Kept
        }
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::mad::{AttributeId, MadHeader, Method, MgmtClass};
    use proptest::prelude::*;

    use super::*;

    fn message(len: usize) -> Message {
        let head = Mad::new(MadHeader::new(
            MgmtClass::SUBN_ADM,
            Method::GET_TABLE_RESP,
            AttributeId::new(0x35),
        ));
        let data = (0_u8..251).cycle().take(len).collect();
        Message::rmpp(head, data).unwrap()
    }

    fn receiver(message: &Message, max_bytes: usize) -> Receiver {
        Receiver::new(message.segment(1, 0), SegmentLayout::SA, 64, max_bytes)
    }

    const fn ack(segment: u32, window_last: u32) -> Ack {
        Ack {
            segment,
            window_last,
        }
    }

    #[test]
    fn the_first_segment_opens_the_window_and_the_last_completes() {
        let message = message(700);
        let mut receiver = receiver(&message, 4096);
        assert_eq!(
            receiver.receive(&message.segment(1, 0)),
            Received::Acknowledge(ack(1, 65))
        );
        assert_eq!(receiver.receive(&message.segment(2, 0)), Received::Kept);
        assert_eq!(receiver.receive(&message.segment(3, 0)), Received::Kept);
        assert_eq!(
            receiver.receive(&message.segment(4, 0)),
            Received::Complete(ack(4, 65))
        );
        assert_eq!(receiver.into_message().unwrap().data(), message.data());
    }

    #[test]
    fn a_full_window_is_acknowledged() {
        let message = message(200 * 70);
        let mut receiver = receiver(&message, 200 * 70);
        for number in 1..=64 {
            receiver.receive(&message.segment(number, 0));
        }
        assert_eq!(
            receiver.receive(&message.segment(65, 0)),
            Received::Acknowledge(ack(65, 129))
        );
    }

    #[test]
    fn a_segment_outside_the_window_is_dropped() {
        let message = message(200 * 70);
        let mut receiver = receiver(&message, 200 * 70);
        receiver.receive(&message.segment(1, 0));
        assert_eq!(
            receiver.receive(&message.segment(66, 0)),
            Received::OutsideWindow
        );
    }

    #[test]
    fn a_repeated_acknowledged_segment_repeats_the_ack() {
        let message = message(700);
        let mut receiver = receiver(&message, 4096);
        receiver.receive(&message.segment(1, 0));
        assert_eq!(
            receiver.receive(&message.segment(1, 0)),
            Received::Acknowledge(ack(1, 65))
        );
    }

    #[test]
    fn a_sender_that_went_back_learns_how_far_we_are() {
        let message = message(1000);
        let mut receiver = receiver(&message, 4096);
        for number in [1, 2, 4] {
            receiver.receive(&message.segment(number, 0));
        }
        assert_eq!(
            receiver.receive(&message.segment(2, 0)),
            Received::Acknowledge(ack(2, 65))
        );
        assert_eq!(receiver.receive(&message.segment(4, 0)), Received::Repeated);
        assert_eq!(receiver.receive(&message.segment(3, 0)), Received::Kept);
        assert!(matches!(
            receiver.receive(&message.segment(5, 0)),
            Received::Complete(_)
        ));
    }

    #[test]
    fn a_payload_longer_than_allowed_is_refused_at_the_announcement() {
        let message = message(1000);
        let mut receiver = receiver(&message, 999);
        assert_eq!(receiver.receive(&message.segment(1, 0)), Received::TooLong);
    }

    #[test]
    fn an_unannounced_payload_is_refused_when_it_grows_too_long() {
        let message = message(1000);
        let mut receiver = receiver(&message, 500);
        let mut first = message.segment(1, 0);
        first.view_mut::<RmppMad>().rmpp.data2 = 0.into();
        assert!(matches!(receiver.receive(&first), Received::Acknowledge(_)));
        assert_eq!(receiver.receive(&message.segment(3, 0)), Received::TooLong);
    }

    /// IBA 13.6.3.1: the first segment's length is a hint, and Linux does not look at it.
    #[test]
    fn last_ends_a_message_before_the_stated_length_and_whatever_its_own_length_says() {
        let message = message(700);
        for (last, length, expected) in [
            (2, 220, 400),
            (2, 120, 300),
            (4, 120, 700),
            (4, 221, 800),
            (4, 0, 800),
            (4, u32::MAX, 800),
        ] {
            let mut receiver = receiver(&message, 4096);
            for number in 1..last {
                let received = receiver.receive(&message.segment(number, 0));
                assert!(!matches!(received, Received::Complete(_)));
            }
            let mut mad = message.segment(last, 0);
            let rmpp = &mut mad.view_mut::<RmppMad>().rmpp;
            rmpp.set_flags(RmppFlags::ACTIVE.union(RmppFlags::LAST));
            rmpp.data2 = length.into();
            assert_eq!(receiver.receive(&mad), Received::Complete(ack(last, 65)));
            let data = receiver.into_message().unwrap();
            assert_eq!(data.data().len(), expected, "{last}, {length}");
        }
    }

    #[test]
    fn lengths_and_flags_that_disagree_are_violations() {
        let message = message(700);
        let bad = |number: u32, change: &dyn Fn(&mut RmppMad)| {
            let mut receiver = receiver(&message, 4096);
            if number > 1 {
                receiver.receive(&message.segment(1, 0));
            }
            let mut mad = message.segment(number, 0);
            change(mad.view_mut());
            receiver.receive(&mad)
        };
        let last_and_length = Received::Violation(RmppStatus::INCONSISTENT_LAST_AND_LENGTH);
        let first_and_segment = Received::Violation(RmppStatus::INCONSISTENT_FIRST_AND_SEGMENT);
        assert_eq!(
            bad(4, &|m| m.rmpp.set_flags(RmppFlags::ACTIVE)),
            last_and_length
        );
        assert_eq!(
            bad(2, &|m| m.rmpp.set_flags(RmppFlags::FIRST)),
            first_and_segment
        );
        assert_eq!(
            bad(1, &|m| m.rmpp.set_flags(RmppFlags::ACTIVE)),
            first_and_segment
        );
        assert_eq!(
            bad(2, &|m| m.rmpp.segment_number = 0.into()),
            first_and_segment
        );
    }

    proptest! {
        #[test]
        fn any_order_with_repetitions_gives_the_message(
            len in 0_usize..6000,
            picks in prop::collection::vec(any::<u32>(), 400),
        ) {
            let message = message(len);
            let count = message.segments().unwrap();
            let mut receiver = receiver(&message, 6000);
            let mut complete = false;
            for number in core::iter::once(1).chain(picks.iter().map(|p| p % count + 1)).chain(1..=count) {
                match receiver.receive(&message.segment(number, 0)) {
                    Received::Complete(ack) => {
                        prop_assert_eq!(ack.segment, count);
                        complete = true;
                        break;
                    }
                    Received::Violation(_) | Received::TooLong => prop_assert!(false),
                    _ => {}
                }
                prop_assert!(receiver.buffered() <= len);
            }
            prop_assert!(complete);
            let reassembled = receiver.into_message().unwrap();
            prop_assert_eq!(reassembled.data(), message.data());
        }
    }
}
