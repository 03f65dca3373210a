//! A VMM without a hypervisor, whose guests are threads of this process: what drives a world, and a VF of it as the bus of a
//! guest's driver.

mod ram;

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant as WallInstant;

use event_manager::{EventManager, SubscriberOps};
use ib_vtime::{Duration, Instant};
use mlx4_driver::Bus;
use vhca::device::event::{EventLoop, StepError};
use vhca::device::{
    AttachError, Backend, Device, Doorbells, Interrupts, MsixMessage, PlacedDoorbell,
    SignalledDoorbell,
};
use vhca::world::{HostFunction, World};
use vmm_sys_util::eventfd::EventFd;

pub use ram::Ram;

/// Time after which a stepper looks whether it is to end, in milliseconds.
const LOOK_MS: i32 = 50;

/// Longest wait of a driver: more than anything takes on a busy machine, and less than a kernel's.
const PATIENCE: Duration = Duration::from_secs(30);

/// A thread that steps a world. It ends when this is dropped.
pub struct Stepper {
    backend: Backend<World>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), StepError>>>,
}

impl Stepper {
    /// Starts the thread.
    ///
    /// # Errors
    /// That of the host, if it gives no descriptors.
    pub fn start(world: World) -> io::Result<Self> {
        let event_loop = EventLoop::new(world)?;
        let backend = event_loop.backend().clone();
        let manager = EventManager::new().map_err(io::Error::other)?;
        let is_over = Arc::<AtomicBool>::default();
        let over = Arc::clone(&is_over);
        let thread = thread::Builder::new().name("stepper".to_owned());
        let thread = thread.spawn(move || run(manager, event_loop, &over))?;
        Ok(Self {
            backend,
            is_over,
            thread: Some(thread),
        })
    }

    /// Returns the backend.
    #[must_use]
    pub const fn backend(&self) -> &Backend<World> {
        &self.backend
    }

    /// Ends the thread.
    ///
    /// # Errors
    /// The reason why it had ended before.
    ///
    /// # Panics
    /// If the thread did.
    pub fn end(mut self) -> Result<(), StepError> {
        self.join()
    }

    fn join(&mut self) -> Result<(), StepError> {
        self.is_over.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        let ended = thread.join();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        if !thread::panicking() {
            // Whoever wants to know why it ended has asked.
            let _ = self.join();
        }
    }
}

impl fmt::Debug for Stepper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stepper").finish_non_exhaustive()
    }
}

fn run(
    mut manager: EventManager<EventLoop<World>>,
    event_loop: EventLoop<World>,
    is_over: &AtomicBool,
) -> Result<(), StepError> {
    let id = manager.add_subscriber(event_loop);
    while !is_over.load(Ordering::Relaxed) {
        manager
            .run_with_timeout(LOOK_MS)
            .map_err(io::Error::other)?;
        let event_loop = manager.subscriber_mut(id).map_err(io::Error::other)?;
        if let Some(failure) = event_loop.take_failure() {
            return Err(failure);
        }
    }
    Ok(())
}

/// Vectors that were signalled. As with an eventfd, two signals of a vector that nobody has taken are one.
#[derive(Debug, Default)]
struct Signals {
    raised: Mutex<BTreeSet<u16>>,
    changed: Condvar,
}

