//! Doorbells whose eventfds a VMM signals without end.

use std::path::Path;

use super::attacks::note;
use super::victims::Trouble;
use crate::mlx4_driver::served::{Remote, Site};
use crate::mlx4_driver::{Driver, Talker, TalkerSpec};

/// Queue pairs of the guest, which are looked at for each signal.
const QUEUES: usize = 64;

/// Makes queues of a guest that have nothing to send, and signals their doorbells without end.
pub(super) fn signals(socket: &Path) -> Result<(), Trouble> {
    let (mut bus, memory) = Remote(socket.to_owned()).attach()?;
    let mut driver = Driver::probe(&mut bus, memory)?;
    let spec = TalkerSpec {
        sends: 16,
        receives: 16,
        ..TalkerSpec::default()
    };
    let _talkers: Vec<Talker> = (0..QUEUES)
        .map(|_| Talker::open(&mut driver, &mut bus, &spec))
        .collect::<Result<_, _>>()?;
    loop {
        let signalled = bus.signal_doorbells();
        // The service has none for it until it was asked.
        if signalled == 0 {
            std::thread::yield_now();
        }
        for _ in 0..signalled {
            note();
        }
    }
}
