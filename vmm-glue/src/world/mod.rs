//! The deterministic runner: a fabric, the software on its hosts, and a virtual clock.
//!
//! A [`World`] holds an emulated fabric and, for each host, what runs on a real one: an [`EndPort`] on
//! each port, and on one or more hosts a subnet manager.
//! [`World::run_until`] lets everything happen that is due, then jumps the clock to the next deadline.
//! Nothing in it waits, and nothing depends on anything but the calls and the seed: the same calls give
//! the same packets.
//!
//! The same world can be driven by the wall clock: it is [`Driven`].

mod host;

use std::collections::VecDeque;

use emulated_hca::hca::Function;
use emulated_hca::{Fabric, NodeId, NodeKind, TapPoint, Tapped};
use hca_api::{FunctionId, Hca, HcaError, UdDestination};
use ib_capture::{FrameRecord, Interface};
use ib_endpoint::{DatagramQpSpec, EndPort, EndPortError, EndPortEvent};
use ib_vtime::{Duration, Instant};
use ib_wire::PortNum;
use subnet_lite::{OpenError, SubnetConfig, SubnetManager};

pub use host::{Host, Socket};

use crate::Driven;

/// Rounds of work at one time after which a world counts as live-locked: its machines make each
/// other busy for ever.
const MAX_ROUNDS: u32 = 1_000_000;

/// Names a host of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(usize);

impl HostId {
    /// A port of the host.
    #[must_use]
    pub const fn port(self, port: u8) -> HostPortId {
        HostPortId {
            host: self,
            port: PortNum(port),
        }
    }
}

/// Names a port of a host of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPortId {
    /// The host.
    pub host: HostId,
    /// Its port.
    pub port: PortNum,
}

/// Names a datagram socket on a host of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SocketId {
    host: HostId,
    index: usize,
}

/// How a run in virtual time ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    fabric: Fabric,
    hosts: Vec<Host>,
    seed: u64,
    now: Instant,
    live_locked: bool,
    frames: VecDeque<FrameRecord>,
}

impl World {
    /// A world of nodes and links without software. All seeds are derived from `seed`.
    #[must_use]
    pub const fn new(fabric: Fabric, seed: u64) -> Self {
        Self {
            fabric,
            hosts: Vec::new(),
            seed,
            now: Instant::ZERO,
            live_locked: false,
            frames: VecDeque::new(),
        }
    }

    /// Starts the software of a host on the physical function of a node's adapter: an [`EndPort`] on
    /// each port.
    ///
    /// # Errors
    /// [`EndPortError`]; [`HcaError::InvalidParameter`] if the node is a switch.
    pub fn add_host(&mut self, node: NodeId) -> Result<HostId, EndPortError> {
        let id = HostId(self.hosts.len());
        let seed = self.derived_seed();
        let mut hca = physical_function(&mut self.fabric, node)?;
        self.hosts
            .push(Host::start(self.now, node, &mut hca, seed)?);
        Ok(id)
    }

    /// Starts a subnet manager with its SA on a host's port, in place of one that runs there.
    ///
    /// # Errors
    /// [`OpenError`].
    ///
    /// # Panics
    /// If the host has no such port.
    pub fn start_manager(&mut self, at: HostPortId, config: SubnetConfig) -> Result<(), OpenError> {
        let seed = self.derived_seed();
        let host = &mut self.hosts[at.host.0];
        let mut hca = physical_function(&mut self.fabric, host.node())?;
        host.start_manager(&mut hca, at.port, config, seed)
    }

