//! Accesses of a VMM's threads, and the answers.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use emulated_hca::Topology;
use ib_wire::{Guid, Lid};
use vf_proxy::mlx4::PERSONALITY;
use vhca::device::{
    AttachError, Backend, BackendFailed, BarMove, Device, Doorbells, Interrupts, MsixMessage,
    PlacedDoorbell, SaveError, TrappedDoorbells, Wake,
};
use vhca::emulated::VfOptions;
use vhca::world::{HostFunction, HostId, World, vf_spec};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::probe::{DOORBELL, PANIC, Probe, Seen, VF, message, world_with};

/// The communication channel: requests, whose highest bit changes with each, and answers.
const SLAVE_WRITE: u64 = 0x0;
const SLAVE_READ: u64 = 0x4;
/// Calls to a VMM, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Update(Vec<(u16, Option<MsixMessage>)>),
    Trigger(u16, MsixMessage),
    Doorbells(Vec<PlacedDoorbell>),
}

#[derive(Default)]
struct Vmm {
    told: Mutex<Vec<Told>>,
    wakes: AtomicU32,
}

impl Vmm {
    fn tell(&self, told: Told) {
        self.told.lock().unwrap().push(told);
    }

    fn take(&self) -> Vec<Told> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }

    fn take_wakes(&self) -> u32 {
        self.wakes.swap(0, Ordering::SeqCst)
    }
}

impl Interrupts for Vmm {
    fn update(&self, changes: &[(u16, Option<MsixMessage>)]) {
        self.tell(Told::Update(changes.to_vec()));
    }

    fn trigger(&self, vector: u16, message: MsixMessage) {
        self.tell(Told::Trigger(vector, message));
    }
}

impl Doorbells for Vmm {
    fn set(&self, doorbells: &[PlacedDoorbell]) {
        self.tell(Told::Doorbells(doorbells.to_vec()));
    }
}

impl Wake for Vmm {
    fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
    }
}

struct Rig {
    vmm: Arc<Vmm>,
    seen: Arc<Mutex<Seen>>,
    backend: Backend<World>,
    device: Device,
    at: HostFunction,
}

impl Rig {
    fn new() -> Self {
        let probe = Probe::default();
        let seen = Arc::clone(&probe.seen);
        let (world, at) = world_with(Box::new(probe));
        let vmm = Arc::new(Vmm::default());
        let backend = Backend::new(world, vmm.clone());
        let device = backend.attach(at, vmm.clone(), vmm.clone()).unwrap();
        Self {
            vmm,
            seen,
            backend,
            device,
            at,
        }
    }

    /// Steps until there is nothing to do now, and the loop sleeps.
    fn sleep(&self) {
        loop {
            self.backend.step().unwrap();
            let deadline = self.backend.deadline().unwrap();
            if deadline.is_none_or(|at| at > self.backend.now()) {
                break;
            }
        }
        let _ = self.vmm.take_wakes();
    }

    /// Places the register and returns what the VMM is told.
    fn place(&self, page: u8) -> (Vec<BarMove>, Vec<Told>) {
        let effect = self.device.config_write(0x18, &[page]);
        (effect.moved, self.vmm.take())
    }
}

fn placed(page: u64) -> Told {
    Told::Doorbells(vec![PlacedDoorbell {
        address: page * 4096 + DOORBELL.offset,
        doorbell: DOORBELL,
    }])
}

