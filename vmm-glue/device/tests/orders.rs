//! The inbox, the lock and the wake-up of a backend, in many orders of its threads: the sources of the crate with the locks of
//! `shuttle`, which decides at each use of one who goes on. A thread that nobody wakes fails a test as a deadlock.
#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

#[path = "../src/lib.rs"]
#[expect(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "only a part of the crate is tried"
)]
mod device;

#[path = "orders/updates.rs"]
mod updates;

/// Stands in for the crate's module of this name.
mod sync {
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
}

use std::sync::{Arc, Mutex as Plain};

use emulated_hca::HcaConfig;
use emulated_hca::hca::Device as Adapter;
use hca_api::{AddressSpace, FunctionId, Hca, HcaEvent};
use ib_vtime::Instant;
use ib_wire::Guid;
use shuttle::scheduler::{DfsScheduler, PctScheduler, Scheduler};
use shuttle::{Config, Runner, thread};
use vf_pci::{Bar, Doorbell, MsixMessage, PciDevice, PciEvent, PciFunction};

use device::{Backend, Device, Interrupts, Provider, Slice, TrappedDoorbells, Wake};

/// Orders that a test tries: the first of all in which threads take turns differently, and as many in which few of them do.
const ORDERS: usize = 4000;
const SEED: u64 = 1;
/// Turns that are taken elsewhere than where a thread has to wait.
const DEPTH: usize = 3;

const DOORBELL: Doorbell = Doorbell {
    bar: 2,
    offset: 0x14,
    len: 4,
};

/// Writes that a function was given, and work that they left to the loop.
#[derive(Debug, Default)]
struct Seen {
    writes: Vec<u8>,
    rings: u32,
    due: u32,
    done: u32,
}

#[derive(Debug)]
struct Probe(Arc<Plain<Seen>>);

impl PciFunction for Probe {
    fn bars(&self) -> &[Bar] {
        &[]
    }

    fn interrupt_vectors(&self) -> u16 {
        1
    }

    fn has_driver(&self) -> bool {
        true
    }

    fn ring(&mut self, _: Instant, _: &mut dyn Hca, _: Doorbell) {
        self.0.lock().unwrap().rings += 1;
    }

    fn config_read(&self, _: u16, _: &mut [u8]) {}

    fn config_write(&mut self, _: Instant, _: &mut dyn Hca, _: u16, _: &[u8]) {}

    fn bar_read(&mut self, _: u8, _: u64, out: &mut [u8]) {
        out.fill(self.0.lock().unwrap().writes.last().copied().unwrap_or(0));
    }

    fn bar_write(&mut self, _: Instant, _: &mut dyn Hca, _: u8, _: u64, bytes: &[u8]) {
        let mut seen = self.0.lock().unwrap();
        seen.writes.push(bytes[0]);
        seen.due += 1;
    }

    fn handle_hca_event(&mut self, _: Instant, _: &mut dyn Hca, _: &HcaEvent) {}

    fn poll(&mut self, _: Instant, _: &mut dyn Hca) -> bool {
        false
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn poll_event(&mut self) -> Option<PciEvent> {
        None
    }

    fn reset(&mut self, _: Instant, _: &mut dyn Hca) {}
}

/// One device on an adapter without a fabric. Each write to it leaves something to the next poll.
struct OneVf {
    device: PciDevice,
    adapter: Adapter,
    seen: Arc<Plain<Seen>>,
}

impl Provider for OneVf {
    type At = ();

    fn now(&self) -> Instant {
        Instant::ZERO
    }

    fn device(&mut self, (): ()) -> Option<&mut PciDevice> {
        Some(&mut self.device)
    }

    fn lend(
        &mut self,
        _: Instant,
        (): (),
        call: &mut dyn FnMut(&mut PciDevice, &mut dyn Hca),
    ) -> bool {
        let function = self.adapter.function(FunctionId::PF);
        function
            .map(|mut function| call(&mut self.device, &mut function))
            .is_some()
    }

    fn take_turn(&mut self, _: Instant, (): ()) {}

    fn poll_for(&mut self, _: Instant, _: &mut Slice) {
        let mut seen = self.seen.lock().unwrap();
        seen.done += seen.due;
        seen.due = 0;
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (self.seen.lock().unwrap().due > 0).then_some(Instant::ZERO)
    }

    fn poll_changed(&mut self) -> Option<()> {
        None
    }

    fn hold(&mut self, (): (), _: bool) {}

