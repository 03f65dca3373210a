//! The machine: what its owner calls, and what egress and ingress share.

use std::collections::{BTreeMap, VecDeque};

use ib_vtime::{Instant, SplitMix64};
use ib_wire::cm::{CmReq, CmTransport, timeout_nanos};
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method};
use ib_wire::{Gid, Guid, Lid, PKey, PortNum, Qpn, Sl};
use vf_tunnel::wire_id::{KeyedHash, Permutation};
use vf_tunnel::{DropReason, SubnetLmcs, VfId, WireCommId};

use crate::answer::{AnswerLimit, Farewell};
use crate::config::{Config, Ticks};
use crate::party::{Egress, GidOwner, Ingress, Named, PeerAddress, ResetPolicy, VfIdentity};
use crate::sidr::SidrTable;
use crate::state::{Message, State};
use crate::statistics::{Refusal, Statistics, VfStatistics};
use crate::store::{Flags, Store};
use crate::table::Table;

/// A message that the machine made by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The VF on whose behalf it is sent.
    pub vf: VfId,
    /// Where it goes.
    pub to: PeerAddress,
    /// The partition of the exchange; [`PKey::INVALID`] if the exchange did not tell.
    pub pkey: PKey,
    /// The message.
    pub mad: Mad,
}

/// A farewell that waits to be sent.
#[derive(Clone, Debug)]
struct Signal {
    vf: VfId,
    to: PeerAddress,
    pkey: PKey,
    wire: WireCommId,
    farewell: Farewell,
}

/// The CM of a PF's VFs, as far as the wire sees it: see the [crate's documentation](crate).
#[derive(Clone, Debug)]
pub struct CmParavirt {
    pub(crate) config: Config,
    pub(crate) table: Table,
    pub(crate) answers: AnswerLimit,
    pub(crate) sidr: SidrTable,
    pub(crate) statistics: Statistics,
    /// By the port that they leave by.
    signals: BTreeMap<PortNum, VecDeque<Signal>>,
}

/// What a MAD of the class is.
pub(crate) enum Kind {
    Message(Message),
    /// Get of ClassPortInfo, which carries no communication id.
    InfoRequest,
    /// The answer to one, which goes by transaction id.
    InfoAnswer,
}

pub(crate) fn classify(header: &MadHeader) -> Result<Kind, DropReason> {
    match (header.attribute_id, header.method) {
        (AttributeId::CLASS_PORT_INFO, Method::GET) => Ok(Kind::InfoRequest),
        (AttributeId::CLASS_PORT_INFO, Method::GET_RESP) => Ok(Kind::InfoAnswer),
        (attribute, Method::SEND) => Message::from_attribute(attribute)
            .map(Kind::Message)
            .ok_or(DropReason::MalformedCm),
        _ => Err(DropReason::MethodNotPermitted),
    }
}

/// The field has four bits.
const MAX_CM_RETRIES: u8 = 15;

/// What a REQ says of its handshake.
pub(crate) struct Offer {
    /// How long the two ends may go on repeating themselves before the handshake ends (IBA 12.6.5: CM
    /// response timeouts of both sides, Max CM Retries).
    pub(crate) nanos: u64,
    /// How often a message is sent at most.
    pub(crate) sends: u8,
    /// Whether the connection is one of the XRC transport.
    pub(crate) is_xrc: bool,
}

impl Offer {
    /// What is offered by a REQ that was not seen.
    pub(crate) const UNKNOWN: Self = Self {
        nanos: 0,
        sends: MAX_CM_RETRIES + 1,
        is_xrc: false,
    };
}

impl From<&CmReq> for Offer {
    fn from(req: &CmReq) -> Self {
        let code = req
            .remote_cm_response_timeout()
            .max(req.local_cm_response_timeout());
        let sends = req.max_cm_retries() + 1;
        Self {
            nanos: timeout_nanos(code) * u64::from(sends),
            sends,
            is_xrc: req.transport() == CmTransport::EXTENDED
                && req.extended_transport() == CmTransport::EXTENDED_XRC,
        }
    }
}

impl CmParavirt {
    /// A machine without any id.
    ///
    /// Wire ids follow from `seed`: who knows it can tell them all, and two machines with the same
    /// one use the same. Outside of tests it must be random, and new at every start.
    #[must_use]
    pub fn new(config: Config, seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let store = Store::new(Permutation::new(random.next()));
        let hash = KeyedHash::new([random.next(), random.next()]);
        let answer_hash = KeyedHash::new([random.next(), random.next()]);
        let ticks = Ticks::from(&config);
        Self {
            table: Table::new(store, hash, ticks, config.ids_per_vf, config.pending_per_vf),
            answers: AnswerLimit::new(config.answers_per_second, config.answer_burst, answer_hash),
            sidr: SidrTable::new(),
            statistics: Statistics::NEW,
            signals: BTreeMap::new(),
            config,
        }
    }

