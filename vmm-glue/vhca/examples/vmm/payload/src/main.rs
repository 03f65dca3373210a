//! A driver of a ConnectX-3 VF without an operating system: what the example `vmm` runs in its VM.
//!
//! It is entered in long mode, with the first 4 GiB at their own addresses and its memory zeroed, with a mode, an argument of
//! that and the cycles of a millisecond, and ends at port [`cpu::END`]. It names each step to the VMM, which takes the time.
#![no_std]
#![no_main]

extern crate alloc;

mod cpu;
mod guest;
mod heap;
mod pci;
mod tour;
mod vf;

use core::panic::PanicInfo;

use cpu::step;
use guest::{Guest, PORT, sure};
use ib_wire::{Lid, Qpn};
use mlx4_defs::Opcode;
use mlx4_defs::qp::QpState;
use mlx4_driver::{Command, Core, Destination, Talker, TalkerSpec};
use vf::{Vf, Wait};

/// Addresses of the registers, and those that they move to.
const FIRST: [u64; 2] = [0xd000_0000, 0xe000_0000];
const SECOND: [u64; 2] = [0xd100_0000, 0xe010_0000];

/// The MSI-X vector of commands.
const VECTOR: u16 = 0;
/// The command that does nothing.
const NOP: Command = Command::new(Opcode::NOP, 0x1f);

/// LID of the subnet manager's port, whose host has no queue pair for datagrams.
const NOBODY: Lid = Lid::new(1);
/// Sends that may be outstanding.
const OUTSTANDING: u32 = 64;
/// Receives: more than there are datagrams in 256 KiB, which the device keeps for a VF that is paused.
const RECEIVES: u32 = 512;
/// A datagram between VMs.
const MESSAGE: [u8; 512] = [0x5a; 512];

const COMMANDS: u32 = 300;
const MASKS: u32 = 1000;
const SENDS: u32 = 10_000;
const PLUGGED_SENDS: u32 = 1000;
/// Sends after which the driver waits for their completions.
const BURST: u32 = 40;
/// Sends from one move of the registers to the next.
const MOVE_EVERY: u32 = 100;
/// Orders of the VMM, in the high byte: end; post so many sends; take so many datagrams, and the completions of all sends; read
/// a register so often.
const END: u32 = 0;
const SEND: u32 = 1;
const TAKE: u32 = 2;
const READ: u32 = 3;
/// Looks for a completion after which the driver looks whether the device is still there.
const LOOKS: u32 = 4096;
/// Cycles that make no difference to a doorbell's time, and to a command's.
const OF_DOORBELL: u64 = 64;
const OF_COMMAND: u64 = 1024;

#[unsafe(no_mangle)]
extern "C" fn _start(mode: u64, argument: u64, khz: u64, memory: usize) -> ! {
    cpu::set_up();
    heap::set_up(memory);
    step("function found");
    let vf = Vf::find(khz);
    if mode == 5 {
        tour::tour(argument, vf);
        cpu::end(0)
    }
    let mut guest = bring_up(vf);
    match mode {
        0 => steps(&mut guest),
        1 => doorbells(&mut guest, argument != 0),
        2 => masks(&mut guest),
        3 => plug(&mut guest, argument as usize),
        4 => talk(&mut guest),
        6 => commands(&mut guest, argument != 0),
        _ => panic!(),
    }
    guest.unbind();
    cpu::end(0)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let at = info.location();
    if let Some(at) = at {
        step(at.file());
    }
    cpu::end(at.map_or(u32::MAX, |at| at.line()))
}

/// Places the registers and binds the driver.
fn bring_up(mut vf: Vf) -> Guest {
    step("BARs sized");
    vf.measure();
    assert!(vf.sizes[0] == 8 << 20 && vf.sizes[1] > 0);
    step("BARs placed");
    vf.place(FIRST);
    assert!(vf.is_online());
    step("BARs moved");
    vf.place(SECOND);
    assert!(vf.is_online());
    let guest = Guest::bind(vf);
    assert!(guest.driver.capabilities().firmware.0 == 2);
    guest
}

