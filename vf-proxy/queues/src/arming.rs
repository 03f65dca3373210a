//! Events of completion queues: which completions the reader of a queue waits for, and how many of them make an event.

use hca_api::ArmKind;
use ib_vtime::Duration;

/// The completions of an armed queue that make an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moderation {
    /// So many make one.
    pub count: u16,
    /// Fewer make one so long after the first of them.
    pub period: Duration,
}

/// The event of a completion queue that a completion makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// None: the reader does not wait for it.
    None,
    /// One after a time, unless more completions make it before.
    Held(Duration),
    /// One now. The queue is armed no longer.
    Due,
}

/// The arming of a completion queue in memory, which makes one event.
#[derive(Debug, Default)]
pub struct Arming {
    armed: Option<ArmKind>,
    moderation: Option<Moderation>,
    /// Completions since the queue was armed that have made no event yet.
    held: u16,
}

impl Arming {
    /// Creates the arming of a queue that is not armed. Without moderation each completion that is waited for makes an event.
    #[must_use]
    pub const fn new(moderation: Option<Moderation>) -> Self {
        Self {
            armed: None,
            moderation,
            held: 0,
        }
    }

    /// Returns the completions that the reader waits for.
    #[must_use]
    pub const fn armed(&self) -> Option<ArmKind> {
        self.armed
    }

    /// Arms the queue for other completions, or for none. Completions that were held back make no event.
    pub const fn arm(&mut self, kind: Option<ArmKind>) {
        (self.armed, self.held) = (kind, 0);
    }

    /// Returns the event that a completion makes, which is solicited, in error or neither.
    pub const fn complete(&mut self, solicited: bool) -> Event {
        match self.armed {
            Some(ArmKind::Next) => {}
            Some(ArmKind::Solicited) if solicited => {}
            _ => return Event::None,
        }
        self.held = self.held.saturating_add(1);
        if let Some(moderation) = self.moderation
            && self.held < moderation.count
        {
            return Event::Held(moderation.period);
        }
        self.arm(None);
        Event::Due
    }

    /// Changes the moderation. Returns `true` if completions were held back: then the event is due now.
    pub const fn moderate(&mut self, moderation: Option<Moderation>) -> bool {
        self.moderation = moderation;
        self.release()
    }

    /// Ends the wait for more completions. Returns `true` if completions were held back: then the event is due now.
    pub const fn release(&mut self) -> bool {
        let held = self.held != 0;
        if held {
            self.arm(None);
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_armed_queue_makes_one_event_of_a_completion_that_is_waited_for() {
        let mut arming = Arming::default();
        assert_eq!(arming.complete(true), Event::None);
        arming.arm(Some(ArmKind::Solicited));
        assert_eq!(arming.complete(false), Event::None);
        assert_eq!(arming.complete(true), Event::Due);
        assert_eq!((arming.complete(true), arming.armed()), (Event::None, None));
        arming.arm(Some(ArmKind::Next));
        assert_eq!(arming.complete(false), Event::Due);
        assert!(!arming.release());
    }

    #[test]
    fn fewer_completions_than_make_an_event_are_held_back_until_they_are_released() {
        let period = Duration::from_micros(7);
        let moderation = Some(Moderation { count: 3, period });
        let mut arming = Arming::new(moderation);
        arming.arm(Some(ArmKind::Next));
        for event in [Event::Held(period), Event::Held(period), Event::Due] {
            assert_eq!(arming.complete(false), event);
        }
        arming.arm(Some(ArmKind::Next));
        arming.complete(false);
        assert!(arming.release() && !arming.release());
        assert_eq!(arming.armed(), None);
        arming.arm(Some(ArmKind::Next));
        arming.complete(false);
        assert!(arming.moderate(None));
        arming.arm(Some(ArmKind::Next));
        assert_eq!(arming.complete(false), Event::Due);
    }
}
