//! Event queues: contexts, the event mask, doorbells.

use ib_wire::bit_fields;
use zerocopy::network_endian::{U16, U32};

use crate::eqe::EventType;
use crate::mtt::MttBase;
use crate::{Eqn, LogPageSize};

layout! {
    /// The input of [`crate::Opcode::SW2HW_EQ`] (`struct mlx4_eq_context`).
    mailbox EqContext, 64 {
        /// See the accessors.
        0x00 pub flags: U32,
        /// Reserved.
        0x04 pub reserved0: [u8; 6],
        /// Where the queue begins in its first page; drivers begin at 0.
        0x0a pub page_offset: U16,
        /// See [`Self::log_entries`].
        0x0c pub log_eq_size: u8,
        /// Reserved.
        0x0d pub reserved1: [u8; 4],
        /// Moderation: microseconds.
        0x11 pub period: u8,
        /// Reserved.
        0x12 pub reserved2: u8,
        /// Moderation: events.
        0x13 pub max_count: u8,
        /// Reserved.
        0x14 pub reserved3: [u8; 3],
        /// The MSI-X vector to signal.
        0x17 pub vector: u8,
        /// Size of the pages.
        0x18 pub log_page_size: LogPageSize,
        /// Reserved.
        0x19 pub reserved4: [u8; 2],
        /// The pages.
        0x1b pub mtt_base: MttBase,
        /// Reserved.
        0x20 pub reserved5: [u8; 8],
        /// Entries that the driver has taken.
        0x28 pub consumer_index: U32,
        /// Entries that the device has written.
        0x2c pub producer_index: U32,
        /// Reserved.
        0x30 pub reserved6: [u8; 16],
    }
}

impl EqContext {
    bit_fields! {
        /// Ownership; 0 is the value for the device's (`MLX4_EQ_STATUS_OK`).
        status, set_status: u8 = flags >> 28, 4;
        /// Events of one kind may be merged (`MLX4_EQ_FLAG_EC`).
        collapse, set_collapse: bool = flags >> 18, 1;
        /// A full queue is overwritten (`MLX4_EQ_FLAG_OI`).
        ignore_overrun, set_ignore_overrun: bool = flags >> 17, 1;
        /// Whether the next event interrupts.
        state, set_state: EqState = flags >> 8, 4;
        /// Log2 of the number of entries.
        log_entries, set_log_entries: u8 = log_eq_size >> 0, 5;
    }
}

ib_wire::open_enum! {
    /// Whether the next event interrupts (`MLX4_EQ_STATE_*`).
    EqState(u8) {
        /// It does.
        ARMED = 9,
        /// It does not: an interrupt was raised, and the driver has not armed the queue since.
        FIRED = 10,
        /// Every event does.
        ALWAYS_ARMED = 11,
    }
}

ib_wire::impl_bits! {
    EqState, u8, EqState::new, EqState::get;
}

layout! {
    /// What the driver writes to an event queue's doorbell (`eq_set_ci`).
    EqDoorbell, 4 {
        /// The bits.
        0x0 pub word: U32,
    }
}

impl EqDoorbell {
    /// The doorbell's word. Of the index the low 24 bits count.
    #[must_use]
    pub fn new(consumer_index: u32, arm: bool) -> Self {
        let mut doorbell = Self::default();
        doorbell.set_consumer_index(consumer_index);
        doorbell.set_arm(arm);
        doorbell
    }

    bit_fields! {
        /// The next event shall interrupt.
        arm, set_arm: bool = word >> 31, 1;
        /// Entries that the driver has taken, modulo 2^24.
        consumer_index, set_consumer_index: u32 = word >> 0, 24;
    }
}

/// The input of [`crate::Opcode::MAP_EQ`], an immediate: a bit for each event type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventMask(pub u64);

impl EventMask {
    /// The mask with a type added. Types beyond 63 have no bit.
    #[must_use]
    pub const fn with(self, event: EventType) -> Self {
        Self(self.0 | Self::bit(event))
    }

    /// Whether a type is in the mask.
    #[must_use]
    pub const fn contains(self, event: EventType) -> bool {
        self.0 & Self::bit(event) != 0
    }

    const fn bit(event: EventType) -> u64 {
        if event.get() < 64 {
            1 << event.get()
        } else {
            0
        }
    }
}

layout! {
    /// The input modifier of [`crate::Opcode::MAP_EQ`].
    MapEq, 4 {
        /// The bits.
        0x0 pub word: U32,
    }
}

impl MapEq {
    bit_fields! {
        /// Take the assignment back.
        unmap, set_unmap: bool = word >> 31, 1;
        /// Number of the event queue.
        eqn, set_eqn: Eqn = word >> 0, 10;
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn a_doorbell_has_the_bytes_of_the_driver() {
        assert_eq!(EqDoorbell::new(5, true).as_bytes(), [0x80, 0, 0, 5]);
        assert_eq!(
            EqDoorbell::new(0x1ff_ffff, false).as_bytes(),
            [0, 0xff, 0xff, 0xff]
        );
    }

    #[test]
    fn an_armed_queue_has_the_flags_of_the_driver() {
        let mut context = EqContext::default();
        context.set_state(EqState::ARMED);
        assert_eq!(context.flags.get(), 0x900);
        assert_eq!(context.state(), EqState::ARMED);
    }

    #[test]
    fn a_mask_has_no_bit_for_the_type_none() {
        let mask = EventMask::default()
            .with(EventType::CMD)
            .with(EventType::NONE);
        assert_eq!(mask, EventMask(1 << 10));
        assert!(mask.contains(EventType::CMD) && !mask.contains(EventType::NONE));
    }
}
