//! The loop of a backend on descriptors.
//!
//! An [`EventLoop`] is a subscriber of an `event-manager`. It is one descriptor as well, for loops of any other kind: watch
//! [`EventLoop::as_raw_fd`] for input, level-triggered, and call [`EventLoop::step`] when it is ready. That descriptor is an
//! epoll instance, so threads of the VMM can add the eventfds of doorbells while the loop sleeps, and a timer in it is set to
//! the next deadline.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant as WallInstant};

use core::fmt;

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use ib_vtime::Instant;
use thiserror::Error;
use vf_pci::Doorbell;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};
use vmm_sys_util::timerfd::TimerFd;

use super::shared::Rung;
use super::{Backend, BackendFailed, Provider, Wake};

/// Numbers that descriptors are watched under; doorbells have those behind.
const WAKE: u64 = 0;
const TIMER: u64 = 1;
const OUTSIDE: u64 = 2;

/// Descriptors that are looked at in one step. Those beyond are left to the next.
const BATCH: usize = 64;

/// Steps of the backend after which other subscribers have their turn.
const TURNS: u32 = 4;

/// Time for which a loop busy-polls by default: longer than a driver takes from one doorbell to the next.
const BUSY_POLL: Duration = Duration::from_micros(50);

/// A deadline that is no further away is not worth a sleep, which takes more time: looks at the queues of trunks are so far apart.
const BRIEF: Duration = Duration::from_micros(1);

/// Why a loop cannot go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StepError {
    /// The provider panicked.
    #[error(transparent)]
    Backend(#[from] BackendFailed),
    /// The host refused a system call.
    #[error("epoll, a timer or an eventfd of the devices' loop failed")]
    Descriptor(#[from] io::Error),
}

impl From<vmm_sys_util::errno::Error> for StepError {
    fn from(error: vmm_sys_util::errno::Error) -> Self {
        Self::Descriptor(error.into())
    }
}

/// Counts of a loop since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoopStatistics {
    /// Calls of [`EventLoop::step`].
    pub steps: u64,
    /// Steps that busy-polled.
    pub busy_polls: u64,
    /// Busy polls that ended because there was something to do: the thread need not be woken for that.
    pub hits: u64,
}

/// Steps a backend when its time has come, when an access wakes it, and when a doorbell's eventfd is signalled. One loop
/// serves all devices of the backend.
///
/// A signal to a thread that sleeps costs its sender more than an exit from the guest. So the loop busy-polls for a short time
/// after it was signalled ([`EventLoop::set_busy_poll`]).
pub struct EventLoop<P: Provider> {
    backend: Backend<P>,
    sources: Arc<Sources<P::At>>,
    timer: TimerFd,
    /// Deadline that the timer is set to.
    set_to: Option<Instant>,
    busy_poll: Duration,
    /// End of the time after the last signal in which a step busy-polls.
    awake_until: WallInstant,
    statistics: LoopStatistics,
    failure: Option<StepError>,
}

impl<P: Provider> EventLoop<P> {
    /// Makes a backend of a provider, and its loop, which watches the [`Provider::descriptor`] that there is now.
    ///
    /// # Errors
    /// That of the host, if it gives no descriptors.
    pub fn new(provider: P) -> io::Result<Self> {
        let sources = Arc::new(Sources {
            epoll: Epoll::new()?,
            wake: EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?,
            doorbells: Mutex::new(Watched {
                by_number: BTreeMap::new(),
                last: OUTSIDE,
                rung: Rung::new(),
            }),
            ask: Mutex::new(None),
        });
        let timer = TimerFd::new()?;
        sources.watch(&sources.wake, WAKE)?;
        sources.watch(&timer, TIMER)?;
        if let Some(outside) = provider.descriptor() {
            sources.watch(&outside, OUTSIDE)?;
        }
        // So that the first step comes at once.
        sources.wake();
        Ok(Self {
            backend: Backend::new(provider, Arc::clone(&sources) as Arc<dyn Wake>),
            sources,
            timer,
            set_to: None,
            busy_poll: BUSY_POLL,
            awake_until: WallInstant::now(),
            statistics: LoopStatistics::default(),
            failure: None,
        })
    }

    /// Sets for how long after a signal the loop waits for the next one without sleeping: 50 µs by default, zero turns it off. A
    /// deadline is no signal, so a guest that does nothing costs nothing. One that rings once in a while costs this time of the
    /// thread's processor for each doorbell. Other threads that wait for the processor have it meanwhile.
    pub const fn set_busy_poll(&mut self, time: Duration) {
        self.busy_poll = time;
    }

    /// Returns what the loop counted.
    #[must_use]
    pub const fn statistics(&self) -> LoopStatistics {
        self.statistics
    }

    /// Returns the backend.
    pub const fn backend(&self) -> &Backend<P> {
        &self.backend
    }

    /// Returns a handle by which the doorbells of a device get eventfds that this loop serves.
    pub fn doorbell_events(&self, at: P::At) -> DoorbellEvents<P::At> {
        self.handle().doorbell_events(at)
    }

