//! Guests whose VMMs are in the process of the world: over [`vhca::device`], by the wall clock, each on a thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use emulated_hca::Topology;
use ib_vtime::Duration;
use ib_wire::{PortNum, Psn};
use mlx4_defs::wqe::WqeOpcode;
use pf_context::context::PfConfig;
use subnet_lite::SubnetConfig;
use vf_tunnel::VfId;
use vhca::world::{HostId, World};
use vhca_exercises::embedded::{DeviceBus, Stepper};
use vhca_tests::live::{PATIENCE, wait_for};
use vhca_tests::mlx4_driver::served::{Assault, Circle, InProcess, Site};
use vhca_tests::mlx4_driver::{
    Bus, Connection, ConnectionSpec, Driver, GuestMemory, Operation, SendWork, StrayAccesses,
};

use super::function;

const PORT: PortNum = PortNum(1);

/// Bytes that the guests of a pair exchange.
const MEBIBYTE: usize = 1 << 20;

/// The longest that anything should take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Things that hostile guests do at least.
const STEPS: u64 = 20_000;

/// A subnet with two hosts with PFs, behind two switches, and the thread that steps it.
fn hosts() -> (Stepper, [HostId; 2]) {
    let (fabric, built) = Topology::two_switches(2).build(1);
    let mut world = World::new(fabric, 1);
    let manager = world.add_host(built.hcas[0]).unwrap();
    let config = SubnetConfig::default();
    world.start_manager(manager.port(1), config).unwrap();
    let hosts = [1, 2].map(|nth| {
        let config = PfConfig::new(nth as u64);
        world.add_pf_host(built.hcas[nth], &config).unwrap()
    });
    world.run_for(Duration::from_secs(2));
    (Stepper::start(world).unwrap(), hosts)
}

fn site(stepper: &Stepper, host: HostId, vf: u16) -> InProcess {
    InProcess {
        backend: stepper.backend().clone(),
        host,
        vf: VfId::new(vf).unwrap(),
        function,
    }
}

#[test]
fn guests_on_two_hosts_do_not_notice_hostile_ones_in_their_process() {
    let (stepper, hosts) = hosts();
    let good = [1, 2].map(|vf| hosts.map(|host| site(&stepper, host, vf)));
    let circle = Circle::start(good.as_flattened());
    let assault = Assault::start(&hosts.map(|host| site(&stepper, host, 3)), 1);
    let until = |messages: u64, steps: u64| {
        let is_enough = || circle.messages() >= messages && assault.steps() >= steps;
        let over = wait_for(2 * PATIENCE, || {
            (is_enough() || circle.is_broken()).then_some(())
        });
        assert!(over.is_some(), "{circle:?} {assault:?}");
    };
    until(200, STEPS);
    let assaulted = assault.end();
    println!("{assaulted:?}");
    // The neighbours go on when the hostile ones are gone, too.
    let heard = circle.messages();
    let went_on = wait_for(PATIENCE, || {
        let is_more = circle.messages() >= heard + 40;
        (is_more || circle.is_broken()).then_some(())
    });
    let talk = circle.end();
    println!("{talk:?}");
    assert!(
        went_on.is_some() && talk.messages >= 240 && talk.answers > 0,
        "{talk:?}"
    );
    assert_eq!(assaulted.cut_off, 0, "{assaulted:?}");
    let depth = assaulted.depth;
    assert!(
        assaulted.vmms > 4 && depth.probes > 0 && depth.accepted > 0 && depth.connections > 0,
        "{assaulted:?}"
    );
    stepper.end().unwrap();
}

/// A guest with a connection, before it is connected.
struct End {
    bus: DeviceBus,
    memory: GuestMemory,
    driver: Driver,
    connection: Connection,
}

