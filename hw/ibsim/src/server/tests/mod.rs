//! The rules of the server, on ports that a test plays.

mod controls;
mod delivery;
mod requests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ib_endpoint::{MadAddress, Message};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::{AttributeId, Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::smp::{DirectedRouteSmp, LidRoutedSmp, NodeInfo, PortInfo, SmpAttribute};
use ib_wire::{Guid, Lid, PortNum, Qpn, Tid};
use zerocopy::IntoBytes;

use super::*;
use crate::Asker;
use crate::codec::{Connect, Control, ControlKind};

const SMP: MgmtClass = MgmtClass::SUBN_DIRECTED_ROUTE;
const SA: MgmtClass = MgmtClass::SUBN_ADM;
const OWNER: &[u8] = b"owner";

/// Three ports, 1 to 3, with LIDs 11 to 13, called `n1` to `n3`. LID 99 and paths that begin with 99 lead
/// nowhere. QP0 of port 3 belongs to somebody else.
#[derive(Debug, Default)]
struct Net {
    open: BTreeSet<u8>,
    is_sm: BTreeSet<u8>,
    sent: Vec<(u8, MadAddress, Mad)>,
    to_receive: BTreeMap<u8, VecDeque<(Qpn, MadAddress, Message)>>,
    declined: Vec<Mad>,
    is_full: bool,
}

impl Ports for Net {
    type Port = u8;

    fn find(&self, name: &[u8]) -> Option<u8> {
        match name {
            b"" => Some(1),
            [b'n', digit @ b'1'..=b'3'] => Some(digit - b'0'),
            _ => None,
        }
    }

    fn open(&mut self, port: u8) -> Option<Smi> {
        assert!(self.open.insert(port), "a port is opened once");
        Some(if port == 3 { Smi::Taken } else { Smi::Open })
    }

    fn close(&mut self, port: u8) {
        assert!(self.open.remove(&port), "a port is closed once");
    }

    fn lid(&self, port: u8) -> Lid {
        Lid::new(10 + u16::from(port))
    }

    fn ask_own_agent(&mut self, port: u8, _: Asker, smp: &Mad) -> Option<Mad> {
        let mut answer = *smp;
        answer.header.method = Method::GET_RESP;
        let view: &mut LidRoutedSmp = answer.view_mut();
        if smp.header.attribute_id == NodeInfo::ID {
            *view.attribute_mut() = NodeInfo {
                vendor_id: [0, 2, 0xc9],
                node_guid: Guid::new(u64::from(port)),
                ..NodeInfo::default()
            };
        } else if smp.header.attribute_id == PortInfo::ID {
            let mut info = PortInfo {
                lid: self.lid(port),
                local_port: PortNum(u8::try_from(smp.header.attribute_modifier.get()).unwrap()),
                ..PortInfo::default()
            };
            info.set_port_state(ib_wire::smp::PortState::ACTIVE);
            *view.attribute_mut() = info;
        } else {
            answer.header.status = MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE;
        }
        Some(answer)
    }

    fn set_is_sm(&mut self, port: u8, is_sm: bool) {
        if is_sm {
            self.is_sm.insert(port);
        } else {
            self.is_sm.remove(&port);
        }
    }

    fn reaches(&self, _port: u8, dlid: Lid, mad: &Mad) -> bool {
        if mad.header.mgmt_class == SMP && dlid == Lid::PERMISSIVE {
            return mad.view::<DirectedRouteSmp>().path().unwrap().first() != Some(&99);
        }
        dlid.get() != 99
    }

    fn send(&mut self, port: u8, to: &MadAddress, mad: &Mad) -> bool {
        if self.is_full {
            return false;
        }
        assert!(self.open.contains(&port));
        self.sent.push((port, *to, *mad));
        true
    }

    fn receive(&mut self, port: u8) -> Option<(Qpn, MadAddress, Message)> {
        self.to_receive.get_mut(&port)?.pop_front()
    }

    fn decline(&mut self, _port: u8, _qpn: Qpn, _from: &MadAddress, mad: &Mad) {
        self.declined.push(*mad);
    }
}

/// A server on such a net.
struct Bench {
    server: Server<u8>,
    net: Net,
}

impl Bench {
    fn new(config: ServerConfig) -> Self {
        Self {
            server: Server::new(config),
            net: Net::default(),
        }
    }

