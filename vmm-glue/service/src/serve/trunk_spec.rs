//! Options of trunks: cables to fabrics of other services.

use core::fmt;
use core::str::FromStr;

use ib_trunk::SiteName;
use ib_vtime::Duration;
use rustix::system::uname;
use serde::Deserialize;
use thiserror::Error;
use vhca_trunk::{AddressError, TrunkAddress};

/// Time without a byte after which a trunk is down, unless its specification says otherwise.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A trunk: a port of a node, and the way to the port at the other end.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "TrunkTable")]
pub struct TrunkSpec {
    /// The port, as `NODE/PORT`.
    pub port: String,
    /// The way.
    pub way: TrunkWay,
    /// The trunk is down when nothing comes for so long.
    pub timeout: Duration,
    /// The other end, if it was said.
    pub peer: Option<TrunkPeer>,
}

/// The trust in the other end of a trunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrunkPeer {
    /// A host that is not trusted: it speaks for its own LIDs in its partitions, and manages no subnet.
    Host,
    /// A part of the fabric, trusted as a switch is.
    Fabric,
}

impl TrunkSpec {
    /// Returns the trust in the other end: as it was said, or else a listener without authentication takes those that connect for hosts.
    /// An end that connects has chosen the fabric that it joins.
    #[must_use]
    pub fn peer(&self) -> TrunkPeer {
        self.peer.unwrap_or(match &self.way {
            TrunkWay::Listen(TrunkAddress::Unix(_) | TrunkAddress::Tcp { .. }) => TrunkPeer::Host,
            TrunkWay::Connect(_) => TrunkPeer::Fabric,
        })
    }
}

/// The way to the other end of a trunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrunkWay {
    /// The other end connects to this address.
    Listen(TrunkAddress),
    /// The other end listens at this address.
    Connect(TrunkAddress),
}

/// A trunk that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TrunkSpecError {
    /// It has another form.
    #[error(
        "expected PORT=ADDRESS or PORT=listen:ADDRESS, as in S1/8=tcp:spine:18600 or S1/8=listen:tcp:[::]:18600"
    )]
    Form,
    /// The address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A table with both ways, or none.
    #[error("a trunk needs either listen or connect")]
    Way,
    /// The other end.
    #[error("the other end of a trunk is peer=host or peer=fabric")]
    Peer,
    /// The time.
    #[error("{0:?} is no time of 0.1 to 600 s: say \"10s\" or \"500ms\"")]
    Timeout(String),
}

impl FromStr for TrunkSpec {
    type Err = TrunkSpecError;

    fn from_str(text: &str) -> Result<Self, TrunkSpecError> {
        let split = text.split_once('=').filter(|(port, _)| !port.is_empty());
        let (port, way) = split.ok_or(TrunkSpecError::Form)?;
        let (way, peer) = match way.rsplit_once(",peer=") {
            Some((way, "host")) => (way, Some(TrunkPeer::Host)),
            Some((way, "fabric")) => (way, Some(TrunkPeer::Fabric)),
            Some(_) => return Err(TrunkSpecError::Peer),
            None => (way, None),
        };
        let way = match way.strip_prefix("listen:") {
            Some(address) => TrunkWay::Listen(address.parse()?),
            None => TrunkWay::Connect(way.parse()?),
        };
        Ok(Self {
            port: port.to_owned(),
            way,
            timeout: TIMEOUT,
            peer,
        })
    }
}

impl fmt::Display for TrunkWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(address) => write!(f, "listen:{address}"),
            Self::Connect(address) => address.fmt(f),
        }
    }
}

/// A trunk as `[[trunk]]` describes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrunkTable {
    port: String,
    listen: Option<String>,
    connect: Option<String>,
    timeout: Option<String>,
    peer: Option<TrunkPeer>,
}

impl TryFrom<TrunkTable> for TrunkSpec {
    type Error = TrunkSpecError;

