//! The lower driver (`mlx4_core`): commands, capabilities, event queues.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use ib_vtime::{Duration, Instant};
use mlx4_defs::eq::{EqContext, EqState, EventMask, MapEq};
use mlx4_defs::eqe::{EQE_SIZE, EventType};
use mlx4_defs::{Cqn, Eqn, LogPageSize, Opcode, Status};

use super::buffer::BufferKind;
use super::capabilities::Capabilities;
use super::comm::Channel;
use super::command::CommandPort;
use super::error::oops;
use super::event::{Entry, Event, EventQueue, SPARE_ENTRIES};
use super::memory::Memory;
use super::numbers::{DoorbellRecords, Numbers};
use super::pci::PciDevice;
use super::{Bus, Command, DmaMemory, DriverError, Reply};

/// Entries of the event queue for asynchronous events (`MLX4_NUM_ASYNC_EQE`), without the spare ones.
const ASYNC_ENTRIES: u32 = 0x100;

/// Bits of a protection domain's number that change when the numbers wrap (`mlx4_init_pd_table`).
const PD_MASK: u32 = (1 << 17) - 1;

/// Protection domains (`MLX4_NUM_PDS`).
const PDS: u32 = 1 << 15;

/// Time between two looks for the device's failure (`MLX4_CATAS_POLL_INTERVAL`).
pub(super) const CATAS_POLL: Duration = Duration::from_secs(5);

/// Input modifier of NOP (`mlx4_NOP`).
const NOP_MODIFIER: u32 = 0x1f;

/// Interrupts in a row, while no time passes, that no device raises that works.
const STORM: usize = 1000;

/// The lower driver of a function.
#[derive(Debug)]
pub struct Core {
    pub(super) memory: Memory,
    pub(super) pci: PciDevice,
    commands: CommandPort,
    pub(super) caps: Capabilities,
    /// The queue for asynchronous events is the first.
    eqs: Vec<EventQueue>,
    pub(super) uars: Numbers,
    pub(super) pds: Numbers,
    pub(super) records: DoorbellRecords,
    /// Counters of the ports, if the device counts.
    pub(super) counters: Vec<Option<u32>>,
    /// Completion queues that have something, oldest first.
    pub(super) completions: VecDeque<Cqn>,
    /// Other events, oldest first.
    pub(super) events: VecDeque<Event>,
    /// Interrupts since a time that has not passed, and since the last command.
    interrupts: (Instant, usize),
}

impl Core {
    /// Brings the function up as `mlx4_load_one` does, for so many processors.
    ///
    /// # Errors
    /// The error at which the kernel gives up; the function is reset then, unless it is gone.
    pub fn probe(
        bus: &mut dyn Bus,
        memory: impl DmaMemory + 'static,
        processors: u16,
    ) -> Result<Self, DriverError> {
        Self::probe_on(bus, &Memory::new(memory), processors)
    }

    pub(super) fn probe_on(
        bus: &mut dyn Bus,
        memory: &Memory,
        processors: u16,
    ) -> Result<Self, DriverError> {
        let mut pci = PciDevice::enable(bus)?;
        let mut commands = CommandPort::open(bus, memory)?;
        let caps = match Capabilities::query(bus, &mut commands, &pci) {
            Ok(caps) => caps,
            Err(error) => {
                commands.close(bus)?;
                return Err(error);
            }
        };
        if let Err(error) = pci.enable_msi_x(bus, caps.wanted_vectors(processors)) {
            commands.close(bus)?;
            return Err(error);
        }
        let mut this = Self {
            memory: memory.clone(),
            uars: Numbers::new(caps.reserved_uars, caps.num_uars, caps.num_uars - 1),
            pds: Numbers::new(caps.reserved_pds, PDS, PD_MASK),
            pci,
            commands,
            caps,
            eqs: Vec::new(),
            records: DoorbellRecords::default(),
            counters: Vec::new(),
            completions: VecDeque::new(),
            events: VecDeque::new(),
            interrupts: (bus.now(), 0),
        };
        match this.set_up(bus) {
            Ok(()) => Ok(this),
            Err(error) => {
                this.give_up(bus);
                Err(error)
            }
        }
    }

