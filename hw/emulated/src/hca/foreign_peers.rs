//! Functions that sent packets to connections of others.

use std::collections::VecDeque;

use hca_api::FunctionId;
use ib_vtime::Instant;
use ib_wire::Lid;

/// Pairs of a sender and a receiver that are kept.
const MOST: usize = 64;

/// A function whose packets a connection refused, because another queue pair is the connection's peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignPeer {
    /// Function of this adapter that the packets were for.
    pub to: FunctionId,
    /// Source LID of the latest packet, which names the sender's adapter.
    pub slid: Lid,
    /// Function of the sender's adapter.
    pub function: FunctionId,
    /// Packets refused.
    pub packets: u64,
    /// Time of the latest packet.
    pub last: Instant,
}

impl ForeignPeer {
    fn key(&self) -> (FunctionId, Lid, FunctionId) {
        (self.to, self.slid, self.function)
    }
}

/// The most recent foreign peers of an adapter, oldest first.
#[derive(Debug, Default)]
pub(super) struct ForeignPeers(VecDeque<ForeignPeer>);

impl ForeignPeers {
    /// Counts a packet. Of more senders than are kept, the one that sent nothing for longest is forgotten.
    pub(super) fn count(&mut self, now: Instant, to: FunctionId, slid: Lid, function: FunctionId) {
        let mut peer = ForeignPeer {
            to,
            slid,
            function,
            packets: 0,
            last: now,
        };
        let known = self.0.iter().rposition(|known| known.key() == peer.key());
        if let Some(known) = known.and_then(|at| self.0.remove(at)) {
            peer.packets = known.packets;
        } else if self.0.len() >= MOST {
            self.0.pop_front();
        }
        peer.packets += 1;
        self.0.push_back(peer);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = ForeignPeer> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t025a_the_latest_64_foreign_peers_are_kept_with_their_packets() {
        let mut peers = ForeignPeers::default();
        let (victim, lid) = (FunctionId(1), Lid::new(7));
        for sender in (0..1000).map(FunctionId) {
            peers.count(Instant::ZERO, victim, lid, sender);
            peers.count(Instant::ZERO, victim, lid, FunctionId(0));
        }
        let kept: Vec<_> = peers.iter().collect();
        assert_eq!(kept.len(), 64);
        let last = kept.last().unwrap();
        assert_eq!((last.function, last.packets), (FunctionId(0), 1001));
        let others = kept[..63]
            .iter()
            .map(|peer| (peer.function.0, peer.packets));
        assert!(others.eq((937..1000).map(|sender| (sender, 1))));
        // Another adapter's function of the same number is another sender, and another victim makes another entry.
        peers.count(Instant::ZERO, victim, Lid::new(8), FunctionId(0));
        peers.count(Instant::ZERO, FunctionId(2), lid, FunctionId(0));
        let latest: Vec<_> = peers.iter().skip(61).map(|peer| peer.packets).collect();
        assert_eq!(latest, [1001, 1, 1]);
    }
}
