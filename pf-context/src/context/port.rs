//! One port of the context: its special QPs, the tunnels of its VFs, and the mux between them.

use std::collections::{BTreeMap, VecDeque};

use hca_api::{AddressVector, CqHandle, FunctionManager, HcaEvent, SpecialQp};
use ib_endpoint::sa_client::QueryId;
use ib_endpoint::{EndPort, EndPortConfig, EndPortEvent, MadAddress, MadQp, QueuedMads, SaEvent};
use ib_vtime::{Instant, Secret};
use ib_wire::mad::Mad;
use ib_wire::smp::PortState as WirePortState;
use ib_wire::{Guid, PKey, PortNum, Qpn};
use vf_tunnel::{DropReason, ToPf, VfId, VirtualPKeyIndex};

use super::batch::{BATCH, Batch};
use super::config::{Depths, PfConfig, PfError};
use super::event::PfEvent;
use super::port_vfs::VfPort;
use super::tunnel::Tunnel;
use crate::GuidObstacle;
use crate::config::PortConfig;
use crate::guids::{GuidConfig, GuidManager, GuidToken};
use crate::mux::PortMux;
use crate::output::{Cause, PortEvent, Route, WireSend, WireSource};

/// Rounds of the PF's own software in one call: what it sends to itself must not keep it busy for
/// ever.
const MAX_OWN_ROUNDS: usize = 64;

/// What the context hands to the mux has no line in a script.
pub(super) const CAUSE: Cause = Cause(0);

/// What has a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    Special(SpecialQp),
    Tunnel(VfId, SpecialQp),
}

/// One port of a [`PfContext`](super::PfContext).
#[derive(Debug)]
pub struct PfPort {
    pub(super) mux: PortMux,
    pub(super) own: EndPort<QueuedMads>,
    pub(super) guids: GuidManager,
    pub(super) guid_obstacle: Option<GuidObstacle>,
    /// Requests of the manager's that wait for the SA.
    pub(super) guid_queries: BTreeMap<QueryId, GuidToken>,
    pub(super) gsi: MadQp,
    pub(super) smi: Option<MadQp>,
    /// Indexed by VF number.
    pub(super) vfs: Vec<Option<Box<VfPort>>>,
    pub(super) sources: BTreeMap<CqHandle, Source>,
    /// Sources with something to take, the next first.
    pub(super) ready: VecDeque<Source>,
    /// Where frames are judged.
    pub(super) batch: Batch,
    /// What the special QPs had no buffer for: of the port's own, or of several frames that one made.
    pub(super) unsent: VecDeque<(WireSend, Mad)>,
    /// VFs of which something changed: their view is to be shown anew, and they are to be told.
    pub(super) changed: Vec<VfId>,
    pub(super) depths: Depths,
    pub(super) events: VecDeque<PfEvent>,
    pub(super) told_drops: usize,
    pub(super) refused_sends: u64,
}

impl PfPort {
    pub(super) fn open(
        now: Instant,
        hca: &mut dyn FunctionManager,
        port: PortNum,
        secret: Secret,
        config: &PfConfig,
    ) -> Result<Self, PfError> {
        let depth = config.depths.special;
        let gsi = MadQp::open(hca, SpecialQp::Gsi, port, depth)?;
        let smi = config
            .smi
            .then(|| MadQp::open(hca, SpecialQp::Smi, port, depth));
        let smi = match smi.transpose() {
            Ok(smi) => smi,
            Err(error) => {
                gsi.close(hca);
                return Err(error.into());
            }
        };
        let queue = QueuedMads::new(port, depth as usize);
        let own = EndPort::open_on(now, hca, EndPortConfig::host(port, secret), queue, None);
        let own = match own {
            Ok(own) => own,
            Err(error) => {
                gsi.close(hca);
                if let Some(smi) = smi {
                    smi.close(hca);
                }
                return Err(PfError::Port(port, error));
            }
        };
        let mut sources = BTreeMap::from([(gsi.cq(), Source::Special(SpecialQp::Gsi))]);
        if let Some(smi) = &smi {
            sources.insert(smi.cq(), Source::Special(SpecialQp::Smi));
        }
        let mux = mux(now, &own, secret.of(b"wire ids").seed(), config);
        Ok(Self {
            guids: guid_manager(
                now,
                &own,
                secret.of(b"GUIDs   ").seed(),
                mux.has_alias_members(),
            ),
            guid_obstacle: None,
            mux,
            guid_queries: BTreeMap::new(),
            own,
            gsi,
            smi,
            vfs: Vec::new(),
            ready: sources.values().copied().collect(),
            sources,
            batch: Batch::default(),
            unsent: VecDeque::new(),
            changed: Vec::new(),
            depths: config.depths,
            events: VecDeque::new(),
            told_drops: 0,
            refused_sends: 0,
        })
    }

