//! A ConnectX-3 virtual function (15b3:1004), as the stock Linux drivers `mlx4_core` and `mlx4_ib` drive
//! it.
//!
//! [`Mlx4Function`] is a [`PciFunction`]: configuration space, BAR 2 with the communication channel and
//! the doorbells, BAR 4 with the MSI-X table. Commands come through the channel and a register in the
//! guest's memory; they are copied once, parsed into types, and only then act. What they make is made
//! with the VF's function of the adapter ([`hca_api::Hca`]): the device holds no packet and no transport
//! of its own.
//!
//! # Resets
//!
//! The driver (RESET on the channel, a reset request, a breach of the protocol), the machine
//! (function-level reset) and the VMM ([`PciFunction::reset`]) can reset the function. It then forgets
//! what the driver made, asks its owner with [`PciEvent::ResetWanted`], and goes on when
//! [`AsyncEvent::FunctionReset`] says that the PF has released everything. If the PF resets the VF by
//! itself, or the adapter fails, the driver is told of an internal error: it asks for a reset and starts
//! anew.
//!
//! # The command register
//!
//! As long as memory space is off the function answers no access to its registers: they read as ones. As
//! long as it is no bus master it reaches no memory, so a command cannot be read and a packet finds no
//! buffer, and interrupts wait. `mlx4_core` turns both on before it looks at the function
//! (`pci_enable_device`, `pci_set_master`), VMMs pass the guest's writes on, and a reset turns both off.
//!
//! # Interrupts
//!
//! A front end whose VMM keeps the MSI-X table (QEMU does, behind vfio-user) signals every
//! [`PciEvent::Interrupt`], and leaves it to the VMM to hold back what the guest has masked. Where the
//! guest's writes reach BAR 4 the function does that itself: from the first write on what is masked there
//! waits in the pending bits.
//!
//! # Hostile guests
//!
//! Whatever a guest writes is answered with a status, or not at all. The work for each access and for each
//! [`PciFunction::poll`] is bounded, and small: a mailbox, a batch of requests, a step of a queue's initialisation or of
//! a region's pages. What takes longer is under way meanwhile, and whoever polls may serve others before it
//! polls again.

mod capability;
mod comm;
mod command;
mod driver_quirks;
mod eq;
mod lengthy;
mod mad_ifc;
mod mpt;
mod mtt;
mod objects;
mod ownership;
mod pd;
mod ports;
mod queues;
mod resources;
mod traffic;
mod vhcr;

use std::collections::BTreeMap;

use hca_api::{AsyncEvent, Hca, HcaEvent};
use ib_vtime::Instant;
use mlx4_defs::bar::Register;
use mlx4_defs::cq::CqDoorbell;
use mlx4_defs::eq::EqDoorbell;
use mlx4_defs::pci::{CLASS_CODE, DEVICE_ID, MIN_VECTORS, UAR_BAR, VENDOR_ID};
use mlx4_defs::wqe::SendDoorbell;
use mlx4_defs::{Status, Uar, Vhcr};
use zerocopy::network_endian::U32;

use self::comm::{CommAction, CommChannel};
use self::command::Command;
use self::eq::Progress;
use self::lengthy::{Lengthy, Step};
use self::objects::Objects;
use self::vhcr::Output;
use crate::Personality;
use vf_pci::{Bar, Doorbell, MsixMessage, PciEvent, PciFunction};
use vf_pci::{Endpoint, Identity};

/// What configuration space says of the function.
const IDENTITY: Identity = Identity {
    vendor: VENDOR_ID,
    device: DEVICE_ID,
    class_code: CLASS_CODE,
};

/// The register that the communication channel and the UARs are behind.
const REGISTERS: Bar = Bar {
    index: UAR_BAR,
    size: capability::UAR_AREA,
    prefetchable: true,
};

/// The register with the MSI-X table.
const MSIX_BAR: u8 = 4;

/// The personality: functions with the default configuration, and answers that Linux' driver handles correctly.
pub const PERSONALITY: Personality = Personality {
    make: || Box::new(Mlx4Function::new(&Mlx4Config::default())),
    adapt_answer: driver_quirks::adapt_answer,
};

/// What a function is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mlx4Config {
    /// Entries of the MSI-X table, 2 to 256. The driver wants one for each processor and port, and one
    /// more.
    pub vectors: u16,
}

