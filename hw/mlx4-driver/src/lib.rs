//! A driver of a ConnectX-3 virtual function: the adapter's interface as `mlx4_core`, `mlx4_ib` and libmlx4 use it, from the
//! probe of the PCI function to datagrams and MADs.
//!
//! A [`Driver`] drives any function that it finds on a [`Bus`], over a [`DmaMemory`], with the commands, structures and
//! doorbells of the kernel's driver in the kernel's order, and refuses what that refuses. It returns [`DriverError::Oops`]
//! at anything by which a kernel would crash or lose track. [`Core`] is the lower driver alone.
//!
//! Facts of the driver's behaviour are those of Linux 6.1 and rdma-core 44.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod buffer;
mod bus;
mod capabilities;
mod comm;
mod command;
mod connection;
mod cq;
mod error;
mod event;
mod lower;
mod mads;
mod memory;
mod mtt;
mod numbers;
mod pci;
mod ports;
mod qp;
mod region;
mod resources;
mod ring;
mod srq;
mod talker;
mod transitions;
mod work;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use ib_vtime::Instant;
use ib_wire::PortNum;
use ib_wire::smp::{NodeDescription, NodeInfo};
use mlx4_defs::{Pdn, Uar};

pub use buffer::BufferKind;
pub use bus::Bus;
pub use capabilities::{Capabilities, PortCapabilities};
pub use command::{Command, Input, Output, Reply};
pub use connection::{Connection, ConnectionSpec};
pub use cq::{CqSpec, Source, WorkCompletion};
pub use error::DriverError;
pub use event::Event;
pub use lower::Core;
pub use mads::PortMads;
pub use memory::{DmaMemory, PAGE, words_backwards};
pub use pci::{MsiX, function_level_reset, interrupt_vectors, measure_bar, place_bar};
pub use ports::PortCache;
pub use qp::{Owner, QpSpec, QpUse};
pub use region::{Region, Rights};
pub use ring::Sge;
pub use srq::SrqSpec;
pub use talker::{Heard, Talker, TalkerSpec};
pub use transitions::{DatagramAttributes, Peer};
pub use work::{Destination, Operation, Payload, Remote, SendWork};

use self::cq::Cq;
use self::lower::CATAS_POLL;
use self::memory::Memory;
use self::qp::Qp;
use self::srq::Srq;

/// Processors of a guest: as many completion vectors per port.
const PROCESSORS: u16 = 2;

/// The driver of a function, and the stack above it. See the [module](self).
#[derive(Debug)]
pub struct Driver {
    core: Core,
    uar: Uar,
    cqs: BTreeMap<u32, Cq>,
    srqs: BTreeMap<u32, Srq>,
    qps: BTreeMap<u32, Qp>,
    node: (NodeDescription, NodeInfo),
    caches: Vec<PortCache>,
    mads: Vec<PortMads>,
    events: VecDeque<Event>,
    next_look: Instant,
}

impl Driver {
    /// Binds to the function: everything from the first register to the special queue pairs.
    ///
    /// # Errors
    /// The error at which the kernel gives up; the function is reset then, unless it is gone.
    pub fn probe(bus: &mut dyn Bus, memory: impl DmaMemory + 'static) -> Result<Self, DriverError> {
        Self::probe_on(bus, &Memory::new(memory))
    }

    fn probe_on(bus: &mut dyn Bus, memory: &Memory) -> Result<Self, DriverError> {
        let mut core = Core::probe_on(bus, memory, PROCESSORS)?;
        // The first page is the lower driver's own.
        let uars = [core.uars.take(), core.uars.take()];
        let [Some(_), Some(uar)] = uars else {
            core.abandon(bus);
            return Err(error::refused("Failed to allocate driver access region"));
        };
        let mut this = Self {
            core,
            uar: Uar::from_low_bits(uar),
            cqs: BTreeMap::new(),
            srqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            node: Default::default(),
            caches: Vec::new(),
            mads: Vec::new(),
            events: VecDeque::new(),
            next_look: bus.now() + CATAS_POLL,
        };
        match this.register_device(bus) {
            Ok(()) => Ok(this),
            Err(error) => {
                // The bring-up failed already; what else fails adds nothing.
                let _ = this.remove(bus);
                Err(error)
            }
        }
    }

