//! The texts of an adapter and of a port, read back.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use ib_wire::smp::NodeType;
use ib_wire::{Gid, Guid, Lid, Lmc, PKey, Sl};

use super::attributes::{Adapter, Port};

/// Entries of a table that are read at most: an index of umad's has eight bits, and no HCA has more P_Keys.
const MAX_ENTRIES: usize = 1 << 10;

/// Returns the text of a file. `None` if there is no such file.
type Read<'r> = dyn FnMut(&str) -> Option<String> + 'r;

impl Adapter {
    /// Reads an adapter: `read` gives the text of each file of its folder. Returns `None` if a GUID or the type of the node is missing
    /// or makes no sense.
    #[must_use]
    pub fn read(read: &mut Read<'_>) -> Option<Self> {
        let node_type = number_before_colon(&read("node_type")?)?;
        let node_guid = guid(&read("node_guid")?)?;
        let system_image_guid = guid(&read("sys_image_guid")?)?;
        // Not every driver has these.
        let mut text = |file| read(file).unwrap_or_default().trim().to_owned();
        let revision = text("hw_rev");
        let revision = revision.strip_prefix("0x").unwrap_or(&revision);
        Some(Self {
            node_type: NodeType::new(node_type),
            node_guid,
            system_image_guid,
            revision: u32::from_str_radix(revision, 16).unwrap_or(0),
            description: text("node_desc"),
            firmware: text("fw_ver"),
            hca_type: text("hca_type"),
        })
    }
}

impl Port {
    /// Reads a port without its counters: `read` gives the text of each file below its folder. Returns `None` if the state, a LID or
    /// the capability mask is missing or makes no sense; what the kernel refuses to read of a port without a link is zero.
    #[must_use]
    pub fn read(read: &mut Read<'_>) -> Option<Self> {
        let state = number_before_colon(&read("state")?)?;
        let capability_mask = u32::try_from(number(&read("cap_mask")?)?).ok()?;
        let mut lid = |file| Some(Lid::new(u16::try_from(number(&read(file)?)?).ok()?));
        let (lid, sm_lid) = (lid("lid")?, lid("sm_lid")?);
        let mut small = |file| number(&read(file)?).and_then(|number| u8::try_from(number).ok());
        let (lmc, sm_sl) = (small("lid_mask_count"), small("sm_sl"));
        let physical_state = read("phys_state").and_then(|text| number_before_colon(&text));
        let (width, speed) = read("rate").map_or((0, 0), |text| width_and_speed(&text));
        let mut entries = |folder: &str| {
            let mut texts = Vec::new();
            while let Some(text) = read(&alloc::format!("{folder}/{}", texts.len()))
                && texts.len() < MAX_ENTRIES
            {
                texts.push(text);
            }
            texts
        };
        let gids = entries("gids");
        let pkeys = entries("pkeys");
        let pkey = |text: &String| number(text).and_then(|number| u16::try_from(number).ok());
        Some(Self {
            capability_mask,
            lid,
            lmc: Lmc::from_low_bits(lmc.unwrap_or(0)),
            sm_lid,
            sm_sl: Sl::from_low_bits(sm_sl.unwrap_or(0)),
            state,
            physical_state: physical_state.unwrap_or(0),
            width,
            speed,
            gids: gids
                .iter()
                .map(|text| gid(text).unwrap_or(Gid::NONE))
                .collect(),
            pkeys: pkeys
                .iter()
                .map(|text| pkey(text).map_or(PKey::INVALID, PKey::new))
                .collect(),
            counters: Vec::new(),
            hw_counters: Vec::new(),
        })
    }
}

/// Reads a number in decimal, or in hexadecimal behind `0x`.
fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn number_before_colon(text: &str) -> Option<u8> {
    text.split(':').next()?.trim().parse().ok()
}

fn guid(text: &str) -> Option<Guid> {
    groups::<8>(text).map(|bytes| Guid::new(u64::from_be_bytes(bytes)))
}

