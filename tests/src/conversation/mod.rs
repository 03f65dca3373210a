//! Channels for the conversations of [`vhca_exercises::conversations`]: an in-memory one that loses, delays,
//! reorders and duplicates ([`LossyChannel`]), and an emulated fabric ([`FabricChannel`]).

mod fabric;
mod lossy;

pub use fabric::FabricChannel;
pub use lossy::{LossyChannel, Weather};
pub use vhca_exercises::conversations::{Driver, Ending, Kind, NodeAddress, Plan, Totals};
