//! The function as the driver finds it: ports and registers, and a clock.

use ib_vtime::{Duration, Instant};
use mlx4_defs::comm::{self, CommFlags};
use mlx4_driver::{Bus, interrupt_vectors, measure_bar, place_bar};
use zerocopy::network_endian::U32;

use super::cpu;
use super::pci::Function;

/// The base address registers: doorbells, and the table of interrupts.
const BARS: [u8; 2] = [2, 4];

/// The command register: memory space and bus mastering.
const COMMAND: u16 = 0x04;
const ON: u16 = 6;

/// The processor's interrupt vector of MSI-X vector 0. The others follow.
const FIRST: u16 = 0x40;
/// Vectors that the driver takes: for commands, and two for each of two ports at most.
const VECTORS: usize = 5;

/// Way in which the processor waits for the device.
#[derive(Debug)]
pub(crate) enum Wait {
    /// It sleeps until an interrupt, or until the driver's time is over.
    Timer,
    /// It sleeps until an interrupt.
    Interrupt,
    /// It does not sleep.
    Spin,
}

/// A function, and where its registers are.
#[derive(Debug)]
pub(crate) struct Vf {
    function: Function,
    pub(crate) sizes: [u64; 2],
    bars: [u64; 2],
    vectors: u16,
    /// Cycles of the processor in a millisecond.
    khz: u64,
    begun: u64,
    /// Interrupts of each vector that the driver has taken.
    taken: [u32; VECTORS],
    pub(crate) wait: Wait,
    /// Cycles that the last write of a register took.
    pub(crate) last_write: u64,
}

impl Vf {
    pub(crate) fn find(khz: u64) -> Self {
        Self {
            function: Function::find().unwrap(),
            sizes: [0; 2],
            bars: [0; 2],
            vectors: 0,
            khz,
            begun: cpu::cycles(),
            taken: [0; VECTORS],
            wait: Wait::Timer,
            last_write: 0,
        }
    }

    /// Measures the registers, which have no addresses then.
    pub(crate) fn measure(&mut self) {
        self.sizes = BARS.map(|bar| measure_bar(self, bar));
        self.vectors = interrupt_vectors(self).unwrap();
    }

    /// Places the registers, or moves them. A reset takes their addresses.
    pub(crate) fn place(&mut self, at: [u64; 2]) {
        for (bar, address) in BARS.into_iter().zip(at) {
            place_bar(self, bar, address);
        }
        self.config_write(COMMAND, &ON.to_le_bytes());
        self.bars = at;
    }

    /// Returns `true` if the device is there and takes commands.
    pub(crate) fn is_online(&mut self) -> bool {
        let word = U32::new(self.read_be32(BARS[0], comm::FLAGS));
        word.get() != u32::MAX && !CommFlags { word }.offline()
    }

    /// Returns how often an MSI-X vector has interrupted.
    pub(crate) fn interrupts(vector: u16) -> u32 {
        cpu::interrupts((FIRST + vector) as u8)
    }

    fn register(&self, bar: u8, offset: u64) -> u64 {
        let nth = BARS.iter().position(|known| *known == bar).unwrap();
        assert!(offset < self.sizes[nth]);
        self.bars[nth] + offset
    }
}

impl Bus for Vf {
    fn now(&self) -> Instant {
        let cycles = cpu::cycles() - self.begun;
        Instant::from_nanos(
            cycles / self.khz * 1_000_000 + cycles % self.khz * 1_000_000 / self.khz,
        )
    }

    fn bar_size(&self, bar: u8) -> Option<u64> {
        let nth = BARS.iter().position(|known| *known == bar)?;
        Some(self.sizes[nth])
    }

    fn interrupt_vectors(&self) -> u16 {
        self.vectors
    }

    fn message(&self, vector: u16) -> (u64, u32) {
        (0xfee0_0000, u32::from(FIRST + vector))
    }

    fn config_read(&mut self, offset: u16, out: &mut [u8]) {
        let word = self.function.read(offset).to_le_bytes();
        let at = usize::from(offset % 4);
        out.copy_from_slice(&word[at..at + out.len()]);
    }

    fn config_write(&mut self, offset: u16, bytes: &[u8]) {
        self.function.write(offset, bytes);
    }

    fn bar_read(&mut self, bar: u8, offset: u64, out: &mut [u8]) {
        let word: u32 = cpu::read(self.register(bar, offset));
        out.copy_from_slice(&word.to_ne_bytes());
    }

    fn bar_write(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        let at = self.register(bar, offset);
        let begun = cpu::cycles();
        match *bytes {
            [a, b, c, d] => cpu::write(at, u32::from_ne_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => {
                cpu::write(at, u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
            }
            _ => panic!(),
        }
        self.last_write = cpu::cycles() - begun;
    }

    fn take_interrupt(&mut self) -> Option<u16> {
        (0..self.vectors.min(VECTORS as u16)).find(|vector| {
            let came = Self::interrupts(*vector);
            let taken = &mut self.taken[usize::from(*vector)];
            let is_new = came != *taken;
            *taken = came;
            is_new
        })
    }

    fn wait(&mut self, at_most: Duration) {
        match self.wait {
            Wait::Timer => cpu::sleep(u32::try_from(at_most.as_nanos()).unwrap_or(u32::MAX)),
            Wait::Interrupt => cpu::wait_for_interrupt(),
            Wait::Spin => cpu::relax(),
        }
    }

    fn reset(&mut self) {
        cpu::reset_function();
        self.place(super::FIRST);
    }
}
