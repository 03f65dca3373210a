//! The protocol of the control socket: a line of JSON for each request and for each reply.
//!
//! A request is `{"v":2,"request":{"show":{"subject":"vfs"}}}`, a reply `{"v":2,"ok":…}` or
//! `{"v":2,"error":{"code":"no_such_vf","message":"…"}}`. After the reply to a capture comes the capture file, until one side
//! closes the socket.
//!
//! Since version 2 the replies are values, which the client prints. A request of another version is refused with the code
//! `old_client` or `new_client`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::capture::CaptureSpec;
use crate::guest::GuestAction;
use crate::link::LinkFaults;
use crate::show::{By, Subject};
use crate::vf::VfChange;

/// The version of the protocol.
pub const VERSION: u32 = 2;

/// Bytes of a request's line at most.
pub const MAX_LINE: usize = 64 * 1024;

/// A request with the protocol's version, before it is read itself: requests of other versions have other forms.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// [`VERSION`].
    pub v: u32,
    /// A [`Request`].
    pub request: Box<RawValue>,
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Tables of a subject; the reply are [`Tables`](crate::table::Tables).
    Show(ShowQuery),
    /// Diagnose a VF's port; the reply is a `vhca_diagnosis::Diagnosis`. For several VFs it is their
    /// `vhca_diagnosis::Faults`.
    Why {
        /// Which: `N`, `HOST/N`, `HOST/all` or `all`.
        vf: String,
        /// Of which host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        /// Which of its ports; by default the first with a fault, of several VFs all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<u8>,
        /// A second VF or port, `HOST/N` or `NODE/PORT`: then the reply is the `vhca_diagnosis::PairDiagnosis` of the two.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<String>,
    },
    /// Change VFs.
    SetVf {
        /// Which: `N`, `HOST/N`, `HOST/all` or `all`.
        vf: String,
        /// Of which host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        /// Which of their ports.
        #[serde(default = "first_port")]
        port: u8,
        /// What.
        change: VfChange,
    },
    /// Plug cables in or out.
    SetLink {
        /// `NODE/PORT`, or a node.
        a: String,
        /// The node, or port, at the other end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        b: Option<String>,
        /// In, rather than out.
        up: bool,
    },
    /// Plan faults of links, in place of all that were planned before.
    SetLinkFaults {
        /// `NODE/PORT`, or a node.
        a: String,
        /// The node, or port, at the other end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        b: Option<String>,
        /// Faults; without any, packets pass again.
        #[serde(default)]
        faults: LinkFaults,
    },
    /// Redirect a trunk that connects.
    SetTrunk {
        /// Its port, as `NODE/PORT`.
        port: String,
        /// The address at which its new other end listens.
        address: String,
    },
    /// Have the embedded subnet manager sweep the subnet.
    SweepSm {},
    /// Have guests do something; the reply are [`GuestReports`](crate::GuestReports).
    Guest {
        /// Which: `N`, `HOST/N`, `HOST/all` or `all`.
        vf: String,
        /// Of which host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        /// What.
        action: GuestAction,
    },
    /// Name the socket by which VMMs take a VF; the reply is an [`OfferedVf`](crate::OfferedVf).
    Offered {
        /// Which: `N` or `HOST/N`.
        vf: String,
        /// Of which host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
    },
    /// The socket for programs that use Linux' umad; see [`Sockets`].
    Sockets {},
    /// A capture file, as the rest of the connection.
    Capture(CaptureSpec),
    /// The text that Prometheus reads.
    Metrics(MetricsQuery),
    /// The end of the service.
    Stop {},
}

/// Which tables are wanted, and which of their rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShowQuery {
    /// Subject of the tables.
    pub subject: Subject,
    /// Of this host, or node, only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Of this VF only: `N` or `HOST/N`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vf: Option<String>,
    /// Rows with something wrong only.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub problems: bool,
}

impl ShowQuery {
    /// Returns a query of all rows of a subject.
    #[must_use]
    pub const fn new(subject: Subject) -> Self {
        Self {
            subject,
            host: None,
            vf: None,
            problems: false,
        }
    }
}

/// Which metrics are wanted: all by host by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsQuery {
    /// Their grain.
    pub by: By,
    /// Of this host only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Of this VF only: `N` or `HOST/N`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vf: Option<String>,
}

const fn first_port() -> u8 {
    1
}

/// Other sockets of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sockets {
    /// For programs that use Linux' umad, if there is one.
    pub umad: Option<PathBuf>,
}

/// Reason for which a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// A stable word.
    pub code: String,
    /// A sentence for people.
    pub message: String,
}

impl Refusal {
    /// A refusal.
    #[must_use]
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            message: message.into(),
        }
    }

    /// Returns `true` if the request contradicts itself, with any service.
    #[must_use]
    pub fn is_contradiction(&self) -> bool {
        let contradictions = [
            "no_problems",
            "no_vf_rows",
            "no_host_rows",
            "one_vf_only",
            "two_hosts",
        ];
        contradictions.contains(&self.code.as_str())
    }
}

/// A reply, in which one of the two is there.
#[derive(Debug, Serialize, Deserialize)]
pub struct Reply {
    /// [`VERSION`].
    pub v: u32,
    /// Result of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<Box<RawValue>>,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Refusal>,
}
