//! Tables of the SA, which the protocol has no means to carry: its clients cut the answer at 256 bytes and
//! send it without an RMPP header (RMPP active, but neither version, type nor segment number).

use ib_wire::mad::{MAD_SIZE, Mad, MadStatus, MgmtClass};
use ib_wire::rmpp::{RmppFlags, RmppHeader, RmppType};
use ib_wire::sa::{SA_DATA_SIZE, SaMad};

/// Bytes in front of the records.
const HEADERS: usize = MAD_SIZE - SA_DATA_SIZE;

/// Bytes behind the RMPP header that belong to the class (IBA 15.2.1.1).
const CLASS_HEADER: usize = 20;

/// Whether a MAD of the SA's class only steers an RMPP transfer.
pub(super) fn is_control(mad: &Mad) -> bool {
    let sa: &SaMad = mad.view();
    mad.header.mgmt_class == MgmtClass::SUBN_ADM
        && sa.rmpp.is_active()
        && sa.rmpp.rmpp_type != RmppType::DATA
}

/// Makes an answer that was meant to be an RMPP transfer a transfer of one segment, if all of it is
/// there: `length` is less than a MAD's then. If not, it is refused in the SA's name.
pub(super) fn make_whole(mad: &mut Mad, length: usize) {
    let header = mad.header;
    if header.mgmt_class != MgmtClass::SUBN_ADM || !header.method.is_response() {
        return;
    }
    let sa: &mut SaMad = mad.view_mut();
    if !sa.rmpp.is_active() || sa.rmpp.version != 0 || header.status.get() != 0 {
        return;
    }
    let data = length.saturating_sub(HEADERS);
    if length < MAD_SIZE {
        let flags = RmppFlags::FIRST.union(RmppFlags::LAST);
        let payload = u32::try_from(CLASS_HEADER + data).unwrap_or(0);
        sa.rmpp = RmppHeader::data(1, payload, flags);
    } else {
        sa.rmpp = RmppHeader::default();
        sa.header.status = MadStatus::SA_NO_RESOURCES;
        sa.data = [0; SA_DATA_SIZE];
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::mad::Method;
    use ib_wire::sa::{ComponentMask, PathRecord};
    use ib_wire::{Lid, Tid};

    use super::*;

    /// An answer with a table as the stock client library sends it.
    fn table() -> Mad {
        let record = PathRecord {
            dlid: Lid::new(3),
            ..PathRecord::default()
        };
        let mut sa = SaMad::new(Method::GET_TABLE_RESP, ComponentMask::NONE, &record);
        sa.header.tid = Tid::new(1);
        sa.rmpp.resp_time_and_flags = 1;
        Mad::from_layout(&sa)
    }

    #[test]
    fn a_table_that_is_all_there_becomes_a_transfer_of_one_segment() {
        let mut mad = table();
        make_whole(&mut mad, HEADERS + 64);
        let sa: &SaMad = mad.view();
        let flags = RmppFlags::FIRST.union(RmppFlags::LAST);
        assert_eq!(sa.rmpp, RmppHeader::data(1, 84, flags));
        assert_eq!(sa.record::<PathRecord>().dlid, Lid::new(3));
        assert!(!is_control(&mad));
    }

    #[test]
    fn a_table_that_may_have_been_cut_is_refused() {
        let mut mad = table();
        make_whole(&mut mad, MAD_SIZE);
        assert_eq!(mad.header.status, MadStatus::SA_NO_RESOURCES);
        assert!(!mad.view::<SaMad>().rmpp.is_active());
    }

    #[test]
    fn a_single_record_and_another_class_stay_as_they_are() {
        let mut single = table();
        single.header.method = Method::GET_RESP;
        single.view_mut::<SaMad>().rmpp = RmppHeader::default();
        let mut other = table();
        other.header.mgmt_class = MgmtClass::COM_MGT;
        for mut mad in [single, other] {
            let before = mad;
            make_whole(&mut mad, MAD_SIZE);
            assert_eq!(mad, before);
        }
    }

    #[test]
    fn acknowledgements_are_control() {
        let mut mad = table();
        mad.view_mut::<SaMad>().rmpp = RmppHeader::ack(1, 1);
        assert!(is_control(&mad));
    }
}
