//! Attacks by hosts behind trunks. The service trusts such a host as little as a guest.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration as WallDuration, Instant as WallInstant};

use emulated_hca::Frame;
use ib_trunk::{Session, SessionEvent};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::{Mad, MadHeader, Method, MgmtClass};
use ib_wire::packet::UdFrame;
use ib_wire::smp::{PortInfo, SmpAttribute};
use ib_wire::{Lid, PKey, Psn, QKey, Qpn, Sl, Vl};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhca_trunk::{Carrier, RingParts, Security, Signals};

use super::attacks::note;
use super::victims::Trouble;
use crate::live::far_end;

/// Time without a byte after which a connection is over.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Time for the service's hello.
const PATIENCE: WallDuration = WallDuration::from_secs(2);

/// Longest sleep of an attacker between two turns.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

/// Turns of a connection at most, before the next one begins.
const TURNS: usize = 2000;

/// Returns the options of a service that has trunks in the folder of its VFs' sockets.
pub(super) fn options(folder: &Path) -> [String; 4] {
    let [stream, queues] = sockets(folder);
    let option = "--trunk".to_owned();
    [
        option.clone(),
        format!("S1=listen:unix:{}", stream.display()),
        option,
        format!("S2=listen:vhost:{}", queues.display()),
    ]
}

/// Returns the sockets of the two trunks.
fn sockets(folder: &Path) -> [PathBuf; 2] {
    ["trunk", "trunk-vhost"].map(|name| folder.join(name))
}

/// One connection.
struct End {
    carrier: Carrier,
    session: Session,
}

impl End {
    fn new(carrier: Result<Carrier, String>) -> Result<Self, Trouble> {
        let site = format!("siege-{}", std::process::id()).parse()?;
        Ok(Self {
            carrier: carrier?,
            session: far_end(site, TIMEOUT),
        })
    }

    /// Connects by a stream. Returns the connection, and another descriptor of its socket.
    fn by_stream(socket: &Path) -> Result<(Self, UnixStream), Trouble> {
        let stream = UnixStream::connect(socket)?;
        stream.set_nonblocking(true)?;
        let other = OwnedFd::from(stream.try_clone()?);
        let carrier = Carrier::new(other, TIMEOUT, &Security::Plain);
        Ok((Self::new(carrier)?, stream))
    }

    /// Takes and sends what there is. Returns `false` once the connection is over.
    fn turn(&mut self) -> bool {
        note();
        let is_up = self.carrier.receive(Instant::ZERO, &mut self.session)
            && self.carrier.transmit(&mut self.session);
        while self.session.poll_crossing(|_| true).is_some() {}
        is_up && !self.session.is_closed()
    }

    /// Exchanges hellos. Returns `false` if the service refuses.
    fn open(&mut self) -> Result<bool, Trouble> {
        let begun = WallInstant::now();
        while self.turn() && begun.elapsed() < PATIENCE {
            while let Some(event) = self.session.poll_event() {
                if let SessionEvent::Opened(_) = event {
                    return Ok(true);
                }
            }
            self.wait(PollFlags::IN)?;
        }
        Ok(false)
    }

    /// Sleeps until the service has sent something or takes more, or [`PAUSE`] is over.
    fn wait(&self, events: PollFlags) -> Result<(), Trouble> {
        let mut ends = [PollFd::new(&self.carrier, events)];
        poll(&mut ends, Some(&PAUSE))?;
        Ok(())
    }
}

/// Sends packets in the names of others and orders to switches, as fast as there is room, and then bytes without a meaning.
pub(super) fn records(folder: &Path) -> Result<(), Trouble> {
    let [socket, _] = sockets(folder);
    let mut random = random();
    loop {
        let (mut end, mut stream) = End::by_stream(&socket)?;
        let mut turns = 0;
        let is_open = end.open()?;
        while is_open && turns < TURNS && end.turn() {
            turns += 1;
            while end.session.has_place(Vl::default()) {
                end.session.send(foreign_datagram(&mut random)?);
            }
            for _ in 0..64 {
                end.session.send(order(&mut random)?);
            }
            end.wait(PollFlags::IN | PollFlags::OUT)?;
        }
        let mut garbage = [0; 4096];
        random.fill_bytes(&mut garbage);
        // The service may have closed the connection, or have no room.
        let _ = stream.write(&garbage);
    }
}

/// Takes the cable out and puts it in without end.
pub(super) fn flaps(folder: &Path) -> Result<(), Trouble> {
    let [socket, _] = sockets(folder);
    loop {
        let (mut end, _stream) = End::by_stream(&socket)?;
        let mut turns = 0;
        let is_open = end.open()?;
        while is_open && turns < TURNS && end.turn() {
            turns += 1;
            end.session.report_port(turns % 2 == 0);
            end.wait(PollFlags::IN | PollFlags::OUT)?;
        }
    }
}

/// Writes random words into the queues and buffers of a connection in shared memory, whose ends both look at them.
pub(super) fn rings(folder: &Path) -> Result<(), Trouble> {
    let [_, socket] = sockets(folder);
    let signals = Signals::new()?;
    let mut random = random();
    loop {
        let Ok(parts) = vhca_trunk::connect(&socket) else {
            // All ports of the switch may have links.
            note();
            continue;
        };
        let (memory, places) = (File::from(parts.memory()?), RingParts::places(&parts));
        let mut end = End::new(Carrier::over_rings(parts, &signals))?;
        let mut turns = 0;
        let is_open = end.open()?;
        while is_open && turns < TURNS && end.turn() {
            turns += 1;
            let word = random.next_u32().to_ne_bytes();
            let [queue, offset] = [random.next_u32(), random.next_u32()];
            let queue = places.get(queue as usize % places.len()).copied();
            // Rings take less than 2 KiB, and the first buffers follow.
            let at = queue.unwrap_or(0) + u64::from(offset % 0x4000);
            memory.write_all_at(&word, at)?;
        }
    }
}

fn random() -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(std::process::id().into())
}

/// Returns a datagram from any LID to any other, for QP1.
fn foreign_datagram(random: &mut ChaCha8Rng) -> Result<Frame, Trouble> {
    let lid = |bits: u32| Lid::new((bits % 64) as u16);
    let frame = UdFrame {
        vl: Vl::default(),
        sl: Sl::default(),
        slid: lid(random.next_u32()),
        dlid: lid(random.next_u32()),
        grh: None,
        pkey: PKey::DEFAULT_FULL,
        dest_qp: Qpn::GSI,
        src_qp: Qpn::GSI,
        qkey: QKey::GSI,
        psn: Psn::default(),
        solicited: false,
        immediate: None,
        payload: &[0; 256],
    };
    let mut bytes = [0; 512];
    let length = frame
        .write(&mut bytes)
        .map_err(|error| format!("{error:?}"))?;
    Ok(Frame::new(bytes.get(..length).unwrap_or_default()))
}

/// Returns an order to a port to take another LID, by a directed route through the switch.
fn order(random: &mut ChaCha8Rng) -> Result<Frame, Trouble> {
    let mut mad = Mad::new(MadHeader::new(
        MgmtClass::SUBN_DIRECTED_ROUTE,
        Method::SET,
        PortInfo::ID,
    ));
    random.fill_bytes(&mut mad.data);
    let lids = [Lid::PERMISSIVE; 2];
    let frame = Frame::of_smp(&mad, lids[0], lids[1], Sl::default());
    frame.ok_or_else(|| "no frame has room for an SMP".into())
}
