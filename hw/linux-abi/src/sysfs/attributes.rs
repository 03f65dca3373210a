//! Texts of an adapter and of a port, without the newline at their ends.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write;

use ib_wire::smp::NodeType;
use ib_wire::{Gid, Guid, Lid, Lmc, PKey, Sl};

/// Files of an adapter.
pub(super) const ADAPTER_FILES: [&str; 8] = [
    "board_id",
    "fw_ver",
    "hca_type",
    "hw_rev",
    "node_desc",
    "node_guid",
    "node_type",
    "sys_image_guid",
];

/// Files of a port, apart from its tables and counters.
pub(super) const PORT_FILES: [&str; 9] = [
    "cap_mask",
    "lid",
    "lid_mask_count",
    "link_layer",
    "phys_state",
    "rate",
    "sm_lid",
    "sm_sl",
    "state",
];

/// An adapter, or a switch, as sysfs shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Kind of node.
    pub node_type: NodeType,
    /// GUID of the node.
    pub node_guid: Guid,
    /// GUID of the system that it is part of.
    pub system_image_guid: Guid,
    /// Node description.
    pub description: String,
    /// Firmware version.
    pub firmware: String,
    /// Hardware revision.
    pub revision: u32,
    /// Kind of adapter: `MT4099` of an mlx4 (`hca_type_show`).
    pub hca_type: String,
}

