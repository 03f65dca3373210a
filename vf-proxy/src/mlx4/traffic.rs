//! What the guest's queue pairs have carried, by the counters that its driver gave them.
//!
//! The driver shows a counter as PortXmitData and PortRcvData of its port, divided by 4 (`edit_counter`).
//! These count the octets of packets from the LRH to the ICRC (IBA 16.1.3.5), and so do the counters here, as
//! those of the physical port do. A proxy's packets are the MADs that it stands for, as if none had a GRH:
//! whether they get one is the PF's to decide.

use std::collections::BTreeMap;

use ib_wire::packet::{Bth, Deth, Grh, ICRC_SIZE, ImmDt, Lrh};
use mlx4_defs::CounterIndex;
use mlx4_defs::query::QueryInterfaceCounters;
use zerocopy::network_endian::U64;

/// The counters of a function. Those of the port count for all of its functions, and are the PF's.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    counters: BTreeMap<CounterIndex, Counter>,
}

/// Packets and their octets. They wrap around.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    received: Packets,
    sent: Packets,
}

#[derive(Clone, Copy, Debug, Default)]
struct Packets {
    count: u64,
    octets: u64,
}

/// A datagram that was carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Datagram {
    pub(super) received: bool,
    /// Bytes of its message.
    pub(super) payload: u32,
    pub(super) grh: bool,
    pub(super) immediate: bool,
}

impl Datagram {
    /// Octets of the packet that count.
    fn octets(self) -> u64 {
        let headers = size_of::<Lrh>() + size_of::<Bth>() + size_of::<Deth>();
        let grh = if self.grh { size_of::<Grh>() } else { 0 };
        let immediate = if self.immediate {
            size_of::<ImmDt>()
        } else {
            0
        };
        let around = headers + grh + immediate + ICRC_SIZE;
        around as u64 + u64::from(self.payload).next_multiple_of(4)
    }
}

impl Traffic {
    /// A datagram of a queue pair with some counter was carried.
    pub(super) fn count(&mut self, index: CounterIndex, datagram: Datagram) {
        let counter = self.counters.entry(index).or_default();
        let packets = if datagram.received {
            &mut counter.received
        } else {
            &mut counter.sent
        };
        packets.count = packets.count.wrapping_add(1);
        packets.octets = packets.octets.wrapping_add(datagram.octets());
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

    const SENT: Datagram = Datagram {
        received: false,
        payload: 256,
        grh: false,
        immediate: false,
    };

    #[test]
    fn packets_count_from_the_lrh_to_the_icrc_by_direction() {
        let mut traffic = Traffic::default();
        traffic.count(CounterIndex(3), SENT);
        let received = Datagram {
            received: true,
            payload: 5,
            grh: true,
            immediate: true,
        };
        traffic.count(CounterIndex(3), received);
        traffic.count(CounterIndex(4), SENT);
        let seen = traffic.query(CounterIndex(3));
        assert_eq!((seen.tx_frames.get(), seen.tx_bytes.get()), (1, 4 * 72));
        assert_eq!(
            (seen.rx_frames.get(), seen.rx_bytes.get()),
            (1, 32 + 44 + 8)
        );
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
