//! A VMM with one virtual HCA, without the VMM: `cargo run -p vhca --example embed` plays the guest's driver as far as the
//! first register.

use std::error::Error;
use std::sync::Arc;
use std::thread;

use event_manager::{EventManager, SubscriberOps};
use vhca::device::event::EventLoop;
use vhca::device::{Interrupts, MsixMessage, TrappedDoorbells};
use vhca::emulated::VfOptions;
use vhca::world::World;
use vm_memory::{GuestAddress, GuestMemoryMmap};

/// Interrupts of a VMM: `vhca::kvm::Msi` by KVM.
struct Printed;

impl Interrupts for Printed {
    fn trigger(&self, vector: u16, message: MsixMessage) {
        println!("vector {vector}: {message:x?}");
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let memory: GuestMemoryMmap = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 64 << 20)])?;
    let (world, at) = World::with_one_vf(Arc::new(memory), &VfOptions::default())?;
    let event_loop = EventLoop::new(world)?;
    let doorbells = Arc::new(TrappedDoorbells);
    let device = event_loop
        .backend()
        .attach(at, Arc::new(Printed), doorbells)?;

    // The device's thread. It ends with the process.
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

    // The vCPUs' threads, each with a clone.
    let mut identity = [0; 4];
    device.config_read(0, &mut identity);
    println!(
        "vendor and device: {identity:02x?}, {} vectors",
        device.vectors()
    );
    for bar in device.bars() {
        println!("BAR {}: {} KiB", bar.index, bar.size / 1024);
    }
    let memory = device.detach();
    println!("detached: {}", memory.is_some());
    Ok(())
}
