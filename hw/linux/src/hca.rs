//! The function: its queue pair and objects, deliveries to them, and looks at the port.

mod host;
mod verbs;

use std::collections::VecDeque;
use std::fmt;

use hca_api::{
    AddressSpace, AddressVector, AsyncEvent, Cause, Completion, CompletionFlags, CompletionOp,
    CompletionStatus, CqHandle, HcaError, HcaEvent, Payload, PdHandle, PhysicalState, PortChange,
    PortState, QpHandle, QpState, SourceAddress, UdAddress, UdDestination,
};
use ib_endpoint::MadAddress;
use ib_vtime::{Duration, Instant, Secret, SecretNumbers};
use ib_wire::mad::{MAD_SIZE, Mad};
use ib_wire::packet::Grh;
use ib_wire::{Gid, GidIndex, PortNum, QKey};
use linux_abi::sysfs::{Adapter, Port};
use zerocopy::IntoBytes;

use crate::addresses::{Addresses, SA_LID};
use crate::attributes::PORT;
use crate::data::{Data, EVENT_FILES};
use crate::gsi::{self, Failure, Gsi, Posted};
use crate::local_mad::{Facts, Link};
use crate::local_sa::LocalSa;
use crate::mapped::MappedFiles;
use crate::memory::{self, HostMemoryOf, HostRegion, Memory, Objects};
use crate::queue::{CompletionQueue, Raised};
use crate::umad::{FILES, PortFiles, Umad, UmadCounters};
use crate::worker::Worker;

/// Link layer of RoCE ports in sysfs.
pub(crate) const ETHERNET: &str = "Ethernet";

/// Pause between two looks at sysfs, since umad has no events.
const LOOK: Duration = Duration::from_secs(1);

/// MADs that one call of [`LinuxHca::poll`] reads.
const BUDGET: usize = 256;

/// Space in front of each received MAD (IBA 11.4.1.2).
const GRH_SPACE: usize = size_of::<Grh>();

/// The configuration of a [`LinuxHca`], besides its files.
#[derive(Debug)]
pub struct LinuxHcaConfig {
    /// The HCA, as sysfs shows it.
    pub adapter: Adapter,
    /// Vendor and device of the HCA's PCI function; 0 if it has none.
    pub pci_id: (u16, u16),
    /// Time for which a request waits for its answer: the life of a transaction of the software above. A later answer is lost.
    pub answer_timeout: Duration,
    /// Secrets for the software above follow from it.
    pub secret: Secret,
    /// The function's memory.
    pub memory: Box<dyn AddressSpace>,
}

/// A port of a Linux HCA as an [`Hca`](hca_api::Hca) of one function. See the [crate](crate).
///
/// Its owner calls [`Self::set_ready`] for a file that can be read and then [`Self::poll`], also when [`Self::poll_timeout`] says so.
pub struct LinuxHca<F> {
    files: F,
    facts: Facts,
    /// Stand-in for a subnet manager on RoCE.
    roce: Option<Roce>,
    memory: Memory,
    addresses: Objects<(PdHandle, AddressVector)>,
    queues: Objects<CompletionQueue>,
    gsi: Option<Gsi>,
    data: Option<Data>,
    next_qp: u32,
    umad: Umad,
    events: VecDeque<HcaEvent>,
    now: Instant,
    next_look: Instant,
    secrets: SecretNumbers,
    is_dead: bool,
}

/// The addresses of a RoCE port, and its SA.
#[derive(Debug)]
struct Roce {
    addresses: Addresses,
    sa: LocalSa,
}

impl<F: fmt::Debug> fmt::Debug for LinuxHca<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinuxHca")
            .field("files", &self.files)
            .field("facts", &self.facts)
            .field("umad", &self.umad)
            .finish_non_exhaustive()
    }
}

impl<F: PortFiles> LinuxHca<F> {
    /// Makes the function of a port. Returns `None` if sysfs does not show the port's state and addresses.
    #[must_use]
    pub fn new(now: Instant, files: F, config: LinuxHcaConfig) -> Option<Self> {
        let mut port = Port::read(&mut |path| files.attribute(path))?;
        let link_layer = files.attribute("link_layer");
        let mut roce = None;
        if link_layer.is_some_and(|link_layer| link_layer.trim() == ETHERNET) {
            let is_usable = |index: usize| is_routable(&files, index);
            let mut addresses = Addresses::new(&port, &is_usable)?;
            addresses.show(&mut port, &is_usable);
            let sa = LocalSa::default();
            roce = Some(Roce { addresses, sa });
        }
        let link = match roce {
            Some(_) => Link::of_ethernet(),
            None => Link::default(),
        };
        let (vendor_id, device_id) = config.pci_id;
        Some(Self {
            files,
            facts: Facts {
                adapter: config.adapter,
                vendor_id: vendor_id.into(),
                device_id,
                port,
                link,
            },
            roce,
            memory: Memory::new(config.memory),
            addresses: Objects::default(),
            queues: Objects::default(),
            gsi: None,
            data: None,
            next_qp: 1,
            umad: Umad::new(config.answer_timeout),
            events: VecDeque::new(),
            now,
            next_look: now + LOOK,
            secrets: config.secret.numbers(),
            is_dead: false,
        })
    }