    fn control(&mut self, control: &Control) -> Control {
        let outcome = (self.server).handle_control(&mut self.net, OWNER, control.as_bytes());
        outcome.reply.unwrap()
    }

    fn try_connect(&mut self, node: &str, takes_requests: bool) -> Option<u32> {
        let mut data: Connect = Control::new(ControlKind::CONNECT, 0, &[0_u8; 44]).data();
        data.id = 4711.into();
        data.takes_requests = u32::from(takes_requests).into();
        data.set_node_name(node.as_bytes());
        let control = Control::new(ControlKind::CONNECT, 0, &data);
        let outcome = (self.server).handle_control(&mut self.net, OWNER, control.as_bytes());
        let reply = outcome.reply.unwrap();
        let Some((slot, id)) = outcome.connected else {
            assert_eq!(reply.kind, ControlKind::ERROR);
            return None;
        };
        assert_eq!(id, 4711);
        let data: Connect = reply.data();
        assert_eq!(data.id.get(), slot);
        Some(slot)
    }

    fn connect(&mut self, node: &str) -> u32 {
        self.try_connect(node, false).unwrap()
    }

    fn set_is_sm(&mut self, slot: u32, is_sm: bool) {
        let control = Control::new(ControlKind::SET_IS_SM, slot, &u32::from(is_sm));
        assert_eq!(self.control(&control).kind, ControlKind::SET_IS_SM);
    }

    /// A client behind which a subnet manager runs: it has announced itself and looked around.
    fn connect_manager(&mut self, node: &str) -> u32 {
        let slot = self.connect(node);
        self.set_is_sm(slot, true);
        self.send(slot, Lid::PERMISSIVE, &smp(Method::GET, 1, &[]));
        self.net.sent.clear();
        slot
    }

    fn send_at(&mut self, now: Instant, slot: u32, dlid: Lid, mad: &Mad) {
        let qpn = u32::from(!mad.header.mgmt_class.is_smp());
        let datagram = MadDatagram::new(Lid::NONE, dlid, qpn, qpn, mad);
        (self.server).handle_mad(now, &mut self.net, slot, datagram.as_bytes());
    }

    fn send(&mut self, slot: u32, dlid: Lid, mad: &Mad) {
        self.send_at(Instant::ZERO, slot, dlid, mad);
    }

    /// The only MAD that was sent since this was asked last.
    fn sent(&mut self) -> (MadAddress, Mad) {
        assert_eq!(self.net.sent.len(), 1, "{:?}", self.net.sent);
        let (_, to, mad) = self.net.sent.remove(0);
        (to, mad)
    }

    /// Has a message come to a port.
    fn arrive(&mut self, port: u8, from: MadAddress, message: Message) {
        let qpn = from.qpn;
        let queue = self.net.to_receive.entry(port).or_default();
        queue.push_back((qpn, from, message));
        self.server.poll(Instant::ZERO, &mut self.net);
    }

    fn taken(&mut self, slot: u32) -> Option<MadDatagram> {
        let datagram = MadDatagram::parse(self.server.front(slot)?).unwrap();
        self.server.pop(slot);
        Some(datagram)
    }

    fn counters(&self) -> ServerCounters {
        *self.server.counters()
    }
}

impl Default for Bench {
    fn default() -> Self {
        Self::new(ServerConfig::default())
    }
}

/// A GMP.
fn gmp(class: MgmtClass, method: Method, tid: u64) -> Mad {
    let mut mad = Mad::new(MadHeader::new(class, method, AttributeId::new(0x35)));
    mad.header.tid = Tid::new(tid);
    mad
}

/// A directed-route SMP as the protocol has it.
fn smp(method: Method, tid: u64, path: &[u8]) -> Mad {
    let mut mad = gmp(SMP, method, tid);
    let view: &mut DirectedRouteSmp = mad.view_mut();
    assert!(view.set_path(path));
    view.set_returning(method.is_response());
    mad
}

/// The answer to a MAD that was sent.
fn answer(mad: &Mad) -> Mad {
    let mut answer = *mad;
    answer.header.method = mad.header.method.response();
    answer
}