impl Default for Mlx4Config {
    /// Enough vectors for 32 processors.
    fn default() -> Self {
        Self { vectors: 33 }
    }
}

/// The register in guest memory that a command came in.
#[derive(Debug)]
struct Posted {
    at: u64,
    vhcr: Vhcr,
}

/// A command that is not done yet.
#[derive(Debug)]
struct UnderWay {
    posted: Posted,
    rest: Lengthy,
}

/// A ConnectX-3 virtual function.
#[derive(Debug)]
pub struct Mlx4Function {
    endpoint: Endpoint,
    comm: CommChannel,
    objects: Objects,
    /// The command that is being executed.
    under_way: Option<UnderWay>,
    /// First halves of completion queue doorbells, by UAR.
    cq_doorbells: BTreeMap<Uar, [u8; 4]>,
    reset_wanted: bool,
    /// Doorbell pages that are none any more since the driver's objects were forgotten.
    are_doorbells_forgotten: bool,
    /// How far the driver was with its events when one came or it took some last.
    progress: Progress,
    /// Since when it has left events waiting.
    waiting_since: Option<Instant>,
}

impl Mlx4Function {
    /// A function as it is after power-on. Numbers of vectors beyond what there can be are taken to the
    /// next that can.
    #[must_use]
    pub fn new(config: &Mlx4Config) -> Self {
        let vectors = config.vectors.max(MIN_VECTORS);
        Self {
            endpoint: Endpoint::new(&IDENTITY, &[REGISTERS], MSIX_BAR, vectors),
            comm: CommChannel::default(),
            objects: Objects::default(),
            under_way: None,
            cq_doorbells: BTreeMap::new(),
            reset_wanted: false,
            are_doorbells_forgotten: false,
            progress: Progress::default(),
            waiting_since: None,
        }
    }

    /// Events of the device that were lost because the guest's event queues were not memory any more, or
    /// full for longer than any driver leaves them.
    #[must_use]
    pub fn lost_events(&self) -> u64 {
        self.objects.eqs.lost()
    }

    /// Notes since when the driver has left events waiting without taking any.
    fn note_progress(&mut self, now: Instant) {
        let progress = self.objects.eqs.progress();
        let goes_on = self.progress.taken_since(progress);
        self.progress = progress;
        if progress.waiting == 0 {
            self.waiting_since = None;
        } else if goes_on || self.waiting_since.is_none() {
            self.waiting_since = Some(now);
        }
    }

    fn raise(&mut self, vector: Option<u16>) {
        if let Some(vector) = vector {
            self.endpoint.raise(vector);
        }
    }

    /// Writes a register of BAR 2.
    fn write_register(&mut self, now: Instant, hca: &mut dyn Hca, offset: u64, word: [u8; 4]) {
        match Register::at(offset) {
            Some(Register::Comm(register)) => {
                let action = self.comm.write(register, u32::from_be_bytes(word));
                self.act(now, hca, action);
            }
            Some(Register::Eq { eqn }) => {
                let doorbell = EqDoorbell {
                    word: U32::from_bytes(word),
                };
                let vector = self.objects.eqs.doorbell(hca, eqn, doorbell);
                self.raise(vector);
                self.post_port_events(now, hca);
                self.note_progress(now);
            }
            Some(Register::Send { uar }) => {
                let doorbell: SendDoorbell = zerocopy::transmute!(word);
                self.objects.queues.send_doorbell(hca, uar, doorbell.qpn);
            }
            // A 32-bit guest stores the two halves one after the other.
            Some(Register::Cq { uar, second: false }) => {
                self.cq_doorbells.insert(uar, word);
            }
            Some(Register::Cq { uar, second: true }) => {
                if let Some(first) = self.cq_doorbells.remove(&uar) {
                    let doorbell: CqDoorbell = zerocopy::transmute!([first, word]);
                    self.objects.queues.arm(uar, &doorbell);
                }
            }
            None => {}
        }
    }

    /// Tells the driver what the queues have to tell.
    fn post_queue_events(&mut self, now: Instant, hca: &mut dyn Hca) {
        let mut any = false;
        while let Some(vector) = self.objects.post_queue_event(hca) {
            self.raise(vector);
            any = true;
        }
        if any {
            self.note_progress(now);
        }
    }

