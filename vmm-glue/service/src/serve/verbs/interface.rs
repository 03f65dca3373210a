//! The IP interfaces of VFs for programs.

use verbs_link::InterfaceLayout;
use vhca::world::HostFunction;
use zerocopy::IntoBytes;

use super::program::VfProgram;
use crate::serve::lab::Lab;

/// Bytes of the longest IP packet where no broadcast group says so: that of a path with an MTU of 2,048.
const USUAL_MTU: u32 = 2044;

/// Returns the interface of a VF. `None` if its address is one of the host itself, or it has none.
pub(super) fn interface(lab: &Lab, at: HostFunction) -> Option<InterfaceLayout> {
    let offered = lab.process_vfs.get(&at)?;
    let (address, network) = (offered.address?, offered.network?);
    let program = lab.world().consumer::<VfProgram>(at)?;
    let mut interface = InterfaceLayout {
        address: address.octets(),
        prefix: network.prefix,
        mtu: USUAL_MTU.into(),
        ..InterfaceLayout::default()
    };
    if let Some((hardware, mtu)) = program.link() {
        interface.is_running = 1;
        interface.mtu = mtu.unwrap_or(USUAL_MTU).into();
        interface.hardware.copy_from_slice(hardware.as_bytes());
    }
    Some(interface)
}
