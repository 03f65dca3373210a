//! What the driver asks of the device when it starts, and how often: the outputs of the queries.

mod adapter;
mod dev_cap;
mod func_cap;
mod hca;
mod port;

pub use adapter::{QueryAdapter, QueryFirmware, QueryInterfaceCounters, RESET_COUNTER};
pub use dev_cap::{MemoryFlags, QueryDevCap, dev_cap_flags};
pub use func_cap::{FuncCapRequest, QueryFuncCap, QueryFuncCapPort};
pub use hca::QueryHca;
pub use port::QueryPort;
