//! A port's limits.

use ib_wire::{Mtu, bit_fields};
use zerocopy::network_endian::{U16, U32, U64};

layout! {
    /// The output of [`crate::Opcode::QUERY_PORT`] (`mlx4_QUERY_PORT`). The input modifier is the port.
    mailbox QueryPort, 40 {
        /// See the accessors.
        0x00 pub link_type: u8,
        /// See [`Self::max_mtu`].
        0x01 pub mtu_byte: u8,
        /// Ethernet only.
        0x02 pub eth_mtu: U16,
        /// Reserved.
        0x04 pub reserved0: [u8; 2],
        /// See [`Self::max_width`].
        0x06 pub width_byte: u8,
        /// See [`Self::log_gids`] and [`Self::log_pkeys`].
        0x07 pub gid_pkey: u8,
        /// Reserved.
        0x08 pub reserved1: [u8; 2],
        /// See [`Self::log_vlans`] and [`Self::log_macs`].
        0x0a pub vlan_mac: u8,
        /// See [`Self::max_vl`].
        0x0b pub vl_byte: u8,
        /// Entries of the function's P_Key table.
        0x0c pub pkey_table_len: U16,
        /// Entries of the function's GID table.
        0x0e pub gid_table_len: U16,
        /// Ethernet address; 0 is none.
        0x10 pub mac: U64,
        /// The transceiver's vendor.
        0x18 pub transceiver_vendor: U32,
        /// Reserved with the transceiver's wavelength.
        0x1c pub wavelength: U32,
        /// The transceiver's code.
        0x20 pub transceiver_code: U64,
    }
}

impl QueryPort {
    bit_fields! {
        /// The link is up.
        link_up, set_link_up: bool = link_type >> 7, 1;
        /// The device's flow steering is optimised.
        dmfs_optimised, set_dmfs_optimised: bool = link_type >> 5, 1;
        /// The link's type is sensed by default.
        default_sense, set_default_sense: bool = link_type >> 4, 1;
        /// Of both types Ethernet is suggested.
        suggests_ethernet, set_suggests_ethernet: bool = link_type >> 3, 1;
        /// The port can be an Ethernet port.
        ethernet, set_ethernet: bool = link_type >> 1, 1;
        /// The port can be an InfiniBand port.
        infiniband, set_infiniband: bool = link_type >> 0, 1;
        /// The largest MTU.
        max_mtu, set_max_mtu: Mtu = mtu_byte >> 0, 4;
        /// The widths, as in PortInfo's LinkWidthSupported.
        max_width, set_max_width: u8 = width_byte >> 0, 4;
        /// Log2 of the entries of the physical GID table.
        log_gids, set_log_gids: u8 = gid_pkey >> 4, 4;
        /// Log2 of the entries of the physical P_Key table.
        log_pkeys, set_log_pkeys: u8 = gid_pkey >> 0, 4;
        /// Log2 of the VLANs.
        log_vlans, set_log_vlans: u8 = vlan_mac >> 4, 4;
        /// Log2 of the Ethernet addresses.
        log_macs, set_log_macs: u8 = vlan_mac >> 0, 4;
        /// The number of data VLs.
        max_vl, set_max_vl: u8 = vl_byte >> 0, 4;
    }
}
