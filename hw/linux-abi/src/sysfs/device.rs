//! The folders, links and files of a device and of its files in `/dev`, as a PCI function below a domain that no host has.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use super::attributes::{ADAPTER_FILES, Adapter, PORT_FILES, Port};

/// Path of the PCI domain below `/`. Linux gives firmware's domains 16 bits, and numbers from 0x10000 on to others.
pub const DOMAIN: &str = "sys/devices/pci7ca0:00";

/// Class of a PCI function that is an InfiniBand controller (`PCI_CLASS_SERIAL_INFINIBAND`), with its programming interface.
const PCI_CLASS: &str = "0x020700";

/// Place of a PCI function on the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciSlot {
    /// Device number, 0 to 31.
    pub device: u8,
    /// Function number, 0 to 7.
    pub function: u8,
}

impl fmt::Display for PciSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "7ca0:00:{:02x}.{:x}", self.device, self.function)
    }
}

/// A character device that belongs to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CharacterDevice {
    /// Class: `infiniband_mad` or `infiniband_verbs`.
    pub class: &'static str,
    /// Name, in the class and in `/dev/infiniband`.
    pub name: String,
    /// Major and minor number.
    pub number: (u32, u32),
    /// Number of the port, of a file about one.
    pub port: Option<u8>,
    /// Version of the driver's interface, of a file that has it.
    pub abi_version: Option<u32>,
}

/// A device of `/sys/class/infiniband`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Name.
    pub name: String,
    /// PCI function.
    pub slot: PciSlot,
    /// Physical function, of a virtual one.
    pub physical: Option<PciSlot>,
    /// Vendor of the PCI function.
    pub vendor_id: u16,
    /// Device id of the PCI function.
    pub device_id: u16,
    /// The adapter.
    pub adapter: Adapter,
    /// Ports with their numbers, in order.
    pub ports: Vec<(u8, Port)>,
    /// Files in `/dev/infiniband`.
    pub files: Vec<CharacterDevice>,
}

/// A file or a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Path below `/`.
    pub path: String,
    /// Target of the link, if it is one: relative, as the kernel's are.
    pub target: Option<String>,
}

impl Entry {
    pub(super) fn file(path: String) -> Self {
        Self { path, target: None }
    }

    /// Returns the permissions of the file, in octal as `st_mode` has them: attributes that the kernel can write are the owner's to
    /// write.
    #[must_use]
    pub fn mode(&self) -> u32 {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        let is_written = matches!(name, "lifespan" | "node_desc" | "numa_node" | "uevent");
        let is_device = self.path.starts_with("dev/");
        if is_written || is_device {
            0o644
        } else {
            0o444
        }
    }

    pub(super) fn link(path: String, target: String) -> Self {
        let target = Some(target);
        Self { path, target }
    }
}

/// Files of a PCI function.
const FUNCTION_FILES: [&str; 15] = [
    "class",
    "current_link_speed",
    "current_link_width",
    "device",
    "local_cpulist",
    "local_cpus",
    "max_link_speed",
    "max_link_width",
    "modalias",
    "numa_node",
    "revision",
    "subsystem_device",
    "subsystem_vendor",
    "uevent",
    "vendor",
];

impl Device {
    /// Returns the folder of the PCI function.
    fn function_folder(&self) -> String {
        format!("{DOMAIN}/{}", self.slot)
    }