    /// Takes a MAD of class CM on its way from a VF to `to`.
    ///
    /// The caller knows `vf` by the tunnel. It has checked lengths, versions, Q_Key and the address
    /// vector, and `who` is what it knows of the VF itself. Forwarded messages have their
    /// communication id, and nothing else, rewritten in `mad`.
    pub fn egress(
        &mut self,
        now: Instant,
        vf: VfId,
        mad: &mut Mad,
        to: &PeerAddress,
        who: &VfIdentity<'_>,
    ) -> Egress {
        self.table.advance(now);
        match self.send(vf, mad, to, who) {
            Ok(()) => {
                self.table.vf_mut(vf).statistics.sent += 1;
                Egress::Forward
            }
            Err(reason) => {
                self.table.vf_mut(vf).statistics.count_drop(reason);
                Egress::Drop(reason)
            }
        }
    }

    /// Finds the receiver of a MAD of class CM that came from `from`, with the GRH's destination if
    /// it had one. `owner` returns the owner of a GID.
    ///
    /// For a VF nothing is noted yet, so that the caller can judge the rest of the message, such as its
    /// partition, before [`Self::accept`] or [`Self::refuse`] takes the [`Named`] back. For
    /// [`Ingress::Answer`] `mad` holds the answer. ClassPortInfo answers go by their transaction id and
    /// do not belong here.
    pub fn find(
        &mut self,
        now: Instant,
        mad: &mut Mad,
        from: &PeerAddress,
        dgid: Option<Gid>,
        owner: impl Fn(&Gid) -> GidOwner,
    ) -> Ingress {
        self.table.advance(now);
        match self.find_exchange(now, mad, from, dgid, owner) {
            Ok(verdict) => {
                self.statistics.to_pf += u64::from(verdict == Ingress::ToPf);
                verdict
            }
            Err(Refusal { reason, vf }) => {
                match vf {
                    Some(vf) => self.count_drop(vf, reason),
                    None => self.statistics.count_drop(reason),
                }
                Ingress::Drop(reason)
            }
        }
    }

    /// Notes a message that is delivered to its VF, and rewrites its communication id, and nothing
    /// else, in `mad`. `mad` and `from` are those of [`Self::find`], and no other call may lie between
    /// the two.
    ///
    /// # Errors
    /// [`DropReason::CmQuota`] if there is no room for the exchange that the message begins; the message is
    /// then not to be delivered.
    pub fn accept(
        &mut self,
        named: Named,
        mad: &mut Mad,
        from: &PeerAddress,
    ) -> Result<(), DropReason> {
        let noted = self.note(named, mad, from);
        match noted {
            Ok(()) => self.table.vf_mut(named.vf).statistics.delivered += 1,
            Err(reason) => self.count_drop(named.vf, reason),
        }
        noted
    }

    /// Counts a message that its VF does not get for a reason of the caller's.
    pub fn refuse(&mut self, named: Named, reason: DropReason) {
        self.count_drop(named.vf, reason);
    }

    fn count_drop(&mut self, vf: VfId, reason: DropReason) {
        self.table.vf_mut(vf).statistics.count_drop(reason);
    }

    /// Forgets all of a VF's exchanges at once: FLR, or a guest that is gone. Costs time in
    /// proportion to the VF's own ids.
    pub fn vf_reset(&mut self, now: Instant, vf: VfId, policy: ResetPolicy) {
        self.table.advance(now);
        while let Some(slot) = self.table.first_of(vf) {
            if let ResetPolicy::Signal { ca_guid } = policy {
                self.signal(slot, ca_guid);
            }
            self.table.close(slot);
        }
    }

