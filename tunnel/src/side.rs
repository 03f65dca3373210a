//! One type for each side of a rewrite.

use core::fmt;

use hca_api::FunctionId;
use ib_wire::{CommId, PKeyIndex, Tid};

/// A virtual function: 1 to [`VfId::MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VfId(u16);

impl VfId {
    /// The largest number that the PF's machines are sized for. A port's GID table gives 255 of them
    /// an alias GUID of their own (GUIDCap is eight bits wide, and entry 0 is the PF's).
    pub const MAX: u16 = 1024;

    /// The PF's own software, which shares its special QPs with the VFs like one of them. No VF: never
    /// made by [`VfId::new`].
    pub const PF: Self = Self(0);

    /// Makes the number, if it is in range.
    #[must_use]
    pub const fn new(value: u16) -> Option<Self> {
        if value >= 1 && value <= Self::MAX {
            Some(Self(value))
        } else {
            None
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The number as an index into tables that have a place for the PF at 0.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl From<VfId> for FunctionId {
    fn from(vf: VfId) -> Self {
        Self(vf.0)
    }
}

impl fmt::Display for VfId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&FunctionId::from(*self), f)
    }
}

impl fmt::Debug for VfId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! side {
    ($(#[$meta:meta])* $name:ident($inner:ty)) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);
    };
}

side! {
    /// A transaction id as the VF wrote it and must get it back.
    VfTid(Tid)
}
side! {
    /// A transaction id as the PF puts it on the wire.
    WireTid(Tid)
}
side! {
    /// A communication id that the VF chose.
    VfCommId(CommId)
}
side! {
    /// The communication id that stands for a VF's on the wire.
    WireCommId(CommId)
}
side! {
    /// A communication id that the peer on the wire chose; nobody rewrites it.
    RemoteCommId(CommId)
}
side! {
    /// An index into a VF's own P_Key table.
    VirtualPKeyIndex(PKeyIndex)
}
side! {
    /// An index into the port's P_Key table.
    PhysicalPKeyIndex(PKeyIndex)
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn vf_numbers_start_at_one_and_end_at_1024() {
        assert_eq!(VfId::new(0), None);
        assert_eq!(VfId::new(1).map(VfId::get), Some(1));
        assert_eq!(VfId::new(1024).map(VfId::get), Some(1024));
        assert_eq!(VfId::new(1025), None);
    }

    #[test]
    fn a_vf_is_its_function_by_number_index_and_name() {
        let vf = VfId::new(7).unwrap();
        assert_eq!((vf.get(), vf.index()), (7, 7));
        assert_eq!(VfId::PF.index(), 0);
        assert_eq!(FunctionId::from(vf), FunctionId(7));
        assert_eq!(vf.to_string(), FunctionId(7).to_string());
        assert_eq!(std::format!("{vf:?}"), vf.to_string());
        assert!(!vf.to_string().is_empty());
    }
}
