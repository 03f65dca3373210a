//! A service with a device of the tests' own, by an independent client of the protocol and by hand.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use hca_api::{AsyncEvent, Hca, HcaEvent};
use ib_vtime::Duration;
use ib_wire::Guid;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vf_proxy::{Bar, PciEvent, PciFunction};
use vf_tunnel::VfId;
use vfio_user::Client as Peer;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::serve::{NamedVf, Options, Service, TopologySpec};
use crate::vfio_user::codec::{Command, DmaMap, Header, HeaderFlags, IrqSet, RegionAccess};
use crate::world::vf_spec;
use crate::{RunEnd, Runner, StopHandle};

/// A device whose registers do what the tests need. In BAR 2 a write to 0 raises the vector that is written, one
/// to 8 copies 64 bytes of the guest's memory from the address that is written to 4096 behind it, and one to 16 is
/// kept; what is kept, how often the VF was reset, and whether the last copy was done is read at 16, 24 and 32.
#[derive(Debug, Default)]
struct Board {
    wanted: Vec<PciEvent>,
    kept: [u8; 8],
    resets: u8,
    copied: u8,
}

const BARS: &[Bar] = &[
    Bar {
        index: 2,
        size: 0x1_0000,
        prefetchable: true,
    },
    Bar {
        index: 4,
        size: 0x1000,
        prefetchable: false,
    },
];

impl PciFunction for Board {
    fn bars(&self) -> &[Bar] {
        BARS
    }

    fn interrupt_vectors(&self) -> u16 {
        3
    }

    fn config_read(&self, offset: u16, out: &mut [u8]) {
        for (byte, at) in out.iter_mut().zip(offset..) {
            *byte = at.to_le_bytes()[0];
        }
    }

    fn config_write(&mut self, _: Instant, _: &mut dyn Hca, _: u16, bytes: &[u8]) {
        self.kept.fill(bytes[0]);
    }

    fn bar_read(&mut self, bar: u8, offset: u64, out: &mut [u8]) {
        out.fill(0);
        let from: &[u8] = match (bar, offset) {
            (2, 16) => &self.kept,
            (2, 24) => &[self.resets],
            (2, 32) => &[self.copied],
            _ => &[],
        };
        let len = from.len().min(out.len());
        out[..len].copy_from_slice(&from[..len]);
    }

    fn bar_write(&mut self, _: Instant, hca: &mut dyn Hca, bar: u8, offset: u64, bytes: &[u8]) {
        match (bar, offset, bytes) {
            (2, 0, [vector, ..]) => self.wanted.push(PciEvent::Interrupt {
                vector: u16::from(*vector),
            }),
            (2, 8, bytes) => {
                let from = u64::from_le_bytes(bytes.try_into().unwrap());
                let mut data = [0; 64];
                let done = hca
                    .dma_read(from, &mut data)
                    .and_then(|()| hca.dma_write(from + 4096, &data));
                self.copied = u8::from(done.is_ok());
            }
            (2, 16, bytes) => self.kept[..bytes.len()].copy_from_slice(bytes),
            _ => {}
        }
    }

    fn handle_hca_event(&mut self, _: Instant, _: &mut dyn Hca, event: &HcaEvent) {
        if *event == HcaEvent::Async(AsyncEvent::FunctionReset) {
            self.resets += 1;
        }
    }