    /// The upper driver's part (`mlx4_ib_add`), and that of the stack above it.
    fn register_device(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.core.serve_completions(bus);
        self.node = self.read_node(bus)?;
        // `mlx4_ib_query_device` asks once more.
        let (_, again) = self.read_node(bus)?;
        if again.node_guid != self.node.1.node_guid {
            return Err(error::oops("NodeInfo changes"));
        }
        let ports: Vec<PortNum> = (1..)
            .map(PortNum)
            .take(self.core.caps.ports.len())
            .collect();
        for port in &ports {
            let cache = self.read_cache(bus, *port)?;
            self.caches.push(cache);
        }
        for port in ports {
            let mads = self.open_mads(bus, port, self.node.1.node_guid)?;
            self.mads.push(mads);
            self.set_cm_supported(bus, port, true)?;
            self.follow_sm(bus.now(), port);
        }
        Ok(())
    }

    /// Unbinds from the function in the kernel's order.
    ///
    /// # Errors
    /// The error of a command of the teardown, at which the kernel would only warn.
    pub fn remove(mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        for port in (1..).map(PortNum).take(self.mads.len()) {
            self.set_cm_supported(bus, port, false)?;
        }
        while let Some(mads) = self.mads.pop() {
            self.close_mads(bus, mads)?;
        }
        while let Some(qpn) = self.qps.keys().next().copied() {
            self.destroy_qp(bus, ib_wire::Qpn::from_low_bits(qpn))?;
        }
        while let Some(srqn) = self.srqs.keys().next().copied() {
            self.destroy_srq(bus, mlx4_defs::Srqn::from_low_bits(srqn))?;
        }
        while let Some(cqn) = self.cqs.keys().next().copied() {
            self.destroy_cq(bus, mlx4_defs::Cqn::from_low_bits(cqn))?;
        }
        for port in 1..=self.core.caps.ports.len() {
            self.core
                .close_port(bus, u32::try_from(port).unwrap_or(0))?;
        }
        self.core.remove(bus)
    }

    /// Frees all memory without a word to the device, as after the machine was reset. The memory of
    /// [`Region`]s is their holders'.
    pub fn abandon(mut self, bus: &mut dyn Bus) {
        for mads in self.mads.drain(..) {
            Self::abandon_mads(mads);
        }
        for qp in core::mem::take(&mut self.qps).into_values() {
            qp.abandon();
        }
        for srq in core::mem::take(&mut self.srqs).into_values() {
            srq.abandon();
        }
        for cq in core::mem::take(&mut self.cqs).into_values() {
            cq.abandon();
        }
        self.core.abandon(bus);
    }

    /// Starts anew after the device failed: reset handshake, and a probe (`mlx4_restart_one`).
    ///
    /// # Errors
    /// [`DriverError::ResetFailed`], and those of [`Self::probe`].
    pub fn restart(self, bus: &mut dyn Bus) -> Result<Self, DriverError> {
        self.core.reset_function(bus)?;
        let memory = self.core.memory.clone();
        self.abandon(bus);
        Self::probe_on(bus, &memory)
    }

    /// Resets the function by the device, as a driver in its error state does, and forgets everything.
    ///
    /// # Errors
    /// [`DriverError::ResetFailed`].
    pub fn reset_device(self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.core.reset_function(bus)
    }

