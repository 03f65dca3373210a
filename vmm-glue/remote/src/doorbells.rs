//! Doorbells that the service watches eventfds for.
//!
//! `unsafe`: making an [`EventFd`] of a descriptor, for which vmm-sys-util has no other way.
#![expect(
    unsafe_code,
    reason = "an eventfd of vmm-sys-util is made of a raw descriptor"
)]

use std::collections::BTreeMap;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use vhca_device::{Bar, Doorbell, Doorbells, PlacedDoorbell, SignalledDoorbell};
use vhca_vfio_user_codec::IoEventFd;
use vmm_sys_util::eventfd::EventFd;

use crate::error::LinkError;
use crate::link::Link;
use crate::sync::lock;

/// The doorbells of a device, and the VMM that registers them.
pub(crate) struct Placing {
    doorbells: Arc<dyn Doorbells>,
    events: Mutex<Events>,
}

type Events = BTreeMap<Doorbell, Arc<EventFd>>;

impl Placing {
    pub(crate) fn new(doorbells: Arc<dyn Doorbells>) -> Self {
        Self {
            doorbells,
            events: Mutex::default(),
        }
    }

    /// Signals the eventfd of a doorbell. Returns `false` if it has none.
    pub(crate) fn ring(&self, doorbell: &Doorbell) -> bool {
        let events = lock(&self.events);
        let event = events.get(doorbell);
        // The counter of one that is full was signalled.
        event.map(|event| event.write(1)).is_some()
    }

    /// Passes on the doorbells that `ask` returns, and the addresses of the registers they are behind. No other call passes on some
    /// meanwhile, so the VMM has the newest last.
    pub(crate) fn place(&self, ask: impl FnOnce() -> Option<Found>) {
        let mut events = lock(&self.events);
        let Found {
            doorbells,
            addresses,
        } = ask().unwrap_or_default();
        let mut before = core::mem::take(&mut *events);
        let mut placed = Vec::new();
        for (doorbell, event) in doorbells {
            // The service has one eventfd for it as long as it is there.
            let event = before.remove(&doorbell).unwrap_or_else(|| event_of(event));
            if let Some(address) = addresses.get(&doorbell.bar)
                && let Some(address) = address.checked_add(doorbell.offset)
            {
                placed.push(SignalledDoorbell {
                    placed: PlacedDoorbell { address, doorbell },
                    event: Arc::clone(&event),
                });
            }
            events.insert(doorbell, event);
        }
        self.doorbells.set_signalled(&placed);
    }
}

/// Doorbells of a device as the service has them.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) doorbells: Vec<(Doorbell, OwnedFd)>,
    /// Addresses of base address registers, by their indices.
    pub(crate) addresses: BTreeMap<u8, u64>,
}

/// Asks for the doorbells behind base address registers.
pub(crate) fn ask(link: &mut Link, bars: &[Bar]) -> Result<Vec<(Doorbell, OwnedFd)>, LinkError> {
    let mut doorbells = Vec::new();
    for bar in bars {
        for (part, event) in link.io_fds(bar.index.into())? {
            doorbells.extend(doorbell(bar, &part).map(|doorbell| (doorbell, event)));
        }
    }
    Ok(doorbells)
}

/// Returns the doorbell that a service describes, unless it is none of the register.
fn doorbell(bar: &Bar, part: &IoEventFd) -> Option<Doorbell> {
    let offset = part.offset.get();
    let len = u8::try_from(part.size.get()).ok().filter(|len| *len <= 8)?;
    (offset.checked_add(len.into())? <= bar.size).then_some(Doorbell {
        bar: bar.index,
        offset,
        len,
    })
}

fn event_of(event: OwnedFd) -> Arc<EventFd> {
    // SAFETY: the descriptor has no other owner.
    Arc::new(unsafe { EventFd::from_raw_fd(event.into_raw_fd()) })
}