fn gid(text: &str) -> Option<Gid> {
    groups::<16>(text).map(Gid)
}

/// Reads bytes in groups of four digits.
fn groups<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let mut groups = text.trim().split(':');
    for pair in bytes.chunks_exact_mut(2) {
        let group = u16::from_str_radix(groups.next()?, 16).ok()?;
        pair.copy_from_slice(&group.to_be_bytes());
    }
    groups.next().is_none().then_some(bytes)
}

/// Reads width and speed from the text of `rate_show`, as codes; an unknown one is 0.
fn width_and_speed(text: &str) -> (u8, u16) {
    let inside = text
        .trim()
        .split_once('(')
        .and_then(|(_, rest)| rest.strip_suffix(')'));
    let (lanes, speed) = inside
        .and_then(|inside| inside.split_once(' '))
        .unwrap_or_default();
    let width = match lanes {
        "1X" => 1,
        "2X" => 16,
        "4X" => 2,
        "8X" => 4,
        "12X" => 8,
        _ => 0,
    };
    let speeds = ["SDR", "DDR", "QDR", "FDR10", "FDR", "EDR", "HDR", "NDR"];
    let speed = speeds.iter().position(|name| *name == speed);
    (width, speed.map_or(0, |bit| 1 << bit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port() -> Port {
        Port {
            capability_mask: 0x0251_0868,
            lid: Lid::new(0x2a),
            lmc: Lmc::from_low_bits(1),
            sm_lid: Lid::new(1),
            sm_sl: Sl::from_low_bits(3),
            state: 4,
            physical_state: 5,
            width: 2,
            speed: 4,
            gids: alloc::vec![Gid([0xfe; 16]), Gid::NONE],
            pkeys: alloc::vec![PKey::DEFAULT_FULL, PKey::INVALID],
            counters: Vec::new(),
            hw_counters: Vec::new(),
        }
    }

    #[test]
    fn an_adapter_and_a_port_are_read_as_they_were_written() {
        let adapter = Adapter {
            node_type: NodeType::CA,
            node_guid: Guid::new(0x0002_c903_0000_1000),
            system_image_guid: Guid::new(0x0002_c903_0000_1003),
            description: "H-1 HCA-1".to_owned(),
            firmware: "1.2.3".to_owned(),
            revision: 0xa0,
            hca_type: "MT4099".to_owned(),
        };
        let written = |file: &str| adapter.attribute(file).map(|text| text + "\n");
        assert_eq!(Adapter::read(&mut { written }), Some(adapter.clone()));
        for (width, speed) in (0..8).flat_map(|bit| [1, 2, 4, 8, 16].map(|width| (width, 1 << bit)))
        {
            let port = Port {
                width,
                speed,
                ..port()
            };
            let written = |path: &str| port.attribute(&path.split('/').collect::<Vec<_>>());
            assert_eq!(Port::read(&mut { written }), Some(port.clone()));
        }
    }

    #[test]
    fn what_makes_no_sense_is_absent_or_zero() {
        let with = |file: &'static str, text: &'static str| {
            let port = port();
            Port::read(&mut move |path: &str| match path == file {
                true => Some(text.to_owned()),
                false => port.attribute(&path.split('/').collect::<Vec<_>>()),
            })
        };
        for (file, text) in [
            ("state", "ACTIVE"),
            ("lid", "0x10000"),
            ("sm_lid", ""),
            ("cap_mask", "0x123456789"),
        ] {
            assert_eq!(with(file, text), None, "{file}");
        }
        let read = |file, text| with(file, text).unwrap();
        assert_eq!(read("gids/0", "fe80::1").gids[0], Gid::NONE);
        assert_eq!(read("pkeys/1", "0x10001").pkeys[1], PKey::INVALID);
        for rate in ["", "40 Gb/sec", "40 Gb/sec (5X ODD)", "("] {
            let port = read("rate", rate);
            assert_eq!((port.width, port.speed), (0, 0));
        }
    }
}
