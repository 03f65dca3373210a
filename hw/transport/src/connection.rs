//! Both directions of a connection.

use ib_vtime::Instant;

use crate::effects::Effects;
use crate::inbound::ResponderState;
use crate::request::Request;
use crate::requester::{Requester, RequesterConfig, RequesterState};
use crate::responder::{Responder, ResponderConfig};
use crate::run::{Response, Run};
use crate::transfer::Transfer;
use crate::unreliable::{UcReceiver, UcReceiverConfig, UcSender, UcSenderConfig, UcSenderState};

/// The transport of an RC queue pair: a [`Requester`] and a [`Responder`] that fail together.
///
/// It exists from RTR to the reset. The queue pair it belongs to is in ERR when [`Self::is_failed`] says so, which
/// is to be asked after every call that takes effects; its receive queue then flushes behind what was completed
/// here.
#[derive(Clone, Debug)]
pub struct ReliableConnection<B, R, V> {
    requester: Requester<B>,
    responder: Responder<R, V>,
    /// A response left last, so a request is next if there is one.
    responded: bool,
}

impl<B, R: Copy, V> ReliableConnection<B, R, V> {
    /// Makes a connection in RTR: requests are served, and posted ones wait.
    #[must_use]
    pub fn new(requester: RequesterConfig, responder: ResponderConfig) -> Self {
        Self {
            requester: Requester::new(requester),
            responder: Responder::new(responder),
            responded: false,
        }
    }

    /// Returns the direction that sends requests.
    #[must_use]
    pub const fn requester(&self) -> &Requester<B> {
        &self.requester
    }

    /// Returns the direction that serves requests.
    #[must_use]
    pub const fn responder(&self) -> &Responder<R, V> {
        &self.responder
    }

    /// Returns the requester, to change its attributes.
    pub const fn requester_mut(&mut self) -> &mut Requester<B> {
        &mut self.requester
    }

    /// Returns the responder, to change its attributes.
    pub const fn responder_mut(&mut self) -> &mut Responder<R, V> {
        &mut self.responder
    }

    /// Returns `true` if the queue pair is in ERR. Answers to requests before a refused one, and the refusal, may
    /// still be owed.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.responder.state() == ResponderState::Failed
    }

    /// Moves from RTR to RTS, or from SQD to RTS.
    ///
    /// Poll [`Self::poll_transmit`] afterwards.
    pub fn start(&mut self) {
        self.responder.establish();
        self.requester.start();
    }

    /// Queues a request; see [`Requester::post`].
    ///
    /// Poll [`Self::poll_transmit`] afterwards.
    pub fn post<E>(&mut self, request: Request<B>, fx: &mut E)
    where
        E: Effects<Buffer = B, Region = R, Receive = V>,
    {
        self.requester.post(request, fx);
    }

    /// Takes whatever arrived; see [`Self::handle_request`] and [`Self::handle_response`].
    ///
    /// Poll [`Self::poll_transmit`] and [`Self::poll_timeout`] afterwards.
    pub fn handle<E>(&mut self, now: Instant, transfer: &Transfer, fx: &mut E)
    where
        E: Effects<Buffer = B, Region = R, Receive = V>,
    {
        match transfer {
            Transfer::Request(run) => self.handle_request(run, fx),
            Transfer::Response(response) => self.handle_response(now, response, fx),
        }
    }

    /// Takes a run of request packets; see [`Responder::handle`].
    ///
    /// Poll [`Self::poll_transmit`] afterwards.
    pub fn handle_request<E>(&mut self, run: &Run, fx: &mut E)
    where
        E: Effects<Buffer = B, Region = R, Receive = V>,
    {
        self.responder.handle(run, fx);
        self.fail_together(fx);
    }

    /// Takes a response; see [`Requester::handle`].
    ///
    /// Poll [`Self::poll_transmit`] and [`Self::poll_timeout`] afterwards.
    pub fn handle_response<E>(&mut self, now: Instant, response: &Response, fx: &mut E)
    where
        E: Effects<Buffer = B, Region = R, Receive = V>,
    {
        self.requester.handle(now, response, fx);
        self.fail_together(fx);
    }

    /// Returns the next run of at most `budget` packets, responses and requests in turns, or `None` if nothing may
    /// be sent now. Its payload is what the effects gathered or fetched during the call.
    ///
    /// Poll until `None` after [`Self::start`], [`Self::post`], [`Self::handle_request`],
    /// [`Self::handle_response`] and [`Self::handle_timeout`], and [`Self::poll_timeout`] then.
    #[must_use]
    pub fn poll_transmit<E>(&mut self, now: Instant, budget: u32, fx: &mut E) -> Option<Transfer>
    where
        E: Effects<Buffer = B, Region = R, Receive = V>,
    {
        let first = if self.responded {
            self.request(now, budget, fx)
        } else {
            self.response(budget, fx)
        };
        let transfer = first.or_else(|| {
            if self.responded {
                self.response(budget, fx)
            } else {
                self.request(now, budget, fx)
            }
        });
        self.responded = matches!(transfer, Some(Transfer::Response(_)));
        self.fail_together(fx);
        transfer
    }

    fn request<E>(&mut self, now: Instant, budget: u32, fx: &mut E) -> Option<Transfer>
    where
        E: Effects<Buffer = B, Region = R, Receive = V>,
    {
        let run = self.requester.poll_transmit(now, budget, fx);
        run.map(Transfer::Request)
    }

    fn response<E>(&mut self, budget: u32, fx: &mut E) -> Option<Transfer>
    where
        E: Effects<Buffer = B, Region = R, Receive = V>,
    {
        let response = self.responder.poll_transmit(budget, fx);
        response.map(Transfer::Response)
    }

    /// Returns the time at which [`Self::handle_timeout`] is due, or `None` if no timer runs.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.requester.poll_timeout()
    }

    /// Does what is due at `now`; see [`Requester::handle_timeout`].
    ///
    /// Poll [`Self::poll_transmit`] afterwards.
    pub fn handle_timeout<E>(&mut self, now: Instant, fx: &mut E)
    where
        E: Effects<Buffer = B, Region = R, Receive = V>,
    {
        self.requester.handle_timeout(now, fx);
        self.fail_together(fx);
    }

    /// Moves to SQD; see [`Requester::drain`]. Requests of the peer are served as before.
    pub fn drain<E>(&mut self, fx: &mut E)
    where
        E: Effects<Buffer = B, Region = R, Receive = V>,
    {
        self.requester.drain(fx);
    }

    /// Moves to ERR: flushes the requests and the receive in use, drops the answers that are owed.
    pub fn abort<E>(&mut self, fx: &mut E)
    where
        E: Effects<Buffer = B, Region = R, Receive = V>,
    {
        self.responder.abort(fx);
        self.requester.abort(fx);
    }

    fn fail_together<E>(&mut self, fx: &mut E)
    where
        E: Effects<Buffer = B, Region = R, Receive = V>,
    {
        let requester_failed = self.requester.state() == RequesterState::Failed;
        let responder_failed = self.responder.state() == ResponderState::Failed;
        if requester_failed && !responder_failed {
            self.responder.abort(fx);
        } else if responder_failed && !requester_failed {
            self.requester.abort(fx);
        }
    }
}

