//! Moderation of completion events: an armed queue wakes its driver when so many completions have come, or
//! so long after the first of them.
//!
//! Either number being zero means none (`mlx4_cq_modify` sets both; a new queue has neither). What the driver
//! has not taken when it arms wakes it at once, moderated or not.

use ib_vtime::Duration;
use mlx4_defs::cq::CqContext;
use vf_queues::Moderation;

/// Returns the moderation of a context, if it has any.
pub(in super::super) fn moderation(context: &CqContext) -> Option<Moderation> {
    let (count, micros) = (context.max_count.get(), context.period.get());
    (count != 0 && micros != 0).then(|| Moderation {
        count,
        period: Duration::from_micros(micros.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_without_one_of_the_numbers_moderates_nothing() {
        let mut context = CqContext::default();
        context.max_count.set(8);
        assert_eq!(moderation(&context), None);
        context.period.set(16);
        let expected = Moderation {
            count: 8,
            period: Duration::from_micros(16),
        };
        assert_eq!(moderation(&context), Some(expected));
        context.max_count.set(0);
        assert_eq!(moderation(&context), None);
    }
}
