//! The event loop: sans-I/O machines driven by the wall clock.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Instant as WallInstant;

use event_manager::{
    EventManager, EventOps, EventSet, Events, MutEventSubscriber, SubscriberId, SubscriberOps,
};
use ib_vtime::{Duration, Instant};
use thiserror::Error;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};
use vmm_sys_util::timerfd::TimerFd;

use crate::Driven;
use crate::watch::{Ready, WatchChange};

/// Why the event loop cannot go on: the host failed, not what the loop drives.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoopError {
    /// epoll failed.
    #[error("the event loop failed")]
    Events(#[from] event_manager::Error),
    /// A timer or an event descriptor failed.
    #[error("a timer or event descriptor failed")]
    Descriptor(#[from] io::Error),
}

impl From<vmm_sys_util::errno::Error> for LoopError {
    fn from(error: vmm_sys_util::errno::Error) -> Self {
        Self::Descriptor(error.into())
    }
}

/// A wait that is no longer is not worth a sleep, which takes more time: looks at the queues of trunks are so far apart.
const BRIEF: Duration = Duration::from_micros(1);

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunEnd {
    /// The condition came true.
    Reached,
    /// The time was up first.
    TimedOut,
    /// A [`StopHandle`] asked for it first.
    Stopped,
}

/// Ends a run from another thread.
#[derive(Debug)]
pub struct StopHandle(EventFd);

impl StopHandle {
    /// Ends the run under way, or the next one if none is.
    ///
    /// # Errors
    /// [`LoopError::Descriptor`].
    pub fn stop(&self) -> Result<(), LoopError> {
        Ok(self.0.write(1)?)
    }
}

/// Drives a [`Driven`] in real time on the calling thread: polls it until it is quiet, then sleeps in
/// `epoll_wait` until its next deadline, a descriptor of its own, or a stop request. For a deadline within a microsecond it yields the
/// processor in place of a sleep.
///
/// Its [`Instant`]s count from the runner's creation.
#[derive(Debug)]
pub struct Runner<D: Driven> {
    manager: EventManager<Subscriber<D>>,
    subscriber: SubscriberId,
    stop: EventFd,
}

impl<D: Driven> Runner<D> {
    /// Makes the event loop.
    ///
    /// # Errors
    /// [`LoopError`] if the host gives no descriptors.
    pub fn new(driven: D) -> Result<Self, LoopError> {
        let stop = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?;
        let mut manager = EventManager::new()?;
        let subscriber = manager.add_subscriber(Subscriber {
            driven,
            origin: WallInstant::now(),
            timer: TimerFd::new()?,
            stop: stop.try_clone()?,
            stopped: false,
            failure: None,
        });
        Ok(Self {
            manager,
            subscriber,
            stop,
        })
    }

    /// A handle that ends runs from elsewhere.
    ///
    /// # Errors
    /// [`LoopError::Descriptor`].
    pub fn stop_handle(&self) -> Result<StopHandle, LoopError> {
        Ok(StopHandle(self.stop.try_clone()?))
    }

    /// What is driven. Whatever the caller changes takes effect with the next run.
    ///
    /// # Errors
    /// [`LoopError::Events`].
    pub fn driven(&mut self) -> Result<&mut D, LoopError> {
        Ok(&mut self.manager.subscriber_mut(self.subscriber)?.driven)
    }

    /// Runs until a stop is asked for.
    ///
    /// # Errors
    /// [`LoopError`].
    pub fn run(&mut self) -> Result<(), LoopError> {
        while self.run_until(Duration::from_secs(3600), |_| false)? != RunEnd::Stopped {}
        Ok(())
    }

    /// Runs until the condition holds, for at most `limit`. The condition is looked at after each
    /// poll.
    ///
    /// # Errors
    /// [`LoopError`].
    pub fn run_until(
        &mut self,
        limit: Duration,
        mut condition: impl FnMut(&mut D) -> bool,
    ) -> Result<RunEnd, LoopError> {
        let begun = WallInstant::now();
        loop {
            let subscriber = self.manager.subscriber_mut(self.subscriber)?;
            if let Some(failure) = subscriber.failure.take() {
                return Err(failure);
            }
            let now = subscriber.now();
            subscriber.driven.poll(now);
            if condition(&mut subscriber.driven) {
                return Ok(RunEnd::Reached);
            }
            if std::mem::take(&mut subscriber.stopped) {
                return Ok(RunEnd::Stopped);
            }
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(RunEnd::TimedOut);
            }
            let deadline = subscriber.driven.poll_timeout();
            let wait = subscriber.wait_for(deadline, left);
            if wait > BRIEF {
                subscriber.timer.reset(wait, None)?;
            }
            self.take_over_watches()?;
            if wait > BRIEF {
                self.manager.run()?;
                continue;
            }
            if deadline.is_some_and(|deadline| deadline > now) {
                // There is nothing to do yet: threads that wait for the processor have it meanwhile.
                std::thread::yield_now();
            }
            self.manager.run_with_timeout(0)?;
        }
    }
}

