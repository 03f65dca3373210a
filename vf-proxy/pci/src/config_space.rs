//! Configuration space: a type 0 header, a PCI Express endpoint capability and an MSI-X capability.

use core::fmt;

use super::msix::{PBA_OFFSET, TABLE_OFFSET};
use crate::{Bar, registers};

/// Bytes of configuration space.
const SIZE: usize = 4096;

/// Command register bits that can be set: memory space, bus master, parity error response, SERR#,
/// interrupt disable.
const COMMAND_WRITABLE: u16 = 0x0546;
/// Status register: there is a capability list.
const STATUS_CAPABILITIES: u16 = 0x0010;

/// The PCI Express capability (PCI Express Base 3.0, 7.8).
mod pcie {
    use crate::registers::DEVICE_CONTROL as CONTROL;

    pub(super) const AT: usize = 0x60;
    /// Version 2, endpoint.
    pub(super) const CAPABILITIES: u16 = 0x0002;
    pub(super) const DEVICE_CAPABILITIES: usize = AT + 0x04;
    /// Role-based error reporting, payloads up to 256 bytes, function-level reset.
    pub(super) const CAN_DO: u32 = 1 << 28 | 1 << 15 | 1;
    pub(super) const DEVICE_CONTROL: usize = AT + CONTROL;
    pub(super) const CONTROL_WRITABLE: u16 = 0x7fff;
    pub(super) const LINK_CAPABILITIES: usize = AT + 0x0c;
    pub(super) const LINK_STATUS: usize = AT + 0x12;
    /// 8 lanes at 8 GT/s.
    pub(super) const LINK: u16 = 8 << 4 | 3;
    pub(super) const DEVICE_CONTROL_2: usize = AT + 0x28;
    /// Completion timeout value and disable.
    pub(super) const CONTROL_2_WRITABLE: u16 = 0x001f;
}

/// The MSI-X capability (PCI Local Bus 3.0, 6.8.2).
mod msix_capability {
    pub(super) const AT: usize = 0x9c;
    pub(super) const CONTROL: usize = AT + 2;
    pub(super) const TABLE: usize = AT + 4;
    pub(super) const PBA: usize = AT + 8;
}

/// What a function says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor ID, of the subsystem too.
    pub vendor: u16,
    /// Device ID, of the subsystem too.
    pub device: u16,
    /// Class, subclass and programming interface.
    pub class_code: [u8; 3],
}

/// What a write to configuration space asks of the function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ConfigWrite {
    /// A function-level reset.
    pub(super) reset: bool,
}

/// The registers and which of their bits can be written.
pub(super) struct ConfigSpace {
    bytes: Box<[u8; SIZE]>,
    writable: Box<[u8; SIZE]>,
    initial: Box<[u8; SIZE]>,
    placements: Vec<Placement>,
}

/// Where a base address register is, as far as its guest is not measuring it.
#[derive(Clone, Copy, Debug)]
struct Placement {
    bar: u8,
    address: u64,
    /// Halves that hold the ones which the guest wrote to learn the size: they are no address.
    is_sized: [bool; 2],
}

impl ConfigSpace {
    /// Makes the space of a function with these registers and interrupt vectors, of which there is at least one.
    /// `msix_bar` holds the table.
    pub(super) fn new(identity: &Identity, bars: &[Bar], msix_bar: u8, vectors: u16) -> Self {
        let mut space = Self {
            bytes: Box::new([0; SIZE]),
            writable: Box::new([0; SIZE]),
            initial: Box::new([0; SIZE]),
            placements: Vec::new(),
        };
        space.set(registers::VENDOR, &identity.vendor.to_le_bytes());
        space.set(registers::DEVICE, &identity.device.to_le_bytes());
        space.allow(registers::COMMAND, &COMMAND_WRITABLE.to_le_bytes());
        space.set(registers::STATUS, &STATUS_CAPABILITIES.to_le_bytes());
        let [class, subclass, interface] = identity.class_code;
        space.set(registers::CLASS, &[interface, subclass, class]);
        for bar in bars {
            space.add_bar(*bar);
        }
        space.set(registers::SUBSYSTEM_VENDOR, &identity.vendor.to_le_bytes());
        space.set(registers::SUBSYSTEM, &identity.device.to_le_bytes());
        space.allow(registers::INTERRUPT_LINE, &[0xff]);
        space.link(registers::CAPABILITIES, pcie::AT);
        space.add_pcie();
        space.link(pcie::AT + 1, msix_capability::AT);
        space.add_msix(msix_bar, vectors);
        space.initial = space.bytes.clone();
        space
    }

