//! A VM that is paused amid the traffic of another one, with a watch on its memory.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use vhca::emulated::DropReason;
use vm_memory::{
    Bytes, GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryLoadGuard,
    GuestMemoryMmap,
};

use crate::console::Running;
use crate::modes::{TALK, Verdict};
use crate::vm::MEMORY;
use crate::{Host, memory};

/// Orders to the payload, with a number of datagrams: send so many; take so many, and the completions of all sends.
const END: u32 = 0;
const SEND: u32 = 1 << 24;
const TAKE: u32 = 2 << 24;

/// Datagrams that a VM sends at an order. Fewer than the paused VF's queue keeps.
const FEW: u32 = 20;
/// More than it keeps.
const MANY: u32 = 1000;

/// A guest's memory as its VF reaches it. Each access is counted.
#[derive(Clone)]
struct Watched {
    memory: GuestMemoryAtomic<GuestMemoryMmap>,
    watch: Arc<Watch>,
}

#[derive(Default)]
struct Watch {
    is_paused: AtomicBool,
    /// Accesses while the device is not paused, and while it is.
    accesses: [AtomicU64; 2],
}

impl GuestAddressSpace for Watched {
    type M = GuestMemoryMmap;
    type T = GuestMemoryLoadGuard<GuestMemoryMmap>;

    fn memory(&self) -> Self::T {
        let nth = usize::from(self.watch.is_paused.load(Ordering::SeqCst));
        self.watch.accesses[nth].fetch_add(1, Ordering::SeqCst);
        self.memory.memory()
    }
}

/// Two VMs that know each other's queue pairs.
struct Pair<'a> {
    host: &'a Host,
    paused: Running,
    other: Running,
    memory: GuestMemoryAtomic<GuestMemoryMmap>,
    watch: Arc<Watch>,
}

impl<'a> Pair<'a> {
    fn start(host: &'a Host) -> Result<Self, Box<dyn Error>> {
        let (memory, others) = (memory(MEMORY)?, memory(MEMORY)?);
        let watch = Arc::<Watch>::default();
        let ram = Watched {
            memory: memory.clone(),
            watch: Arc::clone(&watch),
        };
        let talk = [TALK, 0];
        let pair = Self {
            host,
            paused: host.start((0, false), memory.clone(), ram, talk)?,
            other: host.start((1, false), others.clone(), others, talk)?,
            memory,
            watch,
        };
        let queue_pairs = [pair.paused.wait()?, pair.other.wait()?];
        pair.paused.call(queue_pairs[1])?;
        pair.other.call(queue_pairs[0])?;
        Ok(pair)
    }

    /// Pauses the VM, whose processor stands still, while the other one does something. Compares the VM's memory before and
    /// after, as no watch sees what goes around it.
    fn pause(
        &self,
        meanwhile: impl FnOnce(&Running) -> Result<(), Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        self.paused.device.pause();
        self.watch.is_paused.store(true, Ordering::SeqCst);
        let before = self.copy()?;
        meanwhile(&self.other)?;
        let is_same = self.copy()? == before;
        self.watch.is_paused.store(false, Ordering::SeqCst);
        self.paused.device.resume();
        match self.watch.accesses[1].load(Ordering::SeqCst) {
            0 if is_same => Ok(()),
            0 => Err("the memory of the paused VM has changed".into()),
            accesses => Err(format!("{accesses} accesses to the paused VM's memory").into()),
        }
    }

    fn copy(&self) -> Result<Vec<u8>, Box<dyn Error>> {
        let mut bytes = vec![0; MEMORY];
        let memory = self.memory.memory();
        memory.read_slice(&mut bytes, GuestAddress(0))?;
        Ok(bytes)
    }

    /// Returns how many packets the adapter has dropped because they found no room in the queue of a paused VF.
    fn dropped(&self) -> Result<u32, Box<dyn Error>> {
        let dropped = self.host.backend.with(|world| {
            let node = world.fabric().node(world.host(self.host.at[0]).node());
            node.map_or(0, |node| node.drops().get(DropReason::Held))
        });
        Ok(u32::try_from(dropped?)?)
    }

    /// Pauses the VM while the other one sends to it, and with sends of its own under way. All arrive.
    fn pause_amid_traffic(&self) -> Result<(), Box<dyn Error>> {
        self.other.order(SEND | FEW);
        self.paused.call(SEND | FEW)?;
        self.pause(|other| {
            other.wait()?;
            // Some may have come before the pause. These do not.
            other.call(SEND | FEW)?;
            other.call(TAKE)
        })?;
        self.paused.call(TAKE | (2 * FEW))?;
        self.other.call(TAKE | FEW)
    }

    /// Pauses the VM for more datagrams than are kept. Returns how many were dropped: all others arrive.
    fn pause_amid_flood(&self) -> Result<u32, Box<dyn Error>> {
        self.pause(|other| {
            other.call(SEND | MANY)?;
            other.call(TAKE)
        })?;
        let dropped = self.dropped()?;
        self.paused.call(TAKE | MANY.saturating_sub(dropped))?;
        Ok(dropped)
    }
}

/// Pauses a VM so often, and once for more datagrams than are kept for it.
pub(crate) fn pause(host: &Host, pauses: u32) -> Verdict {
    let begun = Instant::now();
    let pair = Pair::start(host)?;
    println!("two VMs: {:.1?}", begun.elapsed());
    let begun = Instant::now();
    for nth in 1..=pauses {
        let paused = pair.pause_amid_traffic();
        paused.map_err(|error| format!("pause {nth} of {pauses}: {error}"))?;
    }
    let (time, dropped) = (begun.elapsed(), pair.dropped()?);
    let accesses = pair.watch.accesses[0].load(Ordering::SeqCst);
    let sent = u64::from(2 * FEW) * u64::from(pauses);
    println!("{pauses} pauses amid traffic: {time:.1?}");
    println!("    accesses to the VM's memory: 0 in pauses, {accesses} between them");
    println!("    datagrams for the VM: {sent}, {dropped} of them dropped");
    if dropped != 0 || accesses == 0 {
        return Err("pauses amid traffic: there were losses, or the watch sees nothing".into());
    }
    let begun = Instant::now();
    let paused = pair.pause_amid_flood();
    let dropped = paused.map_err(|error| format!("a pause amid {MANY} datagrams: {error}"))?;
    println!("a pause amid {MANY} datagrams: {:.1?}", begun.elapsed());
    println!("    {} kept, which arrived", MANY - dropped);
    println!("    {dropped} dropped, which the adapter counted");
    if dropped == 0 {
        return Err(format!("a pause amid {MANY} datagrams: the bound was not reached").into());
    }
    for vm in [pair.paused, pair.other] {
        vm.order(END);
        vm.end()?;
    }
    Ok(true)
}
