//! A program that exchanges datagrams through a queue pair of its own.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use ib_wire::{Lid, PortNum, QKey, Qpn};
use mlx4_defs::cqe::Syndrome;
use mlx4_defs::{Cqn, Pdn, Srqn, Uar};

use super::buffer::BufferKind;
use super::cq::{CqSpec, Source};
use super::error::oops;
use super::qp::{Owner, QpSpec, QpUse};
use super::region::{Region, Rights};
use super::transitions::DatagramAttributes;
use super::work::{Destination, Payload, SendWork};
use super::{Bus, Driver, DriverError, Sge, SrqSpec};

/// Bytes of the space for a GRH before each received datagram.
const GRH: usize = 40;

/// Bytes from one buffer to the next.
const STRIDE: usize = 4096;

/// Ingredients of a talker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TalkerSpec {
    /// Its port.
    pub port: PortNum,
    /// Its P_Key index.
    pub pkey_index: u8,
    /// Its Q_Key.
    pub qkey: QKey,
    /// Owner of its queue pair: the kernel or a program.
    pub owner: Owner,
    /// `true` if its receives are in a shared queue.
    pub shared: bool,
    /// Sends that may be outstanding.
    pub sends: u32,
    /// Receives that are posted.
    pub receives: u32,
    /// Completion vector.
    pub vector: usize,
}

impl TalkerSpec {
    /// The Q_Key of talkers that do not choose one.
    pub const QKEY: QKey = QKey::new(0x1234_5678);
}

impl Default for TalkerSpec {
    fn default() -> Self {
        Self {
            port: PortNum(1),
            pkey_index: 0,
            qkey: Self::QKEY,
            owner: Owner::User,
            shared: false,
            sends: 16,
            receives: 16,
            vector: 0,
        }
    }
}

/// A datagram that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The message.
    pub bytes: Vec<u8>,
    /// Source.
    pub source: Source,
    /// The GRH, if it had one.
    pub grh: Option<[u8; GRH]>,
    /// Immediate data.
    pub immediate: Option<[u8; 4]>,
}

/// A program with a queue pair for datagrams.
#[derive(Debug)]
pub struct Talker {
    spec: TalkerSpec,
    uar: Uar,
    /// The protection domain.
    pub pd: Pdn,
    /// The completion queue of sends.
    pub send_cq: Cqn,
    /// The completion queue of receives.
    pub recv_cq: Cqn,
    /// The shared receive queue.
    pub srq: Option<Srqn>,
    /// The queue pair.
    pub qpn: Qpn,
    region: Region,
    free_sends: Vec<usize>,
    /// `true` if the receives of a shared queue are posted: they outlive resets of the queue pair.
    is_stocked: bool,
    /// Requests that completed with an error.
    pub failed: Vec<(u64, Syndrome)>,
}

impl Talker {
    /// Makes everything, and brings the queue pair up.
    ///
    /// # Errors
    /// Those of the commands; what was made until then stays, as of a program that is stuck.
    pub fn open(
        driver: &mut Driver,
        bus: &mut dyn Bus,
        spec: &TalkerSpec,
    ) -> Result<Self, DriverError> {
        let uar = match spec.owner {
            Owner::Kernel => driver.uar(),
            Owner::User => driver.open_context()?,
        };
        let memory = match spec.owner {
            Owner::Kernel => BufferKind::Kernel,
            Owner::User => BufferKind::User { shift: 12 },
        };
        let pd = driver.allocate_pd()?;
        let mut cq = |driver: &mut Driver, entries| {
            let spec = CqSpec {
                entries,
                vector: spec.vector,
                uar,
                memory,
            };
            driver.create_cq(bus, &spec)
        };
        let send_cq = cq(driver, spec.sends)?;
        let recv_cq = cq(driver, spec.receives)?;
        let slots = (spec.sends + spec.receives) as usize;
        let rights = Rights {
            local_write: true,
            ..Rights::default()
        };
        // Not at the start of a page.
        let region = driver.register(bus, pd, 0x7c0, slots * STRIDE, rights)?;
        let srq = if spec.shared {
            let spec = SrqSpec {
                pd,
                receives: spec.receives,
                sges: 2,
                memory,
            };
            Some(driver.create_srq(bus, &spec)?)
        } else {
            None
        };
        let qpn = driver.create_qp(
            bus,
            &QpSpec {
                purpose: QpUse::Datagram,
                owner: spec.owner,
                uar,
                memory,
                pd,
                send_cq,
                recv_cq,
                srq,
                sends: spec.sends,
                receives: if spec.shared { 0 } else { spec.receives },
                send_sges: 2,
                receive_sges: 2,
                inline: 64,
                signal_all: false,
            },
        )?;
        let mut this = Self {
            spec: *spec,
            uar,
            pd,
            send_cq,
            recv_cq,
            srq,
            qpn,
            region,
            free_sends: Vec::new(),
            is_stocked: false,
            failed: Vec::new(),
        };
        this.bring_up(driver, bus)?;
        Ok(this)
    }

    /// Brings the queue pair from reset to ready to send, with all receives posted.
    ///
    /// # Errors
    /// Those of the commands.
    pub fn bring_up(&mut self, driver: &mut Driver, bus: &mut dyn Bus) -> Result<(), DriverError> {
        let attributes = DatagramAttributes {
            port: self.spec.port,
            pkey_index: self.spec.pkey_index,
            qkey: self.spec.qkey,
        };
        driver.to_init(bus, self.qpn, &attributes)?;
        self.free_sends = (0..self.spec.sends as usize).rev().collect();
        if self.srq.is_none() || !self.is_stocked {
            self.is_stocked = true;
            for slot in 0..self.spec.receives as usize {
                self.post_receive(driver, slot)?;
            }
        }
        driver.to_rtr(bus, self.qpn)?;
        driver.to_rts(bus, self.qpn)
    }

