//! One port of a VF.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hca_api::{AsyncEvent, Hca, HcaEvent, PortChange, SpecialQp, UdDestination};
use ib_endpoint::cm::{Cm, CmError, ConnId, Rendezvous};
use ib_endpoint::sa_client::{QueryId, StandingId};
use ib_endpoint::{
    Datagram, EndPort, EndPortError, EndPortEvent, MadTransport, PortPath, PortView, SaAnswer,
    SaError, SaEvent, SaRequest, SmaError,
};
use ib_vtime::{Instant, Secret};
use ib_wire::cm::CmReq;
use ib_wire::sa::PathRecord;
use ib_wire::{Gid, GidIndex, PKey, PortNum};

use super::connections::Connections;
use super::group::Group;
use super::{
    GroupId, ProxyQp, ResolveError, UdQp, UdQpId, UdQpSpec, VfPortError, VfPortEvent,
    VirtualHcaConfig,
};

/// One port of a [`VirtualHca`](super::VirtualHca): the software on its proxy QPs, the program's own
/// queue pairs, and the groups that they listen to.
#[derive(Debug)]
pub struct VfPort {
    pub(super) end_port: EndPort<ProxyQp>,
    pub(super) qps: BTreeMap<UdQpId, UdQp>,
    pub(super) connections: Connections,
    pub(super) groups: BTreeMap<GroupId, Group>,
    /// Wishes withdrawn on the port's own account, of which the program is not told.
    pub(super) orphans: BTreeSet<StandingId>,
    /// Queries of the port's own whose answers do not matter.
    pub(super) ignored: BTreeSet<QueryId>,
    resolving: BTreeSet<QueryId>,
    pub(super) events: VecDeque<VfPortEvent>,
    max_pending: usize,
    /// Whether the software below may have events that found too many waiting.
    holds_back: bool,
    next: u64,
}

impl VfPort {
    pub(super) fn open(
        now: Instant,
        hca: &mut dyn Hca,
        port: PortNum,
        config: &VirtualHcaConfig,
        secret: Secret,
    ) -> Result<Self, EndPortError> {
        let depth = config.depth;
        let gsi = ProxyQp::open(hca, SpecialQp::Gsi, port, depth)?;
        let smi = match open_smi(hca, port, depth) {
            Ok(smi) => smi,
            Err(error) => {
                Box::new(gsi).close(hca);
                return Err(error);
            }
        };
        let of_port = config.end_port(port, secret, smi.is_some());
        Ok(Self {
            end_port: EndPort::open_on(now, hca, of_port, gsi, smi)?,
            qps: BTreeMap::new(),
            connections: Connections::default(),
            groups: BTreeMap::new(),
            orphans: BTreeSet::new(),
            ignored: BTreeSet::new(),
            resolving: BTreeSet::new(),
            events: VecDeque::new(),
            max_pending: config.max_pending,
            holds_back: false,
            next: 0,
        })
    }

    /// Which port it is.
    #[must_use]
    pub const fn port(&self) -> PortNum {
        self.end_port.port()
    }

    /// The port as the VF read it last: state, LIDs, GUIDs, P_Keys.
    #[must_use]
    pub const fn view(&self) -> &PortView {
        self.end_port.view()
    }

    /// The VF's GID on this port; `None` while it has none.
    #[must_use]
    pub fn gid(&self) -> Option<Gid> {
        self.view().gid(GidIndex(0))
    }

    /// The SA client, the CM and the MAD agents on the proxy QPs, to be looked at.
    #[must_use]
    pub const fn end_port(&self) -> &EndPort<ProxyQp> {
        &self.end_port
    }

    /// The SA client, the CM and the MAD agents on the proxy QPs. Their events come with the port's;
    /// do not pull them here.
    pub const fn end_port_mut(&mut self) -> &mut EndPort<ProxyQp> {
        &mut self.end_port
    }

    /// The connection manager.
    pub const fn cm(&mut self) -> &mut Cm {
        self.end_port.cm()
    }

    // Datagram queue pairs.

