//! Queue pairs: how they are made, and what the driver keeps of them.

use alloc::format;
use alloc::vec::Vec;

use ib_wire::packet::Grh;
use ib_wire::{PortNum, Qpn};
use mlx4_defs::qp::{QpContext, QpState, ServiceType};
use mlx4_defs::receive::DoorbellRecord;
use mlx4_defs::resource::ResourceType;
use mlx4_defs::wqe::{
    ControlSegment, DataSegment, DatagramSegment, MaskedAtomicSegment, RemoteAddressSegment,
};
use mlx4_defs::{CounterIndex, Cqn, Pdn, Srqn, Uar};
use vf_tunnel::{ToPfHeader, ToVfHeader};
use zerocopy::network_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use super::buffer::{BufferKind, MappedBuffer};
use super::capabilities::SQ_MAX_SPARE;
use super::cq::{Source, log_page_size};
use super::error::oops;
use super::lower::{Core, low_byte};
use super::memory::Memory;
use super::resources::Usage;
use super::ring::{Ring, Sge};
use super::{Bus, Driver, DriverError};

/// Purpose of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpUse {
    /// Datagrams.
    Datagram,
    /// A reliable connection.
    Reliable,
    /// An unreliable connection.
    Unreliable,
    /// QP0 of a port.
    Smi(PortNum),
    /// QP1 of a port.
    Gsi(PortNum),
}

impl QpUse {
    /// The port whose special queue pair it stands for.
    const fn special_port(self) -> Option<PortNum> {
        match self {
            Self::Smi(port) | Self::Gsi(port) => Some(port),
            Self::Datagram | Self::Reliable | Self::Unreliable => None,
        }
    }

    const fn service(self) -> ServiceType {
        match self {
            Self::Reliable => ServiceType::RC,
            Self::Unreliable => ServiceType::UC,
            Self::Datagram | Self::Smi(_) | Self::Gsi(_) => ServiceType::UD,
        }
    }
}

/// Owner of a queue pair, which posts to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The kernel: the reserved L_Key works, and the smallest slot is what is needed.
    Kernel,
    /// A program, through libmlx4.
    User,
}

/// Ingredients of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpSpec {
    /// Purpose.
    pub purpose: QpUse,
    /// Owner.
    pub owner: Owner,
    /// The UAR of its doorbell.
    pub uar: Uar,
    /// Its memory.
    pub memory: BufferKind,
    /// Protection domain.
    pub pd: Pdn,
    /// Completion queue of sends.
    pub send_cq: Cqn,
    /// Completion queue of receives.
    pub recv_cq: Cqn,
    /// Shared receive queue instead of one of its own.
    pub srq: Option<Srqn>,
    /// Sends that may be outstanding.
    pub sends: u32,
    /// Receives that may be outstanding.
    pub receives: u32,
    /// Segments of a send.
    pub send_sges: u32,
    /// Segments of a receive.
    pub receive_sges: u32,
    /// Inline bytes of a send.
    pub inline: u32,
    /// `true` if every send completes with an entry.
    pub signal_all: bool,
}

/// Bytes in front of a MAD that the device writes for a special queue pair
/// (`struct mlx4_ib_proxy_sqp_hdr`).
const PROXY_HEADER: usize = size_of::<Grh>() + size_of::<ProxyHeader>();

/// The bytes that the device writes behind the packet's own GRH.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
struct ProxyHeader([u8; 16]);

/// Bytes from one proxy header buffer to the next.
const PROXY_STRIDE: usize = 64;

/// A queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) qpn: Qpn,
    pub(super) spec: QpSpec,
    pub(super) state: QpState,
    pub(super) port: PortNum,
    pub(super) mapped: MappedBuffer,
    pub(super) record: Option<u64>,
    pub(super) sends: Ring,
    pub(super) receives: Ring,
    /// Destination of a special queue pair's sends.
    pub(super) tunnel: Option<Qpn>,
    /// Buffers for what the device writes in front of MADs.
    headers: Option<MappedHeaders>,
}

/// Buffers of a special queue pair, one for each slot of its receive queue.
#[derive(Debug)]
struct MappedHeaders {
    memory: Memory,
    addr: u64,
    pages: usize,
}

impl Qp {
    /// The completion queue of one side.
    pub(super) const fn cq_of(&self, send: bool) -> Cqn {
        if send {
            self.spec.send_cq
        } else {
            self.spec.recv_cq
        }
    }

