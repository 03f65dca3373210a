//! The function as the driver finds it: ports and registers, and a clock.

use ib_vtime::{Duration, Instant};
use mlx4_driver::Bus;

use super::cpu;
use super::pci::Function;

/// The base address registers: doorbells, and the table of interrupts.
const BARS: [u8; 2] = [2, 4];

/// The processor's interrupt vector of MSI-X vector 0. The others follow.
const FIRST: u16 = 0x40;
const VECTORS: usize = 16;

/// A function whose registers are placed.
#[derive(Debug)]
pub(crate) struct Vf {
    function: Function,
    sizes: [u64; 2],
    vectors: u16,
    /// Cycles of the processor in a millisecond.
    khz: u64,
    begun: u64,
    /// Interrupts of each vector that the driver has taken.
    taken: [u32; VECTORS],
}

impl Vf {
    pub(crate) fn find(khz: u64) -> Self {
        let function = Function::find().unwrap();
        let sizes = BARS.map(|bar| function.size(bar.into()));
        let mut this = Self {
            vectors: ((function.read(function.msi_x()) >> 16 & 0x7ff) + 1) as u16,
            function,
            sizes,
            khz,
            begun: cpu::cycles(),
            taken: [0; VECTORS],
        };
        this.place();
        this
    }

    /// Places the registers. A reset takes their addresses.
    pub(crate) fn place(&mut self) {
        self.function.bars = super::FIRST;
        self.function.place(super::FIRST);
    }

    fn register(&self, bar: u8, offset: u64) -> u64 {
        let nth = BARS.iter().position(|known| *known == bar).unwrap();
        assert!(offset < self.sizes[nth]);
        self.function.bars[nth] + offset
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
        let word = self.function.read(offset.into()).to_le_bytes();
        let at = usize::from(offset % 4);
        out.copy_from_slice(&word[at..at + out.len()]);
    }

    fn config_write(&mut self, offset: u16, bytes: &[u8]) {
        match *bytes {
            [a, b] => self
                .function
                .write16(offset.into(), u16::from_le_bytes([a, b])),
            [a, b, c, d] => self
                .function
                .write(offset.into(), u32::from_le_bytes([a, b, c, d])),
            _ => panic!(),
        }
    }

    fn bar_read(&mut self, bar: u8, offset: u64, out: &mut [u8]) {
        let word: u32 = cpu::read(self.register(bar, offset));
        out.copy_from_slice(&word.to_ne_bytes());
    }

    fn bar_write(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        let at = self.register(bar, offset);
        match *bytes {
            [a, b, c, d] => cpu::write(at, u32::from_ne_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => {
                cpu::write(at, u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
            }
            _ => panic!(),
        }
    }

    fn take_interrupt(&mut self) -> Option<u16> {
        (0..self.vectors.min(VECTORS as u16)).find(|vector| {
            let came = cpu::interrupts((FIRST + vector) as u8);
            let taken = &mut self.taken[usize::from(*vector)];
            let is_new = came != *taken;
            *taken = came;
            is_new
        })
    }

    fn wait(&mut self, at_most: Duration) {
        cpu::sleep(u32::try_from(at_most.as_nanos()).unwrap_or(u32::MAX));
    }

    fn reset(&mut self) {
        cpu::reset_function();
        self.place();
    }
}
