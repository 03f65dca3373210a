//! ARP for one address (RFC 826, RFC 4391 section 9.1), with the claim of RFC 5227.

use alloc::collections::{BTreeMap, VecDeque};
use core::net::Ipv4Addr;

use ib_vtime::{Duration, Instant};
use ib_wire::ipoib::{ARP_REPLY, ARP_REQUEST, ArpPacket, ETHER_TYPE_ARP, HardwareAddress};
use ib_wire::{Gid, Qpn};
use zerocopy::FromBytes;

/// Time between two requests for an address, as Linux has it (`RETRANS_TIME`).
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);

/// Requests for an address before it counts as unknown, as Linux has it (`MCAST_PROBES`).
const REQUESTS: u8 = 3;

/// Age up to which a neighbour is not asked for again: Linux' base of the time for which a neighbour is reachable
/// (`REACHABLE_TIME`). The RDMA CM asks once a connection, so a longer time would save little.
const REACHABLE: Duration = Duration::from_secs(30);

/// Time between two probes of the own address. RFC 5227 waits a second or two because switches of Ethernet may hold a port back
/// when its link comes up; a broadcast of IPoIB crosses a subnet in milliseconds once the port is a member.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);

/// Probes before the own address counts as free (RFC 5227, `PROBE_NUM`).
const PROBES: u8 = 3;

/// Time after which an address that another node had is probed again.
const YIELD_TIME: Duration = Duration::from_secs(30);

/// Neighbours that are kept: beyond, the one that was heard from longest ago goes.
const MAX_NEIGHBOURS: usize = 1024;

/// Addresses that are asked for at one time: beyond, a look-up fails at once.
const MAX_LOOKUPS: usize = 1024;

/// Packets that wait to be sent to the group: beyond, one is left out, and the next request covers it.
const MAX_TRANSMITS: usize = 256;

/// Source of a packet, as its transport shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Source GID of the packet's GRH, if it has one.
    pub gid: Option<Gid>,
    /// Source queue pair.
    pub qpn: Qpn,
}

/// An event of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpEvent {
    /// An address was found.
    Resolved {
        /// Address.
        ip: Ipv4Addr,
        /// GID of the port that has it.
        gid: Gid,
    },
    /// No node has answered for an address.
    Unresolved {
        /// Address.
        ip: Ipv4Addr,
    },
    /// Another node has the own address, too. Raised once for each claim of the address.
    Conflict {
        /// The address.
        ip: Ipv4Addr,
        /// GID of the other node.
        gid: Gid,
        /// The other node was first: this one does not answer for the address until it is free.
        yields: bool,
    },
}

/// Counters of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArpCounters {
    /// Requests that were answered.
    pub answered: u64,
    /// Packets that are not ARP.
    pub not_arp: u64,
    /// Packets that are too short, of other types or sizes, or of an unknown operation.
    pub malformed: u64,
    /// Packets whose hardware address is not that of their sender, and those from addresses that no node can have.
    pub forged: u64,
    /// Packets by which another node claims the address of a neighbour that was heard from lately.
    pub contested: u64,
}

/// State of the own address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// There is no queue pair to answer with.
    Stopped,
    /// Other nodes are asked for it.
    Probing { left: u8, next: Instant },
    /// It is the node's.
    Held,
    /// Another node has it.
    Yielded { until: Instant },
}

/// An address that is asked for.
#[derive(Clone, Copy, Debug)]
struct Lookup {
    left: u8,
    next: Instant,
}

/// A node that was heard from.
#[derive(Clone, Copy, Debug)]
struct Neighbour {
    gid: Gid,
    heard: Instant,
}

/// ARP of a node with one address. See the [crate's documentation](crate).
///
/// [`Self::poll_transmit`] and [`Self::poll_event`] must be polled after [`Self::start`], [`Self::resolve`],
/// [`Self::handle_packet`] and [`Self::handle_timeout`].
#[derive(Debug)]
pub struct Arp {
    ip: Ipv4Addr,
    hardware: HardwareAddress,
    claim: Claim,
    is_conflict_known: bool,
    lookups: BTreeMap<Ipv4Addr, Lookup>,
    neighbours: BTreeMap<Ipv4Addr, Neighbour>,
    transmits: VecDeque<ArpPacket>,
    events: VecDeque<ArpEvent>,
    counters: ArpCounters,
}

impl Arp {
    /// Returns the machine of a node that will have an address. Look-ups may begin; they fail unless [`Self::start`] follows.
    #[must_use]
    pub const fn new(ip: Ipv4Addr) -> Self {
        Self {
            ip,
            hardware: HardwareAddress {
                flags: 0,
                qpn: Qpn::MULTICAST,
                gid: Gid::NONE,
            },
            claim: Claim::Stopped,
            is_conflict_known: false,
            lookups: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            counters: ArpCounters {
                answered: 0,
                not_arp: 0,
                malformed: 0,
                forged: 0,
                contested: 0,
            },
        }
    }

