//! Queue pairs of the adapter as an operator sees them.

use hca_api::{FunctionId, QpAttributes, QpKind};

use super::Device;
use super::connected::{Connected, Way};
use super::connection_counters::ConnectionCounters;
use super::foreign_peers::ForeignPeer;

/// A queue pair of a function.
#[derive(Clone, Copy, Debug)]
pub struct QpRow {
    /// Function that it belongs to.
    pub function: FunctionId,
    /// Attributes as a query returns them.
    pub attributes: QpAttributes,
    /// Send requests that are posted and not complete.
    pub outstanding: usize,
    /// Counters of an RC or UC queue pair since it was made.
    pub counters: Option<ConnectionCounters>,
    /// Way that the latest packets of an RC or UC queue pair took.
    pub way: Option<Way>,
}

impl Device {
    /// Returns the RC, UC and UD queue pairs of all functions. Special queue pairs and the ends of tunnels are left out.
    pub fn queue_pairs(&self) -> impl Iterator<Item = QpRow> {
        self.functions.iter().flatten().flat_map(|state| {
            let qps = state.qps.iter().map(|(_, qp)| qp);
            let shown = qps.filter(|qp| matches!(qp.kind, QpKind::Rc | QpKind::Uc | QpKind::Ud));
            shown.map(|qp| QpRow {
                function: state.id,
                attributes: qp.attributes(),
                outstanding: qp
                    .connected()
                    .map_or(qp.sends.len(), Connected::outstanding),
                counters: qp.connected().map(|own| own.counters),
                way: qp.connected().map(|own| own.way),
            })
        })
    }

    /// Returns the functions whose packets connections of this adapter refused ([`DropReason::ForeignPeer`]), the latest last:
    /// the 64 most recent pairs of a sender and a receiver.
    ///
    /// [`DropReason::ForeignPeer`]: crate::DropReason::ForeignPeer
    pub fn foreign_peers(&self) -> impl Iterator<Item = ForeignPeer> {
        self.foreign_peers.iter()
    }

    /// Returns the sums over the connections of each function, those that are gone included.
    pub fn connection_counters(&self) -> impl Iterator<Item = (FunctionId, ConnectionCounters)> {
        let functions = self.functions.iter().flatten();
        functions.map(|state| (state.id, state.connections))
    }
}