impl Signals {
    fn raised(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Interrupts for Signals {
    fn trigger(&self, vector: u16, _: MsixMessage) {
        self.raised().insert(vector);
        self.changed.notify_one();
    }
}

/// The eventfds of doorbells, by their base address register and offset.
#[derive(Debug, Default)]
struct Events(Mutex<BTreeMap<(u8, u64), Arc<EventFd>>>);

impl Events {
    /// Signals the doorbell at an offset, if there is one.
    fn signal(&self, bar: u8, offset: u64) -> bool {
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let event = events.get(&(bar, offset));
        event.is_some_and(|event| event.write(1).is_ok())
    }

    /// Signals all doorbells, and returns their number.
    fn signal_all(&self) -> usize {
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let signalled = events.values().filter(|event| event.write(1).is_ok());
        signalled.count()
    }
}

impl Doorbells for Events {
    fn set(&self, _: &[PlacedDoorbell]) {}

    fn set_signalled(&self, doorbells: &[SignalledDoorbell]) {
        let events = doorbells.iter().map(|doorbell| {
            let at = doorbell.placed.doorbell;
            ((at.bar, at.offset), Arc::clone(&doorbell.event))
        });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = events.collect();
    }
}

/// A device on the bus of a guest, which is a thread of this process. The device is detached when this is dropped.
pub struct DeviceBus {
    device: Device,
    signals: Arc<Signals>,
    events: Arc<Events>,
    rings: u64,
    begun: WallInstant,
    /// Times of the accesses to registers, if they are taken.
    times: Option<Vec<Duration>>,
}

impl DeviceBus {
    /// Attaches to a function.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(backend: &Backend<World>, at: HostFunction) -> Result<Self, AttachError> {
        Self::attach_by(|interrupts, doorbells| backend.attach(at, interrupts, doorbells))
    }

    /// Attaches by a call, which is given the interrupts and doorbells of the guest. Stores to doorbells that come with eventfds signal
    /// these, as ioeventfds of KVM do.
    ///
    /// # Errors
    /// That of the call.
    pub fn attach_by<E>(
        attach: impl FnOnce(Arc<dyn Interrupts>, Arc<dyn Doorbells>) -> Result<Device, E>,
    ) -> Result<Self, E> {
        let signals = Arc::<Signals>::default();
        let events = Arc::<Events>::default();
        let interrupts = Arc::clone(&signals) as Arc<dyn Interrupts>;
        let device = attach(interrupts, Arc::clone(&events) as Arc<dyn Doorbells>)?;
        Ok(Self {
            device,
            signals,
            events,
            rings: 0,
            begun: WallInstant::now(),
            times: None,
        })
    }

    /// Returns the device.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// Returns how many stores to doorbells were signals of an eventfd, and no accesses of the device.
    #[must_use]
    pub const fn rings(&self) -> u64 {
        self.rings
    }

    /// Signals the eventfds of all doorbells, and returns their number.
    #[must_use]
    pub fn signal_doorbells(&self) -> usize {
        self.events.signal_all()
    }

    /// Takes the time of each access to a register from here on.
    pub fn time_accesses(&mut self) {
        self.times = Some(Vec::new());
    }

    /// Returns the times of the accesses, and takes none any more.
    pub fn take_times(&mut self) -> Vec<Duration> {
        self.times.take().unwrap_or_default()
    }

    fn access(&mut self, call: impl FnOnce(&Device)) {
        let Some(times) = &mut self.times else {
            return call(&self.device);
        };
        let begun = WallInstant::now();
        call(&self.device);
        times.push(begun.elapsed());
    }
}

impl Drop for DeviceBus {
    fn drop(&mut self) {
        let _ = self.device.detach();
    }
}

impl fmt::Debug for DeviceBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBus")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

impl Bus for DeviceBus {
    fn now(&self) -> Instant {
        let elapsed = self.begun.elapsed().as_nanos();
        Instant::from_nanos(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }

    fn bar_size(&self, bar: u8) -> Option<u64> {
        let mut bars = self.device.bars().iter();
        bars.find(|found| found.index == bar)
            .map(|found| found.size)
    }

    fn interrupt_vectors(&self) -> u16 {
        self.device.vectors()
    }

    fn config_read(&mut self, offset: u16, out: &mut [u8]) {
        self.device.config_read(offset, out);
    }

    fn config_write(&mut self, offset: u16, bytes: &[u8]) {
        // The guest's accesses name registers, not addresses, so a move of them changes nothing here.
        let _ = self.device.config_write(offset, bytes);
    }

    fn bar_read(&mut self, bar: u8, offset: u64, out: &mut [u8]) {
        self.access(|device| device.bar_read(bar, offset, out));
    }

    fn bar_write(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        if self.events.signal(bar, offset) {
            self.rings += 1;
            return;
        }
        self.access(|device| device.bar_write(bar, offset, bytes));
    }

    fn take_interrupt(&mut self) -> Option<u16> {
        self.signals.raised().pop_first()
    }

    fn wait(&mut self, at_most: Duration) {
        let raised = self.signals.raised();
        let is_quiet = |raised: &mut BTreeSet<u16>| raised.is_empty();
        // Either end will do.
        drop(
            self.signals
                .changed
                .wait_timeout_while(raised, at_most, is_quiet),
        );
    }

    fn reset(&mut self) {
        let _ = self.device.reset();
        self.signals.raised().clear();
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }
}
