//! Signals as a way in.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use super::way_in::{Turn, WayIn};
use vhca::watch::{EventSet, Ready};

/// Exit status of a process that a second signal ended: as a shell tells it of one that SIGTERM killed.
const IMPATIENT: i32 = 128 + SIGTERM;

/// Ends the service on SIGTERM and SIGINT; the second one ends the process at once.
#[derive(Debug)]
pub struct Signals {
    pipe: UnixStream,
}

impl Signals {
    /// Takes the signals of the process from now on.
    ///
    /// # Errors
    /// What the system says.
    pub fn new() -> io::Result<Self> {
        let (pipe, write) = UnixStream::pair()?;
        pipe.set_nonblocking(true)?;
        let seen = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            flag::register_conditional_shutdown(signal, IMPATIENT, Arc::clone(&seen))?;
            flag::register(signal, Arc::clone(&seen))?;
            low_level::pipe::register(signal, write.try_clone()?)?;
        }
        Ok(Self { pipe })
    }
}

impl WayIn for Signals {
    fn start(&mut self, turn: &mut Turn<'_>) {
        turn.watches.add(&self.pipe, EventSet::IN);
    }

    fn handle_ready(&mut self, turn: &mut Turn<'_>, _ready: Ready) {
        let mut bytes = [0; 16];
        if matches!(self.pipe.read(&mut bytes), Ok(1..)) {
            turn.stop();
        }
    }

    fn flush(&mut self, _turn: &mut Turn<'_>) {}
}
