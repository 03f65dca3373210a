//! Addresses and paths of ids.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ib_endpoint::{MadTransport, PortPath, SaAnswer, SaError, SaRequest};
use ib_wire::sa::PathRecord;
use ib_wire::{Gid, PKey};
use zerocopy::{FromBytes, IntoBytes};

use super::address::{Address, AddressBook, IbAddress, SocketAddress};
use super::group_address::mgid;
use super::{CmHost, CmId, Purpose, RdmaCm, read};
use crate::abi::rdma_cm::{
    ADDRESS_SIZE, IdArgument, IdCommand, PS_IPOIB, QueryAddrAnswer, QueryPathAnswer, ResolveAddr,
    cm_event,
};
use crate::{ChannelId, Errno};

/// Subjects of QUERY.
const QUERY_ADDR: u32 = 0;
const QUERY_PATH: u32 = 1;
const QUERY_GID: u32 = 2;

/// Uses of a path: of the CM's messages, primary, both ways (`IB_PATH_*`).
const PATH_FLAGS: u32 = 1 | 2 | 8 | 32;

/// Bytes of a path with its uses (`struct ib_path_rec_data`).
const PATH_SIZE: usize = 72;

impl RdmaCm {
    pub(super) fn resolve_addr<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        addresses: &AddressBook,
        channel: ChannelId,
        payload: &[u8],
    ) -> Result<(), Errno> {
        let asked: ResolveAddr = read(payload)?;
        if asked.reserved.get() != 0 {
            return Err(Errno::EINVAL);
        }
        let is_given = SocketAddress::is_given(&asked.src_addr);
        let source = match asked.src_size.get() {
            0 if !is_given => None,
            0 => Some(SocketAddress::read(&asked.src_addr)?),
            size => Some(SocketAddress::read_sized(&asked.src_addr, size)?),
        };
        let remote = SocketAddress::read_sized(&asked.dst_addr, asked.dst_size.get())?;
        let number = asked.id.get();
        // An id that is bound is not bound anew, whatever the source.
        if !self.get(channel, number)?.is_bound_only() {
            let source = source.unwrap_or_else(|| remote.any());
            self.bind_given(host, addresses, channel, number, source)?;
        }
        let local = self.get(channel, number)?.local.ok_or(Errno::EINVAL)?;
        if !local.is_like(&remote) {
            return Err(Errno::EINVAL);
        }
        let own = host.own_gid().ok_or(Errno::ENODEV)?;
        let (source, gid) = match remote {
            SocketAddress::Ib(ib) => {
                self.check_partition(host, channel, number, &ib, own)?;
                let loops = remote.is_any();
                let source = SocketAddress::Ib(IbAddress { gid: own, ..ib });
                (source, Some(if loops { own } else { ib.gid }))
            }
            SocketAddress::Ip(ip) => {
                let own_ip = match ip.ip {
                    IpAddr::V4(_) => addresses.own.into(),
                    IpAddr::V6(_) => Ipv6Addr::from(own.0).into(),
                };
                let gid = match ip.ip {
                    // The port space's own signature comes with the group that is joined.
                    group if group.is_multicast() => {
                        Some(mgid(&remote, PS_IPOIB, host.partition()))
                    }
                    any if any.is_unspecified() => Some(own),
                    other => addresses.gid(other, own),
                };
                (SocketAddress::Ip(Address { ip: own_ip, ..ip }), gid)
            }
        };
        let lookup = match remote {
            SocketAddress::Ip(ip) if gid.is_none() => addresses.to_look_up(ip.ip),
            _ => None,
        };
        if gid.is_none() && lookup.is_none() {
            self.tell(number, cm_event::ADDR_ERROR, Errno::ETIMEDOUT.status(), &[]);
            return Ok(());
        }
        let id = self.get(channel, number)?;
        if local.is_any() {
            id.local = Some(match (local, source) {
                (SocketAddress::Ib(local), SocketAddress::Ib(source)) => {
                    SocketAddress::Ib(IbAddress {
                        gid: source.gid,
                        ..local
                    })
                }
                _ => source.with_port(local.port()),
            });
        }
        id.remote = Some(remote);
        id.is_looked_up = gid.is_none();
        match gid {
            Some(gid) => self.destination_found(host, number, gid),
            None => self.lookups.extend(lookup),
        }
        Ok(())
    }

    /// Goes on with an id whose destination has a GID.
    fn destination_found<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        number: u32,
        gid: Gid,
    ) {
        let Some(id) = self.ids.get_mut(&number) else {
            return;
        };
        id.remote_gid = Some(gid);
        if gid.is_multicast() || id.port_space == PS_IPOIB {
            id.is_resolving = true;
            self.learn_broadcast(host, number);
        } else {
            self.tell(number, cm_event::ADDR_RESOLVED, 0, &[]);
        }
    }

    /// Returns the next address to be looked up, because an id waits for its GID: an address of the
    /// [network](AddressBook::network) that no VF of the book has. To be polled after [`Self::command`];
    /// [`Self::address_found`] is to follow.
    #[must_use]
    pub fn poll_lookup(&mut self) -> Option<Ipv4Addr> {
        self.lookups.pop_front()
    }

    /// Takes the outcome of a look-up: the GID of an address, or `None` if no node has it. All ids that wait for it go on.
    pub fn address_found<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        address: Ipv4Addr,
        gid: Option<Gid>,
    ) {
        let waits = |id: &CmId| match id.remote {
            Some(SocketAddress::Ip(remote)) if id.is_looked_up => {
                remote.ip.to_canonical() == IpAddr::V4(address)
            }
            _ => false,
        };
        let waiting = self.ids.iter().filter(|(_, id)| waits(id));
        let waiting: Vec<u32> = waiting.map(|(number, _)| *number).collect();
        for number in waiting {
            if let Some(id) = self.ids.get_mut(&number) {
                id.is_looked_up = false;
                // Without a GID the id is bound as before, and may try once more.
                id.remote = id.remote.filter(|_| gid.is_some());
            }
            if let Some(gid) = gid {
                self.destination_found(host, number, gid);
            } else {
                self.tell(number, cm_event::ADDR_ERROR, Errno::ETIMEDOUT.status(), &[]);
            }
        }
    }

    /// Checks that the device reaches an address of InfiniBand's family: its partition, and its subnet.
    fn check_partition<G: MadTransport>(
        &mut self,
        host: &CmHost<'_, G>,
        channel: ChannelId,
        number: u32,
        remote: &IbAddress,
        own: Gid,
    ) -> Result<(), Errno> {
        let is_any = SocketAddress::Ib(*remote).is_any();
        if is_any || self.get(channel, number)?.is_on_device() {
            return Ok(());
        }
        let partition = host.port.view().partition_index(PKey::new(remote.pkey));
        let is_reached = partition.is_some() && remote.gid.prefix() == own.prefix();
        is_reached.then_some(()).ok_or(Errno::ENODEV)
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
        let mut record = PathRecord {
            sgid: own,
            dgid: gid,
            ..PathRecord::default()
        };
        record.set_reversible(true);
        record.set_numb_path(1);
        let mut mask =
            PathRecord::SGID | PathRecord::DGID | PathRecord::REVERSIBLE | PathRecord::NUMB_PATH;
        match id.local {
            Some(SocketAddress::Ib(local)) if local.pkey != 0 => {
                record.pkey = PKey::new(local.pkey);
                mask = mask | PathRecord::PKEY;
            }
            Some(local) if local.is_v4() && id.options.service_type != 0 => {
                record.set_qos_class(id.options.service_type.into());
                mask = mask | PathRecord::QOS_CLASS;
            }
            _ => {}
        }
        let request = SaRequest::get(&record, mask);
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

    /// Takes the path that a program gives for an id, in place of the SA's (`RDMA_OPTION_IB_PATH`).
    pub(super) fn set_path<G: MadTransport>(
        &mut self,
        host: &CmHost<'_, G>,
        channel: ChannelId,
        number: u32,
        paths: &[u8],
    ) -> Result<(), Errno> {
        let (paths, rest) = paths.as_chunks::<PATH_SIZE>();
        let usable = paths.iter().find_map(|path| {
            let (flags, record) = path.split_first_chunk::<8>()?;
            let [a, b, c, d, ..] = *flags;
            let is_usable = u32::from_ne_bytes([a, b, c, d]) == PATH_FLAGS;
            is_usable.then(|| PathRecord::read_from_bytes(record).ok())?
        });
        let record = usable.filter(|_| rest.is_empty()).ok_or(Errno::EINVAL)?;
        let id = self.get(channel, number)?;
        let is_resolved = id.remote_gid.is_some() && !id.is_resolving;
        let has_route = id.query.is_some() || id.path.is_some() || id.connection.is_some();
        if !is_resolved || has_route {
            return Err(Errno::EINVAL);
        }
        let path = PortPath::new(host.port.port(), host.port.view(), &record);
        let path = path.map_err(|_| Errno::EINVAL)?;
        id.path = Some(path.with_grh());
        self.tell(number, cm_event::ROUTE_RESOLVED, 0, &[]);
        Ok(())
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
        let is_bound = id.is_on_device();
        let mut pkey = 0;
        if is_bound {
            pkey = match id.local {
                Some(SocketAddress::Ib(local)) => local.pkey,
                _ => host.partition().get(),
            };
            answer.node_guid = host.node_guid.get().to_be_bytes();
            answer.port_num = host.port.port().0;
            answer.pkey = pkey.to_be().into();
        }
        // A peer that is not known yet has the family of the own address.
        let unknown = || id.local.map(|local| local.any());
        let remote = id.remote.or_else(unknown);
        let addresses = match asked.argument.get() {
            QUERY_ADDR => [id.local, remote],
            QUERY_GID => {
                let own = host.own_gid().filter(|_| is_bound).unwrap_or_default();
                let gids = [own, id.remote_gid.unwrap_or_default()];
                let known = [id.local, remote].into_iter().zip(gids);
                let ib = known.map(|(known, gid)| match known {
                    Some(address @ SocketAddress::Ib(_)) => address,
                    known => {
                        let nowhere = u64::from(id.port_space) << 16;
                        let service = known.map(|known| id.service(&known).get());
                        SocketAddress::Ib(IbAddress {
                            pkey,
                            gid,
                            service: service.unwrap_or(nowhere),
                            ..IbAddress::default()
                        })
                    }
                });
                let mut ib = ib.map(Some);
                [ib.next().flatten(), ib.next().flatten()]
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
                return Ok(answer.as_bytes()[..8].to_vec());
            }
            _ => return Err(Errno::ENOSYS),
        };
        let [source, destination] = addresses.map(|address| match address {
            Some(address) => address.write(),
            None => ([0; ADDRESS_SIZE], 0),
        });
        (answer.src_addr, answer.src_size) = (source.0, source.1.into());
        (answer.dst_addr, answer.dst_size) = (destination.0, destination.1.into());
        Ok(answer.as_bytes().to_vec())
    }
}
