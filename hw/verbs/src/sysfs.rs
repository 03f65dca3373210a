//! The files of sysfs that programs read about the device, as the kernel writes them.

use core::fmt::Write;

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
    Some(match file {
        "board_id" => "VHCA".to_owned(),
        "fw_ver" => device.firmware.clone(),
        "hca_type" => "vhca".to_owned(),
        "hw_rev" => format!("{:x}", device.hw_rev),
        "node_desc" => device.description.clone(),
        "node_guid" => groups(&device.node_guid.get().to_be_bytes()),
        "node_type" => "1: CA".to_owned(),
        "sys_image_guid" => groups(&device.system_image_guid.get().to_be_bytes()),
        _ => return None,
    })
}

fn of_port(port: &PortView, rest: &[&str]) -> Option<String> {
    let is = &port.attributes;
    Some(match rest {
        ["cap_mask"] => format!("0x{:08x}", is.capability_mask),
        ["lid"] => format!("0x{:x}", is.lid.get()),
        ["lid_mask_count"] => is.lmc.get().to_string(),
        ["link_layer"] => "InfiniBand".to_owned(),
        ["sm_lid"] => format!("0x{:x}", is.sm_lid.get()),
        ["sm_sl"] => is.sm_sl.get().to_string(),
        ["state"] => {
            let names = ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE"];
            let number = state(is.state);
            format!("{number}: {}", names.get(usize::from(number))?)
        }
        ["phys_state"] => {
            let names = [
                "<unknown>",
                "Sleep",
                "Polling",
                "Disabled",
                "PortConfigurationTraining",
                "LinkUp",
                "LinkErrorRecovery",
            ];
            let number = physical_state(is.physical_state);
            format!("{number}: {}", names.get(usize::from(number))?)
        }
        ["rate"] => rate(is.active_width, is.active_speed),
        ["gids", entry] => groups(&port.gids.get(entry.parse::<usize>().ok()?)?.0),
        ["pkeys", entry] => {
            let pkey = port.pkeys.get(entry.parse::<usize>().ok()?)?;
            format!("0x{:04x}", pkey.get())
        }
        _ => return None,
    })
}

/// Returns width times speed as the kernel writes it.
fn rate(width: u8, speed: u8) -> String {
    let lanes = match width {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    };
    // Units of 100 Mb/s.
    let (lane, name) = match speed {
        2 => (50, " DDR"),
        4 => (100, " QDR"),
        8 => (100, " FDR10"),
        16 => (140, " FDR"),
        32 => (250, " EDR"),
        64 => (500, " HDR"),
        128 => (1000, " NDR"),
        _ => (25, " SDR"),
    };
    let total = lanes * lane;
    let decimal = if total % 10 == 0 { "" } else { ".5" };
    format!("{}{decimal} Gb/sec ({lanes}X{name})", total / 10)
}

/// Returns groups of four digits with colons between them.
fn groups(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (index, pair) in bytes.chunks(2).enumerate() {
        if index > 0 {
            text.push(':');
        }
        for byte in pair {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
    }
    text
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

    #[test]
    fn rates_have_their_width_and_speed() {
        assert_eq!(rate(2, 32), "100 Gb/sec (4X EDR)");
        assert_eq!(rate(1, 1), "2.5 Gb/sec (1X SDR)");
    }
}