    /// The part of the bring-up that makes objects (`mlx4_setup_hca`).
    fn set_up(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        for vector in 0..self.pci.vectors {
            let entries = if vector == 0 {
                ASYNC_ENTRIES
            } else {
                self.caps.cq_quota
            };
            let eq = self.create_eq(bus, vector, entries + SPARE_ENTRIES)?;
            self.eqs.push(eq);
        }
        self.request_interrupt(bus, 0);
        self.map_async_events(bus, false)?;
        self.eqs[0].set_consumer(bus, true);
        self.commands.use_events();
        self.execute(bus, &Command::new(Opcode::NOP, NOP_MODIFIER))?;
        for _ in 0..self.caps.ports.len() {
            let counter = self.allocate_counter(bus)?;
            self.counters.push(counter);
        }
        Ok(())
    }

    fn create_eq(
        &mut self,
        bus: &mut dyn Bus,
        vector: u16,
        entries: u32,
    ) -> Result<EventQueue, DriverError> {
        let entries = entries.next_power_of_two();
        let eqn = Eqn(self.caps.reserved_eqs + u32::from(vector));
        let bytes = entries as usize * EQE_SIZE;
        let mapped = self.map_buffer(bus, bytes, BufferKind::User { shift: 12 })?;
        let mut context = EqContext::default();
        context.set_state(EqState::ARMED);
        context.set_log_entries(low_byte(entries.ilog2()));
        context.vector = low_byte(u32::from(vector));
        context.log_page_size = LogPageSize(0);
        context.mtt_base = mapped.mtt.base();
        let given = self.execute(bus, &Command::new(Opcode::SW2HW_EQ, eqn.0).with(&context));
        if let Err(error) = given {
            self.unmap_buffer(bus, mapped)?;
            return Err(error);
        }
        Ok(EventQueue::new(eqn, vector, entries, mapped))
    }

    fn destroy_eq(&mut self, bus: &mut dyn Bus, eq: EventQueue) -> Result<(), DriverError> {
        self.execute(bus, &Command::new(Opcode::HW2SW_EQ, eq.eqn.0).variant(1))?;
        self.unmap_buffer(bus, eq.mapped)
    }

    /// Starts to serve an event queue's interrupt (`request_irq`).
    fn request_interrupt(&mut self, bus: &mut dyn Bus, index: usize) {
        let vector = self.eqs[index].vector;
        self.eqs[index].is_served = true;
        self.pci.set_masked(bus, vector, false);
    }

    /// Starts to serve all queues for completions, and arms them (`mlx4_assign_eq`).
    pub(super) fn serve_completions(&mut self, bus: &mut dyn Bus) {
        for index in 1..self.eqs.len() {
            self.request_interrupt(bus, index);
            self.eqs[index].set_consumer(bus, true);
        }
    }

    /// The queue for the completions of a vector.
    pub(super) fn completion_eqn(&self, vector: usize) -> u8 {
        low_byte(self.eqs[1 + vector % (self.eqs.len() - 1)].eqn.0)
    }

    fn map_async_events(&mut self, bus: &mut dyn Bus, unmap: bool) -> Result<(), DriverError> {
        let mut modifier = MapEq::default();
        modifier.set_eqn(self.eqs[0].eqn);
        modifier.set_unmap(unmap);
        let mask = self.async_events();
        let command = Command::new(Opcode::MAP_EQ, modifier.word.get()).value(mask.0);
        // The kernel only warns, but then NOP does not come back.
        self.execute(bus, &command).map(|_| ())
    }

