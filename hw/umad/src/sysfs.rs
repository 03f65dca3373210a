//! The files of `/sys/class/infiniband` and `/sys/class/infiniband_mad`: which there are, and what
//! they hold, as the kernel writes it (`drivers/infiniband/core/sysfs.c`, `user_mad.c`).

use ib_wire::smp::{LinkSpeedExt, NodeType, PortInfo};
use ib_wire::{Gid, Guid, PKey, PortNum};
use linux_abi::sysfs::{ADAPTER_FILES, Adapter, PORT_FILES, Port};

/// What `infiniband_mad/abi_version` says (`IB_USER_MAD_ABI_VERSION`).
const ABI_VERSION: u32 = 5;

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
}

/// The name of an adapter in a program's list of them.
#[must_use]
pub fn name(index: usize) -> String {
    format!("vhca{index}")
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

/// The paths of all files, below the file system's root: those of sysfs and the devices.
#[must_use]
pub fn entries(adapters: &[Ca]) -> Vec<String> {
    let mut entries = vec!["sys/class/infiniband_mad/abi_version".to_owned()];
    for (number, _) in ports(adapters).enumerate() {
        for device in ["umad", "issm"] {
            entries.push(format!("dev/infiniband/{device}{number}"));
            for file in ["ibdev", "port"] {
                entries.push(format!("sys/class/infiniband_mad/{device}{number}/{file}"));
            }
        }
    }
    for (index, adapter) in adapters.iter().enumerate() {
        let name = name(index);
        for file in ADAPTER_FILES {
            entries.push(format!("sys/class/infiniband/{name}/{file}"));
        }
        for port in &adapter.ports {
            let port_path = format!("sys/class/infiniband/{name}/ports/{}", port.number.0);
            for file in PORT_FILES {
                entries.push(format!("{port_path}/{file}"));
            }
            for table in [("gids", port.gids.len()), ("pkeys", port.pkeys.len())] {
                let (table, len) = table;
                entries.extend((0..len).map(|entry| format!("{port_path}/{table}/{entry}")));
            }
        }
    }
    entries
}

/// What a file holds, by its path below `/sys/class`; `None` if there is no such file.
#[must_use]
pub fn attribute(adapters: &[Ca], path: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let mut text = match parts.as_slice() {
        ["infiniband_mad", "abi_version"] => ABI_VERSION.to_string(),
        ["infiniband_mad", device, file] => {
            let digits = device
                .strip_prefix("umad")
                .or_else(|| device.strip_prefix("issm"))?;
            let (index, port) = port(adapters, digits.parse().ok()?)?;
            match *file {
                "ibdev" => name(index),
                "port" => port.0.to_string(),
                _ => return None,
            }
        }
        ["infiniband", adapter, rest @ ..] => {
            let index: usize = adapter.strip_prefix("vhca")?.parse().ok()?;
            let adapter = adapters.get(index)?;
            match rest {
                [file] => of_adapter(adapter, file)?,
                ["ports", number, rest @ ..] => {
                    let number = PortNum(number.parse().ok()?);
                    let port = adapter.ports.iter().find(|port| port.number == number)?;
                    of_port(port, rest)?
                }
                _ => return None,
            }
        }
        _ => return None,
    };
    text.push('\n');
    Some(text)
}

fn of_adapter(adapter: &Ca, file: &str) -> Option<String> {
    let shown = Adapter {
        node_type: adapter.node_type,
        node_guid: adapter.node_guid,
        system_image_guid: adapter.system_image_guid,
        description: &adapter.description,
        firmware: &adapter.firmware,
        revision: adapter.revision,
        // As mlx4: of a ConnectX-3 MT4099, which tools look for.
        hca_type: &format!("MT{}", adapter.device_id),
    };
    shown.attribute(file)
}

fn of_port(port: &CaPort, path: &[&str]) -> Option<String> {
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
        gids: &port.gids,
        pkeys: &port.pkeys,
    };
    shown.attribute(path)
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

    fn read(path: &str) -> String {
        attribute(&adapters(), path).unwrap()
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
            (
                "ports/2/gids/0",
                "fe80:0000:0000:0000:0002:c903:0000:0001\n",
            ),
            ("ports/2/pkeys/0", "0xffff\n"),
            ("ports/2/pkeys/1", "0x0000\n"),
        ] {
            assert_eq!(
                read(&format!("infiniband/vhca0/{file}")),
                expected,
                "{file}"
            );
        }
        assert_eq!(read("infiniband/vhca1/node_type"), "2: switch\n");
        assert_eq!(read("infiniband_mad/abi_version"), "5\n");
    }

    #[test]
    fn ports_are_counted_through_all_adapters() {
        assert_eq!(read("infiniband_mad/umad1/ibdev"), "vhca0\n");
        assert_eq!(read("infiniband_mad/umad1/port"), "2\n");
        assert_eq!(read("infiniband_mad/issm2/ibdev"), "vhca1\n");
        assert_eq!(read("infiniband_mad/umad2/port"), "0\n");
        assert_eq!(port(&adapters(), 2), Some((1, PortNum(0))));
        assert_eq!(port(&adapters(), 3), None);
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        for path in [
            "",
            "infiniband",
            "infiniband/vhca2/node_guid",
            "infiniband/mlx4_0/node_guid",
            "infiniband/vhca0/ports/3/lid",
            "infiniband/vhca0/ports/1/gids/1",
            "infiniband/vhca0/ports/1/pkeys/-1",
            "infiniband/vhca0/ports/1/lid/x",
            "infiniband_mad/umad3/ibdev",
            "infiniband_mad/umadx/ibdev",
        ] {
            assert_eq!(attribute(&adapters(), path), None, "{path}");
        }
    }

    #[test]
    fn every_file_that_is_listed_can_be_read() {
        let adapters = adapters();
        let entries = entries(&adapters);
        let files = entries.iter().filter_map(|e| e.strip_prefix("sys/class/"));
        assert!(files.clone().count() > 50);
        for file in files {
            assert!(attribute(&adapters, file).is_some(), "{file}");
        }
        assert!(entries.contains(&"dev/infiniband/issm2".to_owned()));
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
