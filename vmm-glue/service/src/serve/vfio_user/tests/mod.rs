//! A service with a device of the tests' own, by an independent client of the protocol and by hand.

mod guarded;
mod hostile;
mod succession;
mod unshared;

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use hca_api::{AsyncEvent, Hca, HcaEvent};
use ib_vtime::Duration;
use ib_wire::Guid;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vf_pci::{Bar, PciEvent, PciFunction};
use vf_tunnel::VfId;
use vfio_user::Client as Peer;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::serve::inventory::NamedVf;
use crate::serve::options::Options;
use crate::serve::service::Service;
use crate::serve::topology::TopologySpec;
use vhca::world::vf_spec;
use vhca::{RunEnd, Runner, StopHandle};
use vhca_vfio_user::codec::{Command, DmaMap, DmaUnmap, Header, HeaderFlags, IrqSet, RegionAccess};

/// A device whose registers do what the tests need. In BAR 2 a write to 0 raises the vector that is written, one
/// to 8 copies 64 bytes of the guest's memory from the address that is written to 4096 behind it, and one to 16 is
/// kept, as if a driver had set the device up; what is kept, how often the VF was reset, and whether the last copy was done is read at 16, 24 and 32.
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

    fn has_driver(&self) -> bool {
        self.kept != [0; 8]
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

fn service(folder: &Path, made: fn(Lab) -> Service, patience: Patience) -> Service {
    let options = Options {
        topology: TopologySpec::Single,
        vfs: 1,
        ..Options::default()
    };
    let mut lab = Lab::build(&options, 1).unwrap();
    let host = lab.inventory.pf_hosts().next().unwrap().clone();
    let memory = vhca_vfio_user::GuestMemory::default().with_notice(lab.guard_notice.clone());
    let mut spec = vf_spec(Guid::new(0x0014_0500_0000_0001));
    spec.memory = Box::new(memory.clone());
    lab.world_mut().add_idle_vf(host.id, VF, spec).unwrap();
    lab.offer(&host.name, host.id, VF, memory, Box::<Board>::default())
        .unwrap();
    let sockets = VfioUserSockets::claim(folder, &mut lab, Listeners::default()).unwrap();
    let sockets = sockets.with_patience(patience);
    let mut service = made(lab);
    service.add_way_in(sockets);
    service
}

impl Served {
    fn new() -> Self {
        Self::with_patience(Patience::default())
    }

    fn with_patience(patience: Patience) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let (jobs, waiting) = channel::<Job>();
        let (told, handle) = channel();
        let thread = std::thread::spawn(move || {
            let mut runner = Runner::new(service(&path, Service::new, patience)).unwrap();
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
        assert_eq!(self.try_send_with(bytes, fds), Ok(bytes.len()));
    }

    fn try_send_with(&mut self, bytes: &[u8], fds: &[&OwnedFd]) -> rustix::io::Result<usize> {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        let parts = [IoSlice::new(bytes)];
        sendmsg(&self.socket, &parts, &mut ancillary, SendFlags::empty())
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
fn an_unmap_tells_how_many_bytes_it_took_as_the_kernels_vfio_does() {
    let served = Served::new();
    let mut raw = Raw::greeted(&served);
    let file = memfd(0x4000);
    for address in [0x1000, 0x2000, 0x8000] {
        let map = DmaMap {
            argsz: U32::new(32),
            flags: U32::new(3),
            address: U64::new(address),
            size: U64::new(0x1000),
            ..DmaMap::default()
        };
        raw.send_with(&message(1, Command::DMA_MAP, map.as_bytes()), &[&file]);
        assert_eq!(raw.receive().unwrap().0.error.get(), 0);
    }
    let mut unmap = |flags, address, size| {
        let unmap = DmaUnmap {
            argsz: U32::new(24),
            flags: U32::new(flags),
            address: U64::new(address),
            size: U64::new(size),
        };
        let (reply, payload) = raw.call(Command::DMA_UNMAP, unmap.as_bytes()).unwrap();
        let unmapped = DmaUnmap::read_from_bytes(&payload).map(|unmap| unmap.size.get());
        (reply.error.get(), unmapped.ok())
    };
    assert_eq!(
        unmap(0, 0x10_0000, 0x1000),
        (0, Some(0)),
        "nothing is there"
    );
    assert_eq!(unmap(0, 0x1000, 0x800), (22, None), "a part");
    assert_eq!(unmap(0, 0, 0x4000), (0, Some(0x2000)));
    assert_eq!(unmap(0, 0, 0), (22, None), "no range");
    assert_eq!(unmap(2, 0, 0x1000), (22, None), "all, and a range");
    assert_eq!(unmap(8, 0, 0x1000), (22, None), "no such flag");
    assert_eq!(unmap(2, 0, 0), (0, Some(0x1000)), "all");
    assert_eq!(unmap(2, 0, 0), (0, Some(0)), "all of nothing");
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
fn why_and_show_tell_what_is_missing() {
    let served = Served::new();
    let code = || {
        served.ask(|service| {
            let lab = service.lab();
            let host = lab.inventory.pf_hosts().next().unwrap();
            let vf = NamedVf {
                host_name: host.name.clone(),
                host: host.id,
                vf: VF,
            };
            let offer = lab.offer_of(vf.host.vf(vf.vf))?;
            let fault = offer.why_unused("host/2", lab.world().now());
            fault.map(|fault| fault.code())
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
    assert_eq!(code(), Some("driver_lost_track"));
    peer.region_write(2, 16, &[1]).unwrap();
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

#[test]
fn hosts_whose_names_differ_in_odd_characters_have_sockets_of_different_names() {
    let names = ["a b", "a/b", "a_b", "a%20b", "a\u{e9}", "a\u{e8}", ".."];
    let options = Options {
        vfs: 1,
        ..Options::default()
    };
    let lab = Lab::build(&options, 1).unwrap();
    let at = lab.inventory.pf_hosts().next().unwrap().id.vf(VF);
    let called = |name: &str| {
        let memory = vhca_vfio_user::GuestMemory::default().with_notice(lab.guard_notice.clone());
        Seat::new(at, VF, name.to_owned(), memory).file_name()
    };
    let expected = [
        "a%20b", "a%2fb", "a_b", "a%2520b", "a%c3%a9", "a%c3%a8", "..",
    ];
    assert_eq!(
        names.map(called),
        expected.map(|name| format!("{name}-vf2.sock"))
    );
}

#[test]
fn a_socket_that_cannot_be_opened_is_tried_again_now_and_then() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        topology: TopologySpec::Single,
        vfs: 2,
        ..Options::default()
    };
    let mut lab = Lab::build(&options, 1).unwrap();
    let mut sockets =
        VfioUserSockets::claim(folder.path(), &mut lab, Listeners::default()).unwrap();
    let host = lab.inventory.pf_hosts().next().unwrap().clone();
    let vf = VfId::new(1).unwrap();
    let memory = vhca_vfio_user::GuestMemory::default().with_notice(lab.guard_notice.clone());
    lab.offer(&host.name, host.id, vf, memory, Box::<Board>::default())
        .unwrap();
    let name = lab.seats().next().unwrap().file_name();
    let in_the_way = folder.path().join(name);
    std::fs::write(&in_the_way, "").unwrap();

    let mut watches = vhca::watch::Watches::new();
    let (mut stop, mut lost, mut announcements) = (false, None, Default::default());
    let mut turn = Turn {
        is_virtual: true,
        receiver: None,
        lanes: &mut Default::default(),
        now: Instant::ZERO,
        lab: &mut lab,
        watches: watches.tagged(0),
        stop: &mut stop,
        lost: &mut lost,
        announcements: &mut announcements,
    };
    sockets.flush(&mut turn);
    let again = Instant::ZERO + REOPENING;
    assert_eq!(sockets.poll_timeout(), Some(again));
    std::fs::remove_file(&in_the_way).unwrap();
    turn.now = Instant::ZERO + REOPENING / 2;
    sockets.flush(&mut turn);
    assert_eq!(turn.lab.seats().next().unwrap().socket, None);
    turn.now = again;
    sockets.flush(&mut turn);
    assert_eq!(
        turn.lab.seats().next().unwrap().socket,
        Some(in_the_way.clone())
    );
    assert_eq!(sockets.poll_timeout(), None);
    UnixStream::connect(&in_the_way).unwrap();
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
