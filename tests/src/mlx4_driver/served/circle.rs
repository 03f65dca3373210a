//! Well-behaved guests: each says something to the next one in a circle, again and again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use ib_endpoint::{SaEvent, SaRequest};
use ib_vtime::Duration;
use ib_wire::{Lid, PortNum, QKey, Qpn};
use mlx4_defs::cq::ArmCommand;

use super::super::hostile::message;
use super::super::{Bus, Destination, Driver, GuestMemory, Heard, Talker, TalkerSpec};
use super::{Site, Trouble};

const PORT: PortNum = PortNum(1);

/// The longest that anything should take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// How often a guest that nothing happens to does what is due.
const LOOK: Duration = Duration::from_millis(50);

/// What a guest leaves of a round for others, at most.
const PAUSE: Duration = Duration::from_millis(10);

/// Rounds between two questions of a guest to the SA.
const ROUNDS_PER_QUERY: u64 = 16;

/// What well-behaved guests did, and saw done right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Talk {
    /// Messages that were heard.
    pub messages: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Answers of the SA.
    pub answers: u64,
}

/// What the guests of a circle know of each other.
#[derive(Debug)]
struct Board {
    /// Where each is reached.
    addresses: Vec<OnceLock<(Lid, Qpn, QKey)>>,
    /// Messages that were heard so far.
    messages: AtomicU64,
    /// Whether the first guest is to choose the last round.
    is_enough: AtomicBool,
    /// The first round that does not take place.
    end: AtomicU64,
    /// Whether a guest could not go on.
    is_broken: AtomicBool,
}

/// A circle of well-behaved guests.
#[derive(Debug)]
pub struct Circle {
    board: Arc<Board>,
    guests: Vec<JoinHandle<Result<Talk, Trouble>>>,
}

impl Circle {
    /// Starts a guest at each of these sites.
    ///
    /// # Panics
    /// If the system has no threads left.
    #[must_use]
    pub fn start<S: Site>(sites: &[S]) -> Self {
        let board = Arc::new(Board {
            addresses: sites.iter().map(|_| OnceLock::new()).collect(),
            messages: AtomicU64::new(0),
            is_enough: AtomicBool::new(false),
            end: AtomicU64::new(u64::MAX),
            is_broken: AtomicBool::new(false),
        });
        let guests = sites.iter().cloned().enumerate().map(|(place, site)| {
            let board = board.clone();
            std::thread::spawn(move || {
                let talk = take_part(&site, place, &board);
                if talk.is_err() {
                    board.is_broken.store(true, Ordering::Relaxed);
                }
                talk
            })
        });
        Self {
            guests: guests.collect(),
            board,
        }
    }

    /// Messages that were heard so far.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.board.messages.load(Ordering::Relaxed)
    }

    /// Whether a guest could not go on; [`Self::end`] tells why.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.board.is_broken.load(Ordering::Relaxed)
    }

    /// Has the guests end their talk, their drivers and their VMMs.
    ///
    /// # Panics
    /// With what the guests noticed, if they did.
    #[must_use]
    pub fn end(self) -> Talk {
        self.board.is_enough.store(true, Ordering::Relaxed);
        let mut all = Talk::default();
        let mut troubles = Vec::new();
        for (place, guest) in self.guests.into_iter().enumerate() {
            match guest.join() {
                Ok(Ok(talk)) => {
                    all.messages += talk.messages;
                    all.bytes += talk.bytes;
                    all.answers += talk.answers;
                }
                Ok(Err(trouble)) => troubles.push(format!("guest {place}: {trouble}")),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        assert!(troubles.is_empty(), "{}", troubles.join("\n"));
        all
    }
}

/// The life of a guest.
fn take_part(site: &impl Site, place: usize, board: &Board) -> Result<Talk, Trouble> {
    let (mut bus, memory) = site.attach()?;
    let driver = Driver::probe(&mut bus, memory.clone())?;
    let mut machine = Machine { bus, driver, board };
    machine.wait_for("port", |machine| {
        let port = machine.driver.port(PORT);
        let is_up = port.is_active() && port.info.master_sm_lid.is_unicast();
        Ok(is_up.then_some(()))
    })?;
    let spec = TalkerSpec {
        shared: place.is_multiple_of(2),
        // Each of the others can be a round ahead of the next.
        receives: 64,
        ..TalkerSpec::default()
    };
    let talker = Talker::open(&mut machine.driver, &mut machine.bus, &spec)?;
    let mut member = Member {
        machine,
        talker,
        place,
        heard: VecDeque::new(),
        talk: Talk::default(),
    };
    let way = member.meet()?;
    member.converse(&way)?;
    member.leave(&memory)
}

/// A guest with its driver.
struct Machine<'b, B> {
    bus: B,
    driver: Driver,
    board: &'b Board,
}

