//! Listening sockets in the file system: one server each, open to those who may connect.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use thiserror::Error;

use super::access::Access;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// Bytes of a socket's path at most: `sun_path` of unix(7) without the zero at its end.
const MAX_PATH: usize = 107;

/// Why a socket cannot be had.
#[derive(Debug, Error)]
pub enum ClaimError {
    /// Another server listens there.
    #[error("{}: a server is already running there; stop it, or choose another path", .0.display())]
    Taken(PathBuf),
    /// Something else than a socket is there.
    #[error("{}: there is a file that is no socket; choose another path", .0.display())]
    NoSocket(PathBuf),
    /// The folder for sockets cannot be made, and is not there.
    #[error("{}: cannot create a folder for sockets; choose another path", path.display())]
    Folder {
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The system has no eventfd for the memory of VMMs.
    #[error("cannot have an eventfd for the memory of VMMs")]
    Event(#[source] io::Error),
    /// The socket cannot be given to those who may connect.
    #[error(
        "{}: cannot give the socket the owner, group or mode that it is to have; an owner takes CAP_CHOWN or a socket \
         from systemd, a group takes membership in it",
        path.display()
    )]
    Access {
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The service manager passed a socket that cannot be used.
    #[error("the socket {name} that the service manager passed {why}")]
    Passed {
        /// What it is called.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The system refuses.
    #[error("{}: cannot listen there; {}", path.display(), remedy(path, source))]
    Refused {
        /// Where.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
}

/// Returns what to do about a path where the system does not let the service listen.
fn remedy(path: &Path, source: &io::Error) -> String {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    match source.kind() {
        io::ErrorKind::NotFound => format!(
            "create its folder with mkdir -p {}, or choose another path",
            folder.display()
        ),
        io::ErrorKind::InvalidFilename => {
            format!("choose a path of at most {MAX_PATH} bytes, as sockets have it")
        }
        io::ErrorKind::PermissionDenied => match std::fs::metadata(folder) {
            Ok(found) => format!(
                "{} belongs to user {} and has mode {:04o}: choose a path in a folder of your own",
                folder.display(),
                found.uid(),
                found.mode() & 0o7777
            ),
            Err(_) => "choose a path in a folder of your own".to_owned(),
        },
        _ => "choose another path".to_owned(),
    }
}

/// The right to a path, for as long as this lives. The kernel ends it with the process, however that
/// dies. The socket is removed at the end; the lock file beside it stays.
#[derive(Debug)]
pub(super) struct Claim {
    path: PathBuf,
    _lock: File,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Nobody is left to be told; the next server copes with a socket that stayed.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Listens on a socket at `path` in place of one that a dead server left. The listener does not block.
///
/// # Errors
/// [`ClaimError`].
pub(super) fn claim_socket(
    path: &Path,
    kind: SocketType,
    access: &Access,
) -> Result<(OwnedFd, Claim), ClaimError> {
    let refused = |source: io::Error| ClaimError::Refused {
        path: path.to_owned(),
        source,
    };
    let lock = lock(path)?;
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(refused(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ClaimError::NoSocket(path.to_owned()));
        }
        // The server may be of another program, which knows nothing of the lock.
        Ok(_) if is_served(path) => {
            return Err(ClaimError::Taken(path.to_owned()));
        }
        Ok(_) => std::fs::remove_file(path).map_err(refused)?,
    }
    let listener = listen_privately(path, kind).map_err(|error| refused(error.into()))?;
    let claim = Claim {
        path: path.to_owned(),
        _lock: lock,
    };
    access.apply(path).map_err(|error| ClaimError::Access {
        path: path.to_owned(),
        source: error.into(),
    })?;
    Ok((listener, claim))
}

fn lock(path: &Path) -> Result<File, ClaimError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let refused = |source: io::Error| ClaimError::Refused {
        path: path.to_owned(),
        source,
    };
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600);
    // In a folder of others the name may lead elsewhere.
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    let lock = options.open(name).map_err(refused)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(Errno::WOULDBLOCK) => Err(ClaimError::Taken(path.to_owned())),
        Err(error) => Err(refused(error.into())),
    }
}

/// Whether somebody listens at a path; one whose socket is of another type does, too.
fn is_served(path: &Path) -> bool {
    match UnixStream::connect(path) {
        Ok(_) => true,
        Err(error) => error.raw_os_error() == Some(Errno::PROTOTYPE.raw_os_error()),
    }
}

/// The mode is set before the socket has a name, so that it is never open to others.
fn listen_privately(path: &Path, kind: SocketType) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn claim(path: &Path) -> Result<(UnixListener, Claim), ClaimError> {
        let (listener, claim) = claim_socket(path, SocketType::STREAM, &Access::default())?;
        Ok((listener.into(), claim))
    }

    #[test]
    fn a_claimed_socket_is_its_owners_alone_and_goes_with_the_claim() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let (listener, claim) = claim(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        assert!(listener.accept().is_ok());
        drop(claim);
        assert!(!path.exists());
    }

    #[test]
    fn a_path_is_claimed_once_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let claimed = claim(&path).unwrap();
        assert!(matches!(claim(&path), Err(ClaimError::Taken(_))));
        drop(claimed);
        assert!(claim(&path).is_ok());
    }

    #[test]
    fn another_programs_live_socket_is_left_alone_and_a_dead_one_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let other = UnixListener::bind(&path).unwrap();
        assert!(matches!(claim(&path), Err(ClaimError::Taken(_))));
        drop(other);
        assert!(path.exists(), "as after kill -9");
        assert!(claim(&path).is_ok());
    }

    #[test]
    fn a_socket_of_packets_is_claimed_like_one_of_streams() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("umad.sock");
        let access = Access::default();
        let claimed = claim_socket(&path, SocketType::SEQPACKET, &access).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        std::fs::remove_file(directory.path().join("umad.sock.lock")).unwrap();
        assert!(
            matches!(claim(&path), Err(ClaimError::Taken(_))),
            "even to who sees no lock"
        );
        drop(claimed);
        assert!(!path.exists());
    }

    #[test]
    fn a_lock_that_leads_elsewhere_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (directory.path().join("s"), directory.path().join("new"));
        std::os::unix::fs::symlink(&elsewhere, directory.path().join("s.lock")).unwrap();
        assert!(matches!(claim(&path), Err(ClaimError::Refused { .. })));
        assert!(!elsewhere.exists() && !path.exists());
    }

    #[test]
    fn a_file_is_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        assert!(matches!(claim(&path), Err(ClaimError::NoSocket(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
        let nowhere = directory.path().join("no/such/directory");
        let remedy = format!(
            "create its folder with mkdir -p {}, or choose another path",
            nowhere.parent().unwrap().display()
        );
        let error = claim(&nowhere).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{}: cannot listen there; {remedy}", nowhere.display())
        );
        let long = directory.path().join("x".repeat(108));
        let error = claim(&long).unwrap_err().to_string();
        assert!(
            error.contains("choose a path of at most 107 bytes"),
            "{error}"
        );
    }
}
