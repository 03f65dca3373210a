//! A VMM with one virtual HCA: a fabric, a subnet manager, a PF, and a VF that reaches the guest's memory.
//!
//! `cargo run -p vhca --example embed` plays the vCPU: it reads the VF's identity and lets the subnet come up.

use std::error::Error;
use std::sync::Arc;

use vhca::emulated_hca::Topology;
use vhca::ib_vtime::Duration;
use vhca::ib_wire::Guid;
use vhca::pf_context::AdaptAnswer;
use vhca::pf_context::context::{PfConfig, VfPortSpec, VfSpec};
use vhca::subnet_lite::SubnetConfig;
use vhca::vf_proxy::mlx4::PERSONALITY;
use vhca::vf_tunnel::VfId;
use vhca::world::{World, vf_spec};
use vhca::{Driven, GuestRam};
use vm_memory::{GuestAddress, GuestMemoryMmap};

fn main() -> Result<(), Box<dyn Error>> {
    let (fabric, built) = Topology::two_switches(1).build(1);
    let mut world = World::new(fabric, 1);
    let manager = world.add_host(built.hcas[0])?;
    world.start_manager(manager.port(1), SubnetConfig::default())?;
    let host = world.add_pf_host(built.hcas[1], &PfConfig::new(1))?;

    let memory: GuestMemoryMmap = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 64 << 20)])?;
    let vf = VfId::new(1).ok_or("VFs are numbered from 1")?;
    let port = VfPortSpec {
        adapt_answer: Some(AdaptAnswer(PERSONALITY.adapt_answer)),
        ..VfPortSpec::default()
    };
    let spec = VfSpec {
        memory: Box::new(GuestRam::new(Arc::new(memory))),
        ports: vec![port],
        ..vf_spec(Guid::new(0x0200_0000_0000_0001))
    };
    world.add_idle_vf(host, vf, spec)?;
    let at = world.add_device(host, vf, (PERSONALITY.make)())?;

    // A VMM polls by the wall clock (`vhca::Runner`), and forwards what its vCPUs access.
    world.run_for(Duration::from_secs(2));
    let mut id = [0; 4];
    world.with_device(at, |function, _, _| function.config_read(0, &mut id));
    while let Some(device) = world.poll_interrupting() {
        while let Some(vector) = world.poll_interrupt(device) {
            println!("signal the irqfd of vector {vector}");
        }
    }
    let reason = world.context(host).ports()[0].reason(vf);
    let reason = reason.ok_or("the VF is there")?;
    println!(
        "{:02x?}, port: {reason}; next poll at {:?}",
        id,
        world.poll_timeout()
    );
    Ok(())
}
