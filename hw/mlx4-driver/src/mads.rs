//! The management stack of a port: MADs through the special queue pairs, and the SA client and connection
//! manager above them.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use hca_api::GlobalRoute;
use ib_endpoint::cm::{Cm, CmConfig};
use ib_endpoint::{
    AgentEvent, AgentId, MadAddress, MadAgent, MadAgentConfig, MethodSet, Registration, SaClient,
};
use ib_vtime::Instant;
use ib_wire::mad::{Mad, Method, MgmtClass};
use ib_wire::packet::Grh;
use ib_wire::{GidIndex, Guid, PortNum, QKey, Qpn};
use mlx4_defs::cq::ArmCommand;
use mlx4_defs::{Cqn, Pdn};
use zerocopy::{FromBytes, IntoBytes};

use super::buffer::BufferKind;
use super::cq::{CqSpec, WorkCompletion};
use super::error::{oops, refused};
use super::memory::{Memory, PAGE};
use super::qp::{Owner, QpSpec, QpUse};
use super::transitions::DatagramAttributes;
use super::work::{Destination, Payload, SendWork};
use super::{Bus, Driver, DriverError, Sge};

/// Sends and receives of a special queue pair (`ib_mad`'s `send_queue_size`, `recv_queue_size`).
const SENDS: u32 = 128;
const RECEIVES: u32 = 512;

/// Bytes of a MAD, and of the space for a GRH before it.
const MAD: usize = size_of::<Mad>();
const GRH: usize = size_of::<Grh>();

/// Bytes from one buffer to the next.
const STRIDE: usize = 512;

/// The bytes of a MAD that the driver gives in a segment of their own: the header.
const FIRST: usize = 24;

/// Completions that are taken at a time.
const BATCH: usize = 16;

/// Bit of a request's name: a send.
const IS_SEND: u64 = 1 << 32;

/// A special queue pair with its buffers.
#[derive(Debug)]
struct MadQueue {
    qpn: Qpn,
    memory: Memory,
    /// Buffers of receives, then of sends.
    buffers: u64,
    pages: usize,
    free_sends: Vec<u64>,
}

impl MadQueue {
    fn receive_at(&self, slot: u64) -> u64 {
        self.buffers + slot * STRIDE as u64
    }

    fn send_at(&self, slot: u64) -> u64 {
        self.receive_at(u64::from(RECEIVES) + slot)
    }
}

/// The management stack of a port.
#[derive(Debug)]
pub struct PortMads {
    port: PortNum,
    pub(super) cq: Cqn,
    smi: MadQueue,
    gsi: MadQueue,
    lkey: u32,
    pd: Pdn,
    /// MADs that came on QP0.
    pub smps: u64,
    /// The agent on QP1.
    pub agent: MadAgent,
    /// The SA client.
    pub sa: SaClient,
    /// The connection manager.
    pub cm: Cm,
    cm_agent: AgentId,
    /// Events of registrations other than the SA client's and the connection manager's.
    pub events: alloc::collections::VecDeque<AgentEvent>,
}

impl PortMads {
    /// When something is to be done at the latest.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let all = [
            self.agent.poll_timeout(),
            self.sa.poll_timeout(),
            self.cm.poll_timeout(),
        ];
        all.into_iter().flatten().min()
    }

    /// Returns `true` if something waits to be sent, and can be.
    pub(super) fn has_transmit(&self) -> bool {
        !self.gsi.free_sends.is_empty() && (self.agent.has_transmit() || self.cm.has_transmit())
    }

    fn queue_mut(&mut self, qpn: Qpn) -> &mut MadQueue {
        if qpn == self.smi.qpn {
            &mut self.smi
        } else {
            &mut self.gsi
        }
    }

    /// Runs timers, and hands events to who takes them.
    fn run(&mut self, now: Instant) {
        self.agent.handle_timeout(now);
        self.route(now);
        self.sa.handle_timeout(now, &mut self.agent);
        self.cm.handle_timeout(now);
    }

    fn route(&mut self, now: Instant) {
        while let Some(event) = self.agent.poll_event() {
            let Some(event) = self.sa.handle_event(now, &mut self.agent, event) else {
                continue;
            };
            match event {
                AgentEvent::Request {
                    agent,
                    from,
                    message,
                } if agent == self.cm_agent => {
                    self.cm.handle_mad(now, &from, message.mad());
                }
                event => self.events.push_back(event),
            }
        }
    }

    /// The next MAD to be sent.
    fn next_mad(&mut self, now: Instant) -> Option<(MadAddress, Mad)> {
        let next = self.agent.poll_transmit(now);
        let next = next.map(|transmit| (transmit.to, transmit.mad));
        next.or_else(|| {
            let transmit = self.cm.poll_transmit()?;
            Some((transmit.to, transmit.mad))
        })
    }

    /// A send of a MAD in a free buffer.
    fn send_work(&mut self, to: &MadAddress, mad: &Mad) -> Option<SendWork> {
        let slot = self.gsi.free_sends.pop()?;
        let addr = self.gsi.send_at(slot);
        self.gsi.memory.write(addr, mad.as_bytes());
        let part = |offset: usize, len: usize| Sge {
            addr: addr + offset as u64,
            len: u32::try_from(len).unwrap_or(0),
            lkey: self.lkey,
        };
        let parts = vec![part(0, FIRST), part(FIRST, MAD - FIRST)];
        let to = Destination::of_mad(self.pd, self.port, to);
        Some(SendWork::new(IS_SEND | slot, Payload::Gather(parts), to))
    }

    /// Reads a received MAD and where it came from.
    fn received(&self, completion: &WorkCompletion) -> Result<(MadAddress, Mad), DriverError> {
        let addr = self.gsi.receive_at(completion.wr_id);
        let (mut grh, mut mad) = ([0; GRH], [0; MAD]);
        self.gsi.memory.read(addr, &mut grh);
        self.gsi.memory.read(addr + GRH as u64, &mut mad);
        let grh = Grh::read_from_bytes(&grh).map_err(|_| oops("a GRH has 40 bytes"))?;
        let mad = Mad::read_from_bytes(&mad).map_err(|_| oops("a MAD has 256 bytes"))?;
        let source = &completion.source;
        let from = MadAddress {
            qpn: source.qpn,
            sl: source.sl,
            pkey_index: ib_wire::PKeyIndex(source.pkey_index),
            grh: source.grh.then(|| GlobalRoute {
                remote_gid: grh.sgid,
                sgid_index: GidIndex(0),
                flow_label: grh.flow_label(),
                hop_limit: 0xff,
                traffic_class: grh.traffic_class(),
            }),
            ..MadAddress::gsi(source.slid)
        };
        Ok((from, mad))
    }
}

