//! ARP on a queue pair of an HCA, as a member of the broadcast group.

use alloc::vec::Vec;
use core::iter;
use core::net::Ipv4Addr;

use hca_api::{Hca, HcaError, QpKind, UdDestination};
use ib_endpoint::sa_client::{StandingId, Wish};
use ib_endpoint::{
    DatagramQp, DatagramQpSpec, EndPort, EndPortEvent, MadAddress, MadTransport, Received, SaEvent,
    group_destination,
};
use ib_vtime::{Duration, Instant};
use ib_wire::ipoib::{Encapsulation, HardwareAddress, LINK_LOCAL, broadcast_mgid};
use ib_wire::sa::{JoinState, McMemberRecord};
use ib_wire::{Gid, GidIndex, PKey, PKeyIndex, PortNum};
use zerocopy::IntoBytes;

use crate::{Arp, ArpCounters, ArpEvent, Sender};

/// Bytes of the longest packet of IPoIB in datagram mode: a longer one than the receive would stop the queue pair.
const LONGEST: u32 = 4096;

/// Bytes of a packet that are looked at.
const LOOKED_AT: usize = 64;

/// Packets that may wait to be taken. Each has room for the longest one, so that there are few: requests are repeated.
const RECEIVES: u32 = 16;

/// Sends under way.
const SENDS: u32 = 4;

/// Packets that one turn takes.
const BUDGET: usize = 16;

/// Time after which a membership that the SA refused is asked for again: Linux' longest wait (`IPOIB_MAX_BACKOFF_SECONDS`).
const ASK_AGAIN: Duration = Duration::from_secs(16);

/// The membership of a port in the broadcast group of its partition.
#[derive(Clone, Copy, Debug)]
struct Membership {
    standing: StandingId,
    port_gid: Gid,
    partition: PKey,
    /// Time of the next request, once the SA has refused one.
    again: Option<Instant>,
}

/// A queue pair that is attached to the broadcast group.
#[derive(Debug)]
struct Link {
    qp: DatagramQp,
    group: McMemberRecord,
}

/// A node of IP over InfiniBand on a port of an HCA: it joins the broadcast group of the port's first partition as soon as the
/// subnet manager has given the port an SA, and claims an address for its queue pair in that group.
///
/// As Linux' IPoIB it does not make the group: where the partition has none, the SA refuses, and the node asks again every 16 s.
#[derive(Debug)]
pub struct Node {
    arp: Arp,
    /// Further addresses, which are claimed, and by which nothing is looked up.
    aliases: Vec<Arp>,
    membership: Option<Membership>,
    link: Option<Link>,
    failed_links: u64,
}

impl Node {
    /// Returns a node that will have an address.
    #[must_use]
    pub const fn new(ip: Ipv4Addr) -> Self {
        Self {
            arp: Arp::new(ip),
            aliases: Vec::new(),
            membership: None,
            link: None,
            failed_links: 0,
        }
    }

    /// Sets the addresses that the node has besides its own one; former ones are given up. The node claims each new one, and looks other
    /// nodes' addresses up by its own one alone. [`Self::poll`] must follow.
    pub fn set_aliases(&mut self, aliases: &[Ipv4Addr]) {
        let own = self.arp.ip();
        self.aliases.retain(|held| aliases.contains(&held.ip()));
        for ip in aliases {
            if *ip != own && !self.aliases.iter().any(|held| held.ip() == *ip) {
                self.aliases.push(Arp::new(*ip));
            }
        }
    }

    fn arps(&self) -> impl Iterator<Item = &Arp> {
        iter::once(&self.arp).chain(&self.aliases)
    }

    fn arps_mut(&mut self) -> impl Iterator<Item = &mut Arp> {
        iter::once(&mut self.arp).chain(&mut self.aliases)
    }

    /// Looks an address up: see [`Arp::resolve`]. [`Self::poll`] must follow.
    pub fn resolve(&mut self, now: Instant, ip: Ipv4Addr) {
        self.arp.resolve(now, ip);
    }

    /// Returns the next event. To be polled after [`Self::poll`].
    #[must_use]
    pub fn poll_event(&mut self) -> Option<ArpEvent> {
        self.arps_mut().find_map(Arp::poll_event)
    }

