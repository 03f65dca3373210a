//! Well-behaved guests of a service, and how long they wait for what.
//!
//! Each waits on a thread of its own, for things that are due at times: the next one is asked for when it is due, however
//! long the one before took, and waits from then on.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use ib_endpoint::{SaEvent, SaRequest};
use ib_wire::{Lid, PortNum};
use mlx4_defs::cq::ArmCommand;
use vhca_control::protocol::{Request, ShowQuery};
use vhca_control::{Remote, Subject};

use super::sweeper::Sweeper;
use crate::mlx4_driver::{
    Bus, Connection, ConnectionSpec, Destination, Driver, GuestMemory, Operation, Owner, SendWork,
    Talker, TalkerSpec, VmmBus,
};

/// Why a guest cannot go on.
pub type Trouble = Box<dyn Error + Send + Sync>;

const PORT: PortNum = PortNum(1);

/// Pages of a victim's memory.
const PAGES: usize = 1024;

/// The longest that anything may take before the siege is given up.
const LIMIT: Duration = Duration::from_secs(200);

/// Bytes of a victim's write.
const WRITTEN: usize = 8;

/// How often each thing is due.
///
/// Longer than an exchange takes beside sixteen attackers: a victim that falls behind by itself would measure its own
/// backlog.
pub(super) const INTERVAL: Duration = Duration::from_millis(40);

/// How often a guest that nothing happens to does what is due.
const LOOK: Duration = Duration::from_millis(20);

/// A VMM on a VF, and its guest's memory.
pub(super) fn machine(socket: &Path, pages: usize) -> Result<(VmmBus, GuestMemory), Trouble> {
    let memory = GuestMemory::shared(pages)?;
    let bus = VmmBus::attach(socket, memory.clone())?;
    Ok((bus, memory))
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// A read of a register.
    Register,
    /// A question to the SA, which the embedded subnet manager answers on another host, and the answer.
    Mad,
    /// A datagram from one guest to another, on another adapter.
    Datagram,
    /// `show ports` at the control socket.
    Control,
    /// SubnGet(NodeInfo) of the sender's adapter from a third host, of which a subnet manager's sweeps consist.
    Smp,
    /// An RDMA write of 8 bytes from one guest to another on the same adapter, until the writer has its completion.
    Write,
    /// The end of the service after an administrator's `stop`, once, at the end of a siege.
    Stop,
}

impl Probe {
    /// All that the victims wait for over and over.
    pub const ALL: [Self; 6] = [
        Self::Register,
        Self::Mad,
        Self::Datagram,
        Self::Control,
        Self::Smp,
        Self::Write,
    ];

    /// Its name in the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Register => "register",
            Self::Mad => "mad",
            Self::Datagram => "datagram",
            Self::Control => "control",
            Self::Smp => "smp",
            Self::Write => "write",
            Self::Stop => "stop",
        }
    }
}

/// A guest with its VMM.
struct Guest {
    bus: VmmBus,
    driver: Driver,
}

impl Guest {
    fn start(socket: &Path) -> Result<Self, Trouble> {
        let (mut bus, memory) = machine(socket, PAGES)?;
        let driver = Driver::probe(&mut bus, memory)?;
        let mut this = Self { bus, driver };
        this.wait_for("port", |this| {
            let port = this.driver.port(PORT);
            let is_up = port.is_active() && port.info.master_sm_lid.is_unicast();
            Ok(is_up.then_some(()))
        })?;
        Ok(this)
    }

    /// Serves the driver until something is there.
    fn wait_for<T>(
        &mut self,
        what: &str,
        mut found: impl FnMut(&mut Self) -> Result<Option<T>, Trouble>,
    ) -> Result<T, Trouble> {
        let begun = Instant::now();
        loop {
            self.driver.serve(&mut self.bus)?;
            if let Some(found) = found(self)? {
                return Ok(found);
            }
            if begun.elapsed() > LIMIT {
                return Err(format!("no {what} within {LIMIT:?}").into());
            }
            self.bus.wait(LOOK);
        }
    }
}

/// Where the victims are.
#[derive(Debug)]
pub(super) struct Places<'p> {
    /// VFs of the attacked adapter.
    pub(super) near: [&'p Path; 5],
    /// A VF of another one.
    pub(super) far: &'p Path,
    /// The control socket.
    pub(super) control: &'p Path,
    /// The socket of umad programs, and a node of neither adapter.
    pub(super) umad: (&'p Path, &'p str),
}

/// Two guests, of which one sends the other datagrams.
struct Pair {
    sender: Guest,
    receiver: Guest,
    mouth: Talker,
    ear: Talker,
    way: Destination,
}

