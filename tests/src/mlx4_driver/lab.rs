//! Guests with their drivers on the VFs of hosts, on a fabric with a subnet manager.

use std::collections::BTreeSet;

use emulated_hca::{Adapters, PlannedPort, Topology};
use hca_api::{FunctionId, FunctionManager, Hca, ResourceCounts};
use ib_vtime::{Duration, Instant};
use ib_wire::{Guid, PortNum};
use pf_context::context::{PfConfig, VfSpec};
use subnet_lite::SubnetConfig;
use vf_pci::PciFunction;
use vf_tunnel::VfId;
use vhca::Driven;
use vhca::world::{HostFunction, HostId, World, vf_spec};

use super::{Bus, Driver, DriverError, GuestMemory};

/// Pages of a guest's memory.
const GUEST_PAGES: usize = 2048;

/// Which guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestId(pub usize);

/// What a lab is made of.
#[derive(Clone, Copy, Debug)]
pub struct LabPlan {
    /// Hosts whose adapters are shared; one more runs the subnet manager.
    pub hosts: u8,
    /// Guests on each of them.
    pub guests: u16,
    /// Ports of each adapter.
    pub ports: u8,
    /// Adapters on the switch that nobody uses.
    pub bystanders: u8,
    /// The seed of everything.
    pub seed: u64,
}

impl LabPlan {
    /// So many hosts with so many guests each, on adapters with one port.
    #[must_use]
    pub const fn new(hosts: u8, guests: u16) -> Self {
        Self {
            hosts,
            guests,
            ports: 1,
            bystanders: 0,
            seed: 1,
        }
    }
}

/// A guest: its place, its memory, and its driver while one is bound.
#[derive(Debug)]
pub struct Guest {
    /// The VF.
    pub at: HostFunction,
    /// Its memory.
    pub memory: GuestMemory,
    /// Its driver, while one is bound.
    pub driver: Option<Driver>,
}

/// A fabric of one switch, a host with a subnet manager, and hosts with guests. Time is virtual.
#[derive(Debug)]
pub struct Lab {
    world: World,
    manager: HostId,
    hosts: Vec<HostId>,
    guests: Vec<Guest>,
    /// Devices that signalled an interrupt which was not served yet.
    signalled: BTreeSet<HostFunction>,
}

impl Lab {
    /// The longest that anything in a lab should take.
    pub const LIMIT: Duration = Duration::from_secs(60);

    /// Builds a lab whose guests have no driver yet. `function` makes each guest's device.
    ///
    /// # Panics
    /// If the plan cannot be built.
    #[must_use]
    pub fn new(plan: LabPlan, mut function: impl FnMut(u64) -> Box<dyn PciFunction>) -> Self {
        let mut topology = Topology::default();
        let switch = topology.add_switch("switch", 254);
        let mut links = 1..;
        for host in 0..=plan.hosts {
            let hca = topology.add_hca(&format!("host-{host}"), plan.ports);
            let config = &mut topology.hcas[hca];
            config.max_functions = plan.guests.max(1);
            config.guid_table_len = plan.guests + 1;
            for port in 1..=plan.ports {
                let at = links.next().expect("a port of the switch");
                topology.connect(PlannedPort::Hca(hca, port), PlannedPort::Switch(switch, at));
            }
        }
        for bystander in 0..plan.bystanders {
            let hca = topology.add_hca(&format!("bystander-{bystander}"), 1);
            let at = links.next().expect("a port of the switch");
            topology.connect(PlannedPort::Hca(hca, 1), PlannedPort::Switch(switch, at));
        }
        let (fabric, built) = topology.build(plan.seed);
        let shared = &built.hcas[1..=usize::from(plan.hosts)];
        let mut world = World::new(fabric, plan.seed);
        let manager = world.add_host(built.hcas[0]).expect("a plain host");
        world
            .start_manager(manager.port(1), SubnetConfig::default())
            .expect("a subnet manager");
        let mut hosts = Vec::new();
        let mut guests = Vec::new();
        for (number, node) in (1_u64..).zip(shared) {
            let config = PfConfig::new(plan.seed + number);
            let host = world.add_pf_host(*node, &config).expect("a shared host");
            hosts.push(host);
            for vf in (1..=plan.guests).filter_map(VfId::new) {
                let guid = Guid::new(0x0014_0500_0000_0000 + (number << 16) + u64::from(vf.get()));
                let memory = GuestMemory::new(GUEST_PAGES);
                let spec = VfSpec {
                    memory: Box::new(memory.clone()),
                    ..vf_spec(guid)
                };
                world.add_idle_vf(host, vf, spec).expect("a VF");
                let device = function(plan.seed + (number << 16) + u64::from(vf.get()));
                let at = world.add_device(host, vf, device).expect("a device");
                guests.push(Guest {
                    at,
                    memory,
                    driver: None,
                });
            }
        }
        Self {
            world,
            manager,
            hosts,
            guests,
            signalled: BTreeSet::new(),
        }
    }