    /// Returns a handle to be kept when the loop has gone to its thread, for devices that are plugged later.
    pub fn handle(&self) -> LoopHandle<P::At> {
        LoopHandle(Arc::clone(&self.sources))
    }

    /// Sets the call by which the loop asks another thread for [`Backend::update_interrupts`], as [`Wake::update_due`] has it. The
    /// call must not wait: it signals an eventfd, or sends to a channel. Without it the loop's thread makes the updates that
    /// are left to it.
    pub fn set_update_due(&self, ask: impl Fn() + Send + Sync + 'static) {
        *self.sources.ask() = Some(Box::new(ask));
    }

    /// Takes what is ready, does what is due for a short time (about 200 µs), and sets the timer. Work that is left keeps the
    /// descriptor ready. After a doorbell, or an access that woke the loop, this returns when there is more to do, and after
    /// [`EventLoop::set_busy_poll`]'s time at the latest.
    ///
    /// # Errors
    /// [`StepError`]: the loop ends, and devices answer as detached ones.
    pub fn step(&mut self) -> Result<(), StepError> {
        let mut events = [EpollEvent::default(); BATCH];
        let ready = self.sources.epoll.wait(0, &mut events)?;
        self.statistics.steps += 1;
        let mut is_signalled = false;
        for event in &events[..ready] {
            is_signalled |= event.data() != TIMER;
            match event.data() {
                WAKE => {
                    self.sources.wake.read()?;
                }
                TIMER => {
                    self.timer.wait()?;
                    self.set_to = None;
                }
                // The provider looks at it when it is polled.
                OUTSIDE => {}
                number => self.sources.doorbells().take_signal(number),
            }
        }
        let rung = core::mem::take(&mut self.sources.doorbells().rung);
        let mut begun = self.backend.now();
        self.backend.ring_and_step(&rung)?;
        let mut deadline = self.backend.deadline()?;
        for _ in 1..TURNS {
            if deadline.is_none_or(|deadline| deadline > self.backend.now()) {
                break;
            }
            begun = self.backend.now();
            self.backend.step()?;
            deadline = self.backend.deadline()?;
        }
        let end = WallInstant::now() + self.busy_poll;
        let is_brief = |begun, deadline: Option<Instant>, now| {
            deadline.is_some_and(|deadline| deadline > begun && deadline <= now + BRIEF)
        };
        while is_brief(begun, deadline, self.backend.now())
            && WallInstant::now() < end
            && self.sources.epoll.wait(0, &mut events[..1])? == 0
        {
            std::thread::yield_now();
            begun = self.backend.now();
            self.backend.step()?;
            deadline = self.backend.deadline()?;
        }
        self.set_timer(deadline)?;
        if is_signalled {
            self.awake_until = WallInstant::now() + self.busy_poll;
        }
        self.poll_busily()
    }

    /// Waits for the next event without sleeping, if a signal came lately. The event is left for the next step.
    fn poll_busily(&mut self) -> Result<(), StepError> {
        let is_awake = |until| WallInstant::now() < until;
        if !is_awake(self.awake_until) {
            return Ok(());
        }
        self.statistics.busy_polls += 1;
        let mut events = [EpollEvent::default()];
        while is_awake(self.awake_until) {
            if self.sources.epoll.wait(0, &mut events)? != 0 {
                self.statistics.hits += 1;
                break;
            }
            // The vCPU that rings may have been on this processor before.
            std::thread::yield_now();
        }
        Ok(())
    }

    fn set_timer(&mut self, deadline: Option<Instant>) -> Result<(), StepError> {
        if self.set_to == deadline {
            return Ok(());
        }
        match deadline {
            Some(deadline) => {
                let wait = deadline - self.backend.now();
                // A zero time would disarm the timer.
                self.timer.reset(wait.max(Duration::from_nanos(1)), None)?;
            }
            None => self.timer.clear()?,
        }
        self.set_to = deadline;
        Ok(())
    }

    /// Returns why the loop has ended, if it has: a subscriber cannot tell its event manager. To be looked at after each run of
    /// that.
    #[must_use]
    pub fn take_failure(&mut self) -> Option<StepError> {
        self.failure.take()
    }
}

impl<P: Provider> AsRawFd for EventLoop<P> {
    fn as_raw_fd(&self) -> RawFd {
        self.sources.epoll.as_raw_fd()
    }
}

impl<P: Provider> fmt::Debug for EventLoop<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLoop").finish_non_exhaustive()
    }
}

impl<P: Provider> MutEventSubscriber for EventLoop<P> {
    fn init(&mut self, ops: &mut EventOps<'_>) {
        if let Err(error) = ops.add(Events::new(&*self, EventSet::IN)) {
            self.failure = Some(StepError::Descriptor(io::Error::other(error.to_string())));
        }
    }

