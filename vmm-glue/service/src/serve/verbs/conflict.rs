//! Addresses of VFs that another node has as well.

use core::fmt;
use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, Sender, channel};

use ib_wire::Gid;

/// Another node has the address of a VF.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddressConflict {
    /// Address.
    pub(super) ip: Ipv4Addr,
    /// GID of the other node.
    pub(super) gid: Gid,
    /// The other node had it first, and keeps it.
    pub(super) yields: bool,
}

impl fmt::Display for AddressConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ip, gid, yields } = self;
        let outcome = match yields {
            true => "the other had it first, and other services and guests find that one",
            false => "other services and guests may find either",
        };
        write!(
            f,
            "verbs: {ip} is the address of a VF and of another node, {gid}: {outcome}"
        )
    }
}

/// Conflicts of all VFs, to be logged. A VF raises one at a time, and not more often than it claims its address.
#[derive(Debug)]
pub(in crate::serve) struct Conflicts {
    sender: Sender<AddressConflict>,
    receiver: Receiver<AddressConflict>,
}

impl Default for Conflicts {
    fn default() -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver }
    }
}

impl Conflicts {
    /// Returns the end for a VF.
    pub(super) fn sender(&self) -> Sender<AddressConflict> {
        self.sender.clone()
    }

    /// Returns the next conflict, if any.
    pub(super) fn poll(&self) -> Option<AddressConflict> {
        self.receiver.try_recv().ok()
    }
}
