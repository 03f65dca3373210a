//! Updates of interrupts that take their time, and updates that are left to the loop.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use vhca::device::event::EventLoop;
use vhca::device::{Device, Interrupts, MsixMessage, TrappedDoorbells};
use vhca::emulated::{VfId, VfOptions};
use vhca::world::World;
use vm_memory::{GuestAddress, GuestMemoryMmap};

/// The register with the MSI-X table, and what unmasks its first entry.
const TABLE: u8 = 4;
const CONTROL: u64 = 12;
/// Flags that each register has, and the owner of the device's first page.
const PAGE: u8 = 2;
const READS: u32 = 2000;

#[derive(Default)]
struct Counted {
    updates: AtomicU32,
    triggers: AtomicU32,
}

impl Interrupts for Counted {
    fn update(&self, _: &[(u16, Option<MsixMessage>)]) {
        self.updates.fetch_add(1, Ordering::SeqCst);
    }

    fn trigger(&self, _: u16, _: MsixMessage) {
        self.triggers.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns from an update when the test says so.
struct Held {
    begun: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl Interrupts for Held {
    fn update(&self, _: &[(u16, Option<MsixMessage>)]) {
        self.begun.send(()).unwrap();
        self.go_on.lock().unwrap().recv().unwrap();
    }

    fn trigger(&self, _: u16, _: MsixMessage) {}
}

fn memory() -> Arc<GuestMemoryMmap> {
    let ranges = [(GuestAddress(0), 0x1000)];
    Arc::new(GuestMemoryMmap::from_ranges(&ranges).unwrap())
}

/// Makes two VFs of a host, with the loop of their world.
fn two_devices(interrupts: [Arc<dyn Interrupts>; 2]) -> (EventLoop<World>, [Device; 2]) {
    let options = VfOptions::default();
    let (mut world, first) = World::with_one_vf(memory(), &options).unwrap();
    let second = VfId::new(2).unwrap();
    let second = world
        .add_vf_for_vmm(first.host, second, memory(), &options)
        .unwrap();
    let event_loop = EventLoop::new(world).unwrap();
    let backend = event_loop.backend().clone();
    let mut interrupts = interrupts.into_iter();
    let devices = [first, second].map(|at| {
        let interrupts = interrupts.next().unwrap();
        let device = backend.attach(at, interrupts, Arc::new(TrappedDoorbells));
        let device = device.unwrap();
        // Memory space and bus master, then MSI-X.
        let _ = device.config_write(4, &[6, 0]);
        let _ = device.config_write(0x9e, &[0, 0x80]);
        device
    });
    (event_loop, devices)
}

#[test]
fn accesses_and_the_loop_go_on_while_an_update_of_a_neighbour_does_not_return() {
    let (begun, has_begun) = channel();
    let (end, go_on) = channel();
    let held = Arc::new(Held {
        begun,
        go_on: Mutex::new(go_on),
    });
    let (mut event_loop, [device, neighbour]) = two_devices([held, Arc::new(Counted::default())]);
    let its = device.clone();
    let vcpu = std::thread::spawn(move || its.bar_write(TABLE, CONTROL, &[0; 4]));
    has_begun.recv().unwrap();
    for _ in 0..READS {
        let mut read = [0; 4];
        neighbour.bar_read(PAGE, 0, &mut read);
        neighbour.bar_write(TABLE, CONTROL, &[0; 4]);
        let _ = neighbour.config_write(4, &[6, 0]);
        event_loop.step().unwrap();
        // Its own accesses go on, too, but for those that change a message.
        device.bar_read(PAGE, 0, &mut read);
        device.bar_write(PAGE, 0x14, &[0; 4]);
        device.config_read(0, &mut read);
        assert_ne!(read, [0xff; 4]);
    }
    assert!(!vcpu.is_finished(), "it waits for its own update");
    end.send(()).unwrap();
    vcpu.join().unwrap();
}

/// Writes to the table while another thread has the lock.
fn leave_to_the_loop(event_loop: &EventLoop<World>, device: &Device, control: u8) {
    let (holds, is_held) = channel();
    let (release, released) = channel::<()>();
    let backend = event_loop.backend().clone();
    let owner = std::thread::spawn(move || {
        backend.with(|_| {
            holds.send(()).unwrap();
            released.recv().unwrap();
        })
    });
    is_held.recv().unwrap();
    device.bar_write(TABLE, CONTROL, &[control, 0, 0, 0]);
    release.send(()).unwrap();
    owner.join().unwrap().unwrap();
}

#[test]
fn the_loop_asks_for_an_update_that_was_left_to_it_or_makes_it() {
    let counted = Arc::new(Counted::default());
    let (mut event_loop, [device, _other]) =
        two_devices([counted.clone(), Arc::new(Counted::default())]);
    let updates = || counted.updates.load(Ordering::SeqCst);
    let before = updates();

    leave_to_the_loop(&event_loop, &device, 0);
    assert_eq!(updates(), before);
    event_loop.step().unwrap();
    assert_eq!(updates(), before + 1, "there is no other thread for it");

    let asked = Arc::<AtomicU32>::default();
    let its = asked.clone();
    event_loop.set_update_due(move || {
        its.fetch_add(1, Ordering::SeqCst);
    });
    leave_to_the_loop(&event_loop, &device, 1);
    for _ in 0..3 {
        event_loop.step().unwrap();
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1, "it asks once");
    assert_eq!(updates(), before + 1);
    event_loop.backend().update_interrupts().unwrap();
    event_loop.backend().update_interrupts().unwrap();
    assert_eq!(updates(), before + 2);

    leave_to_the_loop(&event_loop, &device, 0);
    event_loop.step().unwrap();
    device.bar_read(PAGE, 0, &mut [0; 4]);
    assert_eq!(updates(), before + 3, "the device's next call makes it");
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    assert_eq!(counted.triggers.load(Ordering::SeqCst), 0);
}
