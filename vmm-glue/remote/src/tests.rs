//! Devices at services that do what a test wants.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{Errno, write};
use vhca_device::{
    Device, Doorbell, Doorbells, Interrupts, MsixMessage, PlacedDoorbell, SignalledDoorbell,
};
use vhca_vfio_user_codec::{
    Command, DeviceInfo, HeaderFlags, IoEventFd, IrqInfo, Message, RegionAccess, RegionInfo,
    RegionIoFds, Request, error_reply, reply,
};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::attach::attach_over;
use crate::error::{AttachError, LinkError};
use crate::socket::{Deadline, Socket};
use crate::watcher::{drain, event};

/// Far: nothing takes as long.
const LONG: Duration = Duration::from_secs(60);

/// A service that hangs is given up after this; one that runs answers sooner, on a busy machine as well.
const SHORT: Duration = Duration::from_secs(2);

/// A service that makes no sense need not be waited for.
const BRIEF: Duration = Duration::from_millis(20);

const REGISTERS: u8 = 2;
const TABLE: u8 = 4;
const MEMORY: usize = 0x1000;

const MESSAGE: MsixMessage = MsixMessage {
    address: 0xfee0_1000,
    data: 0x41,
};

/// A service with a function of two registers and two vectors. It notes the bytes that a VMM writes behind its registers, raises
/// vector 1 for the byte 0xee, and adds a doorbell for the byte 0xd0 with an offset behind it.
struct Service {
    socket: Socket,
    space: [u8; 256],
    written: Vec<u8>,
    signals: Vec<OwnedFd>,
    /// Doorbells behind register 2, with their eventfds.
    doorbells: Vec<(u64, OwnedFd)>,
    /// The eventfd by which it signals that these are others.
    changed: Option<OwnedFd>,
    /// It answers so many commands, and then no longer.
    answers: usize,
}

impl Service {
    fn new(stream: UnixStream, answers: usize) -> Self {
        let mut space = [0; 256];
        (space[0x18], space[0x20]) = (0x0c, 0x04);
        space[0x34] = 0x9c;
        // MSI-X of two vectors, whose table is at the beginning of register 4.
        space[0x9c..0xa4].copy_from_slice(&[0x11, 0, 1, 0, TABLE, 0, 0, 0]);
        Self {
            socket: Socket::new(stream).unwrap(),
            space,
            written: Vec::new(),
            signals: Vec::new(),
            doorbells: Vec::new(),
            changed: None,
            answers,
        }
    }

    /// Serves until the device closes the connection. Returns the bytes that were written behind register 2.
    fn run(mut self) -> Vec<u8> {
        while let Ok(message) = self.socket.receive(Deadline::after(LONG)) {
            if self.answers == 0 {
                continue;
            }
            let header = message.header;
            let answer = self.answer(message);
            if let Some(bytes) = answer {
                self.answers -= 1;
                let is_io_fds = header.command() == Command::DEVICE_GET_REGION_IO_FDS;
                let events = self.doorbells.iter().map(|(_, event)| event.as_fd());
                let fds: Vec<_> = events.filter(|_| is_io_fds && bytes.len() > 32).collect();
                let sent = self.socket.send(&bytes, &fds, Deadline::after(LONG));
                assert!(sent.is_ok());
            }
        }
        self.written
    }

