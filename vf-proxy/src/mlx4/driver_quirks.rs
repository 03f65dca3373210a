//! What the guest's driver does differently from the specification, as far as its answers have to be changed for it.

use core::iter::StepBy;
use core::mem::offset_of;
use core::ops::Range;

use ib_wire::mad::{AttributeId, Mad, MadStatus, Method, MgmtClass};
use ib_wire::perf::{PerfAttribute, PortCounters, PortCountersExtended};
use ib_wire::rmpp::{RmppFlags, RmppHeader, RmppType, SegmentLayout};
use ib_wire::sa::{PathRecord, SA_DATA_SIZE, SaMad};

/// Where the attributes that the driver would take are put: a vendor's part of the class (IBA 16.1.3).
const ASIDE: u16 = 0xff00;

/// Changes an answer to one that Linux' `mlx4_ib` on a virtual function handles correctly.
///
/// The driver takes every MAD about its port's counters for a request, answers included: nobody in the guest gets them,
/// and the peer gets a reply without a header (`mlx4_ib_process_mad` looks at class and attribute only). Their attribute
/// is moved aside. And the driver puts a GRH only on what goes by a path with a hop limit
/// (`ib_init_ah_attr_from_path`), though a LID does not tell the VFs of a port apart, and SIDR_REQ names its destination
/// nowhere else. Paths get a hop limit.
pub(super) fn adapt_answer(answer: &mut Mad) {
    match answer.header.mgmt_class {
        MgmtClass::PERF => let_pass(answer),
        MgmtClass::SUBN_ADM => ask_for_grh(answer),
        _ => {}
    }
}

/// Makes an answer reach whoever asked. Linux finds that by transaction and class; what answers a request has
/// the attribute of the request, so nobody needs to be told.
fn let_pass(answer: &mut Mad) {
    if TAKEN.contains(&answer.header.attribute_id) {
        let aside = answer.header.attribute_id.get() | ASIDE;
        answer.header.attribute_id = AttributeId::new(aside);
    }
}

/// Gives the paths in an answer a hop limit, which within a subnet is of no consequence but a GRH (IBA 8.3.6).
fn ask_for_grh(answer: &mut Mad) {
    let header = answer.header;
    if header.attribute_id != AttributeId::PATH_RECORD || header.status != MadStatus::OK {
        return;
    }
    let sa: &mut SaMad = answer.view_mut();
    let hop_limits = match header.method {
        Method::GET_RESP if !sa.rmpp.is_active() => hop_limits(0, PATH, PATH),
        Method::GET_TABLE_RESP => table_hop_limits(sa),
        _ => return,
    };
    for at in hop_limits {
        if sa.data[at] == 0 {
            sa.data[at] = 1;
        }
    }
}

/// Where in a MAD's data the hop limits of a table are. A record may begin in one segment and end in the next, but a
/// hop limit is one byte, and where it is follows from the segment's number.
fn table_hop_limits(sa: &SaMad) -> StepBy<Range<usize>> {
    let (begin, len) = segment(&sa.rmpp).unwrap_or_default();
    // Not every SA says it in segments behind the first.
    let stride = match usize::from(sa.attribute_offset.get()) * 8 {
        0 => PATH,
        stride => stride,
    };
    hop_limits(begin, len, stride)
}

/// Where in its table a segment's data begin, and how many bytes of it are the table's. `None` if it has no data.
fn segment(rmpp: &RmppHeader) -> Option<(usize, usize)> {
    if !rmpp.is_active() || rmpp.is_unsegmented() {
        return Some((0, SA_DATA_SIZE));
    }
    if rmpp.rmpp_type != RmppType::DATA {
        return None;
    }
    let layout = SegmentLayout::SA;
    let before = usize::try_from(rmpp.segment_number.get().checked_sub(1)?).ok()?;
    let len = if rmpp.flags().contains(RmppFlags::LAST) {
        layout.data_in_last(usize::try_from(rmpp.data2.get()).ok()?)?
    } else {
        layout.data
    };
    Some((before.checked_mul(layout.data)?, len))
}

/// Where hop limits are among the first `len` bytes of a part of a table that begins at `begin`.
fn hop_limits(begin: usize, len: usize, stride: usize) -> StepBy<Range<usize>> {
    // Records that would overlap are none.
    let len = if stride < PATH { 0 } else { len };
    let stride = stride.max(PATH);
    let first = (HOP_LIMIT + stride - begin % stride) % stride;
    (first..len.min(SA_DATA_SIZE)).step_by(stride)
}

/// Bytes of a path.
const PATH: usize = size_of::<PathRecord>();