    /// The mux, to be looked at.
    #[must_use]
    pub const fn mux(&self) -> &PortMux {
        &self.mux
    }

    /// The PF's own software on the port.
    #[must_use]
    pub const fn own(&self) -> &EndPort<QueuedMads> {
        &self.own
    }

    /// The PF's own software on the port, to be used. What it wants to send leaves with the next
    /// poll, and its events come with the context's.
    pub const fn own_mut(&mut self) -> &mut EndPort<QueuedMads> {
        &mut self.own
    }

    /// Sends that the HCA refused, of special and of tunnel QPs. Their buffers were free again at
    /// once; what was to be sent is lost like any packet.
    #[must_use]
    pub fn refused_sends(&self) -> u64 {
        let tunnels = self.vfs.iter().flatten().flat_map(|vf| &vf.tunnels);
        let by_tunnels: u64 = tunnels.map(Tunnel::refused_sends).sum();
        self.refused_sends + by_tunnels
    }

    /// Whether nothing waits to be sent and every buffer of the port's queue pairs is where it belongs:
    /// so it is when nothing is under way and all that completed was polled.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        let mut tunnels = self.vfs.iter().flatten().flat_map(|vf| &vf.tunnels);
        self.unsent.is_empty()
            && self.gsi.is_at_rest()
            && self.smi.as_ref().is_none_or(MadQp::is_at_rest)
            && tunnels.all(Tunnel::is_at_rest)
    }

    /// Frames that wait for a send buffer of a VF's tunnels.
    #[must_use]
    pub fn waiting(&self, vf: VfId) -> usize {
        let own = self.vfs.get(vf.index()).and_then(Option::as_deref);
        own.map_or(0, |own| own.tunnels.iter().map(Tunnel::waiting).sum())
    }

    /// The numbers that the adapter has for the PF's ends of a VF's tunnels, by which taps tell whose
    /// tunnel it is.
    pub fn tunnel_qpns(&self, vf: VfId) -> impl Iterator<Item = Qpn> {
        let own = self.vfs.get(vf.index()).and_then(Option::as_deref);
        own.into_iter()
            .flat_map(|own| own.tunnels.iter().map(Tunnel::qpn))
    }

    pub(super) fn handle_hca_event(
        &mut self,
        now: Instant,
        hca: &mut dyn FunctionManager,
        event: &HcaEvent,
    ) {
        if let HcaEvent::Completion(cq) = event {
            self.ready.extend(self.sources.get(cq));
            return;
        }
        if let Err(error) = self.own.handle_hca_event(now, hca, event) {
            let port = self.own.port();
            self.events.push_back(PfEvent::Unreadable { port, error });
        }
        self.take_own_events(now);
        self.carry_out(hca);
    }

    /// Does what is due. Whether there may be more to do at once.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        hca: &mut dyn FunctionManager,
        mut budget: usize,
    ) -> bool {
        if self.mux.poll_timeout().is_some_and(|due| due <= now) {
            self.mux.handle_timeout(now);
            self.carry_out(hca);
        }
        self.drive_guids(now, hca);
        self.make_room(now, hca);
        let mut busy = self.poll_own(now, hca);
        while budget > 0 && !self.ready.is_empty() {
            budget -= self.serve(now, hca, BATCH.min(budget));
        }
        busy |= self.poll_own(now, hca);
        // What the SA just answered; a request that follows makes the PF's own software due.
        self.drive_guids(now, hca);
        self.tell_vfs(hca);
        busy || (budget == 0 && !self.ready.is_empty())
    }

    /// When to poll at the latest.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        if !self.ready.is_empty() || !self.changed.is_empty() {
            return Some(Instant::ZERO);
        }
        [
            self.own.poll_timeout(),
            self.mux.poll_timeout(),
            self.guids.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    pub(super) fn close(self, hca: &mut dyn FunctionManager) {
        for tunnel in self.vfs.into_iter().flatten().flat_map(|vf| vf.tunnels) {
            tunnel.close(hca);
        }
        self.own.close(hca);
        self.gsi.close(hca);
        if let Some(smi) = self.smi {
            smi.close(hca);
        }
    }

    /// Sends what waited for the special QPs, and tells the mux how much of VFs they take beyond that.
    /// What they do not take waits in the queues of its VFs, so that their weights decide who is next
    /// and nobody's tunnel is left unserved.
    pub(super) fn make_room(&mut self, now: Instant, hca: &mut dyn FunctionManager) {
        loop {
            self.send_unsent(hca);
            let room = if self.unsent.is_empty() {
                self.gsi.free_sends().saturating_sub(self.reserved_sends())
            } else {
                0
            };
            let waited = self.mux.queued();
            self.mux.set_wire_room(now, Some(room));
            self.carry_out(hca);
            // A send that was refused or that went to a sibling has left its place free.
            if self.mux.queued() == waited {
                return;
            }
        }
    }

    /// MADs that may wait for a special QP: enough to take leave of all peers of a VF.
    pub(super) const fn most_unsent(&self) -> usize {
        self.depths.special as usize * 32
    }

    /// Sends that are kept for the port's own requests and answers.
    const fn reserved_sends(&self) -> usize {
        self.depths.special as usize / 8
    }

    /// Asks for an event when a source has something. `true` if it has already.
    pub(super) fn arm(&self, hca: &mut dyn FunctionManager, source: Source) -> bool {
        match source {
            Source::Special(SpecialQp::Gsi) => self.gsi.arm(hca),
            Source::Special(SpecialQp::Smi) => self.smi.as_ref().is_some_and(|smi| smi.arm(hca)),
            Source::Tunnel(vf, special) => self
                .tunnel(vf, special)
                .is_some_and(|tunnel| tunnel.arm(hca)),
        }
    }

    /// Where a packet came from, with the keys and GIDs that the provider gave as indices. Of the
    /// P_Key it told only which entry of the table matched.
    pub(super) fn wire_source(&self, from: &MadAddress) -> WireSource {
        let view = self.own.view();
        let pkey = view.pkeys.get(usize::from(from.pkey_index.0));
        WireSource {
            slid: from.lid,
            sqpn: from.qpn,
            sl: from.sl,
            pkey: pkey.map_or(PKey::INVALID, |own| received_by(*own)),
            grh: from.grh.map(|route| Route {
                sgid: route.remote_gid,
                dgid: view.gid(route.sgid_index).unwrap_or_default(),
                traffic_class: route.traffic_class,
                flow_label: route.flow_label,
                hop_limit: route.hop_limit,
            }),
            path_bits: from.path_bits,
        }
    }

    /// Lets the PF's own software do what is due. Whether it may have more to do at once.
    fn poll_own(&mut self, now: Instant, hca: &mut dyn FunctionManager) -> bool {
        for _ in 0..MAX_OWN_ROUNDS {
            let busy = self.own.poll(now, hca);
            let mut sent = false;
            while let Some((to, mad)) = self.own.gsi_transport().take_sent() {
                sent = true;
                self.send_own(now, &to, &mad);
                self.carry_out(hca);
            }
            self.take_own_events(now);
            self.carry_out(hca);
            if !busy && !sent {
                return false;
            }
        }
        true
    }

    fn send_own(&mut self, now: Instant, to: &MadAddress, mad: &Mad) {
        let vector = AddressVector {
            port: PortNum(1),
            dlid: to.lid,
            sl: to.sl,
            path_bits: to.path_bits,
            static_rate: None,
            grh: to.grh,
        };
        let pkey_index = VirtualPKeyIndex(to.pkey_index);
        let frame = ToPf::new(&vector, to.qpn, to.qkey, pkey_index, mad);
        self.mux
            .from_vf(now, CAUSE, VfId::PF, SpecialQp::Gsi, &frame);
    }

    fn take_own_events(&mut self, now: Instant) {
        while let Some(event) = self.own.poll_event() {
            match &event {
                EndPortEvent::Port(change) => self.port_changed(now, *change),
                EndPortEvent::Sa(SaEvent::Answered { query, result })
                    if self.guid_answered(now, *query, result) =>
                {
                    continue;
                }
                _ => {}
            }
            let port = self.own.port();
            self.events.push_back(PfEvent::Own { port, event });
        }
    }

    /// A dropped frame, for the owner's log.
    pub(super) fn tell_drop(&mut self, vf: Option<VfId>, reason: DropReason) {
        /// Drops of which the owner is told one by one before it pulls.
        const MOST: usize = 1024;

        if self.told_drops < MOST {
            self.told_drops += 1;
            let port = self.own.port();
            self.events.push_back(PfEvent::Dropped { port, vf, reason });
        }
    }

    pub(super) fn poll_event(&mut self) -> Option<PfEvent> {
        let event = self.events.pop_front()?;
        self.told_drops -= usize::from(matches!(event, PfEvent::Dropped { .. }));
        Some(event)
    }
}