#[test]
fn a_write_to_configuration_space_has_told_all_it_did_when_it_returns() {
    let rig = Rig::new();
    let moved = |from: Option<u64>, to: Option<u64>| BarMove {
        bar: 2,
        size: 4096,
        from,
        to,
    };
    let on = Told::Update(vec![(1, Some(message(1)))]);
    let (moves, told) = rig.place(5);
    assert_eq!(moves, [moved(None, Some(0x5000))]);
    assert_eq!(told, [on.clone(), placed(5)]);
    let (moves, told) = rig.place(7);
    assert_eq!(moves, [moved(Some(0x5000), Some(0x7000))]);
    assert_eq!(told, [on, placed(7)]);
    let (moves, told) = rig.place(0);
    assert_eq!(moves, [moved(Some(0x7000), None)]);
    let off = Told::Update(vec![(1, None)]);
    assert_eq!(told, [off, Told::Doorbells(Vec::new())]);
    assert!(rig.device.config_write(0, &[1, 2]).moved.is_empty());
    assert!(rig.vmm.take().is_empty());
}

#[test]
fn an_interrupt_comes_at_once_and_behind_what_it_depends_on() {
    let rig = Rig::new();
    rig.device.bar_write(2, 0, &[1, 0, 0, 0]);
    assert!(rig.vmm.take().is_empty(), "the vector has no message yet");
    let (_, told) = rig.place(5);
    let update = Told::Update(vec![(1, Some(message(1)))]);
    assert_eq!(told, [update, Told::Trigger(1, message(1)), placed(5)]);
    rig.device.bar_write(2, 0, &[4, 0, 0, 0]);
    assert_eq!(rig.vmm.take(), [Told::Trigger(4, message(4))]);
    assert_eq!(rig.device.statistics().interrupts, 2);
}

#[test]
fn a_posted_write_waits_for_nobody_and_comes_before_the_next_read() {
    let rig = Rig::new();
    let (holds, is_held) = channel();
    let (release, released) = channel::<()>();
    let backend = rig.backend.clone();
    let owner = std::thread::spawn(move || {
        backend.with(|_| {
            holds.send(()).unwrap();
            released.recv().unwrap();
        })
    });
    is_held.recv().unwrap();
    for byte in 0..100 {
        rig.device.bar_write(2, 0, &[byte]);
    }
    rig.device.ring(DOORBELL);
    assert!(rig.seen.lock().unwrap().writes.is_empty());
    release.send(()).unwrap();
    owner.join().unwrap().unwrap();
    // The owner has left them to the loop.
    rig.backend.step().unwrap();
    let expected: Vec<_> = (0..100).map(|byte| vec![byte]).collect();
    assert_eq!(rig.seen.lock().unwrap().writes, expected);
    assert_eq!(rig.seen.lock().unwrap().rings, 1);
    let mut read = [0];
    rig.device.bar_read(2, 0, &mut read);
    assert_eq!(read, [100]);
    assert_eq!(rig.device.statistics().waits, 0);
}

#[test]
fn a_full_queue_and_a_long_write_wait_and_keep_the_order() {
    const POSTED: u16 = 1024;
    let rig = Rig::new();
    let (holds, is_held) = channel();
    let (release, released) = channel::<()>();
    let backend = rig.backend.clone();
    let owner = std::thread::spawn(move || {
        backend.with(|_| {
            holds.send(()).unwrap();
            released.recv().unwrap();
        })
    });
    is_held.recv().unwrap();
    for number in 0..POSTED {
        rig.device.bar_write(2, 0, &number.to_le_bytes());
    }
    let device = rig.device.clone();
    let vcpu = std::thread::spawn(move || {
        device.bar_write(2, 0, &POSTED.to_le_bytes());
        device.bar_write(2, 0, &[7; 64]);
    });
    while rig.device.statistics().waits == 0 {
        std::thread::yield_now();
    }
    release.send(()).unwrap();
    owner.join().unwrap().unwrap();
    vcpu.join().unwrap();
    let seen = rig.seen.lock().unwrap();
    let numbers = (0..=POSTED).map(|number| number.to_le_bytes().to_vec());
    let expected: Vec<_> = numbers.chain([vec![7; 64]]).collect();
    assert!(seen.writes == expected);
    assert_eq!(rig.device.statistics().waits, 2);
}

