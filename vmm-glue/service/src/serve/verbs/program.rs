//! A VF that a program has: its device, and the RDMA CM on the VF's port.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use hca_api::{AsyncEvent, Consumer, Hca, HcaEvent, SpecialQp};
use ib_endpoint::{EndPort, EndPortConfig};
use ib_ipoib::{ArpEvent, Node};
use ib_vtime::{Instant, Secret, SecretNumbers};
use ib_wire::PortNum;
use ib_wire::ipoib::HardwareAddress;
use verbs_link::{AddressBook, Budget, ChannelId, CmHost, Errno, MemoryReserve, RdmaCm, Reply};
use vf_proxy::native::ProxyQp;
use vf_uverbs::ProcessDevice;
use vhca_vfio_user::MemoryPool;

use super::conflict::AddressConflict;
use super::rings::MappedRings;
use crate::show::ProgramUsage;

/// MADs that the port of a program on the RDMA CM holds each way.
const DEPTH: u32 = 64;

/// MADs that the port of a VF holds each way while no program has a file of the RDMA CM there: it refuses requests.
const IDLE_DEPTH: u32 = 8;

/// Memory regions of a program at most, as an mlx5 adapter has them. Their memory is of the program's budget.
pub(crate) const MAX_REGIONS: u32 = 1 << 17;

/// Port of the RDMA CM.
pub(super) const PORT: PortNum = PortNum(1);

/// Memory that the service may spend on the program of a VF.
#[derive(Clone, Debug)]
pub(crate) struct ProgramLimit {
    /// Bytes.
    pub(crate) most: u64,
    /// Memory that all VFs share, from which they come.
    pub(crate) pool: Arc<MemoryPool>,
}

/// The memory that all VFs share, as a reserve of budgets.
#[derive(Debug)]
struct Pool(Arc<MemoryPool>);

impl MemoryReserve for Pool {
    fn take(&self, own: u64, bytes: u64) -> bool {
        self.0.take(own, bytes)
    }

    fn give_back(&self, bytes: u64) {
        self.0.give_back(bytes);
    }
}

impl ProgramLimit {
    /// Returns the budget of another program.
    fn budget(&self) -> Budget {
        Budget::new(self.most, Some(Arc::new(Pool(self.pool.clone()))))
    }
}

/// A VF for programs.
#[derive(Debug)]
pub(super) struct VfProgram {
    pub(super) device: ProcessDevice,
    pub(super) cm: RdmaCm,
    /// Opened by the first turn after each reset, since a host's connection manager answers whether a program runs or not.
    port: Option<EndPort<ProxyQp>>,
    /// Its address where other nodes can ask for it, and the address book of the RDMA CM beyond the service's own.
    node: Option<Node>,
    /// Conflicts about the address go there.
    conflicts: Option<Sender<AddressConflict>>,
    /// The VF has the RDMA CM, which a bare node has not.
    has_cm: bool,
    /// A program has used the RDMA CM since the last reset, and the port holds as many MADs as programs need.
    is_deep: bool,
    limit: ProgramLimit,
    /// Secrets of the VF's programs, one after the other.
    secrets: SecretNumbers,
}

impl VfProgram {
    /// Creates a VF that no program has.
    pub(super) fn new(secret: Secret, limit: ProgramLimit) -> Self {
        let mut secrets = secret.numbers();
        Self {
            device: ProcessDevice::new(),
            cm: RdmaCm::new(secrets.secret()),
            port: None,
            node: None,
            conflicts: None,
            has_cm: true,
            is_deep: false,
            limit,
            secrets,
        }
    }

    /// Makes the VF a node of IP over InfiniBand with an address.
    pub(super) fn with_node(
        mut self,
        address: Ipv4Addr,
        conflicts: Sender<AddressConflict>,
    ) -> Self {
        self.node = Some(Node::new(address));
        self.conflicts = Some(conflicts);
        self
    }

