//! What a MAD is within an RMPP transfer.

use ib_wire::mad::{Mad, MgmtClass};
use ib_wire::rmpp::{RmppFlags, RmppMad, RmppType};

/// The part that a MAD plays in a multi-packet transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RmppRole {
    /// None: a request or an answer of its own.
    Single,
    /// Carries a segment.
    Data,
    /// Carries the last segment.
    Last,
    /// Acknowledges segments. Looks like a request or an answer by its method, and is neither: its
    /// sender toggles the response bit of what it acknowledges.
    Ack,
    /// Ends the transfer: STOP or ABORT.
    End,
}

impl RmppRole {
    /// The role of a MAD; only classes that use RMPP have any but [`RmppRole::Single`].
    #[must_use]
    pub fn of(mad: &Mad) -> Self {
        let class = mad.header.mgmt_class;
        let rmpp = &mad.view::<RmppMad>().rmpp;
        if !(class == MgmtClass::SUBN_ADM || class.is_vendor_oui())
            || !rmpp.is_active()
            || rmpp.is_unsegmented()
        {
            return Self::Single;
        }
        match rmpp.rmpp_type {
            RmppType::ACK => Self::Ack,
            RmppType::STOP | RmppType::ABORT => Self::End,
            _ if rmpp.flags().contains(RmppFlags::LAST) => Self::Last,
            _ => Self::Data,
        }
    }

    /// Whether the MAD only makes sense within a transfer that exists.
    #[must_use]
    pub const fn is_control(self) -> bool {
        matches!(self, Self::Ack | Self::End)
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::mad::{AttributeId, MadHeader, Method};
    use ib_wire::rmpp::{RmppHeader, RmppStatus};

    use super::*;

    fn mad(class: MgmtClass, rmpp: RmppHeader) -> Mad {
        let mut mad = Mad::new(MadHeader::new(
            class,
            Method::GET_TABLE,
            AttributeId::PATH_RECORD,
        ));
        mad.view_mut::<RmppMad>().rmpp = rmpp;
        mad
    }

    #[test]
    fn the_type_tells_the_role_where_rmpp_is_active() {
        let mut unsegmented = RmppHeader::default();
        unsegmented.set_flags(RmppFlags::ACTIVE);
        let table = [
            (RmppHeader::default(), RmppRole::Single),
            (unsegmented, RmppRole::Single),
            (RmppHeader::data(1, 20, RmppFlags::FIRST), RmppRole::Data),
            (RmppHeader::data(2, 20, RmppFlags::LAST), RmppRole::Last),
            (RmppHeader::ack(1, 64), RmppRole::Ack),
            (
                RmppHeader::end(RmppType::STOP, RmppStatus::RESOURCES_EXHAUSTED),
                RmppRole::End,
            ),
            (
                RmppHeader::end(RmppType::ABORT, RmppStatus::BAD_TYPE),
                RmppRole::End,
            ),
        ];
        for (header, role) in table {
            assert_eq!(RmppRole::of(&mad(MgmtClass::SUBN_ADM, header)), role);
            assert_eq!(RmppRole::of(&mad(MgmtClass::new(0x30), header)), role);
        }
    }

    #[test]
    fn bytes_that_look_like_rmpp_mean_nothing_in_other_classes() {
        let header = RmppHeader::ack(1, 64);
        assert_eq!(
            RmppRole::of(&mad(MgmtClass::COM_MGT, header)),
            RmppRole::Single
        );
    }
}
