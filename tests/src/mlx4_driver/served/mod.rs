//! Guests of a running service, each with a thread, a VMM and shared memory of its own: well-behaved ones that talk
//! in a [`Circle`], and hostile ones ([`Assault`]).

mod assault;
mod circle;

use std::error::Error;
use std::path::Path;

pub use assault::{Assault, Assaulted};
pub use circle::{Circle, Talk};

use super::{GuestMemory, VmmBus};

/// Pages of a guest's memory.
const PAGES: usize = 2048;

/// Why a guest cannot go on.
type Trouble = Box<dyn Error + Send + Sync>;

/// A VMM on a VF, and its guest's memory.
fn machine(socket: &Path) -> Result<(VmmBus, GuestMemory), Trouble> {
    let memory = GuestMemory::shared(PAGES)?;
    let bus = VmmBus::attach(socket, memory.clone())?;
    Ok((bus, memory))
}