#[test]
fn writes_of_many_threads_are_all_carried_out_each_thread_s_in_order() {
    const THREADS: u8 = 4;
    const WRITES: u32 = 2000;
    let rig = Rig::new();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let device = &rig.device;
            scope.spawn(move || {
                for number in 0..WRITES {
                    let [a, b, ..] = number.to_le_bytes();
                    device.bar_write(2, 0, &[thread, a, b]);
                }
            });
        }
        for _ in 0..200 {
            rig.backend.step().unwrap();
            let _ = rig.backend.deadline().unwrap();
        }
    });
    // Who left writes to another has seen to it that this one carries them out.
    if rig.vmm.take_wakes() != 0 {
        rig.backend.step().unwrap();
    }
    let seen = rig.seen.lock().unwrap();
    for thread in 0..THREADS {
        let its = seen.writes.iter().filter(|write| write[0] == thread);
        let numbers: Vec<_> = its
            .map(|w| u32::from(w[1]) | u32::from(w[2]) << 8)
            .collect();
        assert!(
            numbers == (0..WRITES).collect::<Vec<_>>(),
            "thread {thread}"
        );
    }
}

#[test]
fn an_access_that_brings_the_deadline_nearer_wakes_the_loop_once() {
    let rig = Rig::new();
    rig.sleep();
    let mut read = [0; 4];
    rig.device.config_read(0, &mut read);
    rig.device.bar_read(2, 0, &mut read);
    assert_eq!(rig.vmm.take_wakes(), 0, "a read brings nothing nearer");
    let wake = |world: &mut World| {
        let _ = world.with_device(rig.at, |_, _, _| ());
    };
    rig.backend.with(wake).unwrap();
    rig.backend.with(wake).unwrap();
    assert_eq!(rig.vmm.take_wakes(), 1, "it is told once");
    let deadline = rig.backend.deadline().unwrap();
    assert!(deadline.is_some_and(|at| at <= rig.backend.now()));
}

#[test]
fn writes_that_bring_nothing_to_do_wake_nobody() {
    let rig = Rig::new();
    rig.sleep();
    for number in 0..100_u8 {
        rig.device.bar_write(2, 0, &[number]);
        rig.device.bar_write(2, 0, &[3, 0, 0, 0]);
        rig.device.ring(DOORBELL);
        let _ = rig.device.config_write(0x18, &[number, 0]);
    }
    assert_eq!(rig.seen.lock().unwrap().rings, 100);
    assert_eq!(rig.vmm.take_wakes(), 0);
}

#[test]
fn a_detached_device_answers_nothing_and_gives_the_memory_back() {
    let rig = Rig::new();
    let _ = rig.place(5);
    rig.device.bar_write(2, 0, &[1]);
    assert!(rig.device.clone().detach().is_some());
    assert_eq!(rig.vmm.take(), [Told::Doorbells(Vec::new())]);
    let mut read = [0; 4];
    rig.device.bar_read(2, 0, &mut read);
    assert_eq!(read, [0xff; 4]);
    read = [0; 4];
    rig.device.config_read(0, &mut read);
    assert_eq!(read, [0xff; 4]);
    rig.device.bar_write(2, 0, &[2]);
    rig.device.ring(DOORBELL);
    let _ = rig.device.reset();
    assert!(rig.device.config_write(0x18, &[9]).moved.is_empty());
    assert!(rig.device.detach().is_none());
    assert_eq!(rig.seen.lock().unwrap().writes, [[1]]);
    assert_eq!(rig.device.statistics().after_detach, 7);
    assert!(rig.vmm.take().is_empty());
}