/// The manager of a port as it is now.
fn guid_manager(
    now: Instant,
    own: &EndPort<QueuedMads>,
    seed: u64,
    alias_members: bool,
) -> GuidManager {
    let view = own.view();
    let mut guids = GuidManager::new(GuidConfig {
        seed,
        table_len: u16::try_from(view.guids.len()).unwrap_or(u16::MAX),
        alias_members,
    });
    for (index, guid) in (0..).zip(&view.guids) {
        guids.hardware(now, index, *guid);
    }
    guids.set_lid(now, view.lid);
    guids.port_active(now, view.state == WirePortState::ACTIVE);
    guids
}

/// The mux of a port as it is now.
fn mux(now: Instant, own: &EndPort<QueuedMads>, seed: u64, config: &PfConfig) -> PortMux {
    let view = own.view();
    let guid = view.guids.first().copied().unwrap_or(Guid::NONE);
    let mut mux = PortMux::new(PortConfig {
        seed,
        lid: view.lid,
        lmc: view.lmc,
        sm_lid: view.sm_lid,
        sm_sl: view.sm_sl,
        subnet_prefix: view.prefix,
        guid,
        pkeys: view.pkeys.clone(),
        limits: config.limits.clone(),
        policy: config.policy,
    });
    mux.attach_pf_software(guid);
    if view.state != WirePortState::ACTIVE {
        mux.event(now, CAUSE, PortEvent::PortDown);
    }
    mux
}

/// The P_Key of a packet that matched an entry of the port's. Only a full member's packet matches a
/// limited member's entry (IBA 10.9.3); one that matches a full member's may be of either, and counts
/// as a full member's.
const fn received_by(own: PKey) -> PKey {
    if own.is_valid() { own.full() } else { own }
}
