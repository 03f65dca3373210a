//! Attaching to fabrics outside: to nodes of an `ibsim`, each with an adapter of ours, and to the port of a Linux HCA ([`linux`]).
//!
//! Each [`IbsimNode`] is a client of the simulator (see [`ibsim_link::uplink`]) and drives one PF host,
//! which it adds to the lab when it has learnt who the node is. A simulator that is not there, or not
//! any more, is tried again; meanwhile the host's port is down.

pub(super) mod linux;
mod sockets;

use std::io;

use emulated_hca::{HcaConfig, Lanes, LinkConfig, LinkId, LinkState, NodeId, PortConfig};
use ib_vtime::Instant;
use ib_wire::{Guid, PortNum};
use ibsim_link::codec::MAD_DATAGRAM_SIZE;
use ibsim_link::uplink::{
    Failure, GuidPolicy, Identity, Uplink, UplinkConfig, UplinkOutput, UplinkState,
};
use pf_context::GuidObstacle;

use super::announcement::Announcement;
use super::attach_spec::AttachSpec;
use super::ibsim::sockets::IbsimAddress;
use super::options::Options;
use super::way_in::{Turn, WayIn};
use vhca::watch::{EventSet, Ready};
use vhca::world::HostId;

use sockets::{ClientSockets, Socket};

/// The port of the adapter that is at the simulated node: the protocol knows one per node.
const PORT: PortNum = PortNum(1);

/// Datagrams that are read before the world gets its turn. The simulator stands still while a client's
/// socket is full, so this is more than a socket holds.
const BATCH: usize = 4096;

/// Where the node's adapter is.
#[derive(Clone, Copy, Debug)]
struct Place {
    host: HostId,
    gateway: NodeId,
    link: LinkId,
}

/// A node of a simulator, with a PF host of ours on it.
#[derive(Debug)]
pub struct IbsimNode {
    simulator: IbsimAddress,
    name: String,
    uplink: Uplink,
    /// What the host and its VFs are made from.
    options: Options,
    sockets: Option<ClientSockets>,
    place: Option<Place>,
    /// What the data socket had no room for.
    unsent: Option<Box<[u8; MAD_DATAGRAM_SIZE]>>,
    told: Option<Told>,
    now: Instant,
}

/// What was announced last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Attached,
    /// Attached, but nobody manages the subnet.
    Unmanaged,
    Waiting(Failure),
}

impl IbsimNode {
    /// A node to attach to.
    #[must_use]
    pub fn new(now: Instant, simulator: IbsimAddress, name: &str, options: &Options) -> Self {
        let config = UplinkConfig {
            node: name.to_owned(),
            guids: if options.local_guids {
                GuidPolicy::Local
            } else {
                GuidPolicy::Fabric
            },
        };
        Self {
            simulator,
            name: name.to_owned(),
            uplink: Uplink::new(now, config),
            options: options.clone(),
            sockets: None,
            place: None,
            unsent: None,
            told: None,
            now,
        }
    }

    /// All nodes that the options name.
    pub fn all(now: Instant, options: &Options) -> Vec<Self> {
        let specs = options.attach.iter().filter_map(AttachSpec::ibsim);
        let nodes = specs.flat_map(|spec| spec.nodes.iter().map(move |node| (spec, node)));
        nodes
            .map(|(spec, node)| Self::new(now, spec.simulator.clone(), node, options))
            .collect()
    }

    /// Does everything that is due.
    fn drive(&mut self, turn: &mut Turn<'_>) {
        self.now = turn.now;
        let due = self.uplink.poll_timeout(turn.now);
        if due.is_some_and(|due| due <= turn.now) {
            self.uplink.handle_timeout(turn.now);
        }
        loop {
            self.take_frames(turn);
            if !self.resend(turn) {
                break;
            }
            let Some(output) = self.uplink.poll_output() else {
                break;
            };
            self.carry_out(turn, output);
        }
        self.announce(turn);
    }

    /// Takes what the adapter has sent.
    fn take_frames(&mut self, turn: &mut Turn<'_>) {
        let Some(place) = self.place else { return };
        let fabric = turn.lab.world_mut().fabric_mut();
        while let Some(frame) = fabric.take_from(place.gateway, Lanes::ALL) {
            self.uplink.handle_frame(turn.now, frame);
        }
    }

