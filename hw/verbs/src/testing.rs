//! An adapter and commands for the tests of this crate.

use emulated_hca::hca::Device;
use emulated_hca::{EndNode, HcaConfig};
use hca_api::{FunctionId, Hca, PortState};
use ib_wire::{Guid, Lid, Mtu, PortNum};
use zerocopy::{Immutable, IntoBytes};

use crate::abi::CommandHeader;

/// Returns a command with a payload, whose answer has so many bytes of room.
pub(crate) fn command_bytes(
    number: u32,
    payload: &(impl IntoBytes + Immutable),
    room: usize,
) -> Vec<u8> {
    let payload = payload.as_bytes();
    let words = |bytes: usize| u16::try_from(bytes / 4).unwrap();
    let header = CommandHeader {
        command: number.into(),
        in_words: words(size_of::<CommandHeader>() + payload.len()).into(),
        out_words: words(room).into(),
    };
    [header.as_bytes(), payload].concat()
}

/// An adapter whose port is active, with LID 5.
pub(crate) struct ActivePort {
    pub(crate) device: Device,
}

impl ActivePort {
    pub(crate) fn new() -> Self {
        let guid = Guid::new(0x0002_c903_0000_1000);
        let mut device = Device::new(&HcaConfig::new(guid, "test"), 7);
        let port = device.node_mut().port_mut(PortNum(1)).unwrap();
        port.state = PortState::Active;
        port.lid = Lid::new(5);
        port.neighbor_mtu = Mtu::MTU_2048;
        Self { device }
    }

    /// Calls something with the adapter's function.
    pub(crate) fn with<T>(&mut self, call: impl FnOnce(&mut dyn Hca) -> T) -> T {
        call(&mut self.device.function(FunctionId::PF).unwrap())
    }
}
