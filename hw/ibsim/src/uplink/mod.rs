//! The client half: an emulated adapter on a fabric of somebody else, at a node of an `ibsim`.
//!
//! An [`Uplink`] stands between two things. On one side is an adapter of an emulated fabric, cabled to
//! a gateway ([`ib_fabric::Fabric::add_gateway`]); on the other is the simulator, to which the uplink is a client such as
//! `libumad2sim` makes of any program. It
//!
//! * turns the MADs that the adapter sends from QP1 into datagrams, and those that the simulator
//!   delivers into packets;
//! * reads the simulated port and its subnet manager again and again by SMPs, since the simulator's own
//!   agent answers the fabric's subnet manager and tells the client nothing;
//! * plays the subnet manager towards the adapter, and makes its port what the simulated one is:
//!   addresses, subnet manager, P_Keys, GUIDs, state. A subnet manager that was restarted or replaced
//!   has the port's clients register again.
//!
//! So a PF context and its VFs run unchanged.
//!
//! # What does not pass
//!
//! The protocol carries MADs, and of their addresses LIDs and queue pair numbers only.
//!
//! * **GRH, SL, P_Key, Q_Key** of what the adapter sends are lost. What arrives has no GRH, SL 0, the
//!   default partition's P_Key (or the port's first) and the Q_Key of QP1. So a PF steers a
//!   connection request by the GID inside it.
//! * **Data**: packets to any other queue pair than QP1, and to multicast LIDs, are dropped and counted
//!   ([`Loss::UserData`], [`Loss::Multicast`]).
//! * **SMPs and traps** of the adapter end at the uplink, which has the simulated node's QP0 for itself.
//! * **RMPP**: an answer of the SA is one datagram. A table that fits into one becomes an RMPP transfer
//!   of one segment; one that may have been cut is refused (SA status "no resources") rather than
//!   passed off as whole.
//! * **GUIDs**: the SA grants alias GUIDs, but the agent of the stock `ibsim` refuses to store them; see
//!   [`GuidPolicy`].
//!
//! Sans-I/O: the caller owns the sockets and the gateway, and does what [`Uplink::poll_output`] says.

mod config;
mod far;
mod grants;
mod near;
mod output;
mod session;
mod statistics;
mod table;
mod tid;
mod translate;
mod watch;

use std::collections::{BTreeMap, VecDeque};

use ib_fabric::Frame;
use ib_vtime::Instant;
use ib_wire::mad::{Mad, Method, MgmtClass};
use ib_wire::smp::{GuidInfo, PortState};
use ib_wire::{Lid, Qpn};

use crate::codec::{Connect, Control, ControlKind, MadDatagram};

pub use config::{GuidPolicy, UplinkConfig};
pub use output::{Failure, Identity, UplinkOutput, UplinkState};
pub use statistics::{Loss, UplinkCounters};

use far::{FarPort, News};
use grants::Grants;
use near::NearPort;
use session::Session;
use translate::{Arrived, Leaving, TallTids};
use watch::Watch;

/// MADs that wait to be taken at most, each way.
const MAX_WAITING: usize = 1024;

/// An adapter's way onto the fabric of a simulator. See the [module](self).
#[derive(Debug)]
pub struct Uplink {
    config: UplinkConfig,
    session: Session,
    far: FarPort,
    near: NearPort,
    grants: Grants,
    watch: Watch,
    tall: TallTids,
    identity: Option<Identity>,
    guids_refused: bool,
    counters: UplinkCounters,
    output: VecDeque<UplinkOutput>,
    /// MADs and frames among the output.
    waiting: usize,
}

impl Uplink {
    /// An uplink that attaches at once.
    #[must_use]
    pub fn new(now: Instant, config: UplinkConfig) -> Self {
        Self {
            config,
            session: Session::new(),
            far: FarPort::new(now),
            near: NearPort::new(),
            grants: Grants::default(),
            watch: Watch::default(),
            tall: TallTids::default(),
            identity: None,
            guids_refused: false,
            counters: UplinkCounters::default(),
            output: VecDeque::from([UplinkOutput::Open]),
            waiting: 0,
        }
    }

    /// What it was made from.
    #[must_use]
    pub const fn config(&self) -> &UplinkConfig {
        &self.config
    }

    /// Where it stands.
    #[must_use]
    pub const fn state(&self) -> UplinkState {
        self.session.state()
    }

