//! Rights of VFs beyond the ordinary.

use serde::{Deserialize, Serialize};

/// A right that VFs can be given while the service runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Right {
    /// Ask for performance counters, also of its own port.
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
