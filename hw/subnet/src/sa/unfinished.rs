//! Queries whose answers are made piece by piece, and the memory that answers may take.
//!
//! A table of a large subnet is the work of many milliseconds, and stays until the requester has
//! acknowledged all of it. So each piece is bounded, requesters take turns, and what a requester and
//! all of them together have unfinished is bounded as well; what is beyond is refused with BUSY.

use std::collections::{BTreeMap, VecDeque};

use ib_endpoint::{MadAddress, Message};
use ib_wire::Guid;

use super::search::Search;

/// Work of one piece: candidates that are looked at. Following a path counts for more.
pub const PIECE: usize = 128;

/// Work for a query for a single record that comes while others are unfinished. Those of hosts find
/// their record at once.
const FIRST_PIECE: usize = 8;

/// Most unfinished queries of a port.
pub const MAX_QUERIES_PER_PORT: usize = 64;

/// Most unfinished queries of all ports.
pub const MAX_QUERIES: usize = 4096;

/// Most bytes of records that a port's unfinished answers hold: two of the largest.
pub const MAX_BYTES_PER_PORT: usize = 8 << 20;

/// Most bytes of records that all unfinished answers hold.
pub const MAX_BYTES: usize = 64 << 20;

/// A query that is being answered.
#[derive(Debug)]
pub(super) struct Query {
    pub(super) from: MadAddress,
    pub(super) message: Message,
    pub(super) search: Search,
}

/// Unfinished answers of one port.
#[derive(Debug, Default)]
struct Requester {
    /// The oldest, of which the next piece is made, comes first.
    queries: VecDeque<Query>,
    /// Bytes of records that were found, or are on their way.
    bytes: usize,
}

/// All queries without an answer yet, and the bytes of all answers that are not acknowledged.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    requesters: BTreeMap<Guid, Requester>,
    /// The ports that have queries, in the order of their turns.
    turns: VecDeque<Guid>,
    queries: usize,
    bytes: usize,
}

impl Unfinished {
    /// Returns `true` if a query has no answer yet.
    pub(super) const fn has_queries(&self) -> bool {
        self.queries > 0
    }

    /// Returns the bytes of records of all unfinished answers.
    #[cfg(test)]
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns `true` if a request repeats one that is being answered.
    pub(super) fn is_repeated(&self, port: Guid, from: &MadAddress, message: &Message) -> bool {
        let requester = self.requesters.get(&port);
        let mut queries = requester
            .into_iter()
            .flat_map(|requester| &requester.queries);
        queries
            .any(|query| query.from == *from && query.message.header().tid == message.header().tid)
    }

    /// Returns `true` if a port may have another unfinished query.
    pub(super) fn has_room(&self, port: Guid) -> bool {
        let has_share = self.requesters.get(&port).is_none_or(|requester| {
            requester.queries.len() < MAX_QUERIES_PER_PORT && requester.bytes < MAX_BYTES_PER_PORT
        });
        has_share && self.queries < MAX_QUERIES && self.bytes < MAX_BYTES
    }

    /// Returns how much work is done of a query as it comes in: a piece, unless others wait.
    pub(super) const fn first_piece(&self, is_single: bool) -> usize {
        match (self.queries, is_single) {
            (0, _) => PIECE,
            (_, true) => FIRST_PIECE,
            (_, false) => 0,
        }
    }

    /// Keeps a query that came in, behind the others of its port. Returns `false`, and keeps
    /// nothing, if there is no room.
    pub(super) fn add(&mut self, port: Guid, query: Query) -> bool {
        let bytes = query.search.records.bytes();
        if !self.has_room(port) || !self.hold(port, bytes) {
            return false;
        }
        let requester = self.requesters.entry(port).or_default();
        if requester.queries.is_empty() {
            self.turns.push_back(port);
        }
        requester.queries.push_back(query);
        self.queries += 1;
        true
    }

    /// Takes the query of which the next piece is to be made.
    pub(super) fn take(&mut self) -> Option<(Guid, Query)> {
        let port = self.turns.pop_front()?;
        let requester = self.requesters.get_mut(&port)?;
        let query = requester.queries.pop_front()?;
        if !requester.queries.is_empty() {
            self.turns.push_back(port);
        }
        self.queries -= 1;
        self.release(port, query.search.records.bytes());
        Some((port, query))
    }

    /// Puts back a query that [`Self::take`] returned: the port's other queries wait behind it.
    /// Returns `false`, and drops it, if its records exceed what there is room for.
    pub(super) fn put_back(&mut self, port: Guid, query: Query) -> bool {
        if !self.hold(port, query.search.records.bytes()) {
            return false;
        }
        let requester = self.requesters.entry(port).or_default();
        if requester.queries.is_empty() {
            self.turns.push_back(port);
        }
        requester.queries.push_front(query);
        self.queries += 1;
        true
    }

    /// Counts bytes of an answer. Returns `false`, and counts nothing, if there is no room.
    fn hold(&mut self, port: Guid, bytes: usize) -> bool {
        let held = self
            .requesters
            .get(&port)
            .map_or(0, |requester| requester.bytes);
        if held + bytes > MAX_BYTES_PER_PORT || self.bytes + bytes > MAX_BYTES {
            return false;
        }
        self.carry(port, bytes);
        true
    }

    /// Counts bytes of an answer that is on its way.
    pub(super) fn carry(&mut self, port: Guid, bytes: usize) {
        self.requesters.entry(port).or_default().bytes += bytes;
        self.bytes += bytes;
    }

    /// Counts bytes no longer.
    pub(super) fn release(&mut self, port: Guid, bytes: usize) {
        let Some(requester) = self.requesters.get_mut(&port) else {
            return;
        };
        let bytes = bytes.min(requester.bytes);
        requester.bytes -= bytes;
        self.bytes -= bytes;
        if requester.bytes == 0 && requester.queries.is_empty() {
            self.requesters.remove(&port);
        }
    }
}