    /// Tells the driver what its ports have to tell, as far as its event queues have room.
    fn post_port_events(&mut self, now: Instant, hca: &mut dyn Hca) {
        let mut any = false;
        while let Some(vector) = self.objects.post_port_event(hca) {
            self.raise(vector);
            any = true;
        }
        if any {
            self.note_progress(now);
        }
    }

    fn act(&mut self, now: Instant, hca: &mut dyn Hca, action: CommAction) {
        match action {
            CommAction::None => {}
            CommAction::Reset => self.begin_reset(),
            CommAction::Execute { vhcr } => self.execute(now, hca, vhcr),
        }
    }

    /// Executes the command in the register in guest memory, or begins to.
    fn execute(&mut self, now: Instant, hca: &mut dyn Hca, at: u64) {
        let Ok(vhcr) = vhcr::fetch(hca, at) else {
            let action = self.comm.fail();
            return self.act(now, hca, action);
        };
        let command = Command::parse(hca, &vhcr);
        let step = command.and_then(|command| match self.objects.execute(hca, command)? {
            Step::More(rest) => self.objects.go_on(hca, rest),
            done @ Step::Done(_) => Ok(done),
        });
        self.follow(now, hca, Posted { at, vhcr }, step);
    }

    /// Goes on with the command that is being executed. Whether there is one.
    fn go_on(&mut self, now: Instant, hca: &mut dyn Hca) -> bool {
        let Some(UnderWay { posted, rest }) = self.under_way.take() else {
            return false;
        };
        let step = self.objects.go_on(hca, rest);
        self.follow(now, hca, posted, step);
        true
    }

    fn follow(
        &mut self,
        now: Instant,
        hca: &mut dyn Hca,
        posted: Posted,
        step: Result<Step, Status>,
    ) {
        match step {
            Ok(Step::More(rest)) => self.under_way = Some(UnderWay { posted, rest }),
            Ok(Step::Done(output)) => self.end(now, hca, &posted, Ok(output)),
            Err(status) => self.end(now, hca, &posted, Err(status)),
        }
    }

    /// Ends a command. The order of what the guest sees is the device's: mailbox, status, toggle, event, interrupt.
    fn end(
        &mut self,
        now: Instant,
        hca: &mut dyn Hca,
        posted: &Posted,
        outcome: Result<Output, Status>,
    ) {
        if vhcr::finish(hca, posted.at, &posted.vhcr, outcome).is_err() {
            let action = self.comm.fail();
            return self.act(now, hca, action);
        }
        let next = self.comm.complete();
        if posted.vhcr.event() {
            let vector = self.objects.command_done(hca);
            self.raise(vector);
        } else {
            self.objects.command_polled();
        }
        self.act(now, hca, next);
    }

    /// Forgets what the driver made, and wants the PF to do so, too.
    fn begin_reset(&mut self) {
        self.forget();
        self.reset_wanted = true;
    }

    fn forget(&mut self) {
        self.are_doorbells_forgotten |= self.objects.queues.has_doorbell_pages();
        self.objects = Objects::default();
        self.under_way = None;
        self.cq_doorbells.clear();
        self.endpoint.forget_interrupts();
        self.progress = Progress::default();
        self.waiting_since = None;
    }

    /// A reset from outside of the driver: all registers start anew, too.
    fn machine_reset(&mut self, now: Instant, hca: &mut dyn Hca) {
        self.endpoint.reset(hca);
        let action = self.comm.machine_reset();
        self.act(now, hca, action);
    }
}

impl PciFunction for Mlx4Function {
    fn bars(&self) -> &[Bar] {
        self.endpoint.bars()
    }

    fn interrupt_vectors(&self) -> u16 {
        self.endpoint.vectors()
    }

    fn message(&self, vector: u16) -> Option<MsixMessage> {
        self.endpoint.message(vector)
    }

    fn bar_address(&self, bar: u8) -> Option<u64> {
        self.endpoint.bar_address(bar)
    }

    fn doorbells(&self) -> Vec<Doorbell> {
        let registers = self.objects.queues.doorbells();
        let mut doorbells: Vec<_> = registers.filter_map(doorbell).collect();
        doorbells.sort_unstable();
        doorbells
    }

