//! The function as PCI: identification, base address registers, MSI-X.

use alloc::format;

use mlx4_defs::pci::{DEVICE_ID, MIN_VECTORS, VENDOR_ID};

use super::comm::UAR_BAR;
use super::error::refused;
use super::{Bus, DriverError};

/// Offsets in configuration space (PCI 3.0, 6.1).
const VENDOR: u16 = 0x00;
const COMMAND: u16 = 0x04;
const STATUS: u16 = 0x06;
const BAR_0: u16 = 0x10;
const CAPABILITIES: u16 = 0x34;

/// Command register: memory space and bus mastering.
const MEMORY_AND_MASTER: u16 = 0x6;

/// Bits of a base address register that are no part of its address.
const BAR_TYPE: u32 = 0xf;

/// Status register: there is a list of capabilities.
const HAS_CAPABILITIES: u16 = 1 << 4;

/// Capability ids.
const MSI_X: u8 = 0x11;
const EXPRESS: u8 = 0x10;

/// MSI-X message control (PCI 3.0, 6.8.2.3).
const MSI_X_ENABLE: u16 = 1 << 15;
const MSI_X_MASK_ALL: u16 = 1 << 14;

/// Bytes of an MSI-X table entry, and the offset of its mask in it.
const ENTRY: u64 = 16;
const ENTRY_CONTROL: u64 = 12;

/// Device capabilities register of PCI Express: function-level reset is possible.
const FLR_CAPABLE: u32 = 1 << 28;

/// Device control register of PCI Express: start a function-level reset.
const FLR: u16 = 1 << 15;

fn read16(bus: &mut dyn Bus, offset: u16) -> u16 {
    let mut bytes = [0; 2];
    bus.config_read(offset, &mut bytes);
    u16::from_le_bytes(bytes)
}

fn read32(bus: &mut dyn Bus, offset: u16) -> u32 {
    let mut bytes = [0; 4];
    bus.config_read(offset, &mut bytes);
    u32::from_le_bytes(bytes)
}

fn write16(bus: &mut dyn Bus, offset: u16, value: u16) {
    bus.config_write(offset, &value.to_le_bytes());
}

/// Finds a capability; the list must end.
fn capability(bus: &mut dyn Bus, id: u8) -> Option<u16> {
    if read16(bus, STATUS) & HAS_CAPABILITIES == 0 {
        return None;
    }
    let mut at = read16(bus, CAPABILITIES).to_le_bytes()[0];
    for _ in 0..48 {
        if at < 0x40 {
            return None;
        }
        let [this, next] = read16(bus, u16::from(at)).to_le_bytes();
        if this == id {
            return Some(u16::from(at));
        }
        at = next & !3;
    }
    None
}

/// Places of a function's registers for MSI-X.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsiX {
    /// Offset of the message control in configuration space; [`Self::ENABLE`] and [`Self::MASK_ALL`] are bits of it.
    pub control: u16,
    /// Base address register and offset of the table, whose entries have 16 bytes.
    pub table: (u8, u64),
    /// Base address register and offset of the pending bits.
    pub pending: (u8, u64),
}

impl MsiX {
    /// Bit of the message control: the function signals by MSI-X.
    pub const ENABLE: u16 = MSI_X_ENABLE;
    /// Bit of the message control: all vectors are masked.
    pub const MASK_ALL: u16 = MSI_X_MASK_ALL;

    /// Finds the capability. Returns `None` if the function has none.
    pub fn of(bus: &mut dyn Bus) -> Option<Self> {
        let capability = capability(bus, MSI_X)?;
        let [table, pending] = [4, 8].map(|word| {
            let place = read32(bus, capability + word);
            let [bar, ..] = (place & 7).to_le_bytes();
            (bar, u64::from(place & !7))
        });
        Some(Self {
            control: capability + 2,
            table,
            pending,
        })
    }
}

/// The function, enabled.
#[derive(Debug)]
pub(super) struct PciDevice {
    msi_x: MsiX,
    /// Bytes behind the register with the doorbells.
    pub(super) uar_bar_len: u64,
    /// MSI-X vectors that are in use.
    pub(super) vectors: u16,
}

impl PciDevice {
    /// Recognises and enables the function (`__mlx4_init_one`, `mlx4_load_one`).
    pub(super) fn enable(bus: &mut dyn Bus) -> Result<Self, DriverError> {
        let id = (read16(bus, VENDOR), read16(bus, VENDOR + 2));
        if id != (VENDOR_ID, DEVICE_ID) {
            return Err(refused(format!("no driver for {:04x}:{:04x}", id.0, id.1)));
        }
        let uar = bus.bar_size(UAR_BAR);
        let uar_bar_len = uar.ok_or_else(|| refused("Missing UAR, aborting"))?;
        write16(bus, COMMAND, MEMORY_AND_MASTER);
        let msi_x = MsiX::of(bus).ok_or_else(|| refused("no MSI-X"))?;
        Ok(Self {
            msi_x,
            uar_bar_len,
            vectors: 0,
        })
    }

