//! One VMM after another: what the one before left is gone before the next is heard.

use super::*;
use vhca::Driven;
use vhca::watch::WatchChange;

/// A service that is driven by hand, so that nothing happens between two events unless the test wants it.
struct ByHand {
    service: Service,
    /// What the service watches, in the order of the first watch: the listener, then clients.
    watched: Vec<Ready>,
    _folder: tempfile::TempDir,
}

impl ByHand {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut by_hand = Self {
            service: service(folder.path(), Service::in_virtual_time, Patience::default()),
            watched: Vec::new(),
            _folder: folder,
        };
        by_hand.poll();
        by_hand
    }

    fn poll(&mut self) {
        let now = self.service.lab().world().now();
        self.service.poll(now);
        self.note_watches();
    }

    fn note_watches(&mut self) {
        while let Some(change) = self.service.poll_watch() {
            match change {
                WatchChange::Add(fd, tag, events) => self.watched.push(Ready { fd, tag, events }),
                WatchChange::Modify(..) => {}
                WatchChange::Remove(fd) => self.watched.retain(|ready| ready.fd != fd.as_raw_fd()),
            }
        }
    }

    fn is_ready(&mut self, nth: usize, events: EventSet) {
        let now = self.service.lab().world().now();
        let ready = Ready {
            events,
            ..self.watched[nth]
        };
        self.service.handle_ready(now, ready);
        self.note_watches();
    }

    /// Somebody comes, and says this at once.
    fn come(&mut self, words: &[u8]) -> Raw {
        let seat = self.service.lab().seats().next().unwrap();
        let mut socket = UnixStream::connect(seat.socket.as_ref().unwrap()).unwrap();
        socket.write_all(words).unwrap();
        socket.set_nonblocking(true).unwrap();
        Raw { socket, id: 0 }
    }

    fn resets(&self) -> u64 {
        let seat = self.service.lab().seats().next().unwrap();
        self.service.lab().world().device(seat.at).unwrap().resets()
    }
}

/// Whether anything was said to a client so far.
fn is_answered(raw: &Raw) -> bool {
    let mut fds = [PollFd::new(&raw.socket, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}

#[test]
fn the_next_vmm_is_let_in_when_the_vf_is_reset_and_not_before() {
    const RESETS: u64 = 24;
    let greeting = message(1, Command::VERSION, HELLO);
    let look = message(2, Command::REGION_READ, access(2, RESETS, 1).as_bytes());
    // The service hears of the end of the first one before the next comes, or only when it does.
    for end_is_told in [true, false] {
        let mut by_hand = ByHand::new();
        let first = by_hand.come(&greeting);
        by_hand.is_ready(0, EventSet::IN);
        by_hand.poll();
        assert!(is_answered(&first));
        let before = by_hand.resets();
        drop(first);
        let mut next = by_hand.come(&[&greeting[..], &look].concat());
        let mut third = by_hand.come(&greeting);
        if end_is_told {
            by_hand.is_ready(1, EventSet::IN | EventSet::HANG_UP);
        }
        by_hand.is_ready(0, EventSet::IN);
        assert_eq!(by_hand.resets(), before + 1, "the VF is reset at once");
        assert!(!is_answered(&next), "the device does not know of it yet");
        assert_eq!(third.receive().unwrap().0.error.get(), 16, "EBUSY");

        by_hand.poll();
        assert_eq!(by_hand.resets(), before + 1);
        assert_eq!(next.receive().unwrap().0.error.get(), 0);
        let (_, seen) = next.receive().unwrap();
        assert_eq!(
            u64::from(seen[16]),
            before + 1,
            "the device heard of its reset"
        );
    }
}
