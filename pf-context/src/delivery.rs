//! What waits to be delivered to a VF.

use std::collections::VecDeque;

use ib_wire::mad::{Mad, MgmtClass};
use mad_mux::rmpp::RmppRole;
use vf_tunnel::DropReason;

/// What a MAD is to the VF that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeliveryClass {
    /// It keeps an exchange going whose peer counts the time: a CM message, or an RMPP packet that
    /// carries no data (ACK, STOP, ABORT).
    Control,
    /// Everything else.
    Bulk,
}

impl DeliveryClass {
    /// The class of a MAD on its way to a VF.
    #[must_use]
    pub fn of(mad: &Mad) -> Self {
        if mad.header.mgmt_class == MgmtClass::COM_MGT || RmppRole::of(mad).is_control() {
            Self::Control
        } else {
            Self::Bulk
        }
    }
}

/// How much may wait for one VF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryDepth {
    /// Items of [`DeliveryClass::Control`].
    pub control: usize,
    /// Items of [`DeliveryClass::Bulk`].
    pub bulk: usize,
}

impl Default for DeliveryDepth {
    fn default() -> Self {
        Self {
            control: 128,
            // The depth of a guest driver's own receive ring (mlx4: 512).
            bulk: 512,
        }
    }
}

/// The items that wait for one VF's tunnel, in two lines of fixed depth.
///
/// Each class keeps its order. Control goes before bulk, and bulk that fills its line takes no place
/// from control. So that nobody can keep a VF's bulk back for ever by a flood of CM messages, one
/// bulk item goes after [`DeliveryQueue::CONTROL_IN_A_ROW`] control items that overtook it.
///
/// Each VF has a queue of its own, so what one VF leaves lying delays nobody else's.
#[derive(Clone, Debug)]
pub struct DeliveryQueue<T> {
    depth: DeliveryDepth,
    control: VecDeque<T>,
    bulk: VecDeque<T>,
    /// Control items that went since bulk waits.
    overtaken: u32,
    refused: u64,
}

impl<T> DeliveryQueue<T> {
    /// Control items that go before one bulk item that waits.
    pub const CONTROL_IN_A_ROW: u32 = 16;

    /// An empty queue.
    #[must_use]
    pub const fn new(depth: DeliveryDepth) -> Self {
        Self {
            depth,
            control: VecDeque::new(),
            bulk: VecDeque::new(),
            overtaken: 0,
            refused: 0,
        }
    }

    /// Adds an item.
    ///
    /// # Errors
    /// [`DropReason::Backpressure`]: there is no place for the item, which is gone and counted.
    pub fn push(&mut self, item: T, class: DeliveryClass) -> Result<(), DropReason> {
        let (line, depth) = match class {
            DeliveryClass::Control => (&mut self.control, self.depth.control),
            DeliveryClass::Bulk => (&mut self.bulk, self.depth.bulk),
        };
        if line.len() >= depth {
            self.refused += 1;
            return Err(DropReason::Backpressure);
        }
        line.push_back(item);
        Ok(())
    }

    /// Takes the item that goes next.
    pub fn pop(&mut self) -> Option<T> {
        let bulk_waits = !self.bulk.is_empty();
        let bulks_turn = bulk_waits && self.overtaken >= Self::CONTROL_IN_A_ROW;
        if !bulks_turn && let Some(item) = self.control.pop_front() {
            self.overtaken += u32::from(bulk_waits);
            return Some(item);
        }
        self.overtaken = 0;
        self.bulk.pop_front()
    }

    /// Items that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.control.len() + self.bulk.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Items that found no place since the queue was made.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Forgets what waits, and gives how much that was.
    pub fn clear(&mut self) -> usize {
        let cleared = self.len();
        self.control.clear();
        self.bulk.clear();
        self.overtaken = 0;
        cleared
    }
}

