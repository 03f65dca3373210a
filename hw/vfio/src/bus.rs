//! The bus of a function.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time;

use ib_vtime::{Duration, Instant};
use mlx4_driver::{Bus, MsiX};
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_REGION_INFO_FLAG_MMAP,
};
use vfio_ioctls::VfioDevice;
use vm_memory::Bytes;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::map::MappedBar;

/// Base address registers of PCI.
const BARS: u8 = 6;

/// Bytes of an entry of the table of MSI-X, the offset of its control, and the bit there that masks the vector.
const ENTRY: u64 = 16;
const CONTROL: u64 = 12;
const MASKED: u8 = 1;

/// A function on the machine's bus.
///
/// The kernel has the table of MSI-X, which no program may write: the bus keeps the driver's masks, and has the kernel signal
/// each vector by an eventfd from the moment on in which the driver switches MSI-X on. A masked vector stays signalled until it
/// is unmasked.
pub struct VfioBus {
    device: VfioDevice,
    mapped: Vec<Option<MappedBar>>,
    msi_x: Option<MsiX>,
    vectors: Vec<Vector>,
    /// Watches the vectors that are not masked.
    epoll: Epoll,
    /// `true` if the driver has switched MSI-X on.
    signals: bool,
    /// Vectors that were signalled, and that the driver has not taken.
    signalled: VecDeque<u16>,
    begun: time::Instant,
}

struct Vector {
    event: EventFd,
    masked: bool,
}

impl VfioBus {
    /// Returns the bus, or the words of what the kernel refuses.
    pub(crate) fn new(device: VfioDevice) -> Result<Self, String> {
        let is_mappable =
            |bar: &u32| device.get_region_flags(*bar) & VFIO_REGION_INFO_FLAG_MMAP != 0;
        let mapped = (0..u32::from(BARS)).map(|bar| {
            let bar = Some(bar).filter(is_mappable);
            bar.map(|bar| MappedBar::new(&device, bar)).transpose()
        });
        let mapped: Result<_, _> = mapped.collect();
        let mapped = mapped.map_err(|errno| format!("cannot map its registers: {errno}"))?;
        let count = device.get_irq_info(VFIO_PCI_MSIX_IRQ_INDEX);
        let vectors = (0..count.map_or(0, |info| info.count)).map(|_| {
            let event = EventFd::new(EFD_NONBLOCK)?;
            Ok(Vector {
                event,
                masked: true,
            })
        });
        let vectors: std::io::Result<_> = vectors.collect();
        let vectors = vectors.map_err(|error| format!("cannot make an eventfd: {error}"))?;
        let epoll = Epoll::new();
        let epoll = epoll.map_err(|error| format!("cannot make an epoll: {error}"))?;
        let mut this = Self {
            device,
            mapped,
            msi_x: None,
            vectors,
            epoll,
            signals: false,
            signalled: VecDeque::new(),
            begun: time::Instant::now(),
        };
        this.msi_x = MsiX::of(&mut this);
        Ok(this)
    }

    /// Switches MSI-X on or off. If the kernel has no interrupts left, the driver's test of its interrupt fails.
    fn set_signals(&mut self, on: bool) {
        if self.signals == on {
            return;
        }
        self.signals = on;
        let _ = if on {
            let events = self.vectors.iter().map(|vector| &vector.event).collect();
            self.device.enable_msix(events)
        } else {
            self.device.disable_msix()
        };
    }

    /// Waits for signals of vectors that are not masked, and takes them.
    fn take_signals(&mut self, at_most: Duration) {
        let millis = at_most.as_nanos().div_ceil(1_000_000);
        let mut found = [EpollEvent::default(); 8];
        // A signal that cuts the wait short does no harm.
        let count = self
            .epoll
            .wait(i32::try_from(millis).unwrap_or(i32::MAX), &mut found);
        for event in &found[..count.unwrap_or(0)] {
            let nth = u16::try_from(event.data()).unwrap_or(u16::MAX);
            if let Some(vector) = self.vectors.get(usize::from(nth)) {
                // Interrupts before this one are no others.
                let _ = vector.event.read();
                self.signalled.push_back(nth);
            }
        }
    }

