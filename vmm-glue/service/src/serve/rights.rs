//! Rights of VFs beyond the ordinary, as the MAD multiplexer has them.

use mad_mux::policy::Rights;
use vhca_control::Right;

/// Returns the rights of a VF that has just these.
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
