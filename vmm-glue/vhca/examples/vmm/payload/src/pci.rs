//! The function on the bus: configuration space by ports 0xcf8 and 0xcfc.

use mlx4_defs::pci::{DEVICE_ID, VENDOR_ID};

use super::cpu;

const ADDRESS: u16 = 0xcf8;
const DATA: u16 = 0xcfc;

/// The VF.
#[derive(Debug)]
pub(crate) struct Function {
    slot: u32,
}

impl Function {
    pub(crate) fn find() -> Option<Self> {
        let id = u32::from(DEVICE_ID) << 16 | u32::from(VENDOR_ID);
        let mut slots = (0..32).map(|slot| Self { slot });
        slots.find(|function| function.read(0) == id)
    }

    fn select(&self, register: u16) {
        let register = u32::from(register & 0xfc);
        cpu::out32(ADDRESS, 1 << 31 | self.slot << 11 | register);
    }

    /// Reads the word with a register.
    pub(crate) fn read(&self, register: u16) -> u32 {
        self.select(register);
        cpu::in32(DATA)
    }

    pub(crate) fn write(&self, register: u16, bytes: &[u8]) {
        self.select(register);
        match *bytes {
            [a, b] => cpu::out16(DATA + (register & 2), u16::from_le_bytes([a, b])),
            [a, b, c, d] => cpu::out32(DATA, u32::from_le_bytes([a, b, c, d])),
            _ => panic!(),
        }
    }
}
