use emulated_hca::{Adapters, Fabric, HcaConfig, NodeId};
use hca_api::FunctionId;
use ib_wire::Guid;

use super::*;

const IDENTITY: Identity = Identity {
    vendor: 0x15b3,
    device: 0x1004,
    class_code: [0x02, 0x07, 0x00],
};
const REGISTERS: Bar = Bar {
    index: 2,
    size: 8 << 20,
    prefetchable: true,
};
const COMMAND: u16 = 0x04;
const MSIX_CONTROL: u16 = 0x9e;
const ON: [u8; 2] = [0, 0x80];
const ON_AND_MASKED: [u8; 2] = [0, 0xc0];

/// An endpoint with the adapter that it is lent.
struct Slot {
    fabric: Fabric,
    node: NodeId,
    endpoint: Endpoint,
}

impl Slot {
    fn new() -> Self {
        let mut fabric = Fabric::new(1);
        let node = fabric.add_hca(&HcaConfig::new(Guid::new(1), "test"));
        Self {
            fabric,
            node,
            endpoint: Endpoint::new(&IDENTITY, &[REGISTERS], 4, 4),
        }
    }

    /// Writes configuration space, and returns what the VMM is told.
    fn config(&mut self, offset: u16, bytes: &[u8]) -> Vec<PciEvent> {
        let mut hca = self.fabric.hca(self.node, FunctionId::PF).expect("its PF");
        if self.endpoint.config_write(&mut hca, offset, bytes) {
            self.endpoint.reset(&mut hca);
        }
        self.events()
    }

    fn table(&mut self, offset: u64, bytes: &[u8]) -> Vec<PciEvent> {
        assert!(self.endpoint.bar_write(4, offset, bytes));
        self.events()
    }

    fn events(&mut self) -> Vec<PciEvent> {
        core::iter::from_fn(|| self.endpoint.poll_event()).collect()
    }
}

const fn changed(vector: u16) -> PciEvent {
    PciEvent::VectorChanged { vector }
}

const fn interrupt(vector: u16) -> PciEvent {
    PciEvent::Interrupt { vector }
}

/// A slot whose guest has turned everything on and unmasked vectors 1 and 2.
fn programmed() -> Slot {
    let mut slot = Slot::new();
    slot.config(0x10 + 4 * 4, &0xe000_0000_u32.to_le_bytes());
    assert_eq!(slot.config(COMMAND, &[6, 0]), [PciEvent::BarsChanged]);
    slot.config(MSIX_CONTROL, &ON);
    for vector in [1_u8, 2] {
        let at = 16 * u64::from(vector);
        assert_eq!(slot.table(at, &[0, 0, 0xe0, 0xfe, 0, 0, 0, 0]), []);
        assert_eq!(slot.table(at + 8, &[vector, 0, 0, 0]), []);
        assert_eq!(slot.table(at + 12, &[0; 4]), [changed(vector.into())]);
    }
    slot
}

#[test]
fn a_vector_that_changes_is_told_before_the_interrupt_that_waited_for_it() {
    let mut slot = programmed();
    slot.endpoint.raise(1);
    assert_eq!(slot.events(), [interrupt(1)]);
    assert_eq!(slot.table(16 + 12, &[1, 0, 0, 0]), [changed(1)]);
    assert_eq!(slot.endpoint.message(1), None);
    slot.endpoint.raise(1);
    slot.endpoint.raise(3);
    assert_eq!(slot.events(), []);
    assert_eq!(slot.table(16 + 12, &[0; 4]), [changed(1), interrupt(1)]);
    let message = MsixMessage {
        address: 0xfee0_0000,
        data: 1,
    };
    assert_eq!(slot.endpoint.message(1), Some(message));
    assert_eq!(slot.table(16 + 12, &[0; 4]), [], "as it was");
}

#[test]
fn what_masks_all_vectors_changes_those_that_were_not_masked() {
    let mut slot = programmed();
    assert_eq!(
        slot.config(MSIX_CONTROL, &ON_AND_MASKED),
        [changed(1), changed(2)]
    );
    slot.endpoint.raise(2);
    assert_eq!(
        slot.config(MSIX_CONTROL, &ON),
        [changed(1), changed(2), interrupt(2)]
    );
    assert_eq!(slot.config(MSIX_CONTROL, &[0, 0]), [changed(1), changed(2)]);
    assert_eq!(slot.config(MSIX_CONTROL, &ON), [changed(1), changed(2)]);
    // Memory space, and no bus master.
    assert_eq!(slot.config(COMMAND, &[2, 0]), [changed(1), changed(2)]);
}

#[test]
fn an_interrupt_that_was_not_taken_before_its_vector_was_masked_waits() {
    let mut slot = programmed();
    slot.endpoint.raise(1);
    assert!(slot.endpoint.bar_write(4, 16 + 12, &[1, 0, 0, 0]));
    assert_eq!(slot.events(), [changed(1)]);
    assert_eq!(slot.table(16 + 12, &[0; 4]), [changed(1), interrupt(1)]);
}

#[test]
fn bars_are_told_when_they_appear_move_and_go() {
    let mut slot = Slot::new();
    let bars = [PciEvent::BarsChanged];
    assert_eq!(slot.config(0x18, &0x7f_e080_0000_u64.to_le_bytes()), []);
    assert_eq!(slot.config(COMMAND, &[2, 0]), bars);
    assert_eq!(slot.endpoint.bar_address(2), Some(0x7f_e080_0000));
    assert_eq!(slot.config(COMMAND, &[2, 0]), []);
    for half in [0x18, 0x1c] {
        assert_eq!(slot.config(half, &[0xff; 4]), [], "its size is read");
    }
    assert_eq!(slot.config(0x18, &0x7f_e080_0000_u64.to_le_bytes()), []);
    assert_eq!(slot.config(0x18, &0xe100_0000_u32.to_le_bytes()), bars);
    assert_eq!(slot.config(0x1c, &[0; 4]), bars);
    assert_eq!(slot.endpoint.bar_address(2), Some(0xe100_0000));
    assert_eq!(slot.config(COMMAND, &[0, 0]), bars);
    assert_eq!(slot.config(0x1c, &[1, 0, 0, 0]), [], "memory space is off");
    assert_eq!(slot.config(COMMAND, &[2, 0]), bars);
}

#[test]
fn a_function_level_reset_takes_bars_and_vectors_away() {
    let mut slot = programmed();
    slot.endpoint.raise(1);
    let told = slot.config(0x68, &[0, 0x80]);
    assert_eq!(told, [changed(1), changed(2), PciEvent::BarsChanged]);
    assert_eq!(
        [slot.endpoint.bar_address(2), slot.endpoint.bar_address(4)],
        [None; 2]
    );
    assert_eq!(slot.endpoint.message(1), None);
}
