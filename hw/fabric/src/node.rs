//! A node: its identity and its ports, with the agents that manage them.

use core::fmt;
use core::time::Duration;

use hca_api::{FunctionId, PhysicalState, PortChange, PortState};
use ib_vtime::{Instant, Secret};
use ib_wire::notice::LocalChanges;
use ib_wire::smp::{CapabilityMask, CapabilityMask2, LinkSpeed, LinkSpeedExt, NodeDescription};
use ib_wire::{Guid, Lid, Lmc, MKey, PKey, PortNum, Sl, SubnetPrefix, Vl};

use crate::description::{described, name_in};
use crate::link::{fastest, fastest_extended, widest};
use crate::pma::Samples;
use crate::switch::Tables;
use crate::trap::Traps;
use crate::{
    DropCounters, DropReason, Frame, HcaConfig, Lanes, Pace, PacketRun, PhysicalPort, PortConfig,
    PortCounters, RunHead, SwitchConfig,
};

/// What a node is (IBA 14.2.5.3, NodeInfo:NodeType).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A channel adapter.
    ChannelAdapter,
    /// A switch.
    Switch,
}

/// A node of the fabric: what the SMA and the PMA work on.
///
/// The device behind a channel adapter owns one, a switch another. Ports of a channel adapter
/// are numbered from 1; a switch also has its management port 0.
#[derive(Clone, Debug)]
pub struct Node {
    /// NodeInfo:NodeGUID.
    pub node_guid: Guid,
    /// NodeInfo:SystemImageGUID.
    pub system_image_guid: Guid,
    /// NodeDescription.
    pub description: NodeDescription,
    site: Option<String>,
    /// NodeInfo:VendorID.
    pub vendor_id: u32,
    /// NodeInfo:DeviceID.
    pub device_id: u16,
    /// NodeInfo:Revision.
    pub revision: u32,
    ports: Vec<PhysicalPort>,
    /// Of a switch, what it forwards by.
    tables: Option<Box<Tables>>,
    pub(crate) traps: Traps,
    pub(crate) samples: Samples,
    link_requests: Vec<(PortNum, LinkRequest)>,
    drops: DropCounters,
    now: Instant,
    pace: Pace,
    /// Packets that the node may still move before others have their turn.
    packets_left: u32,
}

/// What the SMA asks of the link behind a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkRequest {
    /// Take the logical state of both ends back to initialize; the link stays up.
    Reset,
    /// Take the link down and bring it up again.
    Poll,
    /// Take the link down; the port sleeps until told to poll.
    Sleep,
    /// Take the link down; the port is off until told to poll.
    Disable,
}

/// The part of a device that lives on the fabric: what the fabric needs of whoever owns a
/// channel adapter's ports.
///
/// # Who does what
///
/// The fabric is the link and management layers; the device is everything behind them.
///
/// * The **fabric** checks VCRC, link version, length and the port's state, moves an armed port to
///   active, and counts data and packets both ways. It handles directed routes and gives SMPs to
///   the SMA ([`crate::sma`]); [`EndNode::receive`] only gets what is left: SMPs for the software
///   on QP0, and packets of all data lanes. It sends traps by itself. An SMP that
///   [`EndNode::poll_transmit_on`] gives out may have its directed route before it (hop pointer 0)
///   and may be addressed to the node itself: the fabric does the first hop, or the loop.
/// * The **device** checks DLID, ICRC, transport headers, P_Key and Q_Key, and reports the
///   violations with [`Node::report_bad_key`]; it hands performance management requests to
///   [`crate::pma`] before QP1; it loops data packets to its own LIDs itself.
///
/// After each call that takes `&mut self` the fabric pulls `poll_transmit_on` for every port until it
/// gives `None`, and asks `poll_timeout` again.
pub trait EndNode: fmt::Debug {
    /// The ports and the identity.
    fn node(&self) -> &Node;

    /// The same, for the fabric's layers to change.
    fn node_mut(&mut self) -> &mut Node;

    /// Takes a packet that arrived on a port.
    fn receive(&mut self, now: Instant, port: PortNum, frame: Frame);

    /// Returns the next packet to send on a port, of those on some lanes. The fabric asks with the lanes on which the link
    /// has places, so packets that wait here hold their senders back.
    fn poll_transmit_on(&mut self, now: Instant, port: PortNum, lanes: Lanes) -> Option<Frame>;

