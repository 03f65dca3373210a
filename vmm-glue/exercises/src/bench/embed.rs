//! A guest's accesses to a VF whose VMM links the world: beside a guest that is busy, and as messages to a service.
//!
//! Guests are threads, and the time is the wall clock's: it is what a vCPU stands still.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant as WallInstant;
use std::{env, fs, thread};

use anyhow::{Context, ensure};
use ib_vtime::Duration;
use ib_wire::{PortNum, Qpn};
use mlx4_driver::{Bus, Destination, Driver, Talker, TalkerSpec};
use vf_tunnel::VfId;
use vfio_user::Client;
use vhca::device::Backend;
use vhca::emulated::VfOptions;
use vhca::world::{HostFunction, World};

use super::{Measured, Sample, nanos_per};
use crate::embedded::{DeviceBus, Ram, Stepper};

/// Accesses of a run beside a busy guest.
const ACCESSES: u32 = 4000;

/// Writes of a run to a quiet device.
const WRITES: u32 = 20_000;

/// Sends after which a guest waits for them.
const BURST: u32 = 40;

/// Pages of a guest's memory.
const PAGES: usize = 1024;

/// The VF of the busy guest.
const BUSY: VfId = VfId::new(2).expect("VFs are numbered from 1");

const PORT: PortNum = PortNum(1);

/// A queue pair that nobody has: a datagram to it is dropped on arrival.
const NOBODY: Qpn = Qpn::from_low_bits(0xff_fffe);

/// The register with the channel of commands.
const BAR: u8 = 2;

/// Offset of the doorbell of an event queue behind it.
const DOORBELL: u64 = 0x800;

/// The longest that anything should take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A guest's access to a register.
#[derive(Clone, Copy, Debug)]
pub(super) enum Access {
    /// The doorbell of a send.
    PostedWrite,
    /// A read of the channel.
    Read,
}

/// Measures accesses of a guest beside one that sends for as long as that takes.
pub(super) fn prepare_beside(access: Access) -> Measured {
    let what = match access {
        Access::PostedWrite => "doorbells of sends",
        Access::Read => "reads of a register",
    };
    Measured {
        setup: format!("{what} beside a guest that sends without end, 99th of 100"),
        ops: ACCESSES.into(),
        mads_per_op: None,
        run: Box::new(move |number| beside(access, number.into())),
    }
}

/// Measures writes to a quiet device in this process, and by vfio-user.
pub(super) fn prepare_writes() -> Measured {
    Measured {
        setup: "writes to a register, in this process and by messages to a service".to_owned(),
        ops: WRITES.into(),
        mads_per_op: None,
        run: Box::new(|number| writes(number.into())),
    }
}

fn options(seed: u64) -> VfOptions {
    let mut options = VfOptions::default();
    options.secret = seed.into();
    options
}

fn beside(access: Access, seed: u64) -> anyhow::Result<Sample> {
    let (ram, of_busy) = (Ram::new(PAGES)?, Ram::new(PAGES)?);
    let (mut world, at) = World::with_one_vf(ram.map(), &options(seed))?;
    let other = world.add_vf_for_vmm(at.host, BUSY, of_busy.map(), &options(seed))?;
    let stepper = Stepper::start(world)?;
    let mut guest = Guest::start(stepper.backend(), at, ram)?;
    let mut busy = Guest::start(stepper.backend(), other, of_busy)?;
    let (is_over, bursts) = (AtomicBool::new(false), AtomicU64::new(0));
    let (times, begun) = thread::scope(|scope| {
        let flood = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                busy.send()?;
                bursts.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        });
        let wait_for_burst = || {
            let before = bursts.load(Ordering::Relaxed);
            while bursts.load(Ordering::Relaxed) == before && !flood.is_finished() {
                thread::yield_now();
            }
        };
        wait_for_burst();
        let begun = (WallInstant::now(), bursts.load(Ordering::Relaxed));
        let times = guest.access(access, wait_for_burst);
        let elapsed = begun.0.elapsed();
        let sent = u64::from(BURST) * (bursts.load(Ordering::Relaxed) - begun.1);
        is_over.store(true, Ordering::Relaxed);
        let flooded = flood.join();
        flooded.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        anyhow::Ok((times?, (sent, elapsed)))
    })?;
    drop((guest, busy));
    stepper.end()?;
    let [p50, p99, most] = quantiles(times).context("no access was made")?;
    let (sent, elapsed) = begun;
    ensure!(sent > 0, "the busy guest sends nothing");
    Ok(Sample {
        nanos: p99,
        bytes_per_live: None,
        figures: vec![
            ("half of them, ns", p50),
            ("the longest, ns", most),
            ("ns/send of the busy guest", nanos_per(elapsed, sent)),
        ],
    })
}

/// Returns the median, the 99th of 100 and the longest, in nanoseconds.
fn quantiles(mut times: Vec<Duration>) -> Option<[f64; 3]> {
    times.sort_unstable();
    let last = times.len().checked_sub(1)?;
    Some([50, 99, 100].map(|part| nanos_per(times[last * part / 100], 1)))
}