    fn answer(&mut self, mut message: Message<OwnedFd>) -> Option<Vec<u8>> {
        let fds = core::mem::take(&mut message.fds);
        let header = &message.header;
        let to = |parts: &[&[u8]]| Some(reply(header, parts));
        match Request::parse(header, &message.payload, fds.len()).unwrap() {
            Request::Version(version) => Some(version.negotiate(header, 8).unwrap()),
            Request::DeviceInfo => {
                let info = DeviceInfo {
                    flags: U32::new(DeviceInfo::PCI),
                    num_regions: U32::new(9),
                    num_irqs: U32::new(6),
                    ..DeviceInfo::default()
                };
                to(&[info.as_bytes()])
            }
            Request::RegionInfo { index } => {
                let is_there = [REGISTERS, TABLE].map(u32::from).contains(&index);
                let info = RegionInfo {
                    size: U64::new(u64::from(is_there) * 0x1000),
                    ..RegionInfo::default()
                };
                to(&[info.as_bytes()])
            }
            Request::IrqInfo { index } => {
                let info = IrqInfo {
                    count: U32::new(if index == IrqInfo::DOORBELLS { 1 } else { 2 }),
                    ..IrqInfo::default()
                };
                to(&[info.as_bytes()])
            }
            Request::SetIrqs(set) if set.index == IrqInfo::DOORBELLS => {
                self.changed = fds.into_iter().next();
                to(&[])
            }
            Request::RegionIoFds { index, most } => {
                assert_eq!(most, 64);
                let parts = self
                    .doorbells
                    .iter()
                    .filter(|_| index == u32::from(REGISTERS));
                let parts = (0..).zip(parts).map(|(nth, (offset, _))| IoEventFd {
                    offset: U64::new(*offset),
                    fd_index: U32::new(nth),
                    ..IoEventFd::default()
                });
                let parts: Vec<_> = parts.collect();
                let head = RegionIoFds {
                    count: U32::new(u32::try_from(parts.len()).unwrap()),
                    ..RegionIoFds::default()
                };
                to(&[head.as_bytes(), parts.as_bytes()])
            }
            Request::SetIrqs(_) => {
                self.signals = fds;
                to(&[])
            }
            Request::RegionRead(access) => {
                let (at, len) = (place(&access), access.count.get() as usize);
                let bytes = match access.region.get() {
                    7 => self.space.get(at..at + len).unwrap_or_default().to_vec(),
                    _ => vec![u8::try_from(self.written.len()).unwrap(); len],
                };
                if bytes.len() != len {
                    return Some(error_reply(header, Errno::INVAL));
                }
                to(&[access.as_bytes(), &bytes])
            }
            Request::RegionWrite(access, bytes) => {
                self.write(&access, bytes);
                let is_posted = header.flags().contains(HeaderFlags::NO_REPLY);
                assert_eq!(is_posted, access.region.get() != 7);
                if is_posted {
                    return None;
                }
                to(&[access.as_bytes()])
            }
            Request::Reset => {
                self.space[4..6].fill(0);
                self.space[0x19..0x20].fill(0);
                self.space[0x9f] = 0;
                to(&[])
            }
            Request::DmaMap(_) => {
                assert_eq!(fds.len(), 1);
                to(&[])
            }
            other => panic!("{other:?}"),
        }
    }

    /// The driver makes a queue with a doorbell at an offset, or removes all.
    fn change_doorbells(&mut self, offset: u8) {
        match offset {
            0 => self.doorbells.clear(),
            offset => self.doorbells.push((offset.into(), event().unwrap())),
        }
        if let Some(changed) = &self.changed {
            write(changed, &1_u64.to_ne_bytes()).unwrap();
        }
    }

    fn write(&mut self, access: &RegionAccess, bytes: &[u8]) {
        let at = place(access);
        match access.region.get() {
            7 => self.space[at..at + bytes.len()].copy_from_slice(bytes),
            2 => {
                self.written.extend(bytes);
                if let [0xd0, offset] = bytes {
                    self.change_doorbells(*offset);
                }
                if bytes == [0xee] {
                    let signalled = write(&self.signals[1], &1_u64.to_ne_bytes());
                    assert_eq!(signalled, Ok(8));
                }
            }
            _ => {}
        }
    }
}

fn place(access: &RegionAccess) -> usize {
    usize::try_from(access.offset.get()).unwrap()
}

/// A call that a device makes of its VMM.
#[derive(Debug, PartialEq, Eq)]
enum Call {
    Update(Vec<(u16, Option<MsixMessage>)>),
    Trigger(u16, MsixMessage),
}

type Placed = Vec<SignalledDoorbell>;

struct Vmm {
    calls: Mutex<Sender<Call>>,
    doorbells: Mutex<Sender<Placed>>,
    /// The VMM's own eventfd of vector 1.
    own: Option<OwnedFd>,
}

impl Interrupts for Vmm {
    fn update(&self, changes: &[(u16, Option<MsixMessage>)]) {
        let call = Call::Update(changes.to_vec());
        self.calls.lock().unwrap().send(call).unwrap();
    }

