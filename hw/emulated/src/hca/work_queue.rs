//! Sends as the device keeps them.

use hca_api::{AddressVector, Payload, SendFlags, Sge};
use hca_functions::SgeList;
use ib_wire::{PKeyIndex, QKey, Qpn};

/// The bytes of a send that waits.
#[derive(Clone, Debug)]
pub(super) enum OwnedPayload {
    Gather(SgeList),
    Inline(Vec<u8>),
    Headed(Vec<u8>, SgeList),
}

impl OwnedPayload {
    pub(super) fn new(payload: Payload<'_>, spare: &mut SpareBytes) -> Self {
        match payload {
            Payload::Gather(sges) => Self::Gather(SgeList::new(sges)),
            Payload::Inline(bytes) => Self::Inline(spare.copy(bytes)),
            Payload::Headed(head, sges) => Self::Headed(spare.copy(head), SgeList::new(sges)),
        }
    }

    /// Gives back what it took.
    pub(super) fn give_back(self, spare: &mut SpareBytes) {
        match self {
            Self::Gather(_) => {}
            Self::Inline(bytes) | Self::Headed(bytes, _) => spare.give_back(bytes),
        }
    }

    /// Returns the bytes that were given, and the list of those behind them.
    pub(super) fn split(&self) -> (&[u8], &[Sge]) {
        match self {
            Self::Gather(sges) => (&[], sges.as_slice()),
            Self::Inline(bytes) => (bytes, &[]),
            Self::Headed(head, sges) => (head, sges.as_slice()),
        }
    }

    pub(super) fn as_payload(&self) -> Payload<'_> {
        match self {
            Self::Gather(sges) => Payload::Gather(sges.as_slice()),
            Self::Inline(bytes) => Payload::Inline(bytes),
            Self::Headed(head, sges) => Payload::Headed(head, sges.as_slice()),
        }
    }
}

/// Memory for what is given with sends, kept for those to come.
#[derive(Debug, Default)]
pub(super) struct SpareBytes(Vec<Vec<u8>>);

impl SpareBytes {
    /// Pieces that are kept. They are as long as the longest that queue pairs take, at most.
    const MOST: usize = 64;

    fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut copy = self.0.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        copy
    }

    fn give_back(&mut self, bytes: Vec<u8>) {
        if self.0.len() < Self::MOST {
            self.0.push(bytes);
        }
    }
}

/// What a datagram send needs besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendWork {
    pub(super) wr_id: u64,
    pub(super) immediate: Option<u32>,
    pub(super) flags: SendFlags,
    pub(super) target: Target,
}

/// Where a datagram send goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// To the other end of the tunnel.
    TunnelPeer,
    /// To an address.
    Address {
        vector: AddressVector,
        qpn: Qpn,
        qkey: QKey,
        pkey_index: PKeyIndex,
    },
    /// To an address handle of another protection domain: the request fails (IBA 10.2.2.2).
    ForeignHandle,
}

/// A send that waits because the queue drains or the port's egress is full.
#[derive(Clone, Debug)]
pub(super) struct WaitingSend {
    pub(super) work: SendWork,
    pub(super) payload: OwnedPayload,
}
