//! A guest's path queries, all guests numbering theirs alike.

use std::collections::BTreeMap;

use ib_vtime::{Duration, Instant};
use ib_wire::mad::{AttributeId, Mad, Method};
use ib_wire::sa::{PathRecord, SaMad};
use ib_wire::{Gid, Tid};

/// Answers that come later are those of a query that is forgotten, and wrong.
const REMEMBERED: Duration = Duration::from_secs(60);

/// What was asked under a transaction id.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Instant,
    sgid: Gid,
    dgid: Gid,
    is_answered: bool,
}

/// A guest's path queries.
#[derive(Clone, Debug, Default)]
pub(super) struct PathQueries {
    next: u64,
    asked: BTreeMap<u64, Asked>,
    count: u64,
    answered: u64,
    wrong: u64,
}

impl PathQueries {
    /// A query for the path between two ports.
    pub(super) fn ask(&mut self, now: Instant, sgid: Gid, dgid: Gid) -> Mad {
        self.next += 1;
        self.count += 1;
        self.asked.retain(|_, asked| asked.at + REMEMBERED > now);
        let asked = Asked {
            at: now,
            sgid,
            dgid,
            is_answered: false,
        };
        self.asked.insert(self.next, asked);
        let mut record = PathRecord {
            sgid,
            dgid,
            ..PathRecord::default()
        };
        record.set_numb_path(1);
        let mask = PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH;
        let mut request = SaMad::new(Method::GET, mask, &record);
        request.header.tid = Tid::new(self.next);
        Mad::from_layout(&request)
    }

    /// Takes an answer of the SA. A repeated one is right if it is the same.
    pub(super) fn hear(&mut self, mad: &Mad) {
        let header = &mad.header;
        let answer: &SaMad = mad.view();
        let record: PathRecord = answer.record();
        let asked = self.asked.get_mut(&header.tid.get()).filter(|asked| {
            header.method == Method::GET_RESP
                && header.attribute_id == AttributeId::PATH_RECORD
                && (record.sgid, record.dgid) == (asked.sgid, asked.dgid)
        });
        match asked {
            Some(asked) => {
                self.answered += u64::from(!asked.is_answered);
                asked.is_answered = true;
            }
            None => self.wrong += 1,
        }
    }

    /// Forgets everything, and numbers from the beginning again: the guest was reset.
    pub(super) fn forget(&mut self) {
        self.next = 0;
        self.asked.clear();
    }

    /// Queries that were asked, answered, and answers to nothing that was asked.
    pub(super) const fn counts(&self) -> (u64, u64, u64) {
        (self.count, self.answered, self.wrong)
    }
}