    /// Tells a VF's peer what the state of their exchange demands.
    fn signal(&mut self, slot: u32, ca_guid: Guid) {
        let hot = *self.table.store.hot(slot);
        let cold = self.table.store.cold(slot);
        let remote = hot.has(Flags::REMOTE).then_some(hot.remote);
        let farewell = match (hot.state, remote) {
            (State::ReqSent, None) => Farewell::Abandon { ca_guid },
            (State::ReqRcvd, Some(remote)) => Farewell::RejectReq { remote },
            (State::ReqSent | State::RepSent | State::RepRcvd, Some(remote)) => {
                Farewell::RejectRep { remote }
            }
            (
                State::Established | State::Quiet | State::DreqSent | State::DreqRcvd,
                Some(remote),
            ) => {
                let qpn = cold.qpn;
                Farewell::Dreq { remote, qpn }
            }
            _ => return,
        };
        if hot.lid == Lid::NONE || self.waiting_signals() >= self.config.signals {
            self.statistics.signals_lost += 1;
            return;
        }
        self.statistics.signals += 1;
        self.signals.entry(hot.port).or_default().push_back(Signal {
            vf: hot.vf,
            to: PeerAddress {
                port: hot.port,
                lid: hot.lid,
                qpn: Qpn::GSI,
                sl: Sl::from_low_bits(hot.sl),
                gid: hot.has(Flags::GLOBAL).then_some(cold.gid),
            },
            pkey: hot.pkey,
            wire: hot.wire,
            farewell,
        });
    }

    fn waiting_signals(&self) -> usize {
        self.signals.values().map(VecDeque::len).sum()
    }

    /// The next message that the machine made by itself and that leaves by this port. Poll until
    /// `None` after [`Self::vf_reset`], for every port.
    #[must_use]
    pub fn poll_transmit(&mut self, port: PortNum) -> Option<Transmit> {
        let signal = self.signals.get_mut(&port)?.pop_front()?;
        Some(Transmit {
            vf: signal.vf,
            to: signal.to,
            pkey: signal.pkey,
            mad: signal.farewell.message(signal.wire),
        })
    }

    /// When [`Self::handle_timeout`] should be called next; may be earlier than there is anything to
    /// do. Changes with every call that takes `now`.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.table.next_deadline()
    }

    /// Ends what is due. Calling it early or late does no harm: every other call with `now` does the
    /// same first.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.table.advance(now);
    }

    /// Sets how many ids a VF may have. Ids that it has already stay.
    pub fn set_quota(&mut self, vf: VfId, ids: u32) {
        self.table.vf_mut(vf).quota = ids;
    }

    /// Returns the known LMCs of the subnet behind a port: a peer may send from any LID of its port.
    pub fn lmcs_mut(&mut self, port: PortNum) -> &mut SubnetLmcs {
        self.table.lmcs_mut(port)
    }

    /// How many ids a VF may have.
    #[must_use]
    pub fn quota(&self, vf: VfId) -> u32 {
        let record = self.table.vf(vf);
        record.map_or(self.config.ids_per_vf, |record| record.quota)
    }

    /// Limits and times.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Who gets SIDR requests without a GRH.
    #[must_use]
    pub const fn sidr_table(&self) -> &SidrTable {
        &self.sidr
    }

    /// The same, to be changed. A reset leaves it as it is: it is the operator's.
    pub const fn sidr_table_mut(&mut self) -> &mut SidrTable {
        &mut self.sidr
    }

    /// Forgets where the peers are of connections that use this port, because LIDs may have changed: the
    /// next message with the right ids tells. Costs time in proportion to all ids.
    pub fn forget_addresses(&mut self, port: PortNum) {
        let slots: Vec<u32> = self.table.store.iter().collect();
        for slot in slots {
            let hot = self.table.store.hot_mut(slot);
            // An alternate path may use any port.
            let uses_port = hot.port == port || hot.alternate_lid != Lid::NONE;
            if uses_port && hot.has(Flags::REMOTE) && !hot.has(Flags::BY_PEER) {
                hot.lid = Lid::NONE;
                hot.alternate_lid = Lid::NONE;
            }
        }
    }

    /// Counters that concern no VF in particular.
    #[must_use]
    pub const fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// A VF's counters; `None` if the machine never heard of it.
    #[must_use]
    pub fn vf_statistics(&self, vf: VfId) -> Option<&VfStatistics> {
        self.table.vf(vf).map(|record| &record.statistics)
    }

    /// Ids of all VFs and unanswered requests of all peers, those in quarantine included.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.table.store.live() as usize
    }

    /// Those of exchanges that a port leads to. Costs time in proportion to all.
    #[must_use]
    pub fn len_of_port(&self, port: PortNum) -> usize {
        let slots = self.table.store.iter();
        slots
            .filter(|&slot| self.table.store.hot(slot).port == port)
            .count()
    }

    /// Whether nothing is left: no id, no entry of an index.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.table.store.live() == 0 && self.table.indexed() == 0
    }

    /// Bytes of state that grow with the number of ids: slots, indexes and timers, whether filled
    /// or not.
    #[must_use]
    pub const fn state_bytes(&self) -> usize {
        self.table.bytes()
    }
}
