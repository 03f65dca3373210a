//! Completion queues: contexts, doorbell records, doorbells.

use ib_wire::bit_fields;
use zerocopy::network_endian::{U16, U32};

use crate::mtt::MttBase;
use crate::{Cqn, DoorbellRecordAddr, LogPageSize, Uar};

layout! {
    /// The input of [`crate::Opcode::SW2HW_CQ`] and [`crate::Opcode::MODIFY_CQ`] (`struct mlx4_cq_context`).
    ///
    /// To resize, the driver fills in the number of entries, the page size and the pages; to moderate,
    /// the period and the count.
    mailbox CqContext, 64 {
        /// See the accessors.
        0x00 pub flags: U32,
        /// Reserved.
        0x04 pub reserved0: [u8; 6],
        /// Where the queue begins in its first page; drivers begin at 0.
        0x0a pub page_offset: U16,
        /// See [`Self::log_entries`].
        0x0c pub log_size: u8,
        /// The UAR whose doorbell arms the queue.
        0x0d pub uar: Uar,
        /// Moderation: microseconds.
        0x10 pub period: U16,
        /// Moderation: completions.
        0x12 pub max_count: U16,
        /// Reserved.
        0x14 pub reserved1: [u8; 3],
        /// The event queue for completion events.
        0x17 pub comp_eqn: u8,
        /// Size of the pages.
        0x18 pub log_page_size: LogPageSize,
        /// Reserved.
        0x19 pub reserved2: [u8; 2],
        /// The pages.
        0x1b pub mtt_base: MttBase,
        /// Index at the last event. Written by the device.
        0x20 pub last_notified_index: U32,
        /// Index behind the last solicited completion. Written by the device.
        0x24 pub solicit_producer_index: U32,
        /// Entries that the driver has taken. Written by the device.
        0x28 pub consumer_index: U32,
        /// Entries that the device has written. Written by the device.
        0x2c pub producer_index: U32,
        /// Reserved.
        0x30 pub reserved3: [u8; 8],
        /// Address of the [`CqDoorbellRecord`].
        0x38 pub doorbell_record: DoorbellRecordAddr,
    }
}

impl CqContext {
    bit_fields! {
        /// Completions carry a time stamp; Ethernet only.
        timestamp, set_timestamp: bool = flags >> 19, 1;
        /// The queue has one entry that is overwritten; Ethernet only.
        collapsed, set_collapsed: bool = flags >> 18, 1;
        /// Log2 of the number of entries.
        log_entries, set_log_entries: u8 = log_size >> 0, 5;
    }
}

/// Op modifier of [`crate::Opcode::SW2HW_CQ`]: the driver has given the entries to the device already.
pub const SW2HW_INITIALISED: u8 = 1;

/// Op modifier of [`crate::Opcode::MODIFY_CQ`]: resize.
pub const MODIFY_RESIZE: u8 = 0;

/// Op modifier of [`crate::Opcode::MODIFY_CQ`]: set the moderation.
pub const MODIFY_MODERATION: u8 = 1;

ib_wire::open_enum! {
    /// When an armed queue makes an event (`MLX4_CQ_DB_REQ_NOT_SOL`, `MLX4_CQ_DB_REQ_NOT`).
    ArmCommand(u8) {
        /// At the next completion with the solicited bit, or with an error.
        SOLICITED = 1,
        /// At the next completion.
        NEXT = 2,
    }
}

ib_wire::impl_bits! {
    ArmCommand, u8, ArmCommand::new, ArmCommand::get;
}

layout! {
    /// What the driver writes to the CQ doorbell of a UAR (`mlx4_cq_arm`).
    CqDoorbell, 8 {
        /// See the accessors.
        0x0 pub word: U32,
        /// See [`Self::consumer_index`].
        0x4 pub index: U32,
    }
}

impl CqDoorbell {
    /// The doorbell of a queue.
    #[must_use]
    pub fn new(cqn: Cqn, command: ArmCommand, serial: u8, consumer_index: u32) -> Self {
        let mut doorbell = Self::default();
        doorbell.set_serial(serial);
        doorbell.set_command(command);
        doorbell.word.set(doorbell.word.get() | cqn.get());
        doorbell.set_consumer_index(consumer_index);
        doorbell
    }

    /// The queue.
    #[must_use]
    pub fn cqn(&self) -> Cqn {
        Cqn::from_low_bits(self.word.get())
    }

    bit_fields! {
        /// Counts the events that the driver has seen, modulo 4.
        serial, set_serial: u8 = word >> 28, 2;
        /// When to make an event.
        command, set_command: ArmCommand = word >> 24, 3;
        /// Entries that the driver has taken, modulo 2^24.
        consumer_index, set_consumer_index: u32 = index >> 0, 24;
    }
}

layout! {
    /// The doorbell record of a completion queue, in guest memory.
    CqDoorbellRecord, 8 {
        /// See [`Self::consumer_index`].
        0x0 pub set_ci: U32,
        /// See the accessors.
        0x4 pub arm: U32,
    }
}

impl CqDoorbellRecord {
    bit_fields! {
        /// Entries that the driver has taken, modulo 2^24.
        consumer_index, set_consumer_index: u32 = set_ci >> 0, 24;
        /// As in the doorbell that follows.
        arm_serial, set_arm_serial: u8 = arm >> 28, 2;
        /// As in the doorbell that follows.
        arm_command, set_arm_command: ArmCommand = arm >> 24, 3;
        /// As in the doorbell that follows.
        arm_consumer_index, set_arm_consumer_index: u32 = arm >> 0, 24;
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn a_doorbell_has_the_bytes_of_the_driver() {
        let cqn = Cqn::from_low_bits(0x85);
        let doorbell = CqDoorbell::new(cqn, ArmCommand::NEXT, 1, 2);
        assert_eq!(doorbell.as_bytes(), [0x12, 0, 0, 0x85, 0, 0, 0, 2]);
        assert_eq!(doorbell.cqn(), cqn);
        assert_eq!(doorbell.command(), ArmCommand::NEXT);
        assert_eq!((doorbell.serial(), doorbell.consumer_index()), (1, 2));
    }

    #[test]
    fn the_size_stands_above_the_uar() {
        let mut context = CqContext {
            uar: Uar::from_low_bits(0x82),
            ..CqContext::default()
        };
        context.set_log_entries(11);
        assert_eq!(context.as_bytes()[0xc..0x10], [11, 0, 0, 0x82]);
    }
}
