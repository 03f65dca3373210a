//! Queue pairs of the adapters of a fabric.

use emulated_hca::hca::{QpRow, Way};
use emulated_hca::{Fabric, NodeId};
use hca_api::{FunctionId, QpKind, QpState};
use ib_wire::Qpn;
use vf_tunnel::VfId;
use vhca_control::table::{Cell, Column, column};

use super::fabric;
use super::table::Row;

/// A queue pair of a node's adapter.
pub(super) struct NodeQp {
    node: String,
    qp: QpRow,
}

/// Returns the queue pairs of a node.
pub(super) fn rows(fabric: &Fabric, id: NodeId) -> Vec<NodeQp> {
    let Some(device) = fabric.device(id) else {
        return Vec::new();
    };
    let node = fabric::name(fabric, id);
    let qps = device.queue_pairs().map(|qp| NodeQp {
        node: node.clone(),
        qp,
    });
    qps.collect()
}

/// Returns a state in the words of `ibv_qp_state`.
const fn state(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::ReadyToReceive => "RTR",
        QpState::ReadyToSend => "RTS",
        QpState::SendQueueDrain => "SQD",
        QpState::SendQueueError => "SQE",
        QpState::Error => "ERR",
    }
}

impl Row for NodeQp {
    const COLUMNS: &'static [Column<'static>] = &[
        column("node").shrinks_to(8),
        column("port").wide(),
        column("vf"),
        column("qpn"),
        column("service").headed("TYPE"),
        column("state"),
        column("peer_lid").wide(),
        column("peer_gid").wide(),
        column("peer_qpn"),
        column("sq_psn"),
        column("rq_psn"),
        column("outstanding").headed("OUT"),
        column("retransmissions").headed("RETRIES"),
        column("rnr_naks").headed("RNR"),
        column("sent_bytes").headed("SENT"),
        column("received_bytes").headed("RECEIVED"),
        column("way"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let QpRow {
            function,
            attributes,
            outstanding,
            counters,
            way,
        } = &self.qp;
        let number = |qpn: Qpn| Cell::Number(qpn.get().into());
        // A datagram queue pair has no peer, and one that is not connected none yet.
        let peer = attributes.primary;
        let connected = peer.map(|_| attributes);
        let gid = peer.and_then(|path| path.grh).map(|route| route.remote_gid);
        vec![
            Cell::of(&self.node),
            Cell::option(attributes.port, |port| Cell::Number(port.0.into())),
            match *function {
                FunctionId::PF => Cell::of(function),
                vf => Cell::Number(vf.0.into()),
            },
            number(attributes.numbers.real),
            Cell::of(match attributes.kind {
                QpKind::Rc => "RC",
                QpKind::Uc => "UC",
                _ => "UD",
            }),
            Cell::of(state(attributes.state)),
            Cell::option(peer, |path| Cell::Number(path.dlid.get().into())),
            Cell::option(gid, Cell::of),
            Cell::option(connected, |qp| number(qp.dest_qpn)),
            Cell::option(connected, |qp| Cell::Number(qp.sq_psn.get().into())),
            Cell::option(connected, |qp| Cell::Number(qp.rq_psn.get().into())),
            Cell::count(*outstanding),
            Cell::option(*counters, |all| Cell::Number(all.retransmissions)),
            Cell::option(*counters, |all| Cell::Number(all.rnr_naks)),
            Cell::option(*counters, |all| Cell::Number(all.sent_bytes)),
            Cell::option(*counters, |all| Cell::Number(all.received_bytes)),
            Cell::option(*way, |way| {
                Cell::of(match way {
                    Way::Packets => "packets",
                    Way::Whole => "whole",
                })
            }),
        ]
    }

    fn is_of(&self, vf: VfId) -> bool {
        self.qp.function == FunctionId(vf.get())
    }
}
