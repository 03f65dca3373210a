//! The addresses of packets that a function sends: the one place that decides the virtual lane, the P_Key, the source LID and
//! the GRH, for datagrams and for connections.

use hca_api::{AddressVector, PortState, Privileges};
use ib_wire::packet::Grh;
use ib_wire::{GidIndex, Lid, PKey, PKeyIndex, PortNum, Vl};

use super::function::FunctionState;
use super::qp::Qp;
use crate::{DropReason, Node, PacketSource};

/// Sender of a packet within a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SentBy {
    /// QP0: management lane, default P_Key.
    Smi,
    /// A queue pair for datagrams, by an entry of the function's P_Key table.
    Datagrams(PKeyIndex),
    /// A connected queue pair, by the entry in its attributes.
    Connection,
}

/// Addresses of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addressed {
    pub(super) vl: Vl,
    pub(super) pkey: PKey,
    pub(super) slid: Lid,
    pub(super) grh: Option<Grh>,
    /// The sender as the device knows it, whatever the packet says.
    pub(super) source: PacketSource,
}

/// Returns the addresses of what a queue pair of a function sends to an address.
///
/// # Errors
/// Why the packet is dropped: a failed port, a table entry that is missing, an address that no packet has.
pub(super) fn address(
    node: &Node,
    state: &FunctionState,
    qp: &Qp,
    vector: &AddressVector,
    sender: SentBy,
) -> Result<Addressed, DropReason> {
    let port = node.port(vector.port).ok_or(DropReason::NoQp)?;
    let is_smp = sender == SentBy::Smi;
    if !is_smp && !passes_data(node, state, vector.port) {
        return Err(DropReason::PortNotActive);
    }
    if sender == SentBy::Connection && !vector.dlid.is_unicast() {
        return Err(DropReason::BadDestinationLid);
    }
    let pkey_index = match sender {
        SentBy::Smi => None,
        SentBy::Datagrams(index) => Some(index),
        SentBy::Connection => Some(qp.pkey_index),
    };
    let (vl, pkey) = match pkey_index {
        None => (Vl::MANAGEMENT, PKey::DEFAULT_FULL),
        Some(index) => {
            let vl = Some(port.vl_for_sl(vector.sl))
                .filter(|vl| *vl != Vl::MANAGEMENT)
                .ok_or(DropReason::NoDataLane)?;
            let pkey = state
                .physical_pkey(vector.port, index)
                .and_then(|index| port.pkey(index))
                .filter(|pkey| pkey.is_valid())
                .ok_or(DropReason::NoPKey)?;
            (vl, pkey)
        }
    };
    // An SMP that starts on a directed route has permissive LIDs both ways (IBA 14.2.2).
    let slid = if is_smp && vector.dlid == Lid::PERMISSIVE {
        Lid::PERMISSIVE
    } else {
        port.source_lid(vector.path_bits)
    };
    Ok(Addressed {
        vl,
        pkey,
        slid,
        grh: global_header(node, state, vector)?,
        source: PacketSource {
            function: state.id,
            qpn: qp.numbers.real,
        },
    })
}

/// Returns true if packets of a function pass a port: the port is active, and so is the function's view of it.
pub(super) fn passes_data(node: &Node, state: &FunctionState, port: PortNum) -> bool {
    let active = node
        .port(port)
        .is_some_and(|port| port.state == PortState::Active);
    let shown = state.has(Privileges::ANY_SOURCE)
        || state
            .port(port)
            .is_some_and(|own| own.view.state == PortState::Active);
    active && shown
}

fn global_header(
    node: &Node,
    state: &FunctionState,
    vector: &AddressVector,
) -> Result<Option<Grh>, DropReason> {
    let Some(route) = vector.grh else {
        return Ok(None);
    };
    let index = if state.has(Privileges::ANY_SOURCE) {
        route.sgid_index
    } else {
        GidIndex(state.id.0)
    };
    let sgid = node
        .port(vector.port)
        .and_then(|port| port.gid(index))
        .filter(|gid| !gid.is_none())
        .ok_or(DropReason::NoSourceGid)?;
    let mut grh = Grh::new(sgid, route.remote_gid, route.hop_limit);
    grh.set_traffic_class(route.traffic_class);
    grh.set_flow_label(route.flow_label);
    Ok(Some(grh))
}
