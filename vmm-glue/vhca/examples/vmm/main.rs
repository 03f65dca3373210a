//! A VMM on KVM whose guest drives a virtual HCA: `cargo run --release -p vhca --features kvm --example vmm -- MODE`.
//!
//! * `steps [--repeat N]`: from the first look at the bus to commands that end by interrupt; N boots.
//! * `doorbells`: 10,000 sends by doorbells that are trapped and by ioeventfds, and the same while the registers move.
//! * `masks`: a vector is masked 1,000 times while it fires.
//! * `plug`: memory is plugged in, holds queues that send, and is plugged out under them.
//!
//! Exit status 0 means that all was as it should be, 1 that a step failed, 77 that there is no KVM.
#![expect(unsafe_code, reason = "KVM is told where the guest's memory is")]

mod modes;
mod payload;
mod vm;

use std::env;
use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use event_manager::{EventManager, SubscriberOps};
use kvm_ioctls::Kvm;
use vhca::device::event::{DoorbellEvents, EventLoop};
use vhca::device::{Backend, Doorbells, TrappedDoorbells};
use vhca::emulated::VfOptions;
use vhca::emulated::vf_tunnel::VfId;
use vhca::kvm;
use vhca::world::{HostFunction, World};
use vm_memory::{GuestAddress, GuestMemoryAtomic, GuestMemoryMmap};

use payload::Payload;
use vm::{MEMORY, Steps, Vm};

const VF: VfId = VfId::new(1).expect("VFs are numbered from 1");

/// A guest that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(600);

/// A boot that went well.
struct Boot {
    steps: Vec<(String, Duration)>,
    /// Times that the payload measured, in nanoseconds.
    measured: u64,
}

/// Shared by the VMs of this process: the world, and the thread that steps it.
struct Host {
    kvm: Kvm,
    payload: Payload,
    backend: Backend<World>,
    at: HostFunction,
    events: DoorbellEvents<HostFunction>,
}

fn memory() -> Result<GuestMemoryAtomic<GuestMemoryMmap>, Box<dyn Error>> {
    let ranges = [(GuestAddress(0), MEMORY)];
    Ok(GuestMemoryAtomic::new(GuestMemoryMmap::from_ranges(
        &ranges,
    )?))
}

impl Host {
    fn new(kvm: Kvm) -> Result<Self, Box<dyn Error>> {
        let (world, at) = World::with_one_vf(memory()?, &VfOptions::default())?;
        let event_loop = EventLoop::new(world)?;
        let host = Self {
            kvm,
            payload: Payload::build()?,
            backend: event_loop.backend().clone(),
            at,
            events: event_loop.doorbell_events(at),
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

    /// Runs a VM with a VF of its own until its payload ends.
    fn boot(&self, arguments: [u64; 2], is_trapped: bool) -> Result<Boot, Box<dyn Error>> {
        let memory = memory()?;
        let (at, ram) = (self.at, memory.clone());
        self.backend.with(|world| {
            // Of the boot before.
            let _ = world.remove_vf(at.host, VF);
            world.add_vf_for_vmm(at.host, VF, ram, &VfOptions::default())
        })??;
        let mut vm = Vm::new(&self.kvm, memory, &self.payload, arguments)?;
        let signalled = kvm::Doorbells::new(Arc::clone(&vm.fd), self.events.clone(), 64);
        let doorbells: Arc<dyn Doorbells> = match is_trapped {
            true => Arc::new(TrappedDoorbells),
            false => Arc::new(signalled),
        };
        let interrupts = Arc::new(kvm::Msi::new(Arc::clone(&vm.fd)));
        let device = self.backend.attach(at, interrupts, doorbells)?;
        let steps = Steps::default();
        let (send, receive) = mpsc::channel();
        let (its_device, its_steps) = (device.clone(), Arc::clone(&steps));
        thread::spawn(move || {
            let end = vm.run(&its_device, &its_steps);
            let _ = send.send((end.map_err(|error| error.to_string()), Instant::now()));
        });
        let received = receive.recv_timeout(LIMIT);
        let steps = steps.lock().map_err(|_| "a thread failed")?;
        let last = steps.last().map_or("start", |(name, _)| name);
        let (measured, ended) = match received {
            Ok((Ok(measured), ended)) => (measured, ended),
            Ok((Err(why), _)) => return Err(format!("step \"{last}\": {why}").into()),
            Err(_) => return Err(format!("step \"{last}\" hangs; {device:?}").into()),
        };
        let _ = device.detach();
        let ends = steps.iter().skip(1).map(|(_, begun)| *begun);
        let steps = steps.iter().zip(ends.chain([ended]));
        let steps = steps.map(|((name, begun), end)| (name.clone(), end - *begun));
        Ok(Boot {
            steps: steps.collect(),
            measured,
        })
    }
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mode: &dyn Fn(&Host) -> modes::Verdict = match arguments[..] {
        ["steps"] => &|host| modes::steps(host, 1),
        ["steps", "--repeat", times] => &move |host| modes::steps(host, times.parse()?),
        ["doorbells"] => &modes::doorbells,
        ["masks"] => &modes::masks,
        ["plug"] => &modes::plug,
        _ => return Err("usage: vmm steps [--repeat N] | doorbells | masks | plug".into()),
    };
    let Ok(kvm) = Kvm::new().inspect_err(|error| println!("not run: /dev/kvm: {error}")) else {
        return Ok(ExitCode::from(77));
    };
    let is_well = mode(&Host::new(kvm)?)?;
    Ok(ExitCode::from(u8::from(!is_well)))
}

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}