/// A guest with a driver and a program that sends.
struct Guest {
    bus: DeviceBus,
    driver: Driver,
    talker: Talker,
    nobody: Destination,
}

impl Guest {
    fn start(backend: &Backend<World>, at: HostFunction, ram: Ram) -> anyhow::Result<Self> {
        let mut bus = DeviceBus::attach(backend, at)?;
        let mut driver = Driver::probe(&mut bus, ram)?;
        let end = bus.now() + LIMIT;
        while !driver.port(PORT).is_active() {
            ensure!(bus.now() < end, "the port of a VF does not become active");
            bus.wait(Duration::from_millis(1));
            driver.serve(&mut bus)?;
        }
        let spec = TalkerSpec {
            sends: BURST,
            receives: 1,
            ..TalkerSpec::default()
        };
        let talker = Talker::open(&mut driver, &mut bus, &spec)?;
        let lid = driver.port(PORT).info.lid;
        let nobody = talker.way_to((lid, NOBODY, TalkerSpec::QKEY));
        Ok(Self {
            bus,
            driver,
            talker,
            nobody,
        })
    }

    /// Sends a burst, and waits until it is sent.
    fn send(&mut self) -> anyhow::Result<()> {
        let Self {
            bus,
            driver,
            talker,
            nobody,
        } = self;
        for _ in 0..BURST {
            talker.say(driver, bus, nobody, &[0; 32])?;
        }
        let end = bus.now() + LIMIT;
        let mut sent = 0;
        while sent < BURST as usize {
            ensure!(bus.now() < end, "a send of a VF does not complete");
            sent += talker.take_sent(driver)?;
            thread::yield_now();
        }
        Ok(())
    }

    /// Accesses in bursts, and returns how long each access took.
    fn access(&mut self, access: Access, between: impl Fn()) -> anyhow::Result<Vec<Duration>> {
        self.bus.time_accesses();
        for _ in 0..ACCESSES / BURST {
            match access {
                Access::PostedWrite => self.send()?,
                Access::Read => {
                    for _ in 0..BURST {
                        self.bus.bar_read(BAR, 0, &mut [0; 4]);
                    }
                }
            }
            between();
        }
        Ok(self.bus.take_times())
    }
}

fn writes(seed: u64) -> anyhow::Result<Sample> {
    let (world, at) = World::with_one_vf(Ram::new(1)?.map(), &options(seed))?;
    let stepper = Stepper::start(world)?;
    let bus = DeviceBus::attach(stepper.backend(), at)?;
    let device = bus.device();
    let own = per_write(|| {
        device.bar_write(BAR, DOORBELL, &[0; 4]);
        Ok(())
    })?;
    // A read comes behind all writes.
    device.bar_read(BAR, DOORBELL, &mut [0; 4]);
    drop(bus);
    stepper.end()?;

    let service = Service::start()?;
    let mut client = Client::new(&service.socket()?)?;
    let message = per_write(|| {
        client.region_write(BAR.into(), DOORBELL, &[0; 4])?;
        Ok(())
    })?;
    Ok(Sample {
        nanos: own,
        bytes_per_live: None,
        figures: vec![(MESSAGE, message)],
    })
}

/// The figure that writes in the process are compared with.
pub(super) const MESSAGE: &str = "by vfio-user message, ns";

fn per_write(mut write: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let begun = WallInstant::now();
    for _ in 0..WRITES {
        write()?;
    }
    Ok(nanos_per(begun.elapsed(), WRITES.into()))
}

/// A service with one VF, in a process and a folder of its own.
struct Service {
    child: Child,
    folder: PathBuf,
}

impl Service {
    fn start() -> anyhow::Result<Self> {
        let folder = env::temp_dir().join(format!("vhca-bench-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let log = fs::File::create(folder.join("log"))?;
        let child = Command::new(env::current_exe()?)
            .args(["serve", "--topology", "single", "--vfs", "1"])
            .arg("--control")
            .arg(folder.join("control.sock"))
            .arg("--vfio-user")
            .arg(folder.join("vfs"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("vhca serve cannot be started")?;
        Ok(Self { child, folder })
    }

    /// Waits for the socket of the VF.
    fn socket(&self) -> anyhow::Result<PathBuf> {
        let end = WallInstant::now() + LIMIT;
        while WallInstant::now() < end {
            let entries = fs::read_dir(self.folder.join("vfs")).into_iter().flatten();
            let mut paths = entries.flatten().map(|entry| entry.path());
            let log = fs::read_to_string(self.folder.join("log"))?;
            let socket = paths.find(|path| path.extension().is_some_and(|it| it == "sock"));
            if let Some(socket) = socket.filter(|_| log.contains("ready")) {
                return Ok(socket);
            }
            thread::sleep(Duration::from_millis(10));
        }
        let log = fs::read_to_string(self.folder.join("log"))?;
        Err(anyhow::anyhow!("vhca serve offers no VF: {log}"))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