    /// `MLX4_ASYNC_EVENT_MASK`, and what the capabilities add.
    fn async_events(&self) -> EventMask {
        let all = [
            EventType::PATH_MIG,
            EventType::COMM_EST,
            EventType::SQ_DRAINED,
            EventType::CQ_ERROR,
            EventType::WQ_CATAS_ERROR,
            EventType::EEC_CATAS_ERROR,
            EventType::PATH_MIG_FAILED,
            EventType::WQ_INVAL_REQ_ERROR,
            EventType::WQ_ACCESS_ERROR,
            EventType::PORT_CHANGE,
            EventType::ECC_DETECT,
            EventType::SRQ_CATAS_ERROR,
            EventType::SRQ_QP_LAST_WQE,
            EventType::SRQ_LIMIT,
            EventType::CMD,
            EventType::OP_REQUIRED,
            EventType::COMM_CHANNEL,
            EventType::FLR_EVENT,
            EventType::FATAL_WARNING,
        ];
        let mask = all.into_iter().fold(EventMask(0), EventMask::with);
        if self.caps.has_port_events {
            mask.with(EventType::PORT_MNG_CHG_EVENT)
        } else {
            mask
        }
    }

    /// Executes a command: waits for its end, and serves interrupts meanwhile.
    ///
    /// # Errors
    /// [`DriverError::Command`] with the device's status; [`DriverError::TimedOut`], on which the
    /// kernel enters its error state; [`DriverError::Oops`] for an answer out of order.
    pub fn execute(&mut self, bus: &mut dyn Bus, command: &Command) -> Result<Reply, DriverError> {
        self.post(bus, command)?;
        self.finish(bus, command)?;
        self.commands.reply(command)
    }

    /// Posts a command, whose end [`Self::finish`] waits for: meanwhile the caller may do what a kernel does on another
    /// processor.
    ///
    /// # Errors
    /// [`DriverError::Oops`] if the last command has not ended.
    pub fn post(&mut self, bus: &mut dyn Bus, command: &Command) -> Result<(), DriverError> {
        self.interrupts.1 = 0;
        self.commands.post(bus, command)
    }

    /// Returns `true` if the device has answered the command that was posted. An event may still announce that.
    ///
    /// # Errors
    /// [`DriverError::Gone`].
    pub fn is_answered(&self, bus: &mut dyn Bus) -> Result<bool, DriverError> {
        self.commands.is_answered(bus)
    }

