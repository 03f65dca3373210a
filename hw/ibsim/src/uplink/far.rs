//! The simulated port, as its node's agent shows it: read again and again, since the protocol tells a
//! client of nothing that the subnet manager does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ib_vtime::Instant;
use ib_wire::mad::{AttributeModifier, Mad, MadHeader, Method, MgmtClass};
use ib_wire::smp::{
    DirectedRouteSmp, GuidInfo, LidRoutedSmp, NodeInfo, PKeyTable, PKeyTableModifier, PortInfo,
    PortState, SmInfo, SmpAttribute,
};
use ib_wire::{Lid, PKey};

use super::config::{FAST_POLL, QUERY_TIMEOUT, QUERY_TRIES, SLOW_POLL};
use super::tid;

/// P_Key blocks that are read at most: a table of 1,024 keys.
const MAX_PKEY_BLOCKS: u16 = 32;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Node,
    Port,
    PKeys(u16),
    Guids(u8),
    Sm(Lid),
}

/// A question on its way.
#[derive(Clone, Copy, Debug)]
struct Query {
    ask: Ask,
    serial: u32,
    deadline: Instant,
    tries: u32,
}

/// What an answer, or its absence, means for the uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Something may be different.
    Read,
    /// As [`News::Read`], and the subnet manager has forgotten what clients registered with it.
    SmChanged,
}

/// The simulated port, and the reading of it.
#[derive(Debug)]
pub(super) struct FarPort {
    node: Option<NodeInfo>,
    info: Option<PortInfo>,
    pkeys: Vec<PKeyTable>,
    /// Whether the whole P_Key table was read, or what the node shows of it.
    keys_read: bool,
    guids: BTreeMap<u8, GuidInfo>,
    /// Blocks of the GUID table that somebody has entries in.
    watched_guids: BTreeSet<u8>,
    sm: Option<SmInfo>,
    sm_silent: bool,
    query: Option<Query>,
    round: VecDeque<Ask>,
    next_round: Instant,
    next_serial: u32,
    /// Whether something is expected to change soon.
    hurried: bool,
}

