//! Files of a port without a kernel, and the adapter's thread at work.

use std::collections::VecDeque;
use std::sync::mpsc::{Sender, channel};

use hca_api::{AccessFlags, HcaError, PdHandle};
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::smp::NodeType;
use ib_wire::{Gid, Guid, Lid, Lmc, PKey, Sl, SubnetPrefix, Tid};
use linux_abi::Errno;
use linux_abi::sysfs::{Adapter, Port};
use umad_link::{HEADER_SIZE, UmadHeader};
use zerocopy::IntoBytes;

use crate::umad::{FILES, PortFiles};
use crate::worker::{Registration, Source, Worker};

/// Files that take every write, unless refusals are set, and give what a test puts there.
#[derive(Debug)]
pub(crate) struct FakeFiles {
    pub(crate) written: Vec<(usize, UmadHeader, Mad)>,
    pub(crate) refusals: VecDeque<Errno>,
    pub(crate) unread: [VecDeque<Vec<u8>>; FILES],
    pub(crate) is_gone: bool,
    pub(crate) is_ethernet: bool,
    pub(crate) port: Port,
}

impl Default for FakeFiles {
    fn default() -> Self {
        Self {
            written: Vec::new(),
            refusals: VecDeque::new(),
            unread: Default::default(),
            is_gone: false,
            is_ethernet: false,
            port: port(),
        }
    }
}

impl PortFiles for FakeFiles {
    fn write(&mut self, file: usize, packet: &[u8]) -> Result<(), Errno> {
        if let Some(error) = self.refusals.pop_front() {
            return Err(error);
        }
        let header = UmadHeader::read(packet, HEADER_SIZE).unwrap();
        let mad = Mad::from_bytes(&packet[HEADER_SIZE..]).unwrap();
        self.written.push((file, header, mad));
        Ok(())
    }

    fn read(&mut self, file: usize, packet: &mut [u8]) -> Result<usize, Errno> {
        if self.is_gone {
            return Err(Errno::EIO);
        }
        let unread = self.unread[file].pop_front().ok_or(Errno::EAGAIN)?;
        packet[..unread.len()].copy_from_slice(&unread);
        Ok(unread.len())
    }

    fn attribute(&self, path: &str) -> Option<String> {
        let text = match path {
            "link_layer" if self.is_ethernet => Some("Ethernet\n".to_owned()),
            _ if self.is_ethernet && path.starts_with("gid_attrs/types") => {
                Some("RoCE v2\n".to_owned())
            }
            _ => self.port.attribute(&path.split('/').collect::<Vec<_>>()),
        };
        text.filter(|_| !self.is_gone)
    }
}

/// A MAD of a class and method, with an id.
pub(crate) fn mad(class: MgmtClass, method: Method, tid: u64) -> Mad {
    let mut header = MadHeader::new(class, method, AttributeId::new(0x35));
    header.tid = Tid::new(tid);
    Mad::new(header)
}

/// Returns the packet that a file has for a MAD from LID 9.
pub(crate) fn packet(mad: &Mad) -> Vec<u8> {
    let from = ib_endpoint::MadAddress::gsi(Lid::new(9));
    let header = UmadHeader::received(0, &from);
    [header.as_bytes(), mad.as_bytes()].concat()
}

pub(crate) fn adapter() -> Adapter {
    Adapter {
        node_type: NodeType::CA,
        node_guid: Guid::new(0x100),
        system_image_guid: Guid::new(0x103),
        description: "host HCA-1".to_owned(),
        firmware: "2.42.5000".to_owned(),
        revision: 1,
        hca_type: "MT4099".to_owned(),
    }
}

pub(crate) fn port() -> Port {
    let gid = |guid| Gid::from_parts(SubnetPrefix::DEFAULT, Guid::new(guid));
    Port {
        capability_mask: 0x0251_0868,
        lid: Lid::new(7),
        lmc: Lmc::from_low_bits(0),
        sm_lid: Lid::new(9),
        sm_sl: Sl::from_low_bits(2),
        state: 4,
        physical_state: 5,
        width: 2,
        speed: 16,
        gids: (0..9).map(|index| gid(0x101 + index)).collect(),
        pkeys: vec![PKey::DEFAULT_FULL, PKey::INVALID],
        counters: vec![("symbol_error", 70_000), ("port_xmit_data", 1 << 33)],
        hw_counters: Vec::new(),
    }
}

/// Occupies the thread with a registration for a domain that is gone, until the sender sends or is dropped.
pub(crate) fn occupy<R: Send + 'static>(worker: &mut Worker<R>) -> Sender<()> {
    let (begin, begun) = channel();
    let asked = Registration {
        pd: PdHandle(99),
        iova: 0,
        len: 0,
        access: AccessFlags::empty(),
        source: Source::Range(0),
    };
    let waits = Box::new(move || {
        let _ = begun.recv();
        Err(HcaError::InvalidParameter)
    });
    let pending = worker.register(asked, waits);
    assert!(matches!(pending, Err(HcaError::Pending)));
    begin
}
