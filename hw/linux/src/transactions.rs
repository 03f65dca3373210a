//! Which of the files a MAD is written to, and whose answer a MAD is that one of them gives.
//!
//! umad replaces the upper half of a request's transaction id by the number of the file's agent, and refuses a request with the
//! class and the lower half of one that waits for its answer in the same file (`ib_umad_write`, `is_duplicate`). So requests
//! with equal halves, repetitions among them, go to different files, and answers get the id of their request back.

use std::collections::{BTreeMap, VecDeque};

use ib_endpoint::segment_layout;
use ib_vtime::{Duration, Instant};
use ib_wire::Tid;
use ib_wire::mad::{Mad, Method, MgmtClass};
use ib_wire::rmpp::{RmppHeader, RmppType};
use zerocopy::FromBytes;

/// Files that MADs are written to. A kernel that limits the requests of an agent (`sol_fc_max`) does so for each.
pub(crate) const SENDERS: usize = 8;

/// Transactions of all files together; the oldest one is forgotten for the next.
const MAX_TRANSACTIONS: usize = 1 << 16;

/// A request as its file knows it: its class, and the lower half of its id.
type Key = (MgmtClass, u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The kernel waits for the answer.
    Waiting,
    /// The kernel waits, and another file had the answer.
    Superseded,
    /// RMPP packets of the answer come by this file.
    Answering,
}

#[derive(Clone, Copy, Debug)]
struct Transaction {
    /// The id that the request had before it was written.
    tid: Tid,
    state: State,
    expires: Instant,
}

/// The requests that were written and may be answered.
#[derive(Debug)]
pub(crate) struct Transactions {
    lifetime: Duration,
    files: [BTreeMap<Key, Transaction>; SENDERS],
    /// In the order in which they expire: all live equally long.
    expiries: VecDeque<(Instant, usize, Key)>,
    next: usize,
}

/// The file and the timeout with which a MAD is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// The file.
    pub(crate) file: usize,
    /// Milliseconds for which umad is to wait for an answer; 0 if there will be none.
    pub(crate) timeout_ms: u32,
}

impl Transactions {
    /// Makes an empty table of transactions that live so long.
    pub(crate) fn new(lifetime: Duration) -> Self {
        Self {
            lifetime,
            files: std::array::from_fn(|_| BTreeMap::new()),
            expiries: VecDeque::new(),
            next: 0,
        }
    }

    /// Chooses the file for a MAD, or returns `None` if a request like it waits for its answer in every one.
    pub(crate) fn send(&mut self, now: Instant, mad: &Mad) -> Option<Way> {
        let key = key(mad);
        let tid = mad.header.tid;
        if let Some(rmpp) = rmpp(mad)
            && !mad.header.method.is_answer()
        {
            // An acknowledgement has the id of its transfer, which is that of a file, and so has each packet of a request.
            let file = self.file_of(key, tid);
            if file.is_some() || rmpp.rmpp_type != RmppType::DATA {
                let file = file.unwrap_or_else(|| self.turn());
                return Some(Way {
                    file,
                    timeout_ms: 0,
                });
            }
        }
        if !is_answered(mad.header.method) {
            let file = self.turn();
            return Some(Way {
                file,
                timeout_ms: 0,
            });
        }
        let mut turns = (self.next..).map(|turn| turn % SENDERS).take(SENDERS);
        let file = turns.find(|file| {
            let under_way = self.files[*file].get(&key);
            under_way.is_none_or(|transaction| transaction.state == State::Answering)
        })?;
        self.next = (file + 1) % SENDERS;
        self.add(now, file, key, tid);
        Some(Way {
            file,
            timeout_ms: u32::try_from(self.lifetime.as_millis()).unwrap_or(u32::MAX),
        })
    }

