//! Adapters and switches as devices of `/sys/class/infiniband` and `/sys/class/infiniband_mad`.

use ib_wire::smp::{LinkSpeedExt, NodeType, PortInfo};
use ib_wire::{Gid, Guid, PKey, PortNum};
use linux_abi::sysfs::{Adapter, CharacterDevice, Device, FIRST_ISSM, MAJOR, PciSlot, Port};

/// PCI vendor of the adapters (`PCI_VENDOR_ID_MELLANOX`).
const VENDOR_ID: u16 = 0x15b3;

/// An adapter, or a switch, as sysfs shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ca {
    /// What it is.
    pub node_type: NodeType,
    /// GUID of the node.
    pub node_guid: Guid,
    /// GUID of the system that it is part of.
    pub system_image_guid: Guid,
    /// The node description.
    pub description: String,
    /// Firmware version.
    pub firmware: String,
    /// Hardware revision.
    pub revision: u32,
    /// The vendor's device id, which stands for the kind of adapter.
    pub device_id: u16,
    /// Its ports, in order; of a switch port 0.
    pub ports: Vec<CaPort>,
}

/// A port, as sysfs shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaPort {
    /// Which one.
    pub number: PortNum,
    /// PortInfo.
    pub info: PortInfo,
    /// GID table; entries without a GUID are zero.
    pub gids: Vec<Gid>,
    /// P_Key table; empty entries are 0.
    pub pkeys: Vec<PKey>,
    /// Counters of performance management, by the names of their files.
    pub counters: Vec<(&'static str, u64)>,
}

/// The name of an adapter in a program's list of them.
#[must_use]
pub fn name(index: usize) -> String {
    format!("vhca{index}")
}

/// Returns `true` if the device of libibverbs beside some adapters can have a name: a plain one that no adapter has.
#[must_use]
pub fn may_be_named(device: &str, adapters: usize) -> bool {
    /// Bytes of the longest name that the kernel gives a device.
    const LONGEST: usize = 63;

    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=LONGEST).contains(&device.len())
        && !device.starts_with('.')
        && device.bytes().all(is_plain)
        && (0..adapters).all(|index| name(index) != device)
}

/// The port with a number of its own in a program's list of adapters, as `umadN` has it: ports are
/// counted through.
#[must_use]
pub fn port(adapters: &[Ca], number: u32) -> Option<(usize, PortNum)> {
    let number = usize::try_from(number).ok()?;
    ports(adapters)
        .nth(number)
        .map(|(index, port)| (index, port.number))
}

fn ports(adapters: &[Ca]) -> impl Iterator<Item = (usize, &CaPort)> {
    adapters
        .iter()
        .enumerate()
        .flat_map(|(index, adapter)| adapter.ports.iter().map(move |port| (index, port)))
}

/// Returns the devices of a program's list of adapters.
#[must_use]
pub fn devices(adapters: &[Ca]) -> Vec<Device> {
    let mut next = 0..;
    let devices = adapters.iter().enumerate().map(|(index, adapter)| {
        let mut files = Vec::new();
        for (port, number) in adapter.ports.iter().zip(&mut next) {
            for (name, first) in [("umad", 0), ("issm", FIRST_ISSM)] {
                files.push(CharacterDevice {
                    class: "infiniband_mad",
                    name: format!("{name}{number}"),
                    number: (MAJOR, first + number),
                    port: Some(port.number.0),
                    abi_version: None,
                });
            }
        }
        Device {
            name: name(index),
            slot: PciSlot {
                // Adapters of a program are fewer than slots of a bus.
                device: u8::try_from(index).unwrap_or(u8::MAX),
                function: 0,
            },
            physical: None,
            vendor_id: VENDOR_ID,
            device_id: adapter.device_id,
            adapter: of_adapter(adapter),
            ports: adapter.ports.iter().map(of_port).collect(),
            files,
        }
    });
    devices.collect()
}

fn of_adapter(adapter: &Ca) -> Adapter {
    Adapter {
        node_type: adapter.node_type,
        node_guid: adapter.node_guid,
        system_image_guid: adapter.system_image_guid,
        description: adapter.description.clone(),
        firmware: adapter.firmware.clone(),
        revision: adapter.revision,
        // As mlx4: of a ConnectX-3 MT4099, which tools look for.
        hca_type: format!("MT{}", adapter.device_id),
    }
}

fn of_port(port: &CaPort) -> (u8, Port) {
    let info = &port.info;
    let shown = Port {
        capability_mask: info.capability_mask.get(),
        lid: info.lid,
        lmc: info.lmc(),
        sm_lid: info.master_sm_lid,
        sm_sl: info.master_sm_sl(),
        state: info.port_state().get(),
        physical_state: info.phys_state().get(),
        width: info.link_width_active.0,
        speed: speed(info),
        gids: port.gids.clone(),
        pkeys: port.pkeys.clone(),
        counters: port.counters.clone(),
        hw_counters: Vec::new(),
    };
    (port.number.0, shown)
}

