//! Memory of the process that has a VF, reached by the descriptor of its `/proc/self/mem`.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hca_api::{AddressSpace, DmaBuffer, DmaFault, HcaError, HostMemory};
use rustix::fs::{OFlags, fcntl_getfl, fstatfs, readlink};
use rustix::io::{Errno, pread, pwrite};
use vhca_diagnosis::{SLOW_MEMORY, SLOW_MEMORY_REMEMBERED, SlowMemory};
use vhca_receiver::{PassedFd, Work, during};

/// Addresses from here to [`OWN_END`] are buffers of the service's own on behalf of the VF. Linux gives processes no memory there
/// unless they ask for it: on x86-64 it ends at 2^47, elsewhere it begins low, in the third quarter, or at the end.
const OWN: u64 = if cfg!(target_arch = "x86_64") {
    1 << 47
} else {
    1 << 46
};

/// First address behind the service's own buffers.
const OWN_END: u64 = 2 * OWN;

/// Addresses from here on fault: their upper bits choose one of several address spaces
/// ([`Spaces`](hca_api::Spaces)). Linux gives processes memory there only if they ask for it.
const END: u64 = 1 << 48;

/// Type of the file system of processes (`PROC_SUPER_MAGIC`).
const PROC: i64 = 0x9fa0;

/// Returns `true` if a descriptor reads and writes the memory of a process.
pub(super) fn is_process_memory(file: &impl AsFd) -> bool {
    use std::os::fd::AsRawFd;

    let is_proc = fstatfs(file).is_ok_and(|found| found.f_type == PROC);
    let link = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let target = readlink(Path::new(&link), Vec::new());
    let is_memory = target.is_ok_and(|target| target.to_bytes().ends_with(b"/mem"));
    let is_open = fcntl_getfl(file).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDWR);
    is_proc && is_memory && is_open
}

/// Memory that a VF reaches: none, or that of the process that has the VF.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProcessMemory(Arc<Mutex<Reached>>);

#[derive(Debug, Default)]
struct Reached {
    process: Option<PassedFd>,
    /// Descriptor of the socket of the client whose process it is.
    client: RawFd,
    waits: Cell<Waits>,
    own: HostMemory,
}

/// Waits for memory of a process.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    longest: Duration,
    /// The longest of the slow ones, and its end, until it is forgotten.
    slowest: Option<(Duration, Instant)>,
    /// The latest of the slow ones, and its end.
    latest: Option<(Duration, Instant)>,
}

impl Waits {
    /// Notes an access that took so long.
    fn note(&mut self, wait: Duration, now: Instant) {
        self.longest = self.longest.max(wait);
        if wait < SLOW_MEMORY {
            return;
        }
        let is_longest = self.slow(now).is_none_or(|slow| slow.wait <= wait);
        self.latest = Some((wait, now));
        if is_longest {
            self.slowest = self.latest;
        }
    }

    /// Returns the longest slow access that is not forgotten, or the latest one after the longest is.
    fn slow(&self, now: Instant) -> Option<SlowMemory> {
        let mut known = [self.slowest, self.latest].into_iter().flatten();
        known.find_map(|(wait, at)| {
            let ago = now.saturating_duration_since(at);
            (ago < SLOW_MEMORY_REMEMBERED).then_some(SlowMemory { wait, ago })
        })
    }
}

impl ProcessMemory {
    fn reached(&self) -> MutexGuard<'_, Reached> {
        // What is kept is whole whatever happened to its user.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reaches the memory of a process from now on, or none.
    pub(super) fn set(&self, process: Option<PassedFd>) {
        let mut reached = self.reached();
        reached.process = process;
        reached.waits.take();
    }

    /// Returns the longest time for which an access waited for memory of the process.
    pub(super) fn longest_wait(&self) -> Duration {
        self.reached().waits.get().longest
    }

    /// Returns the longest recent one of these waits, if it was slow.
    pub(super) fn slow(&self) -> Option<SlowMemory> {
        self.reached().waits.get().slow(Instant::now())
    }

    /// Sets the client whose process it is, by the descriptor of its socket: accesses are published as work for that.
    pub(super) fn set_client(&self, client: RawFd) {
        self.reached().client = client;
    }
}

/// Returns the address of a range among the service's own buffers; `None` if it is the process's.
fn own(addr: u64, len: usize) -> Result<Option<u64>, DmaFault> {
    let fault = DmaFault { addr, len };
    let len = u64::try_from(len).map_err(|_| fault)?;
    let end = addr.checked_add(len).filter(|end| *end <= END);
    let end = end.ok_or(fault)?;
    match addr {
        OWN..OWN_END => Ok(Some(addr - OWN)),
        _ if addr < OWN && end > OWN => Err(fault),
        _ => Ok(None),
    }
}