/// Two guests, of which one writes to the other's memory.
struct Writer {
    guests: [Guest; 2],
    ends: [Connection; 2],
}

/// The victims: guests on two adapters, an administrator, and one who looks at the fabric.
pub(super) struct Victims {
    register: Guest,
    mad: Guest,
    pair: Pair,
    control: Remote,
    sweeper: Sweeper,
    swept: Lid,
    writer: Writer,
}

impl Victims {
    /// Starts the guests.
    pub(super) fn start(places: &Places<'_>) -> Result<Self, Trouble> {
        let [register, mad, sender, writer, written] = places.near;
        let register = Guest::start(register)?;
        Ok(Self {
            swept: register.driver.port(PORT).info.lid,
            register,
            mad: Guest::start(mad)?,
            pair: Pair::start(sender, places.far)?,
            control: Remote::connect(places.control)?,
            sweeper: Sweeper::open(places.umad.0, places.umad.1)?,
            writer: Writer::start(writer, written)?,
        })
    }

    /// Serves the guests' drivers for a while.
    pub(super) fn idle(&mut self, length: Duration) -> Result<(), Trouble> {
        let end = Instant::now() + length;
        while Instant::now() < end {
            self.register.idle(LOOK / 4)?;
            self.mad.idle(LOOK / 4)?;
            self.pair.idle(LOOK / 4)?;
            self.writer.idle(LOOK / 4)?;
        }
        Ok(())
    }

    /// Returns how long each of those things took that were due within a time.
    pub(super) fn watch(
        &mut self,
        length: Duration,
    ) -> Result<Vec<(Probe, Vec<Duration>)>, Trouble> {
        let Self {
            register,
            mad,
            pair,
            control,
            sweeper,
            swept,
            writer,
        } = self;
        let register = register as &mut (dyn Victim + Send);
        let mut asked = Asked(mad);
        let mut swept = Swept(sweeper, *swept);
        let victims = [register, &mut asked, pair, control, &mut swept, writer];
        let apart = INTERVAL / u32::try_from(victims.len())?;
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let started: Vec<_> = (0..)
                .zip(victims)
                .map(|(nth, victim)| {
                    let first = begun + nth * apart;
                    scope.spawn(move || watch(victim, first, begun + length))
                })
                .collect();
            let waits = started.into_iter().map(|thread| {
                let waits = thread.join().map_err(|_| "a victim panicked")?;
                waits.map_err(Trouble::from)
            });
            let waits = waits.collect::<Result<Vec<_>, Trouble>>()?;
            Ok(Probe::ALL.into_iter().zip(waits).collect())
        })
    }
}

/// Measures a victim each time that it is due. Returns the waits, each from the due time.
fn watch(victim: &mut dyn Victim, first: Instant, end: Instant) -> Result<Vec<Duration>, String> {
    let mut waits = Vec::new();
    let mut due = first;
    while due < end {
        let said = |error: Trouble| error.to_string();
        while let Some(left) = due.checked_duration_since(Instant::now()) {
            victim.idle(left).map_err(said)?;
        }
        victim.measure().map_err(said)?;
        waits.push(due.elapsed());
        due += INTERVAL;
    }
    Ok(waits)
}

/// Somebody who wants something, over and over.
trait Victim {
    /// Asks for it, and waits until it is there.
    fn measure(&mut self) -> Result<(), Trouble>;

    /// Does what else is due, for about so long.
    fn idle(&mut self, length: Duration) -> Result<(), Trouble> {
        std::thread::sleep(length);
        Ok(())
    }
}

/// Reads a register.
impl Victim for Guest {
    fn measure(&mut self) -> Result<(), Trouble> {
        self.bus
            .read_be32(mlx4_defs::pci::UAR_BAR, mlx4_defs::comm::SLAVE_READ);
        if self.bus.is_gone() {
            return Err("the service cut a well-behaved guest off".into());
        }
        Ok(())
    }

    fn idle(&mut self, length: Duration) -> Result<(), Trouble> {
        self.bus.wait(length);
        self.driver.serve(&mut self.bus)?;
        Ok(())
    }
}

/// Asks the SA.
struct Asked<'g>(&'g mut Guest);

impl Victim for Asked<'_> {
    fn measure(&mut self) -> Result<(), Trouble> {
        let Guest { bus, driver } = &mut *self.0;
        let gid = driver.port(PORT).gid();
        let now = bus.now();
        let mads = driver.mads(PORT);
        let request = SaRequest::path_by_gids(gid, gid, None);
        let asked = mads.sa.query(now, &mut mads.agent, request);
        self.0.wait_for("answer of the SA", |guest| {
            let sa = &mut guest.driver.mads(PORT).sa;
            let mut events = core::iter::from_fn(|| sa.poll_event());
            let answered = events.find_map(|event| match event {
                SaEvent::Answered { query, result } if query == asked => Some(result),
                _ => None,
            });
            // One that was given up was answered too late, and is as long as it took.
            Ok(answered.map(|_| ()))
        })
    }

    fn idle(&mut self, length: Duration) -> Result<(), Trouble> {
        self.0.idle(length)
    }
}

