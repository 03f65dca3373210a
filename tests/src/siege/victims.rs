//! Well-behaved guests of a service, and how long they wait for what.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use ib_endpoint::{SaEvent, SaRequest};
use ib_wire::PortNum;
use mlx4_defs::cq::ArmCommand;
use vhca_service::serve::control::Remote;
use vhca_service::serve::control::protocol::{Request, ShowQuery};
use vhca_service::show::{Format, Subject};

use super::sweeper::Sweeper;
use crate::mlx4_driver::{Bus, Destination, Driver, GuestMemory, Talker, TalkerSpec, VmmBus};

/// Why a guest cannot go on.
pub type Trouble = Box<dyn Error + Send + Sync>;

const PORT: PortNum = PortNum(1);

/// Pages of a victim's memory.
const PAGES: usize = 1024;

/// The longest that anything may take before the siege is given up.
const LIMIT: Duration = Duration::from_secs(200);

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
}

impl Probe {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Register,
        Self::Mad,
        Self::Datagram,
        Self::Control,
        Self::Smp,
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

/// The victims: two guests on two adapters, an administrator, and one who looks at the fabric.
pub(super) struct Victims {
    sender: Guest,
    receiver: Guest,
    mouth: Talker,
    ear: Talker,
    way: Destination,
    control: Remote,
    sweeper: Sweeper,
}

impl Victims {
    /// Starts the guests on two VFs.
    pub(super) fn start(
        sockets: [&Path; 2],
        control: &Path,
        sweeper: Sweeper,
    ) -> Result<Self, Trouble> {
        let [mut sender, mut receiver] = [Guest::start(sockets[0])?, Guest::start(sockets[1])?];
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
            control: Remote::connect(control)?,
            sweeper,
        })
    }

    /// How long something takes now.
    pub(super) fn measure(&mut self, probe: Probe) -> Result<Duration, Trouble> {
        let begun = Instant::now();
        match probe {
            Probe::Register => self.read_register()?,
            Probe::Mad => self.ask_the_sa()?,
            Probe::Datagram => self.say_something()?,
            Probe::Control => {
                let query = ShowQuery::new(Subject::Ports, Format::Json);
                self.control.ask(Request::Show(query))?;
            }
            Probe::Smp => self
                .sweeper
                .look_at(self.sender.driver.port(PORT).info.lid)?,
        }
        Ok(begun.elapsed())
    }

    /// Lets the guests' drivers do what is due between two measurements.
    pub(super) fn idle(&mut self, length: Duration) -> Result<(), Trouble> {
        self.sender.bus.wait(length);
        for guest in [&mut self.sender, &mut self.receiver] {
            guest.driver.serve(&mut guest.bus)?;
        }
        self.mouth.take_sent(&mut self.sender.driver)?;
        Ok(())
    }

    fn read_register(&mut self) -> Result<(), Trouble> {
        self.sender
            .bus
            .read_be32(mlx4_defs::pci::UAR_BAR, mlx4_defs::comm::SLAVE_READ);
        if self.sender.bus.is_gone() {
            return Err("the service cut a well-behaved guest off".into());
        }
        Ok(())
    }

    fn ask_the_sa(&mut self) -> Result<(), Trouble> {
        let Guest { bus, driver } = &mut self.sender;
        let gid = driver.port(PORT).gid();
        let now = bus.now();
        let mads = driver.mads(PORT);
        let request = SaRequest::path_by_gids(gid, gid, None);
        let asked = mads.sa.query(now, &mut mads.agent, request);
        self.sender.wait_for("answer of the SA", |guest| {
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

    fn say_something(&mut self) -> Result<(), Trouble> {
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
}
