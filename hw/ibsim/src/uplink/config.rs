//! What an uplink is made from, and its times.

use ib_vtime::Duration;

/// Who writes the GUIDs that the SA grants into the adapter's table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuidPolicy {
    /// The subnet manager, as on a real fabric: the adapter has what the simulated node's GUIDInfo
    /// shows. The stock ibsim never shows any, since its SMA refuses the subnet manager's
    /// Set(GUIDInfo).
    #[default]
    Fabric,
    /// The uplink itself, as soon as the SA's answer passes. No packet tells the difference: the
    /// protocol carries no GRH.
    Local,
}

/// What an uplink is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkConfig {
    /// The node to attach to: its id or its description in the simulator's net file, at most 31
    /// bytes. Empty for the simulator's first node.
    pub node: String,
    /// Who writes granted GUIDs.
    pub guids: GuidPolicy,
}

/// How long the simulator may take to answer a CONNECT.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The first pause before the next attempt to attach; each further one is twice as long.
pub(super) const MIN_BACKOFF: Duration = Duration::from_millis(100);

/// The longest pause. A client of the stock library tries every two seconds, too.
pub(super) const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// How long the simulated node, or the subnet manager, may take to answer an SMP.
pub(super) const QUERY_TIMEOUT: Duration = Duration::from_secs(1);

/// Unanswered tries after which the simulator counts as gone.
pub(super) const QUERY_TRIES: u32 = 5;

/// Pause between two readings of the simulated port while something is to change.
pub(super) const FAST_POLL: Duration = Duration::from_millis(50);

/// Pause between two readings of a simulated port that is active.
pub(super) const SLOW_POLL: Duration = Duration::from_millis(500);

/// How long the adapter may take to answer an SMP over a link of its own.
pub(super) const NEAR_TIMEOUT: Duration = Duration::from_millis(100);

/// Pause between two readings of the adapter's port, in case that somebody else changed it.
pub(super) const NEAR_REREAD: Duration = Duration::from_secs(1);

/// Pause before the adapter is asked again for what it refused.
pub(super) const NEAR_RETRY: Duration = Duration::from_secs(1);

/// How long a granted GUID may be missing in the simulated node before its SMA counts as one that
/// refuses GUIDs. OpenSM writes it within milliseconds of its answer.
pub(super) const GUID_GRACE: Duration = Duration::from_secs(1);

/// How long a request from the fabric may wait for an answer from behind the adapter before the uplink
/// refuses it: a client of the simulator has no timers, and would wait for ever.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(4);