    /// Takes a MAD that a file gave: an answer gets the id of its request. Returns `false` if no request waits for it.
    pub(crate) fn receive(&mut self, file: usize, mad: &mut Mad) -> bool {
        if !mad.header.method.is_answer() && rmpp(mad).is_none() {
            return true;
        }
        let key = key(mad);
        let Some(found) = self.files.get_mut(file).and_then(|file| file.get_mut(&key)) else {
            // RMPP packets that follow an answer of this side have no request here.
            return !mad.header.method.is_answer();
        };
        if found.state == State::Superseded {
            return false;
        }
        let tid = found.tid;
        mad.header.tid = tid;
        if rmpp(mad).is_some() {
            found.state = State::Answering;
        } else {
            self.files[file].remove(&key);
        }
        for (other, transactions) in self.files.iter_mut().enumerate() {
            if let Some(same) = transactions.get_mut(&key)
                && other != file
                && same.tid == tid
            {
                same.state = State::Superseded;
            }
        }
        true
    }

    /// Takes note that a file gave a request back, unanswered or refused.
    pub(crate) fn returned(&mut self, file: usize, mad: &Mad) {
        if let Some(file) = self.files.get_mut(file) {
            file.remove(&key(mad));
        }
    }

    /// Forgets transactions that have lived long enough.
    pub(crate) fn expire(&mut self, now: Instant) {
        while self.expiries.front().is_some_and(|(at, ..)| *at <= now) {
            self.forget_oldest();
        }
    }

    fn add(&mut self, now: Instant, file: usize, key: Key, tid: Tid) {
        if self.expiries.len() >= MAX_TRANSACTIONS {
            self.forget_oldest();
        }
        // umad gives an unanswered request back when its time is over: that comes first.
        let expires = now + self.lifetime + Duration::from_secs(1);
        let transaction = Transaction {
            tid,
            state: State::Waiting,
            expires,
        };
        self.files[file].insert(key, transaction);
        self.expiries.push_back((expires, file, key));
    }

    fn forget_oldest(&mut self) {
        let Some((at, file, key)) = self.expiries.pop_front() else {
            return;
        };
        let transactions = &mut self.files[file];
        // The key may have been used again since.
        if transactions
            .get(&key)
            .is_some_and(|transaction| transaction.expires <= at)
        {
            transactions.remove(&key);
        }
    }

    /// The file by which a transfer goes on.
    fn file_of(&self, key: Key, tid: Tid) -> Option<usize> {
        let state = |file: usize| {
            let found = self.files[file].get(&key).filter(|found| found.tid == tid);
            found.map(|found| found.state)
        };
        let in_state = |wanted| (0..SENDERS).find(|file| state(*file) == Some(wanted));
        in_state(State::Answering).or_else(|| in_state(State::Waiting))
    }

    /// The file whose turn it is.
    fn turn(&mut self) -> usize {
        let file = self.next;
        self.next = (file + 1) % SENDERS;
        file
    }
}

fn key(mad: &Mad) -> Key {
    let [.., a, b, c, d] = mad.header.tid.get().to_be_bytes();
    (mad.header.mgmt_class, u32::from_be_bytes([a, b, c, d]))
}

/// The RMPP header of a MAD, if it takes part in RMPP.
fn rmpp(mad: &Mad) -> Option<RmppHeader> {
    segment_layout(mad.header.mgmt_class)?;
    let (rmpp, _) = RmppHeader::read_from_prefix(&mad.data).ok()?;
    rmpp.is_active().then_some(rmpp)
}