    fn poll(&mut self, _: Instant, _: &mut dyn Hca) -> bool {
        false
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn poll_event(&mut self) -> Option<PciEvent> {
        (!self.wanted.is_empty()).then(|| self.wanted.remove(0))
    }

    fn reset(&mut self, _: Instant, _: &mut dyn Hca) {
        self.kept = [0; 8];
        self.wanted = vec![PciEvent::ResetWanted];
    }
}

type Job = Box<dyn FnOnce(&mut Service) + Send>;

/// A service on a thread of its own, that offers one VF with a [`Board`].
struct Served {
    folder: tempfile::TempDir,
    jobs: Sender<Job>,
    stop: StopHandle,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.stop().unwrap();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

const VF: VfId = VfId::new(2).expect("2 is the number of a VF");

fn service(folder: &Path) -> Service {
    let options = Options {
        topology: TopologySpec::Single,
        vfs: 1,
        ..Options::default()
    };
    let mut lab = Lab::build(&options, 1).unwrap();
    let host = lab.pf_hosts().next().unwrap().clone();
    let memory = crate::vfio_user::GuestMemory::new();
    let mut spec = vf_spec(Guid::new(0x0014_0500_0000_0001));
    spec.memory = Box::new(memory.clone());
    lab.world_mut().add_idle_vf(host.id, VF, spec).unwrap();
    lab.offer(&host.name, host.id, VF, memory, Box::<Board>::default())
        .unwrap();
    let sockets = VfioUserSockets::claim(folder, &mut lab).unwrap();
    let mut service = Service::new(lab);
    service.add_way_in(sockets);
    service
}

impl Served {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let (jobs, waiting) = channel::<Job>();
        let (told, handle) = channel();
        let thread = std::thread::spawn(move || {
            let mut runner = Runner::new(service(&path)).unwrap();
            told.send(runner.stop_handle().unwrap()).unwrap();
            const SLICE: Duration = Duration::from_millis(2);
            while runner.run_until(SLICE, |_| false).unwrap() != RunEnd::Stopped {
                for job in waiting.try_iter() {
                    job(runner.driven().unwrap());
                }
            }
        });
        Self {
            folder,
            jobs,
            stop: handle.recv().unwrap(),
            thread: Some(thread),
        }
    }

    /// Asks the service's own thread something.
    fn ask<T: Send + 'static>(&self, ask: impl FnOnce(&mut Service) -> T + Send + 'static) -> T {
        let (told, answer) = channel();
        let job = move |service: &mut Service| told.send(ask(service)).unwrap();
        self.jobs.send(Box::new(job)).unwrap();
        answer.recv().unwrap()
    }

    fn path(&self) -> PathBuf {
        self.ask(|service| service.lab().seats().next().unwrap().socket.clone())
            .unwrap()
    }

    fn peer(&self) -> Peer {
        Peer::new(&self.path()).unwrap()
    }

    fn raw(&self) -> Raw {
        let socket = UnixStream::connect(self.path()).unwrap();
        let limit = Some(Duration::from_secs(20));
        socket.set_read_timeout(limit).unwrap();
        Raw { socket, id: 0 }
    }

    fn row(&self) -> crate::show::VmmRow {
        self.ask(|service| service.lab().vmm_rows(None).remove(0))
    }

    fn wait_for(&self, mut is_so: impl FnMut(&crate::show::VmmRow) -> bool) {
        let begun = std::time::Instant::now();
        while !is_so(&self.row()) {
            assert!(begun.elapsed().as_secs() < 20, "{:?}", self.row());
        }
    }
}

/// A client that says what it wants.
struct Raw {
    socket: UnixStream,
    id: u16,
}

fn header(id: u16, command: Command, size: usize) -> Header {
    Header {
        id: U16::new(id),
        command: U16::new(command.0),
        size: U32::new(u32::try_from(size).unwrap()),
        ..Header::default()
    }
}

fn message(id: u16, command: Command, payload: &[u8]) -> Vec<u8> {
    let header = header(id, command, 16 + payload.len());
    [header.as_bytes(), payload].concat()
}

const HELLO: &[u8] = b"\0\0\0\0{\"capabilities\":{\"max_msg_fds\":8}}\0";

impl Raw {
    fn greeted(served: &Served) -> Self {
        let mut raw = served.raw();
        let (reply, _) = raw.call(Command::VERSION, HELLO).unwrap();
        assert_eq!(reply.error.get(), 0);
        raw
    }

    fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    fn send_with(&mut self, bytes: &[u8], fds: &[&OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        let parts = [IoSlice::new(bytes)];
        let sent = sendmsg(&self.socket, &parts, &mut ancillary, SendFlags::empty());
        assert_eq!(sent, Ok(bytes.len()));
    }

    /// The next message, `None` if the server hung up.
    fn receive(&mut self) -> Option<(Header, Vec<u8>)> {
        let mut bytes = [0; 16];
        match self.socket.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error)
                if [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset]
                    .contains(&error.kind()) =>
            {
                return None;
            }
            Err(error) => panic!("{error}"),
        }
        let header = Header::read_from_bytes(&bytes).unwrap();
        let mut payload = vec![0; header.size.get() as usize - 16];
        self.socket.read_exact(&mut payload).unwrap();
        Some((header, payload))
    }

    fn call(&mut self, command: Command, payload: &[u8]) -> Option<(Header, Vec<u8>)> {
        self.id += 1;
        self.send(&message(self.id, command, payload));
        let (header, payload) = self.receive()?;
        assert_eq!((header.id.get(), header.command()), (self.id, command));
        assert!(header.flags().contains(HeaderFlags::REPLY));
        Some((header, payload))
    }

    /// The error of a command that must fail.
    fn fails(&mut self, command: Command, payload: &[u8]) -> i32 {
        let (header, payload) = self.call(command, payload).unwrap();
        assert!(header.flags().contains(HeaderFlags::ERROR));
        assert!(payload.is_empty());
        i32::try_from(header.error.get()).unwrap()
    }

    /// Whether the server hangs up without another word.
    fn is_cut_off(&mut self) -> bool {
        self.receive().is_none()
    }
}

fn access(region: u32, offset: u64, count: u32) -> RegionAccess {
    RegionAccess {
        offset: U64::new(offset),
        region: U32::new(region),
        count: U32::new(count),
    }
}

fn memfd(len: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, len).unwrap();
    fd
}

fn pread(fd: &OwnedFd, at: u64) -> [u8; 64] {
    let mut bytes = [0; 64];
    rustix::io::pread(fd, &mut bytes, at).unwrap();
    bytes
}

const MSIX_EVENTFD: u32 = 1 << 2 | 1 << 5;

#[test]
fn an_independent_client_finds_the_device() {
    let served = Served::new();
    let mut peer = served.peer();
    let sizes: Vec<u64> = (0..9)
        .map(|index| peer.region(index).unwrap().size)
        .collect();
    assert_eq!(sizes, [0, 0, 0x1_0000, 0, 0x1000, 0, 0, 4096, 0]);
    assert!(peer.region(2).unwrap().file_offset.is_none());
    let counts = [0, 1, 2, 3, 4].map(|index| peer.get_irq_info(index).unwrap().count);
    assert_eq!(counts, [0, 0, 3, 0, 0]);
    let mut bytes = [0; 4];
    peer.region_read(7, 0x102, &mut bytes).unwrap();
    assert_eq!(bytes, [2, 3, 4, 5]);
    peer.region_write(2, 16, &[1, 2, 3, 4]).unwrap();
    peer.region_read(2, 16, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 3, 4]);
    peer.reset().unwrap();
    peer.region_read(2, 16, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
}

#[test]
fn the_device_reaches_the_memory_that_a_client_maps_until_it_is_unmapped() {
    let served = Served::new();
    let mut peer = served.peer();
    let file = memfd(0x3000);
    rustix::io::pwrite(&file, &[7; 64], 0x1000).unwrap();
    peer.dma_map(0x1000, 0x8000_0000, 0x2000, file.as_raw_fd())
        .unwrap();
    peer.region_write(2, 8, &0x8000_0000_u64.to_le_bytes())
        .unwrap();
    assert_eq!(pread(&file, 0x2000), [7; 64]);
    assert_eq!(served.row().shared, 0x2000);
    let mut copied = [0];
    peer.region_read(2, 32, &mut copied).unwrap();
    assert_eq!(copied, [1]);
    peer.dma_unmap(0x8000_0000, 0x2000).unwrap();
    peer.region_write(2, 8, &0x8000_0000_u64.to_le_bytes())
        .unwrap();
    peer.region_read(2, 32, &mut copied).unwrap();
    assert_eq!(copied, [0], "memory that is gone is not reached");
}

