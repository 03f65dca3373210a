//! Registers of a function's configuration space that both the function and the process in front of it look at.

/// Offsets in the header (PCI Local Bus 3.0, 6.1).
pub const VENDOR: usize = 0x00;
/// Device ID.
pub const DEVICE: usize = 0x02;
/// Command register.
pub const COMMAND: usize = 0x04;
/// Status register.
pub const STATUS: usize = 0x06;
/// Programming interface, subclass, class.
pub const CLASS: usize = 0x09;
/// The first base address register. Each has four bytes.
pub const BARS: usize = 0x10;
/// Vendor ID of the subsystem.
pub const SUBSYSTEM_VENDOR: usize = 0x2c;
/// Subsystem ID.
pub const SUBSYSTEM: usize = 0x2e;
/// Offset of the first capability.
pub const CAPABILITIES: usize = 0x34;
/// Interrupt line, which the guest keeps.
pub const INTERRUPT_LINE: usize = 0x3c;

/// Command register: the function answers at the addresses in its base address registers.
pub const MEMORY_SPACE: u16 = 1 << 1;
/// Command register: the function may reach memory, and signal by messages, which are writes, too.
pub const BUS_MASTER: u16 = 1 << 2;

/// The bits of a base address register that say its type.
pub const BAR_TYPE: u32 = 0x7;
/// A base address register's type: 64-bit memory, of two registers.
pub const BAR_64_BIT: u32 = 0x4;
/// Reads behind a base address register have no side effects.
pub const BAR_PREFETCHABLE: u32 = 0x8;

/// ID of the PCI Express capability (PCI Express Base 3.0, 7.8).
pub const PCI_EXPRESS: u8 = 0x10;
/// Offset of the device control register in that capability.
pub const DEVICE_CONTROL: usize = 0x08;
/// Device control: Initiate Function Level Reset; reads as zero.
pub const INITIATE_FLR: u16 = 1 << 15;

/// ID of the MSI-X capability (PCI Local Bus 3.0, 6.8.2). Its message control register follows at offset 2, the place of its table at
/// offset 4.
pub const MSI_X: u8 = 0x11;
/// Message control: MSI-X is on.
pub const MSIX_ENABLE: u16 = 1 << 15;
/// Message control: all vectors are masked.
pub const MSIX_FUNCTION_MASK: u16 = 1 << 14;
/// Message control: number of the last vector.
pub const MSIX_LAST_VECTOR: u16 = 0x7ff;
