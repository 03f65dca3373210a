//! The deterministic runner: a fabric, the software on its hosts, and a virtual clock.
//!
//! A [`World`] holds an emulated fabric and, for each host, what runs on a real one. A plain host has
//! an [`EndPort`](ib_endpoint::EndPort) on each port of its adapter. A PF host
//! ([`World::add_pf_host`]) has a [`PfContext`](pf_context::PfContext), and for each of its VFs a
//! guest: the same software on the proxies that the VF has of the ports' QP1; or a VMM drives a device on
//! it ([`World::add_device`]), or a program holds it itself ([`World::open_vf`]). These are three kinds of
//! [`Consumer`](hca_api::Consumer); of any other kind one runs on a VF by [`World::add_consumer`], and on an adapter that
//! is not shared by [`World::add_host_of`]. On one or more hosts runs a subnet manager.
//!
//! [`World::run_until`] lets everything happen that is due, then jumps the clock to the next deadline.
//! Nothing in it waits, and nothing depends on anything but the calls and the seed: the same calls give
//! the same packets.
//!
//! Programs outside use any port beside that software ([`World::port_agents_mut`]).
//!
//! The same world can be driven by the wall clock: it is [`Driven`](crate::Driven).

mod adapters;
mod agents;
mod alarms;
mod bare;
mod consumers;
mod devices;
mod host;
mod ids;
mod manager;
mod native;
mod provider;
mod run;
mod shared;
mod socket;
mod software;
mod switch;
mod taps;
#[cfg(feature = "trunk")]
mod trunks;
mod user;
mod vfs;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use emulated_hca::{Fabric, NodeId};
use hca_api::{AddressSpace, FunctionId, Hca, HcaError, UdDestination};
use ib_endpoint::{DatagramQpSpec, EndPortError, EndPortEvent};
use ib_vtime::{Duration, Instant, Secret, SecretNumbers};
use subnet_lite::{OpenError, SubnetConfig, SubnetManager};

pub use adapters::OutsideHca;
pub use agents::PortAgents;
pub use host::Host;
pub use ids::{HostFunction, HostId, HostPortId, SocketId};
pub use socket::Socket;
pub use software::Software;
pub use user::PortSoftware;
pub use vfs::{VfError, vf_node_guid, vf_spec};

use adapters::Adapters;
use alarms::Alarms;
use bare::BareNode;
use host::start_software;
use switch::SwitchSoftware;
use taps::Taps;

use crate::FairQueue;

/// How a run in virtual time ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The condition came true.
    Reached,
    /// The time was up first.
    TimedOut,
    /// Machines keep each other busy without time passing: a bug in one of them.
    LiveLock,
}

/// A fabric with the software on its hosts. See the [module](self).
#[derive(Debug)]
pub struct World {
    adapters: Adapters,
    hosts: Vec<Host>,
    host_at: BTreeMap<NodeId, HostId>,
    /// When the software on each function wants to be polled.
    alarms: Alarms<HostFunction>,
    /// Functions whose software was lent out: it may have something to do.
    woken: Vec<HostFunction>,
    /// Functions whose turn it is.
    turns: FairQueue<HostFunction>,
    /// The longest time that a function has had, of the functions that the fabric served in its share.
    served_had: Duration,
    /// Functions share adapters by time where slices end by the clock.
    shares_time: bool,
    /// Hosts whose functions may have events.
    stirred: VecDeque<HostId>,
    /// Whether the slice of the last poll was too short for all that was due.
    is_unfinished: bool,
    /// Hosts that [`World::take_polled`] has not told of yet.
    polled: BTreeSet<HostId>,
    /// VFs that are held: what runs on them has no turns.
    held: BTreeSet<HostFunction>,
    /// Devices with MSI-X vectors to be signalled.
    interrupting: BTreeSet<HostFunction>,
    /// Devices whose vectors, addresses or doorbells changed.
    changed: BTreeSet<HostFunction>,
    /// The software on port 0 of the switches that programs use.
    switches: BTreeMap<NodeId, SwitchSoftware>,
    switch_alarms: Alarms<NodeId>,
    woken_switches: Vec<NodeId>,
    /// Secrets of the software.
    secrets: SecretNumbers,
    now: Instant,
    live_locked: bool,
    taps: Taps,
    #[cfg(feature = "trunk")]
    trunks: Option<vhca_trunk::Trunks>,
}