    fn notifier(&self, vector: u16) -> Option<OwnedFd> {
        let own = self.own.as_ref().filter(|_| vector == 1)?;
        Some(own.try_clone().unwrap())
    }

    fn trigger(&self, vector: u16, message: MsixMessage) {
        let call = Call::Trigger(vector, message);
        self.calls.lock().unwrap().send(call).unwrap();
    }
}

impl Doorbells for Vmm {
    fn set(&self, doorbells: &[PlacedDoorbell]) {
        panic!("the service has the doorbells {doorbells:?}");
    }

    fn set_signalled(&self, doorbells: &[SignalledDoorbell]) {
        // Not all tests want them.
        let _ = self.doorbells.lock().unwrap().send(doorbells.to_vec());
    }
}

impl Vmm {
    fn new(own: Option<OwnedFd>) -> (Arc<Self>, Receiver<Call>, Receiver<Placed>) {
        let (sender, calls) = channel();
        let (placed, doorbells) = channel();
        let vmm = Self {
            calls: Mutex::new(sender),
            doorbells: Mutex::new(placed),
            own,
        };
        (Arc::new(vmm), calls, doorbells)
    }
}

struct Rig {
    device: Device,
    calls: Receiver<Call>,
    doorbells: Receiver<Placed>,
    service: JoinHandle<Vec<u8>>,
}

fn memory() -> Arc<GuestMemoryMmap> {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, MEMORY as u64).unwrap();
    let file = FileOffset::new(File::from(file), 0);
    let range = (GuestAddress(0), MEMORY, Some(file));
    Arc::new(GuestMemoryMmap::from_ranges_with_files([range]).unwrap())
}

impl Rig {
    fn new(answers: usize, timeout: Duration, own: Option<OwnedFd>) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let service = thread::spawn(move || Service::new(theirs, answers).run());
        let (vmm, calls, doorbells) = Vmm::new(own);
        let socket = Socket::new(ours).unwrap();
        let device = attach_over(socket, timeout, memory(), (vmm.clone(), vmm)).unwrap();
        Self {
            device,
            calls,
            doorbells,
            service,
        }
    }

    fn next_call(&self) -> Call {
        self.calls.recv_timeout(LONG).unwrap()
    }

    /// Sets vector 1 to be signalled by [`MESSAGE`].
    fn set_up_interrupts(&self) {
        let _ = self.device.config_write(4, &[6, 0]);
        let _ = self.device.config_write(0x9e, &[1, 0x80]);
        let entry = [
            &MESSAGE.address.to_le_bytes()[..],
            &MESSAGE.data.to_le_bytes(),
            &[0; 4],
        ];
        self.device.bar_write(TABLE, 16, &entry.concat());
        assert_eq!(self.next_call(), Call::Update(vec![(1, Some(MESSAGE))]));
    }
}

/// Commands until a device is attached: version, device, configuration space, six registers, two types of interrupts, memory,
/// configuration space once more, the eventfd for changes, and the doorbells of two registers.
const ATTACHED: usize = 16;

#[test]
fn a_device_has_the_registers_of_the_function_and_follows_them() {
    let rig = Rig::new(1000, LONG, None);
    let bars = rig.device.bars();
    let found: Vec<_> = bars
        .iter()
        .map(|bar| (bar.index, bar.size, bar.prefetchable))
        .collect();
    assert_eq!(found, [(2, 0x1000, true), (4, 0x1000, false)]);
    assert_eq!(rig.device.vectors(), 2);
    let _ = rig.device.config_write(0x18, &[0x0c, 0, 0x80, 0xfb]);
    let moved = rig.device.config_write(4, &[2, 0]).moved;
    let from_to = |(from, to)| vec![(2, 0x1000, from, to)];
    let of = |moved: Vec<vhca_device::BarMove>| -> Vec<_> {
        let moved = moved.iter();
        moved.map(|it| (it.bar, it.size, it.from, it.to)).collect()
    };
    assert_eq!(of(moved), from_to((None, Some(0xfb80_0000))));
    let reset = rig.device.reset();
    assert_eq!(of(reset.moved), from_to((Some(0xfb80_0000), None)));
    let mut beyond = [0; 4];
    rig.device.config_read(4094, &mut beyond);
    assert_eq!(beyond, [0xff; 4], "the service has no such register");
}