/// Executes a command that does nothing.
fn nop(vf: &mut Vf, core: &mut Core) {
    sure(core.post(vf, &NOP));
    sure(core.finish(vf, &NOP));
}

fn steps(guest: &mut Guest) {
    step("300 commands by interrupt");
    let (vf, core) = (&mut guest.vf, guest.driver.core());
    let before = Vf::interrupts(VECTOR);
    for nth in 1..=COMMANDS {
        nop(vf, core);
        assert!(Vf::interrupts(VECTOR) == before + nth);
    }
    step("a vector masked while it fires");
    core.set_masked(vf, VECTOR, true);
    sure(core.post(vf, &NOP));
    while !sure(core.is_answered(vf)) {}
    assert!(Vf::interrupts(VECTOR) == before + COMMANDS && core.is_pending(vf, VECTOR));
    core.set_masked(vf, VECTOR, false);
    sure(core.finish(vf, &NOP));
    assert!(!core.is_pending(vf, VECTOR));
    nop(vf, core);
    assert!(Vf::interrupts(VECTOR) == before + COMMANDS + 2);
}

/// Masks the vector before or after it may fire. Each command interrupts once.
fn masks(guest: &mut Guest) {
    step("1000 masks while a vector fires");
    let (vf, core) = (&mut guest.vf, guest.driver.core());
    let before = Vf::interrupts(VECTOR);
    for nth in 1..=MASKS {
        let is_first = nth % 2 == 0;
        if is_first {
            core.set_masked(vf, VECTOR, true);
        }
        sure(core.post(vf, &NOP));
        core.set_masked(vf, VECTOR, true);
        if is_first {
            while !sure(core.is_answered(vf)) {}
            assert!(Vf::interrupts(VECTOR) == before + nth - 1);
        }
        core.set_masked(vf, VECTOR, false);
        sure(core.finish(vf, &NOP));
        assert!(Vf::interrupts(VECTOR) == before + nth);
    }
}

/// Opens a queue pair whose datagrams no queue pair receives.
fn open(guest: &mut Guest, receives: u32) -> (Talker, Destination) {
    let spec = TalkerSpec {
        sends: OUTSTANDING,
        receives,
        ..TalkerSpec::default()
    };
    let talker = sure(Talker::open(&mut guest.driver, &mut guest.vf, &spec));
    let to = talker.way_to((NOBODY, talker.qpn, TalkerSpec::QKEY));
    (talker, to)
}

/// Sends datagrams, each with a doorbell. Each completes once, in order.
fn doorbells(guest: &mut Guest, moves: bool) {
    step("a queue pair");
    let (mut talker, to) = open(guest, 1);
    step("10000 sends");
    let (vf, driver) = (&mut guest.vf, &mut guest.driver);
    let mut places = [FIRST, SECOND].into_iter().cycle();
    let mut times = Times::new(OF_DOORBELL);
    let mut completed = 0;
    for nth in 0..SENDS {
        sure(talker.say(driver, vf, &to, b""));
        times.add(vf.last_write);
        if moves && nth % MOVE_EVERY == 0 {
            vf.place(places.next().unwrap());
        }
        while (nth + 1) % BURST == 0 && completed <= nth {
            completed += sure(talker.take_sent(driver)) as u32;
        }
    }
    assert!(completed == SENDS && sure(talker.take_sent(driver)) == 0);
    assert!(talker.failed.is_empty());
    cpu::report(times.median());
}

/// Executes commands that do nothing, each until its interrupt, or until the driver finds that it has ended.
fn commands(guest: &mut Guest, is_polled: bool) {
    step("300 commands");
    let (vf, core) = (&mut guest.vf, guest.driver.core());
    vf.wait = Wait::Interrupt;
    if is_polled {
        core.use_polling();
        vf.wait = Wait::Spin;
    }
    let mut times = Times::new(OF_COMMAND);
    for _ in 0..COMMANDS {
        let begun = cpu::cycles();
        nop(vf, core);
        times.add(cpu::cycles() - begun);
    }
    vf.wait = Wait::Timer;
    cpu::report(times.median());
}

