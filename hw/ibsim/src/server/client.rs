//! A client of the server.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ib_endpoint::MadAddress;
use ib_vtime::TimerKey;
use ib_wire::mad::{Mad, MgmtClass};

use crate::codec::MadDatagram;

/// A request that waits for its answer.
#[derive(Debug)]
pub(super) struct Outstanding {
    /// As it came, to be sent back.
    pub(super) datagram: MadDatagram,
    pub(super) class: MgmtClass,
    pub(super) timer: TimerKey,
}

/// A request that was given to a client.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) tid: u64,
    pub(super) class: MgmtClass,
    pub(super) from: MadAddress,
}

/// What is known of a client.
#[derive(Debug)]
pub(super) struct Client<P> {
    /// Who may speak for it on the control socket.
    pub(super) owner: Vec<u8>,
    pub(super) port: P,
    /// It said when it connected that it takes requests.
    pub(super) takes_requests: bool,
    /// It said that a subnet manager runs behind it.
    pub(super) is_sm: bool,
    /// Classes of which it has sent anything.
    pub(super) spoken: BTreeSet<MgmtClass>,
    /// By the lower 48 bits of the transaction id.
    pub(super) outstanding: BTreeMap<u64, Outstanding>,
    pub(super) given: VecDeque<Given>,
    /// SMPs that came before the client had sent any.
    pub(super) held: VecDeque<(MadAddress, Mad)>,
    pub(super) queue: VecDeque<MadDatagram>,
}

impl<P: Copy> Client<P> {
    pub(super) fn new(owner: &[u8], port: P, takes_requests: bool) -> Self {
        Self {
            owner: owner.to_vec(),
            port,
            takes_requests,
            is_sm: false,
            spoken: BTreeSet::new(),
            outstanding: BTreeMap::new(),
            given: VecDeque::new(),
            held: VecDeque::new(),
            queue: VecDeque::new(),
        }
    }

    pub(super) fn view(&self, slot: u32) -> ClientView<P> {
        ClientView {
            slot,
            port: self.port,
            takes_requests: self.takes_requests,
            is_sm: self.is_sm,
            outstanding: self.outstanding.len(),
            queued: self.queue.len(),
        }
    }

    /// Whether an agent for SMPs, and for requests to the SA, can be taken for registered: those that
    /// have none die of such MADs.
    pub(super) fn is_manager(&self) -> bool {
        self.is_sm && self.spoken.iter().any(|class| class.is_smp())
    }

    /// How well the client suits a request of a class on QP0 or QP1: the higher the better, `None`
    /// for not at all.
    pub(super) fn suits(&self, class: MgmtClass) -> Option<u8> {
        if class.is_smp() {
            return self.is_manager().then_some(0);
        }
        if class == MgmtClass::SUBN_ADM && self.is_manager() {
            return Some(2);
        }
        if !(self.takes_requests || self.is_sm) {
            return None;
        }
        if self.spoken.contains(&class) {
            return Some(1);
        }
        // Who announced a subnet manager has agents for little else, unless it asked for everything
        // and manages nothing.
        let may_lack_it = self.is_manager() || (self.is_sm && class == MgmtClass::SUBN_ADM);
        (!may_lack_it).then_some(0)
    }

    /// Notes that a request was given to the client, so that its answer finds its way back.
    pub(super) fn note_given(&mut self, given: Given, max: usize) {
        if self.given.len() >= max {
            self.given.pop_front();
        }
        self.given.push_back(given);
    }

    /// Where the answer to a request goes that was given to the client.
    pub(super) fn take_given(&mut self, tid: u64, class: MgmtClass) -> Option<MadAddress> {
        let mut given = self.given.iter();
        let at = given.position(|given| given.tid == tid && given.class == class)?;
        self.given.remove(at).map(|given| given.from)
    }
}

/// A client as an onlooker sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientView<P> {
    /// Its slot.
    pub slot: u32,
    /// The port it is attached to.
    pub port: P,
    /// Whether it takes requests.
    pub takes_requests: bool,
    /// Whether it announced a subnet manager.
    pub is_sm: bool,
    /// Its requests without an answer.
    pub outstanding: usize,
    /// Datagrams that wait for it.
    pub queued: usize,
}
