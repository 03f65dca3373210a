//! A guest that does whatever it can think of, mixed with what a driver does, so that it gets deep.

mod choices;
mod connections;
mod impatient;
mod nonsense;
mod siege;

use core::ops::AddAssign;

use hca_api::ResourceCounts;
use ib_vtime::Duration;
use ib_wire::{PortNum, QKey};
use mlx4_defs::Pdn;
use mlx4_defs::cq::ArmCommand;

pub use choices::Choices;
pub use connections::Sibling;
pub(super) use siege::message;
pub use siege::{Siege, SiegePlan};

use self::impatient::Impatient;
use super::{
    BufferKind, Bus, Connection, Driver, DriverError, GuestMemory, Owner, Region, Rights, Talker,
    TalkerSpec, function_level_reset,
};

/// Programs of a hostile guest at a time.
const TALKERS: usize = 4;

/// Regions of a hostile guest at a time.
const REGIONS: usize = 4;

/// Pages that must be left before the guest begins anew.
const LEAST_PAGES: usize = 512;

/// How often a hostile guest got how far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Probes that succeeded.
    pub probes: u64,
    /// Probes that failed.
    pub failed_probes: u64,
    /// Talkers that were opened.
    pub talkers: u64,
    /// Connected queue pairs that were opened.
    pub connections: u64,
    /// Messages of connected queue pairs that completed well.
    pub messages: u64,
    /// Steps of a well-behaved driver that succeeded.
    pub steps: u64,
    /// Commands of nonsense that succeeded.
    pub accepted: u64,
    /// Commands of nonsense that were refused.
    pub refused: u64,
}

impl AddAssign for Depth {
    fn add_assign(&mut self, other: Self) {
        self.probes += other.probes;
        self.failed_probes += other.failed_probes;
        self.talkers += other.talkers;
        self.connections += other.connections;
        self.messages += other.messages;
        self.steps += other.steps;
        self.accepted += other.accepted;
        self.refused += other.refused;
    }
}

/// A hostile guest.
#[derive(Debug)]
pub struct HostileGuest {
    memory: GuestMemory,
    driver: Option<Driver>,
    talkers: Vec<Talker>,
    connections: Vec<Connection>,
    /// Connected queue pairs of a sibling.
    met: Vec<Sibling>,
    regions: Vec<Region>,
    /// Pages that were unmapped under the device.
    unmapped: Vec<u64>,
    /// How long its drivers wait for anything.
    patience: Duration,
    /// How far it got.
    pub depth: Depth,
}

impl HostileGuest {
    /// A guest without a driver.
    #[must_use]
    pub fn new(memory: GuestMemory) -> Self {
        Self {
            memory,
            driver: None,
            talkers: Vec::new(),
            connections: Vec::new(),
            met: Vec::new(),
            regions: Vec::new(),
            unmapped: Vec::new(),
            patience: Duration::from_millis(1),
            depth: Depth::default(),
        }
    }

