//! The connections, and the keys under which messages find them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use ib_vtime::{Secret, SecretNumbers};
use ib_wire::{CommId, Gid, Guid, Lid, Qpn, ServiceId};

use super::connection::Connection;
use super::{ConnId, State};

/// Where a SIDR_REQ came from, with its request id: what makes it a duplicate.
pub(super) type SidrKey = (Lid, Option<Gid>, CommId);

/// A service id, or a range of them, that is listened to.
#[derive(Debug)]
pub(super) struct Listener {
    pub id: ConnId,
    pub service_id: ServiceId,
    pub mask: u64,
    /// Requests that its user has not answered yet.
    pub pending: usize,
}

impl Listener {
    fn matches(&self, service_id: ServiceId) -> bool {
        service_id.get() & self.mask == self.service_id.get() & self.mask
    }

    fn overlaps(&self, service_id: ServiceId, mask: u64) -> bool {
        let common = self.mask & mask;
        self.service_id.get() & common == service_id.get() & common
    }
}

/// The connections with their indices. Each index has an entry for a connection exactly while the
/// connection is in a state that needs it, so that all of them drain.
#[derive(Debug)]
pub(super) struct Registry {
    numbers: SecretNumbers,
    next_id: u64,
    pub connections: BTreeMap<ConnId, Connection>,
    pub listeners: Vec<Listener>,
    pub by_local_id: BTreeMap<CommId, ConnId>,
    /// By CA GUID and communication id of the peer.
    pub by_remote_id: BTreeMap<(Guid, CommId), ConnId>,
    /// By CA GUID and QPN of the peer, outside of TimeWait.
    pub by_remote_qpn: BTreeMap<(Guid, Qpn), ConnId>,
    /// Connections that wait for a REP or a crossing REQ.
    pub peers: BTreeSet<(ServiceId, ConnId)>,
    pub sidr: BTreeMap<SidrKey, ConnId>,
}

impl Registry {
    pub(super) fn new(secret: Secret) -> Self {
        Self {
            numbers: secret.numbers(),
            next_id: 0,
            connections: BTreeMap::new(),
            listeners: Vec::new(),
            by_local_id: BTreeMap::new(),
            by_remote_id: BTreeMap::new(),
            by_remote_qpn: BTreeMap::new(),
            peers: BTreeSet::new(),
            sidr: BTreeMap::new(),
        }
    }

    pub(super) fn new_conn_id(&mut self) -> ConnId {
        let id = ConnId(self.next_id);
        self.next_id += 1;
        id
    }

    /// A communication id that no connection has, TimeWait included; not zero and not all ones.
    ///
    /// There are far fewer connections than ids, so that this ends after a try or two.
    pub(super) fn new_comm_id(&mut self) -> CommId {
        loop {
            let id = CommId::new(self.numbers.next_u32());
            let usable = id.get() != 0 && id.get() != u32::MAX;
            if usable && !self.by_local_id.contains_key(&id) {
                return id;
            }
        }
    }

    pub(super) fn insert(&mut self, id: ConnId, conn: Connection) {
        self.by_local_id.insert(conn.local_id, id);
        self.connections.insert(id, conn);
    }

    pub(super) fn get(&self, id: ConnId) -> Option<&Connection> {
        self.connections.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: ConnId) -> Option<&mut Connection> {
        self.connections.get_mut(&id)
    }

    /// Enters the peer's ids, which the connection has just learnt.
    pub(super) fn index_remote(&mut self, id: ConnId) {
        let Some(conn) = self.connections.get(&id) else {
            return;
        };
        if let Some(key) = conn.remote_key() {
            self.by_remote_id.insert(key, id);
        }
        if let Some(key) = conn.remote_qpn_key() {
            self.by_remote_qpn.insert(key, id);
        }
    }

    /// Brings the indices in line with a change of state.
    pub(super) fn moved(&mut self, id: ConnId, from: State, to: State) {
        let Some(conn) = self.connections.get_mut(&id) else {
            return;
        };
        let listener = conn
            .listener
            .filter(|_| from.is_pending() && !to.is_pending());
        if !matches!(to, State::ReqSent | State::MraReqRcvd) {
            self.peers.remove(&(conn.service_id, id));
        }
        if matches!(to, State::TimeWait | State::Idle) {
            remove_own(&mut self.by_remote_qpn, conn.remote_qpn_key(), id);
        }
        if to == State::Idle {
            remove_own(&mut self.by_local_id, Some(conn.local_id), id);
            remove_own(&mut self.by_remote_id, conn.remote_key(), id);
            if let Some(remote_id) = conn.remote_id {
                remove_own(&mut self.sidr, Some(sidr_key(&conn.address, remote_id)), id);
            }
            self.connections.remove(&id);
        }
        if let Some(listener) = self.listeners.iter_mut().find(|l| Some(l.id) == listener) {
            listener.pending = listener.pending.saturating_sub(1);
        }
    }

    /// The listener of a service id: of several that match the one with the narrowest mask.
    pub(super) fn listener(&mut self, service_id: ServiceId) -> Option<&mut Listener> {
        self.listeners
            .iter_mut()
            .filter(|listener| listener.matches(service_id))
            .max_by_key(|listener| listener.mask.count_ones())
    }

    /// Whether a listener with the same mask already covers part of the range.
    pub(super) fn is_taken(&self, service_id: ServiceId, mask: u64) -> bool {
        self.listeners
            .iter()
            .any(|listener| listener.mask == mask && listener.overlaps(service_id, mask))
    }
}

/// The key of a SIDR exchange.
pub(super) fn sidr_key(from: &crate::MadAddress, request_id: CommId) -> SidrKey {
    (from.lid, from.grh.map(|grh| grh.remote_gid), request_id)
}

/// Removes an entry if it is the connection's: another one may have taken the key over.
fn remove_own<K: Ord>(index: &mut BTreeMap<K, ConnId>, key: Option<K>, id: ConnId) {
    if let Some(key) = key
        && index.get(&key) == Some(&id)
    {
        index.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comm_ids_are_a_function_of_the_seed_and_skip_reserved_values() {
        let ids = |seed: u64| -> Vec<u32> {
            let mut registry = Registry::new(Secret::from(seed));
            (0..1000).map(|_| registry.new_comm_id().get()).collect()
        };
        assert_eq!(ids(1), ids(1));
        assert_ne!(ids(1), ids(2));
        assert!(ids(1).iter().all(|&id| id != 0 && id != u32::MAX));
    }

    #[test]
    fn the_narrowest_listener_gets_a_service_id() {
        let mut registry = Registry::new(Secret::from(0));
        for (service_id, mask) in [(0x1000, 0xf000), (0x1230, 0xfff0), (0x1234, u64::MAX)] {
            let id = registry.new_conn_id();
            registry.listeners.push(Listener {
                id,
                service_id: ServiceId::new(service_id),
                mask,
                pending: 0,
            });
        }
        for (service_id, expected) in [
            (0x1234, Some(0x1234)),
            (0x1235, Some(0x1230)),
            (0x1999, Some(0x1000)),
            (0x2000, None),
        ] {
            let found = registry
                .listener(ServiceId::new(service_id))
                .map(|listener| listener.service_id.get());
            assert_eq!(found, expected);
        }
        assert!(registry.is_taken(ServiceId::new(0x1239), 0xfff0));
        assert!(!registry.is_taken(ServiceId::new(0x1249), 0xfff0));
    }
}