    fn try_from(table: TrunkTable) -> Result<Self, TrunkSpecError> {
        let way = match (&table.listen, &table.connect) {
            (Some(address), None) => TrunkWay::Listen(address.parse()?),
            (None, Some(address)) => TrunkWay::Connect(address.parse()?),
            _ => return Err(TrunkSpecError::Way),
        };
        let timeout = table.timeout.as_deref().map_or(Ok(TIMEOUT), timeout)?;
        Ok(Self {
            port: table.port,
            way,
            timeout,
            peer: table.peer,
        })
    }
}

fn timeout(text: &str) -> Result<Duration, TrunkSpecError> {
    let number = |unit| text.strip_suffix(unit)?.parse::<u32>().ok();
    let seconds = || Some(Duration::from_secs(number("s")?.into()));
    let milliseconds = number("ms").map(|number| Duration::from_millis(number.into()));
    let time = milliseconds.or_else(seconds);
    let range = Duration::from_millis(100)..=Duration::from_secs(600);
    time.filter(|time| range.contains(time))
        .ok_or_else(|| TrunkSpecError::Timeout(text.to_owned()))
}

/// Returns the name of this machine as a site: `NODE_NAME` of the environment, which Kubernetes' downward API gives, or the name
/// of the host. `None` if that is no name of a site.
pub(super) fn name_of_machine() -> Option<SiteName> {
    let given = std::env::var("NODE_NAME").ok();
    let host = || uname().nodename().to_string_lossy().into_owned();
    given.unwrap_or_else(host).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trunks_are_read_and_wrong_ones_say_what_is_wrong_with_them() {
        let spec: TrunkSpec = "S1/8=listen:tcp:[::]:18600".parse().unwrap();
        assert_eq!(spec.port, "S1/8");
        assert_eq!(spec.way.to_string(), "listen:tcp:[::]:18600");
        let spec: TrunkSpec = "leaf 1/3=unix:/run/x".parse().unwrap();
        assert_eq!(spec.way.to_string(), "unix:/run/x");
        for (text, peer) in [
            ("S1/8=listen:unix:/x", TrunkPeer::Host),
            ("S1/8=listen:tcp:[::]:1", TrunkPeer::Host),
            ("S1/8=listen:unix:/x,peer=fabric", TrunkPeer::Fabric),
            ("S1/8=tcp:a:1", TrunkPeer::Fabric),
            ("S1/8=tcp:a:1,peer=host", TrunkPeer::Host),
        ] {
            assert_eq!(text.parse::<TrunkSpec>().unwrap().peer(), peer, "{text}");
        }
        for text in ["", "S1/8", "=tcp:a:1", "S1/8=a:1", "S1/8=tcp:a:1,peer=x"] {
            assert!(text.parse::<TrunkSpec>().is_err(), "{text}");
        }
        let read = |text: &str| toml::from_str::<TrunkSpec>(text);
        let spec = read("port = \"S1/8\"\nlisten = \"tcp:[::]:1\"\ntimeout = \"10s\"\n").unwrap();
        assert_eq!(spec.timeout, Duration::from_secs(10));
        let spec = read("port = \"S1/8\"\nconnect = \"tcp:a:1\"\ntimeout = \"250ms\"\n").unwrap();
        assert_eq!(spec.timeout, Duration::from_millis(250));
        let spec = read("port = \"S1/8\"\nconnect = \"tcp:a:1\"\npeer = \"host\"\n").unwrap();
        assert_eq!(spec.peer(), TrunkPeer::Host);
        for (text, words) in [
            ("port = \"S1/8\"\n", "either listen or connect"),
            ("port = \"S1/8\"\nconnect = \"x\"\n", "tcp:HOST:PORT"),
            (
                "port = \"S1/8\"\nconnect = \"tcp:a:1\"\ntimeout = \"1\"\n",
                "10s",
            ),
            (
                "port = \"S1/8\"\nconnect = \"tcp:a:1\"\ntimeout = \"9ms\"\n",
                "10s",
            ),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
