//! A client of the control socket, as the server sees it.

use std::os::fd::{AsRawFd, RawFd};

use emulated_hca::TapId;
use ib_capture::FrameRecord;
use ib_vtime::Instant;
use rustix::io::Errno;
use vhca_control::protocol::{Envelope, MAX_LINE, Request, VERSION};
use vhca_control::{By, GuestReports, Refusal};

use super::answer::{Answer, answer, answer_now};
use super::reply::Reply;
use crate::serve::capture::Capture;
use crate::serve::guests::JobId;
use crate::serve::way_in::Turn;
use crate::show::{Filter, Metrics};
use vhca::Slice;
use vhca::watch::EventSet;
use vhca::world::HostPortId;
use vhca_receiver::{ClientSocket, Received};

/// What comes after the replies that wait to be written.
#[derive(Debug)]
enum State {
    /// The next request.
    Open,
    /// What is left of a reply that takes many turns.
    Replying(Box<Reply>),
    /// What guests are doing.
    Waiting(JobId),
    /// What the SAs of these ports answer, for a request.
    Asking(Vec<HostPortId>, Box<Request>),
    /// What a capture gives.
    Capturing(Box<Capture>),
    /// The end: the client closed, or cannot be understood.
    Closing,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Client {
    socket: ClientSocket,
    /// What was read and not understood yet: less than a line, or requests behind the one in hand.
    input: Vec<u8>,
    /// What the client has yet to take. While there is something, nothing is read.
    output: Vec<u8>,
    written: usize,
    state: State,
    /// What is watched.
    interest: EventSet,
    /// When it last asked something.
    pub(super) last_used: Instant,
}

impl Client {
    /// Takes a connection, whose socket must not block.
    pub(super) fn new(turn: &mut Turn<'_>, socket: ClientSocket) -> Self {
        turn.watch(&socket);
        Self {
            socket,
            input: Vec::new(),
            output: Vec::new(),
            written: 0,
            state: State::Open,
            interest: EventSet::IN,
            last_used: turn.now,
        }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Gives the socket up, and what the client waited for.
    pub(super) fn close(self, turn: &mut Turn<'_>) {
        match self.state {
            State::Waiting(job) => turn.lab.forget_job(job),
            State::Capturing(capture) => capture.stop(turn.lab),
            State::Open | State::Replying(_) | State::Asking(..) | State::Closing => {}
        }
        turn.part(self.socket);
    }

    /// Serves the client, whose socket is ready. Returns `true` if the client stays.
    pub(super) fn handle_ready(&mut self, turn: &mut Turn<'_>, events: EventSet) -> bool {
        let is_over = events.contains(EventSet::HANG_UP) && self.socket.is_asking();
        if is_over || events.contains(EventSet::ERROR) {
            return false;
        }
        if events.intersects(EventSet::IN | EventSet::HANG_UP) && self.reads() && !self.read() {
            match &mut self.state {
                State::Capturing(capture) => capture.finish(),
                state => *state = State::Closing,
            }
        } else if events.contains(EventSet::HANG_UP) {
            return false;
        }
        self.advance(turn)
    }

    /// Returns `true` if the client may ask something, or end its capture.
    fn reads(&self) -> bool {
        match &self.state {
            State::Open => self.output.is_empty(),
            State::Capturing(capture) => !capture.is_finished(),
            State::Replying(_) | State::Waiting(_) | State::Asking(..) | State::Closing => false,
        }
    }

    /// Takes a frame that a tap saw.
    pub(super) fn take_frame(&mut self, tap: TapId, record: &FrameRecord) {
        if let State::Capturing(capture) = &mut self.state {
            capture.take(tap, record);
        }
    }

    /// Whether something for the client can come from the lab.
    pub(super) const fn is_served(&self) -> bool {
        matches!(
            self.state,
            State::Waiting(_) | State::Asking(..) | State::Capturing(_)
        )
    }

    /// When there is something to do without the client.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Capturing(capture) => capture.deadline(),
            State::Replying(_) => self.output.is_empty().then_some(Instant::ZERO),
            State::Open | State::Waiting(_) | State::Asking(..) | State::Closing => None,
        }
    }

    /// Returns true if the next piece of a reply can be made.
    pub(super) fn wants_reply(&self) -> bool {
        matches!(self.state, State::Replying(_)) && self.output.is_empty()
    }

    /// Makes the next piece of a reply, until the slice is over, and sends it. Returns `false` if the client is gone.
    pub(super) fn reply(&mut self, turn: &mut Turn<'_>, slice: &mut Slice) -> bool {
        if let State::Replying(reply) = &mut self.state
            && reply.write(turn.lab, &mut self.output, slice)
        {
            self.state = if reply.is_last() {
                State::Closing
            } else {
                State::Open
            };
        }
        self.advance(turn)
    }