    /// Waits for the end of the command that was posted, and serves interrupts meanwhile. Its output is left where it is.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn finish(&mut self, bus: &mut dyn Bus, command: &Command) -> Result<(), DriverError> {
        let end = bus.now() + CommandPort::LIMIT.min(bus.patience());
        loop {
            self.serve_interrupts(bus)?;
            if self.commands.is_done(bus)? {
                return self.commands.status(command).map(|_| ());
            }
            if bus.now() >= end {
                return Err(CommandPort::timed_out(command));
            }
            bus.wait(CommandPort::LOOK);
        }
    }

    /// From now on commands end without an interrupt: the driver looks for their answers.
    pub const fn use_polling(&mut self) {
        self.commands.use_polling();
    }

    /// Masks an MSI-X vector, or unmasks it. Vector 0 is that of commands and asynchronous events.
    pub fn set_masked(&self, bus: &mut dyn Bus, vector: u16, masked: bool) {
        self.pci.set_masked(bus, vector, masked);
    }

    /// Returns `true` if an MSI-X vector fired while it was masked, and still is.
    #[must_use]
    pub fn is_pending(&self, bus: &mut dyn Bus, vector: u16) -> bool {
        self.pci.is_pending(bus, vector)
    }

    /// Serves the interrupts that were signalled.
    pub(super) fn serve_interrupts(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        while let Some(vector) = bus.take_interrupt() {
            self.check_storm(bus.now())?;
            let served = self.eqs.iter().position(|eq| eq.vector == vector);
            let served = served.filter(|index| self.eqs[*index].is_served);
            if let Some(index) = served {
                self.serve_eq(bus, index)?;
            }
        }
        Ok(())
    }

    /// Counts interrupts while no time passes.
    fn check_storm(&mut self, now: Instant) -> Result<(), DriverError> {
        let (since, count) = self.interrupts;
        self.interrupts = if since == now {
            (since, count + 1)
        } else {
            (now, 0)
        };
        if count > STORM {
            return Err(oops("an interrupt that does not end"));
        }
        Ok(())
    }

    fn serve_eq(&mut self, bus: &mut dyn Bus, index: usize) -> Result<(), DriverError> {
        let mut taken = 0;
        while let Some(entry) = self.eqs[index].next()? {
            match entry {
                Entry::Completion(cqn) => self.completions.push_back(cqn),
                Entry::Command { token, status } => self.commands.handle_event(token, status)?,
                Entry::Event(event) => self.events.push_back(event),
            }
            taken += 1;
            if taken >= SPARE_ENTRIES {
                self.eqs[index].set_consumer(bus, false);
                taken = 0;
            }
        }
        self.eqs[index].set_consumer(bus, true);
        Ok(())
    }

    /// Returns the next event that the device announced, besides completions. Above this driver it is
    /// [`super::Driver::poll_event`] that returns them.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns `true` if the device says that it failed (`poll_catas`).
    pub(super) fn has_failed(bus: &mut dyn Bus) -> Result<bool, DriverError> {
        Channel::has_failed(bus)
    }

    /// The capabilities.
    #[must_use]
    pub const fn capabilities(&self) -> &Capabilities {
        &self.caps
    }

    /// The address of the VHCR.
    #[must_use]
    pub const fn vhcr(&self) -> u64 {
        self.commands.vhcr()
    }

    /// The address of the input mailbox.
    #[must_use]
    pub const fn inbox(&self) -> u64 {
        self.commands.inbox()
    }

    /// Takes the function down as `mlx4_unload_one` does.
    ///
    /// # Errors
    /// The error of a command of the teardown, at which the kernel would only warn.
    pub fn remove(mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        for port in 1..=self.caps.ports.len() {
            self.close_port(bus, u32::try_from(port).unwrap_or(u32::MAX))?;
        }
        for counter in core::mem::take(&mut self.counters).into_iter().flatten() {
            self.free_counter(bus, counter)?;
        }
        self.commands.use_polling();
        self.map_async_events(bus, true)?;
        for vector in 0..self.pci.vectors {
            self.pci.set_masked(bus, vector, true);
        }
        while !self.eqs.is_empty() {
            let eq = self.eqs.remove(0);
            self.destroy_eq(bus, eq)?;
        }
        self.records.release(&self.memory);
        let stopped = self.commands.close(bus);
        self.pci.disable(bus);
        stopped
    }

    /// Frees the driver's memory without a command, as after the device was reset.
    pub(super) fn abandon(mut self, bus: &mut dyn Bus) {
        for eq in self.eqs.drain(..) {
            eq.mapped.buffer.free();
        }
        self.records.release(&self.memory);
        self.commands.free();
        self.pci.disable(bus);
    }

    /// After a failed bring-up: the device is reset, so that nothing is left of it.
    fn give_up(mut self, bus: &mut dyn Bus) {
        self.commands.use_polling();
        let Self {
            mut pci,
            commands,
            eqs,
            mut records,
            memory,
            ..
        } = self;
        // The bring-up failed already; what else fails adds nothing.
        let _ = commands.close(bus);
        for eq in eqs {
            eq.mapped.buffer.free();
        }
        records.release(&memory);
        pci.disable(bus);
    }

    /// Resets the function by the device, as a driver in its error state does.
    pub(super) fn reset_function(&self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.commands.reset_function(bus)
    }

    /// Stops a port. Ports that are stopped already stay so.
    pub(super) fn close_port(&mut self, bus: &mut dyn Bus, port: u32) -> Result<(), DriverError> {
        let command = Command::new(Opcode::CLOSE_PORT, port);
        self.execute(bus, &command).map(|_| ())
    }

    /// A counter for a port; `None` if the device has none to give
    /// (`mlx4_allocate_default_counters`).
    fn allocate_counter(&mut self, bus: &mut dyn Bus) -> Result<Option<u32>, DriverError> {
        match self.reserve_counter(bus) {
            Ok(counter) => Ok(Some(counter)),
            Err(error) if error.status() == Some(Status::BAD_PARAM.get()) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The low byte of a small number.
pub(super) fn low_byte(value: u32) -> u8 {
    let [.., low] = value.to_be_bytes();
    low
}
