//! A VMM on KVM whose guest drives a virtual HCA: `cargo run --release -p vhca --features kvm --example vmm -- MODE`.
//!
//! * `steps [--repeat N]`: from the first look at the bus to commands that end by interrupt; N boots.
//! * `doorbells`: 10,000 sends by doorbells that are trapped and by ioeventfds, and the same while the registers move.
//! * `masks`: a vector is masked 1,000 times while it fires.
//! * `pause [--repeat N]`: a VM is paused 1,000 times, or N, while another one sends to it and nothing touches its memory.
//! * `plug`: memory is plugged in, holds queues that send, and is plugged out under them.
//! * `tour`: two VMs on two hosts: paths, a table and a group of the SA, datagrams, connections, a reset, and all of it again.
//!   `--remote SOCKET --with PATH` or `--trunk ADDRESS --with PATH`: by two processes (features `remote` and `trunk`).
//! * `siege`: how long a VM's accesses take beside a VM that floods, which is detached, and 14 drivers, one of which is killed;
//!   and a neighbour's beside a guest that masks its vectors while each update takes 5 ms.
//! * `bench [--json]`: doorbells, commands and an idle VF, for the table of `vhca bench embed`; with `--remote SOCKET` doorbells and
//!   commands at a VF of a running service, beside those in this process (feature `remote`).
//!
//! Exit status 0 means that all was as it should be, 1 that a step failed, 77 that there is no KVM.
#![expect(unsafe_code, reason = "KVM is told where the guest's memory is")]

mod apart;
mod bench;
mod console;
mod fabric;
mod modes;
mod pause;
mod payload;
mod siege;
mod tour;
mod vm;

use std::env;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use event_manager::{EventManager, SubscriberOps};
use kvm_ioctls::Kvm;
use vhca::device::event::{EventLoop, LoopHandle};
use vhca::device::{Backend, Doorbells, TrappedDoorbells};
use vhca::emulated::{VfId, VfOptions};
use vhca::kvm;
use vhca::world::{HostFunction, HostId, World};
use vm_memory::{GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};

use console::{Boot, Console, Running};
use payload::Payload;
use vm::{MEMORY, Vm};

/// The VFs of the VMs that run at once.
const VFS: [VfId; 2] = [vf(1), vf(2)];

/// Shared by the VMs of this process: the world, and the thread that steps it.
struct Host {
    kvm: Kvm,
    payload: Payload,
    backend: Backend<World>,
    /// Host of each VM.
    at: [HostId; VFS.len()],
    events: LoopHandle<HostFunction>,
}

const fn vf(number: u16) -> VfId {
    VfId::new(number).expect("VFs are numbered from 1")
}

fn memory(size: usize) -> Result<GuestMemoryAtomic<GuestMemoryMmap>, Box<dyn Error>> {
    let ranges = [(GuestAddress(0), size)];
    Ok(GuestMemoryAtomic::new(GuestMemoryMmap::from_ranges(
        &ranges,
    )?))
}

impl Host {
    fn new(kvm: Kvm, world: World, at: [HostId; VFS.len()]) -> Result<Self, Box<dyn Error>> {
        let event_loop = EventLoop::new(world)?;
        let host = Self {
            kvm,
            payload: Payload::build()?,
            backend: event_loop.backend().clone(),
            at,
            events: event_loop.handle(),
        };
        let mut manager = EventManager::new()?;
        let id = manager.add_subscriber(event_loop);
        thread::spawn(move || {
            while manager.run().is_ok() {
                let event_loop = manager.subscriber_mut(id);
                if let Ok(Some(failure)) = event_loop.map(EventLoop::take_failure) {
                    return eprintln!("{failure}");
                }
            }
        });
        Ok(host)
    }

    /// Starts a VM with a VF of its own, which reaches the guest's memory by `ram`.
    fn start<M: GuestAddressSpace + Send + 'static>(
        &self,
        (nth, is_trapped): (usize, bool),
        memory: GuestMemoryAtomic<GuestMemoryMmap>,
        ram: M,
        arguments: [u64; 2],
    ) -> Result<Running, Box<dyn Error>> {
        let at = self.backend.with(|world| {
            world.add_vf_for_vmm(self.at[nth], VFS[nth], ram, &VfOptions::default())
        })??;
        let mut vm = Vm::new(&self.kvm, memory, &self.payload, arguments)?;
        let events = self.events.doorbell_events(at);
        let signalled = kvm::Doorbells::new(Arc::clone(&vm.fd), events, 64);
        let doorbells: Arc<dyn Doorbells> = match is_trapped {
            true => Arc::new(TrappedDoorbells),
            false => Arc::new(signalled),
        };
        let interrupts = Arc::new(kvm::Msi::new(Arc::clone(&vm.fd)));
        let device = self.backend.attach(at, interrupts, doorbells)?;
        let (mut console, running) = Console::new(device.clone());
        thread::spawn(move || {
            let measured = vm.run(device, &mut console);
            console.end(measured);
        });
        Ok(running)
    }

    /// Runs a VM until its payload ends.
    fn boot(&self, arguments: [u64; 2], is_trapped: bool) -> Result<Boot, Box<dyn Error>> {
        let memory = memory(MEMORY)?;
        self.start((0, is_trapped), memory.clone(), memory, arguments)?
            .end()
    }
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Ok(kvm) = Kvm::new().inspect_err(|error| println!("not run: /dev/kvm: {error}")) else {
        return Ok(ExitCode::from(77));
    };
    let is_well = modes::run(kvm, &arguments)?;
    Ok(ExitCode::from(u8::from(!is_well)))
}

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}