    /// Returns the counters of packets.
    #[must_use]
    pub const fn counters(&self) -> ArpCounters {
        self.arp.counters()
    }

    /// Returns the hardware address of the queue pair in the broadcast group, and the bytes of the longest IP packet if the group's
    /// record has an MTU. `None` while the node is not in the group.
    #[must_use]
    pub fn link(&self) -> Option<(HardwareAddress, Option<u32>)> {
        let (link, membership) = (self.link.as_ref()?, self.membership?);
        let hardware = link.hardware(membership.port_gid);
        let mtu = link.group.mtu_value().bytes();
        let packet = mtu.and_then(|mtu| mtu.checked_sub(size_of::<Encapsulation>()));
        Some((hardware, packet.and_then(|bytes| bytes.try_into().ok())))
    }

    /// Returns how often the HCA had no queue pair for the node.
    #[must_use]
    pub const fn failed_links(&self) -> u64 {
        self.failed_links
    }

    /// Takes an event of the port. Returns `true` if it was the node's.
    pub fn handle_port_event(
        &mut self,
        now: Instant,
        hca: &mut dyn Hca,
        port: PortNum,
        event: &EndPortEvent,
    ) -> bool {
        let EndPortEvent::Sa(SaEvent::Granted { standing, .. } | SaEvent::Refused { standing, .. }) =
            event
        else {
            return false;
        };
        let own = self.membership.as_mut();
        let Some(own) = own.filter(|own| own.standing == *standing) else {
            return false;
        };
        let group = match event {
            EndPortEvent::Sa(SaEvent::Granted { answer, .. }) => answer.record::<McMemberRecord>(),
            EndPortEvent::Sa(SaEvent::Refused { retry_at: None, .. }) => {
                own.again = Some(now + ASK_AGAIN);
                None
            }
            _ => None,
        };
        let gid = own.port_gid;
        let is_open = |link: &Link| {
            group
                .is_some_and(|group| (group.mlid, group.qkey) == (link.group.mlid, link.group.qkey))
        };
        if let Some(group) = group
            && !self.link.as_ref().is_some_and(is_open)
        {
            self.close_link(hca);
            let opened = Link::open(hca, port, group);
            self.failed_links += u64::from(opened.is_err());
            if let Ok(link) = opened {
                let hardware = link.hardware(gid);
                self.link = Some(link);
                self.arps_mut().for_each(|arp| arp.start(now, hardware));
            }
        }
        true
    }

    /// Keeps the membership as the port's tables want it, receives, runs timers and sends, within a budget. Returns `true` if
    /// there may be more to do at once; if not, the HCA raises [`HcaEvent::Completion`](hca_api::HcaEvent::Completion) when there is.
    pub fn poll<G: MadTransport>(
        &mut self,
        now: Instant,
        hca: &mut dyn Hca,
        port: &mut EndPort<G>,
    ) -> bool {
        self.follow_port(now, hca, port);
        if let Some((hardware, _)) = self.link() {
            let new = self.aliases.iter_mut().filter(|alias| !alias.is_started());
            new.for_each(|alias| alias.start(now, hardware));
        }
        self.arps_mut().for_each(|arp| arp.handle_timeout(now));
        let Self {
            arp, aliases, link, ..
        } = self;
        let Some(link) = link else {
            return false;
        };
        let mut left = BUDGET;
        let mut packet = [0; LOOKED_AT];
        while left > 0
            && let Some(received) = link.qp.poll_into(hca, &mut packet)
        {
            left -= 1;
            let bytes = &packet[..received.len.min(LOOKED_AT)];
            for arp in iter::once(&mut *arp).chain(&mut *aliases) {
                if let Some(reply) = arp.handle_packet(now, sender(&received), bytes) {
                    let back = link.back_to(&received);
                    // A reply without room is covered by the next request.
                    let _ = link.qp.send(hca, Some(&back), reply.as_bytes());
                }
            }
        }
        let group = group_destination(link.qp.spec().port, &link.group);
        let mut arps = iter::once(arp).chain(aliases);
        while link.qp.can_send()
            && let Some(request) = arps.find_map(Arp::poll_transmit)
        {
            let _ = link.qp.send(hca, Some(&group), request.as_bytes());
        }
        link.qp.arm(hca) || left == 0
    }

