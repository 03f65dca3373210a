//! What goes into the manager and what comes out.

use ib_endpoint::SaRequest;
use ib_vtime::Instant;
use ib_wire::Guid;
use thiserror::Error;
use vf_tunnel::VfId;

/// What is wanted for a VF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuidWish {
    /// No GUID: one that the VF has is deleted at the SA.
    #[default]
    None,
    /// Any GUID: the SA chooses, and what it chose is asked for from then on.
    SmAssigned,
    /// This GUID.
    Admin(Guid),
}

impl GuidWish {
    /// All ones: the administrator's value for no GUID.
    const DELETE: Guid = Guid::new(u64::MAX);

    /// The wish behind an administrator's value (Linux mlx4 `admin_guids`): 0 is for the SA to choose,
    /// all ones is for none.
    #[must_use]
    pub fn from_admin_value(value: Guid) -> Self {
        match value {
            Guid::NONE => Self::SmAssigned,
            Self::DELETE => Self::None,
            guid => Self::Admin(guid),
        }
    }

    /// Whether a GUID is what is wanted.
    pub(super) fn accepts(self, guid: Guid) -> bool {
        match self {
            Self::None => false,
            Self::SmAssigned => !guid.is_none(),
            Self::Admin(wanted) => guid == wanted,
        }
    }
}

/// Why a wish is refused at once. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WishRefusal {
    /// Another VF has that GUID or wants it.
    #[error("the GUID is {0}'s")]
    Taken(VfId),
    /// It is the port's own GUID, or is wanted for the port's own entry.
    #[error("the GUID is the port's own")]
    PortGuid,
    /// It is zero, all ones, or the SA's well-known one.
    #[error("the GUID is reserved")]
    Reserved,
}

/// A port as its manager needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuidConfig {
    /// Spreads retries in time: different on each host.
    pub seed: u64,
    /// Entries of the port's GUID table, the port's own one included: PortInfo:GUIDCap, which a port
    /// can say up to 255 of.
    pub table_len: u16,
    /// Whether VFs are members of multicast groups under their alias
    /// ([`mcast_agg::JoinAs::Alias`]): then an alias leaves its groups before it is deleted, not
    /// only when the SA refuses to.
    pub alias_members: bool,
}

impl Default for GuidConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            table_len: 255,
            alias_members: false,
        }
    }
}

/// Names a request to the SA for the life of the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuidToken(pub u64);

/// What the manager wants done, or knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuidOutput {
    /// Ask the SA this. Each token is answered once, whatever happens.
    Request {
        /// For [`GuidManager::answered`](super::GuidManager::answered).
        token: GuidToken,
        /// What to ask. Its answer fits one MAD.
        request: Box<SaRequest>,
    },
    /// The VF's GUID is this one now, in the SA's table and in hardware; or it has none any more. A
    /// change of the GUID is first none, then the new one.
    Guid {
        /// Whose.
        vf: VfId,
        /// Which.
        guid: Option<Guid>,
    },
    /// The VF's [`GuidManager::state`](super::GuidManager::state) is this now.
    State {
        /// Whose.
        vf: VfId,
        /// Where it stands.
        state: GuidState,
    },
    /// The VF's alias cannot be deleted while it is a member of multicast groups: have it leave them.
    LeaveGroups {
        /// Whose.
        vf: VfId,
        /// The alias, as far as it is known: what the SA granted, or else what the hardware has.
        alias: Guid,
    },
    /// The port is not active and should be by now: read it.
    CheckPort,
}

/// How far a VF's GUID is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuidState {
    /// No GUID is wanted, and the VF has none.
    #[default]
    NotRequested,
    /// The SA was asked or will be: its answer, another try, or an active port is waited for.
    WaitingForSa,
    /// The SA gave another GUID or none.
    Declined {
        /// When it is asked again.
        retry_at: Instant,
    },
    /// The SA has granted the GUID, and the hardware does not show it.
    WaitingForHardware,
    /// The VF has this GUID. It may be that another one is wanted: see [`GuidView`].
    InHardware(Guid),
    /// The SA cannot give out additional GUIDs.
    NotSupported,
    /// The port's GUID table has no entry for the VF.
    TableTooSmall,
}

impl GuidState {
    /// The stable text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotRequested => "not_requested",
            Self::WaitingForSa => "waiting_for_sa",
            Self::Declined { .. } => "declined",
            Self::WaitingForHardware => "waiting_for_hardware",
            Self::InHardware(_) => "in_hardware",
            Self::NotSupported => "not_supported",
            Self::TableTooSmall => "table_too_small",
        }
    }
}

/// A VF's GUID as an administrator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuidView {
    /// What is wanted.
    pub wish: GuidWish,
    /// What the SA has for the entry, as far as it has said so.
    pub granted: Option<Guid>,
    /// What the hardware has in the entry; zero for nothing.
    pub hardware: Guid,
    /// How far it is.
    pub state: GuidState,
    /// How often the SA has declined in a row.
    pub declines: u32,
}

/// Live objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuidSizes {
    /// VFs for which a GUID is wanted.
    pub wanted: usize,
    /// Entries that the SA may hold a GUID for.
    pub held: usize,
    /// Requests that wait for the SA's answer.
    pub requests: usize,
    /// Timers.
    pub timers: usize,
}
