//! What VFs may do beyond the ordinary.

use mad_mux::policy::Rights;
use serde::{Deserialize, Serialize};

/// A right that VFs can be given while the service runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Right {
    /// Ask for performance counters, those of its own port included.
    PerfMgt,
    /// Ask and answer in the vendors' classes, as ibping does.
    Vendor,
    /// Send SMPs, from the VF's next start on. Only where some VF had the right when the service began: the
    /// PF context then has QP0 of its ports, and programs have not.
    Smi,
    /// Answer requests of the SA's and the device management's class.
    Serve,
    /// Send traps.
    Trap,
}

/// The rights of a VF that has just these.
pub(super) fn rights(given: &[Right]) -> Rights {
    let has = |right| given.contains(&right);
    Rights {
        smi: has(Right::Smi),
        perf_mgt: has(Right::PerfMgt),
        vendor: has(Right::Vendor),
        serve: has(Right::Serve),
        trap: has(Right::Trap),
    }
}