/// Returns the active speed as the kernel numbers it (`enum ib_port_speed`), from the two fields of PortInfo.
fn speed(info: &PortInfo) -> u16 {
    match info.link_speed_ext_active() {
        LinkSpeedExt::FDR => 16,
        LinkSpeedExt::EDR => 32,
        LinkSpeedExt::HDR => 64,
        LinkSpeedExt::NDR => 128,
        _ => u16::from(info.link_speed_active().get()),
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::smp::{CapabilityMask, LinkSpeed, LinkWidth, PortPhysState, PortState};
    use ib_wire::{Lid, SubnetPrefix};
    use linux_abi::sysfs::{DOMAIN, View};

    use super::*;

    fn adapters() -> Vec<Ca> {
        let mut info = PortInfo {
            lid: Lid::new(0x2a),
            master_sm_lid: Lid::new(1),
            capability_mask: CapabilityMask::new(0x0251_0868),
            link_width_active: LinkWidth::X4,
            ..PortInfo::default()
        };
        info.set_port_state(PortState::ACTIVE);
        info.set_phys_state(PortPhysState::LINK_UP);
        info.set_link_speed_active(LinkSpeed::QDR);
        let port = |number| CaPort {
            number: PortNum(number),
            info,
            gids: vec![Gid::from_parts(
                SubnetPrefix::DEFAULT,
                Guid::new(0x0002_c903_0000_0001),
            )],
            pkeys: vec![PKey::DEFAULT_FULL, PKey::INVALID],
            counters: vec![("port_xmit_data", 18)],
        };
        let adapter = |node_type, ports| Ca {
            node_type,
            node_guid: Guid::new(0x0002_c903_0000_0001),
            system_image_guid: Guid::new(0x0002_c903_0000_0004),
            description: "H-1".to_owned(),
            firmware: "1.2.3".to_owned(),
            revision: 0xa0,
            device_id: 4099,
            ports,
        };
        vec![
            adapter(NodeType::CA, vec![port(1), port(2)]),
            adapter(NodeType::SWITCH, vec![port(0)]),
        ]
    }

    /// Returns the text of a file of an adapter's PCI function.
    fn read(path: &str) -> Option<String> {
        let view = View {
            devices: devices(&adapters()),
            has_verbs: false,
        };
        view.text(&format!("{DOMAIN}/7ca0:00:{path}"))
    }

    #[test]
    fn attributes_read_as_the_kernel_writes_them() {
        for (file, expected) in [
            ("node_guid", "0002:c903:0000:0001\n"),
            ("sys_image_guid", "0002:c903:0000:0004\n"),
            ("node_type", "1: CA\n"),
            ("node_desc", "H-1\n"),
            ("fw_ver", "1.2.3\n"),
            ("hw_rev", "a0\n"),
            ("hca_type", "MT4099\n"),
            ("ports/1/lid", "0x2a\n"),
            ("ports/1/lid_mask_count", "0\n"),
            ("ports/1/sm_lid", "0x1\n"),
            ("ports/1/sm_sl", "0\n"),
            ("ports/1/state", "4: ACTIVE\n"),
            ("ports/1/phys_state", "5: LinkUp\n"),
            ("ports/1/rate", "40 Gb/sec (4X QDR)\n"),
            ("ports/1/cap_mask", "0x02510868\n"),
            ("ports/1/link_layer", "InfiniBand\n"),
            ("ports/1/counters/port_xmit_data", "18\n"),
            (
                "ports/2/gids/0",
                "fe80:0000:0000:0000:0002:c903:0000:0001\n",
            ),
            ("ports/2/pkeys/0", "0xffff\n"),
            ("ports/2/pkeys/1", "0x0000\n"),
        ] {
            let text = read(&format!("00.0/infiniband/vhca0/{file}"));
            assert_eq!(text.as_deref(), Some(expected), "{file}");
        }
        let kind = read("01.0/infiniband/vhca1/node_type");
        assert_eq!(kind.as_deref(), Some("2: switch\n"));
    }

    #[test]
    fn ports_are_counted_through_all_adapters() {
        for (path, text) in [
            ("00.0/infiniband_mad/umad1/ibdev", "vhca0\n"),
            ("00.0/infiniband_mad/umad1/port", "2\n"),
            ("00.0/infiniband_mad/umad1/dev", "231:1\n"),
            ("01.0/infiniband_mad/issm2/ibdev", "vhca1\n"),
            ("01.0/infiniband_mad/issm2/dev", "231:66\n"),
            ("01.0/infiniband_mad/umad2/port", "0\n"),
        ] {
            assert_eq!(read(path).as_deref(), Some(text), "{path}");
        }
        assert_eq!(port(&adapters(), 2), Some((1, PortNum(0))));
        assert_eq!(port(&adapters(), 3), None);
    }

    #[test]
    fn the_extended_speed_goes_before_the_other() {
        let mut info = PortInfo {
            link_width_active: LinkWidth::X1,
            ..PortInfo::default()
        };
        info.set_link_speed_active(LinkSpeed::SDR);
        assert_eq!(speed(&info), 1);
        info.set_link_speed_ext_active(LinkSpeedExt::FDR);
        assert_eq!(speed(&info), 16);
    }
}
