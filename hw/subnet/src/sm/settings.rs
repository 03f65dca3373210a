//! What a port's PortInfo should say.

use ib_wire::smp::{
    CapabilityMask, LinkDownDefaultState, PortInfo, PortInfoModifier, PortPhysState, PortState,
};
use ib_wire::{Guid, Lid, Lmc, Mtu, PortNum};

use crate::config::SubnetConfig;
use crate::lid::LidRange;
use crate::topology::{Node, Port, PortId, Topology};

/// Head-of-queue life times and stall counts, as OpenSM's defaults.
const HOQ_LIFE: u8 = 0x12;
const LEAF_HOQ_LIFE: u8 = 0x10;
const VL_STALL_COUNT: u8 = 7;
/// Error thresholds, as OpenSM's defaults.
const ERROR_THRESHOLD: u8 = 8;

/// A port's settings, and whether they differ from what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// The attribute to Set.
    pub(super) info: PortInfo,
    /// Whether anything would change.
    pub(super) changed: bool,
}

/// The modifier of PortInfo for a port.
pub(super) fn modifier(node: &Node, port: PortNum) -> PortInfoModifier {
    PortInfoModifier {
        extended_speeds: node.extended_speeds(port),
        port,
    }
}

/// What an end port needs: its LIDs, the way to the manager, and the common parameters of its link.
pub(super) fn end_port(
    config: &SubnetConfig,
    topology: &Topology,
    id: PortId,
    port: &Port,
    lids: LidRange,
    sm_lid: Lid,
) -> Settings {
    let mut info = unchanged(&port.info);
    info.mkey = config.mkey;
    info.mkey_lease_period = 0.into();
    info.set_mkey_protect(0);
    info.gid_prefix = config.prefix;
    info.lid = lids.base;
    info.set_lmc(lids.lmc);
    info.master_sm_lid = sm_lid;
    info.set_master_sm_sl(config.sm_sl);
    info.set_subnet_timeout(config.subnet_timeout);
    let node = topology.node(id.node);
    if !node.is_switch() {
        set_link(
            &mut info,
            port,
            topology.peer(id).and_then(|peer| topology.port(peer)),
        );
        set_thresholds(&mut info);
    } else if node
        .switch
        .as_ref()
        .is_some_and(|s| s.info.enhanced_port0())
    {
        info.set_neighbor_mtu(port.info.mtu_cap());
    }
    settled(port, info)
}

/// What an external port of a switch needs.
pub(super) fn switch_port(
    config: &SubnetConfig,
    topology: &Topology,
    id: PortId,
    port: &Port,
) -> Settings {
    let mut info = unchanged(&port.info);
    let peer = topology.peer(id);
    set_link(&mut info, port, peer.and_then(|peer| topology.port(peer)));
    set_thresholds(&mut info);
    let leaf = peer.is_some_and(|peer| !topology.node(peer.node).is_switch());
    info.set_hoq_life(if leaf { LEAF_HOQ_LIFE } else { HOQ_LIFE });
    info.set_vl_stall_count(VL_STALL_COUNT);
    let enforcement = config.partition_enforcement;
    info.set_partition_enforcement_inbound(leaf && enforcement.inbound);
    info.set_partition_enforcement_outbound(leaf && enforcement.outbound);
    settled(port, info)
}

/// The attribute that moves a port to another state and leaves the rest.
pub(super) fn state_change(port: &Port, state: PortState) -> PortInfo {
    let mut info = unchanged(&port.info);
    info.set_port_state(state);
    info
}

/// The LMC that a node's ports get: a switch has one LID.
pub(super) fn lmc(config: &SubnetConfig, node: &Node) -> Lmc {
    if node.is_switch() {
        Lmc::default()
    } else {
        config.lmc
    }
}

/// Whether a port must be told to register again: it is new, or serves a new manager, and knows how.
pub(super) fn needs_reregister(port: &Port, is_new: impl Fn(Guid) -> bool, sm_lid: Lid) -> bool {
    let able = port.supports(CapabilityMask::IS_CLIENT_REREGISTRATION_SUPPORTED);
    able && (port.info.master_sm_lid != sm_lid || is_new(port.guid))
}

/// A PortInfo that changes nothing when it is Set: states that a Set would take for commands are
/// "no change".
fn unchanged(read: &PortInfo) -> PortInfo {
    let mut info = *read;
    info.set_port_state(PortState::NO_CHANGE);
    info.set_phys_state(PortPhysState::NO_CHANGE);
    info.set_link_down_default(LinkDownDefaultState::POLLING);
    info.set_client_reregister(false);
    info
}

/// MTU and data lanes are what both ends have in common.
fn set_link(info: &mut PortInfo, port: &Port, peer: Option<&Port>) {
    let Some(peer) = peer else { return };
    info.set_neighbor_mtu(smaller_mtu(port.info.mtu_cap(), peer.info.mtu_cap()));
    info.set_operational_vls(port.info.vl_cap().min(peer.info.vl_cap()).max(1));
}

fn smaller_mtu(a: Mtu, b: Mtu) -> Mtu {
    let smaller = a.min(b);
    if smaller.bytes().is_some() {
        smaller
    } else {
        Mtu::MTU_256
    }
}

fn set_thresholds(info: &mut PortInfo) {
    info.set_local_phy_errors(ERROR_THRESHOLD);
    info.set_overrun_errors(ERROR_THRESHOLD);
}

fn settled(port: &Port, mut info: PortInfo) -> Settings {
    let old = port.info;
    let mut before = old;
    // Compared as a Set would write it, except for the default state, which may need writing.
    before.set_port_state(PortState::NO_CHANGE);
    before.set_phys_state(PortPhysState::NO_CHANGE);
    before.set_client_reregister(false);
    let changed = info != before;
    let link_changed = info.neighbor_mtu() != old.neighbor_mtu()
        || info.operational_vls() != old.operational_vls();
    // Both fields take effect while the link initialises; a link that already went further starts
    // again (IBA 7.2.7).
    let running = matches!(
        old.port_state(),
        PortState::ARMED | PortState::ACTIVE | PortState::ACTIVE_DEFER
    );
    if link_changed && running {
        info.set_port_state(PortState::DOWN);
    }
    Settings { info, changed }
}
