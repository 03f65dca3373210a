//! Times of a VM's accesses to its device beside other VMs' work, and beside a VM that masks and unmasks its vectors. Then devices
//! are unplugged during their work, and the descriptors that the process keeps are counted.

mod bus;
mod ram;
mod storm;

use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mlx4_driver::{Bus, DriverError, Talker, TalkerSpec};
use vhca::device::{Device, TrappedDoorbells};
use vhca::emulated::{Lid, PortNum, VfOptions};
use vm_memory::GuestAddressSpace;

use crate::console::Running;
use crate::modes::{TALK, Verdict};
use crate::vm::MEMORY;
use crate::{Host, memory, vf};
use bus::{DeviceBus, Signals};
use ram::Ram;

/// Orders to the payload; see there.
pub(crate) const END: u32 = 0;
const SEND: u32 = 1 << 24;
const TAKE: u32 = 2 << 24;
const READ: u32 = 3 << 24;
const ENDLESS: u32 = 0xff_ffff;
const ACCESSES: u32 = 4000;
/// Port of a driver, and LID of the subnet manager's port, whose host has no queue pair for datagrams.
const PORT: PortNum = PortNum(1);
const SM: Lid = Lid::new(1);
/// A queue pair that nobody has. What is sent there is dropped.
const NOBODY: u32 = 0xff_fffe;

const DRIVERS: u16 = 14;
/// Sends of a driver after which it waits for them.
const BURST: u32 = 40;
/// Time after which a step is given up.
const LIMIT: Duration = Duration::from_secs(120);

/// A driver on a thread of this process.
struct Driver {
    device: Device,
    sent: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), DriverError>>,
}

