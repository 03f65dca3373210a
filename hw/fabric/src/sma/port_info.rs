//! PortInfo (IBA 14.2.5.6): reading a port, and the rules of writing one.

use hca_api::{PhysicalState, PortChange, PortState};
use ib_wire::mad::{Mad, MadStatus};
use ib_wire::notice::LocalChanges;
use ib_wire::smp::{
    self, CapabilityMask, LinkDownDefaultState, LinkSpeed, LinkSpeedExt, LinkWidth, PortInfo,
    PortInfoModifier, PortPhysState, SmpAttribute,
};
use ib_wire::{Lid, Mtu, PortNum};

use super::Answer;
use super::access::Access;
use crate::node::LinkRequest;
use crate::{Node, NodeKind, PhysicalPort};

/// Entries of an arbitration table, high and low priority alike.
const VL_ARBITRATION_ENTRIES: u8 = 64;

pub(super) fn port_info(node: &mut Node, access: &Access, data: &mut PortInfo) -> Answer {
    let modifier = PortInfoModifier::decode(access.modifier);
    let kind = node.kind();
    let named = match (kind, modifier.port) {
        (NodeKind::ChannelAdapter, PortNum(0)) => access.port,
        (_, port) => port,
    };
    let port = node.port(named).ok_or(MadStatus::INVALID_FIELD)?;
    let mut reregister = false;
    let mut link = None;
    // Of a channel adapter only the receiving port can be written; for others a Set reads.
    if access.set && (kind == NodeKind::Switch || named == access.port) {
        let role = Role::of(node, named);
        let plan = Plan::new(port, role, modifier, data)?;
        reregister = plan.reregister;
        link = plan.link;
        apply(node, named, role, data, &plan);
    }
    let port = node.port(named).ok_or(MadStatus::INVALID_FIELD)?;
    *data = read(port, access.port);
    // A Set is answered with the bit as it came (IBA o14-12.2.1); it has no stored value.
    data.set_client_reregister(reregister);
    // The link obeys when the answer is on its way, which may be by this very link: it tells what comes next.
    if let Some(request) = link.filter(|_| named != PortNum::SWITCH_MANAGEMENT) {
        foretell(port, request, data);
    }
    Ok(())
}

/// The port of a channel adapter that a request about PortInfo names, if it is not the one by which the request came.
pub(super) fn other_port(node: &Node, port: PortNum, mad: &Mad) -> Option<PortNum> {
    let named = PortInfoModifier::decode(mad.header.attribute_modifier).port;
    let other = mad.header.attribute_id == PortInfo::ID
        && node.kind() == NodeKind::ChannelAdapter
        && named != port
        && node.port(named).is_some();
    other.then_some(named)
}

impl PhysicalPort {
    /// PortInfo, as a Get that came in by the port itself is answered.
    #[must_use]
    pub fn port_info(&self) -> PortInfo {
        read(self, self.number)
    }
}

/// What a port is, as far as the rules differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A channel adapter's port, or an enhanced port 0: has addresses and states.
    EndPort,
    /// A switch's base port 0: has addresses, but no states of its own.
    BasePort0,
    /// A switch's external port: has states, but no addresses.
    External,
}

impl Role {
    fn of(node: &Node, port: PortNum) -> Self {
        match (node.kind(), port) {
            (NodeKind::ChannelAdapter, _) => Self::EndPort,
            (NodeKind::Switch, PortNum(0)) if node.has_enhanced_port0() => Self::EndPort,
            (NodeKind::Switch, PortNum(0)) => Self::BasePort0,
            (NodeKind::Switch, _) => Self::External,
        }
    }
}

/// What a Set would change that needs checking or decoding; made before anything is changed.
#[derive(Debug)]
struct Plan {
    state: Option<PortState>,
    link: Option<LinkRequest>,
    link_down_default: Option<PhysicalState>,
    width: Option<LinkWidth>,
    speed: Option<LinkSpeed>,
    extended_speed: Option<LinkSpeedExt>,
    neighbor_mtu: Option<Mtu>,
    operational_vls: Option<u8>,
    reregister: bool,
}

