//! VFs that programs hold, on a subnet with a manager.

pub(crate) mod connected;
mod groups;
mod native;
mod random;

use pf_context::context::PfConfig;
use vhca_tests::vf_subnet::port_spec;

use super::Device;

type VfSubnet = vhca_tests::vf_subnet::VfSubnet<Device>;

/// Builds a subnet of so many hosts with so many VFs each, whose ports are active.
fn start(seed: u64, hosts: usize, vfs: u16) -> VfSubnet {
    VfSubnet::on_adapters(seed, hosts, vfs, &PfConfig::new(seed), &port_spec())
}
