use emulated_hca::{Adapters, Fabric, HcaConfig};
use hca_api::FunctionId;
use ib_wire::Guid;
use mlx4_defs::wqe::{SQ_HEADROOM, STAMP};
use proptest::prelude::*;
use zerocopy::FromBytes;

use super::*;

const LOG_ENTRIES: u8 = 7;
const ENTRIES: u32 = 1 << LOG_ENTRIES;
const LOG_STRIDE: u8 = 6;
const STRIDE: usize = 1 << LOG_STRIDE;
/// What the driver leaves free.
const SPARE: u32 = (SQ_HEADROOM >> LOG_STRIDE) + 1;

/// The driver's side of a send queue.
struct Driver {
    at: u64,
    posted: u32,
}

impl Driver {
    fn slot(&self, index: u32) -> u64 {
        self.at + u64::from(index % ENTRIES) * STRIDE as u64
    }

    /// Posts a request that carries its count, and marks the one that is as far ahead as there is room.
    fn post(&mut self, hca: &mut dyn Hca) {
        let mut control = ControlSegment::default();
        control.set_owner(self.posted & ENTRIES != 0);
        control.set_size(4);
        control.immediate = self.posted.to_be_bytes();
        let at = self.slot(self.posted);
        hca.dma_write(at + 4, &control.as_bytes()[4..]).unwrap();
        hca.dma_write(at, &control.as_bytes()[..4]).unwrap();
        let ahead = self.slot(self.posted + SPARE);
        let owner = if (self.posted + SPARE) & ENTRIES == 0 {
            STAMP
        } else {
            [0x7f, 0xff, 0xff, 0xff]
        };
        hca.dma_write(ahead, &owner).unwrap();
        self.posted += 1;
    }
}

#[derive(Clone, Debug)]
enum Step {
    Post(u32),
    Take(u32),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// The device takes what is posted, each request once and in order, and nothing else, whatever was
    /// in the queue before.
    #[test]
    fn requests_are_taken_once_and_in_order(
        garbage: u8,
        steps in prop::collection::vec(
            prop_oneof![(0..40_u32).prop_map(Step::Post), (0..60_u32).prop_map(Step::Take)], 1..120),
    ) {
        let mut fabric = Fabric::new(1);
        let node = fabric.add_hca(&HcaConfig::new(Guid::new(1), "test"));
        let mut hca = fabric.hca(node, FunctionId::PF).unwrap();
        let base = hca.allocate_dma(4 * 4096).unwrap().addr.next_multiple_of(4096);
        let bytes = u64::from(ENTRIES) * STRIDE as u64;
        // The last page of the queue comes first in memory.
        let pages = (0..bytes / 4096).map(|page| base + page * 4096).collect();
        let buffer = PagedBuffer::new(pages, 12).unwrap();
        buffer.fill(&mut hca, 0..bytes, garbage).unwrap();
        let mut driver = Driver { at: base, posted: 0 };
        for index in 0..ENTRIES {
            hca.dma_write(driver.slot(index), &STAMP).unwrap();
        }
        let mut queue = SendQueue::new(buffer, 0, LOG_ENTRIES, LOG_STRIDE);
        let mut taken = 0;
        for step in steps {
            match step {
                Step::Post(count) => {
                    let room = ENTRIES - SPARE - (driver.posted - taken);
                    (0..count.min(room)).for_each(|_| driver.post(&mut hca));
                }
                Step::Take(most) => {
                    for _ in 0..most {
                        let wqe = queue.peek(&hca).unwrap();
                        prop_assert_eq!(wqe.is_some(), taken < driver.posted);
                        let Some(wqe) = wqe else { break };
                        let control = ControlSegment::read_from_prefix(wqe.bytes()).unwrap().0;
                        prop_assert_eq!(control.immediate, taken.to_be_bytes());
                        prop_assert_eq!(u32::from(queue.index()), taken & 0xffff);
                        prop_assert_eq!(wqe.bytes().len(), STRIDE);
                        queue.take();
                        taken += 1;
                    }
                }
            }
        }
    }
}