#[test]
fn a_function_has_one_vmm_and_its_successor_gets_none_of_its_writes() {
    let rig = Rig::new();
    let vmm = rig.vmm.clone();
    let again = rig
        .backend
        .attach(rig.at, vmm.clone(), Arc::new(TrappedDoorbells));
    assert_eq!(again.unwrap_err(), AttachError::InUse);
    assert!(rig.device.detach().is_some());
    let gone = rig
        .backend
        .attach(rig.at, vmm.clone(), Arc::new(TrappedDoorbells));
    assert_eq!(gone.unwrap_err(), AttachError::NoFunction);
    let probe = Probe::default();
    let seen = Arc::clone(&probe.seen);
    let spec = vf_spec(Guid::new(0x0014_0500_0000_0001));
    let at = rig.backend.with(|world| {
        world.add_idle_vf(rig.at.host, VF, spec).unwrap();
        world.add_device(rig.at.host, VF, Box::new(probe)).unwrap()
    });
    let next = rig.backend.attach(at.unwrap(), vmm.clone(), vmm).unwrap();
    rig.device.bar_write(2, 0, &[1]);
    next.bar_write(2, 0, &[2]);
    assert_eq!(seen.lock().unwrap().writes, [[2]]);
}

#[test]
fn a_paused_device_keeps_writes_and_doorbells_in_their_order() {
    let rig = Rig::new();
    let _ = rig.place(5);
    rig.device.bar_write(2, 0, &[1]);
    rig.device.pause();
    rig.device.pause();
    assert!(rig.device.is_paused());
    for byte in 2..10 {
        rig.device.bar_write(2, 0, &[byte]);
        rig.device.ring(DOORBELL);
    }
    rig.backend.step().unwrap();
    let mut read = [0];
    rig.device.bar_read(2, 0, &mut read);
    assert_eq!(read, [1], "reads are answered without what is kept");
    let (moves, _) = rig.place(6);
    assert_eq!(moves.len(), 1, "and so is configuration space");
    assert_eq!(rig.seen.lock().unwrap().writes, [[1]]);
    rig.device.resume();
    assert!(!rig.device.is_paused());
    let all: Vec<_> = (1..10).map(|byte| vec![byte]).collect();
    assert_eq!(rig.seen.lock().unwrap().writes, all);
    assert_eq!(rig.seen.lock().unwrap().rings, 1);
    rig.device.resume();
    rig.device.bar_write(2, 0, &[10]);
    assert_eq!(rig.seen.lock().unwrap().writes.len(), 10);
}

#[test]
fn a_paused_device_s_full_queue_waits_for_the_end_of_the_pause() {
    const KEPT: u16 = 1024;
    for ends_by_detach in [false, true] {
        let rig = Rig::new();
        rig.device.pause();
        for number in 0..KEPT {
            rig.device.bar_write(2, 0, &number.to_le_bytes());
        }
        let device = rig.device.clone();
        let vcpu = std::thread::spawn(move || {
            device.bar_write(2, 0, &KEPT.to_le_bytes());
            device.bar_write(2, 0, &[7; 64]);
        });
        while rig.device.statistics().writes <= u64::from(KEPT) {
            std::thread::yield_now();
        }
        if ends_by_detach {
            assert!(rig.device.detach().is_some());
        } else {
            rig.device.resume();
        }
        vcpu.join().unwrap();
        let seen = rig.seen.lock().unwrap();
        let numbers = (0..=KEPT).map(|number| number.to_le_bytes().to_vec());
        let all: Vec<_> = numbers.chain([vec![7; 64]]).collect();
        let expected = if ends_by_detach { &[] } else { &all[..] };
        assert!(seen.writes == expected);
    }
}

#[test]
fn a_reset_ends_what_a_pause_has_kept() {
    let rig = Rig::new();
    rig.device.pause();
    rig.device.bar_write(2, 0, &[1]);
    let _ = rig.device.reset();
    rig.device.bar_write(2, 0, &[2]);
    rig.device.resume();
    assert_eq!(rig.seen.lock().unwrap().writes, [[2]]);
}

