//! Attributes of a datagram queue pair of a virtual function.

use hca_api::QpAttributes;
use ib_wire::{PKeyIndex, PortNum, QKey};

/// A datagram queue pair as its consumer sees it, where the adapter's differs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DatagramPair {
    pub(crate) port: Option<PortNum>,
    /// Index in the function's own table.
    pub(crate) pkey_index: PKeyIndex,
    pub(crate) qkey: QKey,
    /// The Q_Key of the adapter's queue pair while nothing may pass, which no sender knows.
    pub(crate) barrier: Option<QKey>,
    /// The P_Key index of the adapter's queue pair.
    pub(crate) physical: PKeyIndex,
}

impl DatagramPair {
    /// Returns the attributes as the consumer set them.
    pub(crate) const fn show(&self, attributes: QpAttributes) -> QpAttributes {
        QpAttributes {
            pkey_index: self.pkey_index,
            qkey: self.qkey,
            ..attributes
        }
    }

    /// Returns the Q_Key of the adapter's queue pair.
    pub(crate) fn physical_qkey(&self) -> QKey {
        self.barrier.unwrap_or(self.qkey)
    }
}
