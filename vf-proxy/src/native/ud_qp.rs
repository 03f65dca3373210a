//! A datagram queue pair of a VF's program.

use std::collections::VecDeque;

use hca_api::{Hca, HcaError, QpKind, UdDestination};
use ib_endpoint::{Datagram, DatagramQp, DatagramQpSpec, PortView};
use ib_wire::{PKey, PKeyIndex, PortNum, QKey, Qpn};

use super::VfPortError;

/// Names a datagram queue pair of a port. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UdQpId(pub(super) u64);

/// Which partition of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partition {
    /// The one whose key stands at an index of the VF's table.
    Index(PKeyIndex),
    /// The one of a key, wherever it stands; a key of the same partition with the other kind of
    /// membership will do.
    Key(PKey),
}

impl Partition {
    pub(super) fn index(self, view: &PortView) -> Result<PKeyIndex, VfPortError> {
        match self {
            Self::Index(index) => Ok(index),
            Self::Key(pkey) => view.partition_index(pkey).ok_or(VfPortError::NoPKey(pkey)),
        }
    }
}

/// What a datagram queue pair is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdQpSpec {
    /// Its partition.
    pub partition: Partition,
    /// Its queue key; a VF may set no controlled one.
    pub qkey: QKey,
    /// Receive buffers. As many more datagrams may wait to be taken when a send takes them out of the
    /// way.
    pub receives: u32,
    /// Sends that may be under way.
    pub sends: u32,
    /// Bytes of the longest message.
    pub max_message: u32,
    /// Do not deliver to this queue pair the multicast packets that it sent itself.
    pub block_multicast_loopback: bool,
}

impl UdQpSpec {
    /// A queue pair with 64 buffers each way for messages of up to 2048 bytes.
    #[must_use]
    pub const fn new(partition: Partition, qkey: QKey) -> Self {
        Self {
            partition,
            qkey,
            receives: 64,
            sends: 64,
            max_message: 2048,
            block_multicast_loopback: false,
        }
    }
}

/// A datagram queue pair of a VF's program.
#[derive(Debug)]
pub struct UdQp {
    qp: DatagramQp,
    /// The key at its index of the P_Key table when it was looked last.
    pkey: PKey,
    /// Received while a send looked for a buffer.
    inbox: VecDeque<Datagram>,
    overrun: u64,
}

impl UdQp {
    pub(super) fn open(
        hca: &mut dyn Hca,
        port: PortNum,
        view: &PortView,
        spec: &UdQpSpec,
    ) -> Result<Self, VfPortError> {
        let pkey_index = spec.partition.index(view)?;
        let spec = DatagramQpSpec {
            kind: QpKind::Ud,
            port,
            pkey_index,
            qkey: spec.qkey,
            receives: spec.receives,
            sends: spec.sends,
            max_message: spec.max_message,
            block_multicast_loopback: spec.block_multicast_loopback,
        };
        let qp = DatagramQp::open(hca, spec)?;
        qp.arm(hca);
        Ok(Self {
            qp,
            pkey: pkey_at(view, pkey_index),
            inbox: VecDeque::new(),
            overrun: 0,
        })
    }

    /// The queue pair below.
    #[must_use]
    pub const fn qp(&self) -> &DatagramQp {
        &self.qp
    }

    /// Its number, by which peers send to it.
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        self.qp.numbers().real
    }

    /// The P_Key of its partition.
    #[must_use]
    pub const fn pkey(&self) -> PKey {
        self.pkey
    }

    /// Datagrams dropped because nobody took those before them.
    #[must_use]
    pub const fn overrun(&self) -> u64 {
        self.overrun
    }

    /// Sends a message. Completed sends are taken back first if there is no buffer; what arrived
    /// between them waits in the inbox.
    pub(super) fn send(
        &mut self,
        hca: &mut dyn Hca,
        to: &UdDestination,
        message: &[u8],
    ) -> Result<(), HcaError> {
        while !self.qp.can_send()
            && let Some(datagram) = self.qp.poll(hca)
        {
            if self.inbox.len() < self.qp.spec().receives as usize {
                self.inbox.push_back(datagram);
            } else {
                self.overrun += 1;
            }
        }
        self.qp.send(hca, Some(to), message)
    }

    /// The next datagram. When there is none, the next one raises an event.
    pub(super) fn receive(&mut self, hca: &mut dyn Hca) -> Option<Datagram> {
        if let Some(datagram) = self.inbox.pop_front() {
            return Some(datagram);
        }
        loop {
            if let Some(datagram) = self.qp.poll(hca) {
                return Some(datagram);
            }
            if !self.qp.arm(hca) {
                return None;
            }
        }
    }

    /// Whether another key stands now where its own stood.
    pub(super) fn partition_changed(&mut self, view: &PortView) -> bool {
        let now = pkey_at(view, self.qp.spec().pkey_index);
        core::mem::replace(&mut self.pkey, now) != now
    }

    pub(super) fn close(self, hca: &mut dyn Hca) {
        self.qp.close(hca);
    }
}

fn pkey_at(view: &PortView, index: PKeyIndex) -> PKey {
    let pkey = view.pkeys.get(usize::from(index.0));
    pkey.copied().unwrap_or(PKey::INVALID)
}
