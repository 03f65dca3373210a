//! The other end of a trunk over queues, which writes anything into the shared memory, at any moment of a conversation.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use ib_trunk::{Hello, Session, SessionConfig};
use ib_vtime::{Duration, Instant};
use ib_wire::Guid;
use vhca_trunk::{Carrier, RingParts, Signals};

use super::hostile::Input;

/// Steps of one input at most.
const STEPS: usize = 400;

/// One end: what a service has of it.
struct End {
    carrier: Carrier,
    session: Session,
}

impl End {
    fn new(parts: RingParts, site: &str) -> Option<Self> {
        // A context of asynchronous I/O takes long to end.
        static SIGNALS: OnceLock<Signals> = OnceLock::new();
        let signals = match SIGNALS.get() {
            Some(signals) => signals,
            None => {
                let signals = Signals::new().ok()?;
                SIGNALS.get_or_init(|| signals)
            }
        };
        let hello = Hello {
            site: site.parse().ok()?,
            node_guid: Guid::NONE,
            port: 1,
        };
        let timeout = Duration::from_secs(1);
        Some(Self {
            carrier: Carrier::over_rings(parts, signals).ok()?,
            session: Session::new(Instant::ZERO, SessionConfig { hello, timeout }),
        })
    }

    /// Takes and sends what there is. Returns `false` once the trunk is over.
    fn turn(&mut self) -> bool {
        let is_up = self.carrier.receive(Instant::ZERO, &mut self.session)
            && self.carrier.transmit(&mut self.session);
        while self.session.poll_event().is_some() {}
        is_up && !self.session.is_closed()
    }
}

/// Both ends take turns while words of their rings, and of the buffers behind, change.
pub(super) fn trunk_rings(data: &[u8]) {
    let mut input = Input::new(data);
    let Ok((driver, device)) = RingParts::pair() else {
        return;
    };
    let (Ok(memory), places) = (driver.memory(), driver.places()) else {
        return;
    };
    let memory = File::from(memory);
    let (Some(mut near), Some(mut far)) = (End::new(driver, "near"), End::new(device, "far"))
    else {
        return;
    };
    for _ in 0..STEPS.min(data.len()) {
        match input.byte() % 8 {
            0 | 1 => {
                if !near.turn() {
                    return;
                }
            }
            2 | 3 => {
                if !far.turn() {
                    return;
                }
            }
            4 => near.session.report_port(input.byte() & 1 != 0),
            5 => far.session.report_port(input.byte() & 1 != 0),
            _ => {
                // Rings take less than 2 KiB; the first buffer is at 4 KiB.
                let queue = places.get(input.index(places.len())).copied().unwrap_or(0);
                let offset = u64::from(input.byte()) * 16 + u64::from(input.byte() % 16);
                let word = [input.byte(), input.byte()];
                let _ = memory.write_all_at(&word, queue + offset);
            }
        }
    }
}
