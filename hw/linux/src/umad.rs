//! QP1 as umad's files: MADs are written to eight of them and read from all nine.
//!
//! Each of the eight has one agent without a class: it sends MADs of every class, RMPP packets among them since it names no version
//! of RMPP, and is given the answers. The ninth has the agents for requests of others.

use std::collections::VecDeque;

use ib_endpoint::MadAddress;
use ib_vtime::{Duration, Instant};
use ib_wire::mad::{MAD_SIZE, Mad};
use linux_abi::Errno;
use umad_link::{HEADER_SIZE, UmadHeader};
use zerocopy::IntoBytes;

use crate::transactions::{SENDERS, Transactions, Way};

/// The file with the agents for requests of others.
pub const UNSOLICITED: usize = SENDERS;

/// Files of a port.
pub const FILES: usize = SENDERS + 1;

/// Number of the agent in each file that MADs are written to: its first.
const AGENT: u32 = 0;

/// Room for a MAD of Omni-Path, whose read would fail again and again with less.
const LONGEST: usize = 2048;

/// Pause before a write that was refused is tried again.
const PAUSE: Duration = Duration::from_millis(1);

/// Tries of a write.
const TRIES: u8 = 20;

/// Writes that wait to be tried again.
const MAX_HELD: usize = 1024;

/// The files by which a port of a Linux HCA is reached. No call waits.
pub trait PortFiles {
    /// Writes a packet, header and MAD, to a umad file.
    ///
    /// # Errors
    /// As `ib_umad_write`; [`Errno::EIO`] once the device is gone.
    fn write(&mut self, file: usize, packet: &[u8]) -> Result<(), Errno>;

    /// Reads a packet, header and MAD, from a umad file. Returns its length.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if there is none; [`Errno::EIO`] once the device is gone.
    fn read(&mut self, file: usize, packet: &mut [u8]) -> Result<usize, Errno>;

    /// Returns the text of a file of sysfs by its path below the folder of the port, as it is now. `None` if there is no such file.
    fn attribute(&self, path: &str) -> Option<String>;
}

/// Numbers of MADs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UmadCounters {
    /// MADs written.
    pub sent: u64,
    /// MADs read and passed on.
    pub received: u64,
    /// Requests that came back without an answer.
    pub unanswered: u64,
    /// Requests that were not sent since one with the same id waits for its answer in every file.
    pub repeated: u64,
    /// MADs that umad refused.
    pub refused: u64,
    /// MADs that were read and dropped: answers to nothing that is under way, and packets of other lengths.
    pub unexpected: u64,
    /// MADs that were dropped since no receive was posted.
    pub overrun: u64,
}

#[derive(Debug)]
struct Held {
    file: usize,
    packet: [u8; HEADER_SIZE + MAD_SIZE],
    /// An answer is expected.
    is_request: bool,
    tries: u8,
}

/// QP1.
#[derive(Debug)]
pub(crate) struct Umad {
    transactions: Transactions,
    held: VecDeque<Held>,
    ready: [bool; FILES],
    /// The file that is read next if it is ready.
    next: usize,
    is_gone: bool,
    pub(crate) counters: UmadCounters,
}

impl Umad {
    /// Makes a QP1 without anything under way. Requests wait for their answers for so long.
    pub(crate) fn new(lifetime: Duration) -> Self {
        Self {
            transactions: Transactions::new(lifetime),
            held: VecDeque::new(),
            // A file may have packets from before the first poll.
            ready: [true; FILES],
            next: 0,
            is_gone: false,
            counters: UmadCounters::default(),
        }
    }

    /// Sends a MAD.
    pub(crate) fn send(
        &mut self,
        now: Instant,
        files: &mut dyn PortFiles,
        to: &MadAddress,
        mad: &Mad,
    ) {
        let Some(Way { file, timeout_ms }) = self.transactions.send(now, mad) else {
            self.counters.repeated += 1;
            return;
        };
        let mut packet = [0; HEADER_SIZE + MAD_SIZE];
        let (header, bytes) = packet.split_at_mut(HEADER_SIZE);
        header.copy_from_slice(UmadHeader::to_send(AGENT, timeout_ms, to).as_bytes());
        bytes.copy_from_slice(mad.as_bytes());
        self.write(
            files,
            Held {
                file,
                packet,
                is_request: timeout_ms != 0,
                tries: TRIES,
            },
        );
    }

