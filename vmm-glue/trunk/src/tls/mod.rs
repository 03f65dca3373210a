//! TLS 1.3 on a connection, as a machine without a socket: records in, bytes of the session out, and the other way.

mod credentials;
mod key;
mod pinned;
mod words;

use std::fmt;

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{Error, InvalidMessage};

pub use credentials::{CredentialFiles, CredentialsError, TlsEnd, public_key};
pub use key::{KeygenError, PublicKey, PublicKeyError, keygen};

use credentials::Side;

/// Bytes of a record at most: header, 2^14 bytes, and what a cipher may add (RFC 8446, section 5.2). An end that has not proved its
/// identity costs one buffer of so many.
const RECORD: usize = 5 + (1 << 14) + 256;

/// Bytes of the buffer for records once the handshake is over.
const READ: usize = 64 << 10;

enum Connection {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

impl Connection {
    /// Returns `true` if the next step encodes a message.
    fn has_message(&self) -> bool {
        match self {
            Self::Client(client) => client.wants_write(),
            Self::Server(server) => server.wants_write(),
        }
    }
}

/// Consequence of a step.
enum Step {
    /// Another step may follow.
    More,
    /// The handshake needs bytes of the other end.
    Handshake,
    /// The handshake is over, and all records were read.
    Idle,
    /// The other end has closed the connection.
    Ended,
    Failed(Error),
}

/// TLS on one connection.
pub(crate) struct Tls {
    end: TlsEnd,
    connection: Connection,
    /// Received records: those from `start` to `filled` were not processed.
    incoming: Vec<u8>,
    start: usize,
    filled: usize,
    /// Bytes of the session that came with the last message of the handshake.
    early: Vec<u8>,
    /// Records that are to leave.
    outgoing: Vec<u8>,
    sent: usize,
    is_established: bool,
    has_ended: bool,
    failure: Option<String>,
}

impl Tls {
    /// Begins a handshake.
    ///
    /// # Errors
    /// The reason, in words: the kernel gives no random bytes.
    pub(crate) fn new(end: &TlsEnd) -> Result<Self, String> {
        let connection = match &end.side {
            Side::Client(config, name) => {
                UnbufferedClientConnection::new(config.clone(), name.clone())
                    .map(Connection::Client)
            }
            Side::Server(config) => {
                UnbufferedServerConnection::new(config.clone()).map(Connection::Server)
            }
        };
        Ok(Self {
            end: end.clone(),
            connection: connection.map_err(|error| error.to_string())?,
            incoming: vec![0; RECORD],
            start: 0,
            filled: 0,
            early: Vec::new(),
            outgoing: Vec::new(),
            sent: 0,
            is_established: false,
            has_ended: false,
            failure: None,
        })
    }

    /// Returns the reason for which TLS ended the connection.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns `true` once the other end has proved its identity. A client does not know then that the server will take its own.
    pub(crate) const fn is_established(&self) -> bool {
        self.is_established
    }

    /// Returns `true` after the last record of the other end, or after a failure.
    pub(crate) const fn is_over(&self) -> bool {
        self.has_ended || self.failure.is_some()
    }

    /// Returns the space for received bytes. It is never empty before [`Self::received`] has taken a whole record.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        self.incoming.get_mut(self.filled..).unwrap_or_default()
    }

    /// Takes note of bytes in the space.
    pub(crate) fn received(&mut self, length: usize) {
        self.filled = self.incoming.len().min(self.filled + length);
    }

    /// Moves the handshake on with the bytes that came.
    pub(crate) fn shake(&mut self) {
        let mut early = std::mem::take(&mut self.early);
        self.process(&mut |bytes| early.extend(bytes), |tls| tls.is_established);
        self.early = early;
    }

    /// Decrypts the records that came, and passes their bytes to the session.
    pub(crate) fn deliver(&mut self, deliver: &mut dyn FnMut(&[u8])) {
        if !self.early.is_empty() {
            deliver(&std::mem::take(&mut self.early));
        }
        self.process(deliver, |_| false);
    }

    /// Takes steps until there is nothing to do, or there has been enough.
    fn process(&mut self, deliver: &mut dyn FnMut(&[u8]), is_enough: fn(&Self) -> bool) {
        while !self.is_over() && !is_enough(self) {
            match self.step(deliver) {
                Step::More => {}
                Step::Handshake => break,
                Step::Idle => {
                    self.establish();
                    break;
                }
                Step::Ended => self.has_ended = true,
                Step::Failed(error) => self.fail(&error),
            }
        }
        self.incoming.copy_within(self.start..self.filled, 0);
        self.filled -= self.start;
        self.start = 0;
        // A message of the handshake stays until all of its records are there.
        if self.filled == self.incoming.len() && !self.is_over() && !is_enough(self) {
            self.fail(&InvalidMessage::HandshakePayloadTooLarge.into());
        }
    }