impl<B: Bus> Machine<'_, B> {
    /// Serves the driver until something is there.
    fn wait_for<T>(
        &mut self,
        what: &str,
        mut found: impl FnMut(&mut Self) -> Result<Option<T>, Trouble>,
    ) -> Result<T, Trouble> {
        let end = self.bus.now() + LIMIT;
        loop {
            self.driver.serve(&mut self.bus)?;
            if let Some(found) = found(self)? {
                return Ok(found);
            }
            if self.board.is_broken.load(Ordering::Relaxed) {
                return Err("another guest could not go on".into());
            }
            if self.bus.now() > end {
                return Err(format!("no {what} within {LIMIT:?}").into());
            }
            self.bus.wait(LOOK);
        }
    }
}

/// A guest in the circle.
struct Member<'b, B> {
    machine: Machine<'b, B>,
    talker: Talker,
    place: usize,
    heard: VecDeque<Heard>,
    talk: Talk,
}

impl<B: Bus> Member<'_, B> {
    /// Tells where it is, and learns where the next one is.
    fn meet(&mut self) -> Result<Destination, Trouble> {
        let board = self.machine.board;
        let lid = self.machine.driver.port(PORT).info.lid;
        let own = self.talker.address(lid);
        board.addresses[self.place]
            .set(own)
            .map_err(|_| "two guests have one place")?;
        let next = &board.addresses[(self.place + 1) % board.addresses.len()];
        let next = self
            .machine
            .wait_for("neighbour", |_| Ok(next.get().copied()))?;
        Ok(self.talker.way_to(next))
    }

    /// Round after round until the last.
    fn converse(&mut self, way: &Destination) -> Result<(), Trouble> {
        let board = self.machine.board;
        let mut round = 0;
        while round < board.end.load(Ordering::Relaxed) {
            if self.place == 0 && board.is_enough.swap(false, Ordering::Relaxed) {
                // Nobody begins a round before all others have at least begun the one as many rounds before as
                // there are guests: so this one has not begun anywhere.
                let end = round + board.addresses.len() as u64;
                board.end.store(end, Ordering::Relaxed);
            }
            let words = message(round, self.place);
            let Machine { bus, driver, .. } = &mut self.machine;
            self.talker.say(driver, bus, way, &words)?;
            let heard = self.hear(round)?;
            self.check(round, &heard)?;
            if (round + self.place as u64).is_multiple_of(ROUNDS_PER_QUERY) {
                self.query()?;
            }
            self.machine.bus.wait(PAUSE);
            round += 1;
        }
        Ok(())
    }

    /// Waits for the next message.
    fn hear(&mut self, round: u64) -> Result<Heard, Trouble> {
        let Self {
            machine,
            talker,
            heard,
            ..
        } = self;
        machine.wait_for(&format!("message of round {round}"), |machine| {
            let Machine { bus, driver, .. } = machine;
            if heard.is_empty() {
                heard.extend(talker.hear(driver)?);
            }
            if heard.is_empty() {
                driver.arm_cq(bus, talker.recv_cq, ArmCommand::NEXT)?;
                // What came between the last look and the arming.
                heard.extend(talker.hear(driver)?);
            }
            Ok(heard.pop_front())
        })
    }

    /// Whether a message is what the guest before said in a round.
    fn check(&mut self, round: u64, heard: &Heard) -> Result<(), Trouble> {
        let addresses = &self.machine.board.addresses;
        let before = (self.place + addresses.len() - 1) % addresses.len();
        let expected = message(round, before);
        let sender = addresses[before].get().map(|(_, qpn, _)| *qpn);
        if heard.bytes != expected || Some(heard.source.qpn) != sender {
            let (came, expected) = (heard.bytes.len(), expected.len());
            let what = format!(
                "round {round}: {came} bytes of {:?} instead of {expected} of {sender:?}",
                heard.source.qpn
            );
            return Err(what.into());
        }
        if !self.talker.failed.is_empty() {
            return Err(format!("round {round}: {:?}", self.talker.failed).into());
        }
        self.talk.messages += 1;
        self.talk.bytes += heard.bytes.len() as u64;
        self.machine.board.messages.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Asks the SA, and waits for its answer.
    fn query(&mut self) -> Result<(), Trouble> {
        let Machine { bus, driver, .. } = &mut self.machine;
        let gid = driver.port(PORT).gid();
        let now = bus.now();
        let mads = driver.mads(PORT);
        let request = SaRequest::path_by_gids(gid, gid, None);
        let asked = mads.sa.query(now, &mut mads.agent, request);
        self.machine.wait_for("answer of the SA", |machine| {
            let sa = &mut machine.driver.mads(PORT).sa;
            let mut events = core::iter::from_fn(|| sa.poll_event());
            let answered = events.find_map(|event| match event {
                SaEvent::Answered { query, result } if query == asked => Some(result),
                _ => None,
            });
            Ok(answered.transpose()?.map(|_| ()))
        })?;
        self.talk.answers += 1;
        Ok(())
    }

    /// Takes everything down, in the kernel's order.
    fn leave(self, memory: &GuestMemory) -> Result<Talk, Trouble> {
        let Machine {
            mut bus,
            mut driver,
            ..
        } = self.machine;
        self.talker.close(&mut driver, &mut bus)?;
        driver.remove(&mut bus)?;
        match memory.allocated_pages() {
            0 => Ok(self.talk),
            left => Err(format!("{left} pages are not given back").into()),
        }
    }
}