    fn set_masked(&mut self, nth: usize, masked: bool) {
        let vector = &mut self.vectors[nth];
        if vector.masked != masked {
            vector.masked = masked;
            let operation = if masked {
                ControlOperation::Delete
            } else {
                ControlOperation::Add
            };
            let event = EpollEvent::new(EventSet::IN, nth as u64);
            let changed = self.epoll.ctl(operation, vector.event.as_raw_fd(), event);
            changed.expect("a descriptor that is open, and watched or not as the mask has it");
        }
    }

    /// Returns the vector whose entry of the table is at an offset, with the offset in it.
    fn entry_at(&self, bar: u8, offset: u64) -> Option<(usize, u64)> {
        let (of, start) = self.msi_x?.table;
        let at = offset.checked_sub(start).filter(|_| bar == of)?;
        let vector = usize::try_from(at / ENTRY).ok()?;
        (vector < self.vectors.len()).then_some((vector, at % ENTRY))
    }
}

impl fmt::Debug for VfioBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VfioBus").finish_non_exhaustive()
    }
}

impl Bus for VfioBus {
    fn now(&self) -> Instant {
        let elapsed = self.begun.elapsed().as_nanos();
        Instant::from_nanos(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }

    fn bar_size(&self, bar: u8) -> Option<u64> {
        let size = (bar < BARS).then(|| self.device.get_region_size(bar.into()));
        size.filter(|size| *size != 0)
    }

    fn interrupt_vectors(&self) -> u16 {
        u16::try_from(self.vectors.len()).unwrap_or(u16::MAX)
    }

    fn config_read(&mut self, offset: u16, out: &mut [u8]) {
        let region = VFIO_PCI_CONFIG_REGION_INDEX;
        self.device.region_read(region, out, offset.into());
    }

    fn config_write(&mut self, offset: u16, bytes: &[u8]) {
        match (self.msi_x, bytes) {
            (Some(msi_x), [low, high]) if msi_x.control == offset => {
                let control = u16::from_le_bytes([*low, *high]);
                self.set_signals(control & MsiX::ENABLE != 0);
            }
            _ => {
                let region = VFIO_PCI_CONFIG_REGION_INDEX;
                self.device.region_write(region, bytes, offset.into());
            }
        }
    }

    fn bar_read(&mut self, bar: u8, offset: u64, out: &mut [u8]) {
        let registers = self.mapped.get(usize::from(bar)).and_then(Option::as_ref);
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let read = registers.zip(<&mut [u8; 4]>::try_from(&mut *out).ok());
        let read = read.and_then(|(registers, word)| {
            let value: u32 = registers.slice().load(at, Ordering::Acquire).ok()?;
            *word = value.to_ne_bytes();
            Some(())
        });
        if read.is_none() {
            self.device.region_read(bar.into(), out, offset);
        }
    }

    fn bar_write(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        if let Some((vector, at)) = self.entry_at(bar, offset) {
            if let (CONTROL, Some(low)) = (at, bytes.first()) {
                self.set_masked(vector, low & MASKED != 0);
            }
            return;
        }
        let registers = self.mapped.get(usize::from(bar)).and_then(Option::as_ref);
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let written = registers.and_then(|registers| {
            let slice = registers.slice();
            match *bytes {
                [a, b, c, d] => {
                    let word = u32::from_ne_bytes([a, b, c, d]);
                    slice.store(word, at, Ordering::Release).ok()
                }
                [a, b, c, d, e, f, g, h] => {
                    let word = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
                    slice.store(word, at, Ordering::Release).ok()
                }
                _ => None,
            }
        });
        if written.is_none() {
            self.device.region_write(bar.into(), bytes, offset);
        }
    }

    fn take_interrupt(&mut self) -> Option<u16> {
        if self.signalled.is_empty() {
            self.take_signals(Duration::ZERO);
        }
        self.signalled.pop_front()
    }

    fn wait(&mut self, at_most: Duration) {
        if self.signalled.is_empty() {
            self.take_signals(at_most);
        }
    }

    fn reset(&mut self) {
        self.device.reset();
    }
}
