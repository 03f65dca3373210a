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
        control.set_size(1 + u8::try_from(self.posted % 4).unwrap());
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
        let (mut taken, mut wqe) = (0, Wqe::default());
        for step in steps {
            match step {
                Step::Post(count) => {
                    let room = ENTRIES - SPARE - (driver.posted - taken);
                    (0..count.min(room)).for_each(|_| driver.post(&mut hca));
                }
                Step::Take(most) => {
                    for _ in 0..most {
                        let posted = queue.peek(&hca, &mut wqe).unwrap();
                        prop_assert_eq!(posted, taken < driver.posted);
                        if !posted {
                            break;
                        }
                        let control = ControlSegment::read_from_prefix(wqe.bytes()).unwrap().0;
                        prop_assert_eq!(control.immediate, taken.to_be_bytes());
                        prop_assert_eq!(u32::from(queue.index()), taken & 0xffff);
                        prop_assert_eq!(wqe.bytes().len(), 16 * usize::from(control.size()));
                        queue.take();
                        taken += 1;
                    }
                }
            }
        }
    }
}

#[test]
fn a_request_is_read_no_further_than_its_size() {
    let mut fabric = Fabric::new(1);
    let node = fabric.add_hca(&HcaConfig::new(Guid::new(1), "test"));
    let mut hca = fabric.hca(node, FunctionId::PF).unwrap();
    let base = hca.allocate_dma(2 * 4096).unwrap().addr;
    let base = base.next_multiple_of(4096);
    // The second half of the slot is not memory.
    let buffer = PagedBuffer::new(vec![base, 1 << 50], 12).unwrap();
    let queue = SendQueue::new(buffer, 4096 - 64, 4, 7);
    let mut wqe = Wqe::default();
    for (units, read) in [
        (0, Ok(16)),
        (1, Ok(16)),
        (4, Ok(64)),
        (5, Err(())),
        (9, Err(())),
    ] {
        let mut control = ControlSegment::default();
        control.set_size(units);
        let at = base + 4096 - 64;
        hca.dma_write(at, control.as_bytes()).unwrap();
        let peeked = queue.peek(&hca, &mut wqe).map_err(|_| ());
        assert_eq!(peeked.map(|_| wqe.bytes().len()), read, "{units} units");
    }
}