/// The transport of a UC queue pair: a [`UcSender`] and a [`UcReceiver`]. A failed receiver ends the sender, too; a
/// failed sender, in SQE, leaves the receiver alone.
///
/// It exists from RTR to the reset. The queue pair is in ERR when [`Self::is_failed`] says so, which is to be asked
/// after every call that takes effects.
#[derive(Clone, Debug)]
pub struct UnreliableConnection<B, R, V> {
    sender: UcSender<B>,
    receiver: UcReceiver<R, V>,
}

impl<B, R: Copy, V> UnreliableConnection<B, R, V> {
    /// Makes a connection in RTR: messages arrive, and posted ones wait.
    #[must_use]
    pub const fn new(sender: UcSenderConfig, receiver: UcReceiverConfig) -> Self {
        Self {
            sender: UcSender::new(sender),
            receiver: UcReceiver::new(receiver),
        }
    }

    /// Returns the send queue.
    #[must_use]
    pub const fn sender(&self) -> &UcSender<B> {
        &self.sender
    }

    /// Returns the receiving side.
    #[must_use]
    pub const fn receiver(&self) -> &UcReceiver<R, V> {
        &self.receiver
    }

    /// Returns `true` if the queue pair is in ERR.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.receiver.state() == ResponderState::Failed
    }

    /// Sets the sender's attributes in RTR; see [`UcSender::configure`].
    pub const fn configure(&mut self, sender: UcSenderConfig) {
        self.sender.configure(sender);
    }

    /// Changes whether the peer may write.
    pub const fn permit_writes(&mut self, write: bool) {
        self.receiver.permit_writes(write);
    }

    /// Moves from RTR, SQD or SQE to RTS.
    ///
    /// Poll [`Self::poll_transmit`] afterwards.
    pub fn start(&mut self) {
        self.receiver.establish();
        self.sender.start();
    }

    /// Queues a request; see [`UcSender::post`].
    ///
    /// Poll [`Self::poll_transmit`] afterwards.
    pub fn post<E>(&mut self, request: Request<B>, fx: &mut E)
    where
        E: Effects<Buffer = B, Region = R, Receive = V>,
    {
        self.sender.post(request, fx);
    }

    /// Takes whatever arrived; see [`UcReceiver::handle`]. Responses are dropped: this service has none.
    pub fn handle<E>(&mut self, transfer: &Transfer, fx: &mut E)
    where
        E: Effects<Buffer = B, Region = R, Receive = V>,
    {
        if let Transfer::Request(run) = transfer {
            self.receiver.handle(run, fx);
        }
        if self.is_failed() && self.sender.state() != UcSenderState::Failed {
            self.sender.abort(fx);
        }
    }

    /// Returns the next run of at most `budget` packets; see [`UcSender::poll_transmit`].
    ///
    /// Poll until `None` after [`Self::start`] and [`Self::post`].
    #[must_use]
    pub fn poll_transmit<E>(&mut self, budget: u32, fx: &mut E) -> Option<Transfer>
    where
        E: Effects<Buffer = B, Region = R, Receive = V>,
    {
        let run = self.sender.poll_transmit(budget, fx);
        run.map(Transfer::Request)
    }

    /// Moves to SQD; see [`UcSender::drain`].
    pub fn drain<E>(&mut self, fx: &mut E)
    where
        E: Effects<Buffer = B, Region = R, Receive = V>,
    {
        self.sender.drain(fx);
    }

    /// Moves to ERR: flushes the requests and the receive in use.
    pub fn abort<E>(&mut self, fx: &mut E)
    where
        E: Effects<Buffer = B, Region = R, Receive = V>,
    {
        self.receiver.abort(fx);
        self.sender.abort(fx);
    }
}