impl Pair {
    fn start(sender: &Path, receiver: &Path) -> Result<Self, Trouble> {
        let [mut sender, mut receiver] = [Guest::start(sender)?, Guest::start(receiver)?];
        let spec = TalkerSpec {
            receives: 64,
            ..TalkerSpec::default()
        };
        let mouth = Talker::open(&mut sender.driver, &mut sender.bus, &spec)?;
        let ear = Talker::open(&mut receiver.driver, &mut receiver.bus, &spec)?;
        let lid = receiver.driver.port(PORT).info.lid;
        let way = mouth.way_to(ear.address(lid));
        Ok(Self {
            sender,
            receiver,
            mouth,
            ear,
            way,
        })
    }
}

/// Sends a datagram and waits until it arrives.
impl Victim for Pair {
    fn measure(&mut self) -> Result<(), Trouble> {
        let Guest { bus, driver } = &mut self.sender;
        self.mouth.say(driver, bus, &self.way, b"are you there?")?;
        let ear = &mut self.ear;
        self.receiver.wait_for("datagram", |guest| {
            let Guest { bus, driver } = guest;
            let mut heard = ear.hear(driver)?;
            if heard.is_empty() {
                driver.arm_cq(bus, ear.recv_cq, ArmCommand::NEXT)?;
                // What came between the last look and the arming.
                heard = ear.hear(driver)?;
            }
            Ok(heard.pop().map(|_| ()))
        })
    }

    fn idle(&mut self, length: Duration) -> Result<(), Trouble> {
        self.sender.idle(length)?;
        self.receiver.driver.serve(&mut self.receiver.bus)?;
        self.mouth.take_sent(&mut self.sender.driver)?;
        Ok(())
    }
}

impl Writer {
    fn start(from: &Path, to: &Path) -> Result<Self, Trouble> {
        let mut guests = [Guest::start(from)?, Guest::start(to)?];
        let spec = ConnectionSpec {
            owner: Owner::Kernel,
            ..ConnectionSpec::reliable()
        };
        let [a, b] = &mut guests;
        let ends = [
            Connection::open(&mut a.driver, &mut a.bus, &spec)?,
            Connection::open(&mut b.driver, &mut b.bus, &spec)?,
        ];
        let peers = [ends[1].address(&b.driver), ends[0].address(&a.driver)];
        for ((guest, end), peer) in [a, b].into_iter().zip(&ends).zip(peers) {
            end.connect(&mut guest.driver, &mut guest.bus, &peer)?;
        }
        Ok(Self { guests, ends })
    }
}

/// Writes, and waits until it has the completion.
impl Victim for Writer {
    fn measure(&mut self) -> Result<(), Trouble> {
        let ([writer, _], [end, peer]) = (&mut self.guests, &self.ends);
        let write = Operation::Write(peer.remote(0));
        let work = SendWork::to_peer(0, end.part(0, WRITTEN), write);
        end.post(&mut writer.driver, &mut writer.bus, &[work])?;
        writer.wait_for("completion of a write", |guest| {
            let Guest { bus, driver } = guest;
            let mut done = end.completions(driver)?;
            if done.is_empty() {
                driver.arm_cq(bus, end.cq, ArmCommand::NEXT)?;
                // What came between the last look and the arming.
                done = end.completions(driver)?;
            }
            match done.pop() {
                Some(one) => match one.error {
                    Some(error) => Err(format!("a write failed: {error:?}").into()),
                    None => Ok(Some(())),
                },
                None => Ok(None),
            }
        })
    }

    fn idle(&mut self, length: Duration) -> Result<(), Trouble> {
        let [writer, written] = &mut self.guests;
        writer.idle(length)?;
        Ok(written.driver.serve(&mut written.bus)?)
    }
}

/// Looks at the ports.
impl Victim for Remote {
    fn measure(&mut self) -> Result<(), Trouble> {
        let query = ShowQuery::new(Subject::Ports);
        self.ask(&Request::Show(query))?;
        Ok(())
    }
}

/// Looks at a node as a sweep does.
struct Swept<'s>(&'s mut Sweeper, Lid);

impl Victim for Swept<'_> {
    fn measure(&mut self) -> Result<(), Trouble> {
        self.0.look_at(self.1)
    }
}
