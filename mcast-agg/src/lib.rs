//! Aggregates the multicast memberships of many VFs into one of the port, and likewise their
//! subscriptions to notices: see [`notices`] for those. This is about memberships.
//!
//! To the SA a port is one member. [`McastAgg`] keeps, for each group, who of the VFs (and the PF
//! itself) holds which of the four kinds of membership, talks to the SA only when their union
//! changes, and answers everything else itself, with the bytes that the SA would have sent.
//!
//! ```text
//!                 join not covered          SA: success, or failure
//!   ┌──────┐ ───────────────────────▶ ┌─────────┐ ──────────────▶ back to idle:
//!   │ idle │   reregister             ├─────────┤                 next waiting join,
//!   │      │ ───────────────────────▶ │ rejoin  │                 then surplus bits,
//!   │      │   surplus bits           ├─────────┤                 then the group ends
//!   └──────┘ ───────────────────────▶ │ leave   │                 when nobody is left
//!                                     └─────────┘
//! ```
//!
//! A group has at most one transaction with the SA; different groups proceed in parallel, up to
//! [`Config::max_in_flight`]. Joins that the known membership covers, leaves of kinds that other members
//! hold as well, and whatever is wrong on its face are answered at once, whatever the SA is doing. The
//! leave of the last holder of a kind is answered when the SA has answered the Delete, and joins of that
//! kind wait behind it: the member's next question to the SA finds what its leave did.
//!
//! # The SA's side
//!
//! [`Output::SaRequest`] carries a [`Token`], not a transaction id: whoever sends it gives each
//! transmission an unpredictable TID of its own, accepts answers only from the SA's address, and
//! hands them in by token. So an answer with a wrong TID, or from elsewhere, never gets here. Each
//! machine counts its own tokens.
//!
//! # Members under their own aliases
//!
//! With [`JoinAs::Alias`] the SA knows each member by its own alias GID instead, and each has its own
//! transactions: there is nothing to aggregate but one member's kinds of membership. All else is the
//! same. An alias leaves its groups by [`McastAgg::leave_alias`] before it is taken from the member:
//! the SA would not give it up (IBA 15.2.5.18; OpenSM answers 0x0700).
//!
//! # Timers
//!
//! The same for both machines:
//!
//! | what | time | why |
//! | --- | --- | --- |
//! | a VF's join or subscription | 0.5, 1, 1.5 s, then [`Config::give_up_status`] | Linux guests give up after 3 s (10 × 300 ms) |
//! | a rejoin or renewal | 1, 2, 4, ... 60 s, for ever | an SM ignores MADs until its first sweep is done |
//! | a leave or unsubscription | 1, 2, 4, ... s, eight times | it is the SA's problem then |
//! | the answer to a leave | 3 s at the latest | as for a join |
//! | an answer to what was given up | 60 s | a late success must be taken back |
//!
//! # What cannot be mended
//!
//! A creation (MGID zero) whose answer is lost is asked for again, and the SA then has a group that
//! nobody knows. That is so for every host; the SA offers no way to find out.
#![forbid(unsafe_code)]

mod aim;
mod answer;
mod api;
mod compare;
mod exchange;
mod group;
mod groups;
mod machine;
mod members;
pub mod notices;
mod request;
mod transaction;
mod usage;

pub use api::{Config, JoinAs, Outcome, Output, Requester, Sizes};
pub use group::GroupView;
pub use machine::McastAgg;
pub use members::MemberId;
pub use transaction::{Token, UnderWay};
pub use usage::MemberUse;