impl Plan {
    /// Checks every field of a Set.
    fn new(
        port: &PhysicalPort,
        role: Role,
        modifier: PortInfoModifier,
        data: &PortInfo,
    ) -> Result<Self, MadStatus> {
        if role != Role::External {
            check_addresses(data)?;
        }
        let mtu = data.neighbor_mtu();
        let is_mtu = mtu >= Mtu::MTU_256 && mtu <= port.mtu_cap;
        // A base port 0 has no neighbour; what does not fit it is not meant for it.
        if !is_mtu && role != Role::BasePort0 {
            return Err(MadStatus::INVALID_FIELD);
        }
        let (state, link) = if role == Role::BasePort0 {
            (None, None)
        } else {
            transition(port, data)?
        };
        Ok(Self {
            state,
            link,
            link_down_default: match data.link_down_default() {
                LinkDownDefaultState::NO_CHANGE => None,
                LinkDownDefaultState::SLEEP => Some(PhysicalState::Sleep),
                LinkDownDefaultState::POLLING => Some(PhysicalState::Polling),
                _ => return Err(MadStatus::INVALID_FIELD),
            },
            width: subset(
                data.link_width_enabled.0,
                port.width_supported.0,
                LinkWidth::ALL_SUPPORTED.0,
            )?
            .map(LinkWidth),
            speed: subset(
                data.link_speed_enabled().get(),
                port.speed_supported.get(),
                LinkSpeed::ALL_SUPPORTED.get(),
            )?
            .map(LinkSpeed::from_low_bits),
            extended_speed: if modifier.extended_speeds {
                extended_subset(data.link_speed_ext_enabled(), port)?
            } else {
                None
            },
            neighbor_mtu: is_mtu.then_some(mtu),
            operational_vls: match data.operational_vls() {
                0 => None,
                vls if vls <= port.vl_cap => Some(vls),
                _ => return Err(MadStatus::INVALID_FIELD),
            },
            reregister: data.client_reregister(),
        })
    }
}

/// The LIDs of an end port are unicast ones, with all of its 2^LMC.
fn check_addresses(data: &PortInfo) -> Result<(), MadStatus> {
    let last = data.lid.get() | data.lmc().mask();
    if data.lid.is_unicast() && Lid::new(last).is_unicast() && data.master_sm_lid.is_unicast() {
        Ok(())
    } else {
        Err(MadStatus::INVALID_FIELD)
    }
}

/// A set of enabled widths or speeds: `None` to leave it as it is.
fn subset(wanted: u8, supported: u8, all: u8) -> Result<Option<u8>, MadStatus> {
    if wanted == 0 {
        Ok(None)
    } else if wanted == all {
        Ok(Some(supported))
    } else if wanted & !supported == 0 {
        Ok(Some(wanted))
    } else {
        Err(MadStatus::INVALID_FIELD)
    }
}

fn extended_subset(
    wanted: LinkSpeedExt,
    port: &PhysicalPort,
) -> Result<Option<LinkSpeedExt>, MadStatus> {
    if wanted == LinkSpeedExt::DISABLE {
        return Ok(Some(LinkSpeedExt::NONE));
    }
    let bits = subset(
        wanted.get(),
        port.extended_speed_supported.get(),
        LinkSpeedExt::ALL_SUPPORTED.get(),
    )?;
    Ok(bits.map(LinkSpeedExt::from_low_bits))
}

/// The state machine's commands (IBA 7.2.7): armed from initialize, active from armed, down from
/// anywhere. A state that the port already has is no error: the SM may repeat a Set whose answer
/// was lost.
fn transition(
    port: &PhysicalPort,
    data: &PortInfo,
) -> Result<(Option<PortState>, Option<LinkRequest>), MadStatus> {
    let physical = match data.phys_state() {
        PortPhysState::NO_CHANGE => None,
        PortPhysState::SLEEP => Some(LinkRequest::Sleep),
        PortPhysState::POLLING => Some(LinkRequest::Poll),
        PortPhysState::DISABLED => Some(LinkRequest::Disable),
        _ => return Err(MadStatus::INVALID_FIELD),
    };
    let state = match (data.port_state(), port.state) {
        (smp::PortState::NO_CHANGE, _) => return Ok((None, physical)),
        (smp::PortState::DOWN, _) => {
            return Ok((None, physical.or(Some(LinkRequest::Reset))));
        }
        (smp::PortState::ARMED, PortState::Init | PortState::Armed) => PortState::Armed,
        (smp::PortState::ACTIVE, PortState::Armed | PortState::Active) => PortState::Active,
        _ => return Err(MadStatus::INVALID_FIELD),
    };
    if physical.is_some() {
        return Err(MadStatus::INVALID_FIELD);
    }
    Ok((Some(state), None))
}