#[test]
fn a_reset_returns_the_registers_that_have_no_address_then() {
    let rig = Rig::new();
    let _ = rig.place(5);
    let gone = BarMove {
        bar: 2,
        size: 4096,
        from: Some(0x5000),
        to: None,
    };
    assert_eq!(rig.device.reset().moved, [gone]);
    assert_eq!(rig.vmm.take(), [Told::Doorbells(Vec::new())]);
    assert!(rig.device.reset().moved.is_empty());
}

#[test]
fn a_register_goes_back_where_it_was() {
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
    let (world, at) = World::with_one_vf(Arc::new(memory), &VfOptions::default()).unwrap();
    let vmm = Arc::new(Vmm::default());
    let backend = Backend::new(world, vmm.clone());
    let device = backend.attach(at, vmm.clone(), vmm).unwrap();
    let registers = device.bars()[0];
    let _ = device.config_write(4, &[6, 4]);
    let at = |address| device.restore_bar(registers.index, address).moved;
    let moved = |from, to| BarMove {
        bar: registers.index,
        size: registers.size,
        from,
        to,
    };
    let (first, second) = (0x1_0000_0000, 0x2_0000_0000);
    assert_eq!(at(first), [moved(None, Some(first))]);
    assert_eq!(at(second), [moved(Some(first), Some(second))]);
    assert_eq!(at(first), [moved(Some(second), Some(first))]);
}

#[test]
fn a_panic_of_the_provider_ends_the_backend_and_no_thread_of_the_vmm() {
    let rig = Rig::new();
    let failures = Arc::<AtomicU32>::default();
    let count = |rig: &Rig| {
        let failures = Arc::clone(&failures);
        rig.device.on_failure(move |reason| {
            assert!(reason.is::<BackendFailed>());
            failures.fetch_add(1, Ordering::SeqCst);
        });
    };
    count(&rig);
    rig.device.bar_write(2, 0, &PANIC);
    assert_eq!(failures.load(Ordering::SeqCst), 1);
    count(&rig);
    assert_eq!(failures.load(Ordering::SeqCst), 2, "it is called at once");
    assert!(rig.backend.step().is_err() && rig.backend.deadline().is_err());
    let mut read = [0; 4];
    rig.device.bar_read(2, 0, &mut read);
    assert_eq!(read, [0xff; 4]);
    rig.device.bar_write(2, 0, &[1]);
    rig.device.bar_write(2, 0, &[1; 64]);
    assert!(rig.device.config_write(0x18, &[5]).moved.is_empty());
    assert!(rig.device.detach().is_none());
    assert!(rig.seen.lock().unwrap().writes.is_empty());
}

#[test]
fn names_of_another_world_are_refused() {
    let rig = Rig::new();
    let (mut other, foreign) = {
        let (fabric, built) = Topology::two_switches(2).build(1);
        let mut world = World::new(fabric, 1);
        let hosts = built.hcas.iter().map(|node| world.add_host(*node).unwrap());
        let last = hosts.collect::<Vec<_>>().pop().unwrap();
        (world, last.vf(VF))
    };
    let attached = rig
        .backend
        .attach(foreign, rig.vmm.clone(), rig.vmm.clone());
    assert_eq!(attached.unwrap_err(), AttachError::NoFunction);
    rig.backend
        .with(|world| {
            assert!(world.device(foreign).is_none());
            assert!(world.with_device(foreign, |_, _, _| ()).is_none());
            assert_eq!(world.poll_interrupt(foreign), None);
            let placed = world.add_device(foreign.host, VF, Box::<Probe>::default());
            assert!(placed.is_err());
        })
        .unwrap();
    let not_shared = other.add_device(foreign.host, VF, Box::<Probe>::default());
    assert!(not_shared.is_err());
}