    /// Returns when to call [`Self::poll`] at the latest; a time that has passed means at once.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let can_send = self.link.as_ref().is_some_and(|link| link.qp.can_send());
        if can_send && self.arps().any(Arp::has_transmit) {
            return Some(Instant::ZERO);
        }
        let again = self.membership.and_then(|own| own.again);
        let of_arps = self.arps().filter_map(Arp::poll_timeout);
        of_arps.chain(again).min()
    }

    /// Forgets the membership, because the port that asked for it is gone: the next [`Self::poll`] has another one ask.
    pub const fn port_replaced(&mut self) {
        self.membership = None;
    }

    /// Drops the queue pair and the membership after a reset of the function; the next [`Self::poll`] makes both again.
    pub fn reset(&mut self, hca: &mut dyn Hca) {
        self.close_link(hca);
        self.membership = None;
    }

    /// Asks for the membership that the port's GID and first P_Key call for, if it is another one than before.
    fn follow_port<G: MadTransport>(
        &mut self,
        now: Instant,
        hca: &mut dyn Hca,
        port: &mut EndPort<G>,
    ) {
        if self
            .membership
            .and_then(|own| own.again)
            .is_some_and(|again| again <= now)
        {
            self.membership = None;
        }
        let view = port.view();
        let gid = view.gid(GidIndex(0));
        let partition = view.pkeys.first().copied().filter(|key| key.is_valid());
        let wanted = gid.zip(partition.map(PKey::full));
        let held = self.membership.map(|held| (held.port_gid, held.partition));
        if wanted == held {
            return;
        }
        if let Some(held) = self.membership.take() {
            port.withdraw(now, held.standing);
            self.close_link(hca);
        }
        let Some((port_gid, partition)) = wanted else {
            return;
        };
        let mut record = McMemberRecord {
            mgid: broadcast_mgid(LINK_LOCAL, partition),
            port_gid,
            pkey: partition,
            ..McMemberRecord::default()
        };
        record.set_join_state(JoinState::FULL_MEMBER);
        // As Linux' IPoIB joins the broadcast group (`ipoib_mcast_join`): all else is the group's.
        let mask = McMemberRecord::PKEY;
        let standing = port.wish(now, Wish::Membership { record, mask });
        self.membership = Some(Membership {
            standing,
            port_gid,
            partition,
            again: None,
        });
    }

    fn close_link(&mut self, hca: &mut dyn Hca) {
        self.arps_mut().for_each(Arp::stop);
        if let Some(link) = self.link.take() {
            link.close(hca);
        }
    }
}

impl Link {
    fn open(hca: &mut dyn Hca, port: PortNum, group: McMemberRecord) -> Result<Self, HcaError> {
        let spec = DatagramQpSpec {
            kind: QpKind::Ud,
            port,
            pkey_index: PKeyIndex(0),
            qkey: group.qkey,
            receives: RECEIVES,
            sends: SENDS,
            max_message: LONGEST,
            block_multicast_loopback: true,
        };
        let qp = DatagramQp::open(hca, spec)?;
        match hca.attach_multicast(qp.handle(), group.mgid, group.mlid) {
            Ok(()) => Ok(Self { qp, group }),
            Err(error) => {
                qp.close(hca);
                Err(error)
            }
        }
    }

    /// Returns the hardware address of the queue pair at a port of this GID.
    const fn hardware(&self, gid: Gid) -> HardwareAddress {
        HardwareAddress {
            flags: 0,
            qpn: self.qp.numbers().external,
            gid,
        }
    }

    /// Returns the sender of a packet as a destination. The path of a packet within the subnet leads back, too.
    fn back_to(&self, received: &Received) -> UdDestination {
        let sender = MadAddress::of_sender(&received.source, self.group.qkey);
        let port = self.qp.spec().port;
        UdDestination {
            pkey_index: None,
            ..sender.destination(port)
        }
    }

    fn close(self, hca: &mut dyn Hca) {
        // After a reset it is not attached any longer.
        let _ = hca.detach_multicast(self.qp.handle(), self.group.mgid, self.group.mlid);
        self.qp.close(hca);
    }
}

fn sender(received: &Received) -> Sender {
    Sender {
        gid: received.source.grh.map(|route| route.remote_gid),
        qpn: received.source.src_qpn,
    }
}
