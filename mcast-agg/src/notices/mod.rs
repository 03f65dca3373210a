//! Aggregates the notice subscriptions (InformInfo) of many VFs into those of the port.
//!
//! To the SA one address is one subscriber: OpenSM tells subscriptions apart by the sender's whole
//! address and by what they are about, so of two VFs behind one LID the first to unsubscribe would
//! silence both. [`NoticeAgg`] has one subscription of the port for whatever any member wants to
//! hear, made without GRH, and hands each report to those that asked for it.
//!
//! ```text
//!             nobody's yet            SA: success, or a refusal for all who wait
//!   ┌──────┐ ─────────────────────▶ ┌───────────┐ ───────────────▶ back to idle:
//!   │ idle │   reregister           ├───────────┤                  next waiting one,
//!   │      │ ─────────────────────▶ │ renew     │                  then surplus,
//!   │      │   nobody's any more    ├───────────┤                  then the subscription ends
//!   └──────┘ ─────────────────────▶ │unsubscribe│                  when nobody is left
//!                                   └───────────┘
//! ```
//!
//! Two subscriptions are one if they agree in GID (or LID range), IsGeneric, Type, trap number or
//! device id, and producer or vendor. QPN and RespTimeValue are the subscriber's own and are
//! answered as it gave them; the port's are always QP1 and a constant, since OpenSM compares them.
//!
//! # Reports
//!
//! The SA sends one report per subscription of the port that matches, under a TID of its own each,
//! and repeats it until it is answered. Every one is answered once, here; members get one copy of
//! the event, under a TID of this machine's, and what they answer ends here too.
//!
//! Waits, tokens and what is done after silence are as for groups; see the [crate] docs.
//! The tokens of this machine and of [`McastAgg`](crate::McastAgg) are counted apart.

mod api;
mod machine;
mod report;
mod subject;
mod subscription;

pub use api::{Config, Output, Sizes};
pub use machine::NoticeAgg;
pub use subscription::SubscriptionView;
