//! Updates of interrupts beside triggers, pauses and the end of a device, in many orders.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex as Plain};

use hca_api::{Hca, HcaEvent};
use ib_vtime::Instant;
use shuttle::thread;
use vf_pci::{Bar, Doorbell, MsixMessage, PciEvent, PciFunction};

use crate::device::{
    Backend, Device, Doorbells, Interrupts, PlacedDoorbell, Provider, TrappedDoorbells, Wake,
};
use crate::{DOORBELL, OneVf, Seen, Sleep, in_orders, one_vf};

/// Registers: a byte into the first is the message of vector 0, zero masks it; the second raises it; the third has the number
/// of doorbells.
const TABLE: u8 = 4;
const RAISE: u8 = 2;
const PAGES: u8 = 3;

#[derive(Debug, Default)]
struct Function {
    message: Option<MsixMessage>,
    is_pending: bool,
    pages: u64,
    events: VecDeque<PciEvent>,
}

const fn message(data: u8) -> MsixMessage {
    MsixMessage {
        address: 0xfee0_0000,
        data: data as u32,
    }
}

impl Function {
    fn set(&mut self, message: Option<MsixMessage>) {
        self.message = message;
        self.events.push_back(PciEvent::VectorChanged { vector: 0 });
        if self.message.is_some() && core::mem::take(&mut self.is_pending) {
            self.raise();
        }
    }

    fn raise(&mut self) {
        match self.message {
            Some(_) => self.events.push_back(PciEvent::Interrupt { vector: 0 }),
            None => self.is_pending = true,
        }
    }
}

impl PciFunction for Function {
    fn bars(&self) -> &[Bar] {
        &[]
    }

    fn interrupt_vectors(&self) -> u16 {
        1
    }

    fn message(&self, vector: u16) -> Option<MsixMessage> {
        self.message.filter(|_| vector == 0)
    }

    fn bar_address(&self, bar: u8) -> Option<u64> {
        (bar == DOORBELL.bar).then_some(0x10_0000)
    }

    fn doorbells(&self) -> Vec<Doorbell> {
        let pages = 0..self.pages;
        let doorbells = pages.map(|page| Doorbell {
            offset: page * 0x1000,
            ..DOORBELL
        });
        doorbells.collect()
    }

    fn has_driver(&self) -> bool {
        true
    }

    fn config_read(&self, _: u16, _: &mut [u8]) {}

    fn config_write(&mut self, now: Instant, hca: &mut dyn Hca, _: u16, bytes: &[u8]) {
        self.bar_write(now, hca, TABLE, 0, bytes);
    }

    fn bar_read(&mut self, _: u8, _: u64, _: &mut [u8]) {}

    fn bar_write(&mut self, _: Instant, _: &mut dyn Hca, bar: u8, _: u64, bytes: &[u8]) {
        match bar {
            TABLE => self.set((bytes[0] != 0).then(|| message(bytes[0]))),
            RAISE => self.raise(),
            _ => {
                self.pages = bytes[0].into();
                self.events.push_back(PciEvent::DoorbellsChanged);
            }
        }
    }

    fn handle_hca_event(&mut self, _: Instant, _: &mut dyn Hca, _: &HcaEvent) {}

    fn poll(&mut self, _: Instant, _: &mut dyn Hca) -> bool {
        false
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn poll_event(&mut self) -> Option<PciEvent> {
        self.events.pop_front()
    }

    fn reset(&mut self, _: Instant, _: &mut dyn Hca) {
        self.is_pending = false;
        self.set(None);
    }
}

/// Calls that a VMM received.
#[derive(Debug, Default)]
struct Called {
    /// The message of vector 0.
    known: Option<MsixMessage>,
    is_updating: bool,
    triggers: u32,
    /// No call may come: the device is detached or paused.
    is_quiet: bool,
    doorbells: Vec<PlacedDoorbell>,
    /// Doorbells that the loop leaves are taken by another thread.
    leaves: bool,
}

#[derive(Default)]
struct Vmm {
    called: Plain<Called>,
    backend: Plain<Option<Backend<OneVf>>>,
    /// Wakes the loop.
    sleep: Sleep,
    /// The loop has asked, for a thread that makes the updates; there is one if the loop's thread is named.
    asked: Sleep,
    looping: Plain<Option<thread::ThreadId>>,
}

impl Wake for Vmm {
    fn wake(&self) {
        self.sleep.wake();
    }

