//! Operations of two nodes of IP over InfiniBand, and packets of a third party in their broadcast group.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ib_ipoib::{Arp, ArpEvent, Sender};
use ib_vtime::{Duration, Instant};
use ib_wire::ipoib::{ARP_REPLY, ARP_REQUEST, ArpPacket, HardwareAddress};
use ib_wire::{Gid, Qpn};
use zerocopy::IntoBytes;

use super::hostile::{Input, pass_time};

/// Neighbours that a node keeps at most.
const MAX_NEIGHBOURS: usize = 1024;

/// Time in which each look-up ends: three requests, and the probes before them.
const ANSWERED: Duration = Duration::from_secs(60);

fn ip(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, number)
}

const fn hardware(number: u8) -> HardwareAddress {
    HardwareAddress {
        flags: 0,
        qpn: Qpn::from_low_bits(0x100 + number as u32),
        gid: Gid([number; 16]),
    }
}

const fn sender(of: HardwareAddress) -> Sender {
    Sender {
        gid: Some(of.gid),
        qpn: of.qpn,
    }
}

struct Party {
    arp: Arp,
    hardware: HardwareAddress,
    /// Addresses that it looks up.
    asked: BTreeSet<Ipv4Addr>,
    /// The latest outcome.
    found: Option<(Ipv4Addr, Option<Gid>)>,
}

impl Party {
    fn new(number: u8) -> Self {
        Self {
            arp: Arp::new(ip(number)),
            hardware: hardware(number),
            asked: BTreeSet::new(),
            found: None,
        }
    }

    fn look_up(&mut self, now: Instant, wanted: Ipv4Addr) {
        self.asked.insert(wanted);
        self.arp.resolve(now, wanted);
    }

    /// Takes events: each ends one look-up.
    fn take_events(&mut self) {
        while let Some(event) = self.arp.poll_event() {
            let (ip, gid) = match event {
                ArpEvent::Resolved { ip, gid } => (ip, Some(gid)),
                ArpEvent::Unresolved { ip } => (ip, None),
                ArpEvent::Conflict { ip, .. } => {
                    assert_eq!(ip, self.arp.ip());
                    continue;
                }
            };
            assert!(self.asked.remove(&ip), "{ip} was not looked up");
            self.found = Some((ip, gid));
        }
        assert!(self.arp.neighbours() <= MAX_NEIGHBOURS);
    }
}

struct Scene {
    now: Instant,
    parties: [Party; 2],
}

impl Scene {
    /// Delivers a packet to a party, and returns the party's reply.
    fn give(&mut self, to: usize, from: Sender, bytes: &[u8]) -> Option<ArpPacket> {
        let arp = &mut self.parties[to].arp;
        let reply = arp.handle_packet(self.now, from, bytes);
        assert!(reply.is_none() || arp.holds_address());
        reply
    }

    /// Carries packets from each party to the other until there are none.
    fn carry(&mut self) {
        while let Some(from) = [0, 1]
            .into_iter()
            .find(|at| self.parties[*at].arp.has_transmit())
        {
            let Some(packet) = self.parties[from].arp.poll_transmit() else {
                continue;
            };
            let [own, other] = [from, 1 - from].map(|at| sender(self.parties[at].hardware));
            if let Some(reply) = self.give(1 - from, own, packet.as_bytes()) {
                let again = self.give(from, other, reply.as_bytes());
                assert_eq!(again, None, "a reply has no reply");
            }
        }
        self.parties.iter_mut().for_each(Party::take_events);
    }

    fn pass(&mut self, time: Duration) {
        let (mut now, end) = (self.now, self.now + time);
        pass_time(&mut now, end, |at| {
            self.now = at;
            for party in &mut self.parties {
                if party.arp.poll_timeout().is_some_and(|due| due <= at) {
                    party.arp.handle_timeout(at);
                }
            }
            self.carry();
            let due = self.parties.iter().map(|party| party.arp.poll_timeout());
            due.flatten().min()
        });
        self.now = now;
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let at = input.index(2);
        match input.byte() % 8 {
            0 => {
                let party = &mut self.parties[at];
                party.arp.start(self.now, party.hardware);
            }
            1 => self.parties[at].arp.stop(),
            2 | 3 => {
                let wanted = ip(input.byte() % 8);
                self.parties[at].look_up(self.now, wanted);
            }
            4 => self.pass(input.time()),
            5 if !input.is_honest() => {
                let mut bytes = [0; 64];
                input.fill(&mut bytes);
                let from = sender(hardware(input.byte()));
                self.give(at, from, &bytes);
            }
            _ if !input.is_honest() => {
                let mut packet = ArpPacket::for_ipv4();
                let reply = input.flag();
                packet.arp.operation = if reply { ARP_REPLY } else { ARP_REQUEST }.into();
                let from = hardware(input.byte() % 8);
                packet.arp.sender = from;
                packet.arp.sender_ip = ip(input.byte() % 8).octets();
                packet.arp.target_ip = ip(input.byte() % 8).octets();
                input.damage(packet.as_mut_bytes());
                self.give(at, sender(from), packet.as_bytes());
            }
            _ => {}
        }
        self.carry();
    }

    /// Ends all look-ups. Without a third party, each node is found by the other one then.
    fn settle(&mut self, is_honest: bool) {
        self.pass(ANSWERED);
        for party in &self.parties {
            assert!(party.asked.is_empty(), "{:?} have no answer", party.asked);
        }
        if !is_honest {
            return;
        }
        for party in &mut self.parties {
            party.arp.start(self.now, party.hardware);
        }
        self.pass(ANSWERED);
        for at in [0, 1] {
            let other = &self.parties[1 - at];
            let (wanted, gid) = (other.arp.ip(), other.hardware.gid);
            assert!(other.arp.holds_address());
            self.parties[at].look_up(self.now, wanted);
            self.pass(ANSWERED);
            assert_eq!(self.parties[at].found, Some((wanted, Some(gid))));
        }
    }
}

/// Two nodes with an address each, and any packets in their group.
pub(super) fn arp(data: &[u8]) {
    for mut input in [Input::honest(data), Input::new(data)] {
        let mut scene = Scene {
            now: Instant::ZERO,
            parties: [Party::new(1), Party::new(2)],
        };
        while input.has_operation() {
            scene.step(&mut input);
        }
        scene.settle(input.is_honest());
    }
}