    /// Returns the next packet to send on a port, on any lane.
    fn poll_transmit(&mut self, now: Instant, port: PortNum) -> Option<Frame> {
        self.poll_transmit_on(now, port, Lanes::ALL)
    }

    /// Returns the head of the run that leaves next by a port, or `None` if a frame does or nothing waits. One that the fabric
    /// cannot hand over whole leaves by [`EndNode::poll_transmit_on`].
    #[must_use]
    fn poll_run(&mut self, _now: Instant, _port: PortNum) -> Option<RunHead> {
        None
    }

    /// Drops the run that [`EndNode::poll_run`] described, because its peer has it: taking it took the peer so long, of time that
    /// the node's [`Pace`] measures.
    fn run_arrived(&mut self, _port: PortNum, _taken: Duration) {}

    /// Takes whole the run that [`EndNode::poll_run`] of another node described, with the port that it leaves by. Returns `false` if
    /// some packet of it would be dropped here: then nothing was done, and the packets come one by one.
    fn receive_run(&mut self, _now: Instant, _port: PortNum, _from: (&Self, PortNum)) -> bool {
        false
    }

    /// Takes the run that [`EndNode::poll_run`] described off, with its payload, for a gateway. Returns `None` if it is lost, because
    /// its payload cannot be read.
    fn take_front_run(&mut self, _now: Instant, _port: PortNum) -> Option<PacketRun> {
        None
    }

    /// Takes whole a run that came by a gateway, or returns `false` as [`EndNode::receive_run`] does.
    fn receive_whole(&mut self, _now: Instant, _port: PortNum, _run: &PacketRun) -> bool {
        false
    }

    /// The fabric changed ports: [`Node::take_port_change`] has something to tell the functions.
    fn ports_changed(&mut self, now: Instant);

    /// Returns the time at which [`EndNode::handle_timeout`] is due: never, of a node without timers.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Carries out the timers that are due.
    fn handle_timeout(&mut self, _now: Instant) {}

    /// Takes the number of packets that the node delivered to itself since the last call. They cross no link, but are work.
    fn take_delivered(&mut self) -> u32 {
        0
    }

    /// Begins or ends to keep copies of what passes the node's tunnels, for
    /// [`EndNode::poll_tunnelled`].
    fn watch_tunnels(&mut self, _watch: bool) {}

    /// The oldest copy of what passed a tunnel, with the port that the tunnel is for.
    fn poll_tunnelled(&mut self) -> Option<(PortNum, Frame)> {
        None
    }
}

/// An end node that a fabric makes from the configuration of a channel adapter: [`Fabric::add_hca`](crate::Fabric::add_hca) and
/// [`Topology::build`](crate::Topology::build) add them.
pub trait ChannelAdapter: EndNode + Sized {
    /// Makes the adapter with its ports down. Keys and numbers that peers must not guess follow from the secret.
    fn from_config(config: &HcaConfig, secret: Secret) -> Self;
}

impl Node {
    /// The node of a channel adapter: ports down, as after power-on.
    #[must_use]
    pub fn channel_adapter(config: &HcaConfig) -> Self {
        let ports = (1..=config.ports)
            .map(|n| {
                let mut port = new_port(PortNum(n), config.port_guid(n), &config.port);
                port.guid_cap = config.guid_table_len.max(1);
                port.pkey_cap = config.pkey_table_len.max(1);
                port.capabilities = config.capabilities;
                port.subnet_prefix = config.subnet_prefix;
                port
            })
            .collect();
        let image = if config.system_image_guid.is_none() {
            Guid::new(config.node_guid.get().wrapping_add(0xff))
        } else {
            config.system_image_guid
        };
        Self {
            node_guid: config.node_guid,
            system_image_guid: image,
            description: described(&config.description, config.site.as_deref()),
            site: config.site.clone(),
            vendor_id: config.vendor_id,
            device_id: config.device_id,
            revision: config.revision,
            ports,
            tables: None,
            traps: Traps::default(),
            samples: Samples::default(),
            link_requests: Vec::new(),
            drops: DropCounters::default(),
            now: Instant::ZERO,
            pace: Pace::VIRTUAL,
            packets_left: u32::MAX,
        }
    }

