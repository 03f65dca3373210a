//! The states of a communication id and what moves it from one to the next.

use ib_wire::mad::AttributeId;

/// What is known of the exchange that a communication id stands for.
///
/// The VF's CM and its peer's are the real state machines; this one only watches, so that the id
/// lives as long as either may still use it and no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum State {
    /// The VF sent a REQ.
    ReqSent,
    /// A peer's REQ was delivered to the VF.
    ReqRcvd,
    /// The VF sent a REP.
    RepSent,
    /// A REP was delivered to the VF.
    RepRcvd,
    /// An RTU passed, or something else that is only said of a connection that is up.
    Established,
    /// As far as can be told the connection is up, but it may have ended without a word: its REP was
    /// repeated no more though no RTU passed, or the VF's end is an XRC target.
    Quiet,
    /// The VF sent a DREQ.
    DreqSent,
    /// A DREQ was delivered to the VF.
    DreqRcvd,
    /// A REJ passed; the id is in quarantine.
    Rejected,
    /// The exchange is over; the id is in quarantine.
    Closed,
    /// The VF sent a SIDR_REQ.
    SidrSent,
    /// A peer's SIDR_REQ was delivered to the VF.
    SidrRcvd,
}

/// Which clock runs in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The handshake must end.
    Handshake,
    /// None: a connection may live for years.
    Never,
    /// Long silence, after which the connection is taken for gone.
    Silence,
    /// The quarantine, which late messages extend up to a cap.
    Quarantine,
    /// The SIDR answer must come.
    Sidr,
}

impl State {
    /// All states.
    pub const ALL: [Self; 12] = [
        Self::ReqSent,
        Self::ReqRcvd,
        Self::RepSent,
        Self::RepRcvd,
        Self::Established,
        Self::Quiet,
        Self::DreqSent,
        Self::DreqRcvd,
        Self::Rejected,
        Self::Closed,
        Self::SidrSent,
        Self::SidrRcvd,
    ];

    /// A small number for tables of counters.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The stable text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReqSent => "req_sent",
            Self::ReqRcvd => "req_rcvd",
            Self::RepSent => "rep_sent",
            Self::RepRcvd => "rep_rcvd",
            Self::Established => "established",
            Self::Quiet => "quiet",
            Self::DreqSent => "dreq_sent",
            Self::DreqRcvd => "dreq_rcvd",
            Self::Rejected => "rejected",
            Self::Closed => "closed",
            Self::SidrSent => "sidr_sent",
            Self::SidrRcvd => "sidr_rcvd",
        }
    }

    pub(crate) const fn clock(self) -> Clock {
        match self {
            Self::ReqSent | Self::ReqRcvd | Self::RepSent | Self::RepRcvd => Clock::Handshake,
            Self::Established => Clock::Never,
            Self::Quiet => Clock::Silence,
            Self::DreqSent | Self::DreqRcvd | Self::Rejected | Self::Closed => Clock::Quarantine,
            Self::SidrSent | Self::SidrRcvd => Clock::Sidr,
        }
    }

    /// Whether a connection is being made.
    pub(crate) const fn in_handshake(self) -> bool {
        matches!(self.clock(), Clock::Handshake)
    }

    /// Whether the exchange is over and only late messages are expected.
    pub(crate) const fn is_over(self) -> bool {
        matches!(self, Self::Rejected | Self::Closed)
    }
}

/// The messages of the CM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Message {
    Req,
    Mra,
    Rej,
    Rep,
    Rtu,
    Dreq,
    Drep,
    SidrReq,
    SidrRep,
    Lap,
    Apr,
}

impl Message {
    pub(crate) const fn from_attribute(id: AttributeId) -> Option<Self> {
        Some(match id.get() {
            0x10 => Self::Req,
            0x11 => Self::Mra,
            0x12 => Self::Rej,
            0x13 => Self::Rep,
            0x14 => Self::Rtu,
            0x15 => Self::Dreq,
            0x16 => Self::Drep,
            0x17 => Self::SidrReq,
            0x18 => Self::SidrRep,
            0x19 => Self::Lap,
            0x1a => Self::Apr,
            _ => return None,
        })
    }
}

/// Which way a message goes, as the VF sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Sent,
    Rcvd,
}