    /// Adds data, of a device whose regions are of these files. To be called before there are objects.
    pub(crate) fn set_data(&mut self, data: Data, files: MappedFiles, worker: Worker<HostRegion>) {
        let device = data.device.clone();
        self.memory.set_host(HostMemoryOf {
            device,
            files,
            worker,
        });
        self.data = Some(data);
        self.look_at_link();
    }

    /// The port's files.
    #[must_use]
    pub const fn files(&self) -> &F {
        &self.files
    }

    /// Returns the numbers of MADs that were carried and that were not.
    #[must_use]
    pub const fn counters(&self) -> UmadCounters {
        self.umad.counters
    }

    /// Takes note that one of the files can be read: of umad, or of events of libibverbs behind them.
    pub fn set_ready(&mut self, file: usize) {
        let event = file.checked_sub(FILES);
        match (event, &mut self.data) {
            (Some(event @ 0..EVENT_FILES), Some(data)) => data.ready[event] = true,
            _ => self.umad.set_ready(file),
        }
    }

    /// Reads MADs from files that are ready, tries again what umad refused, and looks at the port each second. Returns `true` if there may
    /// be more to do at once.
    pub fn poll(&mut self, now: Instant) -> bool {
        self.now = now;
        if self.is_dead {
            return false;
        }
        self.umad.handle_timeout(now, &mut self.files);
        for _ in 0..BUDGET {
            if !self.umad.is_ready() {
                break;
            }
            if let Some((from, mad)) = self.umad.receive(&mut self.files) {
                self.take(&from, &mad);
            }
        }
        self.take_news();
        // Where there are events they say when to look.
        if now >= self.next_look && self.data.is_none() {
            self.next_look = now + LOOK;
            self.look(PortChange::empty());
        }
        if self.umad.is_gone() {
            self.is_dead = true;
            self.events
                .push_back(HcaEvent::Async(AsyncEvent::DeviceFatal));
        }
        !self.is_dead && self.is_ready()
    }

    /// Returns `true` for a port whose link layer is Ethernet.
    #[must_use]
    pub const fn is_roce(&self) -> bool {
        self.roce.is_some()
    }

