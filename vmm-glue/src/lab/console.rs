//! A terminal on a guest's console.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcsetattr};
use thiserror::Error;

/// ^], which telnet and virsh use alike.
const LEAVE: u8 = 0x1d;

/// Why a console cannot be used.
#[derive(Debug, Error)]
pub enum ConsoleError {
    /// There is none.
    #[error("no console at {}: vhca lab tells where its guests have theirs", .0.display())]
    None(PathBuf, #[source] io::Error),
    /// The terminal or the console fails.
    #[error("{0}")]
    System(&'static str, #[source] io::Error),
}

/// Lets the terminal be a guest's console, until ^] is typed or the guest is gone. Without a terminal, stdin is typed
/// and what the guest prints goes to stdout.
///
/// # Errors
/// [`ConsoleError`].
pub fn console(path: &Path) -> Result<(), ConsoleError> {
    let missing = |error| ConsoleError::None(path.to_owned(), error);
    let guest = UnixStream::connect(path).map_err(missing)?;
    let typed = guest
        .try_clone()
        .map_err(|error| ConsoleError::System("cannot share the console", error))?;
    let _raw = Raw::new()?;
    // It waits for a key when all is over, and ends with the process.
    thread::spawn(move || send_keys(&typed));
    print_guest(guest)
}

/// Sends what is typed. The end of stdin leaves the console on, for what the guest still prints.
fn send_keys(mut guest: &UnixStream) {
    let mut keys = [0; 256];
    loop {
        let Ok(length @ 1..) = io::stdin().lock().read(&mut keys) else {
            return;
        };
        let keys = &keys[..length];
        let leave = keys.iter().position(|key| *key == LEAVE);
        let sent = guest.write_all(&keys[..leave.unwrap_or(length)]);
        if leave.is_some() || sent.is_err() {
            // Ends the other direction, too.
            let _ = guest.shutdown(Shutdown::Both);
            return;
        }
    }
}

fn print_guest(mut guest: UnixStream) -> Result<(), ConsoleError> {
    let mut bytes = [0; 4096];
    loop {
        let length = guest
            .read(&mut bytes)
            .map_err(|error| ConsoleError::System("the console fails", error))?;
        if length == 0 {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        let printed = out.write_all(&bytes[..length]).and_then(|()| out.flush());
        printed.map_err(|error| ConsoleError::System("cannot print", error))?;
    }
}

/// The terminal in raw mode, if stdin is one. Dropping it restores the mode.
struct Raw(Option<Termios>);

impl Raw {
    fn new() -> Result<Self, ConsoleError> {
        let stdin = io::stdin();
        if !isatty(&stdin) {
            return Ok(Self(None));
        }
        let failed = |error: rustix::io::Errno| {
            ConsoleError::System("cannot use the terminal", error.into())
        };
        let before = tcgetattr(&stdin).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Now, &raw).map_err(failed)?;
        Ok(Self(Some(before)))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // A terminal that is gone needs no mode.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}