    /// Takes so many MSI-X vectors, or as many as there are; all are masked (`mlx4_enable_msi_x`).
    pub(super) fn enable_msi_x(
        &mut self,
        bus: &mut dyn Bus,
        wanted: u16,
    ) -> Result<(), DriverError> {
        let size = vectors_at(bus, self.msi_x.control);
        if size != bus.interrupt_vectors() {
            return Err(refused("the MSI-X table has another size than the device"));
        }
        self.vectors = wanted.min(size);
        if self.vectors < MIN_VECTORS {
            return Err(refused(
                "INTx is not supported in multi-function mode, aborting",
            ));
        }
        write16(bus, self.msi_x.control, MSI_X_ENABLE | MSI_X_MASK_ALL);
        for vector in 0..self.vectors {
            let entry = self.entry(vector);
            let (address, data) = bus.message(vector);
            let words = [&address.to_le_bytes()[..4], &address.to_le_bytes()[4..]];
            let words = [
                words[0],
                words[1],
                &data.to_le_bytes(),
                &1_u32.to_le_bytes(),
            ];
            for (offset, word) in (0..).step_by(4).zip(words) {
                bus.bar_write(self.msi_x.table.0, entry + offset, word);
            }
        }
        write16(bus, self.msi_x.control, MSI_X_ENABLE);
        Ok(())
    }

    fn entry(&self, vector: u16) -> u64 {
        self.msi_x.table.1 + u64::from(vector) * ENTRY
    }

    /// Unmasks a vector (`request_irq`), or masks it (`free_irq`).
    pub(super) fn set_masked(&self, bus: &mut dyn Bus, vector: u16, masked: bool) {
        let control = u32::from(masked).to_le_bytes();
        bus.bar_write(
            self.msi_x.table.0,
            self.entry(vector) + ENTRY_CONTROL,
            &control,
        );
    }

    /// Returns `true` if a vector fired while it was masked, and still is.
    pub(super) fn is_pending(&self, bus: &mut dyn Bus, vector: u16) -> bool {
        let (bar, bits) = self.msi_x.pending;
        let mut word = [0; 4];
        bus.bar_read(bar, bits + u64::from(vector / 32) * 4, &mut word);
        u32::from_le_bytes(word) >> (vector % 32) & 1 != 0
    }

    /// Takes the function out of use.
    pub(super) fn disable(&mut self, bus: &mut dyn Bus) {
        write16(bus, self.msi_x.control, 0);
        write16(bus, COMMAND, 0);
        self.vectors = 0;
    }
}

fn vectors_at(bus: &mut dyn Bus, control: u16) -> u16 {
    (read16(bus, control) & 0x7ff) + 1
}

/// Returns the number of entries of the MSI-X table, by the function's capability, if it has one.
pub fn interrupt_vectors(bus: &mut dyn Bus) -> Option<u16> {
    MsiX::of(bus).map(|msi_x| vectors_at(bus, msi_x.control))
}

/// Places the registers behind a base address register of 64 bits, as firmware does, and a kernel that moves them.
pub fn place_bar(bus: &mut dyn Bus, bar: u8, address: u64) {
    let halves = address.to_le_bytes();
    let low = BAR_0 + 4 * u16::from(bar);
    bus.config_write(low, &halves[..4]);
    bus.config_write(low + 4, &halves[4..]);
}

/// Measures the registers behind a base address register of 64 bits, which loses its address. Returns their bytes.
pub fn measure_bar(bus: &mut dyn Bus, bar: u8) -> u64 {
    place_bar(bus, bar, u64::MAX);
    let at = BAR_0 + 4 * u16::from(bar);
    let low = u64::from(read32(bus, at) & !BAR_TYPE);
    (u64::from(read32(bus, at + 4)) << 32 | low).wrapping_neg()
}

/// Starts a function-level reset, as `pci_reset_function` does.
///
/// # Errors
/// [`DriverError::Refused`] if the function cannot.
pub fn function_level_reset(bus: &mut dyn Bus) -> Result<(), DriverError> {
    let express = capability(bus, EXPRESS).ok_or_else(|| refused("no PCI Express"))?;
    if read32(bus, express + 4) & FLR_CAPABLE == 0 {
        return Err(refused("no function-level reset"));
    }
    let control = read16(bus, express + 8);
    write16(bus, express + 8, control | FLR);
    Ok(())
}