fn apply(node: &mut Node, number: PortNum, role: Role, data: &PortInfo, plan: &Plan) {
    let Some(port) = node.port_mut(number) else {
        return;
    };
    let mut local = LocalChanges::default();
    apply_addresses(port, role, data);
    port.m_key = data.mkey;
    port.m_key_protect = data.mkey_protect();
    port.m_key_lease_seconds = data.mkey_lease_period.get();
    port.m_key_lease_end = None;
    if let Some(state) = plan.link_down_default {
        port.link_down_default = state;
    }
    if let Some(width) = plan.width.filter(|w| *w != port.width_enabled) {
        port.width_enabled = width;
        local = local | LocalChanges::LINK_WIDTH_ENABLED;
    }
    if let Some(speed) = plan.speed.filter(|s| *s != port.speed_enabled) {
        port.speed_enabled = speed;
        local = local | LocalChanges::LINK_SPEED_ENABLED;
    }
    if let Some(speed) = plan
        .extended_speed
        .filter(|s| *s != port.extended_speed_enabled)
    {
        port.extended_speed_enabled = speed;
        local = local | LocalChanges::LINK_SPEED_ENABLED;
    }
    if let Some(mtu) = plan.neighbor_mtu {
        port.neighbor_mtu = mtu;
    }
    if let Some(vls) = plan.operational_vls {
        port.operational_vls = vls;
    }
    port.vl_high_limit = data.vl_high_limit;
    port.init_type_reply = data.init_type_reply();
    port.vl_stall_count = data.vl_stall_count();
    port.hoq_life = data.hoq_life();
    if role == Role::External {
        port.partition_enforcement_in = data.partition_enforcement_inbound();
        port.partition_enforcement_out = data.partition_enforcement_outbound();
        port.filter_raw_in = data.filter_raw_inbound();
        port.filter_raw_out = data.filter_raw_outbound();
    }
    for (counter, written) in [
        (&mut port.m_key_violations, data.mkey_violations.get()),
        (&mut port.p_key_violations, data.pkey_violations.get()),
        (&mut port.q_key_violations, data.qkey_violations.get()),
    ] {
        if written == 0 {
            *counter = 0;
        }
    }
    port.multicast_pkey_trap_suppression = data.multicast_pkey_trap_suppression();
    port.subnet_timeout = data.subnet_timeout();
    port.local_phy_errors = data.local_phy_errors();
    port.overrun_errors = data.overrun_errors();
    if plan.reregister
        && port
            .capabilities
            .contains(CapabilityMask::IS_CLIENT_REREGISTRATION_SUPPORTED)
    {
        port.note(PortChange::CLIENT_REREGISTER);
    }
    if let Some(state) = plan.state {
        node.set_port_state(number, state);
    }
    if let Some(request) = plan.link {
        node.request_link(number, request);
    }
    // A switch tells of its external ports' settings by its management port.
    if local != LocalChanges::default() {
        node.trap_local_changes(number, local);
    }
}

/// Shows a port's states as they are after the request to its link.
fn foretell(port: &PhysicalPort, request: LinkRequest, shown: &mut PortInfo) {
    let (state, physical) = match request {
        LinkRequest::Reset if port.state == PortState::Down => return,
        LinkRequest::Reset => (PortState::Init, port.physical_state),
        LinkRequest::Poll => (PortState::Down, PhysicalState::Polling),
        LinkRequest::Sleep => (PortState::Down, PhysicalState::Sleep),
        LinkRequest::Disable => (PortState::Down, PhysicalState::Disabled),
    };
    shown.set_port_state(wire_state(state));
    shown.set_phys_state(wire_physical_state(physical));
}

fn apply_addresses(port: &mut PhysicalPort, role: Role, data: &PortInfo) {
    let before = (
        port.lid,
        port.lmc,
        port.sm_lid,
        port.sm_sl,
        port.subnet_prefix,
    );
    port.lid = data.lid;
    port.lmc = if role == Role::BasePort0 {
        ib_wire::Lmc::default()
    } else {
        data.lmc()
    };
    port.sm_lid = data.master_sm_lid;
    port.sm_sl = data.master_sm_sl();
    port.subnet_prefix = data.gid_prefix;
    if (before.0, before.1) != (port.lid, port.lmc) {
        port.note(PortChange::LID);
    }
    if (before.2, before.3) != (port.sm_lid, port.sm_sl) {
        port.note(PortChange::SM);
    }
    if before.4 != port.subnet_prefix {
        port.note(PortChange::GID_TABLE);
    }
}

