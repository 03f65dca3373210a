//! Guests that the service runs on VFs: actions, and reports about them.

use serde::{Deserialize, Serialize};

use crate::facts::Facts;

/// An action of guests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum GuestAction {
    /// Become full members of a multicast group. If there is none, it is made, in the partition of the VF's
    /// first P_Key.
    Join {
        /// MGID of the group.
        mgid: String,
    },
    /// Leave a group.
    Leave {
        /// MGID of the group.
        mgid: String,
    },
    /// Ask the SA for a path.
    Query {
        /// GID at the path's end.
        dgid: String,
    },
    /// Send a datagram: to a group that they joined, or to the guest that has a GID.
    Send {
        /// The GID.
        to: String,
        /// The message.
        text: String,
    },
    /// Ask the SA for many paths at once, to measure it.
    Paths {
        /// Number of paths that each guest asks for.
        count: u32,
        /// Number of the fabric's adapters to which these paths lead, in turn.
        destinations: usize,
    },
    /// Report groups, queue pairs and received datagrams.
    Status {},
}

/// Outcome of an action for one guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GuestReport {
    /// Name of the guest's host.
    pub host: String,
    /// Number of its VF.
    pub vf: u16,
    /// `true` if the guest did it.
    pub ok: bool,
    /// Results.
    #[serde(flatten)]
    pub facts: Facts,
    /// Reason of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Outcomes of an action for all guests that were to do it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GuestReports {
    /// One of each guest.
    pub guests: Vec<GuestReport>,
}

impl core::fmt::Display for GuestReport {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let word = if self.ok { "ok" } else { "failed" };
        let at = format!("{}/{}", self.host, self.vf);
        match &self.error {
            Some(error) => write!(f, "{word:<6}  {at:<12}  {error}"),
            None => write!(f, "{word:<6}  {at:<12}  {}", self.facts),
        }
    }
}
