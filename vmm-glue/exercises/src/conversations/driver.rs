//! Runs plans between connection managers over a channel.

use std::collections::BTreeMap;
use std::time::Duration;

use ib_endpoint::cm::{Cm, CmConfig, CmEvent, CmEventKind, CmSizes, ConnId, Role, State};
use ib_vtime::{Instant, TimerQueue};
use ib_wire::ServiceId;
use ib_wire::cm::{ApStatus, CmLap, CmRej};

use super::alarms::Alarms;
use super::plan::{SERVED, SERVED_MASK, read_number};
use super::side::Side;
use super::{Channel, Ending, Goodbye, Kind, NodeAddress, Plan, Reply};

/// After this time a user takes the silence of its connection for the death of the peer and
/// disconnects: as one does whose QP goes to error.
const LINGER: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct Node {
    pub cm: Cm,
    listener: ConnId,
    pub address: NodeAddress,
    /// Conversation and side of each connection.
    pub owners: BTreeMap<ConnId, (usize, usize)>,
    /// How often it was reset.
    pub life: u32,
}

impl Node {
    fn new(address: NodeAddress, seed: u64) -> Self {
        let mut cm = Cm::new(CmConfig::new(address.ca_guid, seed));
        let listener = cm
            .listen(ServiceId::new(SERVED), SERVED_MASK)
            .expect("the first listener of a manager");
        Self {
            cm,
            listener,
            address,
            owners: BTreeMap::new(),
            life: 0,
        }
    }
}

#[derive(Debug)]
pub(super) struct Conversation {
    pub plan: Plan,
    pub sides: [Side; 2],
}

/// Something that a user does at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Action {
    pub conversation: usize,
    pub side: usize,
    pub what: What,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Start,
    Mra,
    AnswerReq,
    AnswerRep,
    /// In the life of the node in which it was asked.
    AnswerSidr(ConnId, u32),
    Lap(usize),
    AnswerLap(u8),
    EarlyPacket,
    Impatience,
    Goodbye,
    Linger,
    AnswerDreq,
}

/// What came of all conversations.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// What went wrong, in words. Empty if all is well.
    pub violations: Vec<String>,
    /// Messages among them that came to somebody whom they were not for.
    pub wrong_deliveries: u64,
    /// How many conversations of which kind ended how, on the starting and on the other side.
    pub endings: BTreeMap<(Kind, Ending, Ending), usize>,
    /// MADs that were sent.
    pub mads: u64,
    /// LAPs whose outcome both sides know.
    pub migrations: u64,
    /// LAPs that were never answered.
    pub unanswered_laps: u64,
    /// The time that everything took on the conversations' clock.
    pub elapsed: Duration,
}

/// Runs conversations.
#[derive(Debug)]
pub struct Driver<C> {
    pub(super) nodes: Vec<Node>,
    channel: C,
    pub(super) now: Instant,
    pub(super) conversations: Vec<Conversation>,
    actions: TimerQueue<Action>,
    /// When each node's manager has something to do.
    alarms: Alarms,
    seed: u64,
    totals: Totals,
}

impl<C: Channel> Driver<C> {
    /// Connection managers at the given places, which all listen to the served services.
    ///
    /// # Panics
    ///
    /// If a new connection manager refuses a listener.
    #[must_use]
    pub fn new(seed: u64, nodes: &[NodeAddress], channel: C) -> Self {
        let nodes: Vec<Node> = (0..)
            .zip(nodes)
            .map(|(i, &address)| Node::new(address, seed.wrapping_add(i)))
            .collect();
        Self {
            alarms: Alarms::new(nodes.len()),
            seed,
            nodes,
            channel,
            now: Instant::ZERO,
            conversations: Vec::new(),
            actions: TimerQueue::new(),
            totals: Totals::default(),
        }
    }

    /// What carries the messages.
    pub const fn channel(&mut self) -> &mut C {
        &mut self.channel
    }

    /// The time, as the conversations count it.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// A node loses all that it knew and begins anew: its guest was reset. What its peers make of that
    /// is right whatever it is.
    pub fn reset(&mut self, node: usize) {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let fresh = Node::new(self.nodes[node].address, self.seed);
        let before = std::mem::replace(&mut self.nodes[node], fresh);
        self.nodes[node].life = before.life + 1;
        self.alarms.set(node, None);
        for (number, side) in before.owners.into_values() {
            let log = self.side(number, side);
            log.conn = None;
            log.asked = None;
            log.ending = None;
            log.was_reset = true;
        }
    }