impl Driver {
    /// Opens a port's special queue pairs (`ib_mad_port_open`).
    pub(super) fn open_mads(
        &mut self,
        bus: &mut dyn Bus,
        port: PortNum,
        node_guid: Guid,
    ) -> Result<PortMads, DriverError> {
        let pd = self.allocate_pd()?;
        let lkey = match self.core.caps.reserved_lkey {
            Some(lkey) => lkey,
            None => self.register_all(bus, pd)?,
        };
        let spec = CqSpec {
            entries: 2 * (SENDS + RECEIVES),
            vector: port.index() - 1,
            uar: self.uar(),
            memory: BufferKind::Kernel,
        };
        let cq = self.create_cq(bus, &spec)?;
        let smi = self.create_mad_queue(bus, QpUse::Smi(port), pd, cq)?;
        let gsi = self.create_mad_queue(bus, QpUse::Gsi(port), pd, cq)?;
        for (queue, qkey) in [(&smi, QKey::new(0)), (&gsi, QKey::GSI)] {
            let attributes = DatagramAttributes {
                port,
                pkey_index: 0,
                qkey,
            };
            self.bring_up(bus, queue.qpn, &attributes)?;
        }
        self.arm_cq(bus, cq, ArmCommand::NEXT)?;
        for queue in [&smi, &gsi] {
            for slot in 0..u64::from(RECEIVES) {
                self.post_mad_receive(queue.qpn, slot, queue.receive_at(slot), lkey)?;
            }
        }
        let seed = node_guid.get() ^ u64::from(port.0) << 56;
        let mut agent = MadAgent::new(MadAgentConfig::gsi(seed));
        let taken = |_| refused("a class of QP1 is taken");
        let sa = SaClient::new(&mut agent).map_err(taken)?;
        let methods = MethodSet::of(&[Method::SEND]);
        let cm_agent = agent
            .register(Registration::new(MgmtClass::COM_MGT, methods))
            .map_err(taken)?;
        Ok(PortMads {
            port,
            cq,
            smi,
            gsi,
            lkey,
            pd,
            smps: 0,
            agent,
            sa,
            cm: Cm::new(CmConfig {
                tid_high: cm_agent.get(),
                ..CmConfig::new(node_guid, seed)
            }),
            cm_agent,
            events: alloc::collections::VecDeque::new(),
        })
    }

    fn create_mad_queue(
        &mut self,
        bus: &mut dyn Bus,
        purpose: QpUse,
        pd: Pdn,
        cq: Cqn,
    ) -> Result<MadQueue, DriverError> {
        let spec = QpSpec {
            purpose,
            owner: Owner::Kernel,
            uar: self.uar(),
            memory: BufferKind::Kernel,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            sends: SENDS,
            receives: RECEIVES,
            send_sges: 2,
            receive_sges: 1,
            inline: 0,
            signal_all: true,
        };
        let qpn = self.create_qp(bus, &spec)?;
        let pages = ((RECEIVES + SENDS) as usize * STRIDE).div_ceil(PAGE);
        let memory = self.core.memory.clone();
        Ok(MadQueue {
            qpn,
            buffers: memory.allocate_contiguous(pages, 1),
            memory,
            pages,
            free_sends: (0..u64::from(SENDS)).rev().collect(),
        })
    }

