//! Why a VF's port is as it is.

use core::fmt;

use ib_vtime::Instant;
use ib_wire::smp::PortState;

use crate::guids::GuidState;

/// What keeps a GUID that the SA has granted out of the hardware, as far as somebody besides the PF
/// knows: the PF itself only sees that nothing comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuidObstacle {
    /// The port stands for one on a fabric whose agent does not take additional GUIDs: the SM's
    /// Set(GUIDInfo) is refused there. The stock ibsim is such a one.
    RefusedByFabric,
}

impl GuidObstacle {
    /// The stable text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RefusedByFabric => "the fabric's SMA refuses GUIDs",
        }
    }
}

/// Why a VF's port is up or not. What is named first below is named first to the user: a port that the
/// administrator took down is [`PortReason::AdminDown`] whatever else is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortReason {
    /// The administrator keeps the VF's port down.
    AdminDown,
    /// The physical port is not active.
    PhysicalDown,
    /// Up: the port is active and the VF's GUID is in hardware.
    Up,
    /// Nobody wants a GUID for the VF.
    NoGuidRequested,
    /// The SA has not granted the VF's GUID yet.
    WaitingForSa,
    /// The SA did not grant the VF's GUID.
    Declined {
        /// When it is asked again.
        retry_at: Instant,
    },
    /// The SA has granted the GUID; the SM has not written it to the hardware.
    WaitingForHardware {
        /// Why it may never.
        obstacle: Option<GuidObstacle>,
    },
    /// The SA cannot give out additional GUIDs.
    NotSupported,
    /// The port's GUID table has no entry for the VF.
    TableTooSmall,
}

impl PortReason {
    /// The reason that follows from the physical port, from whether the administrator lets the VF's
    /// port be up, from its GUID ([`GuidManager::state`](crate::guids::GuidManager::state)), and from
    /// what is known to keep GUIDs out of the hardware.
    #[must_use]
    pub fn of(
        physical: PortState,
        admin_up: bool,
        guid: GuidState,
        obstacle: Option<GuidObstacle>,
    ) -> Self {
        if !admin_up {
            return Self::AdminDown;
        }
        if physical != PortState::ACTIVE {
            return Self::PhysicalDown;
        }
        match guid {
            GuidState::InHardware(_) => Self::Up,
            GuidState::NotRequested => Self::NoGuidRequested,
            GuidState::WaitingForSa => Self::WaitingForSa,
            GuidState::Declined { retry_at } => Self::Declined { retry_at },
            GuidState::WaitingForHardware => Self::WaitingForHardware { obstacle },
            GuidState::NotSupported => Self::NotSupported,
            GuidState::TableTooSmall => Self::TableTooSmall,
        }
    }

    /// Whether the VF's port is up.
    #[must_use]
    pub const fn is_up(self) -> bool {
        matches!(self, Self::Up)
    }

    /// What is known beyond the stable text.
    #[must_use]
    pub const fn detail(self) -> Option<&'static str> {
        match self {
            Self::WaitingForHardware {
                obstacle: Some(obstacle),
            } => Some(obstacle.as_str()),
            _ => None,
        }
    }

    /// The stable text, for counters, scripts and machines.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AdminDown => "admin_down",
            Self::PhysicalDown => "physical_down",
            Self::Up => "up",
            Self::NoGuidRequested => "no_guid_requested",
            Self::WaitingForSa => "waiting_for_sa",
            Self::Declined { .. } => "declined",
            Self::WaitingForHardware { .. } => "waiting_for_hardware",
            Self::NotSupported => "not_supported",
            Self::TableTooSmall => "table_too_small",
        }
    }
}

impl fmt::Display for PortReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Declined { retry_at } => {
                write!(f, "declined by the SA, asked again at {retry_at}")
            }
            Self::AdminDown => f.write_str("down by the administrator"),
            Self::PhysicalDown => f.write_str("the physical port is not active"),
            Self::Up => f.write_str("up"),
            Self::NoGuidRequested => f.write_str("no GUID requested"),
            Self::WaitingForSa => f.write_str("waiting for the SA to grant the GUID"),
            Self::WaitingForHardware { obstacle: None } => {
                f.write_str("waiting for the GUID in hardware")
            }
            Self::WaitingForHardware {
                obstacle: Some(obstacle),
            } => {
                write!(f, "waiting for the GUID in hardware: {}", obstacle.as_str())
            }
            Self::NotSupported => f.write_str("the SA does not support additional GUIDs"),
            Self::TableTooSmall => f.write_str("the port's GUID table has no entry for the VF"),
        }
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::Guid;

    use super::*;

    const IN_HARDWARE: GuidState = GuidState::InHardware(Guid::new(7));

    #[test]
    fn the_administrator_comes_before_the_port_and_the_port_before_the_guid() {
        let of = |state, admin_up, guid| PortReason::of(state, admin_up, guid, None);
        assert_eq!(
            of(PortState::DOWN, false, IN_HARDWARE),
            PortReason::AdminDown
        );
        assert_eq!(
            of(PortState::DOWN, true, IN_HARDWARE),
            PortReason::PhysicalDown
        );
        assert_eq!(of(PortState::ACTIVE, true, IN_HARDWARE), PortReason::Up);
        assert_eq!(
            of(PortState::ACTIVE, true, GuidState::WaitingForHardware),
            PortReason::WaitingForHardware { obstacle: None }
        );
    }

    #[test]
    fn a_port_that_is_not_active_yet_keeps_all_down() {
        for state in [PortState::INIT, PortState::ARMED] {
            assert!(!PortReason::of(state, true, IN_HARDWARE, None).is_up());
        }
    }

    #[test]
    fn an_obstacle_is_told_of_a_guid_that_waits_for_hardware_and_of_no_other() {
        let obstacle = Some(GuidObstacle::RefusedByFabric);
        let of = |guid| PortReason::of(PortState::ACTIVE, true, guid, obstacle);
        let reason = of(GuidState::WaitingForHardware);
        assert_eq!(reason.as_str(), "waiting_for_hardware");
        assert_eq!(
            reason.to_string(),
            "waiting for the GUID in hardware: the fabric's SMA refuses GUIDs"
        );
        assert_eq!(reason.detail(), Some("the fabric's SMA refuses GUIDs"));
        assert_eq!(of(IN_HARDWARE).detail(), None);
        assert_eq!(of(GuidState::WaitingForSa).detail(), None);
    }

    #[test]
    fn a_declined_guid_says_when_it_is_asked_for_again() {
        let retry_at = Instant::from_millis(1500);
        let declined = GuidState::Declined { retry_at };
        let reason = PortReason::of(PortState::ACTIVE, true, declined, None);
        assert_eq!(reason.as_str(), "declined");
        assert_eq!(
            reason.to_string(),
            "declined by the SA, asked again at 1.500000000s"
        );
    }
}
