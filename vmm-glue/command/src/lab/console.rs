//! A terminal on a guest's console.
//!
//! QEMU writes whatever the guest prints to a log beside the console's socket. The terminal shows that log, from a little
//! before its end, so no output between its two connections is missing; the socket takes the keys.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::SIGWINCH;
use thiserror::Error;

/// ^], which telnet and virsh use alike.
const LEAVE: u8 = 0x1d;

/// Line of a guest whose shell is about to read keys; see `tests/guest/init`.
const UP: &[u8] = b"vhca-guest: up";

/// Length of that line at most.
const LINE: usize = 256;

/// Lines of earlier output that are shown.
const RECENT: usize = 20;

/// Bytes of keys that are kept for a guest that boots; more are typed by no one.
const KEPT: usize = 64 * 1024;

/// How often the log is looked at when nothing says that there is more.
const IDLE: Duration = Duration::from_millis(200);

/// How long after bytes on the socket the log is looked at again: QEMU writes it after them.
const SOON: Duration = Duration::from_millis(2);

/// Time that a lab may take to start: its guests' consoles are there before these boot.
const START: Duration = Duration::from_secs(10);

/// Time after which a console says that it waits.
const SILENCE: Duration = Duration::from_millis(500);

/// Why a console cannot be used.
#[derive(Debug, Error)]
pub(crate) enum ConsoleError {
    /// There is none.
    #[error("no console at {}: vhca lab prints the consoles of its guests", .0.display())]
    None(PathBuf, #[source] io::Error),
    /// Another terminal has it.
    #[error("the console {} is in use by another vhca console: leave that one with ^] first", .0.display())]
    InUse(PathBuf),
    /// The terminal or the console fails.
    #[error("{0}")]
    System(&'static str, #[source] io::Error),
}

/// Makes the terminal a guest's console, until ^] is typed or the guest is gone. Without a terminal, stdin is typed
/// and what the guest prints goes to stdout.
///
/// # Errors
/// [`ConsoleError`].
pub(crate) fn console(path: &Path, say: fn(&str)) -> Result<(), ConsoleError> {
    let missing = |error| ConsoleError::None(path.to_owned(), error);
    let system = |what| move |error| ConsoleError::System(what, error);
    let file = awaited(say, || File::open(beside(path, ".log"))).map_err(missing)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Err(ConsoleError::InUse(path.to_owned())),
        locked => locked.map_err(|error| missing(error.into()))?,
    }
    let guest = awaited(say, || UnixStream::connect(path)).map_err(missing)?;
    let typed = guest.try_clone();
    let keys = Arc::new(Keys::new(
        typed.map_err(system("cannot share the console"))?,
    ));
    let resized = Arc::new(AtomicBool::new(true));
    signal_hook::flag::register(SIGWINCH, Arc::clone(&resized))
        .map_err(system("cannot take signals"))?;
    let mut log = Log::new(file).map_err(system("cannot read the console's log"))?;
    let raw = Raw::new()?;
    if raw.0.is_some() {
        let state = if log.is_up {
            "^] leaves it"
        } else {
            "the guest boots, and gets what you type then; ^] leaves it"
        };
        eprint!("console of {}: {state}\r\n", path.display());
    }
    // It waits for a key when all is over, and ends with the process.
    let read = Arc::clone(&keys);
    thread::spawn(move || read.read());
    let mut window = Window {
        path: beside(path, ".window"),
        stream: None,
    };
    log.print()?;
    follow(guest, |ended| {
        log.print()?;
        if log.is_up && !ended {
            keys.release().map_err(system("the console fails"))?;
            if resized.swap(false, Ordering::Relaxed) {
                window.tell();
            }
        }
        Ok(())
    })
}

/// Opens what a lab makes as it starts, and waits for it if it is not there yet.
fn awaited<T>(say: fn(&str), open: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let begun = Instant::now();
    let mut is_said = false;
    loop {
        let waited = begun.elapsed();
        match open() {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::ConnectionRefused
                ) && waited < START =>
            {
                if waited >= SILENCE && !core::mem::replace(&mut is_said, true) {
                    say("waiting for vhca lab to start in this folder");
                }
                thread::sleep(SOON * 10);
            }
            opened => return opened,
        }
    }
}

/// Calls `look` whenever the guest may have printed something, until the console ends.
fn follow(
    mut guest: UnixStream,
    mut look: impl FnMut(bool) -> Result<(), ConsoleError>,
) -> Result<(), ConsoleError> {
    let failed = |error| ConsoleError::System("the console fails", error);
    let mut bytes = [0; 4096];
    let mut wait = SOON;
    loop {
        guest.set_read_timeout(Some(wait)).map_err(failed)?;
        wait = match guest.read(&mut bytes) {
            Ok(0) => return look(true),
            Ok(_) => SOON,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return look(true),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                IDLE
            }
            Err(error) => return Err(failed(error)),
        };
        look(false)?;
    }
}