    /// Stops a host's subnet manager as if its process were killed: it tells nobody.
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`] if the node is gone.
    pub fn stop_manager(&mut self, host: HostId) -> Result<(), HcaError> {
        let host = &mut self.hosts[host.0];
        let mut hca = physical_function(&mut self.fabric, host.node())?;
        host.stop_manager(&mut hca)
    }

    /// A seed that differs from call to call (the step of SplitMix64, whose consumers scramble it).
    const fn derived_seed(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.seed
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
        &self.fabric
    }

    /// The fabric, to plug cables and plan faults.
    pub const fn fabric_mut(&mut self) -> &mut Fabric {
        &mut self.fabric
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
    /// If the host has no such port.
    #[must_use]
    pub fn port(&self, at: HostPortId) -> &EndPort {
        &self.hosts[at.host.0].ports[at.port.index() - 1]
    }

    /// A port's software, to be used. What it wants to send leaves with the next poll.
    ///
    /// # Panics
    /// If the host has no such port.
    pub fn port_mut(&mut self, at: HostPortId) -> &mut EndPort {
        &mut self.hosts[at.host.0].ports[at.port.index() - 1]
    }

    /// The next event of a port. (A port's own `poll_event` gives nothing: the world pulls.)
    ///
    /// # Panics
    /// If the host has no such port.
    pub fn poll_event(&mut self, at: HostPortId) -> Option<EndPortEvent> {
        self.hosts[at.host.0].events[at.port.index() - 1].pop_front()
    }

    /// A host's subnet manager.
    #[must_use]
    pub fn manager(&self, host: HostId) -> Option<&SubnetManager> {
        self.hosts[host.0].manager()
    }

    /// Opens a datagram socket on a host: a UD queue pair whose messages the world collects.
    ///
    /// # Errors
    /// Those of [`ib_endpoint::DatagramQp::open`].
    pub fn open_socket(
        &mut self,
        host: HostId,
        spec: DatagramQpSpec,
    ) -> Result<SocketId, HcaError> {
        let entry = &mut self.hosts[host.0];
        let mut hca = physical_function(&mut self.fabric, entry.node())?;
        entry.sockets.push(Socket::open(&mut hca, spec)?);
        Ok(SocketId {
            host,
            index: entry.sockets.len() - 1,
        })
    }

    /// A socket.
    #[must_use]
    pub fn socket(&self, id: SocketId) -> &Socket {
        &self.hosts[id.host.0].sockets[id.index]
    }

    /// A socket, to take what it received.
    pub fn socket_mut(&mut self, id: SocketId) -> &mut Socket {
        &mut self.hosts[id.host.0].sockets[id.index]
    }

    /// Sends a message from a socket.
    ///
    /// # Errors
    /// Those of [`ib_endpoint::DatagramQp::send`].
    pub fn send(
        &mut self,
        id: SocketId,
        destination: &UdDestination,
        message: &[u8],
    ) -> Result<(), HcaError> {
        let host = &mut self.hosts[id.host.0];
        let mut hca = physical_function(&mut self.fabric, host.node())?;
        host.sockets[id.index]
            .qp
            .send(&mut hca, destination, message)
    }

    /// Calls something with a host's adapter. Not for the conditions of [`World::run_until`]: the
    /// fabric takes an adapter that was lent out for busy.
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`] if the node is gone, or what `call` gives.
    pub fn with_hca<T>(
        &mut self,
        host: HostId,
        call: impl FnOnce(&mut dyn Hca) -> Result<T, HcaError>,
    ) -> Result<T, HcaError> {
        let node = self.hosts[host.0].node();
        call(&mut physical_function(&mut self.fabric, node)?)
    }

    /// Records every packet on every link from now on; see [`World::poll_frame`].
    pub fn capture(&mut self) {
        self.fabric.add_tap(TapPoint::Everything);
    }

    /// The next recorded packet. Its interface tells what sort of link it passed: 0 from an adapter to
    /// a switch, 1 between switches, 2 from a switch to an adapter, 3 between adapters.
    pub fn poll_frame(&mut self) -> Option<FrameRecord> {
        self.frames.pop_front()
    }

    /// Runs in virtual time until the condition holds, for at most `limit`. The condition is looked at
    /// whenever everything that is due at a time was done.
    pub fn run_until(
        &mut self,
        limit: Duration,
        mut condition: impl FnMut(&mut Self) -> bool,
    ) -> Outcome {
        let end = self.now + limit;
        let mut standstill = 0;
        loop {
            self.poll(self.now);
            if self.live_locked || standstill == MAX_ROUNDS {
                return Outcome::LiveLock;
            }
            if condition(self) {
                return Outcome::Reached;
            }
            let next = self.poll_timeout().map_or(end, |next| next.max(self.now));
            if self.now >= end {
                return Outcome::TimedOut;
            }
            standstill = if next > self.now { 0 } else { standstill + 1 };
            self.now = next.min(end);
        }
    }

    /// Runs in virtual time for `duration`.
    pub fn run_for(&mut self, duration: Duration) -> Outcome {
        match self.run_until(duration, |_| false) {
            Outcome::LiveLock => Outcome::LiveLock,
            Outcome::Reached | Outcome::TimedOut => Outcome::Reached,
        }
    }

    /// Lets the fabric and then every host do what is due, once. Whether any host did something.
    fn round(&mut self) -> bool {
        while self.fabric.poll(self.now) {}
        self.record_taps();
        let mut busy = false;
        for host in &mut self.hosts {
            if let Ok(mut hca) = physical_function(&mut self.fabric, host.node()) {
                busy |= host.poll(self.now, &mut hca);
            }
        }
        busy
    }

    fn record_taps(&mut self) {
        while let Some(tapped) = self.fabric.poll_tap() {
            let record = tapped.record(self.interface(&tapped));
            self.frames.push_back(record);
        }
    }

    fn interface(&self, tapped: &Tapped) -> Interface {
        let is_switch = |node| {
            let node = self.fabric.node(node);
            node.is_some_and(|node| node.kind() == NodeKind::Switch)
        };
        Interface::from_low_bits(
            match (is_switch(tapped.from.node), is_switch(tapped.to.node)) {
                (false, true) => 0,
                (true, true) => 1,
                (true, false) => 2,
                (false, false) => 3,
            },
        )
    }
}

impl Driven for World {
    fn poll(&mut self, now: Instant) {
        self.now = now;
        for _ in 0..MAX_ROUNDS {
            if !self.round() {
                // The fabric serves the nodes that the hosts looked at, and is quiet.
                while self.fabric.poll(now) {}
                self.record_taps();
                return;
            }
        }
        self.live_locked = true;
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let hosts = self.hosts.iter().filter_map(Host::poll_timeout);
        hosts.chain(self.fabric.poll_timeout()).min()
    }
}

fn physical_function(fabric: &mut Fabric, node: NodeId) -> Result<Function<'_>, HcaError> {
    fabric
        .hca(node, FunctionId::PF)
        .ok_or(HcaError::InvalidParameter)
}

#[cfg(test)]
mod tests;
