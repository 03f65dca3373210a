//! Addresses and paths of ids.

use std::collections::BTreeSet;

use ib_endpoint::{MadTransport, PortPath, SaAnswer, SaError, SaRequest};
use ib_wire::sa::PathRecord;
use zerocopy::IntoBytes;

use super::address::{Address, AddressBook, Given, SOCKADDR_IB, gid_address};
use super::group_address::mgid;
use super::{CmHost, PS_IPOIB, Purpose, RdmaCm, read};
use crate::abi::rdma_cm::{
    Bind, IdArgument, IdCommand, QueryAddrAnswer, QueryPathAnswer, ResolveAddr, cm_event,
};
use crate::{ChannelId, Errno};

/// Subjects of QUERY.
const QUERY_ADDR: u32 = 0;
const QUERY_PATH: u32 = 1;
const QUERY_GID: u32 = 2;

/// Uses of a path: of the CM's messages, primary, both ways (`IB_PATH_*`).
const PATH_FLAGS: u32 = 1 | 2 | 8;

/// Ports that are given to ids that do not care.
pub(super) const EPHEMERAL: u16 = 49_152;

impl RdmaCm {
    pub(super) fn bind<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        addresses: &AddressBook,
        channel: ChannelId,
        payload: &[u8],
    ) -> Result<(), Errno> {
        let asked: Bind = read(payload)?;
        let number = asked.id.get();
        self.get(channel, number)?;
        let address = match Address::read(&asked.addr)? {
            Given::Ip(address) => address,
            // The library tries whether the family is known.
            Given::Ib(_) => return Ok(()),
        };
        let own = host.own_gid().ok_or(Errno::ENODEV)?;
        if !addresses.is_own(address.ip, own) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        self.bind_to(channel, number, addresses.public(address, own))?;
        if self.get(channel, number)?.port_space == PS_IPOIB {
            self.learn_broadcast(host, number);
        }
        Ok(())
    }

    /// Binds an id to every address of the VF.
    pub(super) fn bind_anywhere(&mut self, channel: ChannelId, number: u32) -> Result<(), Errno> {
        let ip = core::net::Ipv4Addr::UNSPECIFIED.into();
        self.bind_to(channel, number, Address { ip, port: 0 })
    }

    /// Binds an id; a port of 0 is replaced by one that is free.
    fn bind_to(&mut self, channel: ChannelId, number: u32, address: Address) -> Result<(), Errno> {
        let mut address = address;
        let space = self.get(channel, number)?.port_space;
        let others = self.ids.iter().filter(|(other, id)| {
            **other != number && id.port_space == space && id.remote.is_none()
        });
        let taken: BTreeSet<u16> = others.filter_map(|(_, id)| Some(id.local?.port)).collect();
        if address.port == 0 {
            // There are more ports than ids.
            while address.port == 0 || taken.contains(&address.port) {
                address.port = EPHEMERAL + self.next_port % (u16::MAX - EPHEMERAL);
                self.next_port = self.next_port.wrapping_add(1);
            }
        } else if taken.contains(&address.port) {
            return Err(Errno::EADDRINUSE);
        }
        self.get(channel, number)?.local = Some(address);
        Ok(())
    }

    pub(super) fn resolve_addr<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        addresses: &AddressBook,
        channel: ChannelId,
        payload: &[u8],
    ) -> Result<(), Errno> {
        let asked: ResolveAddr = read(payload)?;
        let number = asked.id.get();
        self.get(channel, number)?;
        let own = host.own_gid().ok_or(Errno::ENODEV)?;
        if asked.src_size.get() != 0
            && let Given::Ip(source) = Address::read(&asked.src_addr)?
        {
            if !addresses.is_own(source.ip, own) {
                return Err(Errno::EADDRNOTAVAIL);
            }
            self.bind_to(channel, number, addresses.public(source, own))?;
        }
        let Given::Ip(remote) = Address::read(&asked.dst_addr)? else {
            return Err(Errno::EOPNOTSUPP);
        };
        let known = if remote.ip.is_multicast() {
            // The port space's own signature comes with the group that is joined.
            Some(mgid(&Given::Ip(remote), PS_IPOIB, host.partition()))
        } else {
            addresses.gid(remote.ip, own)
        };
        let Some(gid) = known else {
            self.tell(number, cm_event::ADDR_ERROR, Errno::ETIMEDOUT.status(), &[]);
            return Ok(());
        };
        let unbound = self.get(channel, number)?.local;
        let source = match remote.ip {
            core::net::IpAddr::V4(_) => addresses.own.into(),
            core::net::IpAddr::V6(_) => core::net::Ipv6Addr::from(own.0).into(),
        };
        match unbound {
            Some(local) if !local.ip.is_unspecified() => {}
            other => {
                let port = other.map_or(0, |local| local.port);
                self.bind_to(channel, number, Address { ip: source, port })?;
            }
        }
        let id = self.get(channel, number)?;
        id.remote = Some(remote);
        id.remote_gid = Some(gid);
        if remote.ip.is_multicast() || id.port_space == PS_IPOIB {
            id.is_resolving = true;
            self.learn_broadcast(host, number);
        } else {
            self.tell(number, cm_event::ADDR_RESOLVED, 0, &[]);
        }
        Ok(())
    }

    pub(super) fn resolve_route<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        channel: ChannelId,
        payload: &[u8],
    ) -> Result<(), Errno> {
        let asked: IdArgument = read(payload)?;
        let number = asked.id.get();
        let own = host.own_gid().ok_or(Errno::ENODEV)?;
        let id = self.get(channel, number)?;
        let gid = id.remote_gid.ok_or(Errno::EINVAL)?;
        if id.query.is_some() {
            return Err(Errno::EINVAL);
        }
        let request = SaRequest::path_by_gids(own, gid, None);
        let query = host.port.query(host.now, request);
        id.query = Some(query);
        self.by_query.insert(query, Purpose::Route(number));
        Ok(())
    }

    /// Takes the answer to an id's search for a path.
    pub(super) fn route_answered<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        number: u32,
        result: Result<SaAnswer, SaError>,
    ) {
        let record = result.ok().and_then(|answer| answer.record::<PathRecord>());
        let path = record.and_then(|record| {
            let found = PortPath::new(host.port.port(), host.port.view(), &record);
            found.ok().map(PortPath::with_grh)
        });
        if let Some(id) = self.ids.get_mut(&number) {
            id.query = None;
            id.path = path;
            match path {
                Some(_) => self.tell(number, cm_event::ROUTE_RESOLVED, 0, &[]),
                None => self.tell(
                    number,
                    cm_event::ROUTE_ERROR,
                    Errno::EHOSTUNREACH.status(),
                    &[],
                ),
            }
        }
    }

    pub(super) fn query<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        channel: ChannelId,
        payload: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        let asked: IdCommand = read(payload)?;
        let id = self.get(channel, asked.id.get())?;
        let mut answer = QueryAddrAnswer::default();
        // An id that listens everywhere is bound to no device.
        let is_bound = id.local.is_some_and(|local| !local.ip.is_unspecified());
        if is_bound {
            answer.node_guid = host.node_guid.get().to_be_bytes();
            answer.port_num = host.port.port().0;
            answer.pkey = u16::MAX.into();
        }
        match asked.argument.get() {
            QUERY_ADDR => {
                if let Some(local) = id.local {
                    let (bytes, size) = local.write();
                    (answer.src_addr, answer.src_size) = (bytes, size.into());
                }
                if let Some(remote) = id.remote {
                    let (bytes, size) = remote.write();
                    (answer.dst_addr, answer.dst_size) = (bytes, size.into());
                }
                Ok(answer.as_bytes().to_vec())
            }
            QUERY_GID => {
                let own = host.own_gid().filter(|_| is_bound).unwrap_or_default();
                answer.src_size = SOCKADDR_IB.into();
                answer.src_addr = gid_address(own);
                answer.dst_size = SOCKADDR_IB.into();
                answer.dst_addr = gid_address(id.remote_gid.unwrap_or_default());
                Ok(answer.as_bytes().to_vec())
            }
            QUERY_PATH => {
                let mut answer = QueryPathAnswer::default();
                if let Some(path) = &id.path {
                    answer.num_paths = 1.into();
                    answer.flags = PATH_FLAGS.into();
                    let record = path.record().as_bytes();
                    let length = record.len().min(answer.record.len());
                    answer.record[..length].copy_from_slice(&record[..length]);
                    return Ok(answer.as_bytes().to_vec());
                }
                Ok(answer.as_bytes()[..8].to_vec())
            }
            _ => Err(Errno::ENOSYS),
        }
    }
}