    /// The shared receive queue.
    pub(super) const fn srqn(&self) -> Option<Srqn> {
        self.spec.srq
    }

    /// Takes a completed send; gives its name.
    pub(super) fn complete_send(&mut self, counter: u16) -> Result<u64, DriverError> {
        if self.spec.signal_all {
            // The kernel does not look at the index then, so it must be the next one.
            if counter != self.sends.next_counter() {
                return Err(oops(format!(
                    "send {counter} completed in place of {}",
                    self.sends.next_counter()
                )));
            }
        } else {
            self.sends.skip_to(counter);
        }
        self.sends.complete().map(|(wr_id, _)| wr_id)
    }

    /// Takes a completed receive; gives its name and slot.
    pub(super) fn complete_receive(&mut self) -> Result<(u64, usize), DriverError> {
        self.receives.complete()
    }

    /// Returns the source of a MAD if this is a special queue pair (`use_tunnel_data`).
    pub(super) fn tunnelled_source(&self, slot: usize) -> Option<Result<Source, DriverError>> {
        let headers = self.headers.as_ref()?;
        let mut bytes = [0; PROXY_HEADER];
        headers
            .memory
            .read(headers.addr + (slot * PROXY_STRIDE) as u64, &mut bytes);
        // Behind the GRH of the tunnel's own packet; the original packet's GRH is in the next buffer.
        let mut header = [0; size_of::<ToVfHeader>()];
        header[..16].copy_from_slice(&bytes[size_of::<Grh>()..]);
        let header = ToVfHeader::read_from_bytes(&header);
        Some(match header {
            Ok(header) => Ok(Source {
                qpn: header.src_qpn,
                slid: header.slid,
                sl: header.sl(),
                path_bits: 0,
                grh: header.global_route_header().is_some(),
                pkey_index: header.pkey_index.get(),
            }),
            Err(_) => Err(oops("a proxy header has 16 bytes")),
        })
    }

    /// The segments of a receive in a slot: a special queue pair's begin with a buffer of the driver.
    pub(super) fn receive_segments(&self, slot: usize, sges: &[Sge]) -> Vec<Sge> {
        let header = self.headers.as_ref().map(|headers| Sge {
            addr: headers.addr + (slot * PROXY_STRIDE) as u64,
            len: u32::try_from(PROXY_HEADER).unwrap_or(0),
            lkey: sges.first().map_or(0, |sge| sge.lkey),
        });
        header.into_iter().chain(sges.iter().copied()).collect()
    }

    /// The context that every transition carries.
    pub(super) fn context(&self, counter: Option<u32>) -> QpContext {
        let spec = &self.spec;
        let mut context = QpContext {
            uar: spec.uar,
            local_qpn: self.qpn,
            send_cqn: spec.send_cq,
            receive_cqn: spec.recv_cq,
            ..QpContext::default()
        };
        context.set_service_type(spec.purpose.service());
        context.set_path_migration(mlx4_defs::qp::PathMigration::MIGRATED);
        context.set_pd(spec.pd);
        let longest = match spec.purpose {
            QpUse::Smi(_) | QpUse::Gsi(_) => 11,
            QpUse::Datagram => 13,
            QpUse::Reliable | QpUse::Unreliable => 30,
        };
        context.set_mtu(ib_wire::Mtu::MTU_4096);
        context.set_log_max_message(longest);
        if self.receives.slots > 0 {
            context.set_log_rq_entries(low_byte(self.receives.slots.ilog2()));
            context.set_log_rq_stride(low_byte(self.receives.shift - 4));
        } else {
            // What comes of a shift of zero, less four.
            context.rq_size_stride = 0xfc;
        }
        context.set_log_sq_entries(low_byte(self.sends.slots.ilog2()));
        context.set_log_sq_stride(low_byte(self.sends.shift - 4));
        context.set_ack_request_frequency(8);
        if spec.owner == Owner::Kernel {
            context.set_reserved_lkey(true);
            context.set_fast_register(true);
        }
        if let Some(srqn) = spec.srq {
            context.set_has_srq(true);
            context.srqn = srqn;
            context.set_ignore_credits(true);
        }
        context.doorbell_record = U64::new(self.record.unwrap_or(0));
        context.log_page_size = log_page_size(self.mapped.buffer.shift());
        context.mtt_base = self.mapped.mtt.base();
        context.primary_path.counter_index = CounterIndex(counter.map_or(0xff, low_byte));
        context
    }

