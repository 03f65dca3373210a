//! Device management (IBA 16.3): the I/O units of a node and the services of their controllers.

use zerocopy::network_endian::{U16, U32};

use crate::mad::{AttributeId, AttributeModifier, MadHeader, MadStatus};
use crate::{Guid, ServiceId};

/// Attribute ids of class device management (IBA 16.3.3, table of attributes).
impl AttributeId {
    /// IOUnitInfo.
    pub const IO_UNIT_INFO: Self = Self::new(0x0010);
    /// IOControllerProfile; the modifier is the slot.
    pub const IO_CONTROLLER_PROFILE: Self = Self::new(0x0011);
    /// ServiceEntries; the modifier is made by [`ServiceEntries::modifier`].
    pub const SERVICE_ENTRIES: Self = Self::new(0x0012);
    /// DiagnosticTimeout.
    pub const DIAGNOSTIC_TIMEOUT: Self = Self::new(0x0020);
    /// PrepareToTest.
    pub const PREPARE_TO_TEST: Self = Self::new(0x0021);
    /// TestDeviceOnce.
    pub const TEST_DEVICE_ONCE: Self = Self::new(0x0022);
    /// TestDeviceLoop.
    pub const TEST_DEVICE_LOOP: Self = Self::new(0x0023);
    /// DiagCode.
    pub const DIAG_CODE: Self = Self::new(0x0024);
}

/// Status values of class device management (IBA 16.3.1).
impl MadStatus {
    /// The controller does not respond.
    pub const DM_NO_IOC_RESPONSE: Self = Self::new(0x0100);
    /// There are no such service entries.
    pub const DM_NO_SERVICE_ENTRIES: Self = Self::new(0x0200);
    /// The controller failed.
    pub const DM_IOC_FAILURE: Self = Self::new(0x8000);
}

layout! {
    /// A MAD of class device management (IBA 16.3.1).
    mad DevMgtMad {
        /// The common header.
        pub header: MadHeader,
        /// Reserved.
        pub reserved: [u8; 40],
        /// The attribute.
        pub data: [u8; 192],
    }
}

open_enum! {
    /// What a slot of an I/O unit holds (IBA 16.3.3.3). Four bits.
    SlotState(u8) {
        /// The slot is empty.
        NOT_INSTALLED = 0x0,
        /// The slot holds a controller.
        INSTALLED = 0x1,
        /// The unit has no such slot.
        DOES_NOT_EXIST = 0xf,
    }
}

layout! {
    /// IOUnitInfo (IBA 16.3.3.3). 132 bytes.
    IoUnitInfo, 132 {
        /// Counts changes of the controller list.
        pub change_id: U16,
        /// Slots.
        pub max_controllers: u8,
        /// Option ROM (1 bit), DiagDeviceID (1), reserved (6).
        pub diag_and_rom: u8,
        /// The states of 256 slots, four bits each, slot 1 first.
        pub controller_list: [u8; 128],
    }
}

impl IoUnitInfo {
    bit_fields! {
        /// Whether the unit has an option ROM.
        option_rom, set_option_rom: bool = diag_and_rom >> 7, 1;
        /// Whether the unit supports diagnostics.
        diag_device_id, set_diag_device_id: bool = diag_and_rom >> 6, 1;
    }

    /// The state of a slot, counted from 1.
    #[must_use]
    pub fn slot(&self, slot: u8) -> SlotState {
        let Some(index) = usize::from(slot).checked_sub(1) else {
            return SlotState::DOES_NOT_EXIST;
        };
        let pair = self.controller_list[index / 2];
        SlotState::new(if index % 2 == 0 {
            pair >> 4
        } else {
            pair & 0xf
        })
    }

    /// Sets the state of a slot, counted from 1; slot 0 does not exist and is left out.
    pub fn set_slot(&mut self, slot: u8, state: SlotState) {
        let Some(index) = usize::from(slot).checked_sub(1) else {
            return;
        };
        let pair = &mut self.controller_list[index / 2];
        let state = state.get() & 0xf;
        *pair = if index % 2 == 0 {
            state << 4 | *pair & 0xf
        } else {
            *pair & 0xf0 | state
        };
    }
}

layout! {
    /// IOControllerProfile (IBA 16.3.3.4). 128 bytes.
    IoControllerProfile, 128 {
        /// GUID of the controller.
        pub guid: Guid,
        /// Vendor (24 bits).
        pub vendor_id: [u8; 3],
        /// Reserved.
        pub reserved1: u8,
        /// Device, in the vendor's numbers.
        pub device_id: U32,
        /// Device version.
        pub device_version: U16,
        /// Reserved.
        pub reserved2: [u8; 2],
        /// Vendor of the enclosing system (24 bits).
        pub subsystem_vendor_id: [u8; 3],
        /// Reserved.
        pub reserved3: u8,
        /// Subsystem, in that vendor's numbers.
        pub subsystem_id: U32,
        /// I/O class; 0xffff is the vendor's.
        pub io_class: U16,
        /// I/O subclass.
        pub io_subclass: U16,
        /// Protocol.
        pub protocol: U16,
        /// Protocol version.
        pub protocol_version: U16,
        /// Reserved.
        pub reserved4: [u8; 4],
        /// Send messages that can be outstanding.
        pub send_message_depth: U16,
        /// Reserved.
        pub reserved5: u8,
        /// RDMA reads that can be outstanding.
        pub rdma_read_depth: u8,
        /// Largest send message, in bytes.
        pub send_message_size: U32,
        /// Largest RDMA transfer, in bytes.
        pub rdma_transfer_size: U32,
        /// Operations: bits [`IoControllerProfile::SEND_TO`] and following.
        pub operations: u8,
        /// Reserved.
        pub reserved6: u8,
        /// Service entries.
        pub service_entries: u8,
        /// Reserved.
        pub reserved7: [u8; 9],
        /// Name, UTF-8, zero-terminated.
        pub id_string: [u8; 64],
    }
}

