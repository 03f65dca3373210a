//! MADs that clients send.

use ib_endpoint::{MadAddress, RAW_TID};
use ib_vtime::Instant;
use ib_wire::mad::{BASE_VERSION, MAD_SIZE, Mad, Method, MgmtClass};
use ib_wire::rmpp::RmppMad;
use ib_wire::smp::DirectedRouteSmp;
use ib_wire::{Lid, Qpn, Tid};

use super::Server;
use super::client::Outstanding;
use crate::codec::MadDatagram;
use crate::{Asker, Ports, Smi};

/// The part of a transaction id that is the client's own.
pub(super) const CLIENT_TID: u64 = (1 << 48) - 1;

/// Where the RMPP payload starts, from which a header counts its length.
pub(super) const RMPP_PAYLOAD: u64 = 36;

/// A MAD makes no sense, or reaches nobody.
struct Undeliverable;

impl<P: Copy + Ord + core::fmt::Debug> Server<P> {
    /// Takes a datagram that came to the data socket of a slot.
    pub fn handle_mad(
        &mut self,
        now: Instant,
        ports: &mut impl Ports<Port = P>,
        slot: u32,
        datagram: &[u8],
    ) {
        let Some(datagram) = MadDatagram::parse(datagram) else {
            self.counters.bad_mads += 1;
            return;
        };
        if !self.clients.contains_key(&slot) || datagram.status.get() != 0 {
            self.counters.bad_mads += 1;
            return;
        }
        let method = datagram.mad().header.method;
        match self.send(now, ports, slot, &datagram) {
            Ok(()) => self.counters.sent += 1,
            Err(_) if is_request(method) && method != Method::TRAP_REPRESS => {
                self.counters.bounced += 1;
                self.send_back(slot, datagram);
            }
            Err(Undeliverable) => self.counters.bad_mads += 1,
        }
    }

    fn send(
        &mut self,
        now: Instant,
        ports: &mut impl Ports<Port = P>,
        slot: u32,
        datagram: &MadDatagram,
    ) -> Result<(), Undeliverable> {
        let mut mad = datagram.mad();
        let header = mad.header;
        let dlid = datagram.dlid.lid;
        // As the stock server has it; nothing of higher versions is known to any agent.
        if header.base_version != BASE_VERSION || header.class_version > 2 {
            return Err(Undeliverable);
        }
        if header.mgmt_class == MgmtClass::SUBN_DIRECTED_ROUTE {
            check_route(mad.view())?;
        }
        let Some(client) = self.clients.get_mut(&slot) else {
            return Err(Undeliverable);
        };
        let port = client.port;
        client.spoken.insert(header.mgmt_class);
        if header.mgmt_class.is_smp() {
            self.release_held(ports, slot);
        }
        if !is_request(header.method) {
            return self.send_answer(ports, slot, datagram, mad);
        }
        if header.mgmt_class.is_smp() && self.ports.get(&port) != Some(&Smi::Open) {
            return self.ask_own_agent(ports, slot, datagram, &mad);
        }
        if !ports.reaches(port, dlid, &mad) {
            return Err(Undeliverable);
        }
        let to = address(&mad, dlid, datagram.dqp.get())?;
        if header.method == Method::TRAP_REPRESS {
            // Its transaction id is the trap's.
            return sent(ports.send(port, &to, &mad));
        }
        let own = header.tid.get() & CLIENT_TID;
        mad.header.tid = Tid::new(RAW_TID | u64::from(slot) << 48 | own);
        if !expects_answer(header.method) {
            return sent(ports.send(port, &to, &mad));
        }
        self.admit(slot, own)?;
        sent(ports.send(port, &to, &mad))?;
        self.note_outstanding(now, slot, own, datagram);
        Ok(())
    }

    /// Makes room for a request, in place of one with the same transaction id.
    fn admit(&mut self, slot: u32, own: u64) -> Result<(), Undeliverable> {
        let max = self.config.max_outstanding;
        let client = self.clients.get_mut(&slot).ok_or(Undeliverable)?;
        if let Some(before) = client.outstanding.remove(&own) {
            self.timers.cancel(before.timer);
        }
        if client.outstanding.len() >= max {
            return Err(Undeliverable);
        }
        Ok(())
    }

    fn note_outstanding(&mut self, now: Instant, slot: u32, own: u64, datagram: &MadDatagram) {
        let class = datagram.mad().header.mgmt_class;
        let timeout = if class.is_smp() {
            self.config.smp_timeout
        } else {
            self.config.gmp_timeout
        };
        let timer = self.timers.set(now + timeout, (slot, own));
        if let Some(client) = self.clients.get_mut(&slot) {
            let outstanding = Outstanding {
                datagram: *datagram,
                class,
                timer,
            };
            client.outstanding.insert(own, outstanding);
        }
    }

