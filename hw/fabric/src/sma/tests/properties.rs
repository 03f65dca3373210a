use ib_wire::smp::{
    GuidInfo, LinearForwardingTable, MulticastForwardingTable, MulticastTableModifier, PKeyTable,
};
use ib_wire::{Guid, PKey};
use proptest::prelude::*;

use super::*;
use crate::{Frame, smi};

/// A MAD whose header leads far into the agent, with anything in the rest.
fn hostile() -> impl Strategy<Value = Mad> {
    let known = prop::sample::select(vec![
        0x02, 0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1b, 0x20, 0x31, 0xff90,
    ]);
    (
        prop::collection::vec(any::<u8>(), 256),
        prop::sample::select(vec![0x01_u8, 0x81]),
        prop::sample::select(vec![1_u8, 2, 7]),
        known,
        any::<u32>(),
        0_u32..0x400,
        any::<bool>(),
    )
        .prop_map(|(bytes, class, method, attribute, wild, tame, is_tame)| {
            let mut mad = Mad::from_bytes(&bytes).unwrap();
            mad.header.base_version = 1;
            mad.header.mgmt_class = MgmtClass::new(class);
            mad.header.class_version = 1;
            mad.header.method = Method::new(method);
            mad.header.attribute_id = ib_wire::mad::AttributeId::new(attribute);
            mad.header.attribute_modifier = if is_tame { tame } else { wild }.into();
            mad
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_smp_makes_the_agent_or_the_interface_panic(
        mads in prop::collection::vec(hostile(), 1..8), port in 0_u8..10
    ) {
        for mut node in [adapter(), switch()] {
            for mad in &mads {
                process(&mut node, PortNum(port), &from_network(), mad);
                let permissive = Lid::PERMISSIVE;
                let frame = Frame::of_smp(mad, permissive, permissive, Sl::default()).unwrap();
                smi::receive(&mut node, PortNum(port), frame.clone());
                smi::send(&mut node, PortNum(port), frame);
            }
        }
    }

    #[test]
    fn no_bytes_on_vl15_make_the_interface_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400)
    ) {
        for mut node in [adapter(), switch()] {
            smi::receive(&mut node, PORT, Frame::new(&bytes));
            smi::send(&mut node, PORT, Frame::new(&bytes));
        }
    }

    #[test]
    fn a_refused_set_of_port_info_changes_nothing(
        bytes in prop::array::uniform32(any::<u8>()), port in 0_u32..9, is_switch: bool
    ) {
        let mut node = if is_switch { switch() } else { adapter() };
        let mut info = managed(&mut node, u32::from(!is_switch));
        let before: Option<PortInfo> = (is_switch || port <= 2).then(|| get(&mut node, port));
        zerocopy::IntoBytes::as_mut_bytes(&mut info)[16..48].copy_from_slice(&bytes);
        let (status, _) = ask(&mut node, Method::SET, port, info);
        if status != MadStatus::OK && let Some(before) = before {
            prop_assert_eq!(get::<PortInfo>(&mut node, port), before);
        }
    }

    #[test]
    fn tables_read_back_what_was_written(
        guids in prop::collection::vec((0_u32..16, prop::array::uniform8(any::<u64>())), 1..6),
        pkeys in prop::collection::vec((0_u32..4, prop::array::uniform32(any::<u16>())), 1..6),
    ) {
        let mut node = adapter();
        let mut guid_model = [[Guid::NONE; 8]; 16];
        for (block, values) in guids {
            let table = GuidInfo { guids: values.map(Guid::new) };
            set(&mut node, block, table);
            guid_model[block as usize] = table.guids;
            guid_model[0][0] = Guid::new(0x1001);
            prop_assert_eq!(get::<GuidInfo>(&mut node, block).guids, guid_model[block as usize]);
        }
        let mut pkey_model = [[PKey::INVALID; 32]; 4];
        for (block, values) in pkeys {
            let table = PKeyTable { pkeys: values.map(PKey::new) };
            set(&mut node, block, table);
            pkey_model[block as usize] = table.pkeys;
            prop_assert_eq!(get::<PKeyTable>(&mut node, block).pkeys, pkey_model[block as usize]);
        }
    }

    #[test]
    fn forwarding_tables_read_back_the_ports_that_exist(
        linear in prop::collection::vec((0_u32..8, prop::array::uniform32(0_u8..12)), 1..6),
        multicast in prop::collection::vec((0_u16..8, prop::array::uniform32(any::<u16>())), 1..6),
    ) {
        let mut node = switch();
        for (block, ports) in linear {
            let mut table = LinearForwardingTable { ports: [LinearForwardingTable::DROP; 64] };
            for (slot, port) in table.ports.iter_mut().zip(ports) {
                *slot = PortNum(port);
            }
            set(&mut node, block, table);
            for port in &mut table.ports {
                if port.0 > 8 {
                    *port = LinearForwardingTable::DROP;
                }
            }
            prop_assert_eq!(get::<LinearForwardingTable>(&mut node, block), table);
        }
        for (block, masks) in multicast {
            let mut table = MulticastForwardingTable { masks: masks.map(Into::into) };
            let modifier = MulticastTableModifier { position: 0, block }.encode().get();
            set(&mut node, modifier, table);
            for mask in &mut table.masks {
                mask.set(mask.get() & 0x1ff);
            }
            prop_assert_eq!(get::<MulticastForwardingTable>(&mut node, modifier), table);
        }
    }
}