    /// The node of a switch: external ports down, port 0 up.
    #[must_use]
    pub fn switch(config: &SwitchConfig) -> Self {
        let ports = (0..=config.ports.min(SwitchConfig::MAX_PORTS))
            .map(|n| {
                let mut port = new_port(PortNum(n), config.node_guid, &config.port);
                port.pkey_cap = config.pkey_table_len.max(1);
                if n == 0 {
                    port.subnet_prefix = config.subnet_prefix;
                    port.guid_cap = 1;
                    // No cable says what port 0 runs at.
                    port.speed_active = fastest(port.speed_supported);
                    port.extended_speed_active = fastest_extended(port.extended_speed_supported);
                    port.capabilities = CapabilityMask::IS_TRAP_SUPPORTED
                        | CapabilityMask::IS_SL_MAPPING_SUPPORTED
                        | CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED
                        | CapabilityMask::IS_MULTICAST_FDB_TOP_SUPPORTED
                        | CapabilityMask::IS_SYSTEM_IMAGE_GUID_SUPPORTED
                        | CapabilityMask::IS_CAPABILITY_MASK_NOTICE_SUPPORTED
                        | CapabilityMask::IS_OTHER_LOCAL_CHANGES_NOTICE_SUPPORTED;
                    port.state = if config.enhanced_port0 {
                        PortState::Init
                    } else {
                        PortState::Active
                    };
                    port.physical_state = PhysicalState::LinkUp;
                } else {
                    // Only port 0 is an end port.
                    port.subnet_prefix = SubnetPrefix::new(0);
                }
                port
            })
            .collect();
        let image = if config.system_image_guid.is_none() {
            config.node_guid
        } else {
            config.system_image_guid
        };
        Self {
            node_guid: config.node_guid,
            system_image_guid: image,
            description: described(&config.description, config.site.as_deref()),
            site: config.site.clone(),
            vendor_id: config.vendor_id,
            device_id: config.device_id,
            revision: config.revision,
            ports,
            tables: Some(Box::new(Tables::new(config))),
            traps: Traps::default(),
            samples: Samples::default(),
            link_requests: Vec::new(),
            drops: DropCounters::default(),
            now: Instant::ZERO,
            pace: Pace::VIRTUAL,
            packets_left: u32::MAX,
        }
    }

    /// What the node is.
    #[must_use]
    pub const fn kind(&self) -> NodeKind {
        match self.tables {
            None => NodeKind::ChannelAdapter,
            Some(_) => NodeKind::Switch,
        }
    }

    /// The latest time that the fabric told this node.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Tells the node the time.
    pub const fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    /// Returns the bound of the node's work at a time, and the clock that measures it.
    #[must_use]
    pub const fn pace(&self) -> Pace {
        self.pace
    }

    /// Begins the node's turn, with as many packets as the pace allows.
    pub const fn begin_turn(&mut self, pace: Pace) {
        self.pace = pace;
        self.packets_left = pace.packets();
    }

    /// Returns the packets that the node may still move in its turn.
    #[must_use]
    pub const fn packets_left(&self) -> u32 {
        self.packets_left
    }

    /// Counts packets that the node moved in its turn. In virtual time no number of them ends it.
    pub const fn count_moved(&mut self, packets: u32) {
        if self.pace.is_timed() {
            self.packets_left = self.packets_left.saturating_sub(packets);
        }
    }

    /// What was dropped here, and why.
    #[must_use]
    pub const fn drops(&self) -> &DropCounters {
        &self.drops
    }

    /// Counts a packet that was dropped at a port: of a function or for one, as far as that is known.
    pub fn count_drop(
        &mut self,
        port: PortNum,
        function: impl Into<Option<FunctionId>>,
        reason: DropReason,
    ) {
        self.drops.count(self.now, port, function.into(), reason);
    }

    /// Number of ports as NodeInfo counts them: a switch's port 0 does not count.
    #[must_use]
    pub fn port_count(&self) -> u8 {
        self.ports.last().map_or(0, |port| port.number.0)
    }

    /// A port by its number.
    #[must_use]
    pub fn port(&self, port: PortNum) -> Option<&PhysicalPort> {
        self.ports.get(self.port_index(port)?)
    }

    /// A port by its number, to be changed.
    pub fn port_mut(&mut self, port: PortNum) -> Option<&mut PhysicalPort> {
        let index = self.port_index(port)?;
        self.ports.get_mut(index)
    }

    /// All ports in order.
    #[must_use]
    pub fn ports(&self) -> &[PhysicalPort] {
        &self.ports
    }

