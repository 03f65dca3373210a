//! The PF side of the tunnels.
//!
//! [`PortMux`] is one port's QP0 and QP1 as its VFs share them. It sequences the three machines that
//! know nothing of each other (mad-mux, cm-paravirt, mcast-agg), and decides itself what is about the
//! VF rather than about a class: its P_Keys, its GID, its address vectors, its rate. It owns no QP:
//! frames go in by method call, [`PortMux::poll_output`] gives what comes of them.
//!
//! # Life of a MAD
//!
//! | | from a VF ([`PortMux::from_vf`]) | from the wire ([`PortMux::from_wire`]) |
//! | --- | --- | --- |
//! | 1 | the VF is the tunnel's, whatever the bytes say | length, versions, class and QP |
//! | 2 | length, versions, class × QP × rights | answers by wire TID, and only from who was asked |
//! | 3 | P_Key index in bounds, then virtual to physical | requests by destination GID |
//! | 4 | source GID is the VF's own | CM messages by GID or communication id |
//! | 5 | port, SL, Q_Key, remote QP, path bits | answers to the port's own SA requests to mcast-agg |
//! | 6 | the VF's rate: on, into its queue, or dropped | VF active, class allowed |
//! | 7 | SA, CM and multicast machines, path cache | P_Key, full match preferred, to virtual index |
//! | 8 | wire TID for what begins a transaction | the VF's own TID or communication id |
//!
//! The rate comes before the machines, so that a frame beyond it leaves no state anywhere; a frame
//! that waits is looked at anew when its turn comes. VFs that wait for the port
//! ([`WireLimit`], [`PortMux::set_wire_room`]) take turns by their weights ([`EgressLimit`]):
//! start-time fair queueing, by which VFs that always have frames get shares in proportion
//! to within one frame of each, and who comes seldom is next.
//!
//! # Verdicts
//!
//! Every frame ends in one way: one [`Output::ToWire`] or [`Output::ToVf`] that carries it or its
//! answer, one [`Output::Dropped`], or nothing at all when mcast-agg took it and will answer later
//! (or, for an answer of the SA and a VF's answer to its copy of a report, has taken note). What else a frame causes has the same [`Cause`].
//!
//! The PF's own software is a tenant of the port like its VFs, once it is attached
//! ([`PortMux::attach_pf_software`]). Until then what is for it, reports of the SA excepted, ends as
//! [`DropReason::NoTarget`](vf_tunnel::DropReason::NoTarget).
//!
//! # Paths
//!
//! What the SA answered lately to a request for a path, it is not asked again: the answer is in the
//! VF's tunnel at once, as the SA gave it. The first request goes out as any other does, in the VF's
//! own transaction; the same one of another VF waits for its answer, and goes out by itself after half
//! a second. See [`mad_mux::path_cache`].
//!
//! # Siblings
//!
//! A VF that addresses the port's own LID means another VF, or itself. Such a MAD does not go to the
//! wire: it comes straight back as if it had, with the port's LID as its source. SA requests are the
//! exception when the SM is on this very port: they go out, to the SM. Performance management requests
//! are another: the adapter answers them.
//!
//! # Ports of one adapter
//!
//! The muxes of a [`PfContext`] share one map of communication ids and one table of addresses for SIDR: a
//! connection can use any of the adapter's ports and migrate between them, and a VF may claim its GIDs on
//! all of them. Limits of communication ids count for all ports together.
//!
//! # What counts as the SA
//!
//! SA requests to the SM's LID. Those to any other LID are ordinary transactions, since nobody there
//! answers for the subnet. But if the SM's port has several LIDs, PortInfo tells only one of them and no
//! LMC, and a VF may also still use the one before. So joins, leaves and subscriptions are aggregated
//! whatever LID they are sent to, and a VF that asks elsewhere changes no GUIDs, no service of a sibling
//! and uses no SM_Key there either.
//!
//! # Services
//!
//! A VF registers a bounded number of services ([`ServiceLimits`]), and those that it leaves behind when it is reset
//! are deleted at the SA: see `services.rs`.
#![forbid(unsafe_code)]

mod alias_groups;
mod asked_under;
mod cm;
mod config;
pub mod context;
mod delivery;
mod egress;
mod events;
mod fair_queue;
pub mod guids;
mod host;
mod ingress;
pub mod inspect;
mod join_routes;
mod limiter;
mod look_ahead;
mod mux;
mod output;
mod paths;
mod pf_software;
mod pkeys;
mod port_reason;
mod redirects;
mod sa;
mod services;
mod statistics;
mod vf;

pub use config::{
    AdaptAnswer, AddVfError, EgressLimit, Limits, Policy, PortConfig, Strictness, VfConfig,
    VfPKeyEntry, WireLimit,
};
pub use context::PfContext;
pub use delivery::{DeliveryClass, DeliveryDepth, DeliveryQueue};
pub use host::{PfHost, PlaceError, VfTurn};
pub use look_ahead::Upcoming;
pub use mux::PortMux;
pub use output::{
    Cause, Output, Passed, PortEvent, Route, Sizes, StateBytes, VfDelivery, VfEvent, WireSend,
    WireSource,
};
pub use port_reason::{GuidObstacle, PortReason};
pub use services::ServiceLimits;
pub use statistics::{ClassStatistics, CountedClass, MadStatistics, Use, VfAges, VfUsage};