/// Times of an operation.
struct Times {
    /// Numbers of operations, by the time that they took in units of the resolution.
    counts: [u16; 4096],
    /// Cycles.
    resolution: u64,
    /// Cycles that it takes to look at the clock.
    clock: u64,
}

impl Times {
    fn new(resolution: u64) -> Self {
        let begun = cpu::cycles();
        let clock = cpu::cycles() - begun;
        Self {
            counts: [0; 4096],
            resolution,
            clock,
        }
    }

    fn add(&mut self, cycles: u64) {
        let time = cycles.saturating_sub(self.clock) / self.resolution;
        let last = self.counts.len() - 1;
        self.counts[(time as usize).min(last)] += 1;
    }

    /// Returns the median, in cycles.
    fn median(&self) -> u32 {
        let counts = self.counts.iter().map(|count| u32::from(*count));
        let mut slower = counts.clone().sum::<u32>() / 2;
        let median = counts.clone().position(|count| {
            slower = slower.saturating_sub(count);
            slower == 0
        });
        (median.unwrap() as u64 * self.resolution) as u32
    }
}

/// Sends by queues in memory that is plugged in, then rings once more when it is out.
fn plug(guest: &mut Guest, memory: usize) {
    step("memory plugged in");
    cpu::set_plugged(true);
    heap::allocate_from(memory);
    step("a queue pair in it");
    let (mut talker, to) = open(guest, 1);
    let (vf, driver) = (&mut guest.vf, &mut guest.driver);
    step("1000 sends");
    for _ in 0..PLUGGED_SENDS {
        sure(talker.say(driver, vf, &to, b""));
        while sure(talker.take_sent(driver)) == 0 {}
    }
    assert!(sure(driver.query_qp(vf, talker.qpn)).state() == QpState::RTS);
    step("memory plugged out");
    cpu::set_plugged(false);
    sure(driver.ring(vf, talker.qpn));
    step("the queue pair fails");
    while sure(driver.query_qp(vf, talker.qpn)).state() != QpState::ERR {}
    step("the device goes on");
    assert!(vf.is_online());
    nop(vf, driver.core());
}

/// Sends datagrams to another VF of the adapter and takes its datagrams, as the VMM orders.
fn talk(guest: &mut Guest) {
    let lid = guest.driver.port(PORT).view().lid;
    step("a queue pair");
    let (mut talker, _) = open(guest, RECEIVES);
    let (vf, driver) = (&mut guest.vf, &mut guest.driver);
    cpu::report(talker.qpn.get());
    let peer = Qpn::from_low_bits(cpu::order());
    let to = talker.way_to((lid, peer, TalkerSpec::QKEY));
    step("datagrams between VMs");
    let (mut sent, mut completed, mut received) = (0, 0, 0);
    loop {
        let order = cpu::order();
        let count = (order & 0xff_ffff) as usize;
        match order >> 24 {
            END => break,
            SEND => {
                for _ in 0..count {
                    let mut looks = 0;
                    while sent == completed + BURST as usize {
                        completed += sure(talker.take_sent(driver));
                        looks += 1;
                        assert!(looks % LOOKS != 0 || vf.is_online());
                    }
                    sure(talker.say(driver, vf, &to, &MESSAGE));
                    sent += 1;
                }
            }
            TAKE => {
                let wanted = received + count;
                while received < wanted {
                    let heard = sure(talker.hear(driver));
                    assert!(heard.iter().all(|heard| heard.bytes == MESSAGE));
                    received += heard.len();
                }
                while completed < sent {
                    completed += sure(talker.take_sent(driver));
                }
            }
            READ => (0..count).for_each(|_| assert!(vf.is_online())),
            _ => panic!(),
        }
    }
    assert!(sure(talker.take_sent(driver)) == 0 && sure(talker.hear(driver)).is_empty());
    assert!(talker.failed.is_empty());
}
