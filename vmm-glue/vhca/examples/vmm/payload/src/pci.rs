//! The function on the bus: configuration space by ports 0xcf8 and 0xcfc, MSI-X.

use mlx4_defs::pci::{DEVICE_ID, VENDOR_ID};

use super::cpu;

const ADDRESS: u16 = 0xcf8;
const DATA: u16 = 0xcfc;

/// Registers of configuration space (PCI 3.0, 6.1).
const COMMAND: u32 = 0x04;
const BAR_0: u32 = 0x10;
const CAPABILITIES: u32 = 0x34;

/// Memory space and bus mastering.
const ON: u16 = 6;

const MSI_X: u32 = 0x11;
const MSI_X_ENABLE: u16 = 1 << 15;

/// The register with the MSI-X table.
const TABLE_BAR: usize = 1;

/// The VF, with its registers 2 and 4.
#[derive(Debug)]
pub(crate) struct Function {
    slot: u32,
    pub(crate) bars: [u64; 2],
    /// Offset of the pending bits in their register.
    pending: u64,
}

impl Function {
    pub(crate) fn find() -> Option<Self> {
        let slots = (0..32).map(|slot| Self {
            slot,
            bars: [0; 2],
            pending: 0,
        });
        let id = u32::from(DEVICE_ID) << 16 | u32::from(VENDOR_ID);
        slots.into_iter().find(|function| function.read(0) == id)
    }

    fn select(&self, register: u32) {
        cpu::out32(ADDRESS, 1 << 31 | self.slot << 11 | register & 0xfc);
    }

    pub(crate) fn read(&self, register: u32) -> u32 {
        self.select(register);
        cpu::in32(DATA)
    }

    pub(crate) fn write(&self, register: u32, value: u32) {
        self.select(register);
        cpu::out32(DATA, value);
    }

    pub(crate) fn write16(&self, register: u32, value: u16) {
        self.select(register);
        cpu::out16(DATA + (register & 2) as u16, value);
    }

    fn write_bar(&self, bar: u32, address: u64) {
        self.write(BAR_0 + 4 * bar, address as u32);
        self.write(BAR_0 + 4 * bar + 4, (address >> 32) as u32);
    }

    /// Returns the size of a base address register.
    pub(crate) fn size(&self, bar: u32) -> u64 {
        self.write_bar(bar, u64::MAX);
        let low = u64::from(self.read(BAR_0 + 4 * bar) & !0xf);
        let high = u64::from(self.read(BAR_0 + 4 * bar + 4));
        (high << 32 | low).wrapping_neg()
    }

    /// Gives the registers addresses, and turns them on.
    pub(crate) fn place(&self, bars: [u64; 2]) {
        self.move_bars(bars);
        self.write16(COMMAND, ON);
    }

    pub(crate) fn move_bars(&self, bars: [u64; 2]) {
        self.write_bar(2, bars[0]);
        self.write_bar(4, bars[1]);
    }

    /// Returns the place of the MSI-X capability.
    pub(crate) fn msi_x(&self) -> u32 {
        let mut at = self.read(CAPABILITIES) & 0xfc;
        while self.read(at) & 0xff != MSI_X {
            at = self.read(at) >> 8 & 0xfc;
            assert!(at != 0);
        }
        at
    }

    /// Turns MSI-X on, with an interrupt vector for its vector 0.
    pub(crate) fn enable_interrupts(&mut self, vector: u8) {
        let at = self.msi_x();
        assert!(self.read(at + 4) == 4, "the table begins BAR 4");
        self.pending = u64::from(self.read(at + 8) & !7);
        let table = self.bars[TABLE_BAR];
        let entry = [0xfee0_0000, 0, u32::from(vector), 0];
        for (at, word) in (table..).step_by(4).zip(entry) {
            cpu::write(at, word);
        }
        self.write16(at + 2, MSI_X_ENABLE);
    }

    /// Masks vector 0, or unmasks it.
    pub(crate) fn set_masked(&self, masked: bool) {
        cpu::write(self.bars[TABLE_BAR] + 12, u32::from(masked));
    }

    /// Returns `true` if vector 0 waits to be unmasked.
    pub(crate) fn is_pending(&self) -> bool {
        cpu::read::<u32>(self.bars[TABLE_BAR] + self.pending) & 1 != 0
    }
}
