//! What the guest's queue pairs have carried, by the counters that its driver gave them.

use std::collections::BTreeMap;

use hca_api::Completion;
use mlx4_defs::query::QueryInterfaceCounters;
use zerocopy::network_endian::U64;

use super::queues::is_receive;

/// Bytes of a received datagram that are not the message's: the space for its GRH.
const GRH_SPACE: u32 = 40;

/// The counters of a function. Those of the port count for all of its functions, and are the PF's.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    counters: BTreeMap<u8, Counter>,
}

/// Messages and their bytes. They wrap around.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    received: Messages,
    sent: Messages,
}

#[derive(Clone, Copy, Debug, Default)]
struct Messages {
    count: u64,
    bytes: u64,
}

impl Traffic {
    /// A message of a queue pair with some counter was carried.
    pub(super) fn count(&mut self, index: u8, completion: &Completion) {
        let counter = self.counters.entry(index).or_default();
        let (messages, space) = if is_receive(completion.op) {
            let datagram = completion.source.is_some();
            let space = if datagram { GRH_SPACE } else { 0 };
            (&mut counter.received, space)
        } else {
            (&mut counter.sent, 0)
        };
        let bytes = completion.byte_len.saturating_sub(space);
        messages.count = messages.count.wrapping_add(1);
        messages.bytes = messages.bytes.wrapping_add(bytes.into());
    }

    /// A counter as it stands.
    pub(super) fn query(&self, index: u32) -> QueryInterfaceCounters {
        let counter = u8::try_from(index)
            .ok()
            .and_then(|index| self.counters.get(&index).copied())
            .unwrap_or_default();
        QueryInterfaceCounters {
            rx_frames: U64::new(counter.received.count),
            rx_bytes: U64::new(counter.received.bytes),
            tx_frames: U64::new(counter.sent.count),
            tx_bytes: U64::new(counter.sent.bytes),
            ..QueryInterfaceCounters::default()
        }
    }

    /// Sets a counter to zero.
    pub(super) fn clear(&mut self, index: u32) {
        if let Ok(index) = u8::try_from(index) {
            self.counters.remove(&index);
        }
    }
}

#[cfg(test)]
mod tests {
    use hca_api::{CompletionFlags, CompletionOp, CompletionStatus, SourceAddress};
    use ib_wire::{Lid, PKeyIndex, PortNum, Qpn, Sl};

    use super::*;

    fn completion(op: CompletionOp, byte_len: u32, datagram: bool) -> Completion {
        let source = SourceAddress {
            port: PortNum(1),
            slid: Lid::new(1),
            src_qpn: Qpn::GSI,
            sl: Sl::default(),
            dlid_path_bits: 0,
            pkey_index: PKeyIndex(0),
            grh: None,
        };
        Completion {
            wr_id: 0,
            status: CompletionStatus::Success,
            op,
            qpn: Qpn::GSI,
            byte_len,
            immediate: 0,
            flags: CompletionFlags::empty(),
            source: datagram.then_some(source),
        }
    }

    #[test]
    fn messages_count_by_direction_without_the_space_for_the_grh() {
        let mut traffic = Traffic::default();
        traffic.count(3, &completion(CompletionOp::Send, 100, false));
        traffic.count(3, &completion(CompletionOp::Recv, 140, true));
        traffic.count(3, &completion(CompletionOp::Recv, 10, false));
        traffic.count(4, &completion(CompletionOp::Send, 1, false));
        let seen = traffic.query(3);
        assert_eq!((seen.tx_frames.get(), seen.tx_bytes.get()), (1, 100));
        assert_eq!((seen.rx_frames.get(), seen.rx_bytes.get()), (2, 110));
        assert_eq!(seen.counter_mode, 0);
    }

    #[test]
    fn a_cleared_counter_is_zero_and_its_neighbours_are_not() {
        let mut traffic = Traffic::default();
        for index in [3, 4] {
            traffic.count(index, &completion(CompletionOp::Send, 1, false));
        }
        traffic.clear(3);
        traffic.clear(0x103);
        assert_eq!(traffic.query(3), QueryInterfaceCounters::default());
        assert_eq!(traffic.query(4).tx_frames.get(), 1);
        assert_eq!(traffic.query(0x104), QueryInterfaceCounters::default());
    }
}
