//! Guests in real time, each with a thread, a VMM and memory of its own: well-behaved ones that talk in a [`Circle`], and
//! hostile ones ([`Assault`]). Their VFs are those of a running service, or of a world in this process.

mod assault;
mod circle;

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use pf_context::context::VfSpec;
use vf_pci::PciFunction;
use vf_tunnel::VfId;
use vhca::device::Backend;
use vhca::world::{HostId, World, vf_spec};
use vhca_exercises::embedded::DeviceBus;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

use super::{Bus, GuestMemory, PAGE, VmmBus};

pub use assault::{Assault, Assaulted};
pub use circle::{Circle, Talk};

/// Pages of a guest's memory.
const PAGES: usize = 2048;

/// Why a guest cannot go on.
pub type Trouble = Box<dyn Error + Send + Sync>;

/// The place of a VF, where one VMM after the other finds it.
pub trait Site: Clone + Send + 'static {
    /// A VMM on the VF. Its end is that it is dropped.
    type Vmm: Bus;

    /// Attaches a VMM whose guest has memory of its own.
    ///
    /// # Errors
    /// The reason why there is none, such as that another VMM has the VF.
    fn attach(&self) -> Result<(Self::Vmm, GuestMemory), Trouble>;

    /// Returns `true` if the VMM was cut off from its VF.
    fn is_cut_off(&self, vmm: &Self::Vmm) -> bool;
}

/// A socket of a running service.
impl Site for PathBuf {
    type Vmm = VmmBus;

    fn attach(&self) -> Result<(VmmBus, GuestMemory), Trouble> {
        let memory = GuestMemory::shared(PAGES)?;
        let bus = VmmBus::attach(self, memory.clone())?;
        Ok((bus, memory))
    }

    fn is_cut_off(&self, vmm: &VmmBus) -> bool {
        vmm.is_gone()
    }
}

/// A socket of a running service, whose VF is a device of this process ([`vhca_remote`]).
#[derive(Clone, Debug)]
pub struct Remote(pub PathBuf);

impl Site for Remote {
    type Vmm = DeviceBus;

    fn attach(&self) -> Result<(DeviceBus, GuestMemory), Trouble> {
        let memory = GuestMemory::shared(PAGES)?;
        let file = memory.file().ok_or("the memory is in no file")?;
        // Another mapping of the file: the driver has its own.
        let file = FileOffset::from_arc(file, 0);
        let range = (GuestAddress(GuestMemory::BASE), PAGES * PAGE, Some(file));
        let map = Arc::new(GuestMemoryMmap::<()>::from_ranges_with_files([range])?);
        let attach =
            |interrupts, doorbells| vhca_remote::attach(&self.0, map, interrupts, doorbells);
        let bus = DeviceBus::attach_by(attach)?;
        // As firmware does: only doorbells with an address have eventfds.
        for (nth, bar) in (1..).zip(bus.device().bars()) {
            let _ = bus.device().restore_bar(bar.index, nth << 32);
        }
        Ok((bus, memory))
    }

    fn is_cut_off(&self, vmm: &DeviceBus) -> bool {
        vmm.device().statistics().after_detach > 0
    }
}

/// A VF of a world in this process, made anew for each VMM.
#[derive(Clone, Debug)]
pub struct InProcess {
    /// The world.
    pub backend: Backend<World>,
    /// The host, which has a PF.
    pub host: HostId,
    /// The VF.
    pub vf: VfId,
    /// Returns the function that the guest finds.
    pub function: fn() -> Box<dyn PciFunction>,
}

impl Site for InProcess {
    type Vmm = DeviceBus;

    fn attach(&self) -> Result<(DeviceBus, GuestMemory), Trouble> {
        let memory = GuestMemory::new(PAGES);
        let guid = ib_wire::Guid::new(0x0014_0500_0000_0000 + u64::from(self.vf.get()));
        let spec = VfSpec {
            memory: Box::new(memory.clone()),
            ..vf_spec(guid)
        };
        let at = self.backend.with(|world| {
            world.add_idle_vf(self.host, self.vf, spec)?;
            let at = world.add_device(self.host, self.vf, (self.function)())?;
            Ok::<_, Trouble>(at)
        })??;
        Ok((DeviceBus::attach(&self.backend, at)?, memory))
    }

    fn is_cut_off(&self, vmm: &DeviceBus) -> bool {
        vmm.device().statistics().after_detach > 0
    }
}
