//! Services that do not answer, and the states of their processes.

use core::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Time after which a client says that the service is silent: twice what the service waits for an SA.
pub(crate) const SILENCE: Duration = Duration::from_secs(4);

/// Silences that a client waits for a service whose process is not stopped.
pub(crate) const PATIENCE: u32 = 8;

/// A service that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent {
    /// Its process, if that can be seen from here.
    pub process: Option<i32>,
    /// The state of the process in the letter of proc(5).
    pub state: Option<char>,
    /// Time for which it has been silent.
    pub time: Duration,
}

impl Silent {
    /// Returns the silence of the service at the other end of a connection.
    pub(crate) fn of(stream: &UnixStream, time: Duration) -> Self {
        let peer = socket_peercred(stream).ok();
        let process = peer.map(|peer| peer.pid.as_raw_nonzero().get());
        Self {
            process,
            state: process.and_then(state),
            time,
        }
    }

    /// Returns `true` if the process does nothing until another process continues it.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        matches!(self.state, Some('T' | 't'))
    }
}

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the service")?;
        if let Some(process) = self.process {
            write!(f, " (process {process})")?;
        }
        write!(f, " has not answered for {} s", self.time.as_secs())?;
        match (self.state, self.process) {
            (Some('T' | 't'), Some(process)) => {
                write!(f, "; it is stopped (T): kill -CONT {process}")
            }
            (Some('Z' | 'X'), _) => f.write_str("; it has ended (Z)"),
            (Some('R'), _) => f.write_str("; it is busy (R)"),
            (Some(state), _) => write!(f, "; it waits for something ({state})"),
            (None, _) => Ok(()),
        }
    }
}

/// Returns the state of a process, the third field of proc(5)'s `stat`; `None` if there is no such process.
fn state(process: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name before it is in parentheses, and may itself have some.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.trim_start().chars().next()
}

/// Connects to a socket, for [`SILENCE`] at most: where the service is stopped, its queue of connections may be full.
pub(crate) fn connect_within(path: &Path) -> io::Result<UnixStream> {
    let socket: OwnedFd = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    set_socket_timeout(&socket, Timeout::Send, Some(SILENCE))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(UnixStream::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_process_is_said_with_the_command_that_continues_it() {
        let silent = |state| Silent {
            process: Some(4711),
            state: Some(state),
            time: SILENCE,
        };
        assert_eq!(
            silent('T').to_string(),
            "the service (process 4711) has not answered for 4 s; it is stopped (T): kill -CONT 4711"
        );
        assert!(silent('T').is_stopped() && !silent('R').is_stopped());
        assert!(silent('R').to_string().ends_with("; it is busy (R)"));
        let unseen = Silent {
            process: None,
            state: None,
            time: SILENCE,
        };
        assert_eq!(unseen.to_string(), "the service has not answered for 4 s");
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(matches!(state(own), Some('R' | 'S')));
    }
}
