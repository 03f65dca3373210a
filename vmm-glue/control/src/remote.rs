//! The control socket as a client sees it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level;
use thiserror::Error;

use crate::places::{PlaceError, Places};
use crate::protocol::{Envelope, Refusal, Reply, Request, VERSION};
use crate::silence::{PATIENCE, SILENCE, Silent, connect_within};

/// Time in which a server that is stopped has to end: some three times the time in which GUIDs and memberships are given back.
const END: Duration = Duration::from_secs(10);

/// How long its process may take after its last connection.
const EXIT: Duration = Duration::from_secs(1);

/// Why a request came to nothing.
#[derive(Debug, Error)]
pub enum RemoteError {
    /// No service can be had.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The server goes on although it was stopped.
    #[error("the server has not ended after {} s", END.as_secs())]
    Stays,
    /// The service does not answer.
    #[error("{0}")]
    Silent(Silent),
    /// The connection ended.
    #[error("the server went away before it answered")]
    Gone,
    /// The system refuses.
    #[error("cannot talk to the server")]
    Io(#[from] io::Error),
    /// The reply cannot be understood.
    #[error("the server's answer cannot be understood; is it of the same version?")]
    Reply(#[from] serde_json::Error),
    /// The server speaks an older version of the protocol, this one.
    #[error("the service is older than this vhca: restart it")]
    OldService(u32),
    /// The server refused.
    #[error("{}", .0.message)]
    Refused(Refusal),
}

/// The side that ended a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The server: it has sent everything, or it is gone.
    Server,
    /// A signal to this process.
    Signal,
}

/// A connection to a server.
#[derive(Debug)]
pub struct Remote {
    stream: BufReader<UnixStream>,
    say: fn(&str),
}

impl Remote {
    /// Connects at once.
    ///
    /// # Errors
    /// [`RemoteError::Place`].
    pub fn connect(path: &Path) -> Result<Self, RemoteError> {
        Self::connect_to(&Places::one(path), |_| {})
    }

    /// Connects to the first of several places that answers, as [`Places::connect`] does. `say` gets a line for the user where the
    /// service is awaited, or is silent.
    ///
    /// # Errors
    /// [`RemoteError::Place`]; [`RemoteError::Silent`] if the service takes no connection.
    pub fn connect_to(places: &Places, say: fn(&str)) -> Result<Self, RemoteError> {
        let stream = match places.connect(&mut { say }, connect_within) {
            Ok((stream, _)) => stream,
            Err(PlaceError::Absent { source, .. }) if is_timeout(&source) => {
                return Err(RemoteError::Silent(Silent {
                    process: None,
                    state: None,
                    time: SILENCE,
                }));
            }
            Err(other) => return Err(other.into()),
        };
        Ok(Self {
            stream: BufReader::new(stream),
            say,
        })
    }

    /// Asks, and waits for the reply, which is JSON. While the service is silent, its process is looked at every four seconds; that it is
    /// busy is said once.
    ///
    /// # Errors
    /// [`RemoteError`]; [`RemoteError::Silent`] if the process is stopped, or busy for half a minute. Guests may take their time.
    pub fn ask(&mut self, request: &Request) -> Result<String, RemoteError> {
        self.ask_in(VERSION, request)
    }

    fn ask_in(&mut self, version: u32, request: &Request) -> Result<String, RemoteError> {
        let envelope = Envelope {
            v: version,
            request: serde_json::value::to_raw_value(request)?,
        };
        let mut line = serde_json::to_vec(&envelope)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).map_err(ended)?;
        let mut reply = Vec::new();
        let is_patient = matches!(request, Request::Guest { .. });
        self.stream.get_ref().set_read_timeout(Some(SILENCE))?;
        let mut silences = 0;
        while let Err(error) = self.stream.read_until(b'\n', &mut reply) {
            if !is_timeout(&error) {
                return Err(ended(error));
            }
            silences += 1;
            let silent = Silent::of(self.stream.get_ref(), SILENCE * silences);
            if silent.is_stopped() || (silences == PATIENCE && !is_patient) {
                return Err(RemoteError::Silent(silent));
            }
            if silences == 1 && !is_patient {
                (self.say)(&silent.to_string());
            }
        }
        self.stream.get_ref().set_read_timeout(None)?;
        if !reply.ends_with(b"\n") {
            return Err(RemoteError::Gone);
        }
        let reply: Reply = serde_json::from_slice(&reply)?;
        match reply.error {
            Some(_) if reply.v < version => Err(RemoteError::OldService(reply.v)),
            Some(refusal) => Err(RemoteError::Refused(refusal)),
            None => Ok(reply.ok.map_or_else(String::new, |ok| ok.get().to_owned())),
        }
    }
}

