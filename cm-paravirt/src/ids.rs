//! The two ids that stand at the same place in nearly every message.

use ib_wire::CommId;
use ib_wire::mad::{MadHeader, MadLayout};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The beginning of MRA, REJ, REP, RTU, DREQ, DREP, LAP and APR (IBA 12.6). REQ and SIDR_REQ have
/// the first id only; SIDR_REP has the asker's in its place.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct CmIds {
    header: MadHeader,
    /// The sender's id.
    pub(crate) local: CommId,
    /// The receiver's id.
    pub(crate) remote: CommId,
    rest: [u8; 224],
}

impl MadLayout for CmIds {}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use ib_wire::cm::{CmApr, CmDrep, CmDreq, CmLap, CmMra, CmRej, CmRep, CmRtu};

    use super::*;

    macro_rules! same_places {
        ($($layout:ident),*) => {
            $(
                assert_eq!(offset_of!($layout, local_comm_id), offset_of!(CmIds, local));
                assert_eq!(offset_of!($layout, remote_comm_id), offset_of!(CmIds, remote));
            )*
        };
    }

    #[test]
    fn eight_messages_have_their_ids_at_these_places() {
        same_places!(CmMra, CmRej, CmRep, CmRtu, CmDreq, CmDrep, CmLap, CmApr);
    }
}
