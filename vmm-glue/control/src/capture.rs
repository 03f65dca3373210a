//! Captures, as they are asked for.

use serde::{Deserialize, Serialize};

/// Place and end of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureSpec {
    /// `fabric` for every link, `tunnels` for the tunnels of all VFs, a node for its links, `NODE/PORT` for one,
    /// `HOST/vfN` for the tunnels of a VF.
    pub tap: String,
    /// Number of frames after which the capture ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Seconds after which the capture ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u32>,
}
