//! Whose turn it is among the VFs that could send.

use core::num::NonZeroU16;
use std::collections::BTreeSet;

use vf_tunnel::VfId;

/// What one frame costs a VF of weight 1, in virtual time. A VF of weight w pays a w-th of it, which
/// is off by less than one part in 65,536 for any w.
const FRAME: u128 = 1 << 32;

/// A VF's share.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// What a frame of the VF's costs.
    cost: u128,
    /// When, in virtual time, the last frame that it was given ends.
    finish: u128,
    /// When its next one starts, while it is in the queue.
    start: Option<u128>,
}

impl Share {
    fn of_weight(weight: NonZeroU16) -> Self {
        Self {
            cost: FRAME / u128::from(weight.get()),
            finish: 0,
            start: None,
        }
    }
}

/// Start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queuing", SIGCOMM 1996) of VFs, each
/// frame being as long as any other.
///
/// A VF that enters starts at the queue's virtual time, or where its last frame ended if that is later;
/// the VF that starts first is next, and the virtual time is its start. When the queue runs empty,
/// nobody owes anything: the virtual time goes to the latest end. So VFs that are always in the
/// queue get frames in proportion to their weights, to within one frame of each; who was away
/// neither loses its share nor saves it up. Equal starts go by VF number. All steps are O(log n).
#[derive(Clone, Debug, Default)]
pub(crate) struct FairQueue {
    shares: Vec<Option<Share>>,
    starts: BTreeSet<(u128, VfId)>,
    virtual_time: u128,
    latest_finish: u128,
}

impl FairQueue {
    /// Gives a VF a weight; the frame after its next one costs by it.
    pub(crate) fn set_weight(&mut self, vf: VfId, weight: NonZeroU16) {
        let new = Share::of_weight(weight);
        if vf.index() >= self.shares.len() {
            self.shares.resize(vf.index() + 1, None);
        }
        let share = self.shares[vf.index()].get_or_insert(new);
        share.cost = new.cost;
    }

    /// Puts a VF in, unless it is in already or has no weight.
    pub(crate) fn insert(&mut self, vf: VfId) {
        let Some(share) = self.shares.get_mut(vf.index()).and_then(Option::as_mut) else {
            return;
        };
        if share.start.is_none() {
            let start = share.finish.max(self.virtual_time);
            share.start = Some(start);
            self.starts.insert((start, vf));
        }
    }

    /// Takes the VF out whose turn it is, and charges it for a frame.
    pub(crate) fn pop(&mut self) -> Option<VfId> {
        let (start, vf) = self.starts.pop_first()?;
        let share = self.shares.get_mut(vf.index())?.as_mut()?;
        share.start = None;
        share.finish = start + share.cost;
        self.latest_finish = self.latest_finish.max(share.finish);
        self.virtual_time = start;
        Some(vf)
    }

    /// Ends the time in which VFs competed, if none is left.
    pub(crate) fn settle(&mut self) {
        if self.starts.is_empty() {
            self.virtual_time = self.latest_finish;
        }
    }

    /// Takes a VF out whose frames are gone.
    pub(crate) fn remove(&mut self, vf: VfId) {
        let share = self.shares.get_mut(vf.index()).and_then(Option::as_mut);
        if let Some(start) = share.and_then(|share| share.start.take()) {
            self.starts.remove(&(start, vf));
            self.settle();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The VF of a place: VFs are numbered from 1 on.
    fn vf(place: u16) -> VfId {
        VfId::new(place + 1).unwrap()
    }

    fn place(vf: VfId) -> u16 {
        vf.get() - 1
    }

    fn of_weights(weights: &[u16]) -> FairQueue {
        let mut queue = FairQueue::default();
        for (number, &weight) in (0..).zip(weights) {
            queue.set_weight(vf(number), NonZeroU16::new(weight).unwrap());
        }
        queue
    }

    /// Serves the VF whose turn it is; it stays if it is one of those that always have more.
    fn serve(queue: &mut FairQueue, stays: impl Fn(VfId) -> bool) -> Option<u16> {
        let next = queue.pop()?;
        if stays(next) {
            queue.insert(next);
        }
        queue.settle();
        Some(place(next))
    }

    #[test]
    fn equal_weights_take_turns() {
        let mut queue = of_weights(&[1, 1, 1]);
        (0..3).for_each(|number| queue.insert(vf(number)));
        let order: Vec<_> = (0..6).filter_map(|_| serve(&mut queue, |_| true)).collect();
        assert_eq!(order, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn weights_of_1_and_3_share_one_to_three() {
        let mut queue = of_weights(&[1, 3]);
        (0..2).for_each(|number| queue.insert(vf(number)));
        let order: Vec<_> = (0..8).filter_map(|_| serve(&mut queue, |_| true)).collect();
        assert_eq!(order.iter().filter(|&&number| number == 0).count(), 2);
    }

    #[test]
    fn who_was_away_neither_waits_nor_makes_up() {
        let mut queue = of_weights(&[1, 1]);
        queue.insert(vf(0));
        assert!((0..100).all(|_| serve(&mut queue, |_| true) == Some(0)));
        queue.insert(vf(1));
        let order: Vec<_> = (0..6).filter_map(|_| serve(&mut queue, |_| true)).collect();
        assert!(order[..2].contains(&1), "{order:?}");
        assert_eq!(order.iter().filter(|&&number| number == 1).count(), 3);
    }

    #[test]
    fn a_vf_that_is_removed_has_no_turn() {
        let mut queue = of_weights(&[1, 1]);
        (0..2).for_each(|number| queue.insert(vf(number)));
        queue.remove(vf(0));
        assert_eq!(serve(&mut queue, |_| false), Some(1));
        assert!(queue.is_empty());
        assert_eq!(queue.pop(), None);
    }

    proptest! {
        /// Between any two VFs that are always in the queue, what they got over their weights never
        /// differs by more than one frame of each, whatever others do.
        #[test]
        fn c192_shares_are_by_weight_to_within_a_frame_of_each(
            weights in prop::collection::vec(1_u16..20, 2..6),
            visitors in prop::collection::vec((0_u16..3, 1_u16..20), 0..200),
        ) {
            let always = u16::try_from(weights.len()).unwrap();
            let mut queue = of_weights(&weights);
            (0..always).for_each(|number| queue.insert(vf(number)));
            let mut got = vec![0_u32; weights.len()];
            for (visitor, weight) in visitors {
                let visitor = vf(always + visitor);
                queue.set_weight(visitor, NonZeroU16::new(weight).unwrap());
                queue.insert(visitor);
                for _ in 0..3 {
                    let next = serve(&mut queue, |next| place(next) < always).unwrap();
                    if let Some(count) = got.get_mut(usize::from(next)) {
                        *count += 1;
                    }
                }
                let share = |at: usize| f64::from(got[at]) / f64::from(weights[at]);
                for (a, b) in (0..got.len()).flat_map(|a| (0..a).map(move |b| (a, b))) {
                    let most = 1.0 / f64::from(weights[a]) + 1.0 / f64::from(weights[b]);
                    prop_assert!((share(a) - share(b)).abs() <= most + 1e-6);
                }
            }
        }
    }
}