impl Reached {
    /// Notes an access that ends now and took so long.
    fn note(&self, wait: Duration) {
        let mut waits = self.waits.get();
        waits.note(wait, Instant::now());
        self.waits.set(waits);
    }

    /// Goes through a range in as many calls as the system takes.
    fn each(
        &self,
        addr: u64,
        len: usize,
        mut access: impl FnMut(&PassedFd, usize, u64) -> rustix::io::Result<usize>,
    ) -> Result<(), DmaFault> {
        let fault = DmaFault { addr, len };
        let process = self.process.as_ref().ok_or(fault)?;
        let mut done = 0;
        while done < len {
            let offset = u64::try_from(done).map_err(|_| fault)?;
            let at = addr.checked_add(offset).ok_or(fault)?;
            let begun = Instant::now();
            let accessed = during(Work::ProcessMemory, self.client, || {
                access(process, done, at)
            });
            self.note(begun.elapsed());
            match accessed {
                // The process has ended, or runs another program.
                Ok(0) => return Err(fault),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(_) => return Err(fault),
            }
        }
        Ok(())
    }
}

impl AddressSpace for ProcessMemory {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let reached = self.reached();
        let len = buf.len();
        if let Some(at) = own(addr, len)? {
            return reached.own.read(at, buf);
        }
        reached.each(addr, len, |process, done, at| {
            pread(process, &mut buf[done..], at)
        })
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        /// Bytes that a program looks at to see that a message is complete.
        const TAIL: usize = 8;

        let mut reached = self.reached();
        if let Some(at) = own(addr, bytes.len())? {
            return reached.own.write(at, bytes);
        }
        // Within one call the kernel copies upwards, but page by page: the end comes in a call of its own.
        let body = match bytes.len() {
            len if len > TAIL => len - TAIL,
            _ => 0,
        };
        reached.each(addr, bytes.len(), |process, done, at| {
            let end = if done < body { body } else { bytes.len() };
            pwrite(process, &bytes[done..end], at)
        })
    }

    fn update_u64(
        &mut self,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        if let Some(at) = own(addr, 8)? {
            return self.reached().own.update_u64(at, update);
        }
        if !addr.is_multiple_of(8) {
            return Err(DmaFault { addr, len: 8 });
        }
        let mut bytes = [0; 8];
        self.read(addr, &mut bytes)?;
        let old = u64::from_ne_bytes(bytes);
        self.write(addr, &update(old).to_ne_bytes())?;
        Ok(old)
    }

    fn allocate(&mut self, len: usize) -> Result<DmaBuffer, HcaError> {
        let mut reached = self.reached();
        let buffer = reached.own.allocate(len)?;
        let addr = buffer.addr.saturating_add(OWN);
        if own(addr, len).is_ok_and(|at| at == Some(buffer.addr)) {
            return Ok(DmaBuffer { addr, ..buffer });
        }
        reached.own.free(buffer);
        Err(HcaError::InsufficientResources)
    }

    fn free(&mut self, buffer: DmaBuffer) {
        if let Some(addr) = buffer.addr.checked_sub(OWN) {
            self.reached().own.free(DmaBuffer { addr, ..buffer });
        }
    }
}

