//! The map of BAR 2.
//!
//! The page at 0 holds the communication channel ([`crate::comm`]). The pages below
//! [`RESERVED_UARS`] take the doorbells of event queues; from there on each page is a UAR, the
//! doorbell page of one user. All registers are big endian, and none but the channel's is read.

/// Bytes of a UAR page.
pub const UAR_SIZE: u64 = 4096;

use crate::{Eqn, Uar};

/// UAR pages that hold no user's doorbells (`mlx4_get_num_reserved_uar`).
pub const RESERVED_UARS: u32 = 128;

/// Offset of the send doorbell in a UAR page (`MLX4_SEND_DOORBELL`), 32 bits.
pub const SEND_DOORBELL: u64 = 0x14;

/// Offset of the CQ doorbell in a UAR page (`MLX4_CQ_DOORBELL`), 64 bits, or 32 bits twice.
pub const CQ_DOORBELL: u64 = 0x20;

/// Offset of the first event queue's doorbell in a UAR page (`mlx4_get_eq_uar`), 32 bits.
pub const EQ_DOORBELLS: u64 = 0x800;

/// Event queues whose doorbells are in one page.
pub const EQS_PER_PAGE: u32 = 4;

/// Bytes from one event queue's doorbell to the next one's.
pub const EQ_DOORBELL_STRIDE: u64 = 8;

/// A register that a store into BAR 2 can hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// A register of the communication channel, by its offset.
    Comm(u64),
    /// The doorbell of an event queue.
    Eq {
        /// Number of the event queue.
        eqn: Eqn,
    },
    /// The send doorbell of a UAR.
    Send {
        /// Index of the UAR.
        uar: Uar,
    },
    /// The CQ doorbell of a UAR, or, with `second`, its second half.
    Cq {
        /// Index of the UAR.
        uar: Uar,
        /// Whether the offset is that of the second word.
        second: bool,
    },
}

impl Register {
    /// The register at an offset of BAR 2, if one starts there.
    #[must_use]
    pub fn at(offset: u64) -> Option<Self> {
        let uar = u32::try_from(offset / UAR_SIZE).ok()?;
        let in_page = offset % UAR_SIZE;
        if uar == 0 && in_page < crate::comm::REGISTERS_END {
            return Some(Self::Comm(in_page));
        }
        if uar < RESERVED_UARS {
            let slot = in_page.checked_sub(EQ_DOORBELLS)?;
            let index = u32::try_from(slot / EQ_DOORBELL_STRIDE).ok()?;
            return (slot.is_multiple_of(EQ_DOORBELL_STRIDE) && index < EQS_PER_PAGE).then_some(
                Self::Eq {
                    eqn: Eqn(uar * EQS_PER_PAGE + index),
                },
            );
        }
        let uar = Uar::new(uar)?;
        match in_page {
            SEND_DOORBELL => Some(Self::Send { uar }),
            CQ_DOORBELL => Some(Self::Cq { uar, second: false }),
            CQ_DOORBELL_SECOND => Some(Self::Cq { uar, second: true }),
            _ => None,
        }
    }

    /// The offset of the register in BAR 2.
    #[must_use]
    pub const fn offset(self) -> u64 {
        match self {
            Self::Comm(offset) => offset,
            Self::Eq { eqn } => {
                (eqn.0 / EQS_PER_PAGE) as u64 * UAR_SIZE
                    + EQ_DOORBELLS
                    + (eqn.0 % EQS_PER_PAGE) as u64 * EQ_DOORBELL_STRIDE
            }
            Self::Send { uar } => uar.get() as u64 * UAR_SIZE + SEND_DOORBELL,
            Self::Cq { uar, second } => {
                uar.get() as u64 * UAR_SIZE
                    + if second {
                        CQ_DOORBELL_SECOND
                    } else {
                        CQ_DOORBELL
                    }
            }
        }
    }
}

const CQ_DOORBELL_SECOND: u64 = CQ_DOORBELL + 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_found_at_their_offsets() {
        let registers = [
            (0x0, Register::Comm(0)),
            (0xc, Register::Comm(0xc)),
            (0x800, Register::Eq { eqn: Eqn(0) }),
            (0x1800, Register::Eq { eqn: Eqn(4) }),
            (0x7_f818, Register::Eq { eqn: Eqn(511) }),
            (
                0x8_0014,
                Register::Send {
                    uar: Uar::from_low_bits(128),
                },
            ),
            (
                0x8_1020,
                Register::Cq {
                    uar: Uar::from_low_bits(129),
                    second: false,
                },
            ),
            (
                0x8_1024,
                Register::Cq {
                    uar: Uar::from_low_bits(129),
                    second: true,
                },
            ),
        ];
        for (offset, register) in registers {
            assert_eq!(Register::at(offset), Some(register), "0x{offset:x}");
            assert_eq!(register.offset(), offset);
        }
    }

    #[test]
    fn offsets_between_registers_hit_none() {
        for offset in [
            0x10,
            0x804,
            0x820,
            0x1014,
            0x8_0000,
            0x8_0018,
            0x8_0800,
            u64::MAX,
        ] {
            assert_eq!(Register::at(offset), None, "0x{offset:x}");
        }
    }
}
