//! The bus of the guest's driver: its accesses go to a machine.

use std::collections::VecDeque;
use std::fmt;
use std::time;

use mlx4_driver::{Bus, interrupt_vectors, measure_bar, place_bar};
use vhca::emulated::{Duration, Instant};

use crate::machines::Machine;

/// The base address registers: doorbells, and the table of interrupts.
const BARS: [u8; 2] = [2, 4];

/// The command register: memory space and bus mastering.
const COMMAND: u16 = 0x04;
const ON: u16 = 6;

/// A driver that waits for longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct MachineBus {
    pub(crate) machine: Box<dyn Machine>,
    sizes: [u64; 2],
    bars: [u64; 2],
    vectors: u16,
    /// Interrupts that the driver has not taken, and the number of all.
    raised: VecDeque<u16>,
    interrupts: usize,
    begun: time::Instant,
}

impl MachineBus {
    /// Measures the function's registers and places them, unless `at` is `None`: then they are where the VMM has put them.
    pub(crate) fn new(machine: Box<dyn Machine>, at: Option<[u64; 2]>) -> Self {
        let mut this = Self {
            machine,
            sizes: [0; 2],
            bars: [0; 2],
            vectors: 0,
            raised: VecDeque::new(),
            interrupts: 0,
            begun: time::Instant::now(),
        };
        let found = BARS.map(|bar| this.address(bar));
        this.sizes = BARS.map(|bar| measure_bar(&mut this, bar));
        this.vectors = interrupt_vectors(&mut this).unwrap();
        // A register that was measured is written back.
        this.place(at.unwrap_or(found));
        this
    }

    /// Returns the address of a register.
    pub(crate) fn address(&mut self, bar: u8) -> u64 {
        let at = 0x10 + 4 * u16::from(bar);
        let [low, high] = [at, at + 4].map(|at| u64::from(self.machine.config_read(at)));
        high << 32 | (low & !0xf)
    }

    pub(crate) fn place(&mut self, at: [u64; 2]) {
        for (bar, address) in BARS.into_iter().zip(at) {
            place_bar(self, bar, address);
        }
        self.config_write(COMMAND, &ON.to_le_bytes());
        self.bars = at;
    }

    /// Returns how many interrupts there were.
    pub(crate) fn interrupts(&mut self) -> usize {
        for message in self.machine.take_interrupts() {
            let (_, first) = self.message(0);
            self.interrupts += 1;
            let vector = message.data.checked_sub(first).unwrap();
            self.raised.push_back(vector.try_into().unwrap());
        }
        self.interrupts
    }

    fn register(&self, bar: u8, offset: u64) -> u64 {
        let nth = BARS.iter().position(|known| *known == bar).unwrap();
        assert!(offset < self.sizes[nth]);
        self.bars[nth] + offset
    }
}

impl fmt::Debug for MachineBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineBus").finish_non_exhaustive()
    }
}

impl Bus for MachineBus {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.begun.elapsed().as_nanos().try_into().unwrap())
    }

    fn bar_size(&self, bar: u8) -> Option<u64> {
        let nth = BARS.iter().position(|known| *known == bar)?;
        Some(self.sizes[nth])
    }

    fn interrupt_vectors(&self) -> u16 {
        self.vectors
    }

    fn config_read(&mut self, offset: u16, out: &mut [u8]) {
        let word = self.machine.config_read(offset & !3).to_le_bytes();
        let at = usize::from(offset % 4);
        out.copy_from_slice(&word[at..at + out.len()]);
    }

    fn config_write(&mut self, offset: u16, bytes: &[u8]) {
        self.machine.config_write(offset, bytes);
    }

    fn bar_read(&mut self, bar: u8, offset: u64, out: &mut [u8]) {
        let address = self.register(bar, offset);
        self.machine.mmio_read(address, out);
    }

    fn bar_write(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        let address = self.register(bar, offset);
        self.machine.mmio_write(address, bytes);
    }

    fn take_interrupt(&mut self) -> Option<u16> {
        self.interrupts();
        self.raised.pop_front()
    }

    /// Runs the threads of the VMM for a moment.
    fn wait(&mut self, _: Duration) {
        self.machine.run();
    }

    fn reset(&mut self) {
        unreachable!("no test resets a machine");
    }

    fn patience(&self) -> Duration {
        LIMIT
    }
}
