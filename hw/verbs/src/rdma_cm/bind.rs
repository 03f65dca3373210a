//! Addresses and ports that ids are bound to, and options that the rules for them depend on.

use std::collections::BTreeSet;

use ib_endpoint::MadTransport;

use super::address::{Address, AddressBook, SocketAddress};
use super::{CmHost, CmId, RdmaCm, read};
use crate::abi::rdma_cm::{Bind, PS_IPOIB, QPT_RC, QPT_XRC_INI, SetOption};
use crate::{ChannelId, Errno};

/// Ports that are given to ids that do not care.
pub(super) const EPHEMERAL: u16 = 49_152;

/// Levels of options (`RDMA_OPTION_ID`, `RDMA_OPTION_IB`).
const LEVEL_ID: u32 = 0;
const LEVEL_IB: u32 = 1;

/// Options of an id (`RDMA_OPTION_ID_*`), and of its path (`RDMA_OPTION_IB_PATH`).
const ID_TOS: u32 = 0;
const ID_REUSEADDR: u32 = 1;
const ID_AFONLY: u32 = 2;
const ID_ACK_TIMEOUT: u32 = 3;
const IB_PATH: u32 = 1;

impl CmId {
    /// Returns `true` if the id has a port of its family only, at an address.
    pub(super) fn is_family_only(&self, address: &SocketAddress) -> bool {
        let chosen = self.options.family_only;
        chosen.unwrap_or_else(|| address.is_v4())
    }
}

impl RdmaCm {
    pub(super) fn bind<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        addresses: &AddressBook,
        channel: ChannelId,
        payload: &[u8],
    ) -> Result<(), Errno> {
        let asked: Bind = read(payload)?;
        if asked.reserved.get() != 0 {
            return Err(Errno::EINVAL);
        }
        let address = SocketAddress::read_sized(&asked.addr, asked.addr_size.get())?;
        let number = asked.id.get();
        self.bind_given(host, addresses, channel, number, address)?;
        if self.get(channel, number)?.port_space == PS_IPOIB {
            self.learn_broadcast(host, number);
        }
        Ok(())
    }

    /// Binds an id to an address that a program gives.
    pub(super) fn bind_given<G: MadTransport>(
        &mut self,
        host: &CmHost<'_, G>,
        addresses: &AddressBook,
        channel: ChannelId,
        number: u32,
        address: SocketAddress,
    ) -> Result<(), Errno> {
        if self.get(channel, number)?.local.is_some() {
            return Err(Errno::EINVAL);
        }
        let address = addresses.bindable(address, host.own_gid())?;
        self.bind_to(channel, number, address)
    }

    /// Binds an id to every address of the VF.
    pub(super) fn bind_anywhere(&mut self, channel: ChannelId, number: u32) -> Result<(), Errno> {
        let ip = core::net::Ipv4Addr::UNSPECIFIED.into();
        self.bind_to(channel, number, SocketAddress::Ip(Address { ip, port: 0 }))
    }

    /// Binds an id; a port of 0 is replaced by one that is free.
    fn bind_to(
        &mut self,
        channel: ChannelId,
        number: u32,
        address: SocketAddress,
    ) -> Result<(), Errno> {
        let id = self.get(channel, number)?;
        let found = address.in_port_space(id.port_space);
        let (space, address) = found.ok_or(Errno::EPROTONOSUPPORT)?;
        let reuses = id.options.reuses_address;
        let port = match address.port() {
            0 => self.free_port(space),
            port => {
                self.check_port(number, space, &address, reuses)?;
                port
            }
        };
        let id = self.get(channel, number)?;
        id.local = Some(address.with_port(port));
        id.holds_port_in = Some(space);
        Ok(())
    }

    /// Returns a port that no id has in a port space.
    fn free_port(&mut self, space: u16) -> u16 {
        let holders = self.ids.values();
        let holders = holders.filter(|id| id.holds_port_in == Some(space));
        let taken: BTreeSet<u16> = holders.filter_map(|id| Some(id.local?.port())).collect();
        // There are more ports than ids.
        loop {
            let port = EPHEMERAL + self.next_port % (u16::MAX - EPHEMERAL);
            self.next_port = self.next_port.wrapping_add(1);
            if !taken.contains(&port) {
                return port;
            }
        }
    }

    /// Checks that an id may have the port of an address, beside the other ids with that port.
    ///
    /// # Errors
    /// [`Errno::EADDRINUSE`] if another id has the address, [`Errno::EADDRNOTAVAIL`] if one of the two ids has all addresses.
    pub(super) fn check_port(
        &self,
        number: u32,
        space: u16,
        address: &SocketAddress,
        reuses: bool,
    ) -> Result<(), Errno> {
        let own = self.ids.get(&number);
        let is_family_only = own.is_some_and(|id| id.is_family_only(address));
        for (other, id) in &self.ids {
            let Some(taken) = id.local.filter(|taken| taken.port() == address.port()) else {
                continue;
            };
            if *other == number || id.holds_port_in != Some(space) {
                continue;
            }
            if reuses && id.options.reuses_address {
                continue;
            }
            if is_family_only && id.is_family_only(&taken) && !taken.is_like(address) {
                continue;
            }
            if address.is_any() || taken.is_any() {
                return Err(Errno::EADDRNOTAVAIL);
            }
            if address.is_beside(&taken) {
                return Err(Errno::EADDRINUSE);
            }
        }
        Ok(())
    }

    /// Carries out SET_OPTION, whose value follows the command.
    pub(super) fn set_option<G: MadTransport>(
        &mut self,
        host: &CmHost<'_, G>,
        channel: ChannelId,
        payload: &[u8],
    ) -> Result<(), Errno> {
        let asked: SetOption = read(payload)?;
        let number = asked.id.get();
        let id = self.get(channel, number)?;
        let value = &payload[size_of::<SetOption>()..];
        let wanted = usize::try_from(asked.optlen.get()).ok();
        let value = wanted.and_then(|length| value.get(..length));
        let value = value.ok_or(Errno::EINVAL)?;
        let is_true = || match value.len() {
            4 => Ok(value != [0; 4]),
            _ => Err(Errno::EINVAL),
        };
        let byte = || match value {
            [byte] => Ok(*byte),
            _ => Err(Errno::EINVAL),
        };
        match (asked.level.get(), asked.optname.get()) {
            (LEVEL_ID, ID_TOS) => id.options.service_type = byte()?,
            (LEVEL_ID, ID_REUSEADDR) => {
                let reuses = is_true()?;
                let may_change = id.local.is_none() || (reuses && id.listener.is_none());
                if !may_change {
                    return Err(Errno::EINVAL);
                }
                id.options.reuses_address = reuses;
            }
            (LEVEL_ID, ID_AFONLY) => {
                let family_only = is_true()?;
                if !(id.local.is_none() || id.is_bound_only()) {
                    return Err(Errno::EINVAL);
                }
                id.options.family_only = Some(family_only);
            }
            (LEVEL_ID, ID_ACK_TIMEOUT) => {
                let timeout = byte()?;
                if !matches!(id.qp_type, QPT_RC | QPT_XRC_INI) {
                    return Err(Errno::EINVAL);
                }
                id.options.ack_timeout = Some(timeout);
            }
            (LEVEL_IB, IB_PATH) => return self.set_path(host, channel, number, value),
            _ => return Err(Errno::ENOSYS),
        }
        Ok(())
    }
}