/// The place of a path's hop limit: the last byte of the field that it shares with the flow label.
const HOP_LIMIT: usize = offset_of!(PathRecord, raw_flow_hop) + 3;

/// Attributes that the driver answers by itself.
const TAKEN: [AttributeId; 3] = [
    AttributeId::CLASS_PORT_INFO,
    PortCounters::ID,
    PortCountersExtended::ID,
];

#[cfg(test)]
mod tests {
    use ib_wire::sa::ComponentMask;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    /// Paths that have no hop limit, but the third.
    fn table(records: usize, stride: usize) -> Vec<u8> {
        let mut table = vec![0xee; records * stride];
        for (nth, place) in table.chunks_mut(stride).enumerate() {
            let mut path = PathRecord::default();
            path.set_flow_label(0xf_ffff);
            path.set_hop_limit(if nth == 2 { 64 } else { 0 });
            place[..PATH].copy_from_slice(path.as_bytes());
        }
        table
    }

    /// A table as an SA sends it, through a driver's eyes.
    fn adapted(table: &[u8], offset_of_first: u16, offset_of_others: u16) -> Vec<u8> {
        let layout = SegmentLayout::SA;
        let segments = layout.segments(table.len());
        let mut heard = Vec::new();
        for number in 1..=segments {
            let (start, end) = layout.range(table.len(), number);
            let (flags, length) = match number {
                _ if number == segments => {
                    (RmppFlags::LAST, layout.last_payload_length(table.len()))
                }
                1 => (RmppFlags::FIRST, layout.first_payload_length(table.len())),
                _ => (RmppFlags::default(), 0),
            };
            let none = PathRecord::default();
            let mut sa = SaMad::new(Method::GET_TABLE_RESP, ComponentMask::NONE, &none);
            let number_of = u32::try_from(number).unwrap();
            sa.rmpp = RmppHeader::data(number_of, u32::try_from(length).unwrap(), flags);
            let offset = if number == 1 {
                offset_of_first
            } else {
                offset_of_others
            };
            sa.attribute_offset = offset.into();
            sa.data[..end - start].copy_from_slice(&table[start..end]);
            let mut mad = Mad::from_layout(&sa);
            adapt_answer(&mut mad);
            let sa: &SaMad = mad.view();
            assert!(
                sa.data[end - start..].iter().all(|byte| *byte == 0),
                "padding"
            );
            heard.extend_from_slice(&sa.data[..end - start]);
        }
        heard
    }

    #[test]
    fn every_path_of_a_table_has_a_hop_limit_wherever_segments_end() {
        for (stride, first, others) in [(64, 8, 8), (64, 8, 0), (72, 9, 9)] {
            for records in 1..40 {
                let told = table(records, stride);
                let heard = adapted(&told, first, others);
                for (nth, (told, heard)) in
                    told.chunks(stride).zip(heard.chunks(stride)).enumerate()
                {
                    let mut expected = PathRecord::read_from_bytes(&told[..PATH]).unwrap();
                    expected.set_hop_limit(if nth == 2 { 64 } else { 1 });
                    assert_eq!(heard[..PATH], *expected.as_bytes(), "{nth} of {records}");
                    assert_eq!(heard[PATH..], told[PATH..]);
                }
            }
        }
    }

    #[test]
    fn what_is_no_path_is_as_it_was() {
        let unchanged = |sa: &SaMad| {
            let mut mad = Mad::from_layout(sa);
            adapt_answer(&mut mad);
            mad == Mad::from_layout(sa)
        };
        let none = PathRecord::default();
        let mut sa = SaMad::new(Method::GET_TABLE_RESP, ComponentMask::NONE, &none);
        assert!(!unchanged(&sa), "a table of one MAD");
        sa.attribute_offset = 7.into();
        assert!(unchanged(&sa), "records that overlap");
        sa.attribute_offset = 8.into();
        sa.rmpp = RmppHeader::ack(3, 9);
        assert!(unchanged(&sa), "no data");
        sa.rmpp = RmppHeader::data(0, 0, RmppFlags::default());
        assert!(unchanged(&sa), "segments count from one");
        sa.rmpp = RmppHeader::data(1, u32::MAX, RmppFlags::LAST);
        assert!(unchanged(&sa), "an impossible length");
        sa.rmpp = RmppHeader::data(u32::MAX, 0, RmppFlags::default());
        assert!(!unchanged(&sa), "a table of any length");
        sa.header.attribute_id = AttributeId::NODE_RECORD;
        assert!(unchanged(&sa), "another attribute");
    }
}