impl World {
    /// A world of nodes and links without software. Keys, PSNs and ids of the software follow from the
    /// secret; a seed stands for a secret.
    #[must_use]
    pub fn new(fabric: Fabric, secret: impl Into<Secret>) -> Self {
        Self {
            adapters: Adapters::new(fabric),
            hosts: Vec::new(),
            host_at: BTreeMap::new(),
            alarms: Alarms::new(),
            woken: Vec::new(),
            turns: FairQueue::default(),
            served_had: Duration::ZERO,
            shares_time: false,
            stirred: VecDeque::new(),
            is_unfinished: false,
            polled: BTreeSet::new(),
            held: BTreeSet::new(),
            interrupting: BTreeSet::new(),
            changed: BTreeSet::new(),
            switches: BTreeMap::new(),
            switch_alarms: Alarms::new(),
            woken_switches: Vec::new(),
            secrets: secret.into().of(b"software").numbers(),
            now: Instant::ZERO,
            live_locked: false,
            taps: Taps::default(),
            #[cfg(feature = "trunk")]
            trunks: None,
        }
    }

    /// Starts the software of a host that has a node's adapter to itself: an
    /// [`EndPort`](ib_endpoint::EndPort) on each port.
    ///
    /// # Errors
    /// [`EndPortError`]; [`HcaError::InvalidParameter`] if the node is a switch.
    pub fn add_host(&mut self, node: NodeId) -> Result<HostId, EndPortError> {
        let secret = self.derived_secret();
        let software = start_software(self.now, &mut self.adapters, node, secret)?;
        Ok(self.add_host_of(node, Box::new(software)))
    }

