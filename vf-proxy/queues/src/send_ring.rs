//! Send queues, between the layout of their rings and the provider.

use std::collections::VecDeque;

/// The requests of one send queue that the provider has. `R` is a layout's note of each, kept until the request completes.
#[derive(Debug)]
pub struct SendRing<R> {
    sent: VecDeque<R>,
    waits: bool,
}

impl<R> Default for SendRing<R> {
    fn default() -> Self {
        Self {
            sent: VecDeque::new(),
            waits: false,
        }
    }
}

impl<R> SendRing<R> {
    /// Returns the number of requests that the provider has and has not completed.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.sent.len()
    }

    /// Returns `true` if the next request of the ring waits for room, or for those before it.
    #[must_use]
    pub const fn waits(&self) -> bool {
        self.waits
    }

    /// Takes the note of the oldest request, which has completed.
    pub fn complete(&mut self) -> Option<R> {
        self.sent.pop_front()
    }

    /// Ends the wait of the next request. Returns `true` if it waited: then the queue is to be served again.
    pub const fn take_wait(&mut self) -> bool {
        core::mem::replace(&mut self.waits, false)
    }

    /// Forgets all requests, as a reset of the queue pair does.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The fate of the next request of a ring.
#[derive(Debug)]
pub enum Fate<R, F> {
    /// The provider has it.
    Posted(R),
    /// The provider has it, and may copy it to many queue pairs: it is the last of this turn.
    Multicast(R),
    /// It is to be looked at again, in the state that the provider has put the queue pair into.
    Again,
    /// There is none, or none that is carried out in this state.
    Idle,
    /// There is no room for it.
    Full,
    /// It completes with a failure once all before it have completed. Until then it is not taken.
    Failed(F),
}

/// The state of a send queue, with the fate of its next request.
pub type Next<'a, R, F> = (&'a mut SendRing<R>, Fate<R, F>);

/// A send queue in the layout of its ring.
pub trait SendLayout {
    /// The note of a request until it completes.
    type Note;
    /// The reason for which a request fails.
    type Failure;

    /// Reads the next request and posts it at the provider; takes it from the ring if the provider has it. Returns its fate with the
    /// state of the queue, or `None` if the queue pair is gone.
    fn post_next(&mut self) -> Option<Next<'_, Self::Note, Self::Failure>>;

    /// Takes the next request from the ring and completes it with a failure. Returns `false` if that ends the turn of the queue.
    fn fail(&mut self, failure: Self::Failure) -> bool;
}

/// Carries out requests of a send queue, at most a batch of them. Returns `true` if there may be more, for another turn.
///
/// Completions keep the order of requests: a request that fails without the provider waits until the provider has completed all
/// before it.
pub fn serve(queue: &mut impl SendLayout, batch: usize) -> bool {
    for _ in 0..batch {
        let Some((ring, fate)) = queue.post_next() else {
            return false;
        };
        match fate {
            Fate::Posted(note) => ring.sent.push_back(note),
            Fate::Multicast(note) => {
                ring.sent.push_back(note);
                return true;
            }
            Fate::Again => {}
            Fate::Idle => return false,
            Fate::Full => {
                ring.waits = true;
                return false;
            }
            Fate::Failed(_) if ring.in_flight() != 0 => {
                ring.waits = true;
                return false;
            }
            Fate::Failed(failure) => {
                if !queue.fail(failure) {
                    return false;
                }
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring of fates. Numbers are the notes of requests, negative ones of requests whose failure ends the turn.
    struct Ring {
        next: VecDeque<Fate<i32, i32>>,
        state: SendRing<i32>,
        failed: Vec<i32>,
    }

    impl SendLayout for Ring {
        type Note = i32;
        type Failure = i32;

        fn post_next(&mut self) -> Option<(&mut SendRing<i32>, Fate<i32, i32>)> {
            let fate = match self.next.front()? {
                Fate::Failed(note) => Fate::Failed(*note),
                _ => self.next.pop_front()?,
            };
            Some((&mut self.state, fate))
        }

        fn fail(&mut self, note: i32) -> bool {
            self.next.pop_front();
            self.failed.push(note);
            note >= 0
        }
    }

    fn ring(next: impl IntoIterator<Item = Fate<i32, i32>>) -> Ring {
        Ring {
            next: next.into_iter().collect(),
            state: SendRing::default(),
            failed: Vec::new(),
        }
    }

    #[test]
    fn a_turn_ends_with_its_batch_or_a_multicast_request() {
        let mut queue = ring((0..6).map(|note| match note {
            4 => Fate::Multicast(note),
            _ => Fate::Posted(note),
        }));
        for (more, in_flight) in [(true, 3), (true, 5), (false, 6)] {
            assert_eq!(serve(&mut queue, 3), more);
            assert_eq!(queue.state.in_flight(), in_flight);
        }
        let notes: Vec<i32> = core::iter::from_fn(|| queue.state.complete()).collect();
        assert_eq!(notes, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_request_fails_when_all_before_it_have_completed() {
        let mut queue = ring([
            Fate::Posted(1),
            Fate::Again,
            Fate::Posted(2),
            Fate::Failed(3),
            Fate::Failed(-4),
            Fate::Posted(5),
        ]);
        for before in [2, 1] {
            assert!(!serve(&mut queue, 9));
            assert_eq!(queue.state.in_flight(), before);
            assert!(queue.state.take_wait() && queue.failed.is_empty());
            queue.state.complete();
        }
        assert!(!serve(&mut queue, 9));
        assert_eq!(queue.failed, [3, -4]);
        assert!(!queue.state.waits());
        assert_eq!(queue.next.len(), 1);
    }

    #[test]
    fn a_queue_without_room_waits_and_an_idle_one_does_not() {
        let mut queue = ring([Fate::Idle, Fate::Posted(1), Fate::Full]);
        assert!(!serve(&mut queue, 9) && !queue.state.waits());
        assert!(!serve(&mut queue, 9) && queue.state.waits());
        assert!(queue.state.take_wait() && !queue.state.take_wait());
        queue.state.clear();
        assert_eq!((queue.state.in_flight(), queue.state.complete()), (0, None));
    }
}