    /// Returns `true` once the device is gone for good.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        self.is_dead
    }

    fn is_ready(&self) -> bool {
        let news = self
            .data
            .as_ref()
            .map_or([false; EVENT_FILES], |data| data.ready);
        news != [false; EVENT_FILES] || self.umad.is_ready()
    }

    /// Returns when to call [`Self::poll`] at the latest; `None` if only a file that is ready can bring more to do, or once the device is gone.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let retry = self.umad.poll_timeout(self.now);
        (!self.is_dead).then(|| {
            let at_once = self.is_ready().then_some(self.now);
            let look = self.data.is_none().then_some(self.next_look);
            [retry, at_once, look].into_iter().flatten().min()
        })?
    }

    /// Looks at the port and raises an event if it has changed, or if there is news of it besides.
    fn look(&mut self, news: PortChange) {
        // A device that goes away takes its folder with it first.
        let Some(mut port) = Port::read(&mut |path| self.files.attribute(path)) else {
            return;
        };
        if let Some(Roce { addresses, .. }) = &mut self.roce {
            addresses.show(&mut port, &|index| is_routable(&self.files, index));
            // An entry of the kernel's table may be another address now.
            if let Some(data) = &mut self.data {
                data.forget_all_addresses();
            }
        }
        let change = changes(&self.facts.port, &port) | news;
        self.facts.port = port;
        self.look_at_link();
        if change.is_empty() {
            return;
        }
        let waiting = self.events.iter_mut().find_map(|event| match event {
            HcaEvent::Async(AsyncEvent::Port { change, .. }) => Some(change),
            _ => None,
        });
        match waiting {
            Some(waiting) => *waiting |= change,
            None => {
                let port = PORT;
                let event = AsyncEvent::Port { port, change };
                self.events.push_back(HcaEvent::Async(event));
            }
        }
    }

    /// Takes a MAD that umad gave.
    fn take(&mut self, from: &MadAddress, mad: &Mad) {
        let Some(Roce { addresses, .. }) = &self.roce else {
            return self.deliver(from, mad);
        };
        match addresses.sender(from) {
            Some(from) => self.deliver(&from, mad),
            None => self.umad.counters.unexpected += 1,
        }
    }

    /// Sends a MAD: to the SA of this port if it has one, else by umad.
    fn send(&mut self, to: &MadAddress, mad: &Mad) {
        let Some(Roce { addresses, sa }) = &mut self.roce else {
            return self.umad.send(self.now, &mut self.files, to, mad);
        };
        if to.lid == SA_LID {
            let mtu = self.facts.link.active_mtu;
            if let Some(answer) = sa.answer(addresses, mtu, mad) {
                self.look(PortChange::empty());
                self.deliver(&MadAddress::gsi(SA_LID), &answer);
            }
            return;
        }
        match to.grh.and_then(|route| addresses.host_route(&route)) {
            Some(route) => {
                let to = MadAddress {
                    grh: Some(route),
                    ..*to
                };
                self.umad.send(self.now, &mut self.files, &to, mad);
            }
            // Without a route, or from an address that is gone.
            None => self.umad.counters.refused += 1,
        }
    }

    /// Completes a receive with a MAD.
    fn deliver(&mut self, from: &MadAddress, mad: &Mad) {
        let gid = from
            .grh
            .and_then(|route| self.facts.port.gids.get(usize::from(route.sgid_index.0)))
            .copied();
        let takes = |gsi: &&mut Gsi| gsi.state >= QpState::ReadyToReceive;
        let gsi = self.gsi.as_mut().filter(takes);
        let Some((gsi, Posted { wr_id, scatter })) =
            gsi.and_then(|gsi| gsi.receives.pop_front().map(|posted| (gsi, posted)))
        else {
            self.umad.counters.overrun += 1;
            return;
        };
        let mut message = [0; GRH_SPACE + MAD_SIZE];
        let (head, bytes) = message.split_at_mut(GRH_SPACE);
        if let Some(route) = &from.grh {
            let mut grh = Grh::new(route.remote_gid, gid.unwrap_or(Gid::NONE), route.hop_limit);
            grh.set_traffic_class(route.traffic_class);
            grh.set_flow_label(route.flow_label);
            head.copy_from_slice(grh.as_bytes());
        }
        bytes.copy_from_slice(mad.as_bytes());
        let failure = if memory::length(&scatter) < message.len() as u64 {
            Some((CompletionStatus::LocalLength, Cause::ReceiveTooShort))
        } else if self.memory.scatter(gsi.pd, &scatter, &message) {
            None
        } else {
            Some((CompletionStatus::LocalProtection, Cause::NoMemory))
        };
        let mut completion = gsi::completion(wr_id, CompletionOp::Recv, failure);
        completion.byte_len = u32::try_from(message.len()).unwrap_or(u32::MAX);
        completion
            .flags
            .set(CompletionFlags::GRH, from.grh.is_some());
        completion.source = Some(SourceAddress {
            port: PORT,
            slid: from.lid,
            src_qpn: from.qpn,
            sl: from.sl,
            dlid_path_bits: from.path_bits,
            pkey_index: from.pkey_index,
            grh: from.grh,
        });
        let cq = gsi.recv_cq;
        self.complete(cq, completion);
        if failure.is_some() {
            self.fail();
        }
    }

    fn complete(&mut self, cq: CqHandle, completion: Completion) {
        let Ok(queue) = self.queues.get_mut(cq.0) else {
            return;
        };
        match queue.push(completion) {
            Raised::Nothing => {}
            Raised::Completion => self.events.push_back(HcaEvent::Completion(cq)),
            Raised::Overrun => {
                let event = HcaEvent::Async(AsyncEvent::CqError(cq));
                if !self.events.contains(&event) {
                    self.events.push_back(event);
                }
            }
        }
    }

    /// Moves the queue pair to the error state.
    fn fail(&mut self) {
        let Some(gsi) = &mut self.gsi else {
            return;
        };
        gsi.state = QpState::Error;
        let cq = gsi.recv_cq;
        for posted in std::mem::take(&mut gsi.receives) {
            let flushed = gsi::completion(posted.wr_id, CompletionOp::Recv, gsi::FLUSHED);
            self.complete(cq, flushed);
        }
    }

    fn gsi(&self, qp: QpHandle) -> Result<&Gsi, HcaError> {
        let gsi = self.gsi.as_ref().filter(|gsi| gsi.handle == qp);
        gsi.ok_or(HcaError::InvalidHandle)
    }

    fn gsi_mut(&mut self, qp: QpHandle) -> Result<&mut Gsi, HcaError> {
        let gsi = self.gsi.as_mut().filter(|gsi| gsi.handle == qp);
        gsi.ok_or(HcaError::InvalidHandle)
    }

    /// The address of a destination, as umad takes it.
    fn address(&self, pd: PdHandle, to: &UdDestination) -> Result<MadAddress, HcaError> {
        let vector = match to.address {
            UdAddress::Vector(vector) => vector,
            UdAddress::Handle(av) => {
                let (owner, vector) = *self.addresses.get(av.0)?;
                if owner != pd {
                    return Err(HcaError::InvalidHandle);
                }
                vector
            }
        };
        self.check_address(&vector)?;
        let own = self.gsi.as_ref().map(|gsi| gsi.pkey_index);
        let pkey_index = to.pkey_index.or(own).unwrap_or_default();
        if usize::from(pkey_index.0) >= self.facts.port.pkeys.len() {
            return Err(HcaError::InvalidIndex);
        }
        let qkey = match to.qkey.is_privileged() {
            true => QKey::GSI,
            false => to.qkey,
        };
        Ok(MadAddress {
            lid: vector.dlid,
            qpn: to.qpn,
            qkey,
            sl: vector.sl,
            pkey_index,
            path_bits: vector.path_bits,
            grh: vector.grh,
        })
    }

    fn check_address(&self, vector: &AddressVector) -> Result<(), HcaError> {
        check_port(vector.port)?;
        let is_beyond = |index: GidIndex| {
            // umad has eight bits for it.
            index.0 > u8::MAX.into() || usize::from(index.0) >= self.facts.port.gids.len()
        };
        match vector.grh.is_some_and(|route| is_beyond(route.sgid_index)) {
            true => Err(HcaError::InvalidIndex),
            false => Ok(()),
        }
    }

    /// The MAD of a request, or why there is none.
    fn mad(&self, pd: PdHandle, payload: &Payload<'_>) -> Result<Mad, Failure> {
        let (head, list) = match *payload {
            Payload::Inline(bytes) => (bytes, &[][..]),
            Payload::Gather(list) => (&[][..], list),
            Payload::Headed(bytes, list) => (bytes, list),
        };
        let mut mad = Mad::default();
        let length = memory::length(list).saturating_add(head.len() as u64);
        if length != MAD_SIZE as u64 {
            return Err((CompletionStatus::LocalLength, Cause::BadRequest));
        }
        let (start, rest) = mad.as_mut_bytes().split_at_mut(head.len());
        start.copy_from_slice(head);
        match self.memory.gather(pd, list, rest) {
            true => Ok(mad),
            false => Err((CompletionStatus::LocalProtection, Cause::NoMemory)),
        }
    }
}