    /// Reads what is there, within bounds. Whether there may ever be more.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        match self.socket.receive(&mut bytes) {
            Ok(Some(Received { len: 0, .. })) => false,
            Ok(Some(Received { len, .. })) => {
                self.input.extend_from_slice(&bytes[..len]);
                true
            }
            Ok(None) => true,
            Err(_) => false,
        }
    }

    /// Answers what was asked, as far as the client takes the replies. Whether the client stays.
    pub(super) fn advance(&mut self, turn: &mut Turn<'_>) -> bool {
        loop {
            if !self.write() {
                return false;
            }
            if !self.output.is_empty() {
                break;
            }
            match &mut self.state {
                State::Open => {}
                State::Closing => return false,
                State::Replying(_) => break,
                State::Waiting(job) => {
                    let Some(done) = turn.lab.poll_report(*job) else {
                        break;
                    };
                    self.state = State::Open;
                    self.take(Answer::of(&GuestReports { guests: done }));
                    continue;
                }
                State::Asking(ports, request) => {
                    if turn.lab.is_asking_sa(ports) || turn.lab.is_asking_managers() {
                        break;
                    }
                    let answer = answer_now(turn, request);
                    self.state = State::Open;
                    self.take(answer);
                    continue;
                }
                State::Capturing(capture) => {
                    // Whatever a client says meanwhile means nothing.
                    self.input.clear();
                    let is_over = capture.is_over(turn.now);
                    self.output = capture.output();
                    if self.output.is_empty() && is_over {
                        return false;
                    }
                    if self.output.is_empty() {
                        break;
                    }
                    continue;
                }
            }
            match self.next_request() {
                Next::Nothing => break,
                Next::Line(line) => {
                    self.last_used = turn.now;
                    self.take(answer_line(turn, &line));
                }
                Next::Http(target) => match http(&target) {
                    Ok(reply) => self.state = State::Replying(Box::new(reply)),
                    Err(refusal) => {
                        self.output = refusal;
                        self.state = State::Closing;
                    }
                },
                Next::TooLong => {
                    let message = format!("a request has at most {MAX_LINE} bytes");
                    let refusal = Refusal::new("too_long", message);
                    self.take(Answer::refused(&refusal));
                    self.state = State::Closing;
                }
            }
        }
        self.watch(turn);
        true
    }

    fn take(&mut self, answer: Answer) {
        match answer {
            Answer::Line(line) => self.output = line,
            Answer::Reply(reply) => self.state = State::Replying(reply),
            Answer::Later(job) => self.state = State::Waiting(job),
            Answer::Asked(ports, request) => self.state = State::Asking(ports, request),
            Answer::Capture(capture) => {
                if let Answer::Line(line) = Answer::of(&serde_json::json!({ "capture": true })) {
                    self.output = line;
                }
                self.state = State::Capturing(capture);
            }
        }
        self.written = 0;
    }

    fn next_request(&mut self) -> Next {
        const HEADERS_END: &[u8] = b"\r\n\r\n";
        if self.input.starts_with(b"GET ") {
            let end = self.input.windows(4).position(|four| four == HEADERS_END);
            if end.is_some() {
                let line = self.input.split(|&byte| byte == b'\r').next();
                let line = String::from_utf8_lossy(line.unwrap_or_default()).into_owned();
                self.input.clear();
                let path = line.split(' ').nth(1).unwrap_or_default();
                return Next::Http(path.to_owned());
            }
        } else if let Some(end) = self.input.iter().position(|&byte| byte == b'\n') {
            let line = self.input.drain(..=end).collect();
            return Next::Line(line);
        }
        if self.input.len() > MAX_LINE {
            self.input.clear();
            Next::TooLong
        } else {
            Next::Nothing
        }
    }

    /// Writes what the socket takes. Whether the client is still there.
    fn write(&mut self) -> bool {
        while let Some(rest) = self
            .output
            .get(self.written..)
            .filter(|rest| !rest.is_empty())
        {
            match self.socket.send(rest) {
                Ok(length) => self.written += length,
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => return true,
                Err(_) => return false,
            }
        }
        self.output.clear();
        self.written = 0;
        true
    }

    fn watch(&mut self, turn: &mut Turn<'_>) {
        let mut interest = EventSet::empty();
        let is_asking = self.socket.is_asking();
        interest.set(EventSet::OUT, !self.output.is_empty() && !is_asking);
        interest.set(EventSet::IN, self.reads() && !is_asking);
        if interest != self.interest {
            self.interest = interest;
            turn.watches.modify(&self.socket, interest);
        }
    }
}

/// What a client sent.
enum Next {
    Nothing,
    Line(Vec<u8>),
    Http(String),
    TooLong,
}

fn answer_line(turn: &mut Turn<'_>, line: &[u8]) -> Answer {
    let request = match serde_json::from_slice::<Envelope>(line) {
        Ok(Envelope {
            v: VERSION,
            request,
        }) => serde_json::from_str(request.get()),
        Ok(Envelope { v, .. }) => {
            let (code, older) = match v < VERSION {
                true => ("old_client", "the client is older than the service"),
                false => ("new_client", "the service is older than the client"),
            };
            let message = format!(
                "{older}: version {v} of the protocol, not {VERSION}; use the vhca that the service was started with"
            );
            return Answer::refused(&Refusal::new(code, message));
        }
        Err(error) => Err(error),
    };
    match request {
        Ok(request) => answer(turn, request),
        Err(error) => {
            let message = format!("this is no request: {error}");
            Answer::refused(&Refusal::new("bad_request", message))
        }
    }
}

/// Returns the metrics that an HTTP request asks for, or a response that says what there is.
fn http(target: &str) -> Result<Reply, Vec<u8>> {
    let by = match target {
        "/metrics" => By::default(),
        "/metrics?by=total" => By::Total,
        "/metrics?by=host" => By::Host,
        "/metrics?by=vf" => By::Vf,
        _ => {
            let body =
                "there is /metrics, /metrics?by=total, /metrics?by=host and /metrics?by=vf\n";
            let length = body.len();
            let response = format!(
                "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\n\
                 Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
            return Err(response.into_bytes());
        }
    };
    Ok(Reply::http(Metrics::new(by, Filter::default())))
}