    fn ring(&mut self, _: Instant, _: &mut dyn Hca, doorbell: Doorbell) {
        if doorbell.bar == UAR_BAR && doorbell.offset < capability::UAR_AREA {
            match Register::at(doorbell.offset) {
                Some(Register::Send { uar }) => self.objects.queues.ring_sends(uar),
                Some(Register::Cq { uar, second: false }) => self.objects.queues.ring_cqs(uar),
                _ => {}
            }
        }
    }

    fn has_driver(&self) -> bool {
        self.comm.is_active()
    }

    fn events_waiting_since(&self) -> Option<Instant> {
        self.waiting_since
    }

    fn config_read(&self, offset: u16, out: &mut [u8]) {
        self.endpoint.config_read(offset, out);
    }

    fn config_write(&mut self, now: Instant, hca: &mut dyn Hca, offset: u16, bytes: &[u8]) {
        if self.endpoint.config_write(hca, offset, bytes) {
            self.machine_reset(now, hca);
        }
    }

    fn bar_read(&mut self, bar: u8, offset: u64, out: &mut [u8]) {
        if self.endpoint.bar_read(bar, offset, out) {
            return;
        }
        out.fill(0);
        if bar == UAR_BAR {
            for (distance, word) in (0..).step_by(4).zip(out.chunks_mut(4)) {
                let at = offset.checked_add(distance);
                let value = at.and_then(|at| self.comm.read(at)).unwrap_or(0);
                let len = word.len();
                word.copy_from_slice(&value.to_be_bytes()[..len]);
            }
        }
    }

    fn bar_write(&mut self, now: Instant, hca: &mut dyn Hca, bar: u8, offset: u64, bytes: &[u8]) {
        if self.endpoint.bar_write(bar, offset, bytes) || bar != UAR_BAR {
            return;
        }
        let (words, _) = bytes.as_chunks();
        for (distance, word) in (0..).step_by(4).zip(words) {
            let at = offset.checked_add(distance);
            // Behind the last UAR there is none, whatever its index would be.
            if let Some(at) = at.filter(|at| *at < capability::UAR_AREA) {
                self.write_register(now, hca, at, *word);
            }
        }
        self.post_queue_events(now, hca);
    }

    fn handle_hca_event(&mut self, now: Instant, hca: &mut dyn Hca, event: &HcaEvent) {
        match *event {
            HcaEvent::Async(AsyncEvent::FunctionReset) => {
                self.forget();
                self.comm.reset_done();
            }
            HcaEvent::Async(AsyncEvent::DeviceFatal) => {
                self.forget();
                self.comm.device_failed();
            }
            HcaEvent::Async(AsyncEvent::Port { port, change }) => {
                self.objects.port_changed(hca, port, change);
                self.post_port_events(now, hca);
            }
            _ => {
                self.objects.queues.handle_hca_event(hca, event);
                self.post_queue_events(now, hca);
            }
        }
    }

    fn poll(&mut self, now: Instant, hca: &mut dyn Hca) -> bool {
        let mut did = self.go_on(now, hca);
        did |= self.objects.queues.poll(now, hca);
        self.post_queue_events(now, hca);
        did
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let command = self.under_way.as_ref().map(|_| Instant::ZERO);
        let queues = self.objects.queues.poll_timeout();
        command.into_iter().chain(queues).min()
    }

    fn poll_event(&mut self) -> Option<PciEvent> {
        if std::mem::take(&mut self.reset_wanted) {
            return Some(PciEvent::ResetWanted);
        }
        let are_changed = self.objects.queues.take_doorbells_changed();
        if core::mem::take(&mut self.are_doorbells_forgotten) || are_changed {
            return Some(PciEvent::DoorbellsChanged);
        }
        self.endpoint.poll_event()
    }

    fn reset(&mut self, now: Instant, hca: &mut dyn Hca) {
        self.machine_reset(now, hca);
    }
}

/// Returns the doorbell of a register. `None` if no store reaches that: a driver names any page it likes.
fn doorbell(register: Register) -> Option<Doorbell> {
    let offset = register.offset();
    let is_there = offset < capability::UAR_AREA && Register::at(offset) == Some(register);
    is_there.then_some(Doorbell {
        bar: UAR_BAR,
        offset,
        len: match register {
            Register::Cq { .. } => 8,
            _ => 4,
        },
    })
}

#[cfg(test)]
mod tests;