    fn update_due(&self) -> bool {
        let has_thread = self.looping.lock().unwrap().is_some();
        if has_thread {
            self.asked.wake();
        }
        has_thread
    }
}

impl Interrupts for Vmm {
    fn update(&self, changes: &[(u16, Option<MsixMessage>)]) {
        {
            let mut called = self.called.lock().unwrap();
            assert!(!core::mem::replace(&mut called.is_updating, true));
            assert!(!called.is_quiet, "an update of a device that is at rest");
            let looping = *self.looping.lock().unwrap();
            assert_ne!(looping, Some(thread::current().id()), "by the loop");
        }
        // This would not return if the lock of the backend were held.
        let backend = self.backend.lock().unwrap().clone();
        backend.unwrap().with(|_| ()).unwrap();
        let mut called = self.called.lock().unwrap();
        assert!(!called.is_quiet, "an update of a device that is at rest");
        let [(0, message)] = changes else {
            panic!("{changes:?}");
        };
        called.known = *message;
        called.is_updating = false;
        drop(called);
        self.sleep.wake();
    }

    fn trigger(&self, vector: u16, message: MsixMessage) {
        let mut called = self.called.lock().unwrap();
        assert!(!called.is_quiet, "a vector of a device that is at rest");
        assert!(!called.is_updating, "a trigger during the vector's update");
        assert_eq!((vector, Some(message)), (0, called.known));
        called.triggers += 1;
    }
}

impl Doorbells for Vmm {
    fn set(&self, doorbells: &[PlacedDoorbell]) {
        self.called.lock().unwrap().doorbells = doorbells.to_vec();
    }

    fn set_in_loop(&self, doorbells: &[PlacedDoorbell]) -> bool {
        let leaves = self.called.lock().unwrap().leaves;
        if !leaves {
            self.set(doorbells);
        }
        !leaves
    }
}

#[derive(Clone)]
struct Rig {
    backend: Backend<OneVf>,
    device: Device,
    vmm: Arc<Vmm>,
}

impl Rig {
    fn new() -> Self {
        let seen = Arc::<Plain<Seen>>::default();
        let vmm = Arc::<Vmm>::default();
        let provider = one_vf(Box::<Function>::default(), seen);
        let backend = Backend::new(provider, vmm.clone());
        *vmm.backend.lock().unwrap() = Some(backend.clone());
        let device = backend.attach((), vmm.clone(), Arc::new(TrappedDoorbells));
        Self {
            device: device.unwrap(),
            backend,
            vmm,
        }
    }

    fn spawn(&self, run: impl FnOnce(&Self) + Send + 'static) -> thread::JoinHandle<()> {
        let rig = self.clone();
        thread::spawn(move || run(&rig))
    }

    fn set_quiet(&self, is_quiet: bool) {
        let mut called = self.vmm.called.lock().unwrap();
        assert!(!called.is_updating);
        called.is_quiet = is_quiet;
    }

    fn known(&self) -> Option<MsixMessage> {
        self.vmm.called.lock().unwrap().known
    }

    fn triggers(&self) -> u32 {
        self.vmm.called.lock().unwrap().triggers
    }

    /// A vCPU changes the message of the vector, the last time to `last`.
    fn change(&self, last: u8) {
        for data in [1, 0, last] {
            self.device.bar_write(TABLE, 0, &[data]);
        }
    }