    /// Adds a host on whose ports nothing runs: programs register all classes of MADs themselves ([`World::port_agents_mut`]),
    /// Send of the CM and Report of the SA included. [`World::port`] has nothing for it. `memory` is that of the adapter's function,
    /// which [`World::add_to_bare_host`] gives to a consumer.
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`] if the node is a switch; [`HcaError::SpecialQpTaken`] if the QP1 of a port is taken;
    /// [`HcaError::InUse`] if the function is in use.
    pub fn add_bare_host(
        &mut self,
        node: NodeId,
        memory: Box<dyn AddressSpace>,
    ) -> Result<HostId, HcaError> {
        let device = self.adapters.fabric.unserved_device_mut(node);
        device
            .ok_or(HcaError::InvalidParameter)?
            .set_memory(memory)?;
        let secret = self.derived_secret();
        let mut hca = self.adapters.function(node, FunctionId::PF)?;
        let bare = BareNode::open(&mut hca, secret)?;
        Ok(self.add_host_of(node, Box::new(bare)))
    }

    fn admit(&mut self, host: Host) -> HostId {
        let id = HostId(self.hosts.len());
        self.host_at.insert(host.node(), id);
        self.hosts.push(host);
        self.capture_tunnels(id);
        self.wake(id.pf());
        id
    }

    /// Starts a subnet manager with its SA on a host's port, in place of one that runs there.
    ///
    /// # Errors
    /// [`OpenError`]; [`HcaError::InvalidPort`] if the host has no such port,
    /// [`HcaError::InvalidParameter`] if the port is a VF's.
    pub fn start_manager(&mut self, at: HostPortId, config: SubnetConfig) -> Result<(), OpenError> {
        if at.function != FunctionId::PF {
            return Err(HcaError::InvalidParameter.into());
        }
        let secret = self.derived_secret();
        self.wake(at.on());
        self.hosts[at.host.0].start_manager(&mut self.adapters, at.port, config, secret)
    }

    /// Stops a host's subnet manager as if its process were killed: it tells nobody.
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`] if the node is gone.
    pub fn stop_manager(&mut self, host: HostId) -> Result<(), HcaError> {
        self.wake(host.pf());
        self.hosts[host.0].stop_manager(&mut self.adapters)
    }

    /// Starts a heavy sweep of a host's subnet manager with the next poll. Returns `false` if none runs there.
    pub fn request_sweep(&mut self, host: HostId) -> bool {
        let now = self.now();
        self.wake(host.pf());
        self.hosts[host.0].request_sweep(now)
    }

    /// Returns a secret that differs from call to call.
    fn derived_secret(&mut self) -> Secret {
        self.secrets.secret()
    }

    /// Has a function's software polled with the next poll of the world.
    fn wake(&mut self, at: HostFunction) {
        if !self.woken.contains(&at) {
            self.woken.push(at);
        }
    }

    /// Has the software on a switch's port 0 polled with the next poll of the world.
    fn wake_switch(&mut self, node: NodeId) {
        if !self.woken_switches.contains(&node) {
            self.woken_switches.push(node);
        }
    }

    /// Whether the world is stuck: see [`Outcome::LiveLock`].
    #[must_use]
    pub const fn is_live_locked(&self) -> bool {
        self.live_locked
    }

    /// The time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// The fabric.
    #[must_use]
    pub const fn fabric(&self) -> &Fabric {
        &self.adapters.fabric
    }

    /// The fabric, to plug cables and plan faults.
    pub const fn fabric_mut(&mut self) -> &mut Fabric {
        &mut self.adapters.fabric
    }

    /// A host.
    ///
    /// # Panics
    /// If the id is of another world; so do all calls that take one.
    #[must_use]
    pub fn host(&self, id: HostId) -> &Host {
        &self.hosts[id.0]
    }

    /// A port's software.
    ///
    /// # Panics
    /// If there is no such port, or no software on that function.
    #[must_use]
    pub fn port(&self, at: HostPortId) -> &dyn PortSoftware {
        let port = self.hosts[at.host.0].port(at.function, at.port);
        port.expect(NO_PORT)
    }

    /// A port's software, to be used. What it wants to send leaves with the next poll.
    ///
    /// # Panics
    /// If there is no such port, or no software on that function.
    pub fn port_mut(&mut self, at: HostPortId) -> &mut dyn PortSoftware {
        self.wake(at.on());
        let port = self.hosts[at.host.0].port_mut(at.function, at.port);
        port.expect(NO_PORT)
    }

    /// The next event of a port. (A port's own `poll_event` gives nothing: the world pulls.)
    pub fn poll_event(&mut self, at: HostPortId) -> Option<EndPortEvent> {
        self.hosts[at.host.0].poll_event(at.function, at.port)
    }

    /// The next host whose software was polled since it was last told of here: it may have events. Others
    /// have none that are new.
    pub fn take_polled(&mut self) -> Option<HostId> {
        self.polled.pop_first()
    }

    /// A host's subnet manager.
    #[must_use]
    pub fn manager(&self, host: HostId) -> Option<&SubnetManager> {
        self.hosts[host.0].manager()
    }

    /// Opens a datagram socket on a function: a UD queue pair whose messages the world collects.
    ///
    /// # Errors
    /// Those of [`ib_endpoint::DatagramQp::open`]; [`HcaError::InvalidHandle`] if no software runs
    /// on the function.
    pub fn open_socket(
        &mut self,
        on: impl Into<HostFunction>,
        spec: DatagramQpSpec,
    ) -> Result<SocketId, HcaError> {
        let on = on.into();
        self.wake(on);
        let host = &mut self.hosts[on.host.0];
        let mut hca = self.adapters.function(host.node(), on.function)?;
        let sockets = host.sockets_mut(on.function);
        let serial = sockets
            .ok_or(HcaError::InvalidHandle)?
            .open(&mut hca, spec)?;
        Ok(SocketId { on, serial })
    }

    /// Closes a socket, unless it is closed already.
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`] if the node is gone.
    pub fn close_socket(&mut self, id: SocketId) -> Result<(), HcaError> {
        let host = &mut self.hosts[id.on.host.0];
        let mut hca = self.adapters.function(host.node(), id.on.function)?;
        if let Some(sockets) = host.sockets_mut(id.on.function) {
            sockets.close(&mut hca, id.serial);
        }
        Ok(())
    }

    /// A socket.
    ///
    /// # Panics
    /// If it is closed.
    #[must_use]
    pub fn socket(&self, id: SocketId) -> &Socket {
        let sockets = self.hosts[id.on.host.0].sockets(id.on.function);
        sockets
            .and_then(|sockets| sockets.get(id.serial))
            .expect(NO_SOCKET)
    }

    /// A socket, to take what it received.
    ///
    /// # Panics
    /// If it is closed.
    pub fn socket_mut(&mut self, id: SocketId) -> &mut Socket {
        let sockets = self.hosts[id.on.host.0].sockets_mut(id.on.function);
        sockets
            .and_then(|sockets| sockets.get_mut(id.serial))
            .expect(NO_SOCKET)
    }

    /// Sends a message from a socket.
    ///
    /// # Errors
    /// Those of [`ib_endpoint::DatagramQp::send`].
    ///
    /// # Panics
    /// If the socket is closed.
    pub fn send(
        &mut self,
        id: SocketId,
        destination: &UdDestination,
        message: &[u8],
    ) -> Result<(), HcaError> {
        let host = &mut self.hosts[id.on.host.0];
        let mut hca = self.adapters.function(host.node(), id.on.function)?;
        let sockets = host.sockets_mut(id.on.function);
        let socket = sockets.and_then(|sockets| sockets.get_mut(id.serial));
        socket
            .expect(NO_SOCKET)
            .qp
            .send(&mut hca, Some(destination), message)
    }

    /// Calls something with a function of a host's adapter. Not for the conditions of
    /// [`World::run_until`]: the fabric takes an adapter that was lent out for busy.
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`] if there is no such function, or what `call` gives.
    pub fn with_hca<T>(
        &mut self,
        on: impl Into<HostFunction>,
        call: impl FnOnce(&mut dyn Hca) -> Result<T, HcaError>,
    ) -> Result<T, HcaError> {
        let on = on.into();
        let node = self.hosts[on.host.0].node();
        call(&mut self.adapters.function(node, on.function)?)
    }
}

const NO_PORT: &str = "there is no such port, or no software on it";
const NO_SOCKET: &str = "the socket is closed";

#[cfg(test)]
mod tests;
