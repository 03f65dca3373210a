//! A management message: one MAD, or the payload that RMPP carries in many.

use alloc::vec::Vec;

use ib_wire::mad::{Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::rmpp::{RmppFlags, RmppHeader, RmppMad, SegmentLayout};

/// Where the RMPP payload starts in a MAD.
const RMPP_PAYLOAD: usize = 36;

/// How a class lays data over RMPP segments; `None` when the class has no RMPP header (IBA 13.6).
#[must_use]
pub const fn segment_layout(class: MgmtClass) -> Option<SegmentLayout> {
    match class {
        MgmtClass::SUBN_ADM => Some(SegmentLayout::SA),
        class if class.is_vendor_oui() => Some(SegmentLayout::VENDOR_OUI),
        _ => None,
    }
}

/// A whole management message, however many MADs carry it.
///
/// A single MAD travels as it is. An RMPP message has a first MAD, whose common and class headers
/// every segment repeats, and the data of all segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    first: Mad,
    data: Option<Vec<u8>>,
}

impl Message {
    /// The message of one MAD, sent without RMPP.
    #[must_use]
    pub const fn single(mad: Mad) -> Self {
        Self {
            first: mad,
            data: None,
        }
    }

    /// A message that RMPP carries, even if its data fits into one segment.
    ///
    /// Of `head` the common header and the class header count (for the SA: SM_Key,
    /// AttributeOffset and ComponentMask). `None` if the class of `head` has no RMPP.
    #[must_use]
    pub fn rmpp(head: Mad, data: Vec<u8>) -> Option<Self> {
        segment_layout(head.header.mgmt_class)?;
        Some(Self {
            first: head,
            data: Some(data),
        })
    }

    /// The common header.
    #[must_use]
    pub const fn header(&self) -> &MadHeader {
        &self.first.header
    }

    /// The common header, for writing.
    pub const fn header_mut(&mut self) -> &mut MadHeader {
        &mut self.first.header
    }

    /// The MAD's status.
    #[must_use]
    pub const fn status(&self) -> MadStatus {
        self.first.header.status
    }

    /// The only MAD, or of an RMPP message the first one: its class header holds, and as much of
    /// the data as fits if the message was received.
    #[must_use]
    pub const fn mad(&self) -> &Mad {
        &self.first
    }

    /// Whether RMPP carries the message.
    #[must_use]
    pub const fn is_rmpp(&self) -> bool {
        self.data.is_some()
    }

    /// The data: of an RMPP message exactly what was sent, of a single MAD the whole data area
    /// behind the class header, or behind the common header if the class has no RMPP.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        match &self.data {
            Some(data) => data,
            None => {
                let class = self.first.header.mgmt_class;
                let start = segment_layout(class).map_or(0, data_offset);
                &self.first.data[start..]
            }
        }
    }

    /// How many segments carry the message, if RMPP does.
    pub(crate) fn segments(&self) -> Option<u32> {
        let data = self.data.as_ref()?;
        let layout = segment_layout(self.first.header.mgmt_class)?;
        Some(u32::try_from(layout.segments(data.len())).unwrap_or(u32::MAX))
    }

    /// Segment `number` (from 1) as it goes on the wire; a single MAD is its own only segment.
    pub(crate) fn segment(&self, number: u32, resp_time: u8) -> Mad {
        let (Some(data), Some(layout)) = (
            self.data.as_ref(),
            segment_layout(self.first.header.mgmt_class),
        ) else {
            return self.first;
        };
        let number_index = number as usize;
        let count = layout.segments(data.len());
        let mut flags = RmppFlags::ACTIVE;
        let mut payload_length = 0;
        if number_index == 1 {
            flags = flags.union(RmppFlags::FIRST);
            payload_length = layout.first_payload_length(data.len());
        }
        if number_index == count {
            flags = flags.union(RmppFlags::LAST);
            payload_length = layout.last_payload_length(data.len());
        }
        let mut rmpp = RmppHeader::data(
            number,
            u32::try_from(payload_length).unwrap_or(u32::MAX),
            flags,
        );
        rmpp.set_resp_time(resp_time);

        let (start, end) = layout.range(data.len(), number_index);
        let mut mad = self.first;
        let view = mad.view_mut::<RmppMad>();
        view.rmpp = rmpp;
        let (filled, rest) = view.payload[layout.class_header..].split_at_mut(end - start);
        filled.copy_from_slice(&data[start..end]);
        rest.fill(0);
        mad
    }
}

