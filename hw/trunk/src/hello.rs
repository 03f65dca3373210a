//! The first record of either end.

use core::fmt;
use core::str::FromStr;

use ib_wire::Guid;
use sha2::{Digest, Sha256};
use thiserror::Error;
use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::close::CloseReason;

/// Bytes of a site's name at most: a label of a host name.
pub const MAX_SITE: usize = 63;

const MAGIC: [u8; 8] = *b"VHCATRNK";
const VERSION: u16 = 1;

/// Optional parts of the protocol that an end has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features(u16);

impl Features {
    /// Takes runs of packets whole.
    const RUNS: u16 = 1 << 0;
    /// Takes senders of packets of connections.
    const SOURCES: u16 = 1 << 1;

    pub(crate) const fn runs(self) -> bool {
        self.0 & Self::RUNS != 0
    }

    pub(crate) const fn sources(self) -> bool {
        self.0 & Self::SOURCES != 0
    }
}

/// The name of a service whose fabric has trunks: letters, digits, `-`, `_` and `.`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SiteName(String);

/// Why a text is not the name of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a site's name has 1 to {MAX_SITE} letters, digits, '-', '_' and '.'")]
pub struct SiteNameError;

impl SiteName {
    /// Returns a GUID of the site: 0x06, 40 bits of the SHA-256 of its name, and the number. A GUID with 0x02 in place of 0x06 would be
    /// as local, but service ids that begin with it are the CM's own, and `ib_srpt` listens at its node GUID. Of 1,000 sites two have
    /// the same GUIDs with a chance of 5 in 10 million.
    #[must_use]
    pub fn guid(&self, number: u16) -> Guid {
        let digest = Sha256::digest(self.0.as_bytes());
        let of_site = digest
            .iter()
            .take(5)
            .fold(0, |all, byte| all << 8 | u64::from(*byte));
        Guid::new(0x06 << 56 | of_site << 16 | u64::from(number))
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SiteName {
    type Err = SiteNameError;

    fn from_str(text: &str) -> Result<Self, SiteNameError> {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        match (1..=MAX_SITE).contains(&text.len()) && text.bytes().all(is_of_name) {
            true => Ok(Self(text.to_owned())),
            false => Err(SiteNameError),
        }
    }
}

impl fmt::Display for SiteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Description of one end of a trunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Its site.
    pub site: SiteName,
    /// The node GUID of the node whose port is at that end.
    pub node_guid: Guid,
    /// The number of the port.
    pub port: u8,
}

/// Body of a hello record. Network byte order.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct HelloBody {
    magic: [u8; 8],
    version: U16,
    /// [`Features`] of the sender.
    features: U16,
    largest_body: U32,
    node_guid: U64,
    port: u8,
    site_length: u8,
    site: [u8; MAX_SITE],
    reserved: [u8; 7],
}

impl HelloBody {
    pub(crate) const SIZE: usize = size_of::<Self>();

    pub(crate) fn new(hello: &Hello) -> Self {
        let name = hello.site.as_str().as_bytes();
        let mut site = [0; MAX_SITE];
        site.iter_mut().zip(name).for_each(|(to, from)| *to = *from);
        Self {
            magic: MAGIC,
            version: U16::new(VERSION),
            features: U16::new(Features::RUNS | Features::SOURCES),
            largest_body: U32::new(u32::try_from(crate::MAX_BODY).unwrap_or(u32::MAX)),
            node_guid: U64::new(hello.node_guid.get()),
            port: hello.port,
            site_length: u8::try_from(name.len()).unwrap_or(0),
            site,
            reserved: [0; 7],
        }
    }

    /// Reads a hello.
    pub(crate) fn read(bytes: &[u8]) -> Result<(Hello, Features), CloseReason> {
        // A later version may have a longer hello with the same beginning.
        let (body, _) = Self::read_from_prefix(bytes).map_err(|_| CloseReason::Version)?;
        if body.magic != MAGIC || body.version.get() != VERSION {
            return Err(CloseReason::Version);
        }
        let site = body.site.get(..usize::from(body.site_length));
        let site = site.and_then(|site| str::from_utf8(site).ok()?.parse().ok());
        let hello = Hello {
            site: site.ok_or(CloseReason::Garbage)?,
            node_guid: Guid::new(body.node_guid.get()),
            port: body.port,
        };
        Ok((hello, Features(body.features.get())))
    }
}