    /// Makes a datagram queue pair.
    ///
    /// # Errors
    /// [`VfPortError::NoPKey`], or what the HCA says.
    pub fn open_qp(&mut self, hca: &mut dyn Hca, spec: &UdQpSpec) -> Result<UdQpId, VfPortError> {
        let qp = UdQp::open(hca, self.port(), self.view(), spec)?;
        let id = UdQpId(self.fresh());
        self.qps.insert(id, qp);
        Ok(id)
    }

    /// Destroys a queue pair; it listens to no group any more.
    ///
    /// # Errors
    /// [`VfPortError::NoQp`].
    pub fn close_qp(&mut self, hca: &mut dyn Hca, id: UdQpId) -> Result<(), VfPortError> {
        let qp = self.qps.remove(&id).ok_or(VfPortError::NoQp)?;
        for group in self.groups.values_mut() {
            group.detach(hca, id, &qp);
        }
        qp.close(hca);
        Ok(())
    }

    /// A queue pair, to be looked at.
    #[must_use]
    pub fn qp(&self, id: UdQpId) -> Option<&UdQp> {
        self.qps.get(&id)
    }

    /// The queue pairs.
    pub fn qps(&self) -> impl Iterator<Item = UdQpId> {
        self.qps.keys().copied()
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// [`VfPortError::NoQp`], and those of [`ib_endpoint::DatagramQp::send`].
    pub fn send(
        &mut self,
        hca: &mut dyn Hca,
        id: UdQpId,
        to: &UdDestination,
        message: &[u8],
    ) -> Result<(), VfPortError> {
        let qp = self.qps.get_mut(&id).ok_or(VfPortError::NoQp)?;
        Ok(qp.send(hca, to, message)?)
    }

    /// The next datagram that a queue pair received.
    pub fn receive(&mut self, hca: &mut dyn Hca, id: UdQpId) -> Option<Datagram> {
        self.qps.get_mut(&id)?.receive(hca)
    }

    // Peers.

    /// Asks the SA for the path to a GID, in a partition if one is named. The answer comes as
    /// [`VfPortEvent::Resolved`].
    ///
    /// Other VFs share their LID with the one that is sought, so along the path that is found each
    /// packet has a GRH.
    ///
    /// # Errors
    /// [`VfPortError::NoGid`].
    pub fn resolve(
        &mut self,
        now: Instant,
        dgid: Gid,
        pkey: Option<PKey>,
    ) -> Result<QueryId, VfPortError> {
        let sgid = self.gid().ok_or(VfPortError::NoGid)?;
        let request = SaRequest::path_by_gids(sgid, dgid, pkey);
        let query = self.end_port.query(now, request);
        self.resolving.insert(query);
        Ok(query)
    }

    /// Sends a REQ to the CM at the end of a path. [`PortPath::request`] makes one.
    ///
    /// # Errors
    /// Those of [`Cm::send_req`].
    pub fn connect(
        &mut self,
        now: Instant,
        path: &PortPath,
        req: &CmReq,
    ) -> Result<ConnId, CmError> {
        let to = path.gsi();
        self.cm().send_req(now, &to, req, Rendezvous::ClientServer)
    }

    // Driving it.

    pub(super) fn poll(&mut self, now: Instant, hca: &mut dyn Hca) -> bool {
        let busy = self.end_port.poll(now, hca);
        self.take_events(now, hca);
        busy
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        if self.holds_back && self.events.len() < self.max_pending {
            return Some(Instant::ZERO);
        }
        self.end_port.poll_timeout()
    }

    pub(super) fn handle_hca_event(
        &mut self,
        now: Instant,
        hca: &mut dyn Hca,
        event: &HcaEvent,
    ) -> Result<(), SmaError> {
        match event {
            HcaEvent::Completion(cq) => {
                if let Some(id) = self.qp_where(|qp| qp.qp().cq() == *cq) {
                    self.events.push_back(VfPortEvent::Readable(id));
                }
            }
            HcaEvent::Async(AsyncEvent::QpFatal(handle)) => {
                self.qp_failed(|qp| qp.qp().handle() == *handle);
            }
            HcaEvent::Async(AsyncEvent::CqError(cq)) => self.qp_failed(|qp| qp.qp().cq() == *cq),
            HcaEvent::Async(_) => {}
        }
        self.events.extend(self.connections.events(event));
        self.end_port.handle_hca_event(now, hca, event)?;
        self.take_events(now, hca);
        Ok(())
    }

    pub(super) fn poll_event(&mut self) -> Option<VfPortEvent> {
        self.events.pop_front()
    }

    pub(super) fn close(mut self, hca: &mut dyn Hca) {
        for id in self.qps().collect::<Vec<_>>() {
            // It was among them a moment ago.
            let _ = self.close_qp(hca, id);
        }
        self.connections.close(hca);
        self.end_port.close(hca);
    }

    /// Sends what can be sent before the end: the groups are left.
    pub(super) fn say_goodbye(&mut self, now: Instant, hca: &mut dyn Hca) {
        self.leave_all(now, hca);
        self.end_port.poll(now, hca);
    }

    /// Moves the events of the software below to where they belong. While too many wait for the
    /// program, they stay where they are.
    fn take_events(&mut self, now: Instant, hca: &mut dyn Hca) {
        loop {
            self.holds_back = self.events.len() >= self.max_pending;
            if self.holds_back {
                return;
            }
            let Some(event) = self.end_port.poll_event() else {
                return;
            };
            let event = match event {
                EndPortEvent::Port(change) => {
                    self.port_changed(now, hca, change);
                    VfPortEvent::Changed(change)
                }
                EndPortEvent::Sa(event) => match self.take_sa_event(now, hca, event) {
                    Some(event) => event,
                    None => continue,
                },
                EndPortEvent::Cm(event) => VfPortEvent::Cm(event),
                EndPortEvent::Gsi(event) => VfPortEvent::Gsi(event),
                EndPortEvent::Smi(event) => VfPortEvent::Smi(event),
                // The function tells it once for all ports.
                EndPortEvent::Dead => continue,
            };
            self.events.push_back(event);
        }
    }

    fn port_changed(&mut self, now: Instant, hca: &mut dyn Hca, change: PortChange) {
        if change.contains(PortChange::GID_TABLE) {
            self.gid_changed(now, hca);
        }
        if change.contains(PortChange::PKEY_TABLE) {
            let view = self.end_port.view();
            for (id, qp) in &mut self.qps {
                if qp.partition_changed(view) {
                    self.events.push_back(VfPortEvent::PartitionChanged(*id));
                }
            }
        }
    }

    fn take_sa_event(
        &mut self,
        now: Instant,
        hca: &mut dyn Hca,
        event: SaEvent,
    ) -> Option<VfPortEvent> {
        match self.take_group_event(now, hca, event)? {
            SaEvent::Answered { query, result } if self.resolving.remove(&query) => {
                let result = self.path(result);
                Some(VfPortEvent::Resolved { query, result })
            }
            event => Some(VfPortEvent::Sa(event)),
        }
    }

    fn path(&self, answer: Result<SaAnswer, SaError>) -> Result<PortPath, ResolveError> {
        let record: PathRecord = answer?.record().ok_or(ResolveError::NoRecord)?;
        Ok(PortPath::new(self.port(), self.view(), &record)?.with_grh())
    }

    fn qp_where(&self, is_it: impl Fn(&UdQp) -> bool) -> Option<UdQpId> {
        let mut qps = self.qps.iter();
        qps.find(|(_, qp)| is_it(qp)).map(|(id, _)| *id)
    }

    fn qp_failed(&mut self, is_it: impl Fn(&UdQp) -> bool) {
        if let Some(id) = self.qp_where(is_it) {
            self.events.push_back(VfPortEvent::QpFailed(id));
        }
    }

    pub(super) const fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// The port's proxy QP0, if the PF lets the VF have it.
fn open_smi(
    hca: &mut dyn Hca,
    port: PortNum,
    depth: u32,
) -> Result<Option<Box<dyn MadTransport>>, EndPortError> {
    if !hca.query_port(port)?.smi_permitted {
        return Ok(None);
    }
    let smi = ProxyQp::open(hca, SpecialQp::Smi, port, depth)?;
    Ok(Some(Box::new(smi)))
}
