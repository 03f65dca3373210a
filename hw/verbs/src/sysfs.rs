//! The files of sysfs that programs read about the device, as the kernel writes them.

use ib_wire::smp::NodeType;
use linux_abi::sysfs::{Adapter, Port};

use crate::abi::rdma_cm::RDMA_CM_ABI_VERSION;
use crate::abi::{ABI_VERSION, RXE_ABI_VERSION};
use crate::view::{DeviceView, PortView, physical_state, state};

/// Major number of the devices of `/dev/infiniband`.
pub const MAJOR: u32 = 231;

/// Minor number of `uverbs0`.
pub const FIRST_MINOR: u32 = 192;

/// Number of `rdma_cm`, which is among the kernel's miscellaneous devices.
pub const RDMA_CM_MAJOR: u32 = 10;

/// Second part of the number of `rdma_cm`.
pub const RDMA_CM_MINOR: u32 = 122;

/// Returns what a file holds, by its path below `/sys/class`; `None` if there is no such file.
#[must_use]
pub fn attribute(device: Option<&DeviceView>, path: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let mut text = match parts.as_slice() {
        ["infiniband_verbs", "abi_version"] => ABI_VERSION.to_string(),
        ["misc", "rdma_cm", "abi_version"] => RDMA_CM_ABI_VERSION.to_string(),
        ["misc", "rdma_cm", "dev"] => format!("{RDMA_CM_MAJOR}:{RDMA_CM_MINOR}"),
        ["infiniband_verbs", uverbs, file] => {
            let device = device.filter(|device| *uverbs == file_name(device))?;
            match *file {
                "ibdev" => device.name.clone(),
                "dev" => format!("{MAJOR}:{}", FIRST_MINOR + device.number),
                "abi_version" => RXE_ABI_VERSION.to_string(),
                _ => return None,
            }
        }
        ["infiniband", name, rest @ ..] => {
            let device = device.filter(|device| *name == device.name)?;
            match rest {
                [file] => of_device(device, file)?,
                ["ports", number, rest @ ..] => {
                    let number = number.parse().ok()?;
                    let mut ports = device.ports.iter();
                    of_port(ports.find(|port| port.number.0 == number)?, rest)?
                }
                _ => return None,
            }
        }
        _ => return None,
    };
    text.push('\n');
    Some(text)
}

/// Returns the name of a device's file in `/dev/infiniband`.
#[must_use]
pub fn file_name(device: &DeviceView) -> String {
    format!("uverbs{}", device.number)
}

fn of_device(device: &DeviceView, file: &str) -> Option<String> {
    let shown = Adapter {
        node_type: NodeType::CA,
        node_guid: device.node_guid,
        system_image_guid: device.system_image_guid,
        description: &device.description,
        firmware: &device.firmware,
        revision: device.hw_rev,
        hca_type: "vhca",
    };
    shown.attribute(file)
}

fn of_port(port: &PortView, path: &[&str]) -> Option<String> {
    let is = &port.attributes;
    let shown = Port {
        capability_mask: is.capability_mask,
        lid: is.lid,
        lmc: is.lmc,
        sm_lid: is.sm_lid,
        sm_sl: is.sm_sl,
        state: state(is.state),
        physical_state: physical_state(is.physical_state),
        width: is.active_width,
        speed: is.active_speed.into(),
        gids: &port.gids,
        pkeys: &port.pkeys,
    };
    shown.attribute(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Process;

    #[test]
    fn files_hold_what_the_kernels_do() {
        let device =
            Process::new().with(|_, hca| DeviceView::of(hca, "vhca1".to_owned(), 0, "H-1".into()));
        let read = |path| attribute(Some(&device), path);
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(read("infiniband_verbs/abi_version"), text("6\n"));
        assert_eq!(read("infiniband_verbs/uverbs0/ibdev"), text("vhca1\n"));
        assert_eq!(read("infiniband_verbs/uverbs0/dev"), text("231:192\n"));
        assert_eq!(read("infiniband/vhca1/ports/1/lid"), text("0x5\n"));
        assert_eq!(read("infiniband/vhca1/ports/1/state"), text("4: ACTIVE\n"));
        assert_eq!(
            read("infiniband/vhca1/node_guid"),
            text("0002:c903:0000:1000\n")
        );
        assert_eq!(read("infiniband/vhca1/ports/1/pkeys/0"), text("0xffff\n"));
        for absent in [
            "infiniband/vhca0/node_guid",
            "infiniband/vhca1/ports/3/lid",
            "infiniband/vhca1/ports/1/gid_attrs/types/0",
            "infiniband/vhca1/ports/1/gids/99999",
            "infiniband_verbs/uverbs1/dev",
            "net",
        ] {
            assert_eq!(read(absent), None, "{absent}");
        }
        assert_eq!(attribute(None, "infiniband_verbs/abi_version"), text("6\n"));
        assert_eq!(attribute(None, "infiniband_verbs/uverbs0/dev"), None);
    }
}