    /// All ports in order, to be changed.
    pub(crate) fn ports_mut(&mut self) -> &mut [PhysicalPort] {
        &mut self.ports
    }

    fn port_index(&self, port: PortNum) -> Option<usize> {
        match self.kind() {
            NodeKind::Switch => Some(port.index()),
            NodeKind::ChannelAdapter => port.index().checked_sub(1),
        }
    }

    /// The port that has the addresses by which `port` is managed: a switch's port 0 for all of its
    /// ports.
    pub(crate) fn end_port(&self, port: PortNum) -> Option<&PhysicalPort> {
        self.port(self.end_port_number(port))
    }

    /// As [`Node::end_port`], to be changed.
    pub(crate) fn end_port_mut(&mut self, port: PortNum) -> Option<&mut PhysicalPort> {
        self.port_mut(self.end_port_number(port))
    }

    /// The number of the port behind [`Node::end_port`].
    pub(crate) const fn end_port_number(&self, port: PortNum) -> PortNum {
        match self.kind() {
            NodeKind::Switch => PortNum::SWITCH_MANAGEMENT,
            NodeKind::ChannelAdapter => port,
        }
    }

    /// The tables of a switch.
    pub(crate) fn tables(&self) -> Option<&Tables> {
        self.tables.as_deref()
    }

    /// The tables of a switch, to be changed.
    pub(crate) fn tables_mut(&mut self) -> Option<&mut Tables> {
        self.tables.as_deref_mut()
    }

    pub(crate) fn has_enhanced_port0(&self) -> bool {
        self.tables()
            .is_some_and(|tables| tables.info.enhanced_port0())
    }

    /// The lanes between two ports of a switch, after setting them if `lanes` says so.
    pub(crate) fn switch_sl2vl(
        &mut self,
        input: PortNum,
        output: PortNum,
        lanes: Option<[Vl; 16]>,
    ) -> Option<[Vl; 16]> {
        self.port(input)?;
        let operational_vls = self.port(output)?.operational_vls;
        let tables = self.tables_mut()?;
        if let Some(lanes) = lanes {
            tables.set_lanes(input, output, lanes);
        }
        Some(core::array::from_fn(|sl| {
            let sl = Sl::from_low_bits(u8::try_from(sl).unwrap_or(0));
            tables.vl(input, output, sl, operational_vls)
        }))
    }

    /// Moves a port to a logical state and notes what its functions shall hear.
    pub(crate) fn set_port_state(&mut self, port: PortNum, state: PortState) {
        let Some(port) = self.port_mut(port) else {
            return;
        };
        let before = core::mem::replace(&mut port.state, state);
        match (before == PortState::Active, state == PortState::Active) {
            (false, true) => port.note(PortChange::ACTIVE),
            (true, false) => port.note(PortChange::DOWN),
            _ => {}
        }
    }

    /// Asks something of the link behind a port.
    pub(crate) fn request_link(&mut self, port: PortNum, request: LinkRequest) {
        // The last word on a port counts.
        self.link_requests.retain(|(p, _)| *p != port);
        self.link_requests.push((port, request));
    }

    /// Takes the link of a port down until it is enabled again, or has a disabled one train again. Nothing happens if the port is
    /// as wanted, or if there is none.
    pub fn set_port_enabled(&mut self, number: PortNum, enabled: bool) {
        let Some(port) = self.port(number) else {
            return;
        };
        match (enabled, port.physical_state == PhysicalState::Disabled) {
            (false, false) => self.request_link(number, LinkRequest::Disable),
            (true, true) => self.request_link(number, LinkRequest::Poll),
            _ => {}
        }
    }

    /// Takes the oldest request to a link.
    pub(crate) fn take_link_request(&mut self) -> Option<(PortNum, LinkRequest)> {
        (!self.link_requests.is_empty()).then(|| self.link_requests.remove(0))
    }

    /// Notes that a link at one of the node's ports came or went by itself. What an SM ordered it knows (IBA 14.2.5.4).
    pub(crate) fn port_state_changed(&mut self) {
        if let Some(tables) = self.tables_mut() {
            tables.info.set_port_state_change(true);
            self.trap_link_state();
        }
    }

    /// Whether the fabric has something to do for this node besides moving packets.
    pub(crate) fn wants_service(&self) -> bool {
        !self.link_requests.is_empty() || self.traps.fresh || self.samples.fresh
    }

