//! One end of a trunk: a session behind a gateway of a fabric.

use hca_api::PhysicalState;
use ib_fabric::{
    Crossing, EndNode, Endpoint, Fabric, FabricError, Lanes, LinkConfig, LinkId, LinkState, NodeId,
    PortConfig,
};
use ib_vtime::Instant;
use ib_wire::Vl;

use crate::close::CloseReason;
use crate::event::SessionEvent;
use crate::hello::Hello;
use crate::session::{Session, SessionConfig};
use crate::statistics::Statistics;

/// Packets of a lane that wait for the link of the gateway at most. Others wait in the session, where they keep their credits.
const DEPTH: usize = 64;

/// State of a trunk, as one end sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrunkState {
    /// There is no connection; the reason for which the last one ended, if there was one.
    Down(Option<CloseReason>),
    /// There is a connection, and the other end has not said hello.
    Greeting,
    /// Packets pass.
    Up(Hello),
}

/// One end of a trunk. It plugs the cable in while both ends have a session and both ports are enabled.
#[derive(Debug)]
pub struct TrunkEnd {
    near: Endpoint,
    gateway: NodeId,
    link: LinkId,
    session: Option<Session>,
    peer: Option<Hello>,
    peer_is_enabled: bool,
    /// State of the near port that the other end has.
    reported: Option<bool>,
    is_plugged: bool,
    ended: Option<CloseReason>,
}

impl TrunkEnd {
    /// Connects a port to a gateway of this name, without a cable as yet.
    ///
    /// # Errors
    /// [`FabricError`] if there is no such port, or it is taken.
    pub fn new<D: EndNode>(
        fabric: &mut Fabric<D>,
        near: Endpoint,
        name: &str,
        link: LinkConfig,
    ) -> Result<Self, FabricError> {
        let gateway = fabric.add_gateway(name, PortConfig::default());
        let link = fabric.connect(near, gateway.port(1), link)?;
        fabric.set_link(link, LinkState::Down);
        Ok(Self {
            near,
            gateway,
            link,
            session: None,
            peer: None,
            peer_is_enabled: true,
            reported: None,
            is_plugged: false,
            ended: None,
        })
    }

    /// Returns the port at this end.
    #[must_use]
    pub const fn near(&self) -> Endpoint {
        self.near
    }

    /// Returns the gateway that the port is connected to.
    #[must_use]
    pub const fn gateway(&self) -> NodeId {
        self.gateway
    }

    /// Returns the state of the trunk.
    #[must_use]
    pub fn state(&self) -> TrunkState {
        match (&self.session, &self.peer) {
            (None, _) => TrunkState::Down(self.ended),
            (Some(_), None) => TrunkState::Greeting,
            (Some(_), Some(peer)) => TrunkState::Up(peer.clone()),
        }
    }

    /// Returns the counters of the connection.
    #[must_use]
    pub fn statistics(&self) -> Option<&Statistics> {
        self.session.as_ref().map(Session::statistics)
    }

    /// Begins a session on a new connection. One that is there ends without another word.
    pub fn connect<D: EndNode>(
        &mut self,
        now: Instant,
        fabric: &mut Fabric<D>,
        config: SessionConfig,
    ) {
        self.unplug(fabric);
        self.peer = None;
        self.reported = None;
        self.peer_is_enabled = true;
        self.session = Some(Session::new(now, config));
    }

    /// Returns the session.
    #[must_use]
    pub const fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    /// Returns the session, whose bytes the owner of the connection carries. Once it is closed and has nothing to transmit, the
    /// connection is to be ended and [`Self::disconnect`] called.
    pub const fn session_mut(&mut self) -> Option<&mut Session> {
        self.session.as_mut()
    }

    /// Forgets the connection.
    pub fn disconnect<D: EndNode>(&mut self, fabric: &mut Fabric<D>) {
        if let Some(session) = &mut self.session {
            session.handle_end();
        }
        self.take_events(fabric);
        self.session = None;
    }

    /// Moves packets between the fabric and the session, as far as either has room, and plugs the cable in or out. Returns `true` if
    /// anything moved.
    pub fn exchange<D: EndNode>(&mut self, fabric: &mut Fabric<D>) -> bool {
        self.take_events(fabric);
        let Some(session) = self.session.as_mut().filter(|_| self.peer.is_some()) else {
            return false;
        };
        let port = fabric.port(self.near);
        let is_enabled = port.is_none_or(|port| port.physical_state != PhysicalState::Disabled);
        if self.reported.replace(is_enabled) != Some(is_enabled) {
            session.report_port(is_enabled);
        }
        if !self.peer_is_enabled {
            self.unplug(fabric);
            return false;
        }
        if !self.is_plugged {
            self.is_plugged = true;
            fabric.set_link(self.link, LinkState::Up);
        }
        let gateway = self.gateway;
        let mut moved = false;
        while let Some(crossing) =
            session.poll_crossing(|lane| fabric.waiting_at(gateway, lane) < DEPTH)
        {
            fabric.send_from(gateway, crossing);
            moved = true;
        }
        loop {
            let lanes = (0..16).filter_map(Vl::new);
            let lanes: Lanes = lanes.filter(|lane| session.has_place(*lane)).collect();
            let next = match session.carries_runs() {
                true => fabric.take_whole_from(gateway, lanes),
                false => fabric.take_from(gateway, lanes).map(Crossing::Packet),
            };
            let Some(next) = next else {
                return moved;
            };
            session.send(next);
            moved = true;
        }
    }

    fn take_events<D: EndNode>(&mut self, fabric: &mut Fabric<D>) {
        while let Some(event) = self.session.as_mut().and_then(Session::poll_event) {
            match event {
                SessionEvent::Opened(peer) => self.peer = Some(peer),
                SessionEvent::PeerPort { enabled } => self.peer_is_enabled = enabled,
                SessionEvent::Closed(reason) => {
                    self.ended = Some(reason);
                    self.peer = None;
                    self.unplug(fabric);
                }
            }
        }
    }

    /// Takes the cable out. The packets on it are lost.
    fn unplug<D: EndNode>(&mut self, fabric: &mut Fabric<D>) {
        if core::mem::take(&mut self.is_plugged) {
            fabric.set_link(self.link, LinkState::Down);
            fabric.clear_gateway(self.gateway);
        }
    }
}
