//! The alias GUIDs of a port's VFs: asked of the SA, taken back, seen in hardware.
//!
//! VF `n` has entry `n` of the port's GUID table: entry `n % 8` of block `n / 8`. Entry 0 is the port's
//! own GUID, and nothing here ever names it. [`GuidManager`] is told what is wanted for each VF, asks
//! the SA for it by GUIDInfoRecord (IBA 15.2.5.18), and says when a VF has a GUID: when the SA
//! has granted it *and* the hardware's table shows it.
//!
//! ```text
//!               SA grants                 hardware shows it
//!   wanted ───────────────▶ granted ──────────────────────▶ the VF's GUID
//!     ▲ │ SA declines          │  hardware loses it, SM or port comes back
//!     └─┘ 1, 2, 4 .. 60 s      └──────────▶ asked for again
//! ```
//!
//! # Driving it
//!
//! After every call that takes a time, pull [`GuidManager::poll_output`] until `None`:
//!
//! | output | what the owner does |
//! | --- | --- |
//! | [`GuidOutput::Request`] | sends it ([`SaClient::query_with`] and [`GuidManager::REQUEST_POLICY`]), and hands the result in by [`GuidManager::answered`] |
//! | [`GuidOutput::Guid`] | gives the VF that GUID or none ([`PortMux::set_guid`]) |
//! | [`GuidOutput::State`] | takes note: the VF's [`PortReason`](crate::PortReason) may be another |
//! | [`GuidOutput::LeaveGroups`] | has the alias leave its multicast groups ([`PortMux::leave_groups`]), then calls [`GuidManager::groups_left`] |
//! | [`GuidOutput::CheckPort`] | reads the port and says by [`GuidManager::port_active`] how it is |
//!
//! Requests are made when they are pulled, so what was wanted since the last pull goes in one request
//! per block, and nothing is asked that is out of date. One request is under way per block, and
//! [`GuidManager::MAX_IN_FLIGHT`] per port.
//!
//! # What cannot be had
//!
//! An SA that cannot give out additional GUIDs (its ClassPortInfo says so) is not asked until the SM
//! changes. A GUID that another VF of the port has or wants is refused at once; one that somebody else
//! has is declined by the SA, and the VF keeps what it had until the SA grants what is wanted.
//!
//! # Time
//!
//! | what | time | source |
//! | --- | --- | --- |
//! | the SA declines an entry | that entry: 1, 2, 4 .. 60 s | Linux mlx4 `alias_GUID.c` |
//! | a request fails, or the answer is about another block | its entries: 1 s and up to 250 ms | mlx4: 1 s; the jitter keeps hosts apart |
//! | the port is not active and something is to be asked | a look at the port each 5 s | mlx4 |
//! | the hardware lost a GUID that the SA had granted | asked again after the time of a failure | - |
//!
//! A new wish, re-registration, another SM and a port that comes up end all waiting, and the last
//! three ask again for everything that is wanted, in one request per block.
//!
//! [`SaClient::query_with`]: ib_endpoint::SaClient::query_with
//! [`PortMux::set_guid`]: crate::PortMux::set_guid
//! [`PortMux::leave_groups`]: crate::PortMux::leave_groups

mod answer;
mod api;
mod asking;
mod entry;
mod manager;
mod request;

pub use api::{
    GuidConfig, GuidOutput, GuidSizes, GuidState, GuidToken, GuidView, GuidWish, WishRefusal,
};
pub use manager::GuidManager;