    /// Creates the adapter of a bare node, without the RDMA CM, and without a reset: others use it, too.
    pub(super) fn on_bare_node(secret: Secret, limit: ProgramLimit) -> Self {
        Self {
            device: ProcessDevice::on_shared_function(),
            has_cm: false,
            ..Self::new(secret, limit)
        }
    }

    /// Sets the addresses at which the VF's node answers besides its own one.
    pub(super) fn set_aliases(&mut self, aliases: &[Ipv4Addr]) {
        if let Some(node) = &mut self.node {
            node.set_aliases(aliases);
        }
    }

    /// Returns the hardware address at which the VF's node answers, and the bytes of its longest IP packet if the broadcast group says
    /// so. `None` while it is not in the group, or if it is no node.
    pub(super) fn link(&self) -> Option<(HardwareAddress, Option<u32>)> {
        self.node.as_ref().and_then(Node::link)
    }

    /// Assigns the VF to a process. Returns `false` if another has it.
    pub(super) fn claim(&mut self, rings: Arc<MappedRings>) -> bool {
        let budget = self.limit.budget();
        let claimed = self.device.claim(rings, budget.clone());
        if claimed {
            self.cm.set_budget(budget);
        }
        claimed
    }

    /// Takes the VF from its process. The next one has first PSNs of a secret of its own.
    pub(super) fn release(&mut self) {
        self.device.release();
        self.cm = RdmaCm::new(self.secrets.secret());
    }

    /// Opens a file of the RDMA CM.
    pub(super) fn open_cm(&mut self, now: Instant, hca: &mut dyn Hca) -> Result<ChannelId, Errno> {
        if !self.has_cm {
            return Err(Errno::ENODEV);
        }
        if !self.is_deep {
            // A request that arrives between the two ports comes once more.
            if let Some(idle) = self.port.take() {
                idle.close(hca);
            }
            if let Some(node) = &mut self.node {
                node.port_replaced();
            }
            self.port = Some(self.open_port(now, hca, DEPTH)?);
            self.is_deep = true;
        }
        self.cm.open()
    }

    /// Opens the port with room for so many MADs each way.
    fn open_port(
        &mut self,
        now: Instant,
        hca: &mut dyn Hca,
        depth: u32,
    ) -> Result<EndPort<ProxyQp>, Errno> {
        let gsi = ProxyQp::open(hca, SpecialQp::Gsi, PORT, depth)?;
        let config = EndPortConfig {
            depth,
            ..EndPortConfig::host(PORT, self.secrets.secret())
        };
        let opened = EndPort::open_on(now, hca, config, gsi, None);
        opened.map_err(|_| Errno::ENODEV)
    }

    /// Returns what the process owns, and what of it waits.
    pub(super) fn usage(&self) -> ProgramUsage {
        ProgramUsage {
            files: self.device.contexts(),
            queue_pairs: self.device.queue_pairs(),
            cm_ids: self.cm.len(),
            outstanding: self.device.outstanding(),
            waiting: self.device.waiting(),
            dropped_events: self.device.dropped_events + self.cm.dropped_events(),
            memory: self.device.budget().used(),
            memory_most: self.limit.most,
        }
    }

    /// Carries out a command of a file of the RDMA CM.
    pub(super) fn cm_command(
        &mut self,
        now: Instant,
        hca: &mut dyn Hca,
        addresses: &AddressBook,
        channel: ChannelId,
        bytes: &[u8],
    ) -> Result<Reply, Errno> {
        // Ids do not outlive a reset.
        let port = self.port.as_mut().filter(|_| self.is_deep);
        let port = port.ok_or(Errno::EIO)?;
        let mut host = CmHost {
            now,
            port,
            node_guid: hca.attributes().node_guid,
        };
        let done = self.cm.command(&mut host, addresses, channel, bytes);
        while let Some(address) = self.cm.poll_lookup() {
            match &mut self.node {
                Some(node) => node.resolve(now, address),
                None => self.cm.address_found(&mut host, address, None),
            }
        }
        self.take_node_events(now, hca);
        done
    }

