//! Writes a plan as a topology file.

use core::fmt::{self, Display, Write as _};
use std::collections::BTreeMap;

use ib_wire::Guid;

use crate::{PlannedNode, PlannedPort, PortConfig, Topology};

impl Topology {
    /// The plan as a topology file: [`TopologyFile`](crate::TopologyFile) reads it, and so do `ibsim` and
    /// whatever reads the output of `ibnetdiscover`. Nodes are called as `ibnetdiscover` calls them, `S-`
    /// or `H-` and the GUID.
    ///
    /// ```
    /// use ib_fabric::{Topology, TopologyFile};
    ///
    /// let text = Topology::two_switches(2).to_net_file();
    /// assert!(text.contains("Switch\t8 \"S-0002c90300000100\"\t\t# \"S1\" base port 0 lid 0 lmc 0\n"));
    /// assert_eq!(TopologyFile::parse("again", &text)?.topology.to_net_file(), text);
    /// # Ok::<(), ib_fabric::TopologyError>(())
    /// ```
    #[must_use]
    pub fn to_net_file(&self) -> String {
        let mut text = String::new();
        let ends = self.ends();
        for (index, switch) in self.switches.iter().enumerate() {
            let node = PlannedNode::Switch(index);
            let image = switch.system_image_guid;
            self.write_ids(&mut text, switch.vendor_id, switch.device_id, image);
            let kind = if switch.enhanced_port0 {
                "enhanced"
            } else {
                "base"
            };
            let _ = writeln!(
                text,
                "switchguid={:#x}({:x})\nSwitch\t{} \"{}\"\t\t# \"{}\" {kind} port 0 lid 0 lmc 0",
                switch.node_guid.get(),
                switch.node_guid.get(),
                switch.ports,
                self.name(node),
                printable(&switch.description),
            );
            self.write_ports(&mut text, node, switch.ports, switch.port, &ends);
        }
        for (index, hca) in self.hcas.iter().enumerate() {
            let node = PlannedNode::Hca(index);
            self.write_ids(
                &mut text,
                hca.vendor_id,
                hca.device_id,
                hca.system_image_guid,
            );
            let _ = writeln!(
                text,
                "caguid={:#x}\nCa\t{} \"{}\"\t\t# \"{}\"",
                hca.node_guid.get(),
                hca.ports,
                self.name(node),
                printable(&hca.description),
            );
            self.write_ports(&mut text, node, hca.ports, hca.port, &ends);
        }
        text
    }

    /// Which port each port leads to.
    fn ends(&self) -> BTreeMap<PlannedPort, PlannedPort> {
        let there = self.links.iter().copied();
        let back = self.links.iter().map(|(a, b)| (*b, *a));
        there.chain(back).collect()
    }

    fn name(&self, node: PlannedNode) -> String {
        let guid = |guid: Option<Guid>| guid.map_or(0, Guid::get);
        match node {
            PlannedNode::Hca(index) => {
                format!(
                    "H-{:016x}",
                    guid(self.hcas.get(index).map(|hca| hca.node_guid))
                )
            }
            PlannedNode::Switch(index) => {
                let switch = self.switches.get(index);
                format!("S-{:016x}", guid(switch.map(|switch| switch.node_guid)))
            }
        }
    }

    fn write_ids(&self, text: &mut String, vendor: u32, device: u16, image: Guid) {
        let _ = writeln!(text, "\nvendid={vendor:#x}\ndevid={device:#x}");
        if !image.is_none() {
            let _ = writeln!(text, "sysimgguid={:#x}", image.get());
        }
    }

    fn write_ports(
        &self,
        text: &mut String,
        node: PlannedNode,
        ports: u8,
        of_node: PortConfig,
        ends: &BTreeMap<PlannedPort, PlannedPort>,
    ) {
        for number in 1..=ports {
            let port = node.port(number);
            let Some(far) = ends.get(&port) else {
                continue;
            };
            let _ = write!(text, "[{number}]{}\t", self.guid_of(port));
            let far_name = self.name(far.node());
            let _ = write!(text, "\"{far_name}\"[{}]", far.number());
            let config = self.ports.get(&port).unwrap_or(&of_node);
            let _ = writeln!(
                text,
                " w={} s={} e={}",
                config.widths.0,
                config.speeds.get(),
                config.extended_speeds.get()
            );
        }
    }

    fn guid_of(&self, port: PlannedPort) -> PortGuid {
        PortGuid(match port {
            PlannedPort::Hca(index, port) => self.hcas.get(index).map(|hca| hca.port_guid(port)),
            PlannedPort::Switch(..) => None,
        })
    }
}

/// The GUID of an adapter's port as it stands behind the port's number.
struct PortGuid(Option<Guid>);

impl Display for PortGuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(guid) => write!(f, "({:x})", guid.get()),
            None => Ok(()),
        }
    }
}

/// A description without what would end its line.
fn printable(description: &str) -> String {
    description
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}
