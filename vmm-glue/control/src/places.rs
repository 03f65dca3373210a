//! Sockets at which a service may answer, and clients that wait for one that starts.

use core::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use thiserror::Error;

/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(20);

/// Time after which a client says that it waits.
const SILENCE: Duration = Duration::from_millis(500);

/// Sockets at which a service may answer, in the order in which they are tried, and how long they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Paths of the sockets.
    pub paths: Vec<PathBuf>,
    /// Time that a service has to start; zero for a single attempt.
    pub wait: Duration,
}

/// Why no service can be had at any place.
#[derive(Debug, Error)]
pub enum PlaceError {
    /// No service listens.
    #[error(
        "no service answers at {places}; start `vhca serve`, or name its control socket with --control"
    )]
    Absent {
        /// The places.
        places: Places,
        /// Reason at the last one.
        source: io::Error,
    },
    /// The socket is another user's.
    #[error(
        "{} is not yours to use; run this as the user who runs `vhca serve`, or have that start with \
         --access SOCKET=:GROUP",
        path.display()
    )]
    Forbidden {
        /// The socket.
        path: PathBuf,
        /// Reason of the system.
        source: io::Error,
    },
}

impl fmt::Display for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, path) in self.paths.iter().enumerate() {
            let or = if place == 0 { "" } else { " or " };
            write!(f, "{or}{}", path.display())?;
        }
        Ok(())
    }
}

impl Places {
    /// Returns a single place at which a service must answer at once.
    #[must_use]
    pub fn one(path: &Path) -> Self {
        Self {
            paths: vec![path.to_owned()],
            wait: Duration::ZERO,
        }
    }

    /// Connects to the first place that answers. Returns the connection and its path. Attempts are repeated while no
    /// service listens anywhere, until [`Self::wait`] is over; if that takes long, `say` gets a line for the user.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub fn connect<T>(
        &self,
        say: &mut dyn FnMut(&str),
        mut attempt: impl FnMut(&Path) -> io::Result<T>,
    ) -> Result<(T, &Path), PlaceError> {
        let begun = Instant::now();
        let mut is_said = false;
        loop {
            let mut failure = None;
            let mut may_start = false;
            for path in &self.paths {
                match attempt(path) {
                    Ok(connection) => return Ok((connection, path)),
                    // A service that starts at another place comes first.
                    Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                        let path = path.clone();
                        failure = Some(PlaceError::Forbidden { path, source });
                    }
                    Err(source) => {
                        may_start |= may_come(&source);
                        let places = self.clone();
                        failure = failure.or(Some(PlaceError::Absent { places, source }));
                    }
                }
            }
            let waited = begun.elapsed();
            if let Some(failure) = failure
                && (!may_start || waited >= self.wait)
            {
                return Err(failure);
            }
            if waited >= SILENCE && !core::mem::replace(&mut is_said, true) {
                say(&format!("waiting for a service at {self}"));
            }
            sleep(PAUSE);
        }
    }
}

/// Returns `true` if a service that starts mends this: it has yet to create its socket, or to replace a dead one's.
fn may_come(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    matches!(error.kind(), NotFound | ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn connect(places: &Places) -> Result<PathBuf, PlaceError> {
        let connected = places.connect(&mut |_| {}, |path| UnixStream::connect(path));
        connected.map(|(_, path)| path.to_owned())
    }

    #[test]
    fn the_first_place_that_answers_is_taken_and_all_are_named_if_none_does() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["own", "packaged"].map(|name| folder.path().join(name));
        let mut places = Places {
            paths: paths.to_vec(),
            wait: Duration::ZERO,
        };
        let error = connect(&places).unwrap_err().to_string();
        let (own, packaged) = (paths[0].display(), paths[1].display());
        assert_eq!(
            error,
            format!(
                "no service answers at {own} or {packaged}; start `vhca serve`, or name its control socket with \
                 --control"
            )
        );
        let _packaged = UnixListener::bind(&paths[1]).unwrap();
        assert_eq!(connect(&places).unwrap(), paths[1]);
        let own = UnixListener::bind(&paths[0]).unwrap();
        assert_eq!(connect(&places).unwrap(), paths[0]);
        drop(own);
        places.paths.pop();
        assert!(matches!(connect(&places), Err(PlaceError::Absent { .. })));
    }

    #[test]
    fn a_service_that_starts_is_waited_for_and_the_user_is_told() {
        let places = Places {
            wait: Duration::from_secs(60),
            ..Places::one(Path::new("/socket"))
        };
        let begun = Instant::now();
        let mut lines = Vec::new();
        let connected = places.connect(&mut |line| lines.push(line.to_owned()), |_| {
            match begun.elapsed() {
                waited if waited < SILENCE * 2 => Err(io::ErrorKind::ConnectionRefused.into()),
                _ => Ok(()),
            }
        });
        connected.unwrap();
        assert_eq!(lines, ["waiting for a service at /socket"]);
    }

    #[test]
    fn what_no_service_mends_is_not_waited_for() {
        let places = Places {
            wait: Duration::from_secs(3600),
            ..Places::one(Path::new("/socket"))
        };
        for kind in [
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::NotADirectory,
        ] {
            let refused = places.connect(&mut |_| {}, |_| io::Result::<()>::Err(kind.into()));
            refused.unwrap_err();
        }
    }
}
