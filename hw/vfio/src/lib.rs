//! A ConnectX-3 virtual function in the hands of a program: the [`Bus`](mlx4_driver::Bus) and the
//! [`DmaMemory`](mlx4_driver::DmaMemory) of [`mlx4_driver`] by VFIO.
//!
//! [`Function::find`] looks a function up in sysfs, and [`open`] takes it. The kernel takes it back when the process ends: it
//! unmaps the memory and resets the function.

mod bus;
mod error;
mod function;
mod map;
mod memory;
mod open;

pub use bus::VfioBus;
pub use error::VfioError;
pub use function::Function;
pub use memory::VfioMemory;
pub use open::{SYSFS, open};
