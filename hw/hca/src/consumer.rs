//! What runs on a function, and what lends functions.

use core::any::Any;
use core::fmt;

use ib_vtime::Instant;

use crate::{FunctionId, FunctionManager, Hca, HcaEvent};

/// The consumer of a function, as IBA volume 1, chapter 11 calls the user of the verbs: software that has the function to itself.
///
/// Sans-I/O: the driver keeps the function and lends it to each call. The consumer is polled after each
/// [`Consumer::handle_hca_event`], after each use through another interface, and when [`Consumer::poll_timeout`] says so.
///
/// Consumers of different kinds stand side by side behind one driver, which knows none of them; the code that put one
/// there finds it again by its type (`downcast_ref`).
pub trait Consumer: Any + fmt::Debug + Send {
    /// Takes an event of the function.
    fn handle_hca_event(&mut self, now: Instant, hca: &mut dyn Hca, event: &HcaEvent);

    /// Does a bounded part of what is due at `now`. Returns `true` if there may be more.
    fn poll(&mut self, now: Instant, hca: &mut dyn Hca) -> bool;

    /// Returns when to poll at the latest; a time that has passed means at once.
    #[must_use]
    fn poll_timeout(&self) -> Option<Instant>;

    /// Returns `true`, once, if the PF is to reset the function: a consumer cannot do that by itself.
    #[must_use]
    fn take_reset_request(&mut self) -> bool {
        false
    }

    /// Takes the function's events and does what is due, until `is_over`, which is asked after each part. Returns `true`
    /// if there may be more.
    fn take_turn(
        &mut self,
        now: Instant,
        hca: &mut dyn Hca,
        is_over: &mut dyn FnMut() -> bool,
    ) -> bool {
        while let Some(event) = hca.poll_event() {
            self.handle_hca_event(now, hca, &event);
            if is_over() {
                return true;
            }
        }
        while self.poll(now, hca) {
            if is_over() {
                return true;
            }
        }
        false
    }
}

impl dyn Consumer {
    /// Returns the consumer as what it is, or `None` if it is of another type.
    #[must_use]
    pub fn downcast_ref<T: Consumer>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }

    /// Returns the consumer as what it is, to be used, or `None` if it is of another type.
    #[must_use]
    pub fn downcast_mut<T: Consumer>(&mut self) -> Option<&mut T> {
        (self as &mut dyn Any).downcast_mut()
    }

    /// Returns `true` if the consumer is of a type.
    #[must_use]
    pub fn is<T: Consumer>(&self) -> bool {
        (self as &dyn Any).is::<T>()
    }
}

/// An adapter: the functions that consumers run on.
pub trait Adapter {
    /// A function, as it is lent for a call or a few.
    type Function<'a>: FunctionManager
    where
        Self: 'a;

    /// Lends a function. `None` if there is none of this number.
    fn function(&mut self, id: FunctionId) -> Option<Self::Function<'_>>;

    /// Returns a function that may have events and was not returned since it got them. To be polled after everything that
    /// can raise one: a use of any function, and whatever drives the adapter.
    #[must_use]
    fn poll_ready(&mut self) -> Option<FunctionId>;
}