    /// Runs the loop until the VMM knows a message.
    fn run_loop(&self, until: Option<MsixMessage>) {
        while self.known() != until {
            self.backend.step().unwrap();
            if self.backend.deadline().unwrap().is_none() && self.known() != until {
                self.vmm.sleep.wait();
            }
        }
    }
}

fn in_many_orders(test: fn(&Rig)) {
    in_orders(move || {
        let rig = Rig::new();
        test(&rig);
        let message = |backend: &mut OneVf| backend.device(()).unwrap().function().message(0);
        let message = rig.backend.with(message).unwrap();
        if !rig.vmm.called.lock().unwrap().is_quiet {
            assert_eq!(rig.known(), message, "the VMM has an older message");
        }
        // They keep each other.
        rig.vmm.backend.lock().unwrap().take();
    });
}

#[test]
fn an_interrupt_comes_behind_the_update_of_its_message_and_with_that() {
    in_many_orders(|rig| {
        let changes = rig.spawn(|rig| rig.change(2));
        let raises = rig.spawn(|rig| {
            rig.device.bar_write(RAISE, 0, &[1]);
            rig.device.bar_write(RAISE, 0, &[1]);
        });
        rig.run_loop(Some(message(2)));
        changes.join().unwrap();
        raises.join().unwrap();
        // What came while the lock was taken.
        rig.backend.step().unwrap();
        assert!((1..=2).contains(&rig.triggers()));
    });
}

#[test]
fn a_change_that_the_loop_carried_out_is_updated_by_the_thread_that_it_asks() {
    in_many_orders(|rig| {
        *rig.vmm.looping.lock().unwrap() = Some(thread::current().id());
        let updates = rig.spawn(|rig| {
            while rig.known() != Some(message(3)) {
                rig.vmm.asked.wait();
                rig.backend.update_interrupts().unwrap();
            }
        });
        let changes = rig.spawn(|rig| rig.change(3));
        let owner = rig.spawn(|rig| rig.backend.with(|_| ()).unwrap());
        rig.run_loop(Some(message(3)));
        for thread in [changes, owner] {
            thread.join().unwrap();
        }
        // It waits for an order that does not come if the vCPU has made the updates.
        rig.vmm.asked.wake();
        updates.join().unwrap();
    });
}

#[test]
fn two_vcpus_that_change_a_message_return_when_the_vmm_has_the_newest() {
    in_many_orders(|rig| {
        let vcpus = [5, 6].map(|data| {
            rig.spawn(move |rig| {
                let _ = rig.device.config_write(0, &[data]);
                assert!(rig.known().is_some());
            })
        });
        let raises = rig.spawn(|rig| rig.device.bar_write(RAISE, 0, &[1]));
        for thread in vcpus.into_iter().chain([raises]) {
            thread.join().unwrap();
        }
        rig.backend.step().unwrap();
        assert_eq!(rig.triggers(), 1);
    });
}

/// The loop asks a thread here that never comes.
#[test]
fn the_next_read_updates_what_the_loop_carried_out() {
    in_many_orders(|rig| {
        let steps = rig.spawn(|rig| {
            *rig.vmm.looping.lock().unwrap() = Some(thread::current().id());
            rig.backend.step().unwrap();
        });
        rig.device.bar_write(TABLE, 0, &[7]);
        rig.device.bar_read(TABLE, 0, &mut [0]);
        assert_eq!(rig.known(), Some(message(7)));
        steps.join().unwrap();
    });
}

#[test]
fn no_update_and_no_interrupt_comes_after_the_end_of_a_device() {
    in_many_orders(|rig| {
        let changes = rig.spawn(|rig| rig.change(2));
        let raises = rig.spawn(|rig| rig.device.bar_write(RAISE, 0, &[1]));
        let steps = rig.spawn(|rig| rig.backend.step().unwrap());
        let _ = rig.device.detach();
        rig.set_quiet(true);
        for thread in [changes, raises, steps] {
            thread.join().unwrap();
        }
        rig.backend.step().unwrap();
        rig.backend.update_interrupts().unwrap();
    });
}

#[test]
fn a_vector_that_waits_when_a_pause_begins_comes_after_it() {
    in_many_orders(|rig| {
        let vcpu = rig.spawn(|rig| {
            rig.device.bar_write(TABLE, 0, &[1]);
            rig.device.bar_write(RAISE, 0, &[1]);
            rig.device.bar_write(TABLE, 0, &[2]);
        });
        let steps = rig.spawn(|rig| rig.backend.step().unwrap());
        rig.device.pause();
        rig.set_quiet(true);
        rig.backend.step().unwrap();
        rig.set_quiet(false);
        rig.device.resume();
        vcpu.join().unwrap();
        steps.join().unwrap();
        rig.backend.step().unwrap();
        assert_eq!(rig.triggers(), 1);
        assert_eq!(rig.known(), Some(message(2)));
    });
}

#[test]
fn a_vector_that_is_unmasked_within_a_pause_comes_after_it() {
    in_many_orders(|rig| {
        rig.device.bar_write(RAISE, 0, &[1]);
        rig.device.pause();
        let steps = rig.spawn(|rig| rig.backend.step().unwrap());
        let _ = rig.device.config_write(0, &[4]);
        steps.join().unwrap();
        assert_eq!((rig.known(), rig.triggers()), (Some(message(4)), 0));
        rig.device.resume();
        assert_eq!(rig.triggers(), 1);
    });
}

#[test]
fn an_interrupt_before_a_reset_does_not_come_after_it() {
    in_many_orders(|rig| {
        rig.device.bar_write(TABLE, 0, &[1]);
        let raises = rig.spawn(|rig| rig.device.bar_write(RAISE, 0, &[1]));
        let changes = rig.spawn(|rig| rig.device.bar_write(TABLE, 0, &[2]));
        raises.join().unwrap();
        let _ = rig.device.reset();
        let before = rig.triggers();
        changes.join().unwrap();
        let _ = rig.device.config_write(0, &[3]);
        assert_eq!(rig.triggers(), before);
        assert_eq!(rig.known(), Some(message(3)));
    });
}

#[test]
fn doorbells_that_the_loop_leaves_are_placed_by_the_next_write() {
    in_many_orders(|rig| {
        let _ = rig.device.detach();
        let device = rig.backend.attach((), rig.vmm.clone(), rig.vmm.clone());
        let device = device.unwrap();
        rig.vmm.called.lock().unwrap().leaves = true;
        let its = device.clone();
        let vcpu = thread::spawn(move || its.bar_write(PAGES, 0, &[2]));
        let steps = rig.spawn(|rig| rig.backend.step().unwrap());
        vcpu.join().unwrap();
        steps.join().unwrap();
        rig.backend.step().unwrap();
        let placed = || rig.vmm.called.lock().unwrap().doorbells.len();
        // The write has placed them if the loop had left them before it returned.
        assert!([0, 2].contains(&placed()));
        device.bar_write(RAISE, 0, &[1]);
        assert_eq!(placed(), 2);
    });
}
