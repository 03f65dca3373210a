//! The loop of a backend on descriptors.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use event_manager::{EventManager, SubscriberOps};
use vhca::device::event::{EventLoop, StepError};
use vhca::device::{Device, Interrupts, MsixMessage, TrappedDoorbells};
use vhca::world::{HostFunction, World};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use crate::probe::{DOORBELL, PANIC, Probe, Seen, world_with};

struct NoInterrupts;

impl Interrupts for NoInterrupts {
    fn trigger(&self, _: u16, _: MsixMessage) {}
}

struct Rig {
    event_loop: EventLoop<World>,
    seen: Arc<Mutex<Seen>>,
    device: Device,
    at: HostFunction,
}

impl Rig {
    fn new() -> Self {
        let probe = Probe::default();
        let seen = Arc::clone(&probe.seen);
        let (world, at) = world_with(Box::new(probe));
        let event_loop = EventLoop::new(world).unwrap();
        let backend = event_loop.backend();
        let device = backend.attach(at, Arc::new(NoInterrupts), Arc::new(TrappedDoorbells));
        Self {
            device: device.unwrap(),
            event_loop,
            seen,
            at,
        }
    }

    fn rings(&self) -> u32 {
        self.seen.lock().unwrap().rings
    }
}

/// Fails a test that would hang.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
    }
}

#[test]
fn each_signal_of_a_doorbell_s_eventfd_rings_it() {
    let mut rig = Rig::new();
    let event = rig
        .event_loop
        .doorbell_events(rig.at)
        .add(DOORBELL)
        .unwrap();
    for nth in 1..=3 {
        event.event().write(1).unwrap();
        rig.event_loop.step().unwrap();
        assert_eq!(rig.rings(), nth);
    }
    rig.event_loop.step().unwrap();
    assert_eq!(rig.rings(), 3);
    assert_eq!(rig.device.statistics().rings, 3);
}

#[test]
fn a_signal_that_was_not_served_is_rung_when_its_eventfd_goes() {
    let mut rig = Rig::new();
    let events = rig.event_loop.doorbell_events(rig.at);
    drop(events.add(DOORBELL).unwrap());
    rig.event_loop.step().unwrap();
    assert_eq!(rig.rings(), 0);
    let event = events.add(DOORBELL).unwrap();
    event.event().write(1).unwrap();
    drop(event);
    rig.event_loop.step().unwrap();
    assert_eq!(rig.rings(), 1);
    assert!(rig.device.detach().is_some());
    let event = events.add(DOORBELL).unwrap();
    event.event().write(1).unwrap();
    rig.event_loop.step().unwrap();
    assert_eq!(rig.rings(), 1, "there is no device any more");
}

#[test]
fn signals_of_a_paused_device_are_kept() {
    let mut rig = Rig::new();
    let event = rig
        .event_loop
        .doorbell_events(rig.at)
        .add(DOORBELL)
        .unwrap();
    rig.device.pause();
    for _ in 0..3 {
        event.event().write(1).unwrap();
        rig.event_loop.step().unwrap();
    }
    assert_eq!(rig.rings(), 0);
    rig.device.resume();
    assert_eq!(rig.rings(), 1);
}

#[test]
fn an_event_manager_runs_the_loop_and_other_threads_wake_it() {
    let rig = Rig::new();
    let backend = rig.event_loop.backend().clone();
    let events = rig.event_loop.doorbell_events(rig.at);
    let mut manager = EventManager::new().unwrap();
    let id = manager.add_subscriber(rig.event_loop);
    let device = rig.device;
    let seen = &rig.seen;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let event = events.add(DOORBELL).unwrap();
            for nth in 1..=100 {
                event.event().write(1).unwrap();
                until("it is rung", || seen.lock().unwrap().rings == nth);
            }
            device.bar_write(2, 0, &PANIC);
            assert!(backend.with(|_| ()).is_err());
        });
        let failure = loop {
            manager.run_with_timeout(60_000).unwrap();
            let event_loop = manager.subscriber_mut(id).unwrap();
            if let Some(failure) = event_loop.take_failure() {
                break failure;
            }
        };
        assert!(matches!(failure, StepError::Backend(_)), "{failure}");
    });
}

/// Without a limit that a busy machine could reach: what ends a busy poll is a signal.
const FOREVER: Duration = Duration::from_secs(3600);

/// Steps without busy polls until nothing is to be done now.
fn settle(rig: &mut Rig) {
    rig.event_loop.set_busy_poll(Duration::ZERO);
    let fd = rig.event_loop.as_raw_fd();
    let epoll = Epoll::new().unwrap();
    let event = EpollEvent::new(EventSet::IN, 7);
    epoll.ctl(ControlOperation::Add, fd, event).unwrap();
    let mut ready = [EpollEvent::default()];
    until("it is quiet", || {
        rig.event_loop.step().unwrap();
        epoll.wait(0, &mut ready).unwrap() == 0
    });
}

#[test]
fn a_signal_that_follows_another_finds_the_loop_awake() {
    let mut rig = Rig::new();
    settle(&mut rig);
    assert_eq!(rig.event_loop.statistics().busy_polls, 0);
    let event = rig
        .event_loop
        .doorbell_events(rig.at)
        .add(DOORBELL)
        .unwrap();
    rig.event_loop.set_busy_poll(FOREVER);
    let seen = Arc::clone(&rig.seen);
    std::thread::scope(|scope| {
        event.event().write(1).unwrap();
        scope.spawn(move || {
            for nth in 1..=10 {
                until("it is rung", || seen.lock().unwrap().rings == nth);
                event.event().write(1).unwrap();
            }
        });
        while rig.rings() < 10 {
            // Ends by the next signal, or by a deadline of the world.
            rig.event_loop.step().unwrap();
        }
    });
    let statistics = rig.event_loop.statistics();
    assert!(statistics.hits >= 10, "{statistics:?}");
    assert_eq!(statistics.busy_polls, statistics.hits);
}

#[test]
fn a_loop_that_was_not_signalled_does_not_stay_awake() {
    let mut rig = Rig::new();
    settle(&mut rig);
    rig.event_loop.set_busy_poll(FOREVER);
    let before = rig.event_loop.statistics();
    for _ in 0..10 {
        rig.event_loop.step().unwrap();
    }
    let after = rig.event_loop.statistics();
    assert_eq!(after.steps, before.steps + 10);
    assert_eq!(after.busy_polls, 0);
}

/// A loop of another kind watches one descriptor.
#[test]
fn the_descriptor_is_ready_when_there_is_something_to_do() {
    let mut rig = Rig::new();
    let fd = rig.event_loop.as_raw_fd();
    let epoll = Epoll::new().unwrap();
    let event = EpollEvent::new(EventSet::IN, 7);
    epoll.ctl(ControlOperation::Add, fd, event).unwrap();
    let mut ready = [EpollEvent::default(); 4];
    let mut is_ready = |wait| epoll.wait(wait, &mut ready).unwrap() != 0;
    assert!(is_ready(0), "the first step comes at once");
    // Until the next deadline is some time away.
    until("it is quiet", || {
        rig.event_loop.step().unwrap();
        !is_ready(0)
    });
    let event = rig
        .event_loop
        .doorbell_events(rig.at)
        .add(DOORBELL)
        .unwrap();
    event.event().write(1).unwrap();
    assert!(is_ready(60_000));
    until("it is rung", || {
        rig.event_loop.step().unwrap();
        rig.rings() == 1
    });
}