/// Returns `true` if an entry of the kernel's GID table is of RoCE v2, whose packets are UDP's and follow routes (`gid_attrs/types`).
/// Entries of the older version have the same addresses once more.
fn is_routable(files: &impl PortFiles, index: usize) -> bool {
    let kind = files.attribute(&format!("gid_attrs/types/{index}"));
    kind.is_some_and(|kind| kind.trim() == "RoCE v2")
}

fn check_port(port: PortNum) -> Result<(), HcaError> {
    match port == PORT {
        true => Ok(()),
        false => Err(HcaError::InvalidPort),
    }
}

/// The differences between a view of the port and a later one. That the subnet manager asks clients to register again is not in sysfs.
fn changes(before: &Port, after: &Port) -> PortChange {
    let mut change = PortChange::empty();
    let active = |port: &Port| port_state(port.state) == PortState::Active;
    change.set(PortChange::ACTIVE, !active(before) && active(after));
    change.set(PortChange::DOWN, active(before) && !active(after));
    let lid = (before.lid, before.lmc) != (after.lid, after.lmc);
    change.set(PortChange::LID, lid);
    let sm = (before.sm_lid, before.sm_sl) != (after.sm_lid, after.sm_sl);
    change.set(PortChange::SM, sm);
    change.set(PortChange::GID_TABLE, before.gids != after.gids);
    change.set(PortChange::PKEY_TABLE, before.pkeys != after.pkeys);
    change
}

/// The state of `enum ib_port_state`.
const fn port_state(state: u8) -> PortState {
    match state {
        2 => PortState::Init,
        3 | 5 => PortState::Armed,
        4 => PortState::Active,
        _ => PortState::Down,
    }
}

/// The state of `enum ib_port_phys_state`.
const fn physical_state(state: u8) -> PhysicalState {
    match state {
        1 => PhysicalState::Sleep,
        3 => PhysicalState::Disabled,
        4 => PhysicalState::Training,
        5 => PhysicalState::LinkUp,
        6 => PhysicalState::ErrorRecovery,
        _ => PhysicalState::Polling,
    }
}

/// Three numbers with dots between them, 16 bits for each of the last two, as mlx4 and mlx5 have their versions.
fn firmware(text: &str) -> u64 {
    let mut numbers = text.split('.').map(|number| number.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0_u64);
    next() << 32 | (next() & 0xffff) << 16 | next() & 0xffff
}

#[cfg(test)]
mod tests;
