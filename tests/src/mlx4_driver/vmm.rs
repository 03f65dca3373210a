//! A function behind a vfio-user socket of a running service, as the guest of a VMM finds it.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time;

use ib_vtime::{Duration, Instant};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use vfio_user::{Client, Error};

use super::{Bus, GuestMemory, PAGE};

/// Region of configuration space (`VFIO_PCI_CONFIG_REGION_INDEX`); those of the BARs are before it.
const CONFIG: u32 = 7;
const BARS: u8 = 6;

/// The interrupt type (`VFIO_PCI_MSIX_IRQ_INDEX`), and how its vectors are to be signalled: by eventfds.
const MSIX: u32 = 2;
const BY_EVENTFD: u32 = 1 << 2 | 1 << 5;

/// How long whoever drives the function waits at most: longer than anything takes on a busy machine, but not
/// for as long as a kernel.
const PATIENCE: Duration = Duration::from_secs(30);

/// A VMM with a guest, and its connection to the VF. The VMM shares the guest's memory, and passes each access of
/// the guest on as a message, unless there is no such register.
///
/// Dropping it is the VMM's end.
pub struct VmmBus {
    client: Client,
    memory: GuestMemory,
    file: Arc<File>,
    signals: Vec<OwnedFd>,
    /// Pages that the VMM has unmapped, in order.
    unmapped: Vec<usize>,
    begun: time::Instant,
    is_gone: bool,
}

impl fmt::Debug for VmmBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmmBus")
            .field("unmapped", &self.unmapped)
            .field("is_gone", &self.is_gone)
            .finish_non_exhaustive()
    }
}

impl VmmBus {
    /// Connects to a VF, gives it the memory page by page, so that each page can be taken away, and says how
    /// interrupts are signalled.
    ///
    /// # Errors
    /// What the connection says, such as that another VMM has the VF.
    ///
    /// # Panics
    /// If the memory is not shared, or the system has no eventfds left.
    pub fn attach(socket: &Path, memory: GuestMemory) -> Result<Self, Error> {
        let file = memory.file().expect("memory that is shared");
        let mut client = Client::new(socket)?;
        let count = client.get_irq_info(MSIX)?.count;
        let signals: Vec<OwnedFd> = (0..count)
            .map(|_| eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC))
            .collect::<Result<_, _>>()
            .expect("an eventfd");
        let raw: Vec<_> = signals.iter().map(AsRawFd::as_raw_fd).collect();
        client.set_irqs(MSIX, BY_EVENTFD, 0, count, &raw)?;
        let mut this = Self {
            client,
            unmapped: Vec::new(),
            file,
            signals,
            begun: time::Instant::now(),
            is_gone: false,
            memory,
        };
        for page in 0..this.memory.pages() {
            this.map(page)?;
        }
        Ok(this)
    }

    /// Whether the service has ended the connection.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        self.is_gone
    }

    fn map(&mut self, page: usize) -> Result<(), Error> {
        let offset = (page * PAGE) as u64;
        let address = GuestMemory::BASE + offset;
        let file = self.file.as_raw_fd();
        self.client.dma_map(offset, address, PAGE as u64, file)
    }

    /// Takes away the pages that the guest wants the device not to reach, and gives others back.
    fn remap(&mut self) -> Result<(), Error> {
        let wanted = self.memory.unmapped_pages();
        if wanted == self.unmapped {
            return Ok(());
        }
        let before = core::mem::replace(&mut self.unmapped, wanted.clone());
        for page in before.iter().filter(|page| !wanted.contains(page)) {
            self.map(*page)?;
        }
        for page in wanted.iter().filter(|page| !before.contains(page)) {
            let address = GuestMemory::BASE + (page * PAGE) as u64;
            self.client.dma_unmap(address, PAGE as u64)?;
        }
        Ok(())
    }

    /// Passes an access on, if there are such registers. Whether it took place.
    fn pass(
        &mut self,
        region: u32,
        offset: u64,
        len: usize,
        access: impl FnOnce(&mut Client) -> Result<(), Error>,
    ) -> bool {
        let size = self.client.region(region).map_or(0, |region| region.size);
        let end = offset.checked_add(len as u64);
        if self.is_gone || len == 0 || end.is_none_or(|end| end > size) {
            return false;
        }
        let done = self.remap().and_then(|()| access(&mut self.client));
        self.is_gone = done.is_err();
        !self.is_gone
    }

    fn read(&mut self, region: u32, offset: u64, out: &mut [u8]) {
        let len = out.len();
        let is_read = self.pass(region, offset, len, |client| {
            client.region_read(region, offset, out)
        });
        if !is_read {
            out.fill(0xff);
        }
    }

    fn write(&mut self, region: u32, offset: u64, bytes: &[u8]) {
        let write = |client: &mut Client| client.region_write(region, offset, bytes);
        self.pass(region, offset, bytes.len(), write);
    }

    /// Vectors that are signalled within a time. A signal in the middle of that (a debugger's) ends it early.
    fn signalled(&self, within: Duration) -> Vec<usize> {
        let watch = |signal| PollFd::new(signal, PollFlags::IN);
        let mut watched: Vec<_> = self.signals.iter().map(watch).collect();
        let within = Timespec::try_from(within).ok();
        if poll(&mut watched, within.as_ref()).is_err() {
            return Vec::new();
        }
        let ready = watched.iter().enumerate();
        let ready = ready.filter(|(_, fd)| fd.revents().contains(PollFlags::IN));
        ready.map(|(vector, _)| vector).collect()
    }
}

impl Bus for VmmBus {
    fn now(&self) -> Instant {
        let elapsed = self.begun.elapsed().as_nanos();
        Instant::from_nanos(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }

    fn bar_size(&self, bar: u8) -> Option<u64> {
        let region = self.client.region(u32::from(bar));
        let region = region.filter(|region| bar < BARS && region.size > 0);
        region.map(|region| region.size)
    }

    fn interrupt_vectors(&self) -> u16 {
        u16::try_from(self.signals.len()).unwrap_or(u16::MAX)
    }

    fn config_read(&mut self, offset: u16, out: &mut [u8]) {
        self.read(CONFIG, u64::from(offset), out);
    }

    fn config_write(&mut self, offset: u16, bytes: &[u8]) {
        self.write(CONFIG, u64::from(offset), bytes);
    }

    fn bar_read(&mut self, bar: u8, offset: u64, out: &mut [u8]) {
        self.read(u32::from(bar), offset, out);
    }

    fn bar_write(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        self.write(u32::from(bar), offset, bytes);
    }

    fn take_interrupt(&mut self) -> Option<u16> {
        let vector = self.signalled(Duration::ZERO).first().copied()?;
        // Only this process reads it, so that it is there.
        rustix::io::read(&self.signals[vector], &mut [0; 8]).ok()?;
        u16::try_from(vector).ok()
    }

    fn wait(&mut self, at_most: Duration) {
        self.signalled(at_most);
    }

    fn reset(&mut self) {
        if !self.is_gone {
            self.is_gone = self.client.reset().is_err();
        }
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }
}