/// Returns the error of a call as one of the standard library.
pub(super) fn io_error(errno: Errno) -> io::Error {
    errno.into()
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};

    use ib_wire::PortNum;

    use super::*;
    use crate::serve::lab::Lab;
    use crate::serve::options::Options;
    use crate::serve::service::Service;
    use crate::serve::tests::pass;
    use crate::serve::topology::TopologySpec;
    use crate::serve::verbs::process_vf::Holder;

    fn own_memory() -> std::os::fd::OwnedFd {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/proc/self/mem");
        file.unwrap().into()
    }

    #[test]
    fn memory_of_a_process_is_reached_while_it_is_set() {
        let mut memory = ProcessMemory::default();
        let mut bytes = vec![0_u8; 10_000];
        let addr = bytes.as_mut_ptr().expose_provenance() as u64;
        assert!(memory.write(addr, &[1; 10_000]).is_err());
        memory.set(Some(own_memory().into()));
        memory.write(addr, &[7; 10_000]).unwrap();
        let mut read = vec![0; 10_000];
        memory.read(addr, &mut read).unwrap();
        assert!(read.iter().all(|byte| *byte == 7));
        assert_eq!(std::hint::black_box(&bytes)[9999], 7);
        assert!(
            memory.read(8, &mut [0; 8]).is_err(),
            "nothing is mapped there"
        );
        assert!(memory.read(OWN - 4, &mut [0; 8]).is_err());
        assert!(memory.longest_wait() > Duration::ZERO);
        memory.set(None);
        assert_eq!(memory.longest_wait(), Duration::ZERO);
        assert!(memory.read(addr, &mut read).is_err());
    }

    #[test]
    fn a_slow_access_counts_for_ten_minutes_and_a_longer_one_in_its_place() {
        let begun = Instant::now();
        let at = |second| begun + Duration::from_secs(second);
        let mut waits = Waits::default();
        waits.note(SLOW_MEMORY - Duration::from_millis(1), begun);
        assert_eq!(waits.slow(begun), None);
        for (second, wait) in [(10, 3), (20, 5), (300, 4)] {
            waits.note(Duration::from_secs(wait), at(second));
        }
        let slow = |second| waits.slow(at(second)).map(|slow| slow.wait.as_secs());
        assert_eq!([slow(300), slow(619)], [Some(5); 2]);
        assert_eq!([slow(620), slow(899), slow(900)], [Some(4), Some(4), None]);
        assert_eq!(waits.longest, Duration::from_secs(5));
        // A wait that was forgotten is not the longest.
        waits.note(Duration::from_secs(1), at(1000));
        let slow = waits.slow(at(1001)).unwrap();
        assert_eq!([slow.wait, slow.ago], [Duration::from_secs(1); 2]);
    }

    #[test]
    fn a_program_whose_memory_is_slow_is_named_until_it_is_gone() {
        let options = Options {
            topology: TopologySpec::TwoSwitch,
            vfs: 1,
            verbs: true,
            program_vfs: 1,
            ..Options::default()
        };
        let mut service = Service::in_virtual_time(Lab::build(&options, 1).unwrap());
        pass(&mut service, Duration::from_secs(5));
        let why = |service: &Service| {
            let lab = service.lab();
            lab.why(&lab.inventory.vf("H1-1/1", None).unwrap(), PortNum(1))
        };
        assert_eq!(why(&service).code, "ok");
        let since = service.lab().world().now();
        let offered = service.lab_mut().process_vfs.values_mut();
        let offered = offered.into_iter().find(|vf| vf.description() == "H1-1/1");
        let offered = offered.unwrap();
        offered.memory.set(Some(own_memory().into()));
        offered.holder = Some(Holder {
            pid: Some(77),
            uid: None,
            client: 0,
            since,
        });
        let memory = offered.memory.clone();
        memory.reached().note(2 * SLOW_MEMORY);
        let found = why(&service);
        assert_eq!(found.code, "program_memory_slow", "{found}");
        assert!(found.up && found.next.starts_with("kill 77 # "), "{found}");
        memory.set(None);
        assert_eq!(why(&service).code, "ok");
    }

    #[test]
    fn buffers_of_the_service_are_apart_from_the_process() {
        let mut memory = ProcessMemory::default();
        let buffer = memory.allocate(64).unwrap();
        assert!(buffer.addr > OWN);
        memory.write(buffer.addr, b"vhca").unwrap();
        assert_eq!(
            memory.update_u64(buffer.addr + 8, &mut |old| old + 3),
            Ok(0)
        );
        memory.free(buffer);
        assert!(memory.read(buffer.addr, &mut [0]).is_err());
    }

    #[test]
    fn addresses_that_choose_an_address_space_fault() {
        let mut memory = ProcessMemory::default();
        memory.set(Some(own_memory().into()));
        let mut value = Box::new(7_u64);
        let addr = std::ptr::from_mut(&mut *value).expose_provenance() as u64;
        let buffer = memory.allocate(8).unwrap().addr;
        for addr in [addr, buffer] {
            assert!(addr < END && memory.read(addr, &mut [0; 8]).is_ok());
            for space in [1, 2, 0x8000, 0xffff] {
                let addr = space << 48 | addr;
                let fault = DmaFault { addr, len: 8 };
                assert_eq!(memory.read(addr, &mut [0; 8]), Err(fault));
                assert_eq!(memory.write(addr, &[0; 8]), Err(fault));
                assert_eq!(memory.update_u64(addr, &mut |old| old), Err(fault));
            }
        }
        for (addr, len) in [(END - 4, 8), (OWN - 4, 8), (u64::MAX, 2)] {
            let fault = DmaFault { addr, len };
            assert_eq!(memory.read(addr, &mut vec![0; len]), Err(fault));
        }
        assert_eq!(std::hint::black_box(*value), 7);
    }

    #[test]
    fn other_files_are_no_memory_of_a_process() {
        assert!(is_process_memory(&own_memory()));
        let read_only = File::open("/proc/self/mem").unwrap();
        assert!(!is_process_memory(&read_only));
        let other = OpenOptions::new().read(true).write(true).open("/dev/null");
        assert!(!is_process_memory(&other.unwrap()));
        let status = File::open("/proc/self/status").unwrap();
        assert!(!is_process_memory(&status));
    }
}
