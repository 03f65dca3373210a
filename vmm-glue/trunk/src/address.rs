//! Addresses of trunks.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// The address of a trunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrunkAddress {
    /// A Unix socket of this machine.
    Unix(PathBuf),
    /// A Unix socket of this machine, at which queues in shared memory are set up.
    Vhost(PathBuf),
    /// A TCP port.
    Tcp {
        /// Name or address of the host.
        host: String,
        /// The port.
        port: u16,
    },
    /// A TCP port, with TLS.
    Tls {
        /// Name or address of the host.
        host: String,
        /// The port.
        port: u16,
    },
}

/// A text that is no address of a trunk.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{0:?} is no address of a trunk: say tls:HOST:PORT or tcp:HOST:PORT, as in tcp:[::]:18600, or vhost:PATH or unix:PATH"
)]
pub struct AddressError(String);

impl FromStr for TrunkAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        if let Some(path) = text.strip_prefix("vhost:").filter(|path| !path.is_empty()) {
            return Ok(Self::Vhost(path.into()));
        }
        let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
        let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
        let is_bracketed = host.starts_with('[') && host.ends_with(']');
        // Without brackets the last group of an IPv6 address would be the port.
        if host.is_empty() || host.contains(':') && !is_bracketed {
            return Err(wrong());
        }
        let port = port.parse().ok().filter(|port| *port != 0);
        let (host, port) = (host.to_owned(), port.ok_or_else(wrong)?);
        match kind {
            "tcp" => Ok(Self::Tcp { host, port }),
            "tls" => Ok(Self::Tls { host, port }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for TrunkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Vhost(path) => write!(f, "vhost:{}", path.display()),
            Self::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
            Self::Tls { host, port } => write!(f, "tls:{host}:{port}"),
        }
    }
}

impl TrunkAddress {
    /// Returns `true` if the ends prove their identities to each other.
    #[must_use]
    pub const fn has_tls(&self) -> bool {
        matches!(self, Self::Tls { .. })
    }

    /// Returns `true` if bytes may cross a network as they are: by TCP, unless the host is the loopback address or `localhost`.
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        let Self::Tcp { host, .. } = self else {
            return false;
        };
        let host = bare(host);
        let address = host.parse::<IpAddr>().ok();
        host != "localhost" && !address.is_some_and(|address| address.is_loopback())
    }

    /// Returns host and port as `std::net` takes them.
    pub(crate) fn socket(host: &str, port: u16) -> (&str, u16) {
        (bare(host), port)
    }
}

/// Returns a host without the brackets of an IPv6 address.
pub(crate) fn bare(host: &str) -> &str {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    bare.unwrap_or(host)
}
