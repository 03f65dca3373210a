//! The mlx4 guest driver of [`vhca_tests::mlx4_driver`] on VFs: alone on an adapter, and on hosts with PF
//! contexts and a subnet manager, in virtual time; by the wall clock over [`vhca::device`] and at a running service.
#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

mod connections;
mod datagrams;
mod device;
mod hostile;
mod mads;
mod ports;
mod probe;
mod protection;
mod random;
mod resets;
mod served;

use vf_pci::PciFunction;
use vf_proxy::mlx4::{Mlx4Config, Mlx4Function};
use vhca_tests::mlx4_driver::{Bench, GuestMemory, Lab, LabPlan};

/// A function as it is after power-on.
fn function() -> Box<dyn PciFunction> {
    Box::new(Mlx4Function::new(&Mlx4Config::default()))
}

/// A function alone on an adapter with so many ports.
fn bench(ports: u8) -> (Bench, GuestMemory) {
    let memory = GuestMemory::new(4096);
    (Bench::new(&memory, ports, function()), memory)
}

/// A lab whose guests' ports are active.
fn lab(plan: LabPlan) -> Lab {
    let mut lab = Lab::new(plan, |_| function());
    assert!(lab.bring_up().unwrap(), "the ports become active");
    lab
}
