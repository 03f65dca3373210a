//! What is asked, and whether an answer is about that.

use ib_wire::Guid;
use ib_wire::mad::{AttributeId, Method};
use ib_wire::sa::{ComponentMask, PathRecord, SaMad};
use zerocopy::network_endian::U64;
use zerocopy::transmute;

/// A request for one path, with everything in it that its answer can depend on: the component mask
/// and all 64 bytes of the record.
///
/// Bytes that the mask does not mean are told apart too. Software asks again with the same bytes, and
/// an SA that repeats such a byte in its answer cannot carry it from one VF to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathRequest {
    mask: ComponentMask,
    record: PathRecord,
}

impl PathRequest {
    /// The request in a MAD; `None` if it is another one, or one whose answer is not kept.
    pub(super) fn of(mad: &SaMad) -> Option<Self> {
        let header = &mad.header;
        if header.method != Method::GET || header.attribute_id != AttributeId::PATH_RECORD {
            return None;
        }
        let mask = mad.component_mask;
        let record: PathRecord = mad.record();
        let is_plain = header.status.get() == 0
            && header.attribute_modifier.get() == 0
            && !mad.rmpp.is_active()
            && mad.sm_key.get() == 0
            && mad.data[size_of::<PathRecord>()..]
                .iter()
                .fold(0, |bits, byte| bits | byte)
                == 0;
        let has_ends = mask.contains(PathRecord::SGID | PathRecord::DGID);
        (is_plain && has_ends && !record.dgid.is_multicast()).then_some(Self { mask, record })
    }

    /// The request as words, for its hash; the last is zero.
    pub(super) fn words(&self) -> [u64; 10] {
        let record: [U64; 8] = transmute!(self.record);
        let mut words = [0; 10];
        words[0] = self.mask.get();
        for (word, bytes) in words[1..].iter_mut().zip(record) {
            *word = bytes.get();
        }
        words
    }

    /// Whether a path is what was asked for: it agrees in every component that says which path is
    /// meant, rather than what it must be able to do.
    pub(super) fn is_answered_by(&self, path: &PathRecord) -> bool {
        let asked = &self.record;
        let agrees = |component, same: bool| same || !self.mask.contains(component);
        agrees(PathRecord::SGID, path.sgid == asked.sgid)
            && agrees(PathRecord::DGID, path.dgid == asked.dgid)
            && agrees(PathRecord::SLID, path.slid == asked.slid)
            && agrees(PathRecord::DLID, path.dlid == asked.dlid)
            && agrees(PathRecord::PKEY, path.pkey.base() == asked.pkey.base())
            && agrees(PathRecord::SL, path.sl() == asked.sl())
    }

    /// The ports at the path's ends.
    pub(super) const fn ends(&self) -> [Guid; 2] {
        [
            self.record.sgid.interface_id(),
            self.record.dgid.interface_id(),
        ]
    }
}
