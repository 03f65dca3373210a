//! The sysfs of a VF beside the recorded ones of stock Linux 6.1: of soft RoCE, and of mlx4 in a guest.

use std::collections::BTreeMap;

use vhca_tests::live::{Lab, Shim};

use crate::lab;

/// Files that a VF lacks, by the beginnings of their names, with the reason.
const ABSENT: [(&str, &str); 25] = [
    ("power", "the kernel's management of power"),
    ("parent", "soft RoCE's network device"),
    ("ports/1/cm_", "messages of the kernel's ib_cm"),
    ("ports/1/hw_counters/", "each driver has its own"),
    ("ari_enabled", "of the PCI bus"),
    ("broken_parity_status", "of the PCI bus"),
    ("config", "registers"),
    ("consistent_dma_mask_bits", "of the PCI bus"),
    ("d3cold_allowed", "the kernel's management of power"),
    ("dma_mask_bits", "of the PCI bus"),
    ("driver", "no driver of the host's kernel has the function"),
    ("firmware_node", "of the guest's firmware"),
    ("infiniband_mad", "a VF of programs has no umad"),
    ("irq", "of the PCI bus"),
    ("link", "the kernel's management of power"),
    ("mlx4_port1", "of mlx4"),
    ("msi_", "of the PCI bus"),
    ("net", "IPoIB's network device"),
    ("pools", "the driver's memory"),
    ("reset_method", "of the PCI bus"),
    ("resource", "registers"),
    ("enable", "of the PCI bus"),
    ("remove", "of the PCI bus"),
    ("rescan", "of the PCI bus"),
    ("subsystem", "a link to the host's /sys/bus/pci"),
];

/// Files whose texts name the device, its kind or its maker, or the machine.
const OWN_TEXT: [&str; 10] = [
    "board_id",
    "fw_ver",
    "hca_type",
    "ibdev",
    "node_desc",
    "numa_node",
    "ports/1/gid_attrs/ndevs/0",
    "ports/1/gid_attrs/types/0",
    "ports/1/link_layer",
    "ports/1/rate",
];

/// Names of what a listing has in each section, with mode and, of a file, text.
fn listed(text: &str) -> BTreeMap<(&str, &str), (&str, &str)> {
    let mut section = "";
    let mut found = BTreeMap::new();
    for line in text.lines() {
        if line.starts_with('[') {
            section = line;
            continue;
        }
        let mut words = line.splitn(4, ' ');
        let mut word = || words.next().unwrap_or_default();
        let (mode, name) = (word(), word());
        word();
        found.insert((section, name), (mode, word()));
    }
    found
}

/// Returns the format of a text: digits are `#`, as many as there are in padded numbers and in GUIDs.
fn format_of(text: &str) -> String {
    let is_hex = |word: &str| {
        let digits = word.bytes().filter(|byte| !b":|".contains(byte));
        digits.clone().all(|byte| byte.is_ascii_hexdigit()) && digits.count() > 0
    };
    if is_hex(text) && text.contains(':') {
        return text.replace(|digit: char| digit.is_ascii_hexdigit(), "#");
    }
    if let Some(digits) = text.strip_prefix("0x").filter(|digits| is_hex(digits)) {
        let digits = digits.trim_end_matches('|').len();
        return format!("0x{}", if digits < 4 { 1 } else { digits });
    }
    let mut format = String::new();
    for letter in text.chars() {
        match letter {
            '0'..='9' if format.ends_with('#') => {}
            '0'..='9' => format.push('#'),
            letter => format.push(letter),
        }
    }
    format
}

fn assert_is_like(lab: &Lab, recorded: &str) {
    let script = concat!(include_str!("show.sh"), "show vhca1\n");
    let shown = lab.tool(Shim::Vhca, "H1-1/2", &["bash", "-c", script]);
    let (ours, recorded) = (listed(&shown), listed(recorded));
    assert!(recorded.len() > 50, "{recorded:?}");
    let mut differences = Vec::new();
    for ((section, name), (mode, text)) in recorded {
        let Some((our_mode, our_text)) = ours.get(&(section, name)) else {
            let is_known = ABSENT.iter().any(|(prefix, _)| name.starts_with(prefix));
            if !is_known {
                differences.push(format!("{section} {name} is missing"));
            }
            continue;
        };
        if mode != *our_mode {
            differences.push(format!("{section} {name}: {our_mode}, and not {mode}"));
        }
        let is_own = mode.starts_with('l') || OWN_TEXT.contains(&name) || name.ends_with("uevent");
        if !is_own && format_of(text) != format_of(our_text) {
            differences.push(format!("{section} {name}: {our_text:?}, and not {text:?}"));
        }
    }
    assert!(
        differences.is_empty(),
        "{}\n{shown}",
        differences.join("\n")
    );
}

#[test]
fn names_modes_and_formats_are_as_in_the_kernel() {
    let lab = lab();
    assert_is_like(&lab, include_str!("rxe.txt"));
    assert_is_like(&lab, include_str!("mlx4.txt"));
}