/// Every transition. What is not listed leaves the state as it is.
pub(crate) const TRANSITIONS: &[(State, Way, Message, State)] = {
    use Message::{Apr, Drep, Dreq, Lap, Rej, Rep, Req, Rtu, SidrRep};
    use State::*;
    use Way::{Rcvd, Sent};
    &[
        (ReqSent, Rcvd, Rep, RepRcvd),
        // Two peers asked each other at once, and this side became the passive one.
        (ReqSent, Sent, Rep, RepSent),
        (ReqSent, Sent, Rej, Rejected),
        (ReqSent, Rcvd, Rej, Rejected),
        (ReqRcvd, Sent, Rep, RepSent),
        (ReqRcvd, Sent, Rej, Rejected),
        (ReqRcvd, Rcvd, Rej, Rejected),
        (RepSent, Rcvd, Rtu, Established),
        // Data makes a passive side's connection as well as an RTU does (IBA 11.6.3.2, COMM_EST);
        // what then passes first is said of a connection that is up.
        (RepSent, Sent, Lap, Established),
        (RepSent, Rcvd, Lap, Established),
        (RepSent, Sent, Apr, Established),
        (RepSent, Rcvd, Apr, Established),
        (RepSent, Sent, Rej, Rejected),
        (RepSent, Rcvd, Rej, Rejected),
        (RepSent, Sent, Dreq, DreqSent),
        (RepSent, Rcvd, Dreq, DreqRcvd),
        (RepRcvd, Sent, Rtu, Established),
        (RepRcvd, Sent, Lap, Established),
        (RepRcvd, Rcvd, Lap, Established),
        (RepRcvd, Sent, Apr, Established),
        (RepRcvd, Rcvd, Apr, Established),
        (RepRcvd, Sent, Rej, Rejected),
        (RepRcvd, Rcvd, Rej, Rejected),
        (RepRcvd, Sent, Dreq, DreqSent),
        (RepRcvd, Rcvd, Dreq, DreqRcvd),
        (Established, Sent, Dreq, DreqSent),
        (Established, Rcvd, Dreq, DreqRcvd),
        (Established, Sent, Rej, Rejected),
        (Established, Rcvd, Rej, Rejected),
        (Quiet, Sent, Rep, RepSent),
        (Quiet, Rcvd, Rep, RepRcvd),
        (Quiet, Sent, Rtu, Established),
        (Quiet, Rcvd, Rtu, Established),
        (Quiet, Sent, Lap, Established),
        (Quiet, Rcvd, Lap, Established),
        (Quiet, Sent, Apr, Established),
        (Quiet, Rcvd, Apr, Established),
        (Quiet, Sent, Dreq, DreqSent),
        (Quiet, Rcvd, Dreq, DreqRcvd),
        (Quiet, Sent, Rej, Rejected),
        (Quiet, Rcvd, Rej, Rejected),
        (DreqSent, Rcvd, Drep, Closed),
        (DreqSent, Sent, Drep, Closed),
        (DreqRcvd, Sent, Drep, Closed),
        (DreqRcvd, Rcvd, Drep, Closed),
        // The peer asks again for what the VF had refused without ever using an id.
        (Rejected, Rcvd, Req, ReqRcvd),
        (SidrSent, Rcvd, SidrRep, Closed),
        (SidrRcvd, Sent, SidrRep, Closed),
    ]
};

const MESSAGES: usize = 11;

/// [`TRANSITIONS`] by state, way and message.
const NEXT: [[[State; MESSAGES]; 2]; State::ALL.len()] = {
    let mut next = [[[State::ReqSent; MESSAGES]; 2]; State::ALL.len()];
    let mut state = 0;
    while state < State::ALL.len() {
        next[state] = [[State::ALL[state]; MESSAGES]; 2];
        state += 1;
    }
    let mut i = 0;
    while i < TRANSITIONS.len() {
        let (from, way, message, to) = TRANSITIONS[i];
        next[from as usize][way as usize][message as usize] = to;
        i += 1;
    }
    next
};

impl State {
    pub(crate) const fn next(self, way: Way, message: Message) -> Self {
        NEXT[self as usize][way as usize][message as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_transition_is_listed_once_and_found() {
        let keys: BTreeSet<_> = TRANSITIONS
            .iter()
            .map(|(from, way, message, _)| (*from, *way as u8, *message as u8))
            .collect();
        assert_eq!(keys.len(), TRANSITIONS.len());
        for (from, way, message, to) in TRANSITIONS {
            assert_eq!(from.next(*way, *message), *to);
        }
    }

    #[test]
    fn the_documented_table_is_the_one_that_runs() {
        let mut table = String::from("| from | event | to |\n| --- | --- | --- |\n");
        for (from, way, message, to) in TRANSITIONS {
            let way = match way {
                Way::Sent => "sent",
                Way::Rcvd => "rcvd",
            };
            let message = match message {
                Message::SidrRep => String::from("SIDR_REP"),
                other => format!("{other:?}").to_uppercase(),
            };
            let (from, to) = (from.as_str(), to.as_str());
            table.push_str(&format!("| `{from}` | {way} {message} | `{to}` |\n"));
        }
        assert_eq!(table, include_str!("../TRANSITIONS.md"));
    }

    #[test]
    fn a_message_that_means_nothing_in_a_state_changes_nothing() {
        assert_eq!(
            State::Established.next(Way::Rcvd, Message::Rep),
            State::Established
        );
        assert_eq!(State::Closed.next(Way::Rcvd, Message::Dreq), State::Closed);
    }

    #[test]
    fn every_state_but_established_ends_by_itself() {
        for state in State::ALL {
            assert_eq!(state.clock() == Clock::Never, state == State::Established);
            assert_eq!(State::ALL[state.index()], state);
        }
    }

    #[test]
    fn attribute_ids_name_the_eleven_messages_and_nothing_else() {
        let known = (0..=u16::MAX)
            .filter(|&id| Message::from_attribute(AttributeId::new(id)).is_some())
            .collect::<Vec<_>>();
        assert_eq!(known, (0x10..=0x1a).collect::<Vec<_>>());
    }
}
