//! Arguments of what drives a VF of this machine.

use std::net::Ipv6Addr;
use std::str::FromStr;

use clap::{Args, Subcommand};
use ib_wire::{Gid, Lid, ServiceId};

use super::number::number;

/// The least and the most bytes that a connection moves at once: what the memory of the VF has room for.
const BYTES: core::ops::RangeInclusive<u64> = 1..=8 << 20;

#[derive(Debug, Args)]
pub(crate) struct VfioArgs {
    /// PCI address of a VF that is bound to vfio-pci, such as 0000:01:00.0.
    #[arg(value_name = "BDF")]
    pub(crate) address: String,
    #[command(subcommand)]
    pub(crate) command: VfioCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VfioCommand {
    /// Do all of the others in turn, with the VF itself as the peer.
    Tour,
    /// Print the port, and ask the SA for paths from it.
    Paths(PathsArgs),
    /// Join a multicast group, send a datagram to it and receive that, and leave.
    Join(JoinArgs),
    /// Move data by a reliable connection that the connection manager makes; without GID wait for one.
    Connect(ConnectArgs),
    /// Exchange datagrams with ibv_ud_pingpong or another vhca vfio; without HOST wait for one.
    Ping(PingArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PathsArgs {
    /// LID or GID of a port; by default the LID of the subnet manager's.
    #[arg(value_name = "DEST")]
    pub(crate) to: Vec<Destination>,
}

#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// GID of the group, which is made if there is none; its first byte is ff.
    #[arg(value_name = "MGID", value_parser = group)]
    pub(crate) group: Gid,
    /// Seconds between the datagram and the end of the membership.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = number::<u64>(0..=86_400))]
    pub(crate) hold: u64,
}

#[derive(Debug, Args)]
pub(crate) struct ConnectArgs {
    /// GID of the VF at which another vhca vfio waits.
    #[arg(value_name = "GID", value_parser = gid)]
    pub(crate) to: Option<Gid>,
    /// Service ID.
    #[arg(long, value_name = "ID", default_value = "0x4242", value_parser = service)]
    pub(crate) service: ServiceId,
    /// Bytes that are written to the peer's memory and read back; for the one who waits, bytes of that memory.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = number::<usize>(BYTES))]
    pub(crate) bytes: usize,
}

#[derive(Debug, Args)]
pub(crate) struct PingArgs {
    /// Name or address of the host where ibv_ud_pingpong waits, or another vhca vfio.
    pub(crate) host: Option<String>,
    /// TCP port by which both exchange the addresses of their queue pairs.
    #[arg(long, short, value_name = "PORT", default_value_t = 18515, value_parser = number::<u16>(1..=65_535))]
    pub(crate) port: u16,
    /// Datagrams each way; the other side must have the same number.
    #[arg(long, short = 'n', value_name = "NUMBER", default_value_t = 1000, value_parser = number::<u32>(1..=u32::MAX.into()))]
    pub(crate) iters: u32,
    /// Bytes of a datagram, at most the MTU; the other side must have the same number, which is 1024 unless ibv_ud_pingpong has another.
    #[arg(long, short, value_name = "BYTES", default_value_t = 1024, value_parser = number::<usize>(1..=4096))]
    pub(crate) size: usize,
}

/// A port, as a user names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    Lid(Lid),
    Gid(Gid),
}

impl FromStr for Destination {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(gid) = gid(text) {
            return Ok(Self::Gid(gid));
        }
        let lid = unsigned(text).and_then(|lid| u16::try_from(lid).ok());
        lid.map(|lid| Self::Lid(Lid::new(lid)))
            .ok_or("expected a LID such as 4 or 0x4, or a GID such as fe80::2:c903:0:301")
    }
}

impl core::fmt::Display for Destination {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Lid(lid) => write!(f, "LID {lid}"),
            Self::Gid(gid) => write!(f, "GID {gid}"),
        }
    }
}

/// Parses a number, which is hexadecimal behind 0x.
fn unsigned(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn service(text: &str) -> Result<ServiceId, &'static str> {
    let id = unsigned(text).map(ServiceId::new);
    id.ok_or("expected a number of 64 bits such as 0x4242")
}

fn gid(text: &str) -> Result<Gid, &'static str> {
    let gid = text.parse::<Ipv6Addr>().map(Gid::from);
    gid.map_err(|_| "expected a GID such as fe80::2:c903:0:301")
}

fn group(text: &str) -> Result<Gid, &'static str> {
    let gid = gid(text).ok();
    gid.filter(|gid| gid.is_multicast())
        .ok_or("expected the GID of a group such as ff12::4242")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_named_by_lid_or_gid() {
        let gid = Gid::from(Ipv6Addr::new(0xfe80, 0, 0, 0, 2, 0xc903, 0, 0x301));
        let cases = [
            ("4", Ok(Destination::Lid(Lid::new(4)))),
            ("0x1f", Ok(Destination::Lid(Lid::new(0x1f)))),
            ("fe80::2:c903:0:301", Ok(Destination::Gid(gid))),
            ("65536", Err(())),
            ("0x", Err(())),
            ("H1-1", Err(())),
        ];
        for (text, wanted) in cases {
            assert_eq!(text.parse().map_err(|_| ()), wanted, "{text}");
        }
        assert!(group("fe80::1").is_err() && group("ff12::1").is_ok());
    }
}
