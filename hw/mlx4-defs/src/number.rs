//! Numbers of objects, and the values that several contexts share.

ib_wire::u24_newtype! {
    /// The number of a completion queue (24 bits).
    Cqn, "0x{:06x}"
}

ib_wire::u24_newtype! {
    /// The number of a shared receive queue (24 bits).
    Srqn, "0x{:06x}"
}

ib_wire::u24_newtype! {
    /// The index of a memory region in the protection table (24 bits). A key has it above its variant.
    MptIndex, "0x{:06x}"
}

ib_wire::u24_newtype! {
    /// The index of a UAR: which page of BAR 2 (24 bits).
    Uar, "0x{:06x}"
}

/// The number of an event queue. A device has far fewer than 32 bits can name, and a driver can name any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Eqn(pub u32);

ib_wire::impl_bits! {
    Eqn, u32, Eqn, |Eqn(number)| number;
}

/// The number of a protection domain (17 bits). The driver chooses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pdn(pub u32);

ib_wire::impl_bits! {
    Pdn, u32, Pdn, |Pdn(number)| number;
}

/// The index of an entry of the memory translation table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MttIndex(pub u64);

/// The index of a counter of traffic.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::KnownLayout,
    zerocopy::Immutable,
    zerocopy::Unaligned,
)]
#[repr(transparent)]
pub struct CounterIndex(pub u8);

transparent! {
    /// The size of the pages behind a queue, in a context (`log_page_size`).
    pub struct LogPageSize(pub u8);
}

impl LogPageSize {
    /// Log2 of the smallest page (`MLX4_ICM_PAGE_SHIFT`), which has the value 0.
    pub const MIN_SHIFT: u32 = 12;

    /// The value for pages of `1 << shift` bytes; `None` for what the six bits cannot say.
    #[must_use]
    pub fn from_shift(shift: u32) -> Option<Self> {
        let value = u8::try_from(shift.checked_sub(Self::MIN_SHIFT)?).ok()?;
        (value < 0x40).then_some(Self(value))
    }

    /// Log2 of the bytes of a page: 12 to 75. The upper two bits of the field count for nothing.
    #[must_use]
    pub fn shift(self) -> u32 {
        u32::from(self.0 & 0x3f) + Self::MIN_SHIFT
    }
}

/// The DMA address of a doorbell record (`db_rec_addr`).
pub type DoorbellRecordAddr = zerocopy::network_endian::U64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_size_counts_from_4_kib() {
        assert_eq!(LogPageSize(0).shift(), 12);
        assert_eq!(LogPageSize(0xc0 | 19).shift(), 31);
        assert_eq!(LogPageSize::from_shift(31), Some(LogPageSize(19)));
        assert_eq!(LogPageSize::from_shift(11), None);
        assert_eq!(LogPageSize::from_shift(76), None);
    }
}
