//! The transactions under way with the SA: their order, their timers, their number.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ib_vtime::{Instant, TimerQueue};
use ib_wire::sa::SaMad;

use crate::MemberId;
use crate::transaction::{Aim, Patience, Token, Transaction, Waiting};

#[derive(Clone, Copy, Debug)]
enum Timer {
    Resend(Token),
    Forget(Token),
}

/// What is to be done next.
pub(crate) enum Step<A> {
    /// Send the transaction's request to the SA.
    Send(Token),
    /// The SA does not answer: the transaction is over.
    GaveUp(Box<Transaction<A>>),
}

/// All transactions of one machine.
#[derive(Clone, Debug)]
pub(crate) struct Exchange<A> {
    max_in_flight: usize,
    transactions: BTreeMap<Token, Transaction<A>>,
    next_token: u64,
    /// Transactions to transmit, for the first time or again, as their turn comes.
    queue: VecDeque<Token>,
    in_flight: usize,
    /// What was to be gained and got no answer. If one comes after all, it must be taken back.
    given_up: BTreeMap<Token, A>,
    timers: TimerQueue<Timer>,
}

impl<A: Aim> Exchange<A> {
    /// How long the answer to what was given up can come and still be taken back.
    const LATE_ANSWER: Duration = Duration::from_secs(60);

    pub(crate) const fn new(max_in_flight: usize) -> Self {
        Self {
            max_in_flight,
            transactions: BTreeMap::new(),
            next_token: 0,
            queue: VecDeque::new(),
            in_flight: 0,
            given_up: BTreeMap::new(),
            timers: TimerQueue::new(),
        }
    }

    pub(crate) fn begin(&mut self, aim: A, waiting: Option<Waiting>, request: SaMad) -> Token {
        let token = Token(self.next_token);
        self.next_token += 1;
        let transaction = Transaction {
            aim,
            waiting,
            attempts: 0,
            repeated: false,
            refused: false,
            request,
            timer: None,
        };
        self.transactions.insert(token, transaction);
        self.queue.push_back(token);
        token
    }

    /// Ends a transaction, whether it was sent or still waited for its turn.
    pub(crate) fn end(&mut self, token: Token) -> Option<Transaction<A>> {
        let mut transaction = self.transactions.remove(&token)?;
        match transaction.timer.take() {
            Some(timer) => {
                self.timers.cancel(timer);
                self.in_flight -= 1;
            }
            None => self.queue.retain(|&queued| queued != token),
        }
        Some(transaction)
    }

    /// Puts a transaction back that the SA refused, to be sent again after a while.
    pub(crate) fn retry(&mut self, at: Instant, token: Token, transaction: Transaction<A>) {
        let timer = Some(self.timers.set(at, Timer::Resend(token)));
        self.in_flight += 1;
        self.transactions.insert(
            token,
            Transaction {
                timer,
                refused: true,
                ..transaction
            },
        );
    }

    /// A transaction that an answer can belong to: one that was sent.
    pub(crate) fn sent(&self, token: Token) -> Option<&Transaction<A>> {
        self.get(token)
            .filter(|transaction| transaction.timer.is_some())
    }

    pub(crate) fn get(&self, token: Token) -> Option<&Transaction<A>> {
        self.transactions.get(&token)
    }

    /// Takes what was to be gained and was given up.
    pub(crate) fn take_given_up(&mut self, token: Token) -> Option<A> {
        self.given_up.remove(&token)
    }

    /// Lines up what is due.
    pub(crate) fn fire(&mut self, now: Instant) {
        while let Some((_, timer)) = self.timers.pop_due(now) {
            match timer {
                Timer::Forget(token) => {
                    self.given_up.remove(&token);
                }
                Timer::Resend(token) => {
                    if let Some(transaction) = self.transactions.get_mut(&token) {
                        transaction.timer = None;
                        transaction.repeated = true;
                        self.in_flight -= 1;
                        self.queue.push_back(token);
                    }
                }
            }
        }
    }

    /// Takes the next transmission, as far as the limit allows.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Step<A>> {
        while self.in_flight < self.max_in_flight {
            let token = self.queue.pop_front()?;
            let Some(transaction) = self.transactions.get_mut(&token) else {
                continue;
            };
            if let Some(wait) = transaction.next_wait() {
                transaction.attempts += 1;
                transaction.timer = Some(self.timers.set(now + wait, Timer::Resend(token)));
                self.in_flight += 1;
                return Some(Step::Send(token));
            }
            let transaction = self.transactions.remove(&token)?;
            if transaction.aim.patience() == Patience::Gain {
                self.given_up.insert(token, transaction.aim);
                self.timers
                    .set(now + Self::LATE_ANSWER, Timer::Forget(token));
            }
            return Some(Step::GaveUp(Box::new(transaction)));
        }
        None
    }

    /// Lines up everything that was sent to be sent again, with full patience.
    pub(crate) fn ask_again(&mut self) {
        for (&token, transaction) in &mut self.transactions {
            transaction.attempts = 0;
            if let Some(timer) = transaction.timer.take() {
                self.timers.cancel(timer);
                transaction.repeated = true;
                self.in_flight -= 1;
                self.queue.push_back(token);
            }
        }
    }

    /// Forgets a member's requests; their transactions go on.
    pub(crate) fn forget_member(&mut self, member: MemberId) {
        for transaction in self.transactions.values_mut() {
            transaction.forget_member(member);
        }
    }

    /// Takes the members' requests out of the transactions that are about something; those go on.
    pub(crate) fn take_waiting(&mut self, is_about: impl Fn(&A) -> bool) -> Vec<Waiting> {
        let transactions = self.transactions.values_mut();
        let about = transactions.filter(|transaction| is_about(&transaction.aim));
        about
            .filter_map(|transaction| transaction.waiting.take())
            .collect()
    }

    /// What the transactions under way are about.
    pub(crate) fn aims(&self) -> impl Iterator<Item = &A> {
        self.transactions
            .values()
            .map(|transaction| &transaction.aim)
    }

    /// The members' requests that are being served.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        self.transactions
            .values()
            .filter_map(|transaction| transaction.waiting.as_ref())
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.timers.next_deadline()
    }

    /// Transactions and remembered given-up ones.
    pub(crate) fn len(&self) -> usize {
        self.transactions.len() + self.given_up.len()
    }

    pub(crate) fn timers(&self) -> usize {
        self.timers.len()
    }
}