#[test]
fn interrupts_come_by_the_eventfds_that_a_client_sets() {
    let served = Served::new();
    let mut peer = served.peer();
    peer.region_write(2, 0, &[1]).unwrap();
    let signals = [0, 1, 2].map(|_| eventfd(0, EventfdFlags::empty()).unwrap());
    let raw = signals.each_ref().map(AsRawFd::as_raw_fd);
    peer.set_irqs(2, MSIX_EVENTFD, 0, 3, &raw).unwrap();
    let read = |signal: &OwnedFd| {
        let limit = Timespec::try_from(Duration::from_secs(20)).unwrap();
        poll(&mut [PollFd::new(signal, PollFlags::IN)], Some(&limit)).unwrap();
        let mut bytes = [0; 8];
        rustix::io::read(signal, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    };
    assert_eq!(read(&signals[1]), 1, "it waited");
    peer.region_write(2, 0, &[2]).unwrap();
    assert_eq!(read(&signals[2]), 1);
    served.wait_for(|row| row.vectors == 3);
}

#[test]
fn a_second_client_is_told_that_the_vf_is_taken_and_the_first_stays() {
    let served = Served::new();
    let mut peer = served.peer();
    let mut second = served.raw();
    assert_eq!(second.fails(Command::VERSION, HELLO), 16, "EBUSY");
    assert!(second.is_cut_off());
    let mut bytes = [0; 4];
    peer.region_read(7, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [0, 1, 2, 3]);
    assert_eq!((served.row().vmms, served.row().refused), (1, 1));
    drop(peer);
    Raw::greeted(&served);
}

#[test]
fn a_vf_is_as_new_for_the_next_client_wherever_the_one_before_stopped() {
    let served = Served::new();
    let whole = message(
        9,
        Command::REGION_WRITE,
        &[access(2, 16, 4).as_bytes(), &[5; 4]].concat(),
    );
    let file = memfd(0x2000);
    let map = DmaMap {
        argsz: U32::new(32),
        flags: U32::new(3),
        size: U64::new(0x2000),
        ..DmaMap::default()
    };
    for (nth, stop) in [1, 15, 16, 17, whole.len() - 1, whole.len()]
        .into_iter()
        .enumerate()
    {
        let mut raw = Raw::greeted(&served);
        raw.send_with(&message(1, Command::DMA_MAP, map.as_bytes()), &[&file]);
        assert_eq!(raw.receive().unwrap().0.error.get(), 0);
        raw.send(&whole[..stop]);
        drop(raw);
        served.wait_for(|row| row.pid.is_none() && row.shared == 0);
        let mut next = Raw::greeted(&served);
        let (_, reply) = next
            .call(Command::REGION_READ, access(2, 16, 8).as_bytes())
            .unwrap();
        assert_eq!(reply[16..], [0; 8]);
        drop(next);
        served.wait_for(|row| row.pid.is_none() && row.vmms == 2 * (nth as u64 + 1));
    }
    let resets = served.row().resets;
    assert!(resets >= 12, "{resets}");
}

#[test]
fn what_does_not_begin_with_a_version_or_is_no_message_is_cut_off() {
    let served = Served::new();
    let long = header(1, Command::VERSION, 1 << 30);
    let short = header(1, Command::VERSION, 3);
    let odd = Header {
        flags: U32::new(7),
        ..header(1, Command::VERSION, 16)
    };
    for bytes in [
        long.as_bytes(),
        short.as_bytes(),
        odd.as_bytes(),
        b"GET / HTTP/1.1\r\nHost: vhca\r\n\r\n",
        &[0xff; 64],
    ] {
        let mut raw = served.raw();
        raw.send(bytes);
        assert!(raw.is_cut_off(), "{bytes:x?}");
    }
    let first = message(1, Command::DEVICE_RESET, &[]);
    let other_version = message(1, Command::VERSION, b"\x07\0\0\0{}\0");
    let no_json = message(1, Command::VERSION, b"\0\0\0\0{\"capabilities\":\0");
    let too_short = message(1, Command::VERSION, &[0; 3]);
    for bytes in [first, other_version, no_json, too_short] {
        let mut raw = served.raw();
        raw.send(&bytes);
        let (reply, _) = raw.receive().unwrap();
        assert!(reply.flags().contains(HeaderFlags::ERROR), "{bytes:x?}");
        assert!(raw.is_cut_off());
    }
    Raw::greeted(&served);
}

#[test]
fn commands_that_make_no_sense_fail_and_the_client_stays() {
    const INVAL: i32 = 22;
    const UNSUPPORTED: i32 = 95;
    const NO_SUCH: i32 = 38;
    let served = Served::new();
    let mut raw = Raw::greeted(&served);
    assert_eq!(raw.fails(Command::VERSION, HELLO), INVAL);
    assert_eq!(raw.fails(Command::DMA_MAP, &[0; 31]), INVAL);
    assert_eq!(
        raw.fails(Command::DEVICE_GET_INFO, &[0; 16]),
        INVAL,
        "argsz"
    );
    let read = |raw: &mut Raw, region, offset, count| {
        raw.fails(
            Command::REGION_READ,
            access(region, offset, count).as_bytes(),
        )
    };
    assert_eq!(read(&mut raw, 2, 0xfffd, 4), INVAL);
    assert_eq!(read(&mut raw, 2, u64::MAX, 4), INVAL);
    assert_eq!(read(&mut raw, 2, 0, u32::MAX), INVAL);
    assert_eq!(read(&mut raw, 0, 0, 1), INVAL);
    assert_eq!(read(&mut raw, 9, 0, 1), INVAL);
    let lying = [access(2, 16, 400).as_bytes(), &[1; 4]].concat();
    assert_eq!(raw.fails(Command::REGION_WRITE, &lying), INVAL);
    let many = u64::MAX.to_le_bytes();
    assert_eq!(raw.fails(Command::REGION_WRITE_MULTI, &many), INVAL);
    let set = IrqSet {
        flags: U32::new(0x3f),
        ..IrqSet::default()
    };
    assert_eq!(raw.fails(Command::DEVICE_SET_IRQS, set.as_bytes()), INVAL);
    let feature = [0; 8];
    assert_eq!(raw.fails(Command::DEVICE_FEATURE, &feature), UNSUPPORTED);
    assert_eq!(raw.fails(Command::MIG_DATA_READ, &feature), UNSUPPORTED);
    assert_eq!(raw.fails(Command::DIRTY_PAGES, &feature), UNSUPPORTED);
    let io_fds = [16_u32, 0, 2, 0].map(U32::new);
    let refused = raw.fails(Command::DEVICE_GET_REGION_IO_FDS, io_fds.as_bytes());
    assert_eq!(refused, UNSUPPORTED);
    assert_eq!(raw.fails(Command::DMA_READ, &feature), NO_SUCH);
    assert_eq!(raw.fails(Command(4711), &feature), NO_SUCH);
    raw.send_with(&message(99, Command::DEVICE_RESET, &[]), &[&memfd(4096)]);
    assert_eq!(
        raw.receive().unwrap().0.error.get(),
        22,
        "a descriptor too many"
    );
    let (ok, _) = raw.call(Command::DEVICE_RESET, &[]).unwrap();
    assert_eq!(ok.error.get(), 0);
}

#[test]
fn a_reply_that_nobody_asked_for_ends_the_connection() {
    let served = Served::new();
    let mut raw = Raw::greeted(&served);
    let stray = Header {
        flags: U32::new(HeaderFlags::REPLY.bits()),
        ..header(5, Command::DMA_READ, 16)
    };
    raw.send(stray.as_bytes());
    assert!(raw.is_cut_off());
}

#[test]
fn posted_writes_take_place_in_order_and_are_not_answered() {
    let served = Served::new();
    let mut raw = Raw::greeted(&served);
    for value in 0..200 {
        let payload = [access(2, 16, 1).as_bytes(), &[value]].concat();
        let mut bytes = message(7, Command::REGION_WRITE, &payload);
        bytes[8] = 0x10;
        raw.send(&bytes);
    }
    let (_, reply) = raw
        .call(Command::REGION_READ, access(2, 16, 1).as_bytes())
        .unwrap();
    assert_eq!(reply[16..], [199]);
    let one = |offset: u64, value: u8| [access(2, offset, 1).as_bytes(), &[value; 8]].concat();
    let many = [&2_u64.to_le_bytes()[..], &one(16, 1), &one(16, 2)].concat();
    let (_, reply) = raw.call(Command::REGION_WRITE_MULTI, &many).unwrap();
    assert_eq!(reply, 2_u64.to_le_bytes());
    let (_, reply) = raw
        .call(Command::REGION_READ, access(2, 16, 1).as_bytes())
        .unwrap();
    assert_eq!(reply[16..], [2]);
}

#[test]
fn descriptors_belong_to_the_message_that_they_came_with_however_it_is_cut() {
    let served = Served::new();
    let mut raw = Raw::greeted(&served);
    let (first, second) = (memfd(0x2000), memfd(0x2000));
    rustix::io::pwrite(&first, &[1; 64], 0).unwrap();
    rustix::io::pwrite(&second, &[2; 64], 0).unwrap();
    let map = |address: u64| {
        let map = DmaMap {
            argsz: U32::new(32),
            flags: U32::new(3),
            address: U64::new(address),
            size: U64::new(0x2000),
            ..DmaMap::default()
        };
        message(1, Command::DMA_MAP, map.as_bytes())
    };
    // Both wait in the socket: the second's first byte comes right behind the first's last one.
    let bytes = map(0x10_0000);
    raw.send(&bytes[..20]);
    raw.send_with(&bytes[20..], &[&first]);
    raw.send_with(&map(0x20_0000), &[&second]);
    for _ in 0..2 {
        assert_eq!(raw.receive().unwrap().0.error.get(), 0);
    }
    for address in [0x10_0000_u64, 0x20_0000] {
        let payload = [access(2, 8, 8).as_bytes(), &address.to_le_bytes()].concat();
        raw.call(Command::REGION_WRITE, &payload).unwrap();
    }
    assert_eq!(pread(&first, 4096), [1; 64]);
    assert_eq!(pread(&second, 4096), [2; 64]);
}

#[test]
fn more_descriptors_than_the_protocol_has_end_the_connection() {
    let served = Served::new();
    let mut raw = Raw::greeted(&served);
    let file = memfd(4096);
    let bytes = message(1, Command::DEVICE_SET_IRQS, &[0; 200]);
    raw.send_with(&bytes[..100], &[&file; 100]);
    raw.send_with(&bytes[100..], &[&file; 100]);
    assert!(raw.is_cut_off());
    let mut raw = Raw::greeted(&served);
    raw.send_with(&bytes[..10], &[&file; 250]);
    assert!(raw.is_cut_off());
}

#[test]
fn a_client_that_takes_no_replies_is_heard_no_more_and_others_are() {
    let served = Served::new();
    let mut raw = Raw::greeted(&served);
    raw.socket.set_nonblocking(true).unwrap();
    let ask = message(1, Command::REGION_READ, access(7, 0, 4096).as_bytes());
    let mut sent: usize = 0;
    let begun = std::time::Instant::now();
    let mut quiet_since = begun;
    while quiet_since.elapsed().as_millis() < 300 {
        match raw.socket.write(&ask) {
            Ok(count) => {
                sent += count;
                quiet_since = std::time::Instant::now();
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        assert!(begun.elapsed().as_secs() < 60, "{sent} bytes were taken");
    }
    // The service lives, and this VF's socket answers.
    let mut second = served.raw();
    assert_eq!(second.fails(Command::VERSION, HELLO), 16);
    raw.socket.set_nonblocking(false).unwrap();
    let mut replies = 0;
    while replies < sent / ask.len() {
        let (header, payload) = raw.receive().unwrap();
        assert_eq!((header.error.get(), payload.len()), (0, 16 + 4096));
        replies += 1;
    }
}

#[test]
fn why_and_show_tell_what_is_missing() {
    let served = Served::new();
    let code = || {
        served.ask(|service| {
            let lab = service.lab();
            let host = lab.pf_hosts().next().unwrap();
            let vf = NamedVf {
                host_name: host.name.clone(),
                host: host.id,
                vf: VF,
            };
            lab.why_unused(&vf).map(|fault| fault.code)
        })
    };
    assert_eq!(code(), Some("no_vmm"));
    let mut peer = served.peer();
    assert_eq!(code(), Some("no_driver"));
    assert_eq!(served.row().pid, Some(std::process::id()));
    let signal = eventfd(0, EventfdFlags::empty()).unwrap();
    let raw = [signal.as_raw_fd()];
    peer.set_irqs(2, MSIX_EVENTFD, 0, 1, &raw).unwrap();
    served.wait_for(|row| row.vectors == 1);
    assert_eq!(code(), None);
    drop(peer);
    let mut raw = Raw::greeted(&served);
    let map = DmaMap {
        argsz: U32::new(32),
        flags: U32::new(3),
        size: U64::new(0x2000),
        ..DmaMap::default()
    };
    raw.call(Command::DMA_MAP, map.as_bytes()).unwrap();
    assert_eq!(code(), Some("memory_not_shared"));
    assert_eq!(served.row().unshared, 0x2000);
}

/// A client whose memory is not shared, with a range of it from 0 on.
fn unsharing(served: &Served) -> Raw {
    let mut raw = Raw::greeted(served);
    let map = DmaMap {
        argsz: U32::new(32),
        flags: U32::new(3),
        size: U64::new(0x1_0000),
        ..DmaMap::default()
    };
    raw.call(Command::DMA_MAP, map.as_bytes()).unwrap();
    raw
}

fn answer(to: &Header, parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = message(to.id.get(), to.command(), &parts.concat());
    bytes[8] = 1;
    bytes
}

#[test]
fn memory_that_is_not_shared_is_reached_by_messages_between_others() {
    let served = Served::new();
    let mut raw = unsharing(&served);
    let copy = [access(2, 8, 8).as_bytes(), &0x1000_u64.to_le_bytes()].concat();
    raw.send(&message(70, Command::REGION_WRITE, &copy));
    let (read, asked) = raw.receive().unwrap();
    assert_eq!(read.command(), Command::DMA_READ);
    assert_eq!(asked, [0x1000_u64, 64].map(u64::to_le_bytes).concat());
    // Another command comes first, as from another vCPU.
    let look = message(71, Command::REGION_READ, access(7, 0, 2).as_bytes());
    raw.send(&look);
    raw.send(&answer(&read, &[&asked, &[9; 64]]));
    let (write, asked) = raw.receive().unwrap();
    assert_eq!(write.command(), Command::DMA_WRITE);
    assert_eq!(asked[..16], [0x2000_u64, 64].map(u64::to_le_bytes).concat());
    assert_eq!(asked[16..], [9; 64]);
    raw.send(&answer(&write, &[&asked[..12]]));
    let (done, _) = raw.receive().unwrap();
    assert_eq!((done.id.get(), done.error.get()), (70, 0));
    let (looked, bytes) = raw.receive().unwrap();
    assert_eq!((looked.id.get(), &bytes[16..]), (71, &[0, 1][..]));
    let (_, copied) = raw
        .call(Command::REGION_READ, access(2, 32, 1).as_bytes())
        .unwrap();
    assert_eq!(copied[16..], [1]);
}

#[test]
fn a_client_that_does_not_answer_for_its_memory_fails_accesses_and_stays() {
    let served = Served::new();
    let mut raw = unsharing(&served);
    let copy = [access(2, 8, 8).as_bytes(), &0x1000_u64.to_le_bytes()].concat();
    raw.send(&message(70, Command::REGION_WRITE, &copy));
    let (read, asked) = raw.receive().unwrap();
    let (done, _) = raw.receive().unwrap();
    assert_eq!(done.id.get(), 70);
    raw.send(&answer(&read, &[&asked, &[9; 64]]));
    let (_, copied) = raw
        .call(Command::REGION_READ, access(2, 32, 1).as_bytes())
        .unwrap();
    assert_eq!(copied[16..], [0]);
    let refused = Header {
        error: U32::new(14),
        flags: U32::new(0x21),
        ..header(0, Command::DMA_READ, 16)
    };
    raw.send(&message(72, Command::REGION_WRITE, &copy));
    let (read, _) = raw.receive().unwrap();
    let refused = Header {
        id: read.id,
        ..refused
    };
    raw.send(refused.as_bytes());
    let (done, _) = raw.receive().unwrap();
    assert_eq!((done.id.get(), done.error.get()), (72, 0));
}

#[test]
fn a_client_that_goes_while_it_is_asked_for_memory_leaves_the_vf_free() {
    let served = Served::new();
    let mut raw = unsharing(&served);
    let copy = [access(2, 8, 8).as_bytes(), &0x1000_u64.to_le_bytes()].concat();
    raw.send(&message(70, Command::REGION_WRITE, &copy));
    raw.receive().unwrap();
    drop(raw);
    served.wait_for(|row| row.pid.is_none());
    Raw::greeted(&served);
}

#[test]
fn a_socket_is_named_after_the_vf_and_goes_with_the_service() {
    let served = Served::new();
    let path = served.path();
    assert!(path.starts_with(served.folder.path()));
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(name.ends_with("-vf2.sock"), "{name}");
    let folder = served.folder.path().to_owned();
    drop(served);
    assert!(!path.exists());
    assert!(!folder.exists());
}
