//! Reasons for which a process gets no VF, in the words that its program prints.

use thiserror::Error;
use verbs_link::{CallReply, Errno};

/// Reason for which a process gets no VF.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(super) enum ClaimRefusal {
    /// There is no node of that name.
    #[error("the service has no {0:?}; vhca show fabric lists its nodes")]
    NoNode(String),
    /// The node has no such VF, or VMMs use it.
    #[error("{0} is no VF for programs{1}; vhca show programs lists those")]
    NoVf(String, &'static str),
    /// No VF of the node is for programs.
    #[error("{0} has no VFs for programs; vhca show programs lists those")]
    NoneOffered(String),
    /// A process has the VF.
    #[error("{0} is taken by {1}")]
    Taken(String, String),
    /// Processes have all VFs of the node that are for programs.
    #[error("all {1} VFs for programs of {0} are taken; vhca show programs lists their processes")]
    AllTaken(String, usize),
    /// A VF is being reset after another program.
    #[error("{0} is being reset after another program")]
    Resetting(String),
    /// The service has no descriptors for the process.
    #[error("the service has no descriptors left; raise its limit of open files (ulimit -n)")]
    Descriptors,
    /// The service has no memory for the process.
    #[error("the service has no memory left")]
    Memory,
    /// The process does not keep to the protocol.
    #[error("the service does not take the claim of this process; see its log")]
    Malformed,
}

impl ClaimRefusal {
    /// Returns the error number that goes with the words.
    pub(super) const fn errno(&self) -> Errno {
        match self {
            Self::NoNode(_) | Self::NoVf(..) | Self::NoneOffered(_) => Errno::ENODEV,
            Self::Taken(..) | Self::AllTaken(..) => Errno::EBUSY,
            Self::Resetting(_) => Errno::EAGAIN,
            Self::Descriptors => Errno::ENFILE,
            Self::Memory => Errno::ENOMEM,
            Self::Malformed => Errno::EINVAL,
        }
    }

    /// Returns the answer to the process: number and words.
    pub(super) fn reply(&self) -> CallReply {
        CallReply {
            body: self.to_string().into_bytes(),
            ..CallReply::failed(self.errno())
        }
    }
}