impl Remote {
    /// Stops the server, and returns when it has ended: another one can then start with the same sockets.
    ///
    /// # Errors
    /// [`RemoteError`]; [`RemoteError::Stays`] if the server does not end in time.
    pub fn stop(mut self) -> Result<(), RemoteError> {
        let process = self.process();
        match self.ask_in(VERSION, &Request::Stop {}) {
            // Stopping has been the same in all versions, and a service has to be stopped before it is replaced.
            Err(RemoteError::OldService(version)) => self.ask_in(version, &Request::Stop {})?,
            stopping => stopping?,
        };
        self.stream.get_ref().set_read_timeout(Some(END))?;
        if let Err(error) = io::copy(&mut self.stream, &mut io::sink()) {
            return Err(match is_timeout(&error) {
                true => RemoteError::Stays,
                false => ended(error),
            });
        }
        if let Some(process) = process {
            let limit = Timespec::try_from(EXIT).ok();
            // If the sockets were passed to the server, the process is that of the service manager, and stays.
            let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], limit.as_ref());
        }
        Ok(())
    }

    /// The process that made the server's socket, if it can be seen from here.
    fn process(&self) -> Option<OwnedFd> {
        let peer = socket_peercred(self.stream.get_ref()).ok()?;
        pidfd_open(peer.pid, PidfdFlags::empty()).ok()
    }

    /// Copies the stream behind a reply until the server ends it. At SIGINT or SIGTERM the server is asked to end it: it
    /// sends the records that it has, and cuts none.
    ///
    /// # Errors
    /// The error of either side of the copy.
    pub fn stream_until_signal(mut self, out: &mut dyn Write) -> io::Result<StreamEnd> {
        let ender = self.stream.get_ref().try_clone()?;
        let signalled = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            let (ender, signalled) = (ender.try_clone()?, Arc::clone(&signalled));
            // The pipe's other end is read by a thread, since shutdown(2) is not for signal handlers.
            let (mut signal_end, handler_end) = UnixStream::pair()?;
            low_level::pipe::register(signal, handler_end)?;
            std::thread::spawn(move || {
                if matches!(signal_end.read(&mut [0]), Ok(1)) {
                    signalled.store(true, Ordering::Relaxed);
                    // If the server is gone, the copy ends anyway.
                    let _ = ender.shutdown(Shutdown::Write);
                }
            });
        }
        loop {
            let bytes = self.stream.fill_buf()?;
            if bytes.is_empty() {
                out.flush()?;
                return Ok(match signalled.load(Ordering::Relaxed) {
                    true => StreamEnd::Signal,
                    false => StreamEnd::Server,
                });
            }
            out.write_all(bytes)?;
            out.flush()?;
            let length = bytes.len();
            self.stream.consume(length);
        }
    }
}

/// Returns `true` for the end of a socket's time.
fn is_timeout(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

fn ended(error: io::Error) -> RemoteError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => RemoteError::Gone,
        _ => RemoteError::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;
    use crate::protocol::ShowQuery;
    use crate::show::Subject;

    #[test]
    fn an_older_service_is_named_and_can_be_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let service = thread::spawn(move || {
            let mut asked = Vec::new();
            for replies in [
                &[r#"{"v":1,"error":{"code":"bad_request","message":"no format"}}"#][..],
                &[
                    r#"{"v":1,"error":{"code":"version","message":"not 2"}}"#,
                    r#"{"v":1,"ok":{"stopping":true}}"#,
                ],
            ] {
                let (stream, _) = listener.accept().unwrap();
                let mut stream = BufReader::new(stream);
                for reply in replies {
                    let mut line = String::new();
                    stream.read_line(&mut line).unwrap();
                    asked.push(line);
                    writeln!(stream.get_mut(), "{reply}").unwrap();
                }
            }
            asked
        });
        let mut remote = Remote::connect(&path).unwrap();
        let refused = remote.ask(&Request::Show(ShowQuery::new(Subject::Vfs)));
        let message = refused.unwrap_err().to_string();
        assert_eq!(message, "the service is older than this vhca: restart it");
        Remote::connect(&path).unwrap().stop().unwrap();
        let asked = service.join().unwrap();
        assert_eq!(asked[2], "{\"v\":1,\"request\":{\"stop\":{}}}\n");
    }
}
