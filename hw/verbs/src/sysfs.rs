//! The device as a device of `/sys/class/infiniband` and `/sys/class/infiniband_verbs`.

use ib_wire::smp::NodeType;
use linux_abi::sysfs::{Adapter, CharacterDevice, Device, FIRST_UVERBS, MAJOR, PciSlot, Port};

use crate::abi::RXE_ABI_VERSION;
use crate::view::{DeviceView, PortView, physical_state, port_state};

/// The PCI function of the device: the first virtual one of the first adapter.
const SLOT: PciSlot = PciSlot {
    device: 0,
    function: 1,
};

/// PCI vendor and device id of a ConnectX-3's VF.
const PCI_ID: (u16, u16) = (0x15b3, 0x1004);

/// Returns the name of a device's file in `/dev/infiniband`.
#[must_use]
pub fn file_name(device: &DeviceView) -> String {
    format!("uverbs{}", device.number)
}

/// Returns the device as sysfs shows it.
#[must_use]
pub fn device(device: &DeviceView) -> Device {
    let adapter = Adapter {
        node_type: NodeType::CA,
        node_guid: device.node_guid,
        system_image_guid: device.system_image_guid,
        description: device.description.clone(),
        firmware: device.firmware.clone(),
        revision: device.hw_rev,
        hca_type: "vhca".to_owned(),
    };
    let file = CharacterDevice {
        class: "infiniband_verbs",
        name: file_name(device),
        number: (MAJOR, FIRST_UVERBS + device.number),
        port: None,
        abi_version: Some(RXE_ABI_VERSION),
    };
    Device {
        name: device.name.clone(),
        slot: SLOT,
        physical: Some(PciSlot {
            function: 0,
            ..SLOT
        }),
        vendor_id: PCI_ID.0,
        device_id: PCI_ID.1,
        adapter,
        ports: device.ports.iter().map(of_port).collect(),
        files: vec![file],
    }
}

fn of_port(port: &PortView) -> (u8, Port) {
    let is = &port.attributes;
    let shown = Port {
        capability_mask: is.capability_mask,
        lid: is.lid,
        lmc: is.lmc,
        sm_lid: is.sm_lid,
        sm_sl: is.sm_sl,
        state: port_state(is.state),
        physical_state: physical_state(is.physical_state),
        width: is.active_width,
        speed: is.active_speed.into(),
        gids: port.gids.clone(),
        pkeys: port.pkeys.clone(),
        counters: port.counters.clone(),
        hw_counters: port.hw_counters.clone(),
    };
    (port.number.0, shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ActivePort;

    #[test]
    fn files_hold_what_the_kernels_do() {
        let device =
            ActivePort::new().with(|hca| DeviceView::of(hca, "vhca1".to_owned(), 0, "H-1".into()));
        let device = super::device(&device);
        let read = |path: &str| device.text(&format!("sys/devices/pci7ca0:00/7ca0:00:00.1/{path}"));
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(read("infiniband_verbs/uverbs0/ibdev"), text("vhca1\n"));
        assert_eq!(read("infiniband_verbs/uverbs0/dev"), text("231:192\n"));
        assert_eq!(read("infiniband/vhca1/ports/1/lid"), text("0x5\n"));
        assert_eq!(read("infiniband/vhca1/ports/1/state"), text("4: ACTIVE\n"));
        let guid = text("0002:c903:0000:1000\n");
        assert_eq!(read("infiniband/vhca1/node_guid"), guid);
        assert_eq!(read("infiniband/vhca1/ports/1/pkeys/0"), text("0xffff\n"));
        assert_eq!(read("infiniband/vhca1/ports/1/gids/99999"), None);
        assert_eq!(
            device.physical.map(|slot| slot.to_string()),
            text("7ca0:00:00.0")
        );
    }
}
