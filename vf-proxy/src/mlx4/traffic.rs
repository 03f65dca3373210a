//! What the guest's queue pairs have carried, by the counters that its driver gave them.
//!
//! The driver shows a counter as PortXmitData and PortRcvData of its port, divided by 4 (`edit_counter`).
//! These count the octets of packets from the LRH to the ICRC (IBA 16.1.3.5), and so do the counters here, as
//! those of the physical port do. A proxy's packets are the MADs that it stands for, as if none had a GRH:
//! whether they get one is the PF's to decide. Of a connection the packets of
//! requests count that complete here, sent once, and of answers those of reads and atomics: acknowledgements, packets sent again
//! and what a peer writes or reads by itself are in the port's counters only.

use std::collections::BTreeMap;

use ib_wire::packet::{Bth, ICRC_SIZE, Lrh};
use mlx4_defs::CounterIndex;
use mlx4_defs::query::QueryInterfaceCounters;
use zerocopy::network_endian::U64;

/// The counters of a function. Those of the port count for all of its functions, and are the PF's.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    counters: BTreeMap<CounterIndex, Carried>,
}

/// Packets and their octets. They wrap around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Packets {
    count: u64,
    octets: u64,
}

impl Packets {
    /// So many packets, which have `octets` between BTH and ICRC, padding included.
    pub(super) const fn new(count: u64, octets: u64) -> Self {
        let around = size_of::<Lrh>() + size_of::<Bth>() + ICRC_SIZE;
        let octets = octets + count * around as u64;
        Self { count, octets }
    }

    const fn add(&mut self, more: Self) {
        self.count = self.count.wrapping_add(more.count);
        self.octets = self.octets.wrapping_add(more.octets);
    }
}

/// The packets of a request that is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Carried {
    pub(super) received: Packets,
    pub(super) sent: Packets,
}

impl Traffic {
    /// A request of a queue pair with some counter was carried.
    pub(super) fn count(&mut self, index: CounterIndex, carried: Carried) {
        let counter = self.counters.entry(index).or_default();
        counter.received.add(carried.received);
        counter.sent.add(carried.sent);
    }

    /// A counter as it stands.
    pub(super) fn query(&self, index: CounterIndex) -> QueryInterfaceCounters {
        let counter = self.counters.get(&index).copied().unwrap_or_default();
        QueryInterfaceCounters {
            rx_frames: U64::new(counter.received.count),
            rx_bytes: U64::new(counter.received.octets),
            tx_frames: U64::new(counter.sent.count),
            tx_bytes: U64::new(counter.sent.octets),
            ..QueryInterfaceCounters::default()
        }
    }

    /// Sets a counter to zero.
    pub(super) fn clear(&mut self, index: CounterIndex) {
        self.counters.remove(&index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: Carried = Carried {
        received: Packets::new(0, 0),
        sent: Packets::new(1, 264),
    };

    #[test]
    fn packets_count_from_the_lrh_to_the_icrc_by_direction() {
        let mut traffic = Traffic::default();
        traffic.count(CounterIndex(3), SENT);
        let answered = Carried {
            received: Packets::new(2, 60),
            sent: Packets::new(1, 16),
        };
        traffic.count(CounterIndex(3), answered);
        traffic.count(CounterIndex(4), SENT);
        let seen = traffic.query(CounterIndex(3));
        assert_eq!((seen.tx_frames.get(), seen.tx_bytes.get()), (2, 280 + 48));
        assert_eq!((seen.rx_frames.get(), seen.rx_bytes.get()), (2, 108));
        assert_eq!(seen.counter_mode, 0);
    }

    #[test]
    fn a_cleared_counter_is_zero_and_its_neighbours_are_not() {
        let mut traffic = Traffic::default();
        for index in [3, 4] {
            traffic.count(CounterIndex(index), SENT);
        }
        traffic.clear(CounterIndex(3));
        assert_eq!(
            traffic.query(CounterIndex(3)),
            QueryInterfaceCounters::default()
        );
        assert_eq!(traffic.query(CounterIndex(4)).tx_frames.get(), 1);
    }
}
