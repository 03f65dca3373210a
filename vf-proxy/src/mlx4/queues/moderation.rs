//! Moderation of completion events: an armed queue wakes its driver when so many completions have come, or
//! so long after the first of them.
//!
//! Either number being zero means none (`mlx4_cq_modify` sets both; a new queue has neither). What the driver
//! has not taken when it arms wakes it at once, moderated or not.

use ib_vtime::Duration;
use mlx4_defs::cq::CqContext;

/// How a queue's events are moderated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Moderation {
    /// Completions that make an event.
    pub(super) count: u16,
    /// How long fewer wait.
    pub(super) period: Duration,
}

impl Moderation {
    /// What a context says; `None` is no moderation.
    pub(in super::super) fn of(context: &CqContext) -> Option<Self> {
        let (count, micros) = (context.max_count.get(), context.period.get());
        (count != 0 && micros != 0).then(|| Self {
            count,
            period: Duration::from_micros(micros.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_without_one_of_the_numbers_moderates_nothing() {
        let mut context = CqContext::default();
        context.max_count.set(8);
        assert_eq!(Moderation::of(&context), None);
        context.period.set(16);
        let expected = Moderation {
            count: 8,
            period: Duration::from_micros(16),
        };
        assert_eq!(Moderation::of(&context), Some(expected));
        context.max_count.set(0);
        assert_eq!(Moderation::of(&context), None);
    }
}