    fn establish(&mut self) {
        if !self.is_established {
            self.is_established = true;
            self.incoming.resize(READ, 0);
        }
    }

    fn step(&mut self, deliver: &mut dyn FnMut(&[u8])) -> Step {
        let mut has_read = false;
        let mut note = |bytes: &[u8]| {
            has_read = true;
            deliver(bytes);
        };
        // rustls keeps places in the records that it has not discarded, so it always takes all of them.
        let records = self.incoming.get_mut(self.start..self.filled);
        let (records, out) = (records.unwrap_or_default(), &mut self.outgoing);
        let (read, step) = match &mut self.connection {
            Connection::Client(client) => {
                handle(client.process_tls_records(records), out, &mut note)
            }
            Connection::Server(server) => {
                handle(server.process_tls_records(records), out, &mut note)
            }
        };
        self.start = self.filled.min(self.start + read);
        if has_read {
            // There is no early data here, so both ends have proved their identities.
            self.establish();
        }
        step
    }

    /// Keeps the reason, and has the alert leave that says it to the other end.
    fn fail(&mut self, error: &Error) {
        self.failure = Some(words::words(error, &self.end));
        // Steps beyond it would judge the same record again.
        while self.connection.has_message() {
            self.step(&mut |_| ());
        }
    }

    /// Encrypts bytes of the session, once the handshake is over.
    pub(crate) fn encrypt(&mut self, bytes: &[u8]) {
        // Records that came with the end of the handshake are in the way.
        let mut early = std::mem::take(&mut self.early);
        self.process(&mut |bytes| early.extend(bytes), |_| false);
        self.early = early;
        if self.is_over() {
            return;
        }
        let records = self.incoming.get_mut(self.start..self.filled);
        let (records, out) = (records.unwrap_or_default(), &mut self.outgoing);
        let encrypted = match &mut self.connection {
            Connection::Client(client) => put(client.process_tls_records(records), bytes, out),
            Connection::Server(server) => put(server.process_tls_records(records), bytes, out),
        };
        if let Err(error) = encrypted {
            self.fail(&error);
        }
    }

    /// Returns the bytes that are to leave.
    pub(crate) fn unsent(&self) -> &[u8] {
        self.outgoing.get(self.sent..).unwrap_or_default()
    }

    /// Takes note that bytes have left.
    pub(crate) fn transmitted(&mut self, length: usize) {
        self.sent += length;
        if self.sent >= self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        }
    }
}

/// Carries out a step of rustls. Returns the bytes of the records that were read.
fn handle<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    out: &mut Vec<u8>,
    deliver: &mut dyn FnMut(&[u8]),
) -> (usize, Step) {
    let UnbufferedStatus { mut discard, state } = status;
    let step = match state {
        Err(error) => Step::Failed(error),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                None => break Step::More,
                Some(Ok(record)) => {
                    discard += record.discard;
                    deliver(record.payload);
                }
                Some(Err(error)) => break Step::Failed(error),
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut data)) => append(out, |room| {
            data.encode(room).map_err(|error| match error {
                EncodeError::InsufficientSize(need) => Ok(need.required_size),
                EncodeError::AlreadyEncoded => Err(Error::HandshakeNotComplete),
            })
        })
        .map_or_else(Step::Failed, |()| Step::More),
        // The bytes are in the buffer of this end, and will leave in order.
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Step::More
        }
        Ok(ConnectionState::BlockedHandshake) => Step::Handshake,
        Ok(ConnectionState::WriteTraffic(_)) => Step::Idle,
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Step::Ended,
        Ok(_) => Step::Failed(Error::HandshakeNotComplete),
    };
    (discard, step)
}

/// Encrypts bytes behind the ones that are to leave.
fn put<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let ConnectionState::WriteTraffic(mut traffic) = status.state? else {
        return Err(Error::HandshakeNotComplete);
    };
    append(out, |room| {
        traffic.encrypt(bytes, room).map_err(|error| match error {
            EncryptError::InsufficientSize(need) => Ok(need.required_size),
            EncryptError::EncryptExhausted => Err(Error::EncryptError),
        })
    })
}

/// Writes behind the bytes of a buffer, in as much room as the writer asks for with its first answer, an error that holds the size.
fn append(
    out: &mut Vec<u8>,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, Result<usize, Error>>,
) -> Result<(), Error> {
    let before = out.len();
    let mut room = 0;
    let written = loop {
        out.resize(before + room, 0);
        match write(out.get_mut(before..).unwrap_or_default()) {
            Ok(written) => break Ok(written),
            Err(Ok(need)) if need > room => room = need,
            Err(Ok(_)) => break Err(Error::EncryptError),
            Err(Err(error)) => break Err(error),
        }
    };
    out.truncate(before + written.as_ref().map_or(0, |written| *written));
    written.map(drop)
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("is_established", &self.is_established)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