    /// Binds every guest's driver, and waits until all ports are active and know their SM.
    ///
    /// # Errors
    /// What a driver finds wrong.
    pub fn bring_up(&mut self) -> Result<bool, DriverError> {
        for guest in self.guest_ids() {
            self.boot(guest)?;
        }
        self.run_until(|lab| Ok(lab.guest_ids().all(|guest| lab.is_up(guest))))
    }

    /// Whether all ports of a guest are active and know their SM.
    ///
    /// # Panics
    /// If no driver is bound.
    #[must_use]
    pub fn is_up(&self, guest: GuestId) -> bool {
        let driver = self.guests[guest.0].driver.as_ref();
        let driver = driver.expect("a driver is bound");
        let mut ports = (1..)
            .map(PortNum)
            .take(driver.capabilities().ports.len())
            .map(|port| driver.port(port));
        ports.all(|port| port.is_active() && port.info.master_sm_lid.is_unicast())
    }

    /// All guests.
    pub fn guest_ids(&self) -> impl Iterator<Item = GuestId> + use<> {
        (0..self.guests.len()).map(GuestId)
    }

    /// A guest.
    #[must_use]
    pub fn guest(&self, guest: GuestId) -> &Guest {
        &self.guests[guest.0]
    }

    /// The world.
    #[must_use]
    pub const fn world(&self) -> &World {
        &self.world
    }

    /// The world, to be changed.
    pub const fn world_mut(&mut self) -> &mut World {
        &mut self.world
    }

    /// The host of the subnet manager.
    #[must_use]
    pub const fn manager(&self) -> HostId {
        self.manager
    }

    /// The hosts with guests.
    #[must_use]
    pub fn hosts(&self) -> &[HostId] {
        &self.hosts
    }

    /// What a guest's VF owns of the adapter.
    ///
    /// # Panics
    /// If the lab has no such guest.
    #[must_use]
    pub fn owned(&mut self, guest: GuestId) -> ResourceCounts {
        let at = self.guests[guest.0].at;
        let node = self.world.host(at.host).node();
        let pf = self.world.fabric_mut().hca(node, FunctionId::PF);
        pf.expect("the physical function")
            .resources(at.function)
            .expect("the VF")
    }