#[test]
fn writes_are_done_in_order_and_before_a_read() {
    let rig = Rig::new(1000, LONG, None);
    for byte in 0..100 {
        rig.device.bar_write(REGISTERS, 0, &[byte]);
    }
    let mut read = [0; 2];
    rig.device.bar_read(REGISTERS, 0, &mut read);
    assert_eq!(read, [100; 2]);
    // No registers, though regions may have these numbers.
    rig.device.bar_write(7, 0, &[1]);
    rig.device.bar_read(7, 0, &mut read);
    assert_eq!(read, [0; 2]);
    assert_eq!(rig.device.statistics().writes, 101);
    let memory = rig.device.detach().unwrap();
    assert!(memory.is_mapped(0, MEMORY));
    assert!(rig.device.detach().is_none());
    rig.device.bar_write(REGISTERS, 0, &[1]);
    rig.device.bar_read(REGISTERS, 0, &mut read);
    assert_eq!(read, [0xff; 2]);
    let written = rig.service.join().unwrap();
    assert!(written.iter().copied().eq(0..100));
}

#[test]
fn a_vector_is_signalled_by_the_message_of_its_entry() {
    let rig = Rig::new(1000, LONG, None);
    rig.set_up_interrupts();
    rig.device.bar_write(REGISTERS, 0, &[0xee]);
    assert_eq!(rig.next_call(), Call::Trigger(1, MESSAGE));
    rig.device.bar_write(TABLE, 28, &[1]);
    assert_eq!(rig.next_call(), Call::Update(vec![(1, None)]));
    // A service would hold it back; it is on its way.
    rig.device.bar_write(REGISTERS, 0, &[0xee]);
    rig.device.bar_write(TABLE, 28, &[0]);
    assert_eq!(rig.next_call(), Call::Update(vec![(1, Some(MESSAGE))]));
    assert_eq!(rig.next_call(), Call::Trigger(1, MESSAGE));
    let _ = rig.device.reset();
    assert_eq!(rig.next_call(), Call::Update(vec![(1, None)]));
    assert_eq!(rig.device.statistics().interrupts, 2);
}

#[test]
fn a_vmm_with_an_eventfd_for_a_vector_has_the_service_signal_it() {
    let own = event().unwrap();
    let rig = Rig::new(1000, LONG, Some(own.try_clone().unwrap()));
    rig.set_up_interrupts();
    rig.device.bar_write(REGISTERS, 0, &[0xee]);
    let far = Timespec::try_from(LONG).unwrap();
    let ready = poll(&mut [PollFd::new(&own, PollFlags::IN)], Some(&far));
    assert_eq!(ready, Ok(1));
    assert!(drain(&own));
    let _ = rig.device.detach();
    assert!(rig.calls.try_recv().is_err(), "the thread signals none");
}

#[test]
fn doorbells_that_come_with_queues_are_passed_on_with_their_eventfds() {
    let rig = Rig::new(1000, LONG, None);
    let next = |at: &[(u64, u64)]| loop {
        let placed = rig.doorbells.recv_timeout(LONG).unwrap();
        let found = placed
            .iter()
            .map(|it| (it.placed.address, it.placed.doorbell.offset));
        if found.eq(at.iter().copied()) {
            break placed;
        }
        assert!(at.len() > placed.len(), "{placed:?}");
    };
    assert!(next(&[]).is_empty());
    rig.device.bar_write(REGISTERS, 0, &[0xd0, 0x14]);
    // The register has no address yet.
    next(&[]);
    let _ = rig
        .device
        .config_write(0x18, &0xfb80_0000_u64.to_le_bytes());
    let _ = rig.device.config_write(4, &[6, 0]);
    let first = next(&[(0xfb80_0014, 0x14)]);
    rig.device.bar_write(REGISTERS, 0, &[0xd0, 0x20]);
    let both = next(&[(0xfb80_0014, 0x14), (0xfb80_0020, 0x20)]);
    assert!(
        Arc::ptr_eq(&first[0].event, &both[0].event),
        "it stays registered"
    );
    let signalled = first[0].placed.doorbell;
    rig.device.ring(signalled);
    rig.device.ring(Doorbell {
        offset: 0x800,
        ..signalled
    });
    assert_eq!(first[0].event.read().unwrap(), 1);
    assert_eq!(rig.device.statistics().rings, 1);
    rig.device.bar_write(REGISTERS, 0, &[0xd0, 0]);
    next(&[]);
    rig.device.bar_write(REGISTERS, 0, &[0xd0, 0x30]);
    next(&[(0xfb80_0030, 0x30)]);
    let _ = rig.device.detach();
    next(&[]);
}

