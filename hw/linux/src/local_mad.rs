//! The answers that the function's own agents give, made from sysfs.
//!
//! The SMA and the PMA of the port are the HCA's, and obey the subnet manager alone. Reads of the port by software of this
//! host are answered here, writes are not.

use hca_api::LocalMad;
use ib_wire::mad::{AttributeId, BASE_VERSION, Mad, MadStatus, Method, MgmtClass};
use ib_wire::notice::ClassPortInfo;
use ib_wire::perf::{
    ALL_PORTS, PerfAttribute, PerfMad, PortCounters, PortCountersExtended, capability, capability2,
};
use ib_wire::smp::{
    CapabilityMask, GuidInfo, LidRoutedSmp, LinkSpeed, LinkSpeedExt, LinkWidth, NodeDescription,
    NodeInfo, PKeyTable, PKeyTableModifier, PortInfo, PortInfoModifier, PortPhysState, PortState,
    SmpAttribute,
};
use ib_wire::{Guid, Mtu, PortNum, SubnetPrefix};
use linux_abi::sysfs::{Adapter, Port};

/// Facts about a port that sysfs does not show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) max_mtu: Mtu,
    pub(crate) active_mtu: Mtu,
    /// Longest way through the subnet: 4.096 µs × 2^n.
    pub(crate) subnet_timeout: u8,
}

impl Link {
    /// The link of a RoCE port until libibverbs shows more: what fits the frames of any Ethernet.
    pub(crate) fn of_ethernet() -> Self {
        Self {
            max_mtu: Mtu::MTU_1024,
            active_mtu: Mtu::MTU_1024,
            ..Self::default()
        }
    }
}

impl Default for Link {
    /// Returns the MTU that every adapter and switch in use has, and with which subnet managers make groups; and the time that a subnet
    /// manager writes by default (OpenSM, `subnet_timeout`).
    fn default() -> Self {
        Self {
            max_mtu: Mtu::MTU_2048,
            active_mtu: Mtu::MTU_2048,
            subnet_timeout: 18,
        }
    }
}

/// The device and its port, as sysfs shows them.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) adapter: Adapter,
    pub(crate) vendor_id: u32,
    pub(crate) device_id: u16,
    pub(crate) port: Port,
    pub(crate) link: Link,
}

impl Facts {
    /// The subnet prefix of the port's GIDs.
    pub(crate) fn prefix(&self) -> SubnetPrefix {
        self.port
            .gids
            .first()
            .map_or(SubnetPrefix::DEFAULT, |gid| gid.prefix())
    }

    /// Answers a MAD to the port of a number. `counter` gives a counter by its name in sysfs.
    pub(crate) fn answer(
        &self,
        number: PortNum,
        counter: &dyn Fn(&str) -> Option<u64>,
        mad: &Mad,
    ) -> LocalMad {
        if mad.header.method != Method::GET {
            return LocalMad::NotHandled;
        }
        let mut reply = *mad;
        let status = match mad.header.mgmt_class {
            MgmtClass::SUBN_LID_ROUTED => self.smp(number, reply.view_mut()),
            MgmtClass::PERF => perf(number, counter, reply.view_mut()),
            _ => return LocalMad::NotHandled,
        };
        let Some(status) = status else {
            return LocalMad::NotHandled;
        };
        reply.header.method = Method::GET_RESP;
        reply.header.status = status;
        LocalMad::Reply(reply)
    }

    fn smp(&self, number: PortNum, smp: &mut LidRoutedSmp) -> Option<MadStatus> {
        let modifier = smp.header.attribute_modifier;
        match smp.header.attribute_id {
            NodeDescription::ID => {
                *smp.attribute_mut() = NodeDescription::new(&self.adapter.description);
            }
            NodeInfo::ID => *smp.attribute_mut() = self.node_info(number),
            PortInfo::ID => {
                let asked = PortInfoModifier::decode(modifier).port;
                if asked != number && asked != PortNum(0) {
                    return Some(MadStatus::INVALID_FIELD);
                }
                *smp.attribute_mut() = self.port_info(number);
            }
            GuidInfo::ID => {
                let guids = self.port.gids.iter().map(|gid| gid.interface_id());
                let Some(guids) = block(guids, modifier.get()) else {
                    return Some(MadStatus::INVALID_FIELD);
                };
                *smp.attribute_mut() = GuidInfo { guids };
            }
            PKeyTable::ID => {
                let asked = PKeyTableModifier::decode(modifier).block;
                let Some(pkeys) = block(self.port.pkeys.iter().copied(), asked.into()) else {
                    return Some(MadStatus::INVALID_FIELD);
                };
                *smp.attribute_mut() = PKeyTable { pkeys };
            }
            _ => return None,
        }
        Some(MadStatus::OK)
    }