/// Returns `true` if a MAD of a method has an answer.
const fn is_answered(method: Method) -> bool {
    !method.is_answer() && !matches!(method, Method::SEND | Method::TRAP)
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::testing::mad;

    const LIFETIME: Duration = Duration::from_secs(10);
    const SA: MgmtClass = MgmtClass::SUBN_ADM;
    /// An id whose upper half is not a file's.
    const TID: u64 = 0x1234_5678_0000_0009;

    fn now(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn segment(method: Method, header: RmppHeader) -> Mad {
        let mut mad = mad(SA, method, TID);
        mad.data[..size_of::<RmppHeader>()].copy_from_slice(header.as_bytes());
        mad
    }

    /// A MAD as a file gives it: with the number of the file's agent in the id.
    fn by_file(mut mad: Mad, file: usize) -> Mad {
        let number = u64::try_from(file + 100).unwrap();
        mad.header.tid = Tid::new(number << 32 | mad.header.tid.get() & 0xffff_ffff);
        mad
    }

    /// Sends a request and returns the files of its repetitions, as many as there are.
    fn repeated(table: &mut Transactions, request: &Mad) -> Vec<usize> {
        let ways = std::iter::from_fn(|| table.send(now(0), request));
        ways.map(|way| way.file).collect()
    }

    #[test]
    fn each_repetition_goes_to_another_file_and_the_first_answer_ends_all() {
        let mut table = Transactions::new(LIFETIME);
        let request = mad(SA, Method::GET, TID);
        let files = repeated(&mut table, &request);
        assert_eq!(files, [0, 1, 2, 3, 4, 5, 6, 7]);
        let answer = mad(SA, Method::GET_RESP, TID);
        let mut received = by_file(answer, 3);
        assert!(table.receive(3, &mut received));
        assert_eq!(received.header.tid.get(), TID);
        for file in 0..SENDERS {
            assert!(!table.receive(file, &mut by_file(answer, file)), "{file}");
        }
        assert_eq!(repeated(&mut table, &request), [3], "the others still wait");
        table.returned(5, &by_file(request, 5));
        assert_eq!(repeated(&mut table, &request), [5]);
        table.expire(now(12));
        assert_eq!(repeated(&mut table, &request).len(), SENDERS);
    }

    #[test]
    fn requests_with_one_lower_half_are_told_apart() {
        let mut table = Transactions::new(LIFETIME);
        let tids = [9, 1 << 32 | 9, 2 << 32 | 9];
        let files = tids.map(|tid| table.send(now(0), &mad(SA, Method::GET, tid)).unwrap().file);
        for (tid, file) in tids.into_iter().zip(files).rev() {
            let mut answer = by_file(mad(SA, Method::GET_RESP, 9), file);
            assert!(table.receive(file, &mut answer));
            assert_eq!(answer.header.tid.get(), tid);
        }
    }

    #[test]
    fn a_transfer_goes_on_by_the_file_of_its_first_packet() {
        use ib_wire::rmpp::RmppFlags;
        let mut table = Transactions::new(LIFETIME);
        let request = mad(SA, Method::GET_TABLE, TID);
        for _ in 0..3 {
            table.send(now(0), &request);
        }
        let data = RmppHeader::data(1, 200, RmppFlags::ACTIVE);
        let data = segment(Method::GET_TABLE_RESP, data);
        for _ in 0..2 {
            let mut received = by_file(data, 1);
            assert!(table.receive(1, &mut received));
            assert_eq!(received.header.tid.get(), TID);
            assert!(!table.receive(2, &mut by_file(data, 2)), "another transfer");
        }
        let ack = segment(Method::GET_TABLE, RmppHeader::ack(1, 5));
        let by_file_1 = Way {
            file: 1,
            timeout_ms: 0,
        };
        assert_eq!(table.send(now(0), &ack), Some(by_file_1));
        table.expire(now(12));
        assert!(!table.receive(1, &mut by_file(data, 1)));
    }

    #[test]
    fn packets_of_a_request_under_rmpp_share_a_file_and_the_table_is_bounded() {
        use ib_wire::rmpp::RmppFlags;
        let mut table = Transactions::new(LIFETIME);
        table.send(now(0), &mad(SA, Method::GET, 1));
        let data = RmppHeader::data(1, 200, RmppFlags::ACTIVE);
        let data = segment(Method::GET_MULTI, data);
        let first = table.send(now(0), &data).unwrap();
        assert_eq!(table.send(now(0), &data).unwrap().file, first.file);
        for tid in 0..u64::try_from(MAX_TRANSACTIONS).unwrap() {
            assert!(
                table
                    .send(now(0), &mad(SA, Method::SET, 10 + tid))
                    .is_some()
            );
        }
        let kept: usize = table.files.iter().map(BTreeMap::len).sum();
        assert_eq!(kept, MAX_TRANSACTIONS);
    }

    #[test]
    fn what_others_ask_passes_as_it_is() {
        let mut table = Transactions::new(LIFETIME);
        let mut report = mad(SA, Method::REPORT, TID);
        assert!(table.receive(SENDERS, &mut report));
        assert_eq!(report.header.tid.get(), TID);
        let mut answer = mad(SA, Method::GET_RESP, TID);
        assert!(!table.receive(SENDERS, &mut answer));
    }
}
