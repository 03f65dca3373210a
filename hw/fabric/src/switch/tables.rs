//! What a switch forwards by.

use ib_wire::smp::{LinearForwardingTable, PortMask, SwitchInfo};
use ib_wire::{Lid, PortNum, Sl, Vl};

use crate::SwitchConfig;
use crate::port::data_vls;

/// The tables of a switch. Each is as long as the highest entry that was ever set, so a switch of
/// a small subnet costs little.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) info: SwitchInfo,
    linear: Vec<PortNum>,
    multicast: Vec<PortMask>,
    /// Indexed by input and output port; empty until the SM sets one.
    sl2vl: Vec<Option<Box<[Vl; 16]>>>,
    /// Port 0 and the external ones.
    existing: PortMask,
    ports: u8,
}

impl Tables {
    pub(crate) fn new(config: &SwitchConfig) -> Self {
        let ports = config.ports.min(SwitchConfig::MAX_PORTS);
        let mut info = SwitchInfo {
            linear_fdb_cap: config.linear_fdb_cap.into(),
            multicast_fdb_cap: config.multicast_fdb_cap.into(),
            default_port: LinearForwardingTable::DROP,
            default_multicast_primary_port: LinearForwardingTable::DROP,
            default_multicast_not_primary_port: LinearForwardingTable::DROP,
            partition_enforcement_cap: config.pkey_table_len.into(),
            ..SwitchInfo::default()
        };
        info.set_life_time_value(18);
        info.set_inbound_enforcement_cap(true);
        info.set_outbound_enforcement_cap(true);
        info.set_filter_raw_inbound_cap(true);
        info.set_filter_raw_outbound_cap(true);
        info.set_enhanced_port0(config.enhanced_port0);
        Self {
            info,
            linear: Vec::new(),
            multicast: Vec::new(),
            sl2vl: Vec::new(),
            existing: PortMask::up_to(PortNum(ports)),
            ports,
        }
    }

    /// The port towards a unicast LID; [`LinearForwardingTable::DROP`] if none is set.
    pub(crate) fn unicast(&self, lid: usize) -> PortNum {
        self.linear
            .get(lid)
            .copied()
            .unwrap_or(LinearForwardingTable::DROP)
    }

    /// Sets an entry; one beyond the table's capacity is not there.
    pub(crate) fn set_unicast(&mut self, lid: usize, port: PortNum) {
        if lid >= usize::from(self.info.linear_fdb_cap.get()) {
            return;
        }
        if lid >= self.linear.len() {
            if port == LinearForwardingTable::DROP {
                return;
            }
            self.linear.resize(lid + 1, LinearForwardingTable::DROP);
        }
        self.linear[lid] = port;
    }

    /// The port that a packet with a unicast DLID leaves by.
    pub(crate) fn route(&self, dlid: Lid) -> Option<PortNum> {
        if dlid > self.info.linear_fdb_top {
            return None;
        }
        let port = self.unicast(dlid.index());
        (port != LinearForwardingTable::DROP).then_some(port)
    }

    /// 16 bits of a multicast entry: the ports from `16 * position` on.
    pub(crate) fn multicast(&self, entry: usize, position: u8) -> u16 {
        self.multicast
            .get(entry)
            .map_or(0, |mask| mask.position(position))
    }

    /// Sets 16 bits of a multicast entry; ports that do not exist are left out.
    pub(crate) fn set_multicast(&mut self, entry: usize, position: u8, ports: u16) {
        let ports = ports & self.existing.position(position);
        if entry >= usize::from(self.info.multicast_fdb_cap.get()) {
            return;
        }
        if entry >= self.multicast.len() {
            if ports == 0 {
                return;
            }
            self.multicast.resize(entry + 1, PortMask::default());
        }
        self.multicast[entry].set_position(position, ports);
    }

    /// The ports that a multicast packet leaves by, the one it came in by not among them (IBA
    /// 18.2.4.3.3): those of its entry, or outside the table the default port.
    pub(crate) fn replicate(&self, dlid: Lid, in_port: PortNum) -> PortMask {
        let entry = dlid.index() - Lid::FIRST_MULTICAST.index();
        let top = self.info.multicast_fdb_top;
        let beyond_top = top.get() != 0 && dlid > top;
        let mut ports = if beyond_top || entry >= usize::from(self.info.multicast_fdb_cap.get()) {
            let primary = self.info.default_multicast_primary_port;
            let port = if in_port == primary {
                self.info.default_multicast_not_primary_port
            } else {
                primary
            };
            let mut one = PortMask::default();
            if self.existing.contains(port) {
                one.insert(port);
            }
            one
        } else {
            self.multicast.get(entry).copied().unwrap_or_default()
        };
        ports.remove(in_port);
        ports
    }

    /// The lane on which a packet of a service level goes from port to port; lane 15 drops it.
    pub(crate) fn vl(&self, input: PortNum, output: PortNum, sl: Sl, operational_vls: u8) -> Vl {
        match self.sl2vl.get(self.pair(input, output)) {
            Some(Some(lanes)) => lanes[usize::from(sl.get())],
            _ => Vl::from_low_bits(sl.get() % data_vls(operational_vls)),
        }
    }

    /// Sets the lanes between two ports.
    pub(crate) fn set_lanes(&mut self, input: PortNum, output: PortNum, lanes: [Vl; 16]) {
        let pair = self.pair(input, output);
        if self.sl2vl.len() <= pair {
            self.sl2vl.resize(pair + 1, None);
        }
        self.sl2vl[pair] = Some(Box::new(lanes));
    }

    fn pair(&self, input: PortNum, output: PortNum) -> usize {
        input.index() * (usize::from(self.ports) + 1) + output.index()
    }
}