    /// The bus of a guest, without its driver.
    pub fn bus(&mut self, guest: GuestId) -> impl Bus + '_ {
        LabBus {
            world: &mut self.world,
            at: self.guests[guest.0].at,
            signalled: &mut self.signalled,
        }
    }

    /// Binds a driver to a guest's device.
    ///
    /// # Errors
    /// Those of [`Driver::probe`]; then none is bound.
    pub fn boot(&mut self, guest: GuestId) -> Result<(), DriverError> {
        self.guests[guest.0].driver = None;
        let memory = self.guests[guest.0].memory.clone();
        let driver = Driver::probe(&mut self.bus(guest), memory)?;
        self.guests[guest.0].driver = Some(driver);
        Ok(())
    }

    /// Unbinds a guest's driver, in the kernel's order.
    ///
    /// # Errors
    /// Those of [`Driver::remove`].
    ///
    /// # Panics
    /// If none is bound.
    pub fn shut_down(&mut self, guest: GuestId) -> Result<(), DriverError> {
        let driver = self.guests[guest.0].driver.take();
        let driver = driver.expect("a driver is bound");
        driver.remove(&mut self.bus(guest))
    }

    /// Forgets a guest's driver without a word to the device, and gives its memory back: the machine was
    /// reset.
    ///
    /// # Panics
    /// If none is bound.
    pub fn abandon(&mut self, guest: GuestId) {
        let driver = self.guests[guest.0].driver.take();
        let driver = driver.expect("a driver is bound");
        driver.abandon(&mut self.bus(guest));
    }

    /// Has the PF reset a guest's VF.
    ///
    /// # Panics
    /// Never: the VF exists.
    pub fn reset_vf(&mut self, guest: GuestId) {
        let at = self.guests[guest.0].at;
        let vf = VfId::new(at.function.0).expect("a VF");
        self.world.reset_vf(at.host, vf).expect("a VF");
    }

    /// Calls something with a guest's driver.
    ///
    /// # Panics
    /// If none is bound.
    pub fn on<T>(
        &mut self,
        guest: GuestId,
        call: impl FnOnce(&mut Driver, &mut dyn Bus) -> T,
    ) -> T {
        let entry = &mut self.guests[guest.0];
        let mut bus = LabBus {
            world: &mut self.world,
            at: entry.at,
            signalled: &mut self.signalled,
        };
        call(entry.driver.as_mut().expect("a driver is bound"), &mut bus)
    }

    /// Lets time pass; every driver serves its interrupts.
    ///
    /// # Errors
    /// What a driver finds wrong.
    pub fn run_for(&mut self, duration: Duration) -> Result<(), DriverError> {
        let end = self.world.now() + duration;
        self.run_until_time(end, |_| Ok(false)).map(|_| ())
    }

    /// Lets time pass until the condition holds. Whether it did within [`Self::LIMIT`].
    ///
    /// # Errors
    /// What a driver finds wrong, or the condition gives.
    pub fn run_until(
        &mut self,
        condition: impl FnMut(&mut Self) -> Result<bool, DriverError>,
    ) -> Result<bool, DriverError> {
        let end = self.world.now() + Self::LIMIT;
        self.run_until_time(end, condition)
    }

    fn run_until_time(
        &mut self,
        end: Instant,
        mut condition: impl FnMut(&mut Self) -> Result<bool, DriverError>,
    ) -> Result<bool, DriverError> {
        loop {
            self.serve_drivers()?;
            if condition(self)? {
                return Ok(true);
            }
            let now = self.world.now();
            if now >= end {
                return Ok(false);
            }
            let due = self.guests.iter().filter_map(|guest| {
                let driver = guest.driver.as_ref()?;
                driver.poll_timeout()
            });
            let next = due.min().map_or(end, |due| due.clamp(now, end));
            let signalled = &mut self.signalled;
            self.world.run_until(next - now, |world| {
                signalled.extend(core::iter::from_fn(|| world.poll_interrupting()));
                !signalled.is_empty()
            });
        }
    }

    /// Has every driver do what is due.
    fn serve_drivers(&mut self) -> Result<(), DriverError> {
        let now = self.world.now();
        for entry in &mut self.guests {
            let Some(driver) = entry.driver.as_mut() else {
                self.signalled.remove(&entry.at);
                continue;
            };
            let is_due = driver.poll_timeout().is_some_and(|due| due <= now);
            if self.signalled.contains(&entry.at) || is_due || driver.has_work() {
                let mut bus = LabBus {
                    world: &mut self.world,
                    at: entry.at,
                    signalled: &mut self.signalled,
                };
                driver.serve(&mut bus)?;
            }
        }
        Ok(())
    }
}

/// A function in a world, as its guest's driver finds it.
#[derive(Debug)]
struct LabBus<'l> {
    world: &'l mut World,
    at: HostFunction,
    signalled: &'l mut BTreeSet<HostFunction>,
}

impl LabBus<'_> {
    fn call<T>(
        &mut self,
        call: impl FnOnce(&mut dyn PciFunction, &mut dyn Hca, Instant) -> T,
    ) -> T {
        let result = self.world.with_device(self.at, call);
        result.expect("the VF has a device")
    }

    fn function(&self) -> &dyn PciFunction {
        let view = self.world.device(self.at);
        view.expect("the VF has a device").function()
    }
}

impl Bus for LabBus<'_> {
    fn now(&self) -> Instant {
        self.world.now()
    }

    fn bar_size(&self, bar: u8) -> Option<u64> {
        let mut bars = self.function().bars().iter();
        bars.find(|found| found.index == bar)
            .map(|found| found.size)
    }

    fn interrupt_vectors(&self) -> u16 {
        self.function().interrupt_vectors()
    }

    fn config_read(&mut self, offset: u16, out: &mut [u8]) {
        self.function().config_read(offset, out);
    }

    fn config_write(&mut self, offset: u16, bytes: &[u8]) {
        self.call(|function, hca, now| function.config_write(now, hca, offset, bytes));
    }

    fn bar_read(&mut self, bar: u8, offset: u64, out: &mut [u8]) {
        self.call(|function, _, _| function.bar_read(bar, offset, out));
    }

    fn bar_write(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        self.call(|function, hca, now| function.bar_write(now, hca, bar, offset, bytes));
    }

    fn take_interrupt(&mut self) -> Option<u16> {
        let vector = self.world.poll_interrupt(self.at);
        if vector.is_none() {
            self.signalled.remove(&self.at);
        }
        vector
    }

    fn wait(&mut self, at_most: Duration) {
        let (at, signalled) = (self.at, &mut *self.signalled);
        self.world.run_until(at_most, |world| {
            signalled.extend(core::iter::from_fn(|| world.poll_interrupting()));
            signalled.contains(&at)
        });
    }

    fn reset(&mut self) {
        self.call(|function, hca, now| function.reset(now, hca));
        let now = self.world.now();
        self.world.poll(now);
    }
}
