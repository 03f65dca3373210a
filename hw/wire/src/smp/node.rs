//! NodeDescription (IBA 14.2.5.2) and NodeInfo (IBA 14.2.5.3).

use zerocopy::network_endian::{U16, U32};

use crate::{Guid, PortNum};

layout! {
    /// A text that describes the node (IBA 14.2.5.2): UTF-8, filled up with zero bytes.
    NodeDescription, 64 {
        /// The text.
        pub text: [u8; 64],
    }
}

impl NodeDescription {
    /// The description of a text; what does not fit in 64 bytes is cut off between characters.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut description = Self::default();
        let mut length = text.len().min(description.text.len());
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        description.text[..length].copy_from_slice(&text.as_bytes()[..length]);
        description
    }

    /// The bytes before the first zero.
    #[must_use]
    pub fn trimmed(&self) -> &[u8] {
        let length = self
            .text
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(self.text.len());
        &self.text[..length]
    }

    /// The text, if it is UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        core::str::from_utf8(self.trimmed()).ok()
    }
}

open_enum! {
    /// What a node is (IBA 14.2.5.3, NodeInfo:NodeType).
    NodeType(u8) {
        /// A channel adapter.
        CA = 1,
        /// A switch.
        SWITCH = 2,
        /// A router.
        ROUTER = 3,
    }
}

layout! {
    /// What a node is and who made it (IBA 14.2.5.3). Read only.
    NodeInfo, 64 {
        /// Version of the MAD base format: 1.
        pub base_version: u8,
        /// Version of the subnet management class: 1.
        pub class_version: u8,
        /// Kind of node.
        pub node_type: NodeType,
        /// Physical ports; a switch's port 0 is not counted.
        pub num_ports: u8,
        /// GUID of the assembly that the node is part of; 0 if there is none.
        pub system_image_guid: Guid,
        /// GUID of the node.
        pub node_guid: Guid,
        /// GUID of the port that answers; of a switch, the node's GUID.
        pub port_guid: Guid,
        /// Entries in the P_Key table of each port of a CA or router, or of a switch's port 0.
        pub partition_cap: U16,
        /// The vendor's device id.
        pub device_id: U16,
        /// The vendor's revision.
        pub revision: U32,
        /// The port by which the SMP was received.
        pub local_port: PortNum,
        /// The vendor's IEEE OUI.
        pub vendor_id: [u8; 3],
        /// Reserved.
        pub reserved: [u8; 24],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_ends_at_the_first_zero() {
        let description = NodeDescription::new("H-1");
        assert_eq!(description.trimmed(), b"H-1");
        assert_eq!(description.as_str(), Some("H-1"));
    }

    #[test]
    fn a_long_description_is_cut_between_characters() {
        let mut text = std::string::String::from("x");
        text.extend(core::iter::repeat_n('é', 40));
        let description = NodeDescription::new(&text);
        assert_eq!(description.trimmed().len(), 63);
        assert_eq!(description.as_str(), Some(&text[..63]));
    }

    #[test]
    fn a_description_that_is_not_text_is_no_string() {
        assert_eq!(NodeDescription { text: [0xff; 64] }.as_str(), None);
        assert_eq!(NodeDescription { text: [0xff; 64] }.trimmed().len(), 64);
    }
}