    fn node_info(&self, number: PortNum) -> NodeInfo {
        let [_, vendor_id @ ..] = self.vendor_id.to_be_bytes();
        let own = self.port.gids.first();
        NodeInfo {
            base_version: BASE_VERSION,
            class_version: MgmtClass::SUBN_LID_ROUTED.supported_version(),
            node_type: self.adapter.node_type,
            num_ports: 1,
            system_image_guid: self.adapter.system_image_guid,
            node_guid: self.adapter.node_guid,
            port_guid: own.map_or_else(Guid::default, |gid| gid.interface_id()),
            partition_cap: u16::try_from(self.port.pkeys.len())
                .unwrap_or(u16::MAX)
                .into(),
            device_id: self.device_id.into(),
            revision: self.adapter.revision.into(),
            local_port: number,
            vendor_id,
            ..NodeInfo::default()
        }
    }

    fn port_info(&self, number: PortNum) -> PortInfo {
        let port = &self.port;
        let width = LinkWidth(port.width);
        let mut info = PortInfo {
            gid_prefix: self.prefix(),
            lid: port.lid,
            master_sm_lid: port.sm_lid,
            capability_mask: CapabilityMask::new(port.capability_mask),
            local_port: number,
            link_width_enabled: width,
            link_width_supported: width,
            link_width_active: width,
            guid_cap: u8::try_from(port.gids.len()).unwrap_or(u8::MAX),
            ..PortInfo::default()
        };
        let speed = link_speed(port.speed);
        info.set_link_speed_supported(speed);
        info.set_link_speed_enabled(speed);
        info.set_link_speed_active(speed);
        let extended = link_speed_ext(port.speed);
        info.set_link_speed_ext_supported(extended);
        info.set_link_speed_ext_enabled(extended);
        info.set_link_speed_ext_active(extended);
        info.set_port_state(PortState::new(port.state));
        info.set_phys_state(PortPhysState::new(port.physical_state));
        info.set_lmc(port.lmc);
        info.set_master_sm_sl(port.sm_sl);
        info.set_neighbor_mtu(self.link.active_mtu);
        info.set_mtu_cap(self.link.max_mtu);
        info.set_vl_cap(1);
        info.set_operational_vls(1);
        info.set_subnet_timeout(self.link.subnet_timeout);
        info
    }
}

/// Returns a block of a table, filled up with empty entries. `None` if it is beyond the table.
fn block<T: Default + Copy, const N: usize>(
    entries: impl ExactSizeIterator<Item = T>,
    number: u32,
) -> Option<[T; N]> {
    let first = usize::try_from(number).ok()?.checked_mul(N)?;
    if first >= entries.len() {
        return None;
    }
    let mut block = [T::default(); N];
    for (place, entry) in block.iter_mut().zip(entries.skip(first)) {
        *place = entry;
    }
    Some(block)
}

/// The speed of PortInfo for one of `enum ib_port_speed`; extended ones count as QDR (IBA 14.2.5.6).
pub(crate) const fn link_speed(speed: u16) -> LinkSpeed {
    match speed {
        2 => LinkSpeed::DDR,
        0 | 1 => LinkSpeed::SDR,
        _ => LinkSpeed::QDR,
    }
}

const fn link_speed_ext(speed: u16) -> LinkSpeedExt {
    match speed {
        16 => LinkSpeedExt::FDR,
        32 => LinkSpeedExt::EDR,
        64 => LinkSpeedExt::HDR,
        128 => LinkSpeedExt::NDR,
        _ => LinkSpeedExt::NONE,
    }
}

fn perf(
    number: PortNum,
    counter: &dyn Fn(&str) -> Option<u64>,
    mad: &mut PerfMad,
) -> Option<MadStatus> {
    let selects = |port: PortNum| port == number || port == ALL_PORTS;
    let of = |name: &str| counter(name).unwrap_or(0);
    match mad.header.attribute_id {
        AttributeId::CLASS_PORT_INFO => *mad.attribute_mut() = class_port_info(),
        <PortCounters as PerfAttribute>::ID => {
            let shown: &mut PortCounters = mad.attribute_mut();
            let port_select = shown.port_select;
            if !selects(port_select) {
                return Some(MadStatus::INVALID_FIELD);
            }
            *shown = port_counters(port_select, &of);
        }
        PortCountersExtended::ID => {
            let shown: &mut PortCountersExtended = mad.attribute_mut();
            let port_select = shown.port_select;
            if !selects(port_select) {
                return Some(MadStatus::INVALID_FIELD);
            }
            *shown = port_counters_extended(port_select, &of);
        }
        _ => return None,
    }
    Some(MadStatus::OK)
}

