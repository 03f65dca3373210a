//! A program with a connected queue pair, and memory that its peer may reach.

use alloc::vec;
use alloc::vec::Vec;

use ib_wire::{PortNum, Psn, QKey, Qpn};
use mlx4_defs::{Cqn, Pdn, Uar};

use super::buffer::BufferKind;
use super::cq::{CqSpec, WorkCompletion};
use super::qp::{Owner, QpSpec, QpUse};
use super::region::{Region, Rights};
use super::transitions::{DatagramAttributes, Peer};
use super::work::{Payload, Remote, SendWork};
use super::{Bus, Driver, DriverError, Sge};

/// The port of all connections.
const PORT: PortNum = PortNum(1);

/// The ingredients of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionSpec {
    /// [`QpUse::Reliable`] or [`QpUse::Unreliable`].
    pub purpose: QpUse,
    /// The poster: the kernel or a program.
    pub owner: Owner,
    /// Sends that may be outstanding.
    pub sends: u32,
    /// Receives that may be outstanding.
    pub receives: u32,
    /// Bytes of its region.
    pub len: usize,
    /// Rights to its region.
    pub rights: Rights,
    /// First PSN that it sends.
    pub psn: Psn,
}

impl ConnectionSpec {
    /// Returns the spec of a program's reliable connection: 16 requests each way, and 64 KiB that the peer may do everything
    /// with.
    #[must_use]
    pub const fn reliable() -> Self {
        Self {
            purpose: QpUse::Reliable,
            owner: Owner::User,
            sends: 16,
            receives: 16,
            len: 1 << 16,
            rights: Rights::ALL,
            psn: Psn::from_low_bits(0xff_fffa),
        }
    }
}

/// A program with a connected queue pair, its completion queue and a region of memory.
#[derive(Debug)]
pub struct Connection {
    spec: ConnectionSpec,
    uar: Uar,
    pd: Pdn,
    /// The completion queue of sends and receives.
    pub cq: Cqn,
    /// The queue pair.
    pub qpn: Qpn,
    /// Its memory.
    pub region: Region,
}

impl Connection {
    /// Makes everything; the queue pair is initialised.
    ///
    /// # Errors
    /// Those of the commands; what was made until then stays, as of a program that is stuck.
    pub fn open(
        driver: &mut Driver,
        bus: &mut dyn Bus,
        spec: &ConnectionSpec,
    ) -> Result<Self, DriverError> {
        let (uar, memory) = match spec.owner {
            Owner::Kernel => (driver.uar(), BufferKind::Kernel),
            Owner::User => (driver.open_context()?, BufferKind::User { shift: 12 }),
        };
        let pd = driver.allocate_pd()?;
        let cq_spec = CqSpec {
            entries: spec.sends + spec.receives,
            vector: 0,
            uar,
            memory,
        };
        let cq = driver.create_cq(bus, &cq_spec)?;
        // Atomics want whole multiples of 8.
        let region = driver.register(bus, pd, 0x7c0, spec.len, spec.rights)?;
        let qpn = driver.create_qp(
            bus,
            &QpSpec {
                purpose: spec.purpose,
                owner: spec.owner,
                uar,
                memory,
                pd,
                send_cq: cq,
                recv_cq: cq,
                srq: None,
                sends: spec.sends,
                receives: spec.receives,
                send_sges: 2,
                receive_sges: 2,
                inline: 64,
                signal_all: false,
            },
        )?;
        let this = Self {
            spec: *spec,
            uar,
            pd,
            cq,
            qpn,
            region,
        };
        this.to_init(driver, bus)?;
        Ok(this)
    }

    fn to_init(&self, driver: &mut Driver, bus: &mut dyn Bus) -> Result<(), DriverError> {
        let attributes = DatagramAttributes {
            port: PORT,
            pkey_index: 0,
            qkey: QKey::new(0),
        };
        driver.to_init(bus, self.qpn, &attributes)
    }

    /// Returns this end as its peer has to be told of it.
    #[must_use]
    pub fn address(&self, driver: &Driver) -> Peer {
        let port = driver.port(PORT);
        Peer {
            lid: port.info.lid,
            gid: Some(port.gid()),
            qpn: self.qpn,
            psn: self.spec.psn,
        }
    }

    /// Connects the queue pair from initialised to ready to send.
    ///
    /// # Errors
    /// Those of the commands.
    pub fn connect(
        &self,
        driver: &mut Driver,
        bus: &mut dyn Bus,
        peer: &Peer,
    ) -> Result<(), DriverError> {
        driver.connect_rtr(bus, self.qpn, peer)?;
        driver.connect_rts(bus, self.qpn, self.spec.psn)
    }

    /// Resets the queue pair, whatever its state, and initialises it.
    ///
    /// # Errors
    /// Those of the commands.
    pub fn disconnect(&self, driver: &mut Driver, bus: &mut dyn Bus) -> Result<(), DriverError> {
        driver.reset_qp(bus, self.qpn)?;
        self.to_init(driver, bus)
    }

    /// Returns a byte of its memory as its peer names it.
    #[must_use]
    pub const fn remote(&self, offset: usize) -> Remote {
        Remote {
            addr: self.region.start + offset as u64,
            rkey: self.region.key,
        }
    }

    /// Returns a part of its memory as the payload of a request.
    ///
    /// # Panics
    /// If it is not in the region.
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> Payload {
        Payload::Gather(vec![self.region.sge(offset, len)])
    }

    /// Posts requests.
    ///
    /// # Errors
    /// As [`Driver::post_sends`].
    pub fn post(
        &self,
        driver: &mut Driver,
        bus: &mut dyn Bus,
        works: &[SendWork],
    ) -> Result<(), DriverError> {
        driver.post_sends(bus, self.qpn, works)
    }

    /// Posts a receive into its memory.
    ///
    /// # Errors
    /// As [`Driver::post_receives`].
    pub fn post_receive(
        &self,
        driver: &mut Driver,
        wr_id: u64,
        into: Sge,
    ) -> Result<(), DriverError> {
        driver.post_receives(self.qpn, &[(wr_id, vec![into])])
    }

    /// Takes all completions.
    ///
    /// # Errors
    /// Those of [`Driver::poll_cq`].
    pub fn completions(&self, driver: &mut Driver) -> Result<Vec<WorkCompletion>, DriverError> {
        driver.poll_cq(self.cq, usize::MAX)
    }

    /// Destroys everything.
    ///
    /// # Errors
    /// Those of the commands.
    pub fn close(self, driver: &mut Driver, bus: &mut dyn Bus) -> Result<(), DriverError> {
        driver.destroy_qp(bus, self.qpn)?;
        driver.destroy_cq(bus, self.cq)?;
        driver.deregister(bus, self.region)?;
        driver.free_pd(self.pd);
        if self.spec.owner == Owner::User {
            driver.close_context(self.uar);
        }
        Ok(())
    }
}
