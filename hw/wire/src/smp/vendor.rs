//! LedInfo (IBA 14.2.5.15) and an attribute of one vendor's switches and adapters.

use zerocopy::network_endian::U32;

layout! {
    /// The port's identification light (IBA 14.2.5.15).
    LedInfo, 64 {
        /// LedMask (1) and reserved.
        pub led_mask: U32,
        /// Reserved.
        pub reserved: [u8; 60],
    }
}

impl LedInfo {
    bit_fields! {
        /// Whether the light shall be on.
        led_on, set_led_on: bool = led_mask >> 31, 1;
    }
}

layout! {
    /// Mellanox's extended port information, vendor attribute 0xFF90 (OpenSM
    /// `ib_mlnx_ext_port_info_t`): the FDR10 speed. The modifier is the port.
    MlnxExtPortInfo, 64 {
        /// Reserved.
        pub reserved1: [u8; 3],
        /// Which fields a Set changes: bit 1 the enabled speeds.
        pub state_change_enable: u8,
        /// Reserved.
        pub reserved2: [u8; 3],
        /// Speeds that the port can run at: bit 0 FDR10.
        pub link_speed_supported: u8,
        /// Reserved.
        pub reserved3: [u8; 3],
        /// Speeds that the port may run at.
        pub link_speed_enabled: u8,
        /// Reserved.
        pub reserved4: [u8; 3],
        /// The speed that the port runs at.
        pub link_speed_active: u8,
        /// Reserved.
        pub reserved5: [u8; 48],
    }
}