    /// Forgets what was posted.
    pub(super) fn reset_rings(&mut self, memory: &Memory) {
        self.sends.reset();
        self.receives.reset();
        if let Some(record) = self.record {
            memory.write(record, DoorbellRecord::default().as_bytes());
        }
    }
}

/// Bytes of a send besides its data (`send_wqe_overhead`).
const fn overhead(purpose: QpUse) -> usize {
    const CONTROL: usize = size_of::<ControlSegment>();
    const TUNNEL: usize = (size_of::<ToPfHeader>() + 4).next_multiple_of(64);
    match purpose {
        QpUse::Datagram => CONTROL + size_of::<DatagramSegment>(),
        QpUse::Smi(_) | QpUse::Gsi(_) => CONTROL + size_of::<DatagramSegment>() + TUNNEL,
        QpUse::Reliable => {
            CONTROL + size_of::<MaskedAtomicSegment>() + size_of::<RemoteAddressSegment>()
        }
        QpUse::Unreliable => CONTROL + size_of::<RemoteAddressSegment>(),
    }
}

/// The two rings of a queue pair, laid out in its buffer (`set_rq_size`, `set_kernel_sq_size`,
/// `mlx4_alloc_qp_buf`).
fn rings(spec: &QpSpec, core: &Core) -> Result<(Ring, Ring), DriverError> {
    const SEGMENT: usize = size_of::<DataSegment>();
    let caps = &core.caps;
    let most = caps.max_wqes - SQ_MAX_SPARE;
    let sges = caps.max_sq_sg.min(caps.max_rq_sg);
    if spec.sends > most || spec.receives > most || spec.send_sges > sges {
        return Err(DriverError::Usage("more requests than a queue can hold"));
    }
    let special = u32::from(spec.purpose.special_port().is_some());
    let mut receives = if spec.srq.is_some() {
        Ring::none()
    } else {
        let slots = spec.receives.max(1).next_power_of_two();
        let segments = (spec.receive_sges + special).max(1).next_power_of_two();
        if segments > sges {
            return Err(DriverError::Usage("more segments than a receive can have"));
        }
        let bytes = segments as usize * SEGMENT;
        Ring::new(slots, bytes.ilog2(), slots.min(most))
    };
    let data = (spec.send_sges as usize * SEGMENT).max(spec.inline as usize + 4);
    let bytes = data + overhead(spec.purpose);
    if bytes > caps.max_sq_desc as usize {
        return Err(DriverError::Usage("more data than a send can have"));
    }
    let least = match spec.owner {
        Owner::Kernel => 1,
        Owner::User => 64,
    };
    let shift = bytes.max(least).next_power_of_two().ilog2();
    let spare = Ring::spare(shift);
    let slots = (spec.sends + spare).next_power_of_two();
    let mut sends = Ring::new(slots, shift, slots - spare);
    // The queue with the larger slots is first.
    if receives.shift > sends.shift {
        sends.offset = receives.bytes();
    } else {
        receives.offset = sends.bytes();
    }
    Ok((sends, receives))
}

impl Core {
    fn create_qp(&mut self, bus: &mut dyn Bus, spec: &QpSpec) -> Result<Qp, DriverError> {
        let (sends, receives) = rings(spec, self)?;
        let bytes = sends.bytes() + receives.bytes();
        let mapped = self.map_buffer(bus, bytes, spec.memory)?;
        match self.number_qp(bus, spec) {
            Ok((qpn, tunnel)) => {
                let record = spec
                    .srq
                    .is_none()
                    .then(|| self.records.allocate(&self.memory));
                let headers = tunnel.map(|_| MappedHeaders::new(&self.memory, receives.slots));
                Ok(Qp {
                    qpn,
                    spec: *spec,
                    state: QpState::RST,
                    port: spec.purpose.special_port().unwrap_or(PortNum(1)),
                    mapped,
                    record,
                    sends,
                    receives,
                    tunnel,
                    headers,
                })
            }
            Err(error) => {
                self.unmap_buffer(bus, mapped)?;
                Err(error)
            }
        }
    }