    fn receive_offset(&self, slot: usize) -> usize {
        (self.spec.sends as usize + slot) * STRIDE
    }

    fn post_receive(&self, driver: &mut Driver, slot: usize) -> Result<(), DriverError> {
        let at = self.receive_offset(slot);
        // The GRH in a segment of its own.
        let sges = vec![
            self.region.sge(at, GRH),
            self.region.sge(at + GRH, STRIDE - GRH),
        ];
        let work = (slot as u64, sges);
        match self.srq {
            Some(srqn) => driver.post_srq_receives(srqn, &[work]),
            None => driver.post_receives(self.qpn, &[work]),
        }
    }

    /// The UAR that it posts through.
    #[must_use]
    pub const fn uar(&self) -> Uar {
        self.uar
    }

    /// A part of its memory, under its own key.
    #[must_use]
    pub fn own_memory(&self, len: usize) -> Sge {
        self.region.sge(0, len)
    }

    /// Returns the address by which others reach this talker.
    #[must_use]
    pub fn address(&self, lid: Lid) -> (Lid, Qpn, QKey) {
        (lid, self.qpn, self.spec.qkey)
    }

    /// The way to another talker.
    #[must_use]
    pub fn way_to(&self, (lid, qpn, qkey): (Lid, Qpn, QKey)) -> Destination {
        Destination::new(self.pd, self.spec.port, lid, qpn, qkey)
    }

    /// Puts a message into a buffer, and gives the request that sends it: short ones of programs go
    /// inline.
    ///
    /// # Errors
    /// [`DriverError::Usage`] if all buffers are in use, also after completed sends were taken.
    pub fn request(
        &mut self,
        driver: &mut Driver,
        to: &Destination,
        message: &[u8],
    ) -> Result<SendWork, DriverError> {
        if self.free_sends.is_empty() {
            self.take_sent(driver)?;
        }
        let slot = self.free_sends.pop();
        let slot = slot.ok_or(DriverError::Usage("all buffers are in use"))?;
        let payload = if self.spec.owner == Owner::User && message.len() <= 64 {
            Payload::Inline(message.to_vec())
        } else {
            Payload::Gather(self.gather(slot * STRIDE, message))
        };
        Ok(SendWork::new(slot as u64, payload, *to))
    }

    /// Writes a message, and names it in two segments.
    fn gather(&self, at: usize, message: &[u8]) -> Vec<Sge> {
        self.region.write(at, message);
        let half = message.len() / 3;
        vec![
            self.region.sge(at, half),
            self.region.sge(at + half, message.len() - half),
        ]
    }

    /// Sends a message.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub fn say(
        &mut self,
        driver: &mut Driver,
        bus: &mut dyn Bus,
        to: &Destination,
        message: &[u8],
    ) -> Result<(), DriverError> {
        let work = self.request(driver, to, message)?;
        driver.post_sends(bus, self.qpn, &[work])
    }

    /// Takes completed sends. Returns their number.
    ///
    /// # Errors
    /// Those of [`Driver::poll_cq`].
    pub fn take_sent(&mut self, driver: &mut Driver) -> Result<usize, DriverError> {
        let done = driver.poll_cq(self.send_cq, usize::MAX)?;
        for completion in &done {
            if let Some(error) = completion.error {
                self.failed.push((completion.wr_id, error));
            }
            let slot = usize::try_from(completion.wr_id).unwrap_or(usize::MAX);
            if self.free_sends.contains(&slot) {
                return Err(oops(format!("send {slot} completed twice")));
            }
            self.free_sends.push(slot);
        }
        Ok(done.len())
    }

    /// Takes what arrived, and posts the buffers again.
    ///
    /// # Errors
    /// Those of [`Driver::poll_cq`].
    pub fn hear(&mut self, driver: &mut Driver) -> Result<Vec<Heard>, DriverError> {
        let mut heard = Vec::new();
        for completion in driver.poll_cq(self.recv_cq, usize::MAX)? {
            if let Some(error) = completion.error {
                self.failed.push((completion.wr_id, error));
                continue;
            }
            let slot = usize::try_from(completion.wr_id).unwrap_or(usize::MAX);
            let at = self.receive_offset(slot);
            let len = (completion.byte_len as usize).checked_sub(GRH);
            let len = len.filter(|len| *len <= STRIDE - GRH);
            let len = len.ok_or_else(|| oops("a datagram of impossible length"))?;
            let grh = self.region.read(at, GRH);
            heard.push(Heard {
                bytes: self.region.read(at + GRH, len),
                source: completion.source,
                grh: completion
                    .source
                    .grh
                    .then(|| grh.try_into().unwrap_or([0; GRH])),
                immediate: completion.immediate,
            });
            self.post_receive(driver, slot)?;
        }
        Ok(heard)
    }

    /// Destroys everything.
    ///
    /// # Errors
    /// Those of the commands.
    pub fn close(self, driver: &mut Driver, bus: &mut dyn Bus) -> Result<(), DriverError> {
        driver.destroy_qp(bus, self.qpn)?;
        if let Some(srqn) = self.srq {
            driver.destroy_srq(bus, srqn)?;
        }
        driver.destroy_cq(bus, self.send_cq)?;
        driver.destroy_cq(bus, self.recv_cq)?;
        driver.deregister(bus, self.region)?;
        driver.free_pd(self.pd);
        if self.spec.owner == Owner::User {
            driver.close_context(self.uar);
        }
        Ok(())
    }

    /// Frees the memory without a command, after the device was reset.
    pub fn abandon(self) {
        self.region.abandon();
    }
}
