//! Channels of a program: records of events go to it, or wait until it has read others.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ib_vtime::{Duration, Instant};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use verbs_link::{Budget, CHANNEL_BUFFER, ChannelId, Charge, EventRecord, PutBackLimit};
use vhca_receiver::Wakeups;

/// The channels of a program.
#[derive(Debug)]
pub(super) struct Channels {
    budget: Budget,
    wakeups: Wakeups,
    open: BTreeMap<ChannelId, OpenChannel>,
    put_back: PutBackLimit,
    /// Records that wait.
    waiting: usize,
    /// Time of the next attempt at channels that are full, and the pause before it.
    retry: Option<(Instant, Duration)>,
}

/// The service's end of a channel.
#[derive(Debug)]
struct OpenChannel {
    socket: Arc<OwnedFd>,
    /// Records for which there was no room, charged to the budget.
    backlog: VecDeque<(Vec<u8>, Charge)>,
}

/// Pause before the first attempt to pass on what found no room, and the longest one.
const SOON: Duration = Duration::from_millis(1);
const LATE: Duration = Duration::from_millis(128);

/// Records that wait for a program at most. One that reads none loses the later ones.
const MAX_WAITING: usize = 1 << 16;

impl Channels {
    /// Returns no channels. Records that wait are charged to a budget.
    pub(super) fn new(budget: Budget, wakeups: Wakeups) -> Self {
        Self {
            budget,
            wakeups,
            open: BTreeMap::new(),
            put_back: PutBackLimit::default(),
            waiting: 0,
            retry: None,
        }
    }

    pub(super) fn open(&mut self, channel: ChannelId, socket: OwnedFd) {
        let opened = OpenChannel {
            socket: Arc::new(socket),
            backlog: VecDeque::new(),
        };
        self.open.insert(channel, opened);
    }

    pub(super) fn close(&mut self, channel: ChannelId) {
        if let Some(closed) = self.open.remove(&channel) {
            self.waiting -= closed.backlog.len();
        }
    }

    /// Passes a record on, or keeps it until there is room. Returns `false` if it is lost.
    pub(super) fn pass_on(&mut self, now: Instant, record: EventRecord) -> bool {
        let Some(channel) = self.open.get_mut(&record.channel) else {
            return false;
        };
        if channel.backlog.is_empty() {
            match self.wakeups.send(&channel.socket, &record.bytes) {
                Err(Errno::AGAIN) => {}
                Ok(()) => {
                    self.put_back.note_sent(&record.bytes);
                    return true;
                }
                Err(_) => return false,
            }
        }
        if self.waiting >= MAX_WAITING {
            return false;
        }
        let Some(charge) = self.budget.charge(record.cost()) else {
            return false;
        };
        channel.backlog.push_back((record.bytes, charge));
        self.waiting += 1;
        self.retry.get_or_insert((now + SOON, SOON));
        true
    }

    /// Takes a record that the program puts back, and passes it on again. Returns `false` if it is lost.
    ///
    /// # Errors
    /// The program cannot have had it.
    pub(super) fn take_back(
        &mut self,
        now: Instant,
        record: EventRecord,
    ) -> Result<bool, verbs_link::Errno> {
        self.put_back.take_back(&record.bytes)?;
        Ok(self.pass_on(now, record))
    }

    /// Tries again to pass on the records that wait, if it is time.
    pub(super) fn retry(&mut self, now: Instant) {
        let Some((_, pause)) = self.retry.filter(|(at, _)| *at <= now) else {
            return;
        };
        let before = self.waiting;
        for channel in self.open.values_mut() {
            while let Some((record, _)) = channel.backlog.front() {
                match self.wakeups.send(&channel.socket, record) {
                    Ok(()) => self.put_back.note_sent(record),
                    Err(Errno::AGAIN) => break,
                    Err(_) => {}
                }
                channel.backlog.pop_front();
                self.waiting -= 1;
            }
        }
        let pause = match self.waiting == before {
            true => pause.saturating_mul(2).min(LATE),
            false => SOON,
        };
        self.retry = (self.waiting > 0).then(|| (now + pause, pause));
    }