    /// The node that it attached to first.
    #[must_use]
    pub const fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// The state of the simulated port; down while it is not known.
    #[must_use]
    pub fn port_state(&self) -> PortState {
        self.far.state()
    }

    /// Whether the subnet manager answered when it was asked last.
    #[must_use]
    pub fn sm_answers(&self) -> bool {
        self.session.is_attached() && self.far.sm_answers()
    }

    /// Whether the subnet manager of an active port does not answer.
    #[must_use]
    pub fn sm_is_silent(&self) -> bool {
        self.session.is_attached()
            && self.far.state() == PortState::ACTIVE
            && self.far.sm_is_silent()
    }

    /// The counters.
    #[must_use]
    pub const fn counters(&self) -> &UplinkCounters {
        &self.counters
    }

    /// What to do next.
    pub fn poll_output(&mut self) -> Option<UplinkOutput> {
        let output = self.output.pop_front()?;
        if matches!(output, UplinkOutput::Mad(_) | UplinkOutput::Frame(_)) {
            self.waiting -= 1;
        }
        Some(output)
    }

    /// When to call [`Uplink::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let attached = self.session.is_attached().then(|| {
            let shown = self.far.guid_blocks();
            let grants = match self.config.guids {
                GuidPolicy::Fabric => self.grants.poll_timeout(now, shown),
                GuidPolicy::Local => None,
            };
            [
                Some(self.far.poll_timeout()),
                self.near.poll_timeout(),
                self.watch.poll_timeout(),
                grants,
            ]
        });
        let attached = attached.into_iter().flatten().flatten();
        attached.chain(self.session.poll_timeout()).min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        match self.session.handle_timeout(now) {
            Some(true) => self.output.push_back(UplinkOutput::Open),
            Some(false) => self.fail(now, Failure::Silent),
            None => {}
        }
        self.advance(now);
    }

    /// The sockets that [`UplinkOutput::Open`] asked for are there. The number is what the data socket
    /// is called by: the one in its name, unique among the simulator's clients, or its UDP port.
    pub fn opened(&mut self, now: Instant, client_id: u32) {
        if self.session.opened(now) {
            let mut connect = Connect {
                id: client_id.into(),
                qpn: 0.into(),
                takes_requests: 1.into(),
                node: [0; 32],
            };
            connect.set_node_name(self.config.node.as_bytes());
            self.send_control(&Control::new(ControlKind::CONNECT, 0, &connect));
        }
    }

    /// The sockets could not be opened, or one of them failed: the simulator is gone.
    pub fn failed(&mut self, now: Instant) {
        if self.session.is_open() {
            self.fail(now, Failure::Gone);
        }
    }

    /// Takes a datagram from the control socket.
    pub fn handle_control(&mut self, now: Instant, bytes: &[u8]) {
        let Some(control) = Control::parse(bytes) else {
            self.counters.lose(Loss::Malformed);
            return;
        };
        if control.kind != ControlKind::CONNECT {
            if self.state() == UplinkState::Attaching {
                self.fail(now, Failure::Refused);
            }
            return;
        }
        let slot = control.data::<Connect>().id.get();
        if self.session.attached(slot) {
            self.counters.attached += 1;
            self.far.forget(now);
            self.output.push_back(UplinkOutput::Join(slot));
            self.advance(now);
        }
    }

    /// Takes a datagram from the data socket.
    pub fn handle_mad(&mut self, now: Instant, bytes: &[u8]) {
        if let Err(loss) = self.take_datagram(now, bytes) {
            self.counters.lose(loss);
        }
        self.advance(now);
    }

    /// Takes a packet that the adapter sent.
    pub fn handle_frame(&mut self, now: Instant, frame: Frame) {
        if let Err(loss) = self.take_frame(now, frame) {
            self.counters.lose(loss);
        }
        self.advance(now);
    }

    /// Leaves the simulator: the last thing to call.
    pub fn close(&mut self) {
        if let UplinkState::Attached { slot } = self.state() {
            self.send_control(&Control::new(ControlKind::DISCONNECT, slot, &()));
        }
        self.output.push_back(UplinkOutput::Close);
    }

    fn send_control(&mut self, control: &Control) {
        let bytes = Box::new(zerocopy::transmute!(*control));
        self.output.push_back(UplinkOutput::Control(bytes));
    }

    fn fail(&mut self, now: Instant, failure: Failure) {
        self.session.fail(now, failure);
        self.watch.clear();
        self.output.retain(|output| {
            !matches!(
                output,
                UplinkOutput::Open
                    | UplinkOutput::Control(_)
                    | UplinkOutput::Mad(_)
                    | UplinkOutput::Join(_)
            )
        });
        let frames = |output: &&UplinkOutput| matches!(output, UplinkOutput::Frame(_));
        self.waiting = self.output.iter().filter(frames).count();
        self.output.push_back(UplinkOutput::Close);
        self.plug(false);
    }

    fn plug(&mut self, plugged: bool) {
        if plugged != self.near.is_plugged() {
            self.near.plug(plugged);
            self.output.push_back(UplinkOutput::Cable(plugged));
        }
    }

    fn take_frame(&mut self, now: Instant, frame: Frame) -> Result<(), Loss> {
        match translate::leaving(frame)? {
            Leaving::Smp(mad) => self.take_smp(now, &mad),
            Leaving::Gmp {
                slid,
                dlid,
                mad,
                had_grh,
            } => {
                if table::is_control(&mad) {
                    return Err(Loss::Rmpp);
                }
                if !self.session.is_attached() {
                    return Err(Loss::NotAttached);
                }
                self.send_mad(&translate::to_port(slid, dlid, &mad))?;
                self.counters.sent += 1;
                self.counters.without_grh += u64::from(had_grh);
                self.watch.answered(dlid, &mad);
                self.tall.sent(&mad);
                self.grants.sent(&mad);
                Ok(())
            }
        }
    }

    /// An SMP of the adapter: an answer to the uplink, or something that goes no further.
    fn take_smp(&mut self, now: Instant, mad: &Mad) -> Result<(), Loss> {
        let header = &mad.header;
        if header.method == Method::TRAP {
            // It is repeated until somebody answers.
            let mut repress = *mad;
            repress.header.method = Method::TRAP_REPRESS;
            if let Some(frame) = near::frame(&repress) {
                self.send_frame(frame)?;
            }
            return Err(Loss::Trap);
        }
        if header.mgmt_class == MgmtClass::SUBN_DIRECTED_ROUTE && header.method.is_response() {
            match self.near.take(now, mad) {
                Some(Ok(())) => return Ok(()),
                Some(Err(())) => {
                    self.counters.refused_by_adapter += 1;
                    return Ok(());
                }
                None => {}
            }
        }
        Err(Loss::Smp)
    }

    fn take_datagram(&mut self, now: Instant, bytes: &[u8]) -> Result<(), Loss> {
        if !self.session.is_attached() {
            return Err(Loss::NotAttached);
        }
        let arrived = translate::arrived(bytes)?;
        if arrived.mad.header.mgmt_class.is_smp() {
            return self.take_far_smp(now, &arrived);
        }
        if arrived.bounced {
            return Err(Loss::Bounced);
        }
        if arrived.dqp != Qpn::GSI.get() {
            return Err(Loss::OtherQp);
        }
        if !self.near.owns(arrived.dlid) {
            return Err(Loss::OtherLid);
        }
        self.deliver(now, &arrived)
    }

    fn take_far_smp(&mut self, now: Instant, arrived: &Arrived) -> Result<(), Loss> {
        let mad = &arrived.mad;
        if arrived.bounced || mad.header.method.is_response() {
            let news = self.far.take(now, mad, arrived.bounced);
            let news = news.ok_or(Loss::Stray)?;
            self.take_news(news);
            return Ok(());
        }
        if watch::expects_answer(mad) {
            let to = Some(arrived.slid).filter(|slid| *slid != Lid::PERMISSIVE);
            self.send_mad(&translate::to_agent(to, &watch::refusal(mad)))?;
            self.counters.refused += 1;
        }
        Err(Loss::Stray)
    }

    fn deliver(&mut self, now: Instant, arrived: &Arrived) -> Result<(), Loss> {
        let mut mad = arrived.mad;
        self.tall.restore(&mut mad);
        table::make_whole(&mut mad, arrived.length);
        let frame = translate::arriving(arrived, &mad, self.far.ingress_pkey());
        self.send_frame(frame.ok_or(Loss::Malformed)?)?;
        self.counters.received += 1;
        if let Some((from, refusal)) = self.watch.note(now, arrived.slid, &arrived.mad) {
            self.refuse(from, &refusal);
        }
        if let Some(block) = self.grants.received(now, &arrived.mad) {
            self.far.watch_guids(now, block);
        }
        Ok(())
    }

    fn take_news(&mut self, news: News) {
        if news == News::SmChanged {
            self.counters.sm_changes += 1;
            self.grants.clear();
            self.near.reregister();
        }
    }

    fn refuse(&mut self, to: Lid, refusal: &Mad) {
        self.counters.refused += 1;
        if let Err(loss) = self.send_mad(&translate::to_port(Lid::NONE, to, refusal)) {
            self.counters.lose(loss);
        }
    }

    fn send_mad(&mut self, datagram: &MadDatagram) -> Result<(), Loss> {
        self.make_room()?;
        let bytes = Box::new(zerocopy::transmute!(*datagram));
        self.output.push_back(UplinkOutput::Mad(bytes));
        Ok(())
    }

    fn send_frame(&mut self, frame: Frame) -> Result<(), Loss> {
        self.make_room()?;
        self.output.push_back(UplinkOutput::Frame(frame));
        Ok(())
    }

    const fn make_room(&mut self) -> Result<(), Loss> {
        if self.waiting >= MAX_WAITING {
            return Err(Loss::Overflow);
        }
        self.waiting += 1;
        Ok(())
    }

    /// Does all that the time and what is known by now ask for.
    fn advance(&mut self, now: Instant) {
        if !self.session.is_attached() {
            return;
        }
        if let Err(failure) = self.check_identity() {
            self.fail(now, failure);
            return;
        }
        let is_linked = self.far.state() > PortState::DOWN;
        self.plug(self.identity.is_some() && self.far.is_known() && is_linked);
        let guids = self.guid_table();
        if let Some(frame) = self.near.poll(now, &self.far, &guids)
            && let Err(loss) = self.send_frame(frame)
        {
            self.counters.lose(loss);
        }
        while let Some((to, refusal)) = self.watch.pop_due(now) {
            self.refuse(to, &refusal);
        }
        self.judge_guids(now);
        let is_settled = self.near.is_settled(&self.far, &guids);
        self.far.hurry(!is_settled || self.guids_missing());
        self.ask(now);
    }

    fn ask(&mut self, now: Instant) {
        match self.far.poll(now) {
            Ok((mad, news)) => {
                if let Some(news) = news {
                    self.take_news(news);
                }
                if let Some(mad) = mad {
                    let datagram = translate::to_agent(self.far.destination(), &mad);
                    if let Err(loss) = self.send_mad(&datagram) {
                        self.counters.lose(loss);
                    }
                }
            }
            Err(()) => self.fail(now, Failure::Silent),
        }
    }

    /// Whether a GUID was granted that the fabric does not show, and may yet.
    fn guids_missing(&self) -> bool {
        self.config.guids == GuidPolicy::Fabric
            && !self.guids_refused
            && self.grants.is_missing(self.far.guid_blocks())
    }

    /// The adapter's GUID table as it shall be.
    fn guid_table(&self) -> BTreeMap<u8, GuidInfo> {
        match self.config.guids {
            GuidPolicy::Local => self.grants.table(),
            GuidPolicy::Fabric => {
                let shown = self.far.guid_blocks().iter();
                shown
                    .map(|(block, guids)| (*block, near::aliases(*block, guids)))
                    .collect()
            }
        }
    }

    fn judge_guids(&mut self, now: Instant) {
        let refused = self.config.guids == GuidPolicy::Fabric
            && self.grants.are_refused(now, self.far.guid_blocks());
        if core::mem::replace(&mut self.guids_refused, refused) != refused {
            self.output.push_back(UplinkOutput::GuidsRefused(refused));
        }
    }

    /// Tells who the node is when that is known, and sees that it stays the same.
    fn check_identity(&mut self) -> Result<(), Failure> {
        let Some((node, info)) = self.far.node().zip(self.far.info()) else {
            return Ok(());
        };
        let found = Identity {
            node_guid: node.node_guid,
            port_guid: node.port_guid,
            system_image_guid: node.system_image_guid,
            pkey_table_len: node.partition_cap.get(),
            guid_table_len: info.guid_cap.into(),
        };
        match self.identity {
            None => {
                self.identity = Some(found);
                self.output.push_back(UplinkOutput::Identity(found));
            }
            Some(first) if first != found => return Err(Failure::OtherNode),
            Some(_) => {}
        }
        self.session.proved();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