#[test]
fn a_service_that_hangs_ends_the_device_in_time() {
    let rig = Rig::new(ATTACHED, SHORT, None);
    let (failed, failure) = channel();
    let again = failed.clone();
    rig.device
        .on_failure(move |reason| failed.send(reason).unwrap());
    let mut read = [0; 4];
    rig.device.config_read(0, &mut read);
    assert_eq!(read, [0xff; 4]);
    let reason = failure.recv_timeout(LONG).unwrap();
    let reason = reason.downcast_ref::<LinkError>();
    assert!(matches!(reason, Some(LinkError::TimedOut(SHORT))));
    rig.device
        .on_failure(move |reason| again.send(reason).unwrap());
    assert!(failure.try_recv().is_ok(), "it is called at once");
    assert!(rig.device.reset().moved.is_empty());
    assert_eq!(rig.device.statistics().after_detach, 2);
    assert!(rig.device.detach().is_some());
    rig.service.join().unwrap();
}

#[test]
fn a_service_that_ends_is_noticed_without_a_call() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let handle = theirs.try_clone().unwrap();
    let service = thread::spawn(move || Service::new(theirs, 1000).run());
    let (vmm, _calls, _) = Vmm::new(None);
    let socket = Socket::new(ours).unwrap();
    let device = attach_over(socket, LONG, memory(), (vmm.clone(), vmm)).unwrap();
    let (failed, failure) = channel();
    let last = device.clone();
    // A call on failure may end the device.
    device.on_failure(move |reason| {
        let _ = last.detach();
        failed.send(reason.to_string()).unwrap();
    });
    handle.shutdown(std::net::Shutdown::Both).unwrap();
    let reason = failure.recv_timeout(LONG).unwrap();
    assert!(reason.contains("closed"), "{reason}");
    service.join().unwrap();
}

#[test]
fn memory_in_no_file_is_named() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let service = thread::spawn(move || Service::new(theirs, 1000).run());
    let ranges = [(GuestAddress(0x1_0000), MEMORY)];
    let memory: Arc<GuestMemoryMmap> = Arc::new(GuestMemoryMmap::from_ranges(&ranges).unwrap());
    memory.write_obj(1_u8, GuestAddress(0x1_0000)).unwrap();
    let (vmm, _calls, _) = Vmm::new(None);
    let attached = attach_over(Socket::new(ours).unwrap(), LONG, memory, (vmm.clone(), vmm));
    let error = attached.unwrap_err();
    let is_named = matches!(
        error,
        AttachError::NoFile {
            address: 0x1_0000,
            size: 0x1000
        }
    );
    assert!(is_named, "{error}");
    service.join().unwrap();
}

/// Answers each command with other bytes, as the sender of a reply if `is_reply`.
fn babble(stream: UnixStream, answers: Vec<Vec<u8>>, is_reply: bool) {
    let mut socket = Socket::new(stream).unwrap();
    for bytes in answers {
        let deadline = Deadline::after(LONG);
        let Ok(message) = socket.receive(deadline) else {
            return;
        };
        let bytes = match is_reply {
            true => reply(&message.header, &[&bytes]),
            false => bytes,
        };
        let _ = socket.send(&bytes, &[], deadline);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_service_that_answers_anything_ends_in_an_error_and_no_panic(
        answers in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..16),
        is_agreed in any::<bool>(),
        is_reply in any::<bool>(),
    ) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut answers = answers;
        if is_agreed {
            answers.insert(0, vec![0; 4]);
        }
        let service = thread::spawn(move || babble(theirs, answers, is_reply));
        let (vmm, _calls, _) = Vmm::new(None);
        let attached = attach_over(Socket::new(ours).unwrap(), BRIEF, memory(), (vmm.clone(), vmm));
        prop_assert!(attached.is_err());
        service.join().unwrap();
    }
}