    /// Returns the time of the next attempt.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.retry.map(|(at, _)| at)
    }
}

/// The two ends of a channel: the service's, and the program's.
pub(super) fn ends() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    // Nothing is read here. What a program sent would be closed with the socket, with its descriptors.
    shutdown(&ours, Shutdown::Read)?;
    // The kernel doubles it, for what it keeps beside the bytes.
    let size = usize::try_from(CHANNEL_BUFFER / 2).map_err(io::Error::other)?;
    set_socket_send_buffer_size(&ours, size)?;
    Ok((ours, theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::ZERO;
    const CHANNEL: ChannelId = ChannelId(3);

    fn record(len: usize) -> EventRecord {
        EventRecord {
            channel: CHANNEL,
            bytes: vec![7; len],
        }
    }

    /// A program with one channel, and its end of that.
    fn channels(budget: &Budget) -> (Channels, OwnedFd) {
        let mut channels = Channels::new(budget.clone(), Wakeups::default());
        let (ours, theirs) = ends().unwrap();
        channels.open(CHANNEL, ours);
        (channels, theirs)
    }

    fn read(channel: &OwnedFd) -> usize {
        let mut buffer = [0; 1024];
        let flags = rustix::net::RecvFlags::DONTWAIT;
        rustix::net::recv(channel, &mut buffer[..], flags).map_or(0, |(_, length)| length)
    }

    #[test]
    fn records_that_were_put_back_without_having_been_sent_are_refused() {
        let (mut channels, theirs) = channels(&Budget::new(1 << 20, None));
        let refused = Err(verbs_link::Errno::EPROTO);
        assert_eq!(channels.take_back(NOW, record(8)), refused);
        assert!(channels.pass_on(NOW, record(16)));
        assert_eq!(read(&theirs), 16);
        assert_eq!(channels.take_back(NOW, record(16)), Ok(true));
        assert_eq!(read(&theirs), 16);
        // It was sent once more.
        assert_eq!(channels.take_back(NOW, record(16)), Ok(true));
        assert_eq!(channels.take_back(NOW, record(600)), refused);
    }

    #[test]
    fn a_storm_of_records_to_a_channel_that_is_not_read_stays_within_the_budget() {
        const MOST: u64 = 256 << 10;

        let budget = Budget::new(MOST, None);
        let (mut channels, theirs) = channels(&budget);
        let kept = (0..100_000).filter(|_| channels.pass_on(NOW, record(512)));
        let kept = kept.count();
        let waiting = u64::try_from(channels.waiting).unwrap();
        assert!(budget.used() <= MOST && budget.used() + record(512).cost() > MOST);
        assert_eq!(budget.used(), waiting * record(512).cost());
        let sent = kept - channels.waiting;
        assert!(sent * 512 < CHANNEL_BUFFER as usize, "{sent} in the socket");
        // A record that was sent may be put back, and is lost while there is no room.
        let storm = (0..100_000).take_while(|_| channels.take_back(NOW, record(512)).is_ok());
        assert_eq!(storm.count(), sent);
        assert!(budget.used() <= MOST);
        let mut taken = 0;
        let mut at = NOW;
        while channels.waiting > 0 {
            while read(&theirs) > 0 {
                taken += 1;
            }
            at += LATE;
            channels.retry(at);
        }
        while read(&theirs) > 0 {
            taken += 1;
        }
        assert_eq!(taken, kept);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn records_of_a_channel_that_is_closed_are_charged_no_more() {
        let budget = Budget::new(256 << 10, None);
        let (mut channels, _theirs) = channels(&budget);
        while channels.pass_on(NOW, record(100)) {}
        assert!(budget.used() > 0);
        channels.close(CHANNEL);
        assert_eq!((budget.used(), channels.waiting), (0, 0));
    }
}