    /// The same, with drivers that wait for so long: where time is that of the machine, even a device that
    /// answers at once needs some.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    const fn impatient<'b>(&self, bus: &'b mut dyn Bus) -> Impatient<'b> {
        Impatient {
            bus,
            patience: self.patience,
        }
    }

    /// Does something.
    pub fn step(&mut self, bus: &mut dyn Bus, choices: &mut Choices<'_>) {
        if self.memory.free_pages() < LEAST_PAGES {
            self.lose_everything();
        }
        if self.driver.is_none() {
            return self.probe(bus, choices);
        }
        match choices.byte() % 20 {
            16.. => self.use_connections(bus, choices),
            0..7 => self.behave(bus, choices),
            7..10 => self.command(bus, choices),
            10 => self.ring_anything(bus, choices),
            11 => self.post_anything(bus, choices),
            12 => self.scribble(choices),
            13 => self.remap(choices),
            14 => self.touch_registers(bus, choices),
            _ if choices.seldom(8) => self.die(bus, choices),
            _ => bus.wait(Duration::from_micros(50)),
        }
    }

    /// Everything of the guest's own is gone; what the device has of it is not.
    fn lose_everything(&mut self) {
        self.driver = None;
        self.talkers.clear();
        self.connections.clear();
        self.regions.clear();
        self.unmapped.clear();
        self.memory.free_all();
    }

    /// Binds a driver; now and then to a device that was not reset, or after garbage.
    fn probe(&mut self, bus: &mut dyn Bus, choices: &mut Choices<'_>) {
        if choices.seldom(8) {
            self.touch_registers(bus, choices);
        }
        let mut bus = self.impatient(bus);
        match Driver::probe(&mut bus, self.memory.clone()) {
            Ok(driver) => {
                self.driver = Some(driver);
                self.depth.probes += 1;
            }
            Err(_) => {
                self.depth.failed_probes += 1;
                self.lose_everything();
                // The machine has to be reset for a driver to come up again.
                bus.reset();
                bus.wait(Duration::from_millis(1));
            }
        }
    }

    /// Goes away, in one of the ways there are.
    fn die(&mut self, bus: &mut dyn Bus, choices: &mut Choices<'_>) {
        match choices.byte() % 4 {
            0 => bus.reset(),
            1 => {
                // A function that cannot is one whose configuration space was overwritten.
                let _ = function_level_reset(bus);
            }
            2 => {
                if let Some(driver) = self.driver.take() {
                    let _ = driver.remove(&mut self.impatient(bus));
                }
            }
            _ => {}
        }
        self.lose_everything();
    }

    /// What a driver would do, with objects that may be broken.
    fn behave(&mut self, bus: &mut dyn Bus, choices: &mut Choices<'_>) {
        let mut bus = self.impatient(bus);
        let Some(driver) = self.driver.as_mut() else {
            return;
        };
        let which = choices.index(self.talkers.len());
        let outcome = match (choices.byte() % 12, self.talkers.get_mut(which)) {
            (0, _) | (_, None) => {
                if self.talkers.len() < TALKERS {
                    let opened = Talker::open(driver, &mut bus, &talker_spec(choices));
                    opened.map(|talker| {
                        self.talkers.push(talker);
                        self.depth.talkers += 1;
                    })
                } else {
                    Ok(())
                }
            }
            (1, _) => driver.serve(&mut bus),
            (2, Some(_)) if choices.seldom(4) => {
                let talker = self.talkers.swap_remove(which);
                talker.close(driver, &mut bus)
            }
            (3, Some(_)) => self.change_regions(&mut bus, choices),
            (4..8, Some(talker)) => converse(driver, &mut bus, talker, choices),
            (_, Some(talker)) => reconfigure(driver, &mut bus, talker, choices),
        };
        self.note(&mut bus, outcome);
    }

    /// Steps of a program with connected queue pairs, and steps that none would take.
    fn use_connections(&mut self, bus: &mut dyn Bus, choices: &mut Choices<'_>) {
        let mut bus = self.impatient(bus);
        let outcome = self.connect_or_post(&mut bus, choices);
        self.note(&mut bus, outcome);
    }

    /// Notes how a step of a driver ended, and recovers from the end of the device.
    fn note(&mut self, bus: &mut Impatient<'_>, outcome: Result<(), DriverError>) {
        match outcome {
            Ok(()) => self.depth.steps += 1,
            Err(DriverError::Gone | DriverError::Internal | DriverError::TimedOut { .. }) => {
                self.recover(bus);
            }
            Err(_) => {}
        }
    }

    /// Restarts after the device gave the driver up.
    fn recover(&mut self, bus: &mut Impatient<'_>) {
        let restarted = self.driver.take().map(|driver| driver.reset_device(bus));
        self.lose_everything();
        if !matches!(restarted, Some(Ok(()))) {
            bus.reset();
        }
        bus.wait(Duration::from_millis(1));
    }

    fn change_regions(
        &mut self,
        bus: &mut Impatient<'_>,
        choices: &mut Choices<'_>,
    ) -> Result<(), DriverError> {
        let Some(driver) = self.driver.as_mut() else {
            return Ok(());
        };
        let rights = Rights {
            local_write: choices.seldom(2),
            remote_read: choices.seldom(2),
            remote_write: choices.seldom(2),
            remote_atomic: choices.seldom(2),
        };
        if self.regions.len() == REGIONS {
            let region = self.regions.remove(0);
            return if choices.seldom(2) {
                let changed = driver.set_rights(bus, &region, rights);
                self.regions.push(region);
                changed
            } else {
                driver.deregister(bus, region)
            };
        }
        let len = 1 + choices.index(40_000);
        let region = driver.register(bus, Pdn(7), u16::from(choices.byte()), len, rights)?;
        self.regions.push(region);
        Ok(())
    }

    /// What a well-behaved VF would own at most, for a check that nobody owns more.
    #[must_use]
    pub fn is_within(owned: &ResourceCounts, quota: &ResourceCounts) -> bool {
        let pairs = [
            (owned.pds, quota.pds),
            (owned.avs, quota.avs),
            (owned.cqs, quota.cqs),
            (owned.srqs, quota.srqs),
            (owned.qps, quota.qps),
            (owned.mrs, quota.mrs),
            (owned.mws, quota.mws),
            (owned.attachments, quota.attachments),
        ];
        pairs.into_iter().all(|(owned, quota)| owned <= quota)
    }
}