    fn detach(&mut self, (): ()) -> Option<Box<dyn AddressSpace>> {
        None
    }
}

/// The sleep of the loop's thread.
#[derive(Default)]
struct Sleep {
    is_woken: sync::Mutex<bool>,
    changed: sync::Condvar,
}

impl Sleep {
    fn wait(&self) {
        let mut is_woken = self.is_woken.lock().unwrap();
        while !core::mem::take(&mut *is_woken) {
            is_woken = self.changed.wait(is_woken).unwrap();
        }
    }
}

impl Wake for Sleep {
    fn wake(&self) {
        *self.is_woken.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

struct NoInterrupts;

impl Interrupts for NoInterrupts {
    fn trigger(&self, _: u16, _: MsixMessage) {}
}

/// Makes a provider whose device has a function.
fn one_vf(function: Box<dyn PciFunction>, seen: Arc<Plain<Seen>>) -> OneVf {
    OneVf {
        device: PciDevice::new(function),
        adapter: Adapter::new(&HcaConfig::new(Guid::new(1), "orders"), SEED),
        seen,
    }
}

#[derive(Clone)]
struct Rig {
    backend: Backend<OneVf>,
    device: Device,
    sleep: Arc<Sleep>,
    seen: Arc<Plain<Seen>>,
}

impl Rig {
    fn new() -> Self {
        let seen = Arc::new(Plain::new(Seen::default()));
        let provider = one_vf(Box::new(Probe(Arc::clone(&seen))), Arc::clone(&seen));
        let sleep = Arc::new(Sleep::default());
        let backend = Backend::new(provider, Arc::clone(&sleep) as Arc<dyn Wake>);
        let device = backend.attach((), Arc::new(NoInterrupts), Arc::new(TrappedDoorbells));
        Self {
            device: device.unwrap(),
            backend,
            sleep,
            seen,
        }
    }

    fn write(&self, byte: u8) {
        self.device.bar_write(2, 0, &[byte]);
    }

    fn writes(&self) -> Vec<u8> {
        self.seen.lock().unwrap().writes.clone()
    }

    /// Runs the loop until the work of so many writes is done.
    fn run_loop(&self, until: u32) {
        while self.seen.lock().unwrap().done < until {
            self.backend.step().unwrap();
            if self.backend.deadline().unwrap().is_none() && !self.is_done(until) {
                self.sleep.wait();
            }
        }
    }

    fn is_done(&self, until: u32) -> bool {
        self.seen.lock().unwrap().done >= until
    }

    /// Runs something on a thread of its own.
    fn spawn(&self, run: impl FnOnce(&Self) + Send + 'static) -> thread::JoinHandle<()> {
        let rig = self.clone();
        thread::spawn(move || run(&rig))
    }
}

fn in_many_orders(test: fn(&Rig)) {
    in_orders(move || test(&Rig::new()));
}

fn in_orders(test: impl Fn() + Copy + Send + Sync + 'static) {
    fn run(scheduler: impl Scheduler + 'static, test: impl Fn() + Send + Sync + 'static) {
        let mut config = Config::new();
        config.stack_size = 1 << 18;
        Runner::new(scheduler, config).run(test);
    }
    run(DfsScheduler::new(Some(ORDERS), false), test);
    run(PctScheduler::new_from_seed(SEED, DEPTH, ORDERS), test);
}

#[test]
fn whoever_finds_the_lock_taken_has_its_write_carried_out() {
    in_many_orders(|rig| {
        let vcpus = [1, 3].map(|first| {
            rig.spawn(move |rig| {
                rig.write(first);
                rig.write(first + 1);
            })
        });
        let owner = rig.spawn(|rig| rig.backend.with(|_| ()).unwrap());
        rig.run_loop(4);
        for thread in vcpus.into_iter().chain([owner]) {
            thread.join().unwrap();
        }
        let writes = rig.writes();
        assert_eq!(writes.len(), 4);
        for first in [1, 3] {
            let its = writes
                .iter()
                .filter(|write| [first, first + 1].contains(write));
            assert!(its.eq(&[first, first + 1]), "{writes:?}");
        }
    });
}

#[test]
fn a_loop_that_goes_to_sleep_is_woken_for_what_a_write_has_left_to_it() {
    in_many_orders(|rig| {
        let vcpus = [1, 2].map(|byte| rig.spawn(move |rig| rig.write(byte)));
        rig.run_loop(2);
        for vcpu in vcpus {
            vcpu.join().unwrap();
        }
        assert_eq!(rig.seen.lock().unwrap().done, 2);
    });
}

#[test]
fn a_read_comes_behind_the_writes_before_it() {
    in_many_orders(|rig| {
        let other = rig.spawn(|rig| rig.device.ring(DOORBELL));
        let steps = rig.spawn(|rig| rig.backend.step().unwrap());
        for byte in 1..=2 {
            rig.write(byte);
            let mut read = [0];
            rig.device.bar_read(2, 0, &mut read);
            assert_eq!(read, [byte]);
        }
        other.join().unwrap();
        steps.join().unwrap();
        // Whoever had the lock may have left it to the loop.
        rig.backend.step().unwrap();
        assert_eq!(rig.seen.lock().unwrap().rings, 1);
    });
}

#[test]
fn nothing_is_carried_out_within_a_pause_and_all_of_it_afterwards() {
    in_many_orders(|rig| {
        let vcpu = rig.spawn(|rig| {
            rig.write(1);
            // Too long to be posted.
            rig.device.bar_write(2, 0, &[2; 64]);
        });
        let steps = rig.spawn(|rig| rig.backend.step().unwrap());
        rig.device.pause();
        let before = rig.writes();
        rig.backend.step().unwrap();
        rig.device.config_read(0, &mut [0]);
        assert_eq!(rig.writes(), before);
        rig.device.resume();
        vcpu.join().unwrap();
        steps.join().unwrap();
        assert_eq!(rig.writes(), [1, 2]);
    });
}

#[test]
fn a_write_that_waits_for_the_end_of_a_pause_goes_on_then() {
    in_many_orders(|rig| {
        rig.device.pause();
        let vcpu = rig.spawn(|rig| rig.device.bar_write(2, 0, &[7; 64]));
        let other = rig.spawn(|rig| rig.device.resume());
        vcpu.join().unwrap();
        other.join().unwrap();
        assert_eq!(rig.writes(), [7]);
    });
}

#[test]
fn a_write_that_waits_for_the_end_of_a_pause_ends_with_the_device() {
    in_many_orders(|rig| {
        rig.device.pause();
        let vcpu = rig.spawn(|rig| rig.device.bar_write(2, 0, &[7; 64]));
        let other = rig.spawn(|rig| drop(rig.device.detach()));
        vcpu.join().unwrap();
        other.join().unwrap();
        assert!(rig.writes().is_empty());
    });
}