impl<T> Default for DeliveryQueue<T> {
    fn default() -> Self {
        Self::new(DeliveryDepth::default())
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::mad::{AttributeId, MadHeader, Method};
    use ib_wire::rmpp::{RmppFlags, RmppHeader, RmppMad, RmppStatus, RmppType};
    use proptest::prelude::*;

    use super::DeliveryClass::{Bulk, Control};
    use super::*;

    const SMALL: DeliveryDepth = DeliveryDepth {
        control: 20,
        bulk: 3,
    };

    fn drain(queue: &mut DeliveryQueue<u32>) -> Vec<u32> {
        core::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn a_queue_is_empty_until_something_waits_in_either_part() {
        for class in [Control, Bulk] {
            let mut queue = DeliveryQueue::new(SMALL);
            assert!(queue.is_empty());
            queue.push(7_u32, class).expect("room");
            assert!(!queue.is_empty());
            assert_eq!(drain(&mut queue), [7]);
            assert!(queue.is_empty());
        }
    }

    #[test]
    fn c076_a_full_queue_refuses_with_backpressure_and_counts_and_its_neighbour_goes_on() {
        let mut full = DeliveryQueue::new(SMALL);
        let mut neighbour = DeliveryQueue::new(SMALL);
        for item in 0..3 {
            assert_eq!(full.push(item, Bulk), Ok(()));
        }
        for item in 3..8 {
            assert_eq!(full.push(item, Bulk), Err(DropReason::Backpressure));
        }
        assert_eq!((full.len(), full.refused()), (3, 5));
        assert_eq!(neighbour.push(9, Bulk), Ok(()));
        assert_eq!(neighbour.pop(), Some(9));
        assert_eq!(drain(&mut full), [0, 1, 2]);
        assert_eq!(full.push(10, Bulk), Ok(()));
    }

    #[test]
    fn c222_control_goes_before_bulk_and_finds_place_where_bulk_does_not() {
        let mut queue = DeliveryQueue::new(SMALL);
        for item in 0..4 {
            let _ = queue.push(item, Bulk);
        }
        for item in 100..103 {
            assert_eq!(queue.push(item, Control), Ok(()));
        }
        assert_eq!(drain(&mut queue), [100, 101, 102, 0, 1, 2]);
    }

    #[test]
    fn a_flood_of_control_lets_bulk_through_now_and_then() {
        let mut queue = DeliveryQueue::new(SMALL);
        queue.push(0, Bulk).unwrap();
        let mut taken = Vec::new();
        for item in 100..120 {
            queue.push(item, Control).unwrap();
            taken.extend(queue.pop());
        }
        assert_eq!(taken.iter().position(|&item| item == 0), Some(16));
        assert_eq!(drain(&mut queue), [119]);
    }

    #[test]
    fn clearing_empties_the_queue_and_tells_how_much_was_lost() {
        let mut queue = DeliveryQueue::new(SMALL);
        queue.push(1, Bulk).unwrap();
        queue.push(2, Control).unwrap();
        assert_eq!(queue.clear(), 2);
        assert!(queue.is_empty());
        assert_eq!(queue.pop(), None);
    }

    fn sa(rmpp: RmppHeader) -> Mad {
        let header = MadHeader::new(
            MgmtClass::SUBN_ADM,
            Method::GET_TABLE_RESP,
            AttributeId::PATH_RECORD,
        );
        let mut mad = Mad::new(header);
        mad.view_mut::<RmppMad>().rmpp = rmpp;
        mad
    }

    #[test]
    fn c222_cm_messages_and_rmpp_acks_stops_and_aborts_are_control() {
        let cm = Mad::new(MadHeader::new(
            MgmtClass::COM_MGT,
            Method::SEND,
            AttributeId::CM_REP,
        ));
        let end = |kind| RmppHeader::end(kind, RmppStatus::UNSPECIFIED);
        let control = [
            cm,
            sa(RmppHeader::ack(1, 64)),
            sa(end(RmppType::STOP)),
            sa(end(RmppType::ABORT)),
        ];
        assert!(control.iter().all(|mad| DeliveryClass::of(mad) == Control));
        let bulk = [
            sa(RmppHeader::data(2, 0, RmppFlags::default())),
            Mad::new(MadHeader::new(
                MgmtClass::SUBN_ADM,
                Method::GET_RESP,
                AttributeId::PATH_RECORD,
            )),
        ];
        assert!(bulk.iter().all(|mad| DeliveryClass::of(mad) == Bulk));
    }

    proptest! {
        /// Whatever goes in comes out once, each class in its order, and never more waits than may.
        #[test]
        fn each_class_keeps_its_order_and_its_depth(steps in prop::collection::vec(0u8..4, 0..200)) {
            let mut queue = DeliveryQueue::new(SMALL);
            let (mut accepted, mut taken, mut refused) = (Vec::new(), Vec::new(), 0);
            for (number, step) in steps.iter().enumerate() {
                let class = if step % 2 == 0 { Control } else { Bulk };
                if *step < 3 {
                    match queue.push((class, number), class) {
                        Ok(()) => accepted.push((class, number)),
                        Err(_) => refused += 1,
                    }
                } else {
                    taken.extend(queue.pop());
                }
                let waiting = |class| accepted.iter().filter(|item| item.0 == class).count()
                    - taken.iter().filter(|item: &&(DeliveryClass, usize)| item.0 == class).count();
                prop_assert!(waiting(Control) <= SMALL.control && waiting(Bulk) <= SMALL.bulk);
                prop_assert_eq!(queue.len(), accepted.len() - taken.len());
            }
            prop_assert_eq!(queue.refused(), refused);
            taken.extend(core::iter::from_fn(|| queue.pop()));
            accepted.sort_unstable();
            taken.sort_by_key(|item| item.0);
            prop_assert_eq!(taken, accepted);
        }
    }
}