fn class_port_info() -> ClassPortInfo {
    let mask = capability::ALL_PORT_SELECT | capability::EXTENDED_WIDTH | capability::XMIT_WAIT;
    let mut info = ClassPortInfo {
        base_version: BASE_VERSION,
        class_version: MgmtClass::PERF.supported_version(),
        capability_mask: mask.into(),
        ..ClassPortInfo::default()
    };
    info.set_capability_mask2(capability2::ERROR_COUNTERS_EXTENDED);
    info
}

/// Counters have the kernel's names (`drivers/infiniband/core/sysfs.c`, `PORT_PMA_ATTR`). A counter stays at its largest
/// value (IBA 16.1.3.5).
fn port_counters(port_select: PortNum, of: &dyn Fn(&str) -> u64) -> PortCounters {
    let byte = |name| u8::try_from(of(name)).unwrap_or(u8::MAX);
    let half = |name| u16::try_from(of(name)).unwrap_or(u16::MAX).into();
    let word = |name| u32::try_from(of(name)).unwrap_or(u32::MAX).into();
    let nibble = |name| byte(name).min(0xf);
    let mut counters = PortCounters {
        port_select,
        symbol_error_counter: half("symbol_error"),
        link_error_recovery_counter: byte("link_error_recovery"),
        link_downed_counter: byte("link_downed"),
        port_rcv_errors: half("port_rcv_errors"),
        port_rcv_remote_physical_errors: half("port_rcv_remote_physical_errors"),
        port_rcv_switch_relay_errors: half("port_rcv_switch_relay_errors"),
        port_xmit_discards: half("port_xmit_discards"),
        port_xmit_constraint_errors: byte("port_xmit_constraint_errors"),
        port_rcv_constraint_errors: byte("port_rcv_constraint_errors"),
        vl15_dropped: half("VL15_dropped"),
        port_xmit_data: word("port_xmit_data"),
        port_rcv_data: word("port_rcv_data"),
        port_xmit_pkts: word("port_xmit_packets"),
        port_rcv_pkts: word("port_rcv_packets"),
        port_xmit_wait: word("port_xmit_wait"),
        ..PortCounters::default()
    };
    counters.set_local_link_integrity_errors(nibble("local_link_integrity_errors"));
    counters.set_excessive_buffer_overrun_errors(nibble("excessive_buffer_overrun_errors"));
    counters
}

fn port_counters_extended(port_select: PortNum, of: &dyn Fn(&str) -> u64) -> PortCountersExtended {
    let of = |name| of(name).into();
    PortCountersExtended {
        port_select,
        port_xmit_data: of("port_xmit_data"),
        port_rcv_data: of("port_rcv_data"),
        port_xmit_pkts: of("port_xmit_packets"),
        port_rcv_pkts: of("port_rcv_packets"),
        port_unicast_xmit_pkts: of("unicast_xmit_packets"),
        port_unicast_rcv_pkts: of("unicast_rcv_packets"),
        port_multicast_xmit_pkts: of("multicast_xmit_packets"),
        port_multicast_rcv_pkts: of("multicast_rcv_packets"),
        symbol_error_counter: of("symbol_error"),
        link_error_recovery_counter: of("link_error_recovery"),
        link_downed_counter: of("link_downed"),
        port_rcv_errors: of("port_rcv_errors"),
        port_rcv_remote_physical_errors: of("port_rcv_remote_physical_errors"),
        port_rcv_switch_relay_errors: of("port_rcv_switch_relay_errors"),
        port_xmit_discards: of("port_xmit_discards"),
        port_xmit_constraint_errors: of("port_xmit_constraint_errors"),
        port_rcv_constraint_errors: of("port_rcv_constraint_errors"),
        local_link_integrity_errors: of("local_link_integrity_errors"),
        excessive_buffer_overrun_errors: of("excessive_buffer_overrun_errors"),
        vl15_dropped: of("VL15_dropped"),
        port_xmit_wait: of("port_xmit_wait"),
        ..PortCountersExtended::default()
    }
}
