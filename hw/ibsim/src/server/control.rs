//! Control datagrams.

use std::collections::btree_map::Entry;

use ib_wire::MKey;
use ib_wire::mad::{Mad, MadHeader, Method, MgmtClass};
use ib_wire::smp::{LidRoutedSmp, NodeInfo, PKeyTable, PortInfo, SmpAttribute};
use zerocopy::IntoBytes;
use zerocopy::native_endian::U32 as HostU32;

use super::Server;
use super::client::Client;
use crate::codec::{Connect, Control, ControlKind, PortData, VendorData};
use crate::{Asker, Ports};

/// What a control datagram leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlOutcome {
    /// What to send back to where it came from.
    pub reply: Option<Control>,
    /// A client connected: its slot, and the id that names its data socket. If no way to that socket
    /// is found, [`Server::lose`] takes the slot back and [`Control`] with [`ControlKind::ERROR`]
    /// is the reply.
    pub connected: Option<(u32, u32)>,
    /// The client in this slot is gone.
    pub disconnected: Option<u32>,
}

impl<P: Copy + Ord + core::fmt::Debug> Server<P> {
    /// Takes a control datagram. `from` is the address it came from, in whatever form; only from there
    /// the client is spoken for.
    pub fn handle_control(
        &mut self,
        ports: &mut impl Ports<Port = P>,
        from: &[u8],
        datagram: &[u8],
    ) -> ControlOutcome {
        let Some(mut control) = Control::parse(datagram) else {
            self.counters.bad_controls += 1;
            return ControlOutcome::default();
        };
        let slot = control.slot.get();
        let mut outcome = ControlOutcome::default();
        let served = if control.kind == ControlKind::CONNECT {
            outcome.connected = self.connect(ports, from, &mut control);
            outcome.connected.is_some()
        } else if self.clients.get(&slot).is_none_or(|c| c.owner != from) {
            false
        } else if control.kind == ControlKind::DISCONNECT {
            outcome.disconnected = Some(slot);
            self.remove(ports, slot)
        } else {
            self.serve(ports, slot, &mut control).is_some()
        };
        if !served {
            self.counters.refused_controls += 1;
            control.kind = ControlKind::ERROR;
        }
        outcome.reply = Some(control);
        outcome
    }

    fn connect(
        &mut self,
        ports: &mut impl Ports<Port = P>,
        owner: &[u8],
        control: &mut Control,
    ) -> Option<(u32, u32)> {
        let mut request: Connect = control.data();
        let port = ports.find(request.node_name())?;
        let takes_requests = request.takes_requests.get() != 0;
        let mut others = self.clients.values().filter(|client| client.port == port);
        if takes_requests && others.any(|client| client.takes_requests) {
            return None;
        }
        let slot = (0..self.config.max_clients).find(|slot| !self.clients.contains_key(slot))?;
        if let Entry::Vacant(unused) = self.ports.entry(port) {
            unused.insert(ports.open(port)?);
        }
        let client = Client::new(owner, port, takes_requests);
        self.clients.insert(slot, client);
        let id = request.id.get();
        request.id = slot.into();
        control.set_data(&request);
        Some((slot, id))
    }

    /// Serves a request of a client about its port.
    fn serve(
        &mut self,
        ports: &mut impl Ports<Port = P>,
        slot: u32,
        control: &mut Control,
    ) -> Option<()> {
        let port = self.clients.get(&slot)?.port;
        match control.kind {
            ControlKind::GET_PORT => {
                let info: PortInfo = get(ports, port, 0)?;
                control.set_data(&PortData {
                    lid: info.lid.get().into(),
                    state: info.port_state().get(),
                });
            }
            ControlKind::GET_VENDOR => {
                let info: NodeInfo = get(ports, port, 0)?;
                let [a, b, c] = info.vendor_id;
                control.set_data(&VendorData {
                    vendor_id: u32::from_be_bytes([0, a, b, c]).into(),
                    device_id: u32::from(info.device_id.get()).into(),
                    revision: info.revision.get().into(),
                    ..VendorData::default()
                });
            }
            ControlKind::GET_GID => {
                let node: NodeInfo = get(ports, port, 0)?;
                let info: PortInfo = get(ports, port, 0)?;
                let mut gid = [0_u8; 16];
                gid[..8].copy_from_slice(info.gid_prefix.as_bytes());
                gid[8..].copy_from_slice(node.node_guid.as_bytes());
                control.set_data(&gid);
            }
            ControlKind::GET_GUID => {
                let node: NodeInfo = get(ports, port, 0)?;
                control.set_data(&node.node_guid);
            }
            ControlKind::GET_NODE_INFO => {
                let info: NodeInfo = get(ports, port, 0)?;
                control.set_data(&info);
            }
            ControlKind::GET_PORT_INFO => {
                let info: PortInfo = get(ports, port, u32::from(control.data[0]))?;
                // A client is a program, whom the driver does not tell the key.
                let info = PortInfo {
                    mkey: MKey::default(),
                    ..info
                };
                control.set_data(&info);
            }
            ControlKind::SET_IS_SM => {
                let flag: HostU32 = control.data();
                self.set_is_sm(ports, slot, port, flag.get() != 0);
            }
            ControlKind::GET_PKEYS => {
                let table: PKeyTable = get(ports, port, 0)?;
                control.set_data(&table);
            }
            _ => return None,
        }
        Some(())
    }

    fn set_is_sm(&mut self, ports: &mut impl Ports<Port = P>, slot: u32, port: P, is_sm: bool) {
        if let Some(client) = self.clients.get_mut(&slot) {
            client.is_sm = is_sm;
        }
        let on_port = self.clients.values().filter(|client| client.port == port);
        ports.set_is_sm(port, on_port.fold(false, |any, client| any | client.is_sm));
    }
}

/// Reads an attribute of a port's own node.
fn get<P: Ports, A: SmpAttribute + Copy>(ports: &mut P, port: P::Port, modifier: u32) -> Option<A> {
    let mut mad = Mad::new(MadHeader::new(
        MgmtClass::SUBN_LID_ROUTED,
        Method::GET,
        A::ID,
    ));
    mad.header.attribute_modifier = modifier.into();
    let answer = ports.ask_own_agent(port, Asker::Driver, &mad)?;
    let is_ok = answer.header.status.get() == 0;
    is_ok.then(|| *answer.view::<LidRoutedSmp>().attribute())
}