    fn set(&mut self, at: usize, bytes: &[u8]) {
        put(&mut self.bytes, at, bytes);
    }

    fn allow(&mut self, at: usize, mask: &[u8]) {
        put(&mut self.writable, at, mask);
    }

    fn link(&mut self, at: usize, capability: usize) {
        let [low, ..] = capability.to_le_bytes();
        self.set(at, &[low]);
    }

    fn add_bar(&mut self, bar: Bar) {
        let at = registers::BARS + 4 * usize::from(bar.index);
        let kind = if bar.prefetchable {
            registers::BAR_64_BIT | registers::BAR_PREFETCHABLE
        } else {
            registers::BAR_64_BIT
        };
        self.set(at, &kind.to_le_bytes());
        self.allow(at, &(!(bar.size - 1) & !0xf).to_le_bytes());
        self.placements.push(Placement {
            bar: bar.index,
            address: 0,
            is_sized: [false; 2],
        });
    }

    fn add_pcie(&mut self) {
        self.set(pcie::AT, &[registers::PCI_EXPRESS]);
        self.set(pcie::AT + 2, &pcie::CAPABILITIES.to_le_bytes());
        self.set(pcie::DEVICE_CAPABILITIES, &pcie::CAN_DO.to_le_bytes());
        self.allow(pcie::DEVICE_CONTROL, &pcie::CONTROL_WRITABLE.to_le_bytes());
        self.set(pcie::LINK_CAPABILITIES, &pcie::LINK.to_le_bytes());
        self.set(pcie::LINK_STATUS, &pcie::LINK.to_le_bytes());
        let control_2 = pcie::CONTROL_2_WRITABLE.to_le_bytes();
        self.allow(pcie::DEVICE_CONTROL_2, &control_2);
    }

    fn add_msix(&mut self, bar: u8, vectors: u16) {
        use crate::registers::{
            MSI_X as ID, MSIX_ENABLE as ENABLE, MSIX_FUNCTION_MASK as FUNCTION_MASK,
        };
        use msix_capability::{AT, CONTROL, PBA, TABLE};
        self.set(AT, &[ID]);
        self.set(CONTROL, &(vectors - 1).to_le_bytes());
        self.allow(CONTROL, &(ENABLE | FUNCTION_MASK).to_le_bytes());
        let table = TABLE_OFFSET | u32::from(bar);
        let pba = PBA_OFFSET | u32::from(bar);
        self.set(TABLE, &table.to_le_bytes());
        self.set(PBA, &pba.to_le_bytes());
    }

    /// Reads; what lies beyond the space reads as zeros.
    pub(super) fn read(&self, offset: u16, out: &mut [u8]) {
        out.fill(0);
        let bytes = self.bytes.get(usize::from(offset)..).unwrap_or_default();
        for (to, from) in out.iter_mut().zip(bytes) {
            *to = *from;
        }
    }

    /// Writes the bits that can be written.
    pub(super) fn write(&mut self, offset: u16, bytes: &[u8]) -> ConfigWrite {
        let at = usize::from(offset);
        let registers = self.bytes.iter_mut().zip(self.writable.iter());
        for ((register, mask), byte) in registers.skip(at).zip(bytes) {
            *register = *register & !mask | byte & mask;
        }
        self.place(at, bytes);
        let control = pcie::DEVICE_CONTROL + 1;
        let [_, flr] = registers::INITIATE_FLR.to_le_bytes();
        let written = control.checked_sub(at).and_then(|index| bytes.get(index));
        ConfigWrite {
            reset: written.is_some_and(|byte| byte & flr != 0),
        }
    }

    /// Follows a write to the base address registers.
    fn place(&mut self, at: usize, written: &[u8]) {
        for placement in &mut self.placements {
            let register = registers::BARS + 4 * usize::from(placement.bar);
            for (is_sized, half) in placement.is_sized.iter_mut().zip([register, register + 4]) {
                let touched = at < half + 4 && half < at + written.len();
                if touched {
                    let value = half
                        .checked_sub(at)
                        .and_then(|from| written.get(from..from + 4));
                    *is_sized = value == Some(&[0xff; 4]);
                }
            }
            if placement.is_sized == [false; 2] {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(&self.bytes[register..register + 8]);
                placement.address = u64::from_le_bytes(bytes) & !0xf;
            }
        }
    }