impl FarPort {
    /// A port of which nothing is known, to be read from `now` on.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            node: None,
            info: None,
            pkeys: Vec::new(),
            keys_read: false,
            guids: BTreeMap::new(),
            watched_guids: BTreeSet::new(),
            sm: None,
            sm_silent: false,
            query: None,
            round: VecDeque::new(),
            next_round: now,
            next_serial: 0,
            hurried: false,
        }
    }

    /// Forgets all that a restarted simulator may have otherwise; what the subnet manager was known
    /// by stays, so that another one is noticed.
    pub(super) fn forget(&mut self, now: Instant) {
        let serial = self.next_serial;
        let sm = self.sm;
        *self = Self::new(now);
        self.next_serial = serial;
        self.sm = sm;
        self.sm_silent = sm.is_some();
    }

    pub(super) const fn node(&self) -> Option<&NodeInfo> {
        self.node.as_ref()
    }

    pub(super) const fn info(&self) -> Option<&PortInfo> {
        self.info.as_ref()
    }

    pub(super) fn pkeys(&self) -> &[PKeyTable] {
        &self.pkeys
    }

    /// The blocks of the GUID table that were read.
    pub(super) const fn guid_blocks(&self) -> &BTreeMap<u8, GuidInfo> {
        &self.guids
    }

    /// The logical state; down while nothing is known.
    pub(super) fn state(&self) -> PortState {
        self.info
            .as_ref()
            .map_or(PortState::DOWN, PortInfo::port_state)
    }

    /// Whether all is known that the adapter needs to come up.
    pub(super) const fn is_known(&self) -> bool {
        self.node.is_some() && self.info.is_some() && self.keys_read
    }

    /// Whether the subnet manager did not answer when it was asked last.
    pub(super) const fn sm_is_silent(&self) -> bool {
        self.sm_silent
    }

    /// Whether the subnet manager answered when it was asked last.
    pub(super) fn sm_answers(&self) -> bool {
        self.sm.is_some() && !self.sm_silent
    }

    /// The P_Key of packets for the adapter, which the protocol does not tell: the default
    /// partition's, or else the port's first.
    pub(super) fn ingress_pkey(&self) -> PKey {
        let keys = || self.pkeys.iter().flat_map(|block| block.pkeys);
        let default = keys().find(|key| key.base() == PKey::DEFAULT_LIMITED.get());
        match default {
            Some(_) => PKey::DEFAULT_FULL,
            None => keys()
                .find(|key| key.is_valid())
                .unwrap_or(PKey::DEFAULT_FULL),
        }
    }

    /// Has a block of the GUID table read from now on, soon.
    pub(super) fn watch_guids(&mut self, now: Instant, block: u8) {
        self.watched_guids.insert(block);
        self.next_round = self.next_round.min(now + FAST_POLL);
    }

    /// Has the port read in short intervals, or no longer so.
    pub(super) const fn hurry(&mut self, hurried: bool) {
        self.hurried = hurried;
    }

    /// When [`FarPort::poll`] wants to be called.
    pub(super) fn poll_timeout(&self) -> Instant {
        self.query.map_or(self.next_round, |query| query.deadline)
    }

    /// What to ask now. `Err` when the simulator has answered nothing for too long.
    pub(super) fn poll(&mut self, now: Instant) -> Result<(Option<Mad>, Option<News>), ()> {
        let mut news = None;
        if let Some(query) = self.query.take_if(|query| query.deadline <= now) {
            if matches!(query.ask, Ask::Sm(_)) {
                self.sm_silent = true;
                news = Some(News::Read);
            } else if query.tries == QUERY_TRIES {
                return Err(());
            } else {
                return Ok((Some(self.send(now, query.ask, query.tries + 1)), None));
            }
        }
        if self.query.is_some() {
            return Ok((None, news));
        }
        if self.round.is_empty() && self.next_round <= now {
            self.plan_round();
        }
        let ask = self.round.pop_front();
        Ok((ask.map(|ask| self.send(now, ask, 1)), news))
    }

    fn plan_round(&mut self) {
        if self.node.is_none() {
            self.round.push_back(Ask::Node);
        }
        self.round.push_back(Ask::Port);
        self.round.extend((0..self.key_blocks()).map(Ask::PKeys));
        let guids = self.watched_guids.iter().copied();
        self.round.extend(guids.map(Ask::Guids));
        if let Some(info) = &self.info
            && info.port_state() == PortState::ACTIVE
            && info.master_sm_lid.is_unicast()
        {
            self.round.push_back(Ask::Sm(info.master_sm_lid));
        }
    }

    /// Blocks of the P_Key table; none before the node is known.
    fn key_blocks(&self) -> u16 {
        let keys = self.node.map_or(0, |node| node.partition_cap.get());
        keys.div_ceil(32).min(MAX_PKEY_BLOCKS)
    }

    fn send(&mut self, now: Instant, ask: Ask, tries: u32) -> Mad {
        self.next_serial = self.next_serial.wrapping_add(1);
        self.query = Some(Query {
            ask,
            serial: self.next_serial,
            deadline: now + QUERY_TIMEOUT,
            tries,
        });
        match ask {
            Ask::Node => local::<NodeInfo>(self.next_serial, AttributeModifier::default()),
            // Port 0 of the modifier is the port that the SMP comes in by.
            Ask::Port => local::<PortInfo>(self.next_serial, AttributeModifier::default()),
            Ask::PKeys(block) => {
                let modifier = PKeyTableModifier { port: 0, block };
                local::<PKeyTable>(self.next_serial, modifier.encode())
            }
            Ask::Guids(block) => {
                local::<GuidInfo>(self.next_serial, AttributeModifier::new(block.into()))
            }
            Ask::Sm(_) => {
                let header = MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::GET, SmInfo::ID);
                let mut mad = Mad::new(header);
                mad.header.tid = tid::of_query(self.next_serial);
                mad
            }
        }
    }

    /// Where the question on its way goes to, if not to the node itself.
    pub(super) fn destination(&self) -> Option<Lid> {
        match self.query?.ask {
            Ask::Sm(lid) => Some(lid),
            _ => None,
        }
    }

    /// Takes what came back with one of the uplink's own transaction ids: an answer, or the question
    /// itself, undeliverable. `None` if nobody waits for it.
    pub(super) fn take(&mut self, now: Instant, mad: &Mad, bounced: bool) -> Option<News> {
        let serial = tid::query_serial(mad.header.tid)?;
        let query = self.query.take_if(|query| query.serial == serial)?;
        let usable = !bounced && mad.header.status.without_direction().get() == 0;
        let mut news = News::Read;
        let smp: &DirectedRouteSmp = mad.view();
        match query.ask {
            Ask::Sm(_) => {
                if usable {
                    let sm = *mad.view::<LidRoutedSmp>().attribute();
                    news = self.take_sm(&sm);
                } else {
                    self.sm_silent = true;
                }
            }
            Ask::Node if usable => self.take_node(smp.attribute()),
            Ask::Port if usable => self.info = Some(*smp.attribute()),
            Ask::PKeys(block) => {
                if usable {
                    self.take_pkeys(block, smp.attribute());
                }
                self.keys_read |= block + 1 == self.key_blocks();
            }
            Ask::Guids(block) if usable => {
                self.guids.insert(block, *smp.attribute());
            }
            // What the node's agent does not show stays as it was.
            Ask::Node | Ask::Port | Ask::Guids(_) => {}
        }
        if self.round.is_empty() {
            let steady = self.state() == PortState::ACTIVE && !self.hurried;
            self.next_round = now + if steady { SLOW_POLL } else { FAST_POLL };
        }
        Some(news)
    }

    fn take_node(&mut self, node: &NodeInfo) {
        self.node = Some(*node);
        // The first round did not know how many there are.
        self.round.extend((0..self.key_blocks()).map(Ask::PKeys));
        self.keys_read = self.key_blocks() == 0;
    }

    fn take_pkeys(&mut self, block: u16, keys: &PKeyTable) {
        let at = usize::from(block);
        if self.pkeys.len() <= at {
            self.pkeys.resize(at + 1, PKeyTable::default());
        }
        self.pkeys[at] = *keys;
    }

    /// Compares the subnet manager with the one before. One that is another, that counts from the
    /// start again, or that was away, has none of its clients' registrations: OpenSM keeps them in its
    /// process. On a port of the stock ibsim it could not say so, since those do not support client
    /// reregistration. The one before may have been there for too short a time to be asked.
    fn take_sm(&mut self, sm: &SmInfo) -> News {
        let before = self.sm.replace(*sm);
        let was_silent = core::mem::take(&mut self.sm_silent);
        let is_other = before.is_some_and(|before| {
            before.guid != sm.guid || before.act_count.get() > sm.act_count.get()
        });
        if is_other || was_silent {
            News::SmChanged
        } else {
            News::Read
        }
    }
}

/// A Get that the attached node answers itself: a directed route without hops.
fn local<A: SmpAttribute>(serial: u32, modifier: AttributeModifier) -> Mad {
    let mut mad = Mad::new(MadHeader::new(
        MgmtClass::SUBN_DIRECTED_ROUTE,
        Method::GET,
        A::ID,
    ));
    mad.header.tid = tid::of_query(serial);
    mad.header.attribute_modifier = modifier;
    let routed = mad.view_mut::<DirectedRouteSmp>().set_path(&[]);
    debug_assert!(routed, "a route without hops fits");
    mad
}
