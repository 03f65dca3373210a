//! How the function presents itself on PCI.

/// Vendor id of Mellanox (`PCI_VENDOR_ID_MELLANOX`).
pub const VENDOR_ID: u16 = 0x15b3;

/// Device id of a ConnectX-3 virtual function (`mlx4_pci_table`). The driver takes the id alone as the
/// sign that it runs in a virtual function.
pub const DEVICE_ID: u16 = 0x1004;

/// Class, subclass and programming interface: an InfiniBand network controller. Drivers do not look at it.
pub const CLASS_CODE: [u8; 3] = [0x02, 0x07, 0x00];

/// The register that holds the communication channel and the UARs.
pub const UAR_BAR: u8 = 2;

/// The least number of MSI-X vectors that the driver accepts (`mlx4_enable_msi_x`): one for
/// asynchronous events and one for completions.
pub const MIN_VECTORS: u16 = 2;
