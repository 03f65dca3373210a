//! The line on standard error, one for each process, about a device that a program does not get.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::setting;

/// Reason for which a program has no device.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The service at this socket has none beside it for programs on libibverbs.
    NoVerbs(PathBuf),
    /// A socket of the service takes no connection.
    Socket(PathBuf, Errno),
    /// The service has none of the nodes that the environment names.
    NoNode(String),
    /// The process cannot open its own memory for the service.
    NoMemory(Errno),
    /// The program closed the descriptor of its connection to the service.
    Closed,
    /// The service does not answer, or ended the connection.
    Silent(PathBuf, Errno),
    /// The service refuses the process a VF for a reason, which is empty from an older service.
    Claim(Errno, String),
}

impl Refusal {
    /// Returns the error of the program's call.
    pub(crate) const fn errno(&self) -> Errno {
        match self {
            Self::NoVerbs(_) => Errno::NOENT,
            Self::NoNode(_) => Errno::NODEV,
            Self::NoMemory(_) => Errno::ACCESS,
            Self::Closed => Errno::IO,
            Self::Socket(_, error) | Self::Silent(_, error) | Self::Claim(error, _) => *error,
        }
    }

    /// Writes the line, unless the process has written one or `VHCA_QUIET` ends it.
    pub(crate) fn say(&self) {
        // A forked child is a process of its own.
        static SAID: AtomicU32 = AtomicU32::new(0);
        let pid = std::process::id();
        if setting::is_quiet() || SAID.swap(pid, Ordering::Relaxed) == pid {
            return;
        }
        write_line(&format!("vhca: no RDMA device: {self}\n"));
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVerbs(path) => {
                write!(f, "the service at {} runs without --verbs", path.display())
            }
            Self::Socket(path, error) => {
                let path = path.display();
                match *error {
                    Errno::ACCESS | Errno::PERM => {
                        let uid = rustix::process::geteuid().as_raw();
                        write!(f, "{path}: permission denied (uid {uid}; see --access)")
                    }
                    Errno::NOENT | Errno::NOTDIR => {
                        write!(f, "no vhca service answers at {path}, which does not exist")
                    }
                    Errno::CONNREFUSED => write!(f, "no vhca service answers at {path}"),
                    error => write!(f, "{path}: {error}"),
                }
            }
            Self::NoNode(name) if name.is_empty() => {
                f.write_str("the service has no management host; name a node with --node")
            }
            Self::NoNode(name) => {
                write!(
                    f,
                    "the service has no {name:?}; vhca show fabric lists its nodes"
                )
            }
            Self::NoMemory(error) => write!(f, "cannot open /proc/self/mem: {error}"),
            Self::Closed => {
                f.write_str("the program closed the descriptor of its connection to the service")
            }
            Self::Silent(path, error) => {
                write!(
                    f,
                    "the service at {} does not answer: {error}; see its log",
                    path.display()
                )
            }
            Self::Claim(error, why) if why.is_empty() => {
                write!(f, "the service refuses a VF: {error}")
            }
            Self::Claim(_, why) => f.write_str(why),
        }
    }
}

/// Writes to standard error by the system's own call, if that neither waits nor ends the program: a pipe may be full or
/// have no reader.
fn write_line(line: &str) {
    // SAFETY: whatever the program has as its standard error is borrowed for these calls only.
    let stderr = unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
    let mut room = [PollFd::from_borrowed_fd(stderr, PollFlags::OUT)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let has_room = rustix::event::poll(&mut room, Some(&now)).is_ok()
        && room[0].revents().contains(PollFlags::OUT)
        && !room[0]
            .revents()
            .intersects(PollFlags::ERR | PollFlags::HUP);
    if has_room {
        // An error here has no other place to be reported.
        let _ = rustix::io::write(stderr, line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_takes_no_connection_is_named_with_the_reason() {
        let said =
            |error| Refusal::Socket(PathBuf::from("/run/vhca/umad.verbs"), error).to_string();
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(
            said(Errno::ACCESS),
            format!("/run/vhca/umad.verbs: permission denied (uid {uid}; see --access)")
        );
        let silent = "no vhca service answers at /run/vhca/umad.verbs";
        assert_eq!(
            said(Errno::NOENT),
            format!("{silent}, which does not exist")
        );
        assert_eq!(said(Errno::CONNREFUSED), silent);
    }

    #[test]
    fn the_text_of_the_service_stands_for_the_error() {
        let refused = Refusal::Claim(Errno::BUSY, "H1-1/1 is taken by process 7".to_owned());
        assert_eq!(refused.to_string(), "H1-1/1 is taken by process 7");
        assert_eq!(refused.errno(), Errno::BUSY);
        let older = Refusal::Claim(Errno::BUSY, String::new()).to_string();
        assert!(older.starts_with("the service refuses a VF: "), "{older}");
    }
}
