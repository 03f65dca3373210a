//! Numbers of resources: parameters of [`crate::Opcode::ALLOC_RES`] and [`crate::Opcode::FREE_RES`].

use ib_wire::bit_fields;
use zerocopy::network_endian::U32;

ib_wire::open_enum! {
    /// A kind of resource (`enum mlx4_resource`).
    ResourceType(u8) {
        /// Queue pairs.
        QP = 0,
        /// Completion queues.
        CQ = 1,
        /// Shared receive queues.
        SRQ = 2,
        /// Domains of extended reliable connections.
        XRCD = 3,
        /// Memory regions.
        MPT = 4,
        /// Page addresses.
        MTT = 5,
        /// Ethernet addresses.
        MAC = 6,
        /// Ethernet VLANs.
        VLAN = 7,
        /// Ports of queue pairs.
        NPORT_ID = 8,
        /// Counters.
        COUNTER = 9,
        /// Flow steering rules.
        FS_RULE = 10,
        /// Event queues.
        EQ = 11,
    }
}

ib_wire::impl_bits! {
    ResourceType, u8, ResourceType::new, ResourceType::get;
}

ib_wire::open_enum! {
    /// The op modifier: what to do with the numbers (`enum mlx4_alloc_mode`).
    ResourceOp(u8) {
        /// Reserve them.
        RESERVE = 0,
        /// Reserve them, and back them by the device's memory.
        RESERVE_AND_MAP = 1,
        /// Back reserved ones by the device's memory.
        MAP_ICM = 2,
    }
}

layout! {
    /// The input modifier.
    ResourceModifier, 4 {
        /// The bits.
        0x0 pub word: U32,
    }
}

impl ResourceModifier {
    /// The modifier for a kind of resource.
    #[must_use]
    pub fn new(resource: ResourceType) -> Self {
        let mut modifier = Self::default();
        modifier.set_resource(resource);
        modifier
    }

    bit_fields! {
        /// Whom the resource is for: 0 nobody in particular, 1 the driver, 2 its users
        /// (`enum mlx4_resource_usage`).
        usage, set_usage: u8 = word >> 30, 2;
        /// The kind.
        resource, set_resource: ResourceType = word >> 0, 8;
    }
}

/// An immediate parameter or result of 64 bits that holds two numbers. What they mean:
///
/// | resource, op | allocate: `low`, `high` | result: `low` | free: `low`, `high` |
/// | --- | --- | --- | --- |
/// | QP, reserve | [`QpReservation`], alignment | first QPN | first QPN, count |
/// | QP, map | QPN | | QPN |
/// | CQ, SRQ, XRCD, COUNTER | | number | number |
/// | MPT, reserve | | index | index |
/// | MPT, map | index | | index |
/// | MTT | log2 of the count | first entry | first entry, log2 of the count |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceParam {
    /// Bits 31..0.
    pub low: u32,
    /// Bits 63..32.
    pub high: u32,
}

impl From<u64> for ResourceParam {
    fn from(param: u64) -> Self {
        let [a, b, c, d, low @ ..] = param.to_be_bytes();
        Self {
            low: u32::from_be_bytes(low),
            high: u32::from_be_bytes([a, b, c, d]),
        }
    }
}

impl From<ResourceParam> for u64 {
    fn from(param: ResourceParam) -> Self {
        Self::from(param.high) << 32 | Self::from(param.low)
    }
}

layout! {
    /// The lower half of the parameter that reserves queue pair numbers (`mlx4_qp_reserve_range`).
    QpReservation, 4 {
        /// The bits.
        0x0 pub word: U32,
    }
}

impl QpReservation {
    bit_fields! {
        /// The numbers shall be fit for BlueFlame of Ethernet queues (`MLX4_RESERVE_ETH_BF_QP`).
        for_blueflame, set_for_blueflame: bool = word >> 31, 1;
        /// The numbers shall be fit for the A0 steering mode (`MLX4_RESERVE_A0_QP`).
        for_a0_steering, set_for_a0_steering: bool = word >> 30, 1;
        /// How many.
        count, set_count: u32 = word >> 0, 24;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_parameter_and_its_halves_are_the_same(value: u64) {
            prop_assert_eq!(u64::from(ResourceParam::from(value)), value);
        }
    }

    #[test]
    fn the_high_half_is_the_upper_one() {
        let param = ResourceParam::from(0x0000_0008_4000_0002);
        assert_eq!((param.low, param.high), (0x4000_0002, 8));
        let reservation = QpReservation {
            word: U32::new(param.low),
        };
        assert!(reservation.for_a0_steering() && !reservation.for_blueflame());
        assert_eq!(reservation.count(), 2);
    }

    #[test]
    fn the_driver_s_counter_has_its_usage_on_top() {
        let mut modifier = ResourceModifier::new(ResourceType::COUNTER);
        modifier.set_usage(1);
        assert_eq!(modifier.word.get(), 0x4000_0009);
    }
}
