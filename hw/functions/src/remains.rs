//! Objects of virtual functions that were reset, which the adapter still has.

use std::collections::VecDeque;

use hca_api::{AvHandle, CqHandle, Hca, HcaError, MrHandle, MwHandle, PdHandle, SrqHandle};
use ib_vtime::{Duration, Instant};

/// Objects that a call destroys: each may be a system call.
const AT_ONCE: usize = 256;

/// Pause before the adapter is asked again for regions whose deregistration is under way.
const PAUSE: Duration = Duration::from_millis(5);

/// An object without users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remain {
    Srq(SrqHandle),
    Window(MwHandle),
    Av(AvHandle),
    Region(MrHandle),
    Cq(CqHandle),
    Pd(PdHandle),
}

impl Remain {
    pub(crate) fn destroy(self, hca: &mut dyn Hca) -> Result<(), HcaError> {
        match self {
            Self::Srq(srq) => hca.destroy_srq(srq),
            Self::Window(window) => hca.dealloc_mw(window),
            Self::Av(av) => hca.destroy_av(av),
            Self::Region(region) => hca.deregister_mr(region),
            Self::Cq(cq) => hca.destroy_cq(cq),
            Self::Pd(pd) => hca.dealloc_pd(pd),
        }
    }
}

/// Objects, in the order in which they can be destroyed.
#[derive(Debug, Default)]
pub(crate) struct Remains {
    line: VecDeque<Remain>,
    /// Time of the next turn, while the adapter deregisters regions at the head of the line.
    next: Instant,
}

impl Remains {
    /// Adds objects of which each one's users come before it.
    pub(crate) fn extend(&mut self, remains: impl IntoIterator<Item = Remain>) {
        self.line.extend(remains);
    }

    /// Returns when to destroy more, or `None` if no object is left.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        (!self.line.is_empty()).then_some(self.next)
    }

    /// Destroys as many objects as a call may, and returns them. Regions whose deregistration is under way stay at the head of the line,
    /// and of the objects behind them regions alone are destroyed.
    pub(crate) fn destroy(
        &mut self,
        now: Instant,
        mut destroy: impl FnMut(Remain) -> Result<(), HcaError>,
    ) -> Vec<Remain> {
        let (mut pending, mut destroyed) = (Vec::new(), Vec::new());
        if now < self.next {
            return destroyed;
        }
        for _ in 0..AT_ONCE {
            let is_region = matches!(self.line.front(), Some(Remain::Region(_)));
            if !pending.is_empty() && !is_region {
                break;
            }
            let Some(remain) = self.line.pop_front() else {
                break;
            };
            // An adapter refuses none of them otherwise, unless it has failed.
            match destroy(remain) {
                Err(HcaError::Pending) => pending.push(remain),
                _ => destroyed.push(remain),
            }
        }
        if !pending.is_empty() {
            self.next = now + PAUSE;
        }
        for remain in pending.into_iter().rev() {
            self.line.push_front(remain);
        }
        destroyed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_that_are_under_way_are_asked_for_again_and_the_objects_behind_them_wait() {
        let [first, second] = [1, 2].map(|region| Remain::Region(MrHandle(region)));
        let [av, pd] = [Remain::Av(AvHandle(3)), Remain::Pd(PdHandle(4))];
        let mut remains = Remains::default();
        remains.extend([av, first, second, pd]);
        let mut now = Instant::ZERO;
        let mut turn = |now, pending: &[Remain]| {
            let is_pending = |remain| match pending.contains(&remain) {
                true => Err(HcaError::Pending),
                false => Ok(()),
            };
            let destroyed = remains.destroy(now, is_pending);
            (destroyed, remains.poll_timeout())
        };
        let next = Some(now + PAUSE);
        assert_eq!(turn(now, &[first]), (vec![av, second], next));
        assert_eq!(turn(now, &[]), (vec![], next), "not yet");
        now += PAUSE;
        assert_eq!(turn(now, &[]), (vec![first, pd], None));
    }
}