impl IoControllerProfile {
    /// Sends to the controller.
    pub const SEND_TO: u8 = 0x01;
    /// Sends from the controller.
    pub const SEND_FROM: u8 = 0x02;
    /// RDMA reads to the controller.
    pub const READ_TO: u8 = 0x04;
    /// RDMA reads from the controller.
    pub const READ_FROM: u8 = 0x08;
    /// RDMA writes to the controller.
    pub const WRITE_TO: u8 = 0x10;
    /// RDMA writes from the controller.
    pub const WRITE_FROM: u8 = 0x20;
    /// Atomics to the controller.
    pub const ATOMIC_TO: u8 = 0x40;
    /// Atomics from the controller.
    pub const ATOMIC_FROM: u8 = 0x80;
}

layout! {
    /// One service of a controller (IBA 16.3.3.5). 48 bytes.
    ServiceEntry, 48 {
        /// Name, UTF-8, zero-terminated.
        pub name: [u8; 40],
        /// Service id.
        pub id: ServiceId,
    }
}

layout! {
    /// ServiceEntries (IBA 16.3.3.5): up to four services. 192 bytes.
    ServiceEntries, 192 {
        /// The entries.
        pub entries: [ServiceEntry; 4],
    }
}

impl ServiceEntries {
    /// The modifier that asks for the entries `first` to `last` of the controller in `slot`:
    /// slot in the upper half, then last, then first.
    #[must_use]
    pub const fn modifier(slot: u8, first: u8, last: u8) -> AttributeModifier {
        AttributeModifier::new((slot as u32) << 16 | (last as u32) << 8 | first as u32)
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn fields_stand_at_their_offsets() {
        for (offset, expected) in [
            (offset_of!(DevMgtMad, data), 64),
            (offset_of!(IoUnitInfo, diag_and_rom), 3),
            (offset_of!(IoUnitInfo, controller_list), 4),
            (offset_of!(IoControllerProfile, vendor_id), 8),
            (offset_of!(IoControllerProfile, device_id), 12),
            (offset_of!(IoControllerProfile, device_version), 16),
            (offset_of!(IoControllerProfile, subsystem_vendor_id), 20),
            (offset_of!(IoControllerProfile, io_class), 28),
            (offset_of!(IoControllerProfile, protocol_version), 34),
            (offset_of!(IoControllerProfile, send_message_depth), 40),
            (offset_of!(IoControllerProfile, rdma_read_depth), 43),
            (offset_of!(IoControllerProfile, send_message_size), 44),
            (offset_of!(IoControllerProfile, rdma_transfer_size), 48),
            (offset_of!(IoControllerProfile, operations), 52),
            (offset_of!(IoControllerProfile, service_entries), 54),
            (offset_of!(IoControllerProfile, id_string), 64),
            (offset_of!(ServiceEntry, id), 40),
        ] {
            assert_eq!(offset, expected);
        }
    }

    #[test]
    fn a_unit_with_two_slots_is_encoded_byte_for_byte() {
        let mut unit = IoUnitInfo {
            change_id: U16::new(2),
            max_controllers: 2,
            ..IoUnitInfo::default()
        };
        unit.set_option_rom(true);
        unit.set_slot(1, SlotState::INSTALLED);
        unit.set_slot(3, SlotState::DOES_NOT_EXIST);
        assert_eq!(unit.as_bytes()[..6], [0, 2, 2, 0x80, 0x10, 0xf0]);
        assert_eq!(unit.slot(2), SlotState::NOT_INSTALLED);
        assert_eq!(unit.slot(0), SlotState::DOES_NOT_EXIST);
    }

    #[test]
    fn a_modifier_names_slot_and_range() {
        assert_eq!(ServiceEntries::modifier(3, 1, 2).get(), 0x0003_0201);
    }

    proptest! {
        #[test]
        fn setting_a_slot_changes_that_slot_only(
            bytes in prop::collection::vec(any::<u8>(), 132), slot in 1_u8.., state in 0_u8..16
        ) {
            let before = IoUnitInfo::read_from_bytes(&bytes).expect("132 bytes");
            let mut unit = before;
            unit.set_slot(slot, SlotState::new(state));
            for other in 1..=u8::MAX {
                let expected = if other == slot { SlotState::new(state) } else { before.slot(other) };
                prop_assert_eq!(unit.slot(other), expected);
            }
        }
    }
}