/// The Q_Key of hostile talkers: one that nobody else uses.
const QKEY: QKey = QKey::new(0x0bad_0bad);

fn talker_spec(choices: &mut Choices<'_>) -> TalkerSpec {
    TalkerSpec {
        port: PortNum(1),
        pkey_index: choices.byte() % 2,
        qkey: QKEY,
        owner: if choices.seldom(2) {
            Owner::Kernel
        } else {
            Owner::User
        },
        shared: choices.seldom(2),
        sends: 1 << (choices.byte() % 6),
        receives: 1 << (choices.byte() % 6),
        vector: choices.index(4),
    }
}

/// Says something to itself, and hears.
fn converse(
    driver: &mut Driver,
    bus: &mut Impatient<'_>,
    talker: &mut Talker,
    choices: &mut Choices<'_>,
) -> Result<(), DriverError> {
    let lid = driver.port(PortNum(1)).info.lid;
    let mut way = talker.way_to(talker.address(lid));
    if choices.seldom(8) {
        let mut bytes: [u8; 32] = zerocopy::transmute!(way.av);
        choices.damage(&mut bytes);
        way.av = zerocopy::transmute!(bytes);
    }
    let message = vec![choices.byte(); choices.index(3000)];
    let said = talker.say(driver, bus, &way, &message);
    bus.wait(Duration::from_micros(10));
    talker.hear(driver)?;
    talker.take_sent(driver)?;
    said
}

/// Changes a talker's queues.
fn reconfigure(
    driver: &mut Driver,
    bus: &mut Impatient<'_>,
    talker: &mut Talker,
    choices: &mut Choices<'_>,
) -> Result<(), DriverError> {
    match choices.byte() % 8 {
        0 => {
            driver.reset_qp(bus, talker.qpn)?;
            talker.bring_up(driver, bus)
        }
        1 => driver.to_error(bus, talker.qpn),
        2 => {
            let memory = BufferKind::User {
                shift: 12 + u32::from(choices.byte() % 3),
            };
            let entries = 1 + u32::from(choices.byte());
            driver.resize_cq(bus, talker.recv_cq, entries, memory)
        }
        3 => {
            let command = ArmCommand::new(choices.byte() % 4);
            driver.arm_cq(bus, talker.recv_cq, command)
        }
        4 => {
            let mut mgid = ib_wire::Gid([0; 16]);
            mgid.0[0] = 0xff;
            mgid.0[15] = choices.byte() % 4;
            let (attached, block) = (choices.seldom(2), choices.seldom(2));
            driver.set_attached(bus, talker.qpn, mgid, attached, block)
        }
        5 => driver.set_drained(bus, talker.qpn, choices.seldom(2)),
        6 => driver.query_qp(bus, talker.qpn).map(|_| ()),
        _ => talker.srq.map_or(Ok(()), |srqn| {
            driver.arm_srq(bus, srqn, u16::from(choices.byte()))
        }),
    }
}
