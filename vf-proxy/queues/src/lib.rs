//! Queues in the memory of a guest or a program, between its rings and a provider of verbs, whatever the layout of the rings.
//!
//! Each machine names queues by a type of the caller's: a number or a handle that is ordered. The order of names decides turns, so that
//! the same calls have the same effect.
#![forbid(unsafe_code)]

mod arming;
mod backlog;
mod collect;
mod flush;
mod held;
mod send_ring;
mod turns;

pub use arming::{Arming, Event, Moderation};
pub use backlog::Backlog;
pub use collect::{collect, create_cq, is_receive, resize_cq};
pub use flush::{FlushPace, FlushTimer, Found, fail};
pub use held::HeldEvents;
pub use send_ring::{Fate, Next, SendLayout, SendRing, serve};
pub use turns::{TURNS, Turns};