/// A port, as sysfs shows it. Numbers are as in `struct ib_port_attr`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Capability mask.
    pub capability_mask: u32,
    /// LID.
    pub lid: Lid,
    /// Number of low bits of the LID that select a path.
    pub lmc: Lmc,
    /// LID of the subnet manager.
    pub sm_lid: Lid,
    /// Service level towards the subnet manager.
    pub sm_sl: Sl,
    /// Logical state (`enum ib_port_state`).
    pub state: u8,
    /// Physical state (`enum ib_port_phys_state`).
    pub physical_state: u8,
    /// Active width (`enum ib_port_width`).
    pub width: u8,
    /// Active speed (`enum ib_port_speed`).
    pub speed: u16,
    /// GID table; empty entries are zero.
    pub gids: Vec<Gid>,
    /// P_Key table; empty entries are 0.
    pub pkeys: Vec<PKey>,
    /// Counters of the port's performance management agent, with the names of the files.
    pub counters: Vec<(&'static str, u64)>,
    /// Counters of the driver, with the names of the files.
    pub hw_counters: Vec<(&'static str, u64)>,
}

impl Adapter {
    /// Returns the text of a file, `None` if there is no such file.
    #[must_use]
    pub fn attribute(&self, file: &str) -> Option<String> {
        Some(match file {
            "board_id" => "VHCA".to_owned(),
            "fw_ver" => self.firmware.clone(),
            "hca_type" => self.hca_type.clone(),
            "hw_rev" => format!("{:x}", self.revision),
            "node_desc" => self.description.clone(),
            "node_guid" => groups(&self.node_guid.get().to_be_bytes()),
            "node_type" => node_type(self.node_type),
            "sys_image_guid" => groups(&self.system_image_guid.get().to_be_bytes()),
            _ => return None,
        })
    }
}

impl Port {
    /// Returns the text of a file by its path below the port's folder, `None` if there is no such file.
    #[must_use]
    pub fn attribute(&self, path: &[&str]) -> Option<String> {
        Some(match path {
            ["cap_mask"] => format!("0x{:08x}", self.capability_mask),
            ["lid"] => format!("0x{:x}", self.lid.get()),
            ["lid_mask_count"] => self.lmc.get().to_string(),
            ["link_layer"] => "InfiniBand".to_owned(),
            ["phys_state"] => physical_state(self.physical_state),
            ["rate"] => rate(self.width, self.speed),
            ["sm_lid"] => format!("0x{:x}", self.sm_lid.get()),
            ["sm_sl"] => self.sm_sl.get().to_string(),
            ["state"] => state(self.state),
            ["gid_attrs", "types", entry] => {
                let gid = self.gids.get(entry.parse::<usize>().ok()?)?;
                (!gid.is_none()).then(|| "IB/RoCE v1".to_owned())?
            }
            ["counters", name] => value(&self.counters, name)?.to_string(),
            ["hw_counters", name] => value(&self.hw_counters, name)?.to_string(),
            ["gids", entry] => groups(&self.gids.get(entry.parse::<usize>().ok()?)?.0),
            ["pkeys", entry] => {
                let pkey = self.pkeys.get(entry.parse::<usize>().ok()?)?;
                format!("0x{:04x}", pkey.get())
            }
            _ => return None,
        })
    }
}

fn value(counters: &[(&'static str, u64)], name: &str) -> Option<u64> {
    let mut counters = counters.iter();
    counters
        .find(|counter| counter.0 == name)
        .map(|counter| counter.1)
}

/// `node_type_show`.
fn node_type(node_type: NodeType) -> String {
    match node_type {
        NodeType::CA => "1: CA".to_owned(),
        NodeType::SWITCH => "2: switch".to_owned(),
        NodeType::ROUTER => "3: router".to_owned(),
        other => format!("{}: <unknown>", other.get()),
    }
}

/// `state_show`.
fn state(number: u8) -> String {
    let name = match number {
        0 => "NOP",
        1 => "DOWN",
        2 => "INIT",
        3 => "ARMED",
        4 => "ACTIVE",
        5 => "ACTIVE_DEFER",
        _ => "UNKNOWN",
    };
    format!("{number}: {name}")
}

/// `phys_state_show`.
fn physical_state(number: u8) -> String {
    let name = match number {
        1 => "Sleep",
        2 => "Polling",
        3 => "Disabled",
        4 => "PortConfigurationTraining",
        5 => "LinkUp",
        6 => "LinkErrorRecovery",
        7 => "Phy Test",
        _ => "<unknown>",
    };
    format!("{number}: {name}")
}

/// `rate_show`: width times speed. The kernel refuses to read the file where it does not know the width; here it counts as one
/// lane.
fn rate(width: u8, speed: u16) -> String {
    let lanes = match width {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    };
    // Units of 100 Mb/s.
    let (lane, name) = match speed {
        2 => (50, "DDR"),
        4 => (100, "QDR"),
        8 => (100, "FDR10"),
        16 => (140, "FDR"),
        32 => (250, "EDR"),
        64 => (500, "HDR"),
        128 => (1000, "NDR"),
        _ => (25, "SDR"),
    };
    let total = lanes * lane;
    let decimal = if total % 10 == 0 { "" } else { ".5" };
    format!("{}{decimal} Gb/sec ({lanes}X {name})", total / 10)
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

    /// All texts of `rate_show` in Linux 6.1: a line for each speed of `enum ib_port_speed`, with the widths 1X, 2X, 4X, 8X and 12X.
    const RATES: &str = "\
2.5 Gb/sec (1X SDR)|5 Gb/sec (2X SDR)|10 Gb/sec (4X SDR)|20 Gb/sec (8X SDR)|30 Gb/sec (12X SDR)
5 Gb/sec (1X DDR)|10 Gb/sec (2X DDR)|20 Gb/sec (4X DDR)|40 Gb/sec (8X DDR)|60 Gb/sec (12X DDR)
10 Gb/sec (1X QDR)|20 Gb/sec (2X QDR)|40 Gb/sec (4X QDR)|80 Gb/sec (8X QDR)|120 Gb/sec (12X QDR)
10 Gb/sec (1X FDR10)|20 Gb/sec (2X FDR10)|40 Gb/sec (4X FDR10)|80 Gb/sec (8X FDR10)|120 Gb/sec (12X FDR10)
14 Gb/sec (1X FDR)|28 Gb/sec (2X FDR)|56 Gb/sec (4X FDR)|112 Gb/sec (8X FDR)|168 Gb/sec (12X FDR)
25 Gb/sec (1X EDR)|50 Gb/sec (2X EDR)|100 Gb/sec (4X EDR)|200 Gb/sec (8X EDR)|300 Gb/sec (12X EDR)
50 Gb/sec (1X HDR)|100 Gb/sec (2X HDR)|200 Gb/sec (4X HDR)|400 Gb/sec (8X HDR)|600 Gb/sec (12X HDR)
100 Gb/sec (1X NDR)|200 Gb/sec (2X NDR)|400 Gb/sec (4X NDR)|800 Gb/sec (8X NDR)|1200 Gb/sec (12X NDR)";

    #[test]
    fn rates_of_all_widths_and_speeds_read_as_the_kernel_writes_them() {
        for (nth, line) in RATES.lines().enumerate() {
            for (width, text) in [1, 16, 2, 4, 8].into_iter().zip(line.split('|')) {
                assert_eq!(rate(width, 1 << nth), text);
            }
        }
        assert_eq!(rate(1, 0), "2.5 Gb/sec (1X SDR)");
    }

    #[test]
    fn files_that_are_listed_can_be_read_and_no_others() {
        let adapter = Adapter {
            node_type: NodeType::CA,
            node_guid: Guid::new(0x0002_c903_0000_1000),
            system_image_guid: Guid::new(0x0002_c903_0000_1003),
            description: "H-1".to_owned(),
            firmware: "1.2.3".to_owned(),
            revision: 0xa0,
            hca_type: "MT4099".to_owned(),
        };
        assert!(
            ADAPTER_FILES
                .iter()
                .all(|file| adapter.attribute(file).is_some())
        );
        assert_eq!(adapter.attribute("hw_rev").as_deref(), Some("a0"));
        assert_eq!(adapter.attribute("lid"), None);
        let port = Port {
            capability_mask: 0x0251_0868,
            lid: Lid::new(0x2a),
            lmc: Lmc::new(1).unwrap(),
            sm_lid: Lid::new(1),
            sm_sl: Sl::from_low_bits(0),
            state: 4,
            physical_state: 5,
            width: 2,
            speed: 4,
            gids: alloc::vec![Gid([0xfe; 16])],
            pkeys: alloc::vec![PKey::DEFAULT_FULL],
            counters: Vec::new(),
            hw_counters: Vec::new(),
        };
        assert!(
            PORT_FILES
                .iter()
                .all(|file| port.attribute(&[file]).is_some())
        );
        let read = |path: &[&str]| port.attribute(path).unwrap_or_default();
        assert_eq!(read(&["state"]), "4: ACTIVE");
        assert_eq!(read(&["phys_state"]), "5: LinkUp");
        assert_eq!(
            read(&["gids", "0"]),
            "fefe:fefe:fefe:fefe:fefe:fefe:fefe:fefe"
        );
        assert_eq!(read(&["pkeys", "0"]), "0xffff");
        for absent in [
            &["gids", "1"][..],
            &["pkeys", "-1"],
            &["gids"],
            &["node_guid"],
            &[],
        ] {
            assert_eq!(port.attribute(absent), None);
        }
    }
}
