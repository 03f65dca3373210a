//! How fast the mlx4 function is, as its driver sees it:
//! `cargo run --release -p vhca-tests --example mlx4_rates`.
//!
//! The driver is that of the tests; both sides and the adapter run in this thread, so a figure counts what
//! the driver does, too.

use std::error::Error;
use std::time::Instant;

use mlx4_defs::Opcode;
use vf_pci::PciFunction;
use vf_proxy::mlx4::{Mlx4Config, Mlx4Function};
use vhca_tests::mlx4_driver::{
    Bench, Bus, Command, Destination, Driver, DriverError, GuestId, GuestMemory, Lab, LabPlan,
    Talker, TalkerSpec,
};

/// Runs of each case; the table has the median.
const RUNS: usize = 9;

/// What is measured in one run.
const MESSAGES: usize = 20_000;

/// Sends that are posted with one doorbell.
const BATCH: usize = 32;

/// Bytes of a message.
const LENGTHS: [usize; 2] = [64, 2048];

fn function() -> Box<dyn PciFunction> {
    Box::new(Mlx4Function::new(&Mlx4Config::default()))
}

fn spec() -> TalkerSpec {
    TalkerSpec {
        sends: 64,
        receives: 64,
        ..TalkerSpec::default()
    }
}

/// Runs a case and prints its median, minimum and maximum.
fn measure(
    name: &str,
    mut run: impl FnMut() -> Result<f64, DriverError>,
) -> Result<(), DriverError> {
    let mut figures = (0..RUNS).map(|_| run()).collect::<Result<Vec<_>, _>>()?;
    figures.sort_by(f64::total_cmp);
    let (median, min, max) = (figures[RUNS / 2], figures[0], figures[RUNS - 1]);
    println!("| {name} | {median:.0} | {min:.0} | {max:.0} |");
    Ok(())
}

/// Nanoseconds of one of so many, since a time.
fn per_one(start: Instant, count: usize) -> f64 {
    start.elapsed().as_secs_f64() * 1e9 / f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// A program on a function alone, which talks to itself.
struct Alone {
    bench: Bench,
    driver: Driver,
    talker: Talker,
    way: Destination,
}

impl Alone {
    fn new() -> Result<Self, DriverError> {
        let memory = GuestMemory::new(4096);
        let mut bench = Bench::new(&memory, 1, function());
        let mut driver = Driver::probe(&mut bench, memory)?;
        let talker = Talker::open(&mut driver, &mut bench, &spec())?;
        let lid = driver.port(ib_wire::PortNum(1)).info.lid;
        let way = talker.way_to(talker.address(lid));
        Ok(Self {
            bench,
            driver,
            talker,
            way,
        })
    }

    /// From the doorbell to the completion that the driver sees.
    fn latency(&mut self, len: usize) -> Result<f64, DriverError> {
        let message = vec![7; len];
        let mut spent = 0.0;
        for _ in 0..MESSAGES {
            let work = self.talker.request(&mut self.driver, &self.way, &message)?;
            self.driver.write_sends(self.talker.qpn, &[work])?;
            let start = Instant::now();
            self.driver.ring(&mut self.bench, self.talker.qpn)?;
            while self.talker.take_sent(&mut self.driver)? == 0 {}
            spent += per_one(start, MESSAGES);
            self.talker.hear(&mut self.driver)?;
        }
        Ok(spent)
    }

    /// A command that does nothing, from the channel to the event.
    fn command(&mut self) -> Result<f64, DriverError> {
        let nop = Command::new(Opcode::NOP, 0x1f);
        let start = Instant::now();
        for _ in 0..MESSAGES {
            self.driver.core().execute(&mut self.bench, &nop)?;
        }
        Ok(per_one(start, MESSAGES))
    }

    /// A probe from the first register to the special queue pairs, in microseconds.
    fn probe() -> Result<f64, DriverError> {
        let memory = GuestMemory::new(4096);
        let mut bench = Bench::new(&memory, 1, function());
        let start = Instant::now();
        let driver = Driver::probe(&mut bench, memory)?;
        let spent = per_one(start, 1) / 1000.0;
        driver.remove(&mut bench)?;
        Ok(spent)
    }
}

/// Two guests, one of which talks to the other.
struct Pair {
    lab: Lab,
    from: (GuestId, Talker),
    to: (GuestId, Talker),
    way: Destination,
}

impl Pair {
    fn new(hosts: u8, guests: u16) -> Result<Self, DriverError> {
        let mut lab = Lab::new(LabPlan::new(hosts, guests), |_| function());
        if !lab.bring_up()? {
            return Err(DriverError::Usage("the ports do not become active"));
        }
        let mut open = |guest| {
            let talker = lab.on(guest, |driver, bus| Talker::open(driver, bus, &spec()));
            talker.map(|talker| (guest, talker))
        };
        let (from, to) = (open(GuestId(0))?, open(GuestId(1))?);
        let port = ib_wire::PortNum(1);
        let lid = lab.on(to.0, |driver, _| driver.port(port).info.lid);
        let way = from.1.way_to(to.1.address(lid));
        Ok(Self { lab, from, to, way })
    }

    /// Messages in batches, until they are read at the other end.
    fn rate(&mut self, len: usize) -> Result<f64, DriverError> {
        let message = vec![7; len];
        let start = Instant::now();
        let mut heard = 0;
        for _ in 0..MESSAGES / BATCH {
            let (guest, talker) = &mut self.from;
            let way = self.way;
            self.lab.on(*guest, |driver, bus| {
                let works = (0..BATCH)
                    .map(|_| talker.request(driver, &way, &message))
                    .collect::<Result<Vec<_>, _>>()?;
                driver.post_sends(bus, talker.qpn, &works)
            })?;
            self.lab.run_for(ib_vtime::Duration::from_micros(1))?;
            let (guest, talker) = &mut self.to;
            heard += self.lab.on(*guest, |driver, _| talker.hear(driver))?.len();
        }
        if heard != MESSAGES / BATCH * BATCH {
            return Err(DriverError::Usage("messages were lost"));
        }
        Ok(1e9 / per_one(start, heard))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("| what | median | min | max |\n| --- | --- | --- | --- |");
    measure("probe to the special queue pairs, us", Alone::probe)?;
    let mut alone = Alone::new()?;
    alone.bench.wait(ib_vtime::Duration::from_millis(1));
    measure("a command that completes by event, ns", || alone.command())?;
    for len in LENGTHS {
        let name = format!("doorbell to CQE, {len} bytes, ns");
        measure(&name, || alone.latency(len))?;
    }
    for (place, hosts, guests) in [("one host", 1, 2), ("two hosts", 2, 1)] {
        let mut pair = Pair::new(hosts, guests)?;
        for len in LENGTHS {
            let name = format!("UD messages per second, {place}, {len} bytes");
            measure(&name, || pair.rate(len))?;
        }
    }
    Ok(())
}
