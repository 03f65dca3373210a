//! A driver of a ConnectX-3 VF without an operating system: what the example `vmm` runs in its VM.
//!
//! It is entered in long mode, with the first 4 GiB at their own addresses and its memory zeroed, with a mode, an argument of
//! that and the cycles of a millisecond, and ends at port [`cpu::END`]. It names each step to the VMM, which takes the time.
#![no_std]
#![no_main]

extern crate alloc;

mod cpu;
mod hca;
mod heap;
mod pci;
mod port;
mod queues;
mod tour;
mod vf;

use core::panic::PanicInfo;

use cpu::step;
use hca::{EventQueue, Hca};
use ib_wire::Qpn;
use mlx4_defs::Opcode;
use mlx4_defs::query::QueryFirmware;
use pci::Function;
use queues::QueuePair;

/// Addresses of the registers, and those that they move to.
const FIRST: [u64; 2] = [0xd000_0000, 0xe000_0000];
const SECOND: [u64; 2] = [0xd100_0000, 0xe010_0000];

/// The processor's interrupt vector of MSI-X vector 0.
const INTERRUPT: u8 = 0x40;

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
extern "C" fn _start(mode: u64, argument: u64, khz: u64) -> ! {
    cpu::set_up();
    if mode == 5 {
        tour::tour(argument == 0, khz);
        cpu::end(0)
    }
    let (mut hca, mut events) = bring_up();
    match mode {
        0 => steps(&mut hca, &mut events),
        1 => doorbells(&mut hca, argument != 0),
        2 => masks(&mut hca, &mut events),
        3 => plug(&mut hca, argument),
        4 => talk(&mut hca),
        6 => commands(&mut hca, &mut events, argument != 0),
        _ => panic!(),
    }
    step("the last reset");
    hca.reset();
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

/// From the first look at the bus to a command that ends by interrupt.
fn bring_up() -> (Hca, EventQueue) {
    step("function found");
    let function = Function::find().unwrap();
    step("BARs sized");
    assert!(function.size(2) == 8 << 20 && function.size(4) > 0);
    step("BARs placed");
    function.place(FIRST);
    let mut hca = Hca::new(function);
    assert!(hca.is_online());
    step("BARs moved");
    hca.move_to(SECOND);
    assert!(hca.is_online());
    step("MSI-X");
    hca.function.enable_interrupts(INTERRUPT);
    step("reset");
    hca.reset();
    hca.set_block();
    step("firmware query");
    let firmware: QueryFirmware = hca.query(Opcode::QUERY_FW);
    assert!(firmware.major.get() == 2);
    step("event queue");
    let events = EventQueue::new(&mut hca);
    (hca, events)
}

fn steps(hca: &mut Hca, events: &mut EventQueue) {
    step("300 commands by interrupt");
    for nth in 1..=COMMANDS {
        hca.post_nop();
        while cpu::interrupts(INTERRUPT) < nth {
            cpu::wait_for_interrupt();
        }
        assert!(events.take_command() && hca.is_idle());
        assert!(!events.take_command());
        events.arm(hca);
    }
    assert!(cpu::interrupts(INTERRUPT) == COMMANDS);
    step("a vector masked while it fires");
    hca.function.set_masked(true);
    hca.post_nop();
    hca.wait();
    assert!(cpu::interrupts(INTERRUPT) == COMMANDS && hca.function.is_pending());
    hca.function.set_masked(false);
    while cpu::interrupts(INTERRUPT) == COMMANDS {
        cpu::wait_for_interrupt();
    }
    assert!(!hca.function.is_pending() && events.take_command());
    events.arm(hca);
    hca.query::<QueryFirmware>(Opcode::QUERY_FW);
    assert!(cpu::interrupts(INTERRUPT) == COMMANDS + 1);
}

/// Masks the vector before or after it may fire. Each command interrupts once.
fn masks(hca: &mut Hca, events: &mut EventQueue) {
    step("1000 masks while a vector fires");
    for nth in 1..=MASKS {
        let is_first = nth % 2 == 0;
        if is_first {
            hca.function.set_masked(true);
        }
        hca.post_nop();
        hca.function.set_masked(true);
        if is_first {
            hca.wait();
            assert!(cpu::interrupts(INTERRUPT) == nth - 1);
        }
        hca.function.set_masked(false);
        while cpu::interrupts(INTERRUPT) < nth {
            cpu::wait_for_interrupt();
        }
        hca.wait();
        assert!(events.take_command() && !events.take_command());
        events.arm(hca);
    }
    assert!(cpu::interrupts(INTERRUPT) == MASKS);
}

/// Sends datagrams, each with a doorbell. Each completes once, in order.
fn doorbells(hca: &mut Hca, moves: bool) {
    step("a queue pair");
    let mut queue = QueuePair::new(hca);
    step("10000 sends");
    let mut place = SECOND;
    let mut times = Times::new(OF_DOORBELL);
    for nth in 0..SENDS {
        queue.post();
        let (doorbell, word) = queue.doorbell(hca);
        let begun = cpu::cycles();
        cpu::write(doorbell, word);
        times.add(cpu::cycles() - begun);
        if moves && nth % MOVE_EVERY == 0 {
            place = if place == FIRST { SECOND } else { FIRST };
            hca.move_to(place);
        }
        if (nth + 1) % BURST == 0 {
            for nth in nth + 1 - BURST..=nth {
                while !queue.take_completion(nth) {
                    cpu::relax();
                }
            }
        }
    }
    assert!(!queue.take_completion(SENDS));
    cpu::report(times.median());
}

/// Executes commands that do nothing, each until its interrupt, or until the driver finds that it has ended.
fn commands(hca: &mut Hca, events: &mut EventQueue, is_polled: bool) {
    step("300 commands");
    let mut times = Times::new(OF_COMMAND);
    for nth in 1..=COMMANDS {
        let begun = cpu::cycles();
        if is_polled {
            hca.command(Opcode::NOP, 0x1f, 0);
        } else {
            hca.post_nop();
            while cpu::interrupts(INTERRUPT) < nth {
                cpu::wait_for_interrupt();
            }
            assert!(events.take_command());
            events.arm(hca);
        }
        times.add(cpu::cycles() - begun);
    }
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

/// Sends by queues in memory that is plugged in, then posts one more when it is out.
fn plug(hca: &mut Hca, memory: u64) {
    step("memory plugged in");
    cpu::set_plugged(true);
    cpu::allocate_from(memory);
    step("a queue pair in it");
    let mut queue = QueuePair::new(hca);
    step("1000 sends");
    for nth in 0..PLUGGED_SENDS {
        queue.post();
        let (doorbell, word) = queue.doorbell(hca);
        cpu::write(doorbell, word);
        while !queue.take_completion(nth) {
            cpu::relax();
        }
    }
    assert!(!queue.has_failed(hca));
    step("memory plugged out");
    cpu::set_plugged(false);
    let (doorbell, word) = queue.doorbell(hca);
    cpu::write(doorbell, word);
    step("the queue pair fails");
    while !queue.has_failed(hca) {
        cpu::relax();
    }
    step("the device goes on");
    assert!(hca.is_online());
    hca.query::<QueryFirmware>(Opcode::QUERY_FW);
}

/// Sends datagrams to another VF of the adapter and takes its datagrams, as the VMM orders.
fn talk(hca: &mut Hca) {
    step("the port is active");
    let lid = hca.wait_for_port();
    step("a queue pair");
    let mut queue = QueuePair::new(hca);
    queue.post_receives(hca);
    cpu::report(queue.qpn.get());
    queue.to = (lid, Qpn::from_low_bits(cpu::order()));
    step("datagrams between VMs");
    let (mut sent, mut completed, mut received) = (0_u32, 0, 0);
    loop {
        let order = cpu::order();
        let count = order & 0xff_ffff;
        match order >> 24 {
            END => break,
            SEND => {
                for _ in 0..count {
                    let mut looks = 0;
                    while sent == completed + BURST {
                        completed += u32::from(queue.take_completion(completed));
                        looks += 1;
                        assert!(looks % LOOKS != 0 || hca.is_online());
                    }
                    queue.post();
                    let (doorbell, word) = queue.doorbell(hca);
                    cpu::write(doorbell, word);
                    sent += 1;
                }
            }
            TAKE => {
                let wanted = received + count;
                while received < wanted {
                    received += u32::from(queue.take_datagram(received));
                }
                while completed < sent {
                    completed += u32::from(queue.take_completion(completed));
                }
            }
            READ => (0..count).for_each(|_| assert!(hca.is_online())),
            _ => panic!(),
        }
    }
    assert!(!queue.take_completion(completed) && !queue.take_datagram(received));
}