/// Where a class's data starts in [`Mad::data`].
const fn data_offset(layout: SegmentLayout) -> usize {
    RMPP_PAYLOAD - size_of::<MadHeader>() + layout.class_header
}

/// Where the attribute of a class's Get and Set starts in [`Mad::data`].
pub(crate) const fn class_data(class: MgmtClass) -> usize {
    match (segment_layout(class), class) {
        (Some(layout), _) => data_offset(layout),
        (None, MgmtClass::COM_MGT) => 0,
        // 40 bytes of keys and reserved space, in all the other classes of the standard.
        (None, _) => 40,
    }
}

/// Whether a MAD of this method asks for an answer (IBA 13.4.5): all requests but Send. The SM may
/// leave a Trap unanswered, and nothing but a TrapRepress answers one.
pub(crate) const fn expects_answer(method: Method) -> bool {
    !method.is_answer() && !matches!(method, Method::SEND | Method::TRAP)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use ib_wire::mad::{AttributeId, MAD_SIZE};
    use proptest::prelude::*;

    use super::*;

    fn head(class: MgmtClass) -> Mad {
        Mad::new(MadHeader::new(
            class,
            Method::GET_TABLE_RESP,
            AttributeId::new(0x11),
        ))
    }

    #[test]
    fn a_class_without_rmpp_makes_no_rmpp_message() {
        assert!(Message::rmpp(head(MgmtClass::PERF), vec![1]).is_none());
        assert!(Message::rmpp(head(MgmtClass::SUBN_ADM), vec![1]).is_some());
        assert!(Message::rmpp(head(MgmtClass::new(0x32)), vec![1]).is_some());
    }

    #[test]
    fn data_of_a_single_mad_is_the_area_behind_the_class_header() {
        assert_eq!(
            Message::single(head(MgmtClass::SUBN_ADM)).data().len(),
            MAD_SIZE - 56
        );
        assert_eq!(
            Message::single(head(MgmtClass::new(0x30))).data().len(),
            MAD_SIZE - 40
        );
        assert_eq!(
            Message::single(head(MgmtClass::COM_MGT)).data().len(),
            MAD_SIZE - 24
        );
    }

    proptest! {
        #[test]
        fn segments_repeat_the_class_header_and_hold_the_data(len in 0_usize..3000, vendor: bool) {
            let class = if vendor { MgmtClass::new(0x30) } else { MgmtClass::SUBN_ADM };
            let layout = segment_layout(class).unwrap();
            let mut first = head(class);
            first.data.fill(0xa5);
            let data: Vec<u8> = (0_u8..=255).cycle().take(len).collect();
            let message = Message::rmpp(first, data.clone()).unwrap();
            let mut joined = Vec::new();
            let count = message.segments().unwrap();
            for number in 1..=count {
                let mad = message.segment(number, 0);
                let view = mad.view::<RmppMad>();
                prop_assert!(view.payload[..layout.class_header].iter().all(|b| *b == 0xa5));
                prop_assert_eq!(view.rmpp.segment_number.get(), number);
                prop_assert_eq!(view.rmpp.flags().contains(RmppFlags::LAST), number == count);
                prop_assert_eq!(view.rmpp.flags().contains(RmppFlags::FIRST), number == 1);
                joined.extend_from_slice(&view.payload[layout.class_header..]);
            }
            prop_assert_eq!(&joined[..len], &data[..]);
            prop_assert!(joined[len..].iter().all(|b| *b == 0));
        }
    }
}