    /// Whether [`Node::take_port_change`] has something.
    #[must_use]
    pub fn has_port_changes(&self) -> bool {
        self.ports.iter().any(|port| !port.pending.is_empty())
    }

    /// Returns the name of the node at its own site: its description, without the site. `None` if that is no UTF-8.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        let text = self.description.as_str()?;
        Some(name_in(text, self.site.as_deref()))
    }

    /// Writes the description and tells the SM of each end port: two ports may be in two subnets.
    pub fn set_description(&mut self, description: NodeDescription) {
        if self.description == description {
            return;
        }
        self.description = description;
        for port in self.end_ports() {
            self.trap_local_changes(port, LocalChanges::NODE_DESCRIPTION);
        }
    }

    /// Writes the system image GUID and tells the SM of each end port.
    pub fn set_system_image_guid(&mut self, guid: Guid) {
        if self.system_image_guid == guid {
            return;
        }
        self.system_image_guid = guid;
        for port in self.end_ports() {
            self.trap_system_image_guid(port);
        }
    }

    /// The numbers of the ports that have addresses: of a switch its management port alone.
    fn end_ports(&self) -> impl Iterator<Item = PortNum> + use<> {
        let numbers = match self.kind() {
            NodeKind::Switch => 0..=0,
            NodeKind::ChannelAdapter => 1..=self.port_count(),
        };
        numbers.map(PortNum)
    }

    /// Sets and clears bits of a port's capability mask, and tells the SM if that changes it.
    pub fn change_capabilities(&mut self, port: PortNum, set: u32, clear: u32) {
        let Some(state) = self.port_mut(port) else {
            return;
        };
        let mask = CapabilityMask::new((state.capabilities.get() & !clear) | set);
        if mask != state.capabilities {
            state.capabilities = mask;
            self.trap_local_changes(port, LocalChanges::default());
        }
    }

    /// Takes the changes of one port that has any.
    pub fn take_port_change(&mut self) -> Option<(PortNum, PortChange)> {
        let port = self.ports.iter_mut().find(|p| !p.pending.is_empty())?;
        Some((port.number, core::mem::take(&mut port.pending)))
    }
}

fn new_port(number: PortNum, guid: Guid, config: &PortConfig) -> PhysicalPort {
    PhysicalPort {
        number,
        guid,
        state: PortState::Down,
        physical_state: PhysicalState::Polling,
        link_down_default: PhysicalState::Polling,
        lid: Lid::NONE,
        lmc: Lmc::default(),
        sm_lid: Lid::NONE,
        sm_sl: Sl::default(),
        subnet_prefix: SubnetPrefix::DEFAULT,
        capabilities: CapabilityMask::default(),
        capabilities2: CapabilityMask2::default(),
        m_key: MKey::default(),
        m_key_protect: 0,
        m_key_lease_seconds: 0,
        m_key_violations: 0,
        p_key_violations: 0,
        q_key_violations: 0,
        diag_code: 0,
        width_enabled: config.widths,
        width_supported: config.widths,
        width_active: widest(config.widths).unwrap_or(config.widths),
        speed_enabled: config.speeds,
        speed_supported: config.speeds,
        speed_active: LinkSpeed::SDR,
        extended_speed_enabled: config.extended_speeds,
        extended_speed_supported: config.extended_speeds,
        extended_speed_active: LinkSpeedExt::NONE,
        mtu_cap: config.mtu,
        neighbor_mtu: config.mtu,
        vl_cap: config.vl_cap,
        operational_vls: config.vl_cap,
        vl_high_limit: 0,
        init_type: 0,
        init_type_reply: 0,
        vl_stall_count: 7,
        hoq_life: 16,
        partition_enforcement_in: false,
        partition_enforcement_out: false,
        filter_raw_in: false,
        filter_raw_out: false,
        subnet_timeout: 18,
        response_time: 16,
        local_phy_errors: 8,
        overrun_errors: 8,
        max_credit_hint: 0,
        link_round_trip_latency: 0x00ff_ffff,
        guid_cap: 0,
        pkey_cap: 0,
        counters: PortCounters::default(),
        cleared: PortCounters::default(),
        m_key_lease_end: None,
        led_on: false,
        multicast_pkey_trap_suppression: 0,
        pending: PortChange::empty(),
        alias_guids: Vec::new(),
        pkeys: vec![PKey::DEFAULT_FULL],
        sl2vl: None,
        vl_arbitration: None,
    }
}