    fn process(&mut self, _: Events, ops: &mut EventOps<'_>) {
        if let Err(error) = self.step() {
            self.failure = Some(error);
            // It stays ready, and nobody would look at it.
            let _ = ops.remove(Events::empty(&*self));
        }
    }
}

/// Sources of events of a loop, shared with the threads that add to it.
struct Sources<A> {
    epoll: Epoll,
    wake: EventFd,
    doorbells: Mutex<Watched<A>>,
    /// Asks another thread for updates of interrupts.
    ask: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
}

struct Watched<A> {
    by_number: BTreeMap<u64, (A, Doorbell, Arc<EventFd>)>,
    /// The number that was given last. None is given again: it may be among events that were read before.
    last: u64,
    /// Doorbells that were rung since the last step.
    rung: Rung<A>,
}

impl<A> Sources<A> {
    fn doorbells(&self) -> MutexGuard<'_, Watched<A>> {
        self.doorbells
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self) -> MutexGuard<'_, Option<Box<dyn Fn() + Send + Sync>>> {
        self.ask.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, fd: &impl AsRawFd, number: u64) -> io::Result<()> {
        let event = EpollEvent::new(EventSet::IN, number);
        self.epoll.ctl(ControlOperation::Add, fd.as_raw_fd(), event)
    }
}

impl<A: Send + Sync> Wake for Sources<A> {
    fn wake(&self) {
        // It can only be refused if the counter is full, and then the loop is awake.
        let _ = self.wake.write(1);
    }

    fn update_due(&self) -> bool {
        self.ask().as_ref().map(|ask| ask()).is_some()
    }
}

impl<A: Copy + Ord> Watched<A> {
    /// Notes a doorbell as rung whose eventfd was signalled. Reads that first: what comes later is another signal.
    fn take_signal(&mut self, number: u64) {
        let Some((at, doorbell, event)) = self.by_number.get(&number) else {
            return;
        };
        if event.read().is_ok() {
            self.rung.entry(*at).or_default().insert(*doorbell);
        }
    }
}

/// A handle to a loop on another thread. A clone is of the same loop.
pub struct LoopHandle<A>(Arc<Sources<A>>);

impl<A> LoopHandle<A> {
    /// Returns a handle by which the doorbells of a device get eventfds that the loop serves.
    pub fn doorbell_events(&self, at: A) -> DoorbellEvents<A> {
        DoorbellEvents {
            at,
            sources: Arc::clone(&self.0),
        }
    }
}

impl<A> Clone for LoopHandle<A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<A> fmt::Debug for LoopHandle<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopHandle").finish_non_exhaustive()
    }
}

/// Makes eventfds for the doorbells of one device, which its loop serves.
pub struct DoorbellEvents<A> {
    at: A,
    sources: Arc<Sources<A>>,
}

impl<A: Copy + Ord + Send + Sync> DoorbellEvents<A> {
    /// Makes an eventfd for a doorbell. Each signal rings that.
    ///
    /// # Errors
    /// That of the host, as when the process has too many descriptors.
    pub fn add(&self, doorbell: Doorbell) -> io::Result<DoorbellEvent<A>> {
        let event = Arc::new(EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?);
        let mut watched = self.sources.doorbells();
        watched.last += 1;
        let number = watched.last;
        self.sources.watch(&*event, number)?;
        let entry = (self.at, doorbell, Arc::clone(&event));
        watched.by_number.insert(number, entry);
        Ok(DoorbellEvent {
            event,
            number,
            sources: Arc::clone(&self.sources),
        })
    }
}

impl<A: Copy> Clone for DoorbellEvents<A> {
    fn clone(&self) -> Self {
        Self {
            at: self.at,
            sources: Arc::clone(&self.sources),
        }
    }
}

impl<A> fmt::Debug for DoorbellEvents<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DoorbellEvents").finish_non_exhaustive()
    }
}

/// The eventfd of a doorbell, until this is dropped. A signal that nobody has served by then is not lost.
pub struct DoorbellEvent<A: Copy + Ord + Send + Sync> {
    event: Arc<EventFd>,
    number: u64,
    sources: Arc<Sources<A>>,
}

impl<A: Copy + Ord + Send + Sync> DoorbellEvent<A> {
    /// Returns the eventfd.
    #[must_use]
    pub fn event(&self) -> &EventFd {
        &self.event
    }
}

impl<A: Copy + Ord + Send + Sync> Drop for DoorbellEvent<A> {
    fn drop(&mut self) {
        let fd = self.event.as_raw_fd();
        let mut watched = self.sources.doorbells();
        // It is watched; a set that cannot let go of it drops it when it is closed, below.
        let _ = (self.sources.epoll).ctl(ControlOperation::Delete, fd, EpollEvent::default());
        watched.take_signal(self.number);
        watched.by_number.remove(&self.number);
        let is_rung = !watched.rung.is_empty();
        drop(watched);
        if is_rung {
            self.sources.wake();
        }
    }
}

impl<A: Copy + Ord + Send + Sync> fmt::Debug for DoorbellEvent<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DoorbellEvent").finish_non_exhaustive()
    }
}
