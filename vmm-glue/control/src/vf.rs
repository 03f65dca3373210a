//! VFs as they are changed, and as they are offered to VMMs.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::right::Right;

/// A change of a VF.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum VfChange {
    /// A GUID: `0x` and its digits, `sm` for one that the SA chooses, `hardware` for the one that the subnet
    /// manager writes to the port's table, or `none`.
    PortGuid(String),
    /// A P_Key table: for each index a key such as `0x8001`, `index:N` for a place of the port's
    /// table, or `-` for nothing.
    Pkeys(Vec<String>),
    /// Limits; a limit that is not named stays.
    Limits {
        /// MADs per second in the long run; 0 for no limit.
        #[serde(default)]
        rate: Option<u32>,
        /// MADs at once.
        #[serde(default)]
        burst: Option<u32>,
        /// MADs that may wait.
        #[serde(default)]
        queue: Option<usize>,
        /// Share of a busy port.
        #[serde(default)]
        weight: Option<u16>,
    },
    /// Rights, in place of all before.
    Rights(Vec<Right>),
    /// The addresses and services at which it gets SIDR requests without a GRH, in place of all before. They are for all
    /// its ports.
    Sidr(Vec<String>),
    /// The administrator's will.
    State(VfState),
}

impl VfChange {
    /// Returns `true` if no two VFs can be changed so.
    #[must_use]
    pub fn suits_one_only(&self) -> bool {
        match self {
            Self::PortGuid(guid) => guid.starts_with("0x"),
            Self::Sidr(entries) => !entries.is_empty(),
            _ => false,
        }
    }
}

/// The administrator's will about a VF's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VfState {
    /// Up whenever it can be.
    Auto,
    /// Down.
    Disable,
}

/// A VF that VMMs can take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedVf {
    /// Name of its host.
    pub host: String,
    /// Its number.
    pub vf: u16,
    /// Path of its vfio-user socket.
    pub socket: PathBuf,
}
