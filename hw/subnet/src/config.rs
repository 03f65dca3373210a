//! What the operator decides.

use ib_vtime::Duration;
use ib_wire::{Guid, Lmc, MKey, Sl, SmKey, SubnetPrefix};

use crate::lid::LidRange;
use crate::partition::{PartitionEnforcement, Partitions};
use crate::sm::SmpLimits;

/// Configuration of the subnet manager and the SA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubnetConfig {
    /// The subnet prefix of all GIDs.
    pub prefix: SubnetPrefix,
    /// Priority among several managers, 0 to 15; the highest becomes master, the lowest port GUID
    /// on a tie.
    pub priority: u8,
    /// The key by which the SA recognises trusted requesters; OpenSM's `sa_key`.
    pub sa_key: SmKey,
    /// M_Key written to all ports. Protection bits stay 0, so anyone may read and write.
    pub mkey: MKey,
    /// LIDs per CA and router port, as a power of two. Switches get one.
    pub lmc: Lmc,
    /// Service level on which ports reach the manager.
    pub sm_sl: Sl,
    /// SubnetTimeOut of all ports, and the packet life time of all paths: 4.096 µs × 2^value.
    pub subnet_timeout: u8,
    /// How often switches are asked whether something changed.
    pub sweep_interval: Duration,
    /// How often a standby manager asks the master for a sign of life.
    pub master_poll_interval: Duration,
    /// Questions in a row that the master may leave unanswered before the standby takes over.
    pub master_poll_misses: u32,
    /// Pace of SMPs.
    pub smp: SmpLimits,
    /// The partitions.
    pub partitions: Partitions,
    /// What switch ports that face end ports check, too.
    pub partition_enforcement: PartitionEnforcement,
    /// Remembered LIDs of an earlier run.
    pub known_lids: Vec<(Guid, LidRange)>,
    /// Whether a join must match the Q_Key, P_Key, traffic class, SL, flow label and hop limit of an
    /// existing group where it names them; OpenSM's `mcgroup_join_validation`.
    pub join_validation: bool,
    /// Whether IPoIB groups need their broadcast group and its parameters; OpenSM's
    /// `ipoib_mcgroup_creation_validation`.
    pub ipoib_validation: bool,
}

impl Default for SubnetConfig {
    /// OpenSM's defaults, with the keys at 1 as OpenSM has them, and a larger SMP window.
    fn default() -> Self {
        Self {
            prefix: SubnetPrefix::DEFAULT,
            priority: 0,
            sa_key: SmKey::new(1),
            mkey: MKey::new(0),
            lmc: Lmc::default(),
            sm_sl: Sl::default(),
            subnet_timeout: 18,
            sweep_interval: Duration::from_secs(10),
            master_poll_interval: Duration::from_secs(10),
            master_poll_misses: 4,
            smp: SmpLimits::default(),
            partitions: Partitions::default(),
            partition_enforcement: PartitionEnforcement::OFF,
            known_lids: Vec::new(),
            join_validation: true,
            ipoib_validation: true,
        }
    }
}