    /// Serves interrupts, and does everything that is due.
    ///
    /// # Errors
    /// [`DriverError::Internal`] if the device says that it failed, [`DriverError::Oops`], and those
    /// of the commands that an event makes necessary.
    pub fn serve(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        if bus.now() >= self.next_look {
            self.next_look = bus.now() + CATAS_POLL;
            if Core::has_failed(bus)? {
                return Err(DriverError::Internal);
            }
        }
        loop {
            self.core.serve_interrupts(bus)?;
            let mut notified = vec![false; self.mads.len()];
            while let Some(cqn) = self.core.completions.pop_front() {
                if let Some(cq) = self.cqs.get_mut(&cqn.get()) {
                    cq.handle_event();
                }
                for (mads, notified) in self.mads.iter().zip(&mut notified) {
                    *notified |= mads.cq == cqn;
                }
            }
            let mut busy = false;
            while let Some(event) = self.core.events.pop_front() {
                busy = true;
                self.refresh(bus, &event)?;
                if let Event::PortChange { port, .. } | Event::PortManagement { port, .. } = event {
                    self.follow_sm(bus.now(), port);
                }
                self.events.push_back(event);
            }
            for (at, notified) in notified.into_iter().enumerate() {
                busy |= self.serve_mads(bus, at, notified)?;
            }
            if !busy {
                return Ok(());
            }
        }
    }

    /// Passes the address of the SA to the SA client of a port.
    fn follow_sm(&mut self, now: Instant, port: PortNum) {
        let at = port.index().wrapping_sub(1);
        let (Some(cache), Some(mads)) = (self.caches.get(at), self.mads.get_mut(at)) else {
            return;
        };
        let view = cache.view();
        let sa = view.sa_address().filter(|_| cache.is_active());
        mads.sa.sm_changed(now, &mut mads.agent, sa);
    }

    /// Returns the time at which [`Self::serve`] is to be called at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let mads = self.mads.iter().filter_map(PortMads::poll_timeout).min();
        Some(mads.map_or(self.next_look, |mads| mads.min(self.next_look)))
    }

    /// Returns `true` if [`Self::serve`] has something to do at once.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.core.events.is_empty()
            || !self.core.completions.is_empty()
            || self.mads.iter().any(PortMads::has_transmit)
    }

    /// Returns the next event that the device announced, if any.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The capabilities.
    #[must_use]
    pub const fn capabilities(&self) -> &Capabilities {
        &self.core.caps
    }

    /// The lower driver, to give any command.
    pub const fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    /// The node's name and GUIDs.
    #[must_use]
    pub const fn node(&self) -> &(NodeDescription, NodeInfo) {
        &self.node
    }

    /// Returns the attributes of a port as they were read last.
    ///
    /// # Panics
    /// If there is no such port.
    #[must_use]
    pub fn port(&self, port: PortNum) -> &PortCache {
        &self.caches[port.index() - 1]
    }

    /// The management stack of a port.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn mads(&mut self, port: PortNum) -> &mut PortMads {
        &mut self.mads[port.index() - 1]
    }

    /// The UAR of the kernel's queues.
    #[must_use]
    pub const fn uar(&self) -> Uar {
        self.uar
    }

    /// A UAR for a program.
    ///
    /// # Errors
    /// [`DriverError::Usage`] if there is none left.
    pub fn open_context(&mut self) -> Result<Uar, DriverError> {
        let uar = self.core.uars.take();
        let uar = uar.ok_or(DriverError::Usage("no UAR is left"))?;
        Ok(Uar::from_low_bits(uar))
    }

    /// Takes a program's UAR back.
    pub fn close_context(&mut self, uar: Uar) {
        self.core.uars.give_back(uar.get());
    }

    /// A protection domain.
    ///
    /// # Errors
    /// [`DriverError::Usage`] if there is none left.
    pub fn allocate_pd(&mut self) -> Result<Pdn, DriverError> {
        let pd = self.core.pds.take();
        pd.map(Pdn)
            .ok_or(DriverError::Usage("no protection domain is left"))
    }

    /// Frees a protection domain.
    pub fn free_pd(&mut self, pd: Pdn) {
        self.core.pds.give_back(pd.0);
    }
}