    /// Has the port's own agent answer an SMP, on a port whose QP0 belongs to somebody else.
    fn ask_own_agent(
        &mut self,
        ports: &mut impl Ports<Port = P>,
        slot: u32,
        datagram: &MadDatagram,
        mad: &Mad,
    ) -> Result<(), Undeliverable> {
        let port = self.clients[&slot].port;
        let dlid = datagram.dlid.lid;
        let is_own = match mad.header.mgmt_class {
            MgmtClass::SUBN_DIRECTED_ROUTE => mad.view::<DirectedRouteSmp>().hop_count() == 0,
            _ => dlid == ports.lid(port),
        };
        if !is_own {
            return Err(Undeliverable);
        }
        let answer = ports.ask_own_agent(port, Asker::Program, mad);
        let mut answer = answer.ok_or(Undeliverable)?;
        answer.header.tid = with_slot(mad.header.tid, slot);
        let (sqp, dqp) = (datagram.dqp.get(), datagram.sqp.get());
        self.queue(slot, MadDatagram::new(dlid, dlid, sqp, dqp, &answer));
        Ok(())
    }

    /// Sends a client's answer back to who asked it.
    fn send_answer(
        &mut self,
        ports: &mut impl Ports<Port = P>,
        slot: u32,
        datagram: &MadDatagram,
        mut mad: Mad,
    ) -> Result<(), Undeliverable> {
        let client = self.clients.get_mut(&slot).ok_or(Undeliverable)?;
        let port = client.port;
        let header = mad.header;
        let asked = client.take_given(header.tid.get(), header.mgmt_class);
        let to = match asked {
            Some(from) => from,
            None => address(&mad, datagram.dlid.lid, datagram.dqp.get())?,
        };
        if header.mgmt_class == MgmtClass::SUBN_DIRECTED_ROUTE {
            let smp: &mut DirectedRouteSmp = mad.view_mut();
            smp.set_hop_pointer(smp.hop_count() + 1);
        }
        note_length(&mut mad, datagram.length.get());
        sent(ports.send(port, &to, &mad))
    }

    /// Sends a request back to its client as it came, since nobody answers it. A client may say that it
    /// sent more than a datagram holds, and would take that for what it receives.
    pub(super) fn send_back(&mut self, slot: u32, mut datagram: MadDatagram) {
        datagram.status = MadDatagram::TIMED_OUT.into();
        datagram.length = datagram.length.get().min(MAD_SIZE as u64).into();
        self.queue(slot, datagram);
    }

    pub(super) fn send_back_overdue(&mut self, slot: u32, own: u64) {
        let client = self.clients.get_mut(&slot);
        if let Some(overdue) = client.and_then(|client| client.outstanding.remove(&own)) {
            self.counters.overdue += 1;
            self.send_back(slot, overdue.datagram);
        }
    }
}

/// A client's transaction id as a simulator gives it back.
pub(super) fn with_slot(tid: Tid, slot: u32) -> Tid {
    Tid::new(u64::from(slot) << 48 | tid.get() & CLIENT_TID)
}

const fn sent(taken: bool) -> Result<(), Undeliverable> {
    if taken { Ok(()) } else { Err(Undeliverable) }
}

/// Whether a MAD asks or tells, and so finds its taker by class and method.
const fn is_request(method: Method) -> bool {
    !method.is_response()
}

/// Whether something comes back if all goes well: of a Trap, its TrapRepress, for which OpenSM waits.
fn expects_answer(method: Method) -> bool {
    !method.is_answer() && method != Method::SEND
}

/// What a directed route must be like in a datagram: no hop made, and the direction that the method
/// says.
fn check_route(smp: &DirectedRouteSmp) -> Result<(), Undeliverable> {
    let direction = smp.header.method.is_response();
    if smp.hop_pointer() != 0 || smp.path().is_none() || smp.is_returning() != direction {
        return Err(Undeliverable);
    }
    Ok(())
}

/// The address of a client's MAD: the datagram says no more than LID and QP.
fn address(mad: &Mad, dlid: Lid, dqp: u32) -> Result<MadAddress, Undeliverable> {
    if mad.header.mgmt_class.is_smp() {
        return Ok(MadAddress::smi(dlid));
    }
    let qpn = Qpn::new(dqp).filter(|qpn| *qpn != Qpn::SMI);
    Ok(MadAddress {
        qpn: qpn.ok_or(Undeliverable)?,
        ..MadAddress::gsi(dlid)
    })
}

/// Keeps the length of a table that comes in one MAD: its RMPP header has a field for that, which
/// stock clients leave 0.
fn note_length(mad: &mut Mad, length: u64) {
    if ib_endpoint::segment_layout(mad.header.mgmt_class).is_none() {
        return;
    }
    let rmpp = &mut mad.view_mut::<RmppMad>().rmpp;
    if rmpp.is_unsegmented()
        && rmpp.data2.get() == 0
        && let Ok(length) = u32::try_from(length.saturating_sub(RMPP_PAYLOAD).min(220))
    {
        rmpp.data2 = length.into();
    }
}