    /// Takes note that a file can be read.
    pub(crate) fn set_ready(&mut self, file: usize) {
        if let Some(ready) = self.ready.get_mut(file) {
            *ready = true;
        }
    }

    /// Forgets transactions that are over and tries held writes again.
    pub(crate) fn handle_timeout(&mut self, now: Instant, files: &mut dyn PortFiles) {
        self.transactions.expire(now);
        for held in std::mem::take(&mut self.held) {
            self.write(files, held);
        }
    }

    /// Returns the latest time of the next [`Self::handle_timeout`], if it was called at `now`. Expired transactions can wait.
    pub(crate) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        (!self.held.is_empty()).then(|| now + PAUSE)
    }

    /// Returns `true` if a file may have a packet to read.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.contains(&true)
    }

    /// Returns `true` if the device is gone.
    pub(crate) const fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Reads one packet. Returns `None` if no file has one or it was nothing to pass on.
    pub(crate) fn receive(&mut self, files: &mut dyn PortFiles) -> Option<(MadAddress, Mad)> {
        let mut turns = (self.next..).map(|turn| turn % FILES).take(FILES);
        let file = turns.find(|file| self.ready[*file])?;
        self.next = (file + 1) % FILES;
        let mut packet = [0; HEADER_SIZE + LONGEST];
        let length = match files.read(file, &mut packet) {
            Ok(length) => length,
            Err(error) => {
                self.ready[file] = false;
                self.is_gone |= error == Errno::EIO;
                return None;
            }
        };
        let received = packet.get(..length).and_then(|packet| {
            let header = UmadHeader::read(packet, HEADER_SIZE)?;
            let mut mad = Mad::default();
            let bytes = packet.get(HEADER_SIZE..)?;
            let room = mad.as_mut_bytes().get_mut(..bytes.len())?;
            room.copy_from_slice(bytes);
            Some((header, mad, bytes.len()))
        });
        let Some((header, mut mad, length)) = received else {
            self.counters.unexpected += 1;
            return None;
        };
        let status = header.status.get();
        if status != 0 {
            // The kernel returns the start of the request.
            self.transactions.returned(file, &mad);
            match status == Errno::ETIMEDOUT.to_u32() {
                true => self.counters.unanswered += 1,
                false => self.counters.refused += 1,
            }
            return None;
        }
        if length != MAD_SIZE || !self.transactions.receive(file, &mut mad) {
            self.counters.unexpected += 1;
            return None;
        }
        self.counters.received += 1;
        Some((header.address(), mad))
    }

    fn write(&mut self, files: &mut dyn PortFiles, mut held: Held) {
        match files.write(held.file, &held.packet) {
            Ok(()) => self.counters.sent += 1,
            // One like it that needs no answer, or whose answer was read just now, may not be out of the way yet.
            Err(Errno::EINVAL | Errno::EAGAIN | Errno::ENOMEM | Errno::EINTR)
                if held.tries > 1 && self.held.len() < MAX_HELD =>
            {
                held.tries -= 1;
                self.held.push_back(held);
            }
            Err(error) => {
                self.is_gone |= error == Errno::EIO;
                self.counters.refused += 1;
                let mad = Mad::from_bytes(&held.packet[HEADER_SIZE..]);
                if let Some(mad) = mad.filter(|_| held.is_request) {
                    self.transactions.returned(held.file, &mad);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::Lid;
    use ib_wire::mad::{AttributeId, Method, MgmtClass};

    use super::*;
    use crate::testing::{FakeFiles, mad, packet};

    const NOW: Instant = Instant::ZERO;

    fn sent(files: &mut FakeFiles, method: Method) -> Umad {
        let mut umad = Umad::new(Duration::from_secs(60));
        let to = MadAddress::gsi(Lid::new(9));
        umad.send(NOW, files, &to, &mad(MgmtClass::SUBN_ADM, method, 5));
        umad
    }

    #[test]
    fn a_write_that_is_refused_for_a_moment_is_tried_again_and_others_are_counted() {
        for (refusals, error, expected) in [
            (3, Errno::EINVAL, (1, 0)),
            (usize::from(TRIES), Errno::EINVAL, (0, 1)),
            (1, Errno::EAGAIN, (1, 0)),
            (1, Errno::EPERM, (0, 1)),
        ] {
            let mut files = FakeFiles {
                refusals: std::iter::repeat_n(error, refusals).collect(),
                ..FakeFiles::default()
            };
            let mut umad = sent(&mut files, Method::GET);
            while umad.poll_timeout(NOW).is_some() {
                umad.handle_timeout(NOW, &mut files);
            }
            let UmadCounters { sent, refused, .. } = umad.counters;
            assert_eq!((sent, refused), expected, "{refusals} times {error}");
            assert_eq!(files.refusals.len(), 0);
            assert!(!umad.is_gone());
        }
    }

    #[test]
    fn requests_have_the_lifetime_of_a_transaction_and_all_else_no_timeout() {
        for (method, timeout_ms) in [
            (Method::GET, 60_000),
            (Method::SET, 60_000),
            (Method::GET_TABLE, 60_000),
            (Method::REPORT, 60_000),
            (Method::SEND, 0),
            (Method::TRAP, 0),
            (Method::GET_RESP, 0),
            (Method::REPORT_RESP, 0),
        ] {
            let mut files = FakeFiles::default();
            sent(&mut files, method);
            let (_, header, written) = files.written[0];
            assert_eq!(header.timeout_ms.get(), timeout_ms, "{method:?}");
            assert_eq!(written.header.method, method);
            assert_eq!(header.address(), MadAddress::gsi(Lid::new(9)));
        }
    }

    #[test]
    fn what_cannot_be_passed_on_is_counted() {
        let mut files = FakeFiles::default();
        let mut umad = sent(&mut files, Method::GET);
        let answer = mad(MgmtClass::SUBN_ADM, Method::GET_RESP, 5);
        let mut other = answer;
        other.header.tid = ib_wire::Tid::new(6);
        let mut returned = packet(&mad(MgmtClass::SUBN_ADM, Method::GET, 5));
        returned[4] = 110;
        returned.truncate(HEADER_SIZE + 24);
        let mut longer = packet(&answer);
        longer.push(0);
        let packets = [
            packet(&other),
            returned,
            packet(&answer),
            longer,
            vec![0; HEADER_SIZE],
            vec![0; 3],
        ];
        files.unread[0] = packets.into();
        while umad.is_ready() {
            assert_eq!(umad.receive(&mut files), None);
        }
        let expected = UmadCounters {
            sent: 1,
            unanswered: 1,
            unexpected: 5,
            ..UmadCounters::default()
        };
        assert_eq!(umad.counters, expected);
        files.unread[UNSOLICITED].push_back(packet(&Mad::new(ib_wire::mad::MadHeader::new(
            MgmtClass::COM_MGT,
            Method::SEND,
            AttributeId::new(0x10),
        ))));
        umad.set_ready(UNSOLICITED);
        assert!(umad.receive(&mut files).is_some());
    }

    #[test]
    fn files_are_read_in_turn() {
        let mut files = FakeFiles::default();
        let mut umad = Umad::new(Duration::from_secs(60));
        for file in [UNSOLICITED, 0] {
            let report = packet(&mad(MgmtClass::SUBN_ADM, Method::REPORT, 5));
            files.unread[file] = vec![report; 9].into();
        }
        for _ in 0..2 * FILES {
            umad.receive(&mut files);
        }
        let left = [0, UNSOLICITED].map(|file| files.unread[file].len());
        assert_eq!(left, [3, 4]);
    }

    #[test]
    fn a_device_that_is_gone_is_noticed_by_a_read_and_by_a_write() {
        let mut files = FakeFiles {
            refusals: [Errno::EIO].into(),
            ..FakeFiles::default()
        };
        assert!(sent(&mut files, Method::GET).is_gone());
        let mut umad = sent(&mut files, Method::GET);
        files.is_gone = true;
        assert_eq!(umad.receive(&mut files), None);
        assert!(umad.is_gone());
    }
}