    /// What carries the messages, to be looked at when all is over.
    #[must_use]
    pub fn into_channel(self) -> C {
        self.channel
    }

    /// Adds a conversation; it starts at the plan's time after now.
    pub fn add(&mut self, plan: Plan) {
        let conversation = self.conversations.len();
        let starters = if plan.kind == Kind::PeerToPeer { 2 } else { 1 };
        for side in 0..starters {
            let start = plan.start[side];
            self.schedule(conversation, side, start, What::Start);
            if let Some(patience) = plan.patience {
                self.schedule(conversation, side, start + patience, What::Impatience);
            }
        }
        self.conversations.push(Conversation {
            plan,
            sides: [Side::default(), Side::default()],
        });
    }

    /// Runs until nothing is left to happen, in at most `steps` steps.
    pub fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            let Some(next) = self.next_time() else {
                return;
            };
            self.now = self.now.max(next);
            self.step();
        }
        self.totals
            .violations
            .push(format!("not at rest after {steps} steps"));
    }

    /// Runs until a time, or until nothing is left to happen before it.
    pub fn run_until(&mut self, end: Instant) {
        while let Some(next) = self.next_time().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.step();
        }
        self.now = self.now.max(end);
    }

    fn next_time(&self) -> Option<Instant> {
        [
            self.alarms.next(),
            self.actions.next_deadline(),
            self.channel.next_time(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn step(&mut self) {
        while let Some(arrival) = self.channel.receive(self.now) {
            self.nodes[arrival.node]
                .cm
                .handle_mad(self.now, &arrival.from, &arrival.mad);
            self.pump(arrival.node);
        }
        while let Some(node) = self.alarms.pop_due(self.now) {
            self.nodes[node].cm.handle_timeout(self.now);
            self.pump(node);
        }
        while let Some((_, action)) = self.actions.pop_due(self.now) {
            self.act(action);
            let node = self.node_of(action.conversation, action.side);
            self.pump(node);
        }
    }

    /// Moves what a manager has to say.
    fn pump(&mut self, node: usize) {
        while let Some(transmit) = self.nodes[node].cm.poll_transmit() {
            self.totals.mads += 1;
            self.channel.send(self.now, node, &transmit);
        }
        while let Some(event) = self.nodes[node].cm.poll_event() {
            self.hear(node, event);
        }
        let next = self.nodes[node].cm.poll_timeout();
        self.alarms.set(node, next);
    }

    /// Takes the listeners down and judges every conversation.
    #[must_use]
    pub fn finish(&mut self) -> Totals {
        for node in 0..self.nodes.len() {
            let listener = self.nodes[node].listener;
            let gone = self.nodes[node].cm.destroy(self.now, listener);
            if let Err(error) = gone {
                self.violation(format!("node {node}: listener: {error}"));
            }
            let sizes = self.nodes[node].cm.table_sizes();
            if sizes != CmSizes::default() {
                self.violation(format!("node {node} keeps {sizes:?}"));
            }
            if !self.nodes[node].owners.is_empty() {
                let owners = format!("{:?}", self.nodes[node].owners);
                self.violation(format!("node {node}: never told of the end of {owners}"));
            }
        }
        for number in 0..self.conversations.len() {
            self.judge(number);
        }
        self.totals.elapsed = self.now - Instant::ZERO;
        std::mem::take(&mut self.totals)
    }

    fn judge(&mut self, number: usize) {
        let Conversation { plan, sides } = &self.conversations[number];
        let [a, b] = [0, 1].map(|side| sides[side].ending.unwrap_or(Ending::Never));
        let mut wrong = Vec::new();
        if !a.fits(b) && !sides.iter().any(|side| side.was_reset) {
            wrong.push(format!("conversation {number} ends {a:?} and {b:?}"));
        }
        let (asking, asked) = if sides[1].role == Some(Role::Active) {
            (&sides[1], &sides[0])
        } else {
            (&sides[0], &sides[1])
        };
        let laps = asking.laps.iter().filter(|_| !asked.was_reset);
        for (lap, accepted) in laps {
            match asked.laps.get(lap) {
                Some(known) if known == accepted => self.totals.migrations += 1,
                known => wrong.push(format!(
                    "conversation {number}: LAP {lap} {accepted} and {known:?}"
                )),
            }
        }
        if !wrong.is_empty() {
            wrong.push(format!("{plan:?}"));
        }
        *self.totals.endings.entry((plan.kind, a, b)).or_default() += 1;
        self.totals.violations.extend(wrong);
    }

    pub(super) fn violation(&mut self, text: String) {
        self.totals.violations.push(text);
    }

    pub(super) fn schedule(
        &mut self,
        conversation: usize,
        side: usize,
        delay: Duration,
        what: What,
    ) {
        let action = Action {
            conversation,
            side,
            what,
        };
        self.actions.set(self.now + delay, action);
    }

    /// Schedules an MRA, if the reply has one, and the answer.
    fn schedule_reply(&mut self, number: usize, side: usize, reply: Reply, what: What) {
        let mut delay = reply.delay;
        if let Some((after, _)) = reply.mra {
            self.schedule(number, side, after, What::Mra);
            delay += after;
        }
        self.schedule(number, side, delay, what);
    }

    pub(super) fn side(&mut self, number: usize, side: usize) -> &mut Side {
        &mut self.conversations[number].sides[side]
    }

    pub(super) fn node_of(&self, number: usize, side: usize) -> usize {
        self.conversations[number].plan.nodes[side]
    }

    pub(super) fn cm(&mut self, number: usize, side: usize) -> &mut Cm {
        let node = self.node_of(number, side);
        &mut self.nodes[node].cm
    }

    /// Enters a connection as that of a conversation's side.
    pub(super) fn own(&mut self, number: usize, side: usize, conn: ConnId) {
        let node = self.node_of(number, side);
        self.nodes[node].owners.insert(conn, (number, side));
        let log = self.side(number, side);
        if log.conn.replace(conn).is_some() {
            self.violation(format!(
                "conversation {number} makes a second connection on side {side}"
            ));
        }
    }

    pub(super) fn conclude(&mut self, number: usize, side: usize, ending: Ending) {
        let log = self.side(number, side);
        log.asked = None;
        let before = log.ending.replace(ending);
        if before.is_some_and(|before| before != ending) {
            self.violation(format!(
                "conversation {number} side {side} ends twice: {before:?}, {ending:?}"
            ));
        }
    }

    /// A message was never answered.
    fn time_out(&mut self, number: usize, side: usize) {
        let now = self.now;
        let asked = self.side(number, side).asked.take();
        if !asked.as_ref().is_some_and(|asked| asked.explains(now)) {
            self.violation(format!(
                "conversation {number} side {side} times out at {now}, but asked {asked:?}"
            ));
        }
    }

    pub(super) fn establish(&mut self, number: usize, side: usize) {
        let log = self.side(number, side);
        log.established = true;
        log.asked = None;
        let plan = &self.conversations[number].plan;
        let lifetime = plan.lifetime;
        let first_lap = plan.laps.first().map(|(delay, _)| *delay);
        let goodbye = plan.goodbye;
        let role = self.role(number, side);
        self.side(number, side).role = role;
        let ends = match goodbye {
            Goodbye::Active | Goodbye::Destroy => role == Some(Role::Active),
            Goodbye::Passive => role == Some(Role::Passive),
            Goodbye::Both => true,
        };
        if ends {
            self.schedule(number, side, lifetime, What::Goodbye);
        }
        self.schedule(number, side, lifetime + LINGER, What::Linger);
        if let (Some(delay), Some(Role::Active)) = (first_lap, role) {
            self.schedule(number, side, delay, What::Lap(0));
        }
    }

    pub(super) fn role(&mut self, number: usize, side: usize) -> Option<Role> {
        let conn = self.side(number, side).conn?;
        Some(self.cm(number, side).info(conn)?.role)
    }

    pub(super) fn state(&mut self, number: usize, side: usize) -> Option<State> {
        let conn = self.side(number, side).conn?;
        Some(self.cm(number, side).info(conn)?.state)
    }

    /// Reacts to an event of a manager.
    fn hear(&mut self, node: usize, event: CmEvent) {
        match &event.kind {
            CmEventKind::ReqReceived { req, .. } => {
                if let Some(number) = self.number(node, &req.private_data) {
                    self.own(number, 1, event.conn);
                    let reply = self.conversations[number].plan.to_request;
                    self.schedule_reply(number, 1, reply, What::AnswerReq);
                }
                return;
            }
            CmEventKind::SidrReqReceived { req, .. } => {
                if let Some(number) = self.number(node, &req.private_data) {
                    // A repeated SIDR_REQ after a lost SIDR_REP makes another exchange.
                    let delay = self.conversations[number].plan.to_request.delay;
                    let life = self.nodes[node].life;
                    self.schedule(number, 1, delay, What::AnswerSidr(event.conn, life));
                }
                return;
            }
            _ => {}
        }
        let Some(&(number, side)) = self.nodes[node].owners.get(&event.conn) else {
            self.totals.wrong_deliveries += 1;
            self.violation(format!("node {node}: event of a stranger: {event:?}"));
            return;
        };
        self.hear_own(number, side, &event.kind);
        if self.nodes[node].cm.info(event.conn).is_none() {
            self.nodes[node].owners.remove(&event.conn);
            if self.side(number, side).ending.is_none() {
                self.violation(format!("conversation {number} side {side} just stops"));
            }
        }
    }

    /// The conversation that a request belongs to, which must have been for this node.
    fn number(&mut self, node: usize, private_data: &[u8]) -> Option<usize> {
        let number = read_number(private_data);
        let own = number.filter(|&n| {
            let conversation = self.conversations.get(n);
            conversation.is_some_and(|conversation| conversation.plan.nodes[1] == node)
        });
        if own.is_none() {
            self.totals.wrong_deliveries += 1;
            self.violation(format!("node {node}: a request of conversation {number:?}"));
        }
        own
    }

    fn hear_own(&mut self, number: usize, side: usize, event: &CmEventKind) {
        match event {
            CmEventKind::PeerReqReceived { .. } => {
                self.side(number, side).asked = None;
                let reply = self.conversations[number].plan.to_request;
                self.schedule_reply(number, side, reply, What::AnswerReq);
            }
            CmEventKind::RepReceived(_) => {
                self.side(number, side).asked = None;
                let reply = self.conversations[number].plan.to_rep;
                self.schedule_reply(number, side, reply, What::AnswerRep);
            }
            CmEventKind::RtuReceived(_) => self.establish(number, side),
            CmEventKind::RejReceived(rej) => self.hear_rej(number, side, rej),
            CmEventKind::MraReceived(mra) => {
                if let Some(asked) = &mut self.side(number, side).asked {
                    asked.grant(mra.service_timeout());
                }
            }
            CmEventKind::DreqReceived(_) => {
                self.conclude(number, side, Ending::Closed);
                let delay = self.conversations[number].plan.drep_delay;
                self.schedule(number, side, delay, What::AnswerDreq);
            }
            CmEventKind::DrepReceived(_) => self.conclude(number, side, Ending::Closed),
            CmEventKind::LapReceived { lap, .. } => self.hear_lap(number, side, lap),
            CmEventKind::AprReceived(apr) => {
                let lap = apr.private_data[8];
                self.side(number, side).asked = None;
                // Any other status is the CM's, of a peer that has forgotten the connection.
                if matches!(apr.ap_status, ApStatus::OK | ApStatus::REJECTED) {
                    let accepted = apr.ap_status == ApStatus::OK;
                    self.side(number, side).laps.insert(lap, accepted);
                    self.next_lap(number, side, lap);
                }
            }
            CmEventKind::LapError => {
                self.totals.unanswered_laps += 1;
                self.time_out(number, side);
            }
            CmEventKind::ReqError
            | CmEventKind::RepError
            | CmEventKind::DreqError
            | CmEventKind::SidrReqError => {
                self.time_out(number, side);
                self.conclude(number, side, Ending::TimedOut);
            }
            CmEventKind::SidrRepReceived { rep, .. } => {
                self.conclude(number, side, Ending::Resolved(rep.status));
            }
            CmEventKind::TimeWaitExit => {}
            CmEventKind::ReqReceived { .. } | CmEventKind::SidrReqReceived { .. } => {
                self.violation(format!("conversation {number}: a second request event"));
            }
        }
    }

    fn hear_rej(&mut self, number: usize, side: usize, rej: &CmRej) {
        let ending = if self.side(number, side).established {
            Ending::Broken(rej.reason)
        } else {
            Ending::Refused
        };
        self.conclude(number, side, ending);
    }

    fn hear_lap(&mut self, number: usize, side: usize, lap: &CmLap) {
        let lap = lap.private_data[8];
        let plan = &self.conversations[number].plan;
        if let Some(&(_, reply)) = plan.laps.get(usize::from(lap)) {
            self.schedule_reply(number, side, reply, What::AnswerLap(lap));
        }
    }

    fn next_lap(&mut self, number: usize, side: usize, lap: u8) {
        let next = usize::from(lap) + 1;
        if let Some(&(delay, _)) = self.conversations[number].plan.laps.get(next) {
            self.schedule(number, side, delay, What::Lap(next));
        }
    }
}