impl<D: Driven> Runner<D> {
    fn take_over_watches(&mut self) -> Result<(), LoopError> {
        while let Some(change) = self.driven()?.poll_watch() {
            let mut ops = self.manager.event_ops(self.subscriber)?;
            match change {
                WatchChange::Add(fd, tag, events) => {
                    ops.add(Events::with_data_raw(fd, tag, events))?;
                }
                WatchChange::Modify(fd, tag, events) => {
                    ops.modify(Events::with_data_raw(fd, tag, events))?;
                }
                // Closed behind the call: until then its number cannot be another's.
                WatchChange::Remove(fd) => ops.remove(Events::empty(&fd))?,
            }
        }
        Ok(())
    }
}

/// What the event manager calls.
#[derive(Debug)]
struct Subscriber<D> {
    driven: D,
    origin: WallInstant,
    timer: TimerFd,
    stop: EventFd,
    stopped: bool,
    failure: Option<LoopError>,
}

impl<D: Driven> Subscriber<D> {
    fn now(&self) -> Instant {
        Instant::ZERO + self.origin.elapsed()
    }

    /// Returns the time until a deadline, at most `longest`.
    fn wait_for(&self, deadline: Option<Instant>, longest: Duration) -> Duration {
        let wait = deadline.map_or(longest, |deadline| deadline - self.now());
        wait.min(longest)
    }

    fn take_event(&mut self, events: Events) -> Result<(), LoopError> {
        if events.fd() == self.stop.as_raw_fd() {
            self.stop.read()?;
            self.stopped = true;
        } else if events.fd() == self.timer.as_raw_fd() {
            self.timer.wait()?;
        } else {
            let ready = Ready {
                fd: events.fd(),
                tag: events.data(),
                events: events.event_set(),
            };
            let now = self.now();
            self.driven.handle_ready(now, ready);
        }
        Ok(())
    }
}

impl<D: Driven> MutEventSubscriber for Subscriber<D> {
    fn init(&mut self, ops: &mut EventOps<'_>) {
        let added = ops
            .add(Events::new(&self.timer, EventSet::IN))
            .and_then(|()| ops.add(Events::new(&self.stop, EventSet::IN)));
        if let Err(error) = added {
            self.failure = Some(error.into());
        }
    }

    fn process(&mut self, events: Events, _ops: &mut EventOps<'_>) {
        if let Err(error) = self.take_event(events) {
            self.failure = Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(60);

    /// Counts the periods that have passed.
    #[derive(Debug, Default)]
    struct Ticker {
        next: Instant,
        ticks: u32,
        polls: u32,
        idle: bool,
    }

    impl Driven for Ticker {
        fn poll(&mut self, now: Instant) {
            self.polls += 1;
            while !self.idle && self.next <= now {
                self.ticks += 1;
                self.next += PERIOD;
            }
        }

        fn poll_timeout(&self) -> Option<Instant> {
            (!self.idle).then_some(self.next)
        }
    }

    #[test]
    fn a_deadline_is_met_by_the_wall_clock_and_not_before() {
        let mut runner = Runner::new(Ticker::default()).unwrap();
        let begun = WallInstant::now();
        let end = runner.run_until(LONG, |ticker| ticker.ticks > 20).unwrap();
        assert_eq!(end, RunEnd::Reached);
        assert!(begun.elapsed() >= 19 * PERIOD);
    }

    #[test]
    fn a_machine_without_deadlines_sleeps_until_the_limit() {
        let idle = Ticker {
            idle: true,
            ..Ticker::default()
        };
        let mut runner = Runner::new(idle).unwrap();
        let end = runner.run_until(20 * PERIOD, |_| false).unwrap();
        assert_eq!(end, RunEnd::TimedOut);
        assert!(runner.driven().unwrap().polls <= 3);
    }

    #[test]
    fn another_thread_ends_a_run() {
        let mut runner = Runner::new(Ticker::default()).unwrap();
        let stop = runner.stop_handle().unwrap();
        let thread = std::thread::spawn(move || stop.stop());
        runner.run().unwrap();
        thread.join().unwrap().unwrap();
        assert_eq!(
            runner.run_until(5 * PERIOD, |_| false).unwrap(),
            RunEnd::TimedOut
        );
    }

    #[test]
    fn a_stop_before_the_run_ends_the_run() {
        let mut runner = Runner::new(Ticker::default()).unwrap();
        runner.stop_handle().unwrap().stop().unwrap();
        assert_eq!(runner.run_until(LONG, |_| false).unwrap(), RunEnd::Stopped);
    }
}