    /// Begins to claim the address for a queue pair: probes it, announces it if no other node answers, and answers requests
    /// from then on.
    pub fn start(&mut self, now: Instant, hardware: HardwareAddress) {
        self.hardware = hardware;
        self.is_conflict_known = false;
        self.probe_anew(now);
        self.handle_timeout(now);
    }

    /// Takes the queue pair away. Neighbours stay known, and look-ups run until they fail or the next start.
    pub fn stop(&mut self) {
        self.claim = Claim::Stopped;
        self.transmits.clear();
    }

    /// Returns the own address.
    #[must_use]
    pub const fn ip(&self) -> Ipv4Addr {
        self.ip
    }

    /// Returns `true` between [`Self::start`] and [`Self::stop`].
    #[must_use]
    pub const fn is_started(&self) -> bool {
        !matches!(self.claim, Claim::Stopped)
    }

    /// Returns `true` once the address is the node's own.
    #[must_use]
    pub const fn holds_address(&self) -> bool {
        matches!(self.claim, Claim::Held)
    }

    /// Returns the counters of packets.
    #[must_use]
    pub const fn counters(&self) -> ArpCounters {
        self.counters
    }

    /// Returns how many neighbours are known.
    #[must_use]
    pub fn neighbours(&self) -> usize {
        self.neighbours.len()
    }

    /// Looks an address up. [`ArpEvent::Resolved`] or [`ArpEvent::Unresolved`] follows, at once if a neighbour has it that was
    /// heard from in the last 30 s, and within 3 s once the own address is probed. A node whose address another one has finds none. One event answers all look-ups of an address until then.
    pub fn resolve(&mut self, now: Instant, ip: Ipv4Addr) {
        if self.lookups.contains_key(&ip) {
            return;
        }
        let known = self.neighbours.get(&ip);
        if let Some(known) = known.filter(|known| known.is_fresh(now)) {
            let gid = known.gid;
            self.events.push_back(ArpEvent::Resolved { ip, gid });
        } else if self.lookups.len() >= MAX_LOOKUPS {
            self.events.push_back(ArpEvent::Unresolved { ip });
        } else {
            let lookup = Lookup {
                left: REQUESTS,
                next: now,
            };
            self.lookups.insert(ip, lookup);
            self.handle_timeout(now);
        }
    }

