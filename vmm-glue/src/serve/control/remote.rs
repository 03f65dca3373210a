//! The control socket as a client sees it.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::protocol::{Envelope, Refusal, Reply, Request, VERSION};

/// Why a request came to nothing.
#[derive(Debug, Error)]
pub enum RemoteError {
    /// Nobody listens.
    #[error("nobody serves at {}; start `vhca serve`, or say where with --control", path.display())]
    Absent {
        /// Where nobody does.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The connection ended.
    #[error("the server went away before it answered")]
    Gone,
    /// The system refuses.
    #[error("cannot talk to the server")]
    Io(#[from] io::Error),
    /// The reply cannot be understood.
    #[error("the server's answer cannot be understood; is it of the same version?")]
    Reply(#[from] serde_json::Error),
    /// The server refused.
    #[error("{}", .0.message)]
    Refused(Refusal),
}

/// A connection to a server.
#[derive(Debug)]
pub struct Remote {
    stream: BufReader<UnixStream>,
}

impl Remote {
    /// Connects.
    ///
    /// # Errors
    /// [`RemoteError::Absent`].
    pub fn connect(path: &Path) -> Result<Self, RemoteError> {
        let stream = UnixStream::connect(path).map_err(|source| RemoteError::Absent {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Asks, and waits for the reply, which is JSON.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn ask(&mut self, request: Request) -> Result<String, RemoteError> {
        let envelope = Envelope {
            v: VERSION,
            request,
        };
        let mut line = serde_json::to_vec(&envelope)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).map_err(ended)?;
        let mut reply = Vec::new();
        self.stream.read_until(b'\n', &mut reply).map_err(ended)?;
        if !reply.ends_with(b"\n") {
            return Err(RemoteError::Gone);
        }
        let reply: Reply = serde_json::from_slice(&reply)?;
        match reply.error {
            Some(refusal) => Err(RemoteError::Refused(refusal)),
            None => Ok(reply.ok.map_or_else(String::new, |ok| ok.get().to_owned())),
        }
    }
}

fn ended(error: io::Error) -> RemoteError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => RemoteError::Gone,
        _ => RemoteError::Io(error),
    }
}