    /// Returns the address of a base address register. `None` while memory space is off, for one that has no address,
    /// and for one that there is not. While the guest learns the register's size it is where it was before.
    pub(super) fn bar_address(&self, bar: u8) -> Option<u64> {
        let placement = self.placements.iter().find(|place| place.bar == bar)?;
        (self.answers() && placement.address != 0).then_some(placement.address)
    }

    /// Whether interrupts are on, and none of them is held back by the function mask.
    pub(super) fn msix_passes(&self) -> bool {
        use crate::registers::{MSIX_ENABLE as ENABLE, MSIX_FUNCTION_MASK as FUNCTION_MASK};
        use msix_capability::CONTROL;
        self.word(CONTROL) & (ENABLE | FUNCTION_MASK) == ENABLE
    }

    /// Whether there is anything behind the base address registers.
    pub(super) fn answers(&self) -> bool {
        self.word(registers::COMMAND) & registers::MEMORY_SPACE != 0
    }

    /// Whether the function may reach memory and signal interrupts.
    pub(super) fn is_bus_master(&self) -> bool {
        self.word(registers::COMMAND) & registers::BUS_MASTER != 0
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// Puts every register back to what it was at first.
    pub(super) fn reset(&mut self) {
        self.bytes = self.initial.clone();
        for placement in &mut self.placements {
            (placement.address, placement.is_sized) = (0, [false; 2]);
        }
    }
}

fn put(space: &mut [u8; SIZE], at: usize, bytes: &[u8]) {
    for (to, from) in space.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}

impl fmt::Debug for ConfigSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigSpace")
            .field("answers", &self.answers())
            .field("is_bus_master", &self.is_bus_master())
            .field("msix_passes", &self.msix_passes())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity {
        vendor: 0x15b3,
        device: 0x1004,
        class_code: [0x02, 0x07, 0x00],
    };
    const BARS: [Bar; 2] = [
        Bar {
            index: 2,
            size: 8 << 20,
            prefetchable: true,
        },
        Bar {
            index: 4,
            size: 8 << 10,
            prefetchable: false,
        },
    ];

    fn space() -> ConfigSpace {
        ConfigSpace::new(&IDENTITY, &BARS, 4, 33)
    }

