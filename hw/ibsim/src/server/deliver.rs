//! MADs for clients.

use ib_endpoint::{MadAddress, Message, RAW_TID};
use ib_wire::mad::{MAD_SIZE, Mad, MgmtClass};
use ib_wire::rmpp::{RmppFlags, RmppHeader, RmppMad};
use ib_wire::smp::DirectedRouteSmp;
use ib_wire::{Lid, Qpn};
use zerocopy::IntoBytes;

use super::Server;
use super::client::Given;
use super::request::{CLIENT_TID, RMPP_PAYLOAD, with_slot};
use crate::Ports;
use crate::codec::MadDatagram;

impl<P: Copy + Ord + core::fmt::Debug> Server<P> {
    /// Gives a MAD that came to a port to the client that it is for.
    pub(super) fn deliver(
        &mut self,
        ports: &mut impl Ports<Port = P>,
        port: P,
        qpn: Qpn,
        from: &MadAddress,
        message: &Message,
    ) {
        let header = message.header();
        if header.method.is_answer() && header.tid.get() & RAW_TID != 0 {
            self.deliver_answer(ports, port, qpn, from, message);
        } else {
            self.deliver_request(ports, port, qpn, from, message.mad());
        }
    }

    fn deliver_answer(
        &mut self,
        ports: &impl Ports<Port = P>,
        port: P,
        qpn: Qpn,
        from: &MadAddress,
        message: &Message,
    ) {
        let header = message.header();
        let tid = header.tid.get();
        let slot = u32::try_from((tid & !RAW_TID) >> 48).unwrap_or(u32::MAX);
        let own = tid & CLIENT_TID;
        let answered = self
            .clients
            .get_mut(&slot)
            .filter(|client| client.port == port)
            .and_then(|client| {
                let waits = client.outstanding.get(&own)?;
                (waits.class == header.mgmt_class).then(|| client.outstanding.remove(&own))?
            });
        let Some(answered) = answered else {
            self.counters.stray_answers += 1;
            return;
        };
        self.timers.cancel(answered.timer);
        let (mut mad, length) = whole(message);
        mad.header.tid = with_slot(header.tid, slot);
        let mut datagram = to_client(ports.lid(port), qpn, from, mad);
        datagram.length = length.into();
        if self.queue(slot, datagram) {
            self.counters.answers += 1;
        }
    }

    fn deliver_request(
        &mut self,
        ports: &mut impl Ports<Port = P>,
        port: P,
        qpn: Qpn,
        from: &MadAddress,
        mad: &Mad,
    ) {
        let class = mad.header.mgmt_class;
        let on_port = self
            .clients
            .iter()
            .filter(|(_, client)| client.port == port);
        let suited = on_port.filter_map(|(slot, client)| Some((client.suits(class)?, *slot)));
        // The first of those that suit best.
        let best = suited.max_by_key(|(suits, slot)| (*suits, core::cmp::Reverse(*slot)));
        let best = best.filter(|_| !mad.header.method.is_answer());
        if let Some((_, slot)) = best {
            self.give(ports.lid(port), slot, qpn, from, mad);
        } else if !self.hold(port, from, mad) {
            self.counters.declined += 1;
            ports.decline(port, qpn, from, mad);
        }
    }

    /// Keeps an SMP for a client that has announced a manager but has sent no SMP yet: a manager that
    /// starts. Whether there is one.
    fn hold(&mut self, port: P, from: &MadAddress, mad: &Mad) -> bool {
        /// More are declined.
        const MOST: usize = 16;

        let mut clients = self.clients.values_mut();
        let starting = clients.find(|client| client.port == port && client.is_sm);
        let is_smp_request = mad.header.mgmt_class.is_smp() && !mad.header.method.is_answer();
        match starting.filter(|client| is_smp_request && client.held.len() < MOST) {
            Some(client) => {
                client.held.push_back((*from, *mad));
                true
            }
            None => false,
        }
    }

    /// Gives a client the SMPs that were held for it, if a manager runs there.
    pub(super) fn release_held(&mut self, ports: &impl Ports<Port = P>, slot: u32) {
        let client = self.clients.get_mut(&slot);
        let Some(client) = client.filter(|client| client.is_manager()) else {
            return;
        };
        let lid = ports.lid(client.port);
        for (from, mad) in core::mem::take(&mut client.held) {
            self.give(lid, slot, Qpn::SMI, &from, &mad);
        }
    }

    fn give(&mut self, own: Lid, slot: u32, qpn: Qpn, from: &MadAddress, mad: &Mad) {
        if !self.queue(slot, to_client(own, qpn, from, *mad)) {
            return;
        }
        self.counters.requests += 1;
        let max = self.config.max_given;
        if let Some(client) = self.clients.get_mut(&slot) {
            let given = Given {
                tid: mad.header.tid.get(),
                class: mad.header.mgmt_class,
                from: *from,
            };
            client.note_given(given, max);
        }
    }
}

/// The datagram of a MAD that came to a port.
fn to_client(own: Lid, qpn: Qpn, from: &MadAddress, mut mad: Mad) -> MadDatagram {
    if mad.header.mgmt_class == MgmtClass::SUBN_DIRECTED_ROUTE {
        mad.view_mut::<DirectedRouteSmp>().set_hop_pointer(0);
    }
    let dlid = match from.lid {
        Lid::PERMISSIVE => Lid::PERMISSIVE,
        _ => own,
    };
    MadDatagram::new(from.lid, dlid, from.qpn.get(), qpn.get(), &mad)
}

/// A message as one MAD, and how many bytes of it mean something. Of a table no more than one MAD's
/// worth is left, as a stock client cuts off its own.
fn whole(message: &Message) -> (Mad, u64) {
    let mut mad = *message.mad();
    if ib_endpoint::segment_layout(mad.header.mgmt_class).is_none() {
        return (mad, MAD_SIZE as u64);
    }
    if message.is_rmpp() {
        let room = Message::single(mad).data().len();
        let fits = message.data().len().min(room);
        let (filled, rest) = mad.as_mut_bytes()[MAD_SIZE - room..].split_at_mut(fits);
        filled.copy_from_slice(&message.data()[..fits]);
        rest.fill(0);
        let rmpp = &mut mad.view_mut::<RmppMad>().rmpp;
        *rmpp = RmppHeader::default();
        rmpp.set_flags(RmppFlags::ACTIVE);
        return (mad, (MAD_SIZE - room + fits) as u64);
    }
    let rmpp = &mut mad.view_mut::<RmppMad>().rmpp;
    if rmpp.is_unsegmented() && rmpp.data2.get() != 0 {
        let length = RMPP_PAYLOAD + u64::from(rmpp.data2.get());
        rmpp.data2 = 0.into();
        return (mad, length.min(MAD_SIZE as u64));
    }
    (mad, MAD_SIZE as u64)
}