    /// Adds the folders' files and links to a list. Paths are below `/`.
    pub fn list(&self, entries: &mut Vec<Entry>) {
        let Self { name, slot, .. } = self;
        let function = self.function_folder();
        for file in FUNCTION_FILES {
            entries.push(Entry::file(format!("{function}/{file}")));
        }
        if let Some(physical) = self.physical {
            let target = format!("../{physical}");
            entries.push(Entry::link(format!("{function}/physfn"), target));
        }
        let class = |class: &str, name: &str| {
            let path = format!("sys/class/{class}/{name}");
            let target = format!("../../devices/pci7ca0:00/{slot}/{class}/{name}");
            Entry::link(path, target)
        };
        let folder = format!("{function}/infiniband/{name}");
        let links = |folder: &str, class: &str| {
            let subsystem = format!("../../../../../class/{class}");
            let device = format!("../../../{slot}");
            [
                Entry::link(format!("{folder}/subsystem"), subsystem),
                Entry::link(format!("{folder}/device"), device),
            ]
        };
        entries.push(class("infiniband", name));
        entries.extend(links(&folder, "infiniband"));
        for file in ADAPTER_FILES.iter().chain(&["uevent"]) {
            entries.push(Entry::file(format!("{folder}/{file}")));
        }
        for (number, port) in &self.ports {
            let folder = format!("{folder}/ports/{number}");
            let files = PORT_FILES.iter().map(|file| (*file).to_owned());
            let counters = port
                .counters
                .iter()
                .map(|(name, _)| format!("counters/{name}"));
            let hardware = port.hw_counters.iter();
            let hardware = hardware.map(|(name, _)| format!("hw_counters/{name}"));
            let table = |name: &'static str, len: usize| {
                (0..len).map(move |entry| format!("{name}/{entry}"))
            };
            let tables = table("gids", port.gids.len())
                .chain(table("gid_attrs/types", port.gids.len()))
                .chain(table("gid_attrs/ndevs", port.gids.len()))
                .chain(table("pkeys", port.pkeys.len()));
            let files = files.chain(counters).chain(hardware).chain(tables);
            entries.extend(files.map(|file| Entry::file(format!("{folder}/{file}"))));
        }
        for file in &self.files {
            let folder = format!("{function}/{}/{}", file.class, file.name);
            entries.push(class(file.class, &file.name));
            entries.extend(links(&folder, file.class));
            let port = file.port.map(|_| "port");
            let version = file.abi_version.map(|_| "abi_version");
            let all = ["dev", "ibdev", "uevent"].into_iter();
            for file in all.chain(port).chain(version) {
                entries.push(Entry::file(format!("{folder}/{file}")));
            }
            entries.push(Entry::file(format!("dev/infiniband/{}", file.name)));
        }
    }

    /// Returns the text of a file by its path below `/`, with the newline at its end. `None` if the device has no such file,
    /// and for the GID attributes of an empty entry, which the kernel refuses to read.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        let path = path.strip_prefix(DOMAIN)?.strip_prefix('/')?;
        let (slot, path) = path.split_once('/')?;
        if slot != self.slot.to_string() {
            return None;
        }
        let parts: Vec<&str> = path.split('/').collect();
        let text = match parts.as_slice() {
            [file] => self.of_function(file)?,
            ["infiniband", name, rest @ ..] if *name == self.name => match rest {
                ["uevent"] => format!("NAME={name}"),
                [file] => self.adapter.attribute(file)?,
                ["ports", number, rest @ ..] => {
                    let number = number.parse().ok()?;
                    let mut ports = self.ports.iter();
                    let (_, port) = ports.find(|(port, _)| *port == number)?;
                    port.attribute(rest)?
                }
                _ => return None,
            },
            [class, name, file] => {
                let mut files = self.files.iter();
                let is = |is: &&CharacterDevice| is.class == *class && is.name == *name;
                self.of_file(files.find(is)?, file)?
            }
            _ => return None,
        };
        Some(text + "\n")
    }

    fn of_function(&self, file: &str) -> Option<String> {
        let (vendor, device) = (self.vendor_id, self.device_id);
        Some(match file {
            "vendor" | "subsystem_vendor" => format!("0x{vendor:04x}"),
            "device" | "subsystem_device" => format!("0x{device:04x}"),
            "class" => PCI_CLASS.to_owned(),
            "revision" => "0x00".to_owned(),
            // Every machine has this node, and this processor.
            "numa_node" | "local_cpulist" => "0".to_owned(),
            "local_cpus" => "1".to_owned(),
            // As of a function without a PCI Express link (`PCI_SPEED_UNKNOWN`, `PCIE_LNK_WIDTH_UNKNOWN`).
            "current_link_speed" | "max_link_speed" => "Unknown".to_owned(),
            "current_link_width" => "0".to_owned(),
            "max_link_width" => "255".to_owned(),
            "modalias" => {
                format!("pci:v{vendor:08X}d{device:08X}sv{vendor:08X}sd{device:08X}bc02sc07i00")
            }
            "uevent" => format!(
                "PCI_CLASS=20700\nPCI_ID={vendor:04X}:{device:04X}\nPCI_SUBSYS_ID={vendor:04X}:{device:04X}\n\
                 PCI_SLOT_NAME={}\nMODALIAS={}",
                self.slot,
                self.of_function("modalias")?
            ),
            _ => return None,
        })
    }

    fn of_file(&self, of: &CharacterDevice, file: &str) -> Option<String> {
        let (major, minor) = of.number;
        Some(match file {
            "dev" => format!("{major}:{minor}"),
            "ibdev" => self.name.clone(),
            "uevent" => {
                // `uverbs_devnode`.
                let mode = match of.class {
                    "infiniband_verbs" => "\nDEVMODE=0666",
                    _ => "",
                };
                let name = &of.name;
                format!("MAJOR={major}\nMINOR={minor}\nDEVNAME=infiniband/{name}{mode}")
            }
            "port" => of.port?.to_string(),
            "abi_version" => of.abi_version?.to_string(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::vec;

    use ib_wire::smp::NodeType;
    use ib_wire::{Gid, Guid, Lid, Lmc, PKey, Sl};

    use super::*;

    fn device() -> Device {
        let guid = Guid::new(0x0002_c903_0000_1000);
        let port = Port {
            capability_mask: 0x0251_0868,
            lid: Lid::new(0x2a),
            lmc: Lmc::new(0).unwrap(),
            sm_lid: Lid::new(1),
            sm_sl: Sl::from_low_bits(0),
            state: 4,
            physical_state: 5,
            width: 2,
            speed: 4,
            gids: vec![Gid([0xfe; 16]), Gid::NONE],
            pkeys: vec![PKey::DEFAULT_FULL],
            counters: vec![("port_xmit_data", 18)],
            hw_counters: vec![("lifespan", 10)],
        };
        Device {
            name: "vhca1".to_owned(),
            slot: PciSlot {
                device: 0,
                function: 1,
            },
            physical: Some(PciSlot {
                device: 0,
                function: 0,
            }),
            vendor_id: 0x15b3,
            device_id: 0x1004,
            adapter: Adapter {
                node_type: NodeType::CA,
                node_guid: guid,
                system_image_guid: guid,
                description: "H-1".to_owned(),
                firmware: "1.2.3".to_owned(),
                revision: 0,
                hca_type: "vhca".to_owned(),
            },
            ports: vec![(1, port)],
            files: vec![CharacterDevice {
                class: "infiniband_verbs",
                name: "uverbs0".to_owned(),
                number: (231, 192),
                port: None,
                abi_version: Some(1),
            }],
        }
    }

    /// Returns the path below `/` to which a link at a path leads.
    fn follow(path: &str, target: &str) -> String {
        let mut parts: Vec<&str> = path.split('/').collect();
        parts.pop();
        for part in target.split('/') {
            match part {
                ".." => drop(parts.pop()),
                part => parts.push(part),
            }
        }
        parts.join("/")
    }

    #[test]
    fn every_link_leads_to_a_folder_of_the_list() {
        let device = device();
        let mut entries = Vec::new();
        device.list(&mut entries);
        let mut folders = BTreeSet::from(["sys/class/infiniband", "sys/class/infiniband_verbs"]);
        for entry in &entries {
            let mut path = entry.path.as_str();
            while let Some((folder, _)) = path.rsplit_once('/') {
                folders.insert(folder);
                path = folder;
            }
        }
        let links = entries
            .iter()
            .filter_map(|entry| Some((entry, entry.target.as_ref()?)));
        assert_eq!(links.clone().count(), 7);
        for (entry, target) in links {
            let target = follow(&entry.path, target);
            if !target.ends_with("7ca0:00:00.0") {
                assert!(
                    folders.contains(target.as_str()),
                    "{} -> {target}",
                    entry.path
                );
            }
        }
    }

    #[test]
    fn every_file_can_be_read_but_the_attributes_of_gids_that_are_not_there() {
        let device = device();
        let mut entries = Vec::new();
        device.list(&mut entries);
        let unread: Vec<&str> = entries
            .iter()
            .filter(|entry| entry.target.is_none() && device.text(&entry.path).is_none())
            .map(|entry| {
                entry
                    .path
                    .rsplit_once("ports/1/")
                    .map_or(&*entry.path, |parts| parts.1)
            })
            .collect();
        assert_eq!(
            unread,
            [
                "gid_attrs/types/1",
                "gid_attrs/ndevs/0",
                "gid_attrs/ndevs/1",
                "dev/infiniband/uverbs0"
            ]
        );
    }

    #[test]
    fn files_read_as_the_kernel_writes_them() {
        let device = device();
        let at = |path: &str| device.text(&format!("{DOMAIN}/7ca0:00:00.1/{path}"));
        for (path, text) in [
            ("class", "0x020700\n"),
            ("vendor", "0x15b3\n"),
            ("numa_node", "0\n"),
            ("infiniband/vhca1/node_guid", "0002:c903:0000:1000\n"),
            ("infiniband/vhca1/ports/1/gid_attrs/types/0", "IB/RoCE v1\n"),
            ("infiniband/vhca1/ports/1/counters/port_xmit_data", "18\n"),
            ("infiniband/vhca1/ports/1/hw_counters/lifespan", "10\n"),
            ("infiniband_verbs/uverbs0/dev", "231:192\n"),
            ("infiniband_verbs/uverbs0/ibdev", "vhca1\n"),
            ("infiniband_verbs/uverbs0/abi_version", "1\n"),
            (
                "infiniband_verbs/uverbs0/uevent",
                "MAJOR=231\nMINOR=192\nDEVNAME=infiniband/uverbs0\nDEVMODE=0666\n",
            ),
        ] {
            assert_eq!(at(path).as_deref(), Some(text), "{path}");
        }
        for absent in [
            "",
            "infiniband",
            "infiniband/vhca0/node_guid",
            "infiniband_mad/uverbs0/dev",
        ] {
            assert_eq!(at(absent), None, "{absent}");
        }
    }
}