    fn dword(space: &ConfigSpace, offset: u16) -> u32 {
        let mut bytes = [0xa5; 4];
        space.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn the_header_says_what_the_function_is() {
        let space = space();
        assert_eq!(dword(&space, 0), 0x1004_15b3);
        assert_eq!(dword(&space, 8), 0x0207_0000);
        assert_eq!(dword(&space, 4), 0x0010_0000);
    }

    #[test]
    fn bars_tell_their_sizes_and_keep_addresses() {
        let mut space = space();
        for register in [0x10, 0x14, 0x18, 0x1c, 0x20, 0x24] {
            space.write(register, &[0xff; 4]);
        }
        let sizes = [0x10, 0x14, 0x18, 0x1c, 0x20, 0x24].map(|at| dword(&space, at));
        let expected = [0, 0, 0xff80_000c, 0xffff_ffff, 0xffff_e004, 0xffff_ffff];
        assert_eq!(sizes, expected);
        space.write(0x18, &0x0000_007f_e080_0000_u64.to_le_bytes());
        assert_eq!(
            [dword(&space, 0x18), dword(&space, 0x1c)],
            [0xe080_000c, 0x7f]
        );
    }

    #[test]
    fn the_capability_list_leads_over_pci_express_to_msix() {
        let space = space();
        let mut found = Vec::new();
        let mut at = dword(&space, 0x34) & 0xff;
        while at != 0 {
            let capability = dword(&space, u16::try_from(at).unwrap());
            found.push(capability & 0xff);
            at = capability >> 8 & 0xff;
        }
        assert_eq!(found, [0x10, 0x11]);
        assert_eq!(dword(&space, 0x9c) >> 16, 32, "33 vectors");
        assert_eq!(dword(&space, 0xa0), 4);
        assert_eq!(dword(&space, 0xa4), 0x1004);
        assert_ne!(dword(&space, 0x64) & 1 << 28, 0, "FLR");
    }

    #[test]
    fn a_function_level_reset_is_seen_in_every_access_width_and_reads_as_zero() {
        let mut space = space();
        assert!(!space.write(0x68, &[0x10, 0x28]).reset);
        assert!(space.write(0x68, &[0x10, 0xa8]).reset);
        assert!(space.write(0x69, &[0x80]).reset);
        assert!(space.write(0x68, &[0, 0x80, 0, 0]).reset);
        assert!(!space.write(0x6a, &[0xff, 0xff]).reset);
        assert_eq!(
            dword(&space, 0x68),
            0,
            "the last word write cleared the rest"
        );
    }

    #[test]
    fn read_only_registers_and_what_lies_beyond_the_space_ignore_writes() {
        let mut space = space();
        space.write(0, &[0xff; 16]);
        assert_eq!(dword(&space, 0), 0x1004_15b3);
        assert_eq!(dword(&space, 4), 0x0010_0546);
        space.write(4094, &[0xff; 4]);
        space.write(u16::MAX, &[0xff; 4]);
        assert_eq!(dword(&space, 4094), 0);
        assert_eq!(dword(&space, u16::MAX), 0);
        space.reset();
        assert_eq!(dword(&space, 4), 0x0010_0000);
    }

    #[test]
    fn a_function_answers_and_reaches_memory_when_it_is_told_to() {
        let mut space = space();
        for (command, expected) in [
            (0, (false, false)),
            (2, (true, false)),
            (4, (false, true)),
            (0x546, (true, true)),
        ] {
            space.write(4, &u16::to_le_bytes(command));
            assert_eq!((space.answers(), space.is_bus_master()), expected);
        }
        space.reset();
        assert!(!space.answers() && !space.is_bus_master());
    }

    #[test]
    fn a_bar_is_where_its_two_halves_say_while_memory_space_is_on() {
        let mut space = space();
        let both = |space: &ConfigSpace| [space.bar_address(2), space.bar_address(4)];
        space.write(0x18, &0xe080_0000_u32.to_le_bytes());
        space.write(0x20, &0x0000_007f_e000_2000_u64.to_le_bytes());
        assert_eq!(both(&space), [None; 2]);
        space.write(4, &[2]);
        let at = [Some(0xe080_0000), Some(0x7f_e000_2000)];
        assert_eq!(both(&space), at);
        space.write(0x1c, &[1, 0, 0, 0]);
        assert_eq!(space.bar_address(2), Some(0x1_e080_0000));
        space.write(0x1b, &[0xf0, 2]);
        assert_eq!(space.bar_address(2), Some(0x2_f080_0000));
        space.write(4, &[0]);
        assert_eq!(both(&space), [None; 2]);
        space.write(4, &[2]);
        space.reset();
        space.write(4, &[2]);
        assert_eq!(both(&space), [None; 2]);
        for bar in [0, 1, 3, 6, u8::MAX] {
            assert_eq!(space.bar_address(bar), None);
        }
    }

    #[test]
    fn a_bar_whose_size_the_guest_learns_stays_where_it_was() {
        let mut space = space();
        space.write(4, &[2]);
        space.write(0x18, &0x7f_e080_0000_u64.to_le_bytes());
        let at = Some(0x7f_e080_0000);
        for (register, value) in [
            (0x18, [0xff; 4]),
            (0x18, 0xe080_0000_u32.to_le_bytes()),
            (0x1c, [0xff; 4]),
            (0x18, [0xff; 4]),
            (0x18, 0xe080_0000_u32.to_le_bytes()),
            (0x1c, [0x7f, 0, 0, 0]),
        ] {
            space.write(register, &value);
            assert_eq!(space.bar_address(2), at);
        }
        // The top of the first 4 GiB differs from the ones that measure by its lower bits.
        space.write(0x18, &0xff80_0000_u64.to_le_bytes());
        assert_eq!(space.bar_address(2), Some(0xff80_0000));
    }

    #[test]
    fn interrupts_pass_when_enabled_and_not_masked() {
        let mut space = space();
        assert!(!space.msix_passes());
        space.write(0x9e, &0xc000_u16.to_le_bytes());
        assert!(!space.msix_passes());
        space.write(0x9e, &0x8000_u16.to_le_bytes());
        assert!(space.msix_passes());
        assert_eq!(dword(&space, 0x9c) >> 16, 0x8020);
    }
}