impl Driver {
    fn start(host: &Host, number: u16) -> Result<Self, Box<dyn Error>> {
        let memory = memory(MEMORY)?;
        let ram = memory.clone();
        let at = host.backend.with(|world| {
            world.add_vf_for_vmm(host.at[0], vf(number), ram, &VfOptions::default())
        })??;
        let doorbells = Arc::new(TrappedDoorbells);
        let signals = Arc::<Signals>::default();
        let device = host.backend.attach(at, signals.clone(), doorbells)?;
        let (sent, is_over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let bus = DeviceBus::new(device.clone(), signals, is_over.clone());
        let (ram, its_sent) = (Ram::new(memory.memory().into_inner()), sent.clone());
        let thread = thread::spawn(move || drive(bus, ram, &its_sent));
        Ok(Self {
            device,
            sent,
            is_over,
            thread,
        })
    }

    /// Ends the driver amid its work. Its device stays.
    fn kill(self) -> Device {
        self.is_over.store(true, Ordering::Relaxed);
        // It ends by a panic, wherever it is.
        let _ = self.thread.join();
        self.device
    }
}

/// Brings a VF up and sends for as long as it is let.
fn drive(mut bus: DeviceBus, ram: Ram, sent: &AtomicU64) -> Result<(), DriverError> {
    let mut driver = mlx4_driver::Driver::probe(&mut bus, ram)?;
    while !driver.port(PORT).is_active() {
        driver.serve(&mut bus)?;
        bus.wait(Duration::ZERO);
    }
    let spec = TalkerSpec {
        sends: BURST,
        ..TalkerSpec::default()
    };
    let mut talker = Talker::open(&mut driver, &mut bus, &spec)?;
    let nobody = talker.way_to((SM, talker.qpn, TalkerSpec::QKEY));
    loop {
        for _ in 0..BURST {
            talker.say(&mut driver, &mut bus, &nobody, b"")?;
        }
        let mut completed = 0;
        while completed < BURST as usize {
            bus.wait(Duration::ZERO);
            completed += talker.take_sent(&mut driver)?;
        }
        sent.fetch_add(BURST.into(), Ordering::Relaxed);
    }
}

/// Waits for something that is bound to come.
fn wait(what: &str, is_there: impl Fn() -> bool) -> Result<(), Box<dyn Error>> {
    let begun = Instant::now();
    while !is_there() {
        if begun.elapsed() > LIMIT {
            return Err(format!("{what}: not within {LIMIT:?}").into());
        }
        thread::yield_now();
    }
    Ok(())
}

/// Returns how many descriptors this process has, and how many of them are eventfds.
fn descriptors() -> [usize; 2] {
    let files = fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten();
    let links: Vec<_> = files
        .filter_map(|file| fs::read_link(file.path()).ok())
        .collect();
    let events = links
        .iter()
        .filter(|link| link.ends_with("anon_inode:[eventfd]"));
    [links.len(), events.count()]
}

/// Boots a VM whose queue pair sends to nobody.
pub(crate) fn start_vm(
    host: &Host,
    nth: usize,
    is_trapped: bool,
) -> Result<Running, Box<dyn Error>> {
    let memory = memory(MEMORY)?;
    let vm = host.start((nth, is_trapped), memory.clone(), memory, [TALK, 0])?;
    vm.wait()?;
    vm.call(NOBODY)?;
    Ok(vm)
}

/// Returns a percentile of times that are in order.
fn part(times: &[Duration], percent: usize) -> Duration {
    times[(times.len() - 1) * percent / 100]
}

/// Detaches devices.
fn settle(devices: impl IntoIterator<Item = Device>) -> Result<(), Box<dyn Error>> {
    let mut gone = devices.into_iter().map(|device| device.detach().is_none());
    match gone.any(|is_gone| is_gone) {
        true => Err("the end: a device was gone".into()),
        false => Ok(()),
    }
}

/// Boots a VM, has it access its registers, and prints how long that took.
fn measure(host: &Host, when: &str) -> Result<(), Box<dyn Error>> {
    let begun = Instant::now();
    let vm = start_vm(host, 0, true)?;
    for order in [SEND | ACCESSES, TAKE, READ | ACCESSES] {
        vm.call(order)?;
    }
    vm.order(END);
    let times = vm.end()?.times;
    println!("a VM {when}: {:.1?}", begun.elapsed());
    for (mut times, what) in times.into_iter().zip(["posted writes", "reads"]) {
        times.sort_unstable();
        let [p50, p99, max] = [50, 99, 100].map(|percent| part(&times, percent));
        let count = times.len();
        println!("    {count} {what}: p50 {p50:.1?}, p99 {p99:.1?}, maximum {max:.1?}");
    }
    Ok(())
}

/// Waits until each driver has sent more.
fn go_on(drivers: &[Driver]) -> Result<(), Box<dyn Error>> {
    for driver in drivers {
        let before = driver.sent.load(Ordering::Relaxed);
        let goes_on = || driver.sent.load(Ordering::Relaxed) > before;
        wait("another send of a driver", goes_on)?;
    }
    Ok(())
}

pub(crate) fn siege(host: &Host) -> Verdict {
    let before = descriptors();
    measure(host, "alone")?;
    storm::storm(host)?;

    let begun = Instant::now();
    let drivers = (3..3 + DRIVERS).map(|number| Driver::start(host, number));
    let mut drivers = drivers.collect::<Result<Vec<_>, _>>()?;
    go_on(&drivers)?;
    let flood = start_vm(host, 1, false)?;
    flood.order(SEND | ENDLESS);
    wait("a flood", || flood.device.statistics().rings > 100)?;
    println!(
        "{DRIVERS} drivers and a VM that floods: {:.1?}",
        begun.elapsed()
    );
    let amid = descriptors();
    measure(host, "beside them")?;
    go_on(&drivers)?;

    let begun = Instant::now();
    let mut devices: Vec<_> = drivers.pop().map(Driver::kill).into_iter().collect();
    if flood.device.detach().is_none() || flood.wait().is_ok() {
        return Err("the detached VM goes on".into());
    }
    go_on(&drivers)?;
    println!(
        "a driver killed, and the flood's device detached: {:.1?}",
        begun.elapsed()
    );
    measure(host, "beside the rest")?;

    devices.extend(drivers.into_iter().map(Driver::kill));
    settle(devices)?;
    drop(flood);
    wait("descriptors as before", || descriptors() == before)?;
    let [[all, events], [more, signals]] = [before, amid];
    println!("descriptors before and after: {all}, {events} of them eventfds");
    println!("    amid the flood: {more}, {signals} of them eventfds");
    if signals <= events {
        return Err("a flood: it rings no ioeventfd".into());
    }
    Ok(true)
}