/// The attribute as it stands. `received_on` is the port that got the SMP.
fn read(port: &PhysicalPort, received_on: PortNum) -> PortInfo {
    let mut info = PortInfo {
        mkey: port.m_key,
        gid_prefix: port.subnet_prefix,
        lid: port.lid,
        master_sm_lid: port.sm_lid,
        capability_mask: port.capabilities,
        diag_code: port.diag_code.into(),
        mkey_lease_period: port.m_key_lease_seconds.into(),
        local_port: received_on,
        link_width_enabled: port.width_enabled,
        link_width_supported: port.width_supported,
        link_width_active: port.width_active,
        vl_high_limit: port.vl_high_limit,
        vl_arbitration_high_cap: VL_ARBITRATION_ENTRIES,
        vl_arbitration_low_cap: VL_ARBITRATION_ENTRIES,
        mkey_violations: port.m_key_violations.into(),
        pkey_violations: port.p_key_violations.into(),
        qkey_violations: port.q_key_violations.into(),
        guid_cap: u8::try_from(port.guid_cap).unwrap_or(u8::MAX),
        max_credit_hint: port.max_credit_hint.into(),
        capability_mask2: port.capabilities2,
        ..PortInfo::default()
    };
    info.set_link_speed_supported(port.speed_supported);
    info.set_port_state(wire_state(port.state));
    info.set_phys_state(wire_physical_state(port.physical_state));
    info.set_link_down_default(if port.link_down_default == PhysicalState::Sleep {
        LinkDownDefaultState::SLEEP
    } else {
        LinkDownDefaultState::POLLING
    });
    info.set_mkey_protect(port.m_key_protect);
    info.set_lmc(port.lmc);
    info.set_link_speed_active(port.speed_active);
    info.set_link_speed_enabled(port.speed_enabled);
    info.set_neighbor_mtu(port.neighbor_mtu);
    info.set_master_sm_sl(port.sm_sl);
    info.set_vl_cap(port.vl_cap);
    info.set_init_type(port.init_type);
    info.set_init_type_reply(port.init_type_reply);
    info.set_mtu_cap(port.mtu_cap);
    info.set_vl_stall_count(port.vl_stall_count);
    info.set_hoq_life(port.hoq_life);
    info.set_operational_vls(port.operational_vls);
    info.set_partition_enforcement_inbound(port.partition_enforcement_in);
    info.set_partition_enforcement_outbound(port.partition_enforcement_out);
    info.set_filter_raw_inbound(port.filter_raw_in);
    info.set_filter_raw_outbound(port.filter_raw_out);
    info.set_multicast_pkey_trap_suppression(port.multicast_pkey_trap_suppression);
    info.set_subnet_timeout(port.subnet_timeout);
    info.set_resp_time_value(port.response_time);
    info.set_local_phy_errors(port.local_phy_errors);
    info.set_overrun_errors(port.overrun_errors);
    info.set_link_round_trip_latency(port.link_round_trip_latency);
    info.set_link_speed_ext_active(port.extended_speed_active);
    info.set_link_speed_ext_supported(port.extended_speed_supported);
    info.set_link_speed_ext_enabled(port.extended_speed_enabled);
    info
}

const fn wire_state(state: PortState) -> smp::PortState {
    match state {
        PortState::Down => smp::PortState::DOWN,
        PortState::Init => smp::PortState::INIT,
        PortState::Armed => smp::PortState::ARMED,
        PortState::Active => smp::PortState::ACTIVE,
    }
}

const fn wire_physical_state(state: PhysicalState) -> PortPhysState {
    match state {
        PhysicalState::Sleep => PortPhysState::SLEEP,
        PhysicalState::Polling => PortPhysState::POLLING,
        PhysicalState::Disabled => PortPhysState::DISABLED,
        PhysicalState::Training => PortPhysState::PORT_CONFIGURATION_TRAINING,
        PhysicalState::LinkUp => PortPhysState::LINK_UP,
        PhysicalState::ErrorRecovery => PortPhysState::LINK_ERROR_RECOVERY,
    }
}
