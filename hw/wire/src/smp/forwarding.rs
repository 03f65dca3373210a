//! Forwarding tables of a switch (IBA 14.2.5.10 and 14.2.5.12).

use zerocopy::network_endian::U16;

use crate::PortNum;

layout! {
    /// A block of 64 entries of the linear forwarding table (IBA 14.2.5.10). The modifier is the
    /// block; entry `i` of block `b` is the port towards LID `64 b + i`.
    LinearForwardingTable, 64 {
        /// The ports.
        pub ports: [PortNum; 64],
    }
}

impl LinearForwardingTable {
    /// LIDs in each block.
    pub const ENTRIES: usize = 64;
    /// The port number that drops packets.
    pub const DROP: PortNum = PortNum(255);
}

layout! {
    /// A block of 32 entries of the multicast forwarding table (IBA 14.2.5.12). Entry `i` of block
    /// `b` at position `p` tells for LID `0xC000 + 32 b + i` which of the ports `16 p` to
    /// `16 p + 15` packets leave by, port `16 p` in the lowest bit.
    MulticastForwardingTable, 64 {
        /// The port masks.
        pub masks: [U16; 32],
    }
}

impl MulticastForwardingTable {
    /// LIDs in each block.
    pub const ENTRIES: usize = 32;
    /// Ports in each mask.
    pub const PORTS: usize = 16;
}