    /// The number of a new queue pair; and of a special one, where it sends to.
    fn number_qp(
        &mut self,
        bus: &mut dyn Bus,
        spec: &QpSpec,
    ) -> Result<(Qpn, Option<Qpn>), DriverError> {
        let usage = match spec.owner {
            Owner::Kernel => Usage::Driver,
            Owner::User => Usage::User,
        };
        let port = spec.purpose.special_port();
        let special = port.and_then(|port| self.caps.ports.get(port.index().checked_sub(1)?));
        let special = special.map(|caps| match spec.purpose {
            QpUse::Smi(_) => (caps.qp0_proxy, caps.qp0_tunnel),
            _ => (caps.qp1_proxy, caps.qp1_tunnel),
        });
        if let Some((proxy, tunnel)) = special {
            self.map(bus, ResourceType::QP, proxy.get(), usage)?;
            return Ok((proxy, Some(tunnel)));
        }
        let first = self.reserve_qpns(bus, 1, 1, usage)?;
        if let Err(error) = self.map(bus, ResourceType::QP, first, usage) {
            self.release_qpns(bus, first, 1)?;
            return Err(error);
        }
        Ok((Qpn::from_low_bits(first), None))
    }

    fn free_qp(&mut self, bus: &mut dyn Bus, qp: Qp) -> Result<(), DriverError> {
        self.unmap(bus, ResourceType::QP, qp.qpn.get())?;
        if qp.tunnel.is_none() {
            self.release_qpns(bus, qp.qpn.get(), 1)?;
        }
        if let Some(record) = qp.record {
            self.records.free(record);
        }
        if let Some(headers) = qp.headers {
            headers.free();
        }
        self.unmap_buffer(bus, qp.mapped)
    }
}

impl MappedHeaders {
    fn new(memory: &Memory, slots: u32) -> Self {
        let pages = (slots as usize * PROXY_STRIDE).div_ceil(super::memory::PAGE);
        Self {
            memory: memory.clone(),
            addr: memory.allocate_contiguous(pages, 1),
            pages,
        }
    }

    fn free(self) {
        self.memory.free(self.addr, self.pages);
    }
}

impl Qp {
    /// Frees the driver's memory without a command.
    pub(super) fn abandon(self) {
        if let Some(headers) = self.headers {
            headers.free();
        }
        self.mapped.buffer.free();
    }
}

impl Driver {
    /// Makes a queue pair in the reset state.
    ///
    /// # Errors
    /// Those of the commands; [`DriverError::Usage`] for sizes that the device does not have.
    pub fn create_qp(&mut self, bus: &mut dyn Bus, spec: &QpSpec) -> Result<Qpn, DriverError> {
        let qp = self.core.create_qp(bus, spec)?;
        let qpn = qp.qpn;
        let slot = |qpn: u32| qpn & (self.core.caps.num_qps - 1);
        if self.qps.keys().any(|other| slot(*other) == slot(qpn.get())) {
            return Err(oops(format!("queue pair number {qpn} is taken")));
        }
        self.qps.insert(qpn.get(), qp);
        Ok(qpn)
    }

    /// Destroys a queue pair.
    ///
    /// # Errors
    /// Those of the commands.
    pub fn destroy_qp(&mut self, bus: &mut dyn Bus, qpn: Qpn) -> Result<(), DriverError> {
        self.reset_qp(bus, qpn)?;
        let qp = self.qps.remove(&qpn.get());
        let qp = qp.ok_or(DriverError::Usage("no such queue pair"))?;
        self.core.free_qp(bus, qp)
    }

    /// The queue pair.
    pub(super) fn qp_mut(&mut self, qpn: Qpn) -> Result<&mut Qp, DriverError> {
        let qp = self.qps.get_mut(&qpn.get());
        qp.ok_or(DriverError::Usage("no such queue pair"))
    }

    /// The state of a queue pair as the driver believes it to be.
    #[must_use]
    pub fn qp_state(&self, qpn: Qpn) -> Option<QpState> {
        self.qps.get(&qpn.get()).map(|qp| qp.state)
    }

    /// Sends of a queue pair that are outstanding.
    #[must_use]
    pub fn outstanding_sends(&self, qpn: Qpn) -> u32 {
        let qp = self.qps.get(&qpn.get());
        qp.map_or(0, |qp| qp.sends.outstanding())
    }
}