    fn post_mad_receive(
        &mut self,
        qpn: Qpn,
        slot: u64,
        addr: u64,
        lkey: u32,
    ) -> Result<(), DriverError> {
        let sge = Sge {
            addr,
            len: u32::try_from(GRH + MAD).unwrap_or(0),
            lkey,
        };
        self.post_receives(qpn, &[(slot, vec![sge])])
    }

    /// Closes a port's special queue pairs.
    pub(super) fn close_mads(
        &mut self,
        bus: &mut dyn Bus,
        mads: PortMads,
    ) -> Result<(), DriverError> {
        for queue in [mads.smi, mads.gsi] {
            self.destroy_qp(bus, queue.qpn)?;
            queue.memory.free(queue.buffers, queue.pages);
        }
        self.destroy_cq(bus, mads.cq)?;
        if self.core.caps.reserved_lkey.is_none() {
            self.deregister_all(bus, mads.lkey)?;
        }
        self.free_pd(mads.pd);
        Ok(())
    }

    /// Frees the memory of a port's special queue pairs without a command.
    pub(super) fn abandon_mads(mads: PortMads) {
        for queue in [mads.smi, mads.gsi] {
            queue.memory.free(queue.buffers, queue.pages);
        }
    }

    /// Takes the completions of a port's special queue pairs, runs its machines, and sends what they
    /// have. Returns `true` if there was anything.
    pub(super) fn serve_mads(
        &mut self,
        bus: &mut dyn Bus,
        at: usize,
        notified: bool,
    ) -> Result<bool, DriverError> {
        let mut mads = self.mads.remove(at);
        let served = self.serve_port(bus, &mut mads, notified);
        self.mads.insert(at, mads);
        served
    }

    fn serve_port(
        &mut self,
        bus: &mut dyn Bus,
        mads: &mut PortMads,
        notified: bool,
    ) -> Result<bool, DriverError> {
        let now = bus.now();
        let mut busy = notified;
        if notified {
            self.take_mads(now, mads)?;
            self.arm_cq(bus, mads.cq, ArmCommand::NEXT)?;
            // What came between the last look and the arming.
            self.take_mads(now, mads)?;
        }
        mads.run(now);
        let mut works = Vec::new();
        while !mads.gsi.free_sends.is_empty() {
            let Some((to, mad)) = mads.next_mad(now) else {
                break;
            };
            works.extend(mads.send_work(&to, &mad));
        }
        if !works.is_empty() {
            busy = true;
            self.post_sends(bus, mads.gsi.qpn, &works)?;
        }
        Ok(busy)
    }

    fn take_mads(&mut self, now: Instant, mads: &mut PortMads) -> Result<(), DriverError> {
        loop {
            let completions = self.poll_cq(mads.cq, BATCH)?;
            if completions.is_empty() {
                mads.route(now);
                return Ok(());
            }
            for completion in completions {
                self.take_completion(now, mads, &completion)?;
            }
        }
    }

    fn take_completion(
        &mut self,
        now: Instant,
        mads: &mut PortMads,
        completion: &WorkCompletion,
    ) -> Result<(), DriverError> {
        if let Some(error) = completion.error {
            return Err(refused(format!(
                "a request of {} failed: {error:?}",
                completion.qpn
            )));
        }
        if completion.is_send {
            let queue = mads.queue_mut(completion.qpn);
            queue.free_sends.push(completion.wr_id & !IS_SEND);
            return Ok(());
        }
        let slot = completion.wr_id;
        if completion.qpn == mads.smi.qpn {
            mads.smps += 1;
            let addr = mads.smi.receive_at(slot);
            return self.post_mad_receive(mads.smi.qpn, slot, addr, mads.lkey);
        }
        let (from, mad) = mads.received(completion)?;
        mads.agent.handle_mad(now, &from, &mad);
        let addr = mads.gsi.receive_at(slot);
        self.post_mad_receive(mads.gsi.qpn, slot, addr, mads.lkey)
    }

    /// Sends a MAD from a port's QP0, as a driver does whose user asks for it.
    ///
    /// # Errors
    /// [`DriverError::Usage`] if the queue is full.
    pub fn send_smp(
        &mut self,
        bus: &mut dyn Bus,
        port: PortNum,
        to: &MadAddress,
        mad: &Mad,
    ) -> Result<(), DriverError> {
        let mads = self.mads.get_mut(port.index() - 1);
        let mads = mads.ok_or(DriverError::Usage("no such port"))?;
        let Some(slot) = mads.smi.free_sends.pop() else {
            return Err(DriverError::Usage("the queue is full"));
        };
        let addr = mads.smi.send_at(slot);
        mads.smi.memory.write(addr, mad.as_bytes());
        let sge = Sge {
            addr,
            len: u32::try_from(MAD).unwrap_or(0),
            lkey: mads.lkey,
        };
        let to = Destination::of_mad(mads.pd, port, to);
        let work = SendWork::new(IS_SEND | slot, Payload::Gather(vec![sge]), to);
        let qpn = mads.smi.qpn;
        self.post_sends(bus, qpn, &[work])
    }
}