    /// Passes what the node found on to the ids that wait for it, and its conflicts to the log.
    fn take_node_events(&mut self, now: Instant, hca: &dyn Hca) {
        let (Some(node), Some(port)) = (&mut self.node, &mut self.port) else {
            return;
        };
        while let Some(event) = node.poll_event() {
            let (ip, gid) = match event {
                ArpEvent::Resolved { ip, gid } => (ip, Some(gid)),
                ArpEvent::Unresolved { ip } => (ip, None),
                ArpEvent::Conflict { ip, gid, yields } => {
                    let conflict = AddressConflict { ip, gid, yields };
                    // Without a service there is no log.
                    let _ = self.conflicts.as_ref().map(|log| log.send(conflict));
                    continue;
                }
            };
            let mut host = CmHost {
                now,
                port: &mut *port,
                node_guid: hca.attributes().node_guid,
            };
            self.cm.address_found(&mut host, ip, gid);
        }
    }

    /// Closes a channel of either kind.
    pub(super) fn close_channel(&mut self, now: Instant, hca: &dyn Hca, channel: ChannelId) {
        match &mut self.port {
            Some(port) if self.cm.has_channel(channel) => {
                let mut host = CmHost {
                    now,
                    port,
                    node_guid: hca.attributes().node_guid,
                };
                self.cm.close(&mut host, channel);
            }
            _ => self.device.close_channel(channel),
        }
    }

    /// Moves events of the port to the ids that they are for.
    fn take_port_events(&mut self, now: Instant, hca: &mut dyn Hca) {
        let Some(port) = &mut self.port else { return };
        while let Some(event) = port.poll_event() {
            if let Some(node) = &mut self.node
                && node.handle_port_event(now, hca, PORT, &event)
            {
                continue;
            }
            let mut host = CmHost {
                now,
                port: &mut *port,
                node_guid: hca.attributes().node_guid,
            };
            self.cm.handle_port_event(&mut host, event);
        }
    }
}

impl Consumer for VfProgram {
    fn handle_hca_event(&mut self, now: Instant, hca: &mut dyn Hca, event: &HcaEvent) {
        if *event == HcaEvent::Async(AsyncEvent::FunctionReset) {
            // Its buffers are the service's own.
            if let Some(node) = &mut self.node {
                node.reset(hca);
            }
            if let Some(port) = self.port.take() {
                port.close(hca);
            }
            self.is_deep = false;
        }
        if let Some(port) = &mut self.port {
            // A port that cannot be read now is read again with the next event.
            let _ = port.handle_hca_event(now, hca, event);
        }
        self.device.handle_hca_event(now, hca, event);
    }

    fn poll(&mut self, now: Instant, hca: &mut dyn Hca) -> bool {
        let mut more = self.device.poll(now, hca);
        if self.has_cm && self.port.is_none() && !self.device.is_resetting() {
            // Without one, requests wait for the next turn.
            self.port = self.open_port(now, hca, IDLE_DEPTH).ok();
        }
        if let Some(port) = &mut self.port {
            more |= port.poll(now, hca);
            self.take_port_events(now, hca);
        }
        if let (Some(node), Some(port)) = (&mut self.node, &mut self.port) {
            more |= node.poll(now, hca, port);
            self.take_node_events(now, hca);
        }
        more
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let port = self.port.as_ref().and_then(EndPort::poll_timeout);
        let node = self.node.as_ref().and_then(Node::poll_timeout);
        let timeouts = self.device.poll_timeout().into_iter();
        timeouts.chain(port).chain(node).min()
    }

    fn take_reset_request(&mut self) -> bool {
        self.device.take_reset_request()
    }
}

#[cfg(test)]
mod tests;