impl End {
    fn new(site: &InProcess, psn: u32) -> Self {
        let (mut bus, memory) = site.attach().unwrap();
        let mut driver = Driver::probe(&mut bus, memory.clone()).unwrap();
        serve_until(&mut bus, &mut driver, |driver| {
            driver.port(PORT).is_active()
        });
        let spec = ConnectionSpec {
            len: 2 * MEBIBYTE,
            psn: Psn::from_low_bits(psn),
            ..ConnectionSpec::reliable()
        };
        let connection = Connection::open(&mut driver, &mut bus, &spec).unwrap();
        Self {
            bus,
            memory,
            driver,
            connection,
        }
    }

    /// Posts a request, and waits until it is done well.
    fn carry_out(&mut self, work: SendWork) -> u8 {
        let Self {
            bus,
            driver,
            connection,
            ..
        } = self;
        connection.post(driver, bus, &[work]).unwrap();
        let mut done = Vec::new();
        serve_until(bus, driver, |driver| {
            done.extend(connection.completions(driver).unwrap());
            !done.is_empty()
        });
        assert!(done.len() == 1 && done[0].error.is_none(), "{done:?}");
        done[0].opcode
    }

    /// Takes everything down, in the kernel's order.
    fn end(self) {
        let Self {
            mut bus,
            memory,
            mut driver,
            connection,
        } = self;
        connection.close(&mut driver, &mut bus).unwrap();
        driver.remove(&mut bus).unwrap();
        assert_eq!(memory.allocated_pages(), 0);
        assert_eq!(memory.stray_accesses(), StrayAccesses::default());
        assert!(bus.device().statistics().interrupts > 0);
    }
}

fn serve_until(
    bus: &mut DeviceBus,
    driver: &mut Driver,
    mut is_so: impl FnMut(&mut Driver) -> bool,
) {
    let end = bus.now() + LIMIT;
    loop {
        driver.serve(bus).unwrap();
        if is_so(driver) {
            return;
        }
        assert!(bus.now() < end, "it does not come: {bus:?}");
        bus.wait(Duration::from_millis(1));
    }
}

#[test]
fn a_guest_writes_and_reads_a_mebibyte_of_another_host_s_guest() {
    let (stepper, hosts) = hosts();
    let [mut one, other] = [(0, 0xff_fff0), (1, 5)].map(|(nth, psn)| {
        let at = site(&stepper, hosts[nth], 1);
        End::new(&at, psn)
    });
    let addresses = [&one, &other].map(|end| end.connection.address(&end.driver));
    // The other one's program does nothing meanwhile but to serve its driver.
    let (is_over, mut other) = (AtomicBool::new(false), other);
    let End {
        bus,
        driver,
        connection,
        ..
    } = &mut other;
    connection.connect(driver, bus, &addresses[0]).unwrap();
    let End {
        bus,
        driver,
        connection,
        ..
    } = &mut one;
    connection.connect(driver, bus, &addresses[1]).unwrap();

    let bytes: Vec<u8> = (0..=250).cycle().take(MEBIBYTE).collect();
    let remote = other.connection.remote(0);
    one.connection.region.write(0, &bytes);
    thread::scope(|scope| {
        let (over, served) = (&is_over, &mut other);
        scope.spawn(move || {
            let end = served.bus.now() + LIMIT;
            while !over.load(Ordering::Relaxed) && served.bus.now() < end {
                served.driver.serve(&mut served.bus).unwrap();
                served.bus.wait(Duration::from_millis(1));
            }
        });
        let write = one.connection.part(0, MEBIBYTE);
        let write = SendWork::to_peer(1, write, Operation::Write(remote));
        assert_eq!(one.carry_out(write), WqeOpcode::RDMA_WRITE.get());
        let read = one.connection.part(MEBIBYTE, MEBIBYTE);
        let read = SendWork::to_peer(2, read, Operation::Read(remote));
        assert_eq!(one.carry_out(read), WqeOpcode::RDMA_READ.get());
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(other.connection.region.read(0, MEBIBYTE) == bytes);
    assert!(one.connection.region.read(MEBIBYTE, MEBIBYTE) == bytes);
    one.end();
    other.end();
    stepper.end().unwrap();
}
