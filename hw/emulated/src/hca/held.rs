//! Messages that wait for functions that are held.

use std::collections::VecDeque;

use hca_api::{CompletionFlags, SourceAddress};
use ib_transport::Transfer;
use ib_wire::PortNum;
use ib_wire::packet::Grh;

use super::qpn::QpRef;
use crate::PacketSource;

/// Bytes that may wait for a function, those that describe the messages included.
const MOST: usize = 256 << 10;

/// Messages for a held function, in their order.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) waiting: VecDeque<(QpRef, Waiting)>,
    bytes: usize,
}

/// A message that passed all checks of its queue pair.
#[derive(Debug)]
pub(super) enum Waiting {
    Datagram {
        grh: Option<Grh>,
        source: SourceAddress,
        immediate: Option<u32>,
        flags: CompletionFlags,
        payload: Vec<u8>,
    },
    /// A packet of a connection.
    Transfer {
        port: PortNum,
        source: Option<PacketSource>,
        transfer: Transfer,
        payload: Vec<u8>,
    },
}

impl Waiting {
    fn bytes(&self) -> usize {
        let (Self::Datagram { payload, .. } | Self::Transfer { payload, .. }) = self;
        size_of::<(QpRef, Self)>() + payload.len()
    }
}

impl Held {
    /// Keeps a message. Returns `false` if it finds no room.
    pub(super) fn keep(&mut self, to: QpRef, message: Waiting) -> bool {
        let bytes = self.bytes + message.bytes();
        if bytes > MOST {
            return false;
        }
        self.bytes = bytes;
        self.waiting.push_back((to, message));
        true
    }
}
