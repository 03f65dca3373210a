//! Communication-id map and connection tracking: many VFs behind one port's communication manager.
//!
//! All VFs of a port share its LID and QP1, and each numbers its connections as if it were alone.
//! [`CmParavirt`] puts an id of its own, the *wire id*, in the place of each VF's, steers what comes
//! back, and watches every exchange for as long as either side may still speak of it. One machine
//! serves all ports of a PF: automatic path migration moves a connection, id and all, from one port
//! to the other.
//!
//! It is sans-I/O: the caller passes MADs of class CM with the time and gets verdicts
//! ([`Egress`], [`Ingress`]), on the way in by two steps ([`CmParavirt::find`],
//! [`CmParavirt::accept`]); [`CmParavirt::poll_transmit`] and [`CmParavirt::poll_timeout`] give the
//! rest. Nothing that a guest or the fabric sends is an error of the caller's: it ends in a verdict
//! and a counter.
//!
//! # What is rewritten
//!
//! The 32 bits of the VF's own id, and nothing else: local id on the way out, remote id on the way
//! in; request id of SIDR_REQ and SIDR_REP. Transaction ids, GIDs, LIDs, QPNs and P_Keys pass as they
//! are. ClassPortInfo has no id: a Get is steered by its destination GID, an answer goes by its
//! transaction id elsewhere.
//!
//! | message | out: the slot is found by | in: steered by |
//! | --- | --- | --- |
//! | REQ | VF's id, or a new slot | primary remote GID, which a GRH must not contradict |
//! | REP, MRA | VF's id; the peer's request that it answers | wire id |
//! | REJ | VF's id; the peer's request that it refuses | wire id; without one, peer's CA GUID, id and LID |
//! | RTU, DREQ, DREP, LAP, APR | VF's id | wire id |
//! | SIDR_REQ | VF's request id, or a new slot | destination GID; [`SidrTable`]; the port of whose GUID its IPv6 address is formed; PF |
//! | SIDR_REP | the peer's request that it answers | wire id |
//!
//! # Who may say what
//!
//! A message for a wire id must carry the id that the peer has shown (REP and MRA show it, a REQ
//! does from the start) and come from the peer's LID, the LID of its alternate path, or, if the
//! exchange's first message had a GRH, with its GID: routers have more LIDs than one. A VF may answer
//! a request only if no sibling got it. REQ, REP, LAP and SIDR_REQ are compared with what the PF
//! knows of the VF ([`VfIdentity`]).
//!
//! # States
//!
//! The CMs at both ends are the state machines of the protocol; this one only follows them. Listed
//! is what changes a [`State`]; "sent" and "rcvd" are the VF's point of view. Everything else passes
//! without a change.
//!
#![doc = include_str!("../TRANSITIONS.md")]
//!
//! # Timers
//!
//! A connection's end is a DREQ or a REJ, its beginning an RTU or data (IBA 11.6.3.2), of which nothing
//! is seen here. So a handshake whose REP was repeated to the end, as often as the REQ allows, has
//! failed; one whose REP is repeated no more is a connection, and becomes `quiet`. So does that of an XRC
//! target, which ends without a DREQ. Every state but `established` ends by itself:
//!
//! | states | end after | from |
//! | --- | --- | --- |
//! | `req_sent`, `req_rcvd`, `rep_sent`, `rep_rcvd` | CM response timeout × (max CM retries + 1), within [`Config::handshake_min`] and [`Config::handshake_max`]; counted from the last message | REQ: the longer of remote and local CM response timeout (IBA 12.6.5) |
//! | the same, after an MRA | the above + service timeout, at most [`Config::handshake_max`] | MRA (IBA 12.6.6) |
//! | `quiet` | [`Config::silence`] after the last message, or earlier when its VF is at its limit of ids: the one silent for the longest time makes place | no message tells of its end |
//! | `dreq_sent`, `dreq_rcvd`, `rejected`, `closed` | [`Config::quarantine`] after the last message, at most [`Config::quarantine_max`] in all | DREQ and REJ carry no time; Linux repeats a DREQ every 4.3 s |
//! | `sidr_sent`, `sidr_rcvd` | [`Config::sidr`] after the last request | SIDR_REQ carries no time |
//!
//! # Wire ids
//!
//! A wire id is a slot's number and the count of its uses, enciphered under a key that follows from
//! the machine's seed (Speck32/64). It is unpredictable, leads to its slot without a lookup, is never
//! 0 or 0xffffffff, and returns only after its slot was used 256 times. A VF that uses its id again,
//! during the quarantine too, gets a new wire id; the old one serves the old peer on.
//!
//! # Cost
//!
//! A message that passes touches one bucket of an index (out only) and half a cache line of its
//! slot. A slot has 76 bytes; an index entry 10 to 12, of which an id has one and a peer's request
//! that waits for its handshake's end another; the timers' wheel has 130 KB once. A VF's ids and a VF's unanswered requests are limited
//! ([`Config`]), and the indexes hash under a secret key.
//!
//! # What is not here
//!
//! Transaction ids, P_Key indices, address vectors, rate limits and queues (mad-mux and pf-context);
//! the checks of lengths and versions that stand before any class; saved state. Redirections (REJ 24
//! and 25) pass as they are.
#![forbid(unsafe_code)]

mod ahead;
mod answer;
mod config;
mod egress;
mod ids;
mod ingress;
mod inspect;
mod lists;
mod machine;
mod party;
mod sidr;
mod state;
mod statistics;
mod store;
mod table;
mod wheel;

pub use config::Config;
pub use inspect::Connection;
pub use machine::{CmParavirt, Transmit};
pub use party::{
    Egress, GidOwner, IdentityCheck, Ingress, Named, PeerAddress, ResetPolicy, VfIdentity,
};
pub use sidr::{NoSidrEntry, SidrEntry, SidrTable, SidrTaken, SidrTarget};
pub use state::State;
pub use statistics::{Statistics, VfStatistics};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
