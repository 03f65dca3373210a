//! A VF of a running service as a device of a VMM's own process, over vfio-user.
//!
//! [`attach`] connects to the socket of a VF (`vhca serve --vfio-user DIR`, `DIR/HOST-vfN.sock`) and returns a
//! [`vhca_device::Device`]: a VMM calls it as it calls a device whose fabric is in its own process. The service carries them
//! out, and reaches the guest's memory by its file.
//!
//! | call | sends |
//! | --- | --- |
//! | reads, writes to configuration space, `reset` | a message, and waits for its reply |
//! | writes behind base address registers | a message without a reply: it waits only while the socket is full |
//! | `ring`, and stores of the guest to doorbells that the VMM registered with their eventfds | nothing: the service watches the eventfds |
//! | `bars`, `vectors`, `statistics` | nothing |
//! | `pause`, `resume` | nothing: the service cannot hold a VF, and `is_paused` stays `false` |
//!
//! All calls of one device share its socket, one after the other, in the order of PCI. A service that does not reply within
//! [`TIMEOUT`], closes the connection or replies with nonsense has failed: the device calls what `Device::on_failure` was given,
//! reads return ones, and writes do nothing. [`attach`] makes a new device, once the service is there again.
//!
//! Each device has a thread of its own, which signals its interrupts, asks for doorbells when the guest has others, and notices that
//! the service is gone. It ends when the device
//! is detached or dropped.

mod attach;
mod config;
mod device;
mod doorbells;
mod error;
mod link;
mod messages;
mod socket;
mod sync;
mod watcher;

#[cfg(test)]
mod tests;

pub use attach::attach;
pub use error::{AttachError, LinkError};
pub use link::TIMEOUT;