    /// Takes a packet. Returns the reply, which is for the sender alone.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        sender: Sender,
        bytes: &[u8],
    ) -> Option<ArpPacket> {
        if bytes.get(..2) != Some(ETHER_TYPE_ARP.to_be_bytes().as_slice()) {
            self.counters.not_arp += 1;
            return None;
        }
        let packet = ArpPacket::read_from_prefix(bytes);
        let packet = packet.ok().map(|(packet, _)| packet);
        let packet = packet.filter(ArpPacket::is_for_ipv4);
        let operation = packet.map(|packet| packet.arp.operation.get());
        let (Some(packet), Some(operation @ (ARP_REQUEST | ARP_REPLY))) = (packet, operation)
        else {
            self.counters.malformed += 1;
            return None;
        };
        let (from, hardware) = (Ipv4Addr::from(packet.arp.sender_ip), packet.arp.sender);
        if matches!(self.claim, Claim::Stopped) || hardware.gid == self.hardware.gid {
            return None;
        }
        if !fits(sender, hardware) || !is_of_a_node(from) {
            self.counters.forged += 1;
            return None;
        }
        let is_asked = Ipv4Addr::from(packet.arp.target_ip) == self.ip;
        let is_request = operation == ARP_REQUEST;
        if from == self.ip {
            self.contested_by(now, hardware.gid);
        } else if from.is_unspecified() {
            // Of two nodes that probe at the same time, the one with the lower GID has the address.
            let is_probing = matches!(self.claim, Claim::Probing { .. });
            if is_probing && is_request && is_asked && hardware.gid < self.hardware.gid {
                self.contested_by(now, hardware.gid);
            }
        } else {
            self.learn(now, from, hardware.gid, is_asked && self.holds_address());
        }
        let answers = is_request && is_asked && self.holds_address();
        self.counters.answered += u64::from(answers);
        answers.then(|| {
            let mut reply = self.packet(ARP_REPLY, self.ip, from);
            reply.arp.target = hardware;
            reply
        })
    }

    /// Returns `true` if [`Self::poll_transmit`] has a packet.
    #[must_use]
    pub fn has_transmit(&self) -> bool {
        !self.transmits.is_empty()
    }

    /// Returns the next packet for the broadcast group.
    #[must_use]
    pub fn poll_transmit(&mut self) -> Option<ArpPacket> {
        self.transmits.pop_front()
    }

    /// Returns the next event.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<ArpEvent> {
        self.events.pop_front()
    }

    /// Returns when to call [`Self::handle_timeout`], or `None` if nothing is scheduled.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let claim = match self.claim {
            Claim::Probing { next, .. } => Some(next),
            Claim::Yielded { until } => Some(until),
            Claim::Stopped | Claim::Held => None,
        };
        let lookups = self.lookups.values().map(|lookup| lookup.next);
        lookups.chain(claim).min()
    }

    /// Sends the requests and probes that are due, and ends look-ups without an answer.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.go_on_claiming(now);
        let due = self
            .lookups
            .iter()
            .filter(|(_, lookup)| lookup.next <= now)
            .map(|(ip, _)| *ip);
        let due: alloc::vec::Vec<Ipv4Addr> = due.collect();
        for ip in due {
            let Some(lookup) = self.lookups.get_mut(&ip) else {
                continue;
            };
            // A request without an own address is a probe (RFC 5227, section 1.1), and its target's own probing would end.
            if let Claim::Probing { next, .. } = self.claim {
                lookup.next = next;
                continue;
            }
            let has_lost = matches!(self.claim, Claim::Yielded { .. });
            let left = lookup.left.checked_sub(1).filter(|_| !has_lost);
            let Some(left) = left else {
                self.lookups.remove(&ip);
                self.neighbours.remove(&ip);
                self.events.push_back(ArpEvent::Unresolved { ip });
                continue;
            };
            *lookup = Lookup {
                left,
                next: now + REQUEST_INTERVAL,
            };
            // An address that is not the node's own stays out of the tables of others.
            if self.holds_address() {
                self.broadcast(self.ip, ip);
            }
        }
    }

    fn probe_anew(&mut self, now: Instant) {
        self.claim = Claim::Probing {
            left: PROBES,
            next: now,
        };
    }

    fn go_on_claiming(&mut self, now: Instant) {
        if let Claim::Yielded { until } = self.claim
            && until <= now
        {
            self.probe_anew(now);
        }
        let Claim::Probing { left, next } = self.claim else {
            return;
        };
        if next > now {
            return;
        }
        match left.checked_sub(1) {
            Some(left) => {
                self.claim = Claim::Probing {
                    left,
                    next: now + PROBE_INTERVAL,
                };
                self.broadcast(Ipv4Addr::UNSPECIFIED, self.ip);
            }
            None => {
                self.claim = Claim::Held;
                self.is_conflict_known = false;
                self.broadcast(self.ip, self.ip);
            }
        }
    }

    /// Notes that another node has the own address.
    fn contested_by(&mut self, now: Instant, gid: Gid) {
        let yields = matches!(self.claim, Claim::Probing { .. });
        if yields {
            self.claim = Claim::Yielded {
                until: now + YIELD_TIME,
            };
        }
        if !core::mem::replace(&mut self.is_conflict_known, true) {
            let ip = self.ip;
            let event = ArpEvent::Conflict { ip, gid, yields };
            self.events.push_back(event);
        }
    }

    /// Notes that a node has an address. A new one is noted if it was looked up, or if it asks for the own address.
    fn learn(&mut self, now: Instant, ip: Ipv4Addr, gid: Gid, asks_for_own: bool) {
        let known = self.neighbours.get(&ip);
        if known.is_some_and(|known| known.gid != gid && known.is_fresh(now)) {
            self.counters.contested += 1;
            return;
        }
        let is_known = known.is_some();
        let is_wanted = self.lookups.remove(&ip).is_some();
        if is_wanted {
            self.events.push_back(ArpEvent::Resolved { ip, gid });
        }
        if !is_known && !is_wanted && !asks_for_own {
            return;
        }
        if !is_known && self.neighbours.len() >= MAX_NEIGHBOURS {
            let oldest = self.neighbours.iter().min_by_key(|(_, known)| known.heard);
            if let Some(oldest) = oldest.map(|(ip, _)| *ip) {
                self.neighbours.remove(&oldest);
            }
        }
        self.neighbours.insert(ip, Neighbour { gid, heard: now });
    }

    /// Queues a request for the group. Before a start it is left out.
    fn broadcast(&mut self, own: Ipv4Addr, ip: Ipv4Addr) {
        let may_send = !matches!(self.claim, Claim::Stopped);
        if may_send && self.transmits.len() < MAX_TRANSMITS {
            let packet = self.packet(ARP_REQUEST, own, ip);
            self.transmits.push_back(packet);
        }
    }

    fn packet(&self, operation: u16, own: Ipv4Addr, target: Ipv4Addr) -> ArpPacket {
        let mut packet = ArpPacket::for_ipv4();
        packet.arp.operation = operation.into();
        packet.arp.sender = self.hardware;
        packet.arp.sender_ip = own.octets();
        packet.arp.target_ip = target.octets();
        packet
    }
}

impl Neighbour {
    fn is_fresh(&self, now: Instant) -> bool {
        now - self.heard < REACHABLE
    }
}

/// Returns `true` if a hardware address may be that of a packet's sender. A packet within the subnet may have no GRH; its queue
/// pair is known in any case.
fn fits(sender: Sender, hardware: HardwareAddress) -> bool {
    let is_of_a_port = !hardware.gid.is_none() && !hardware.gid.is_multicast();
    let is_senders = sender.gid.is_none_or(|gid| gid == hardware.gid);
    is_of_a_port && is_senders && sender.qpn == hardware.qpn
}

/// Returns `true` for an address that one node can have, and for that of probes.
const fn is_of_a_node(ip: Ipv4Addr) -> bool {
    !ip.is_multicast() && !ip.is_broadcast() && !ip.is_loopback()
}

#[cfg(test)]
mod tests;