/// A file beside a console's socket.
fn beside(socket: &Path, suffix: &str) -> PathBuf {
    let mut path = OsString::from(socket);
    path.push(suffix);
    path.into()
}

/// Keys on their way to the guest.
struct Keys {
    guest: UnixStream,
    /// Keys typed before the guest's shell reads any, until then.
    kept: Mutex<Option<Vec<u8>>>,
}

impl Keys {
    const fn new(guest: UnixStream) -> Self {
        let kept = Mutex::new(Some(Vec::new()));
        Self { guest, kept }
    }

    /// Takes the keys. The end of stdin leaves the console on, for further output of the guest.
    fn read(&self) {
        let mut keys = [0; 256];
        loop {
            let Ok(length @ 1..) = io::stdin().lock().read(&mut keys) else {
                return;
            };
            let keys = &keys[..length];
            let leave = keys.iter().position(|key| *key == LEAVE);
            let sent = self.send(&keys[..leave.unwrap_or(length)]);
            if leave.is_some() || sent.is_err() {
                // Ends the other direction, too.
                let _ = self.guest.shutdown(Shutdown::Both);
                return;
            }
        }
    }

    fn send(&self, keys: &[u8]) -> io::Result<()> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *kept {
            Some(kept) => {
                let room = KEPT.saturating_sub(kept.len());
                kept.extend_from_slice(&keys[..room.min(keys.len())]);
                Ok(())
            }
            None => (&self.guest).write_all(keys),
        }
    }

    /// Sends the output that was kept, and keeps nothing further.
    fn release(&self) -> io::Result<()> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.take()
            .map_or(Ok(()), |keys| (&self.guest).write_all(&keys))
    }
}

/// What the guest printed.
struct Log {
    file: File,
    /// Bytes that are not printed yet.
    unprinted: Vec<u8>,
    /// The last bytes that were searched for [`UP`].
    tail: Vec<u8>,
    /// Whether the guest's shell is there.
    is_up: bool,
}

impl Log {
    /// Begins with the last lines that are there.
    fn new(mut file: File) -> io::Result<Self> {
        let mut unprinted = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.read_to_end(&mut unprinted)?;
        let mut log = Self {
            file,
            unprinted,
            tail: Vec::new(),
            is_up: false,
        };
        log.search(0);
        let bytes = log.unprinted.iter().enumerate().rev();
        let mut ends = bytes.filter(|(_, byte)| **byte == b'\n');
        if let Some((end, _)) = ends.nth(RECENT) {
            log.unprinted.drain(..=end);
        }
        Ok(log)
    }

    /// Prints new output.
    fn print(&mut self) -> Result<(), ConsoleError> {
        let before = self.unprinted.len();
        let read = self.file.read_to_end(&mut self.unprinted);
        read.map_err(|error| ConsoleError::System("cannot read the console's log", error))?;
        self.search(before);
        let mut out = io::stdout().lock();
        let printed = out.write_all(&self.unprinted).and_then(|()| out.flush());
        self.unprinted.clear();
        printed.map_err(|error| ConsoleError::System("cannot print", error))
    }

    /// Searches new bytes for the whole line of a guest that is up.
    fn search(&mut self, from: usize) {
        if self.is_up {
            return;
        }
        self.tail.extend_from_slice(&self.unprinted[from..]);
        let place = self.tail.windows(UP.len()).position(|bytes| bytes == UP);
        self.is_up = place.is_some_and(|place| self.tail[place..].contains(&b'\n'));
        let keep = self.tail.len().saturating_sub(LINE);
        self.tail.drain(..keep);
    }
}

/// The guest's idea of the terminal's size, which the guest takes from a serial port of its own.
struct Window {
    path: PathBuf,
    stream: Option<UnixStream>,
}

impl Window {
    /// Sends the size of the terminal to the guest, if there is one. Some guests have no port for it.
    fn tell(&mut self) {
        let Ok(size) = tcgetwinsize(io::stdin()) else {
            return;
        };
        // A terminal without a size, such as that of a script.
        if size.ws_row == 0 || size.ws_col == 0 {
            return;
        }
        if self.stream.is_none() {
            self.stream = UnixStream::connect(&self.path).ok();
        }
        if let Some(stream) = &mut self.stream {
            let _ = writeln!(stream, "{} {}", size.ws_row, size.ws_col);
        }
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
        let failed = |error: Errno| ConsoleError::System("cannot use the terminal", error.into());
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