#[test]
fn hosts_of_one_call_have_lids_of_their_own_and_take_vfs() {
    let options = VfOptions::default();
    let (mut world, hosts) = World::with_hosts(3, &options).unwrap();
    let fabric = world.fabric();
    let lid = |host: &HostId| fabric.port(world.host(*host).node().port(1)).unwrap().lid;
    let lids: BTreeSet<Lid> = hosts.iter().map(lid).collect();
    let first = hosts[0];
    assert!(lids.len() == 3 && !lids.contains(&Lid::default()));
    let memory: Arc<GuestMemoryMmap> =
        Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap());
    for host in hosts {
        let at = world.add_vf_for_vmm(host, VF, Arc::clone(&memory), &options);
        assert_eq!(at.unwrap(), host.vf(VF));
    }
    let vmm = Arc::new(Vmm::default());
    let backend = Backend::new(world, vmm.clone());
    let device = backend.attach(first.vf(VF), vmm.clone(), vmm).unwrap();
    assert_eq!(device.save(), Err(SaveError::Unsupported));
}

#[test]
fn a_world_with_one_vf_has_its_port_up_and_reaches_the_guest_s_memory() {
    let ranges = [(GuestAddress(0x1000), 0x1000)];
    let memory: Arc<GuestMemoryMmap> = Arc::new(GuestMemoryMmap::from_ranges(&ranges).unwrap());
    let (world, at) = World::with_one_vf(Arc::clone(&memory), &VfOptions::default()).unwrap();
    let port = &world.context(at.host).ports()[0];
    assert_eq!(port.reason(VF).unwrap().to_string(), "up");
    let vmm = Arc::new(Vmm::default());
    let backend = Backend::new(world, vmm.clone());
    let device = backend.attach(at, vmm.clone(), vmm).unwrap();
    let mut reached = device.detach().unwrap();
    reached.write(0x1800, b"by the VF").unwrap();
    let mut read = [0; 9];
    memory.read_slice(&mut read, GuestAddress(0x1800)).unwrap();
    assert_eq!(&read, b"by the VF");
}

/// The registers of a ConnectX-3 VF, from its identity to its first reset by the driver.
#[test]
fn a_guest_finds_places_and_resets_the_function() {
    let (world, at) = world_with((PERSONALITY.make)());
    let vmm = Arc::new(Vmm::default());
    let backend = Backend::new(world, vmm.clone());
    let device = backend.attach(at, vmm.clone(), vmm.clone()).unwrap();
    let mut id = [0; 4];
    device.config_read(0, &mut id);
    assert_eq!(id, [0xb3, 0x15, 0x04, 0x10]);
    assert_eq!(device.bars().len(), 2);
    assert_eq!(device.vectors(), 33);
    for (register, address) in [(0x18, 0x7f_0000_0000_u64), (0x20, 0xe000_0000)] {
        assert!(
            device
                .config_write(register, &address.to_le_bytes())
                .moved
                .is_empty()
        );
    }
    let effect = device.config_write(4, &[6, 0]);
    let to: Vec<_> = effect.moved.iter().map(|moved| moved.to).collect();
    assert_eq!(to, [Some(0x7f_0000_0000), Some(0xe000_0000)]);

    assert!(device.config_write(0x9e, &[0, 0x80]).moved.is_empty());
    device.bar_write(4, 16, &0xfee0_0000_u64.to_le_bytes());
    device.bar_write(4, 24, &0x41_u64.to_le_bytes());
    let message = MsixMessage {
        address: 0xfee0_0000,
        data: 0x41,
    };
    assert_eq!(vmm.take(), [Told::Update(vec![(1, Some(message))])]);

    // RESET on the channel, which the PF carries out when the loop has its turn.
    device.bar_write(2, SLAVE_WRITE, &[0x80, 0, 0, 0]);
    let mut answer = [0; 4];
    let begun = std::time::Instant::now();
    while answer[0] & 0x80 == 0 {
        backend.step().unwrap();
        device.bar_read(2, SLAVE_READ, &mut answer);
        assert!(begun.elapsed() < Duration::from_secs(10), "{answer:02x?}");
    }
    assert!(device.detach().is_some());
}
