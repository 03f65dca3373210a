//! The link layer of a port in the words of infiniband-diags, and what is wrong with it.

use emulated_hca::{Endpoint, Fabric, NodeKind, PhysicalPort};
use hca_api::{PhysicalState, PortAttributes, PortState};
use ib_wire::PortNum;
use vhca_control::table::Cell;
use vhca_diagnosis::{Rates, Shortfall};

/// The state of a port's link, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// The logical state. A gateway has none: what is behind it is another fabric's.
    state: Option<PortState>,
    pub(super) physical_state: PhysicalState,
    /// Lanes and signalling rate of a lane in kb/s, of a link that is up.
    rate: Option<(u8, u32)>,
    pub(super) problem: Option<Problem>,
}

/// What is wrong with a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// An adapter's port has no cable.
    NoCable,
    /// The port is disabled.
    Disabled,
    /// The link does not come up.
    LinkDown,
    /// No subnet manager has activated the port.
    NotActive,
    /// Both ends support more lanes.
    Narrow,
    /// Both ends support a higher speed.
    Slow,
}

impl Problem {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::NoCable => "no_cable",
            Self::Disabled => "disabled",
            Self::LinkDown => "link_down",
            Self::NotActive => "not_active",
            Self::Narrow => "narrow",
            Self::Slow => "slow",
        }
    }
}

impl Link {
    /// Returns the link of a port that can have one: of any but a switch's port 0.
    pub(super) fn at(fabric: &Fabric, at: Endpoint) -> Option<Self> {
        (at.port != PortNum::SWITCH_MANAGEMENT)
            .then(|| Self::of_port(fabric, at))
            .flatten()
    }

    /// Returns the states of any port.
    pub(super) fn of_port(fabric: &Fabric, at: Endpoint) -> Option<Self> {
        let port = fabric.port(at)?;
        let peer = fabric.peer(at);
        let is_gateway = |end: Endpoint| fabric.is_gateway(end.node);
        let leaves = is_gateway(at) || peer.is_some_and(is_gateway);
        let is_up = peer.is_some() && port.physical_state == PhysicalState::LinkUp;
        // Of a link that leaves the fabric only the near half is emulated.
        let rate = (is_up && !leaves).then(|| rates(port).active()).flatten();
        Some(Self {
            state: (!is_gateway(at)).then_some(port.state),
            physical_state: port.physical_state,
            rate,
            problem: problem(fabric, at, port),
        })
    }

    /// Returns the states of a port outside of the fabric.
    pub(super) fn outside(port: &PortAttributes) -> Self {
        let problem = match (port.physical_state, port.state) {
            (PhysicalState::Disabled, _) => Some(Problem::Disabled),
            (PhysicalState::LinkUp, PortState::Active) => None,
            (PhysicalState::LinkUp, _) => Some(Problem::NotActive),
            _ => Some(Problem::LinkDown),
        };
        Self {
            state: Some(port.state),
            physical_state: port.physical_state,
            rate: None,
            problem,
        }
    }

    /// Returns true if packets pass.
    pub(super) fn is_active(&self) -> bool {
        self.state == Some(PortState::Active)
    }

    pub(super) fn state(&self) -> Cell {
        Cell::option(self.state_name(), Cell::of)
    }

    /// Returns the logical state in the words of ibstat, if the port has one.
    pub(super) fn state_name(&self) -> Option<&'static str> {
        self.state.map(|state| match state {
            PortState::Down => "Down",
            PortState::Init => "Initialize",
            PortState::Armed => "Armed",
            PortState::Active => "Active",
        })
    }

    pub(super) fn physical_state(&self) -> Cell {
        Cell::of(match self.physical_state {
            PhysicalState::Sleep => "Sleep",
            PhysicalState::Polling => "Polling",
            PhysicalState::Disabled => "Disabled",
            PhysicalState::Training => "PortConfigurationTraining",
            PhysicalState::LinkUp => "LinkUp",
            PhysicalState::ErrorRecovery => "LinkErrorRecovery",
        })
    }

    /// Returns the logical state as PortInfo has it; 0 if there is none.
    pub(super) fn state_id(&self) -> u64 {
        self.state.map_or(0, |state| match state {
            PortState::Down => 1,
            PortState::Init => 2,
            PortState::Armed => 3,
            PortState::Active => 4,
        })
    }

    /// Returns the physical state as PortInfo has it.
    pub(super) const fn physical_state_id(&self) -> u64 {
        match self.physical_state {
            PhysicalState::Sleep => 1,
            PhysicalState::Polling => 2,
            PhysicalState::Disabled => 3,
            PhysicalState::Training => 4,
            PhysicalState::LinkUp => 5,
            PhysicalState::ErrorRecovery => 6,
        }
    }

    /// Returns the lanes of a link that is up, and the signalling rate of a lane in kb/s.
    pub(super) const fn rate(&self) -> Option<(u8, u32)> {
        self.rate
    }

    pub(super) fn width(&self) -> Cell {
        Cell::option(self.rate, |(lanes, _)| Cell::of(format_args!("{lanes}X")))
    }

    pub(super) fn speed(&self) -> Cell {
        Cell::option(self.rate, |(_, kbps)| {
            Cell::of(format_args!("{:?} Gbps", f64::from(kbps) / 1e6))
        })
    }
}

/// Returns what is wrong with a port, if anything is.
fn problem(fabric: &Fabric, at: Endpoint, port: &PhysicalPort) -> Option<Problem> {
    if at.port == PortNum::SWITCH_MANAGEMENT || fabric.is_gateway(at.node) {
        return None;
    }
    if fabric.peer(at).is_none() {
        // Switches have ports to spare; an adapter's port without a cable is of no use.
        let kind = fabric.node(at.node).map(|node| node.kind());
        return (kind == Some(NodeKind::ChannelAdapter)).then_some(Problem::NoCable);
    }
    match (port.physical_state, port.state) {
        (PhysicalState::Disabled, _) => Some(Problem::Disabled),
        (PhysicalState::LinkUp, PortState::Active) => {
            let Shortfall { lanes, kbps } = shortfall(fabric, at)?;
            let narrow = lanes.map(|_| Problem::Narrow);
            narrow.or_else(|| kbps.map(|_| Problem::Slow))
        }
        (PhysicalState::LinkUp, _) => Some(Problem::NotActive),
        _ => Some(Problem::LinkDown),
    }
}

/// Compares a link that packets pass with what both its ends support. A link that leaves the fabric has only one.
fn shortfall(fabric: &Fabric, at: Endpoint) -> Option<Shortfall> {
    let (port, far) = (fabric.port(at)?, fabric.peer(at)?);
    let is_up = (port.physical_state, port.state) == (PhysicalState::LinkUp, PortState::Active);
    let leaves = fabric.is_gateway(far.node);
    (is_up && !leaves)
        .then(|| rates(port).shortfall(&rates(fabric.port(far)?)))
        .flatten()
}

/// Returns the widths and speeds of a port.
pub(crate) fn rates(port: &PhysicalPort) -> Rates {
    Rates {
        widths: port.width_supported,
        width: port.width_active,
        speeds: port.speed_supported,
        speed: port.speed_active,
        extended_speeds: port.extended_speed_supported,
        extended_speed: port.extended_speed_active,
    }
}
