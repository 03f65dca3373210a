//! Options of trunks: cables to fabrics of other services.

use core::str::FromStr;
use std::path::PathBuf;

use ib_trunk::SiteName;
use ib_vtime::Duration;
use rustix::system::uname;
use serde::Deserialize;
use thiserror::Error;
use vhca_trunk::{AddressError, Security, TlsEnd, TrunkAddress, TrunkPeer, TrunkWay};

use super::trunk_credentials::{TrunkCredentials, TrunkCredentialsError};

/// Time without a byte after which a trunk is down, unless its specification says otherwise.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A trunk: a port of a node, and the way to the port at the other end.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "TrunkTable")]
pub struct TrunkSpec {
    /// The port, as `NODE/PORT`, or a node, whose first port without a link it is.
    pub port: String,
    /// The way.
    pub way: TrunkWay,
    /// The trunk is down when nothing comes for so long.
    pub timeout: Duration,
    /// The other end, if it was said.
    pub peer: Option<TrunkPeer>,
    /// The files by which the ends know each other, for `tls:` addresses.
    pub credentials: TrunkCredentials,
}

impl TrunkSpec {
    /// Returns the trust in the other end: as it was said, or else a listener takes for a host each end that has not proved its identity.
    /// An end that connects has chosen the fabric that it joins.
    #[must_use]
    pub fn peer(&self) -> TrunkPeer {
        self.peer.unwrap_or(match &self.way {
            TrunkWay::Listen(
                TrunkAddress::Unix(_) | TrunkAddress::Vhost(_) | TrunkAddress::Tcp { .. },
            ) => TrunkPeer::Host,
            TrunkWay::Listen(TrunkAddress::Tls { .. }) | TrunkWay::Connect(_) => TrunkPeer::Fabric,
        })
    }

    /// Reads the credentials of the trunk, if it has TLS.
    ///
    /// # Errors
    /// The reason and the remedy, in one line.
    pub(super) fn security(&self) -> Result<Security, String> {
        if !self.way.address().has_tls() {
            return Ok(Security::Plain);
        }
        let missing = || TrunkCredentialsError::Missing(self.port.clone()).to_string();
        let files = self.credentials.files().ok_or_else(missing)?;
        let end = match &self.way {
            TrunkWay::Connect(TrunkAddress::Tls { host, .. }) => TlsEnd::connecting(&files, host),
            _ => TlsEnd::listening(&files),
        };
        end.map(Security::Tls).map_err(|error| error.to_string())
    }
}

/// Completes the credentials of trunks by those which their site has.
///
/// # Errors
/// [`TrunkCredentialsError`].
pub(super) fn complete(
    trunks: &mut [TrunkSpec],
    of_site: &TrunkCredentials,
) -> Result<(), TrunkCredentialsError> {
    let none = TrunkCredentials::default();
    let mut uses_tls = false;
    for trunk in trunks {
        let port = trunk.port.clone();
        if trunk.way.address().has_tls() {
            uses_tls = true;
            trunk.credentials = trunk.credentials.or(of_site);
            let files = trunk.credentials.files();
            files.ok_or(TrunkCredentialsError::Missing(port))?;
        } else if trunk.credentials != none {
            return Err(TrunkCredentialsError::Plain(port));
        }
    }
    match uses_tls || *of_site == none {
        true => Ok(()),
        false => Err(TrunkCredentialsError::Unused),
    }
}

/// A trunk that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TrunkSpecError {
    /// It has another form.
    #[error(
        "expected PORT=ADDRESS or PORT=listen:ADDRESS, as in S1/8=tls:spine:18600 or S1/8=listen:tls:[::]:18600"
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
            Some((way, name)) => (way, Some(peer(name)?)),
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
            credentials: TrunkCredentials::default(),
        })
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
    peer: Option<String>,
    key: Option<PathBuf>,
    peers: Option<PathBuf>,
    certificate: Option<PathBuf>,
    ca: Option<PathBuf>,
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
            peer: table.peer.as_deref().map(peer).transpose()?,
            credentials: TrunkCredentials {
                key: table.key,
                peers: table.peers,
                certificate: table.certificate,
                ca: table.ca,
            },
        })
    }
}

fn peer(name: &str) -> Result<TrunkPeer, TrunkSpecError> {
    match name {
        "host" => Ok(TrunkPeer::Host),
        "fabric" => Ok(TrunkPeer::Fabric),
        _ => Err(TrunkSpecError::Peer),
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
            ("S1=listen:vhost:/x", TrunkPeer::Host),
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
        let spec = read("port = \"S1/8\"\nconnect = \"tls:a:1\"\nkey = \"k\"\npeers = \"p\"\n");
        let spec = spec.unwrap();
        assert_eq!(spec.credentials.key, Some("k".into()));
        assert_eq!(spec.credentials.peers, Some("p".into()));
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

    #[test]
    fn credentials_and_tls_addresses_come_together() {
        let site = |key: bool, peers: bool| TrunkCredentials {
            key: key.then(|| "k".into()),
            peers: peers.then(|| "p".into()),
            ..TrunkCredentials::default()
        };
        let complete = |trunk: &str, site: &TrunkCredentials| {
            let mut trunks = [trunk.parse().unwrap()];
            complete(&mut trunks, site).map_err(|error| error.to_string())
        };
        assert_eq!(complete("S1/5=tls:a:1", &site(true, true)), Ok(()));
        assert_eq!(complete("S1/5=tcp:a:1", &site(false, false)), Ok(()));
        for (trunk, site, words) in [
            ("S1/5=tls:a:1", site(true, false), "trunk S1/5 needs"),
            (
                "S1/5=listen:tls:[::]:1",
                site(false, false),
                "vhca trunk keygen",
            ),
            ("S1/5=tcp:a:1", site(true, true), "tls:HOST:PORT"),
        ] {
            let error = complete(trunk, &site).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let mut trunks = ["S1/5=tcp:a:1".parse::<TrunkSpec>().unwrap()];
        trunks[0].credentials = site(true, true);
        let refused = super::complete(&mut trunks, &TrunkCredentials::default());
        assert_eq!(refused, Err(TrunkCredentialsError::Plain("S1/5".into())));
    }
}
