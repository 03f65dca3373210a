//! What the attribute modifiers of the subnet management class mean (IBA 14.2.5, table of
//! attributes). Bits that a modifier does not define are dropped by decoding.
//!
//! ```
//! use ib_wire::PortNum;
//! use ib_wire::mad::AttributeModifier;
//! use ib_wire::smp::PortInfoModifier;
//!
//! let modifier = PortInfoModifier { extended_speeds: true, port: PortNum(1) };
//! assert_eq!(modifier.encode(), AttributeModifier::new(0x8000_0001));
//! ```

use crate::PortNum;
use crate::mad::AttributeModifier;

/// Bits `shift` to `shift + width - 1` of a modifier.
const fn bits(modifier: AttributeModifier, shift: u32, width: u32) -> u16 {
    let value = (modifier.get() >> shift) & ((1 << width) - 1);
    assert!(value <= 0xffff, "no field is wider than 16 bits");
    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
    let value = value as u16;
    value
}

/// The 8-bit field at `shift`.
const fn byte(modifier: AttributeModifier, shift: u32) -> u8 {
    modifier.get().to_be_bytes()[3 - (shift / 8) as usize]
}

/// The modifier of PortInfo (IBA 14.2.5.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortInfoModifier {
    /// Bit 31: the SM knows of extended link speeds.
    pub extended_speeds: bool,
    /// The port; 0 on a CA means the port that receives the SMP.
    pub port: PortNum,
}

impl PortInfoModifier {
    /// Decodes a modifier.
    #[must_use]
    pub const fn decode(modifier: AttributeModifier) -> Self {
        Self {
            extended_speeds: modifier.get() >> 31 != 0,
            port: PortNum(byte(modifier, 0)),
        }
    }

    /// Encodes the modifier.
    #[must_use]
    pub const fn encode(self) -> AttributeModifier {
        AttributeModifier::new(((self.extended_speeds as u32) << 31) | self.port.0 as u32)
    }
}

/// The modifier of P_KeyTable (IBA 14.2.5.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PKeyTableModifier {
    /// The port of a switch; CAs ignore it.
    pub port: u16,
    /// The block of 32 entries.
    pub block: u16,
}

impl PKeyTableModifier {
    /// Decodes a modifier.
    #[must_use]
    pub const fn decode(modifier: AttributeModifier) -> Self {
        Self {
            port: bits(modifier, 16, 16),
            block: bits(modifier, 0, 16),
        }
    }

    /// Encodes the modifier.
    #[must_use]
    pub const fn encode(self) -> AttributeModifier {
        AttributeModifier::new(((self.port as u32) << 16) | self.block as u32)
    }
}

/// The modifier of SLtoVLMappingTable (IBA 14.2.5.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlToVlModifier {
    /// Bit 17: all output ports (with OptimizedSLtoVLMappingProgramming).
    pub all_outputs: bool,
    /// Bit 16: all input ports (with OptimizedSLtoVLMappingProgramming).
    pub all_inputs: bool,
    /// The port by which the packet came in; 0 on CAs.
    pub input: PortNum,
    /// The port by which it goes out; 0 on CAs.
    pub output: PortNum,
}

impl SlToVlModifier {
    /// Decodes a modifier.
    #[must_use]
    pub const fn decode(modifier: AttributeModifier) -> Self {
        Self {
            all_outputs: bits(modifier, 17, 1) != 0,
            all_inputs: bits(modifier, 16, 1) != 0,
            input: PortNum(byte(modifier, 8)),
            output: PortNum(byte(modifier, 0)),
        }
    }

    /// Encodes the modifier.
    #[must_use]
    pub const fn encode(self) -> AttributeModifier {
        AttributeModifier::new(
            ((self.all_outputs as u32) << 17)
                | ((self.all_inputs as u32) << 16)
                | ((self.input.0 as u32) << 8)
                | self.output.0 as u32,
        )
    }
}

/// The modifier of VLArbitrationTable (IBA 14.2.5.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VlArbitrationModifier {
    /// 1 and 2: the halves of the low-priority table; 3 and 4: of the high-priority table.
    pub block: u16,
    /// The port of a switch; CAs ignore it.
    pub port: u16,
}

impl VlArbitrationModifier {
    /// Decodes a modifier.
    #[must_use]
    pub const fn decode(modifier: AttributeModifier) -> Self {
        Self {
            block: bits(modifier, 16, 16),
            port: bits(modifier, 0, 16),
        }
    }

    /// Encodes the modifier.
    #[must_use]
    pub const fn encode(self) -> AttributeModifier {
        AttributeModifier::new(((self.block as u32) << 16) | self.port as u32)
    }
}

/// The modifier of MulticastForwardingTable (IBA 14.2.5.12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MulticastTableModifier {
    /// Which 16 ports, 0 to 15.
    pub position: u8,
    /// The block of 32 LIDs, 0 to 511.
    pub block: u16,
}

impl MulticastTableModifier {
    /// Decodes a modifier.
    #[must_use]
    pub const fn decode(modifier: AttributeModifier) -> Self {
        Self {
            position: byte(modifier, 24) >> 4,
            block: bits(modifier, 0, 9),
        }
    }

    /// Encodes the modifier; what does not fit is cut off.
    #[must_use]
    pub const fn encode(self) -> AttributeModifier {
        AttributeModifier::new(((self.position as u32) << 28) | (self.block as u32 & 0x1ff))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modifiers_are_packed_as_opensm_sends_them() {
        let m = AttributeModifier::new;
        let port = PortInfoModifier {
            extended_speeds: true,
            port: PortNum(1),
        };
        assert_eq!(port.encode(), m(0x8000_0001));
        assert_eq!(PortInfoModifier::decode(m(0x8000_0001)), port);
        let pkeys = PKeyTableModifier { port: 2, block: 1 };
        assert_eq!(pkeys.encode(), m(0x0002_0001));
        assert_eq!(PKeyTableModifier::decode(m(0x0002_0001)), pkeys);
        let lanes = SlToVlModifier {
            input: PortNum(3),
            output: PortNum(4),
            all_outputs: false,
            all_inputs: true,
        };
        assert_eq!(lanes.encode(), m(0x0001_0304));
        assert_eq!(SlToVlModifier::decode(m(0x0001_0304)), lanes);
        let turns = VlArbitrationModifier { block: 4, port: 7 };
        assert_eq!(turns.encode(), m(0x0004_0007));
        assert_eq!(VlArbitrationModifier::decode(m(0x0004_0007)), turns);
        let groups = MulticastTableModifier {
            position: 15,
            block: 511,
        };
        assert_eq!(groups.encode(), m(0xf000_01ff));
        assert_eq!(MulticastTableModifier::decode(m(0xf000_01ff)), groups);
    }
}
