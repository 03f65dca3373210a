//! Attributes of a queue pair of a virtual function that is one of the adapter's.

use hca_api::{AddressVector, GlobalRoute, QpAttributes, QpKind};
use ib_wire::{GidIndex, PKeyIndex, PortNum, QKey};

/// A queue pair as its consumer sees it, where the adapter's differs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    kind: QpKind,
    pub(crate) port: Option<PortNum>,
    /// Index in the function's own table.
    pub(crate) pkey_index: PKeyIndex,
    pub(crate) qkey: QKey,
    /// The Q_Key of the adapter's queue pair while nothing may pass, which no sender knows.
    pub(crate) barrier: Option<QKey>,
    /// The P_Key index of the adapter's queue pair.
    pub(crate) physical: PKeyIndex,
}

impl Pair {
    /// Returns a queue pair in the reset state.
    pub(crate) const fn new(kind: QpKind) -> Self {
        Self {
            kind,
            port: None,
            pkey_index: PKeyIndex(0),
            qkey: QKey::new(0),
            barrier: None,
            physical: PKeyIndex(0),
        }
    }

    /// Returns the queue pair as it is after a reset.
    pub(crate) const fn reset(&self) -> Self {
        Self::new(self.kind)
    }

    /// Returns `true` for RC and UC.
    pub(crate) const fn is_connected(&self) -> bool {
        !self.kind.is_datagram()
    }

    /// Returns the attributes as the consumer set them.
    pub(crate) fn show(&self, attributes: QpAttributes) -> QpAttributes {
        QpAttributes {
            pkey_index: self.pkey_index,
            qkey: self.qkey,
            primary: attributes.primary.map(virtual_vector),
            ..attributes
        }
    }

    /// Returns the Q_Key of the adapter's queue pair.
    pub(crate) fn physical_qkey(&self) -> QKey {
        self.barrier.unwrap_or(self.qkey)
    }
}

/// Returns an address of the adapter as the function has it, whose GID is the first one.
pub(crate) fn virtual_vector(vector: AddressVector) -> AddressVector {
    let grh = vector.grh.map(|route| GlobalRoute {
        sgid_index: GidIndex(0),
        ..route
    });
    AddressVector { grh, ..vector }
}
