//! Requests to the SA, from their making to their answer.

use ib_endpoint::{SaAnswer, SaError, SaRequest};
use ib_wire::mad::MadStatus;
use ib_wire::sa::GuidInfoRecord;
use ib_wire::{Guid, Lid};

/// GUIDs in a block of the table (IBA 14.2.5.5).
pub(super) const BLOCK: usize = 8;

/// What is done to the entries of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Set,
    Delete,
}

/// A request about some entries of one block.
#[derive(Clone, Debug)]
pub(super) struct BlockRequest {
    pub(super) block: u8,
    pub(super) method: Method,
    /// The entries that it is about, with what is asked for each.
    pub(super) asked: [Option<Guid>; BLOCK],
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The SA did it, and the block is so now.
    Done([Guid; BLOCK]),
    /// The SA did nothing.
    Refused(MadStatus),
    /// It never got to the SA.
    Unsent,
    /// No answer came, or one to another question.
    Lost,
}

impl BlockRequest {
    pub(super) fn to_sa(&self, lid: Lid) -> SaRequest {
        match self.method {
            Method::Set => SaRequest::set_guids(lid, self.block, &self.asked),
            Method::Delete => SaRequest::delete_guids(lid, self.block, &self.asked),
        }
    }

    /// The entries that it is about: their indices in the table, and what was asked for each.
    pub(super) fn entries(&self) -> impl Iterator<Item = (usize, Guid)> + use<> {
        let first = usize::from(self.block) * BLOCK;
        let entries = self.asked.into_iter().enumerate();
        entries.filter_map(move |(at, asked)| Some((first + at, asked?)))
    }

    pub(super) fn verdict(&self, result: &Result<SaAnswer, SaError>) -> Verdict {
        match result {
            Ok(answer) => match answer.record::<GuidInfoRecord>() {
                Some(record) if record.block == self.block => Verdict::Done(record.guids),
                _ => Verdict::Lost,
            },
            Err(SaError::Status(status)) => Verdict::Refused(*status),
            Err(SaError::NoSa | SaError::Send(_)) => Verdict::Unsent,
            Err(SaError::Transfer(_)) => Verdict::Lost,
        }
    }
}

/// A request that waits for its answer.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    pub(super) subject: Subject,
    /// Since it was made the SA may have become another one, or may have forgotten.
    pub(super) stale: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Subject {
    /// The SA's ClassPortInfo.
    Support,
    Block(BlockRequest),
}

impl InFlight {
    pub(super) fn is_about(&self, block: u8) -> bool {
        matches!(&self.subject, Subject::Block(request) if request.block == block)
    }

    pub(super) const fn is_about_support(&self) -> bool {
        matches!(self.subject, Subject::Support)
    }
}