    /// Sends what there was no room for. Whether there is none left.
    fn resend(&mut self, turn: &mut Turn<'_>) -> bool {
        match self.unsent.take() {
            Some(bytes) => self.send_mad(turn, bytes),
            None => true,
        }
    }

    fn send_mad(&mut self, turn: &mut Turn<'_>, bytes: Box<[u8; MAD_DATAGRAM_SIZE]>) -> bool {
        let Some(sockets) = &self.sockets else {
            return true;
        };
        match sockets.data.send(&bytes[..]) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.unsent = Some(bytes);
                turn.watches
                    .modify(&sockets.data, EventSet::IN | EventSet::OUT);
                false
            }
            Err(_) => {
                self.uplink.failed(turn.now);
                true
            }
        }
    }

    fn carry_out(&mut self, turn: &mut Turn<'_>, output: UplinkOutput) {
        match output {
            UplinkOutput::Open => self.open(turn),
            UplinkOutput::Control(bytes) => {
                let sent = self.sockets.as_ref().map(|s| s.control.send(&bytes[..]));
                self.check(turn, sent);
            }
            UplinkOutput::Join(slot) => {
                let sockets = self.sockets.as_ref();
                let joined = sockets.map(|sockets| sockets.join(&self.simulator, slot));
                self.check(turn, joined);
            }
            UplinkOutput::Mad(bytes) => {
                self.send_mad(turn, bytes);
            }
            UplinkOutput::Close => self.close(turn),
            UplinkOutput::Identity(identity) => self.add_host(turn, &identity),
            UplinkOutput::Cable(plugged) => {
                if let Some(place) = self.place {
                    let state = if plugged {
                        LinkState::Up
                    } else {
                        LinkState::Down
                    };
                    let fabric = turn.lab.world_mut().fabric_mut();
                    fabric.set_link(place.link, state);
                }
            }
            UplinkOutput::Frame(frame) => {
                if let Some(place) = self.place {
                    let fabric = turn.lab.world_mut().fabric_mut();
                    fabric.send_from(place.gateway, frame);
                }
            }
            UplinkOutput::GuidsRefused(refused) => {
                if let Some(place) = self.place {
                    let obstacle = refused.then_some(GuidObstacle::RefusedByFabric);
                    let context = turn.lab.world_mut().context_mut(place.host);
                    if let Some(port) = context.port_mut(PORT) {
                        port.set_guid_obstacle(obstacle);
                    }
                }
            }
        }
    }

    fn open(&mut self, turn: &mut Turn<'_>) {
        self.close(turn);
        match ClientSockets::open(&self.simulator) {
            Ok(sockets) => {
                turn.watches.add(&sockets.control, EventSet::IN);
                turn.watches.add(&sockets.data, EventSet::IN);
                self.uplink.opened(turn.now, sockets.client_id);
                self.sockets = Some(sockets);
            }
            Err(_) => self.uplink.failed(turn.now),
        }
    }

    fn check(&mut self, turn: &Turn<'_>, done: Option<io::Result<()>>) {
        if matches!(done, Some(Err(_))) {
            self.uplink.failed(turn.now);
        }
    }

    fn close(&mut self, turn: &mut Turn<'_>) {
        self.unsent = None;
        if let Some(sockets) = self.sockets.take() {
            turn.watches.remove(sockets.control);
            turn.watches.remove(sockets.data);
        }
    }

    /// Adds the PF host, with an adapter that is what the node is, and its way out.
    fn add_host(&mut self, turn: &mut Turn<'_>, identity: &Identity) {
        let config = HcaConfig {
            ports: 1,
            system_image_guid: identity.system_image_guid,
            guid_table_len: identity.guid_table_len,
            pkey_table_len: identity.pkey_table_len,
            // Port 1 has the GUID that the SA knows.
            ..HcaConfig::new(
                Guid::new(identity.port_guid.get().wrapping_sub(1)),
                &self.name,
            )
        };
        match turn.lab.add_pf(&self.options, &config) {
            Ok(host) => {
                let world = turn.lab.world_mut();
                let node = world.host(host).node();
                let fabric = world.fabric_mut();
                let gateway =
                    fabric.add_gateway(&self.simulator.to_string(), PortConfig::default());
                let cable =
                    fabric.connect(node.port(PORT.0), gateway.port(1), LinkConfig::default());
                if let Ok(link) = cable {
                    fabric.set_link(link, LinkState::Down);
                    self.place = Some(Place {
                        host,
                        gateway,
                        link,
                    });
                }
                self.note_awaited(turn, "");
            }
            Err(error) => {
                let error = anyhow::Error::from(error);
                self.note_awaited(turn, &format!("{error:#}"));
                turn.announce(Announcement::Uplink {
                    simulator: self.simulator.to_string(),
                    node: self.name.clone(),
                    attached: true,
                    detail: format!("no host: {error:#}"),
                });
            }
        }
    }

    /// Notes why the host is not there, as long as it is not.
    fn note_awaited(&self, turn: &mut Turn<'_>, why_not: &str) {
        let why_not = self.place.is_none().then(|| why_not.to_owned());
        let simulator = self.simulator.to_string();
        turn.lab
            .inventory
            .awaited
            .note(&simulator, &self.name, why_not);
    }

    /// Says what is news about the way to the simulator.
    fn announce(&mut self, turn: &mut Turn<'_>) {
        let (told, detail) = match self.uplink.state() {
            UplinkState::Attaching => return,
            UplinkState::Attached { .. } if self.uplink.sm_is_silent() => (
                Told::Unmanaged,
                "attached, but the subnet manager does not answer".to_owned(),
            ),
            UplinkState::Attached { slot } => (Told::Attached, format!("attached, slot {slot}")),
            UplinkState::Waiting { failure, .. } => {
                self.note_awaited(turn, &failure.to_string());
                (Told::Waiting(failure), format!("{failure}; trying again"))
            }
        };
        if self.told.replace(told) != Some(told) {
            turn.announce(Announcement::Uplink {
                simulator: self.simulator.to_string(),
                node: self.name.clone(),
                attached: !matches!(told, Told::Waiting(_)),
                detail,
            });
        }
    }

    /// Reads what has come. The kernel keeps what is behind the batch.
    fn receive(&mut self, now: Instant) {
        /// One byte more than a datagram has, so that a longer one is seen as such.
        const ROOM: usize = MAD_DATAGRAM_SIZE + 1;
        let mut buffer = [0; ROOM];
        for is_control in [true, false] {
            for _ in 0..BATCH {
                let Some(sockets) = &self.sockets else { return };
                let socket: &Socket = if is_control {
                    &sockets.control
                } else {
                    &sockets.data
                };
                match socket.receive(&mut buffer) {
                    Ok(length) if is_control => self.uplink.handle_control(now, &buffer[..length]),
                    Ok(length) => self.uplink.handle_mad(now, &buffer[..length]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => {
                        self.uplink.failed(now);
                        break;
                    }
                }
            }
        }
    }
}

impl WayIn for IbsimNode {
    fn start(&mut self, turn: &mut Turn<'_>) {
        self.note_awaited(turn, "it has not answered yet");
        self.drive(turn);
    }

    fn handle_ready(&mut self, turn: &mut Turn<'_>, ready: Ready) {
        if ready.events.contains(EventSet::OUT)
            && let Some(sockets) = &self.sockets
        {
            turn.watches.modify(&sockets.data, EventSet::IN);
        }
        self.receive(turn.now);
    }

    fn flush(&mut self, turn: &mut Turn<'_>) {
        self.drive(turn);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.uplink.poll_timeout(self.now)
    }
}

impl Drop for IbsimNode {
    /// Leaves the simulator's slot to others.
    fn drop(&mut self) {
        self.uplink.close();
        while let Some(output) = self.uplink.poll_output() {
            if let (UplinkOutput::Control(bytes), Some(sockets)) = (output, &self.sockets) {
                // A simulator that is gone needs no goodbye.
                let _ = sockets.control.send(&bytes[..]);
            }
        }
    }
}

#[cfg(test)]
mod tests;
