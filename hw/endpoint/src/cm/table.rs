//! The transition relation of a connection, as data.
//!
//! [`TABLE`] is the only place that says in which state which event is heard and what follows.
//! A pair that has no row is not heard: a call of the user gets an error, a message is counted and
//! dropped, a timer cannot happen.

/// A state of a connection (IBA 12.9.5 to 12.9.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Nothing is known of the connection; it is released on the way here.
    Idle,
    /// Waiting for REQs and SIDR_REQs to a service id.
    Listen,
    /// REQ sent, waiting for the REP.
    ReqSent,
    /// REQ received, the user has to answer.
    ReqRcvd,
    /// MRA sent for a REQ, the user has to answer.
    MraReqSent,
    /// MRA received for the REQ, waiting longer for the REP.
    MraReqRcvd,
    /// REP sent, waiting for the RTU.
    RepSent,
    /// REP received, the user has to say that it is ready.
    RepRcvd,
    /// MRA sent for a REP, the user has to say that it is ready.
    MraRepSent,
    /// MRA received for the REP, waiting longer for the RTU.
    MraRepRcvd,
    /// Both sides may use the connection.
    Established,
    /// Established; LAP sent, waiting for the APR.
    LapSent,
    /// Established; LAP received, the user has to answer.
    LapRcvd,
    /// Established; MRA sent for a LAP, the user has to answer.
    MraLapSent,
    /// Established; MRA received for the LAP, waiting longer for the APR.
    MraLapRcvd,
    /// DREQ sent, waiting for the DREP.
    DreqSent,
    /// DREQ received, the user has to answer.
    DreqRcvd,
    /// Over; ids are kept for messages and packets that are still under way.
    TimeWait,
    /// SIDR_REQ sent, waiting for the SIDR_REP.
    SidrReqSent,
    /// SIDR_REQ received, the user has to answer.
    SidrReqRcvd,
}

impl State {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 20] = [
        Self::Idle,
        Self::Listen,
        Self::ReqSent,
        Self::ReqRcvd,
        Self::MraReqSent,
        Self::MraReqRcvd,
        Self::RepSent,
        Self::RepRcvd,
        Self::MraRepSent,
        Self::MraRepRcvd,
        Self::Established,
        Self::LapSent,
        Self::LapRcvd,
        Self::MraLapSent,
        Self::MraLapRcvd,
        Self::DreqSent,
        Self::DreqRcvd,
        Self::TimeWait,
        Self::SidrReqSent,
        Self::SidrReqRcvd,
    ];

    /// Whether the connection waits for its user to answer a request of the peer.
    pub(super) const fn is_pending(self) -> bool {
        matches!(self, Self::ReqRcvd | Self::MraReqSent | Self::SidrReqRcvd)
    }
}

/// What can happen to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Event {
    // Calls of the user.
    SendReq,
    SendRep,
    SendRtu,
    SendRej,
    SendMra,
    SendDreq,
    SendDrep,
    SendLap,
    SendApr,
    SendSidrReq,
    SendSidrRep,
    /// A packet of the peer arrived on the QP, or the QP's event said so.
    Establish,
    // Messages of the peer.
    Req,
    /// A REQ that crosses ours, of a peer that is to be the active side (Peer Compare).
    PeerReqHigher,
    /// A REQ that crosses ours, of a peer that is to be the passive side (Peer Compare).
    PeerReqLower,
    MraOfReq,
    MraOfRep,
    MraOfLap,
    Rej,
    /// A REJ with reason "stale connection".
    RejStale,
    Rep,
    Rtu,
    Dreq,
    Drep,
    Lap,
    /// The LAP that was answered last, once more.
    LapAgain,
    Apr,
    SidrReq,
    SidrRep,
    // Timers.
    /// The answer is late, and there are tries left.
    Late,
    /// The answer is late, and there are none.
    Exhausted,
    /// The time of TimeWait is over.
    TimeWaitOver,
}

impl Event {
    const ALL: [Self; 32] = [
        Self::SendReq,
        Self::SendRep,
        Self::SendRtu,
        Self::SendRej,
        Self::SendMra,
        Self::SendDreq,
        Self::SendDrep,
        Self::SendLap,
        Self::SendApr,
        Self::SendSidrReq,
        Self::SendSidrRep,
        Self::Establish,
        Self::Req,
        Self::PeerReqHigher,
        Self::PeerReqLower,
        Self::MraOfReq,
        Self::MraOfRep,
        Self::MraOfLap,
        Self::Rej,
        Self::RejStale,
        Self::Rep,
        Self::Rtu,
        Self::Dreq,
        Self::Drep,
        Self::Lap,
        Self::LapAgain,
        Self::Apr,
        Self::SidrReq,
        Self::SidrRep,
        Self::Late,
        Self::Exhausted,
        Self::TimeWaitOver,
    ];
}

/// What the machine does on a transition, besides what the next state demands: on the way to
/// TimeWait it starts that timer, on the way to Idle it releases the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Reaction {
    /// Sends the user's message, and sends it again until it is answered or tries are used up.
    Ask,
    /// Sends the user's message once, and keeps it to answer duplicates with.
    Tell,
    /// Stops waiting and gives the message to the user.
    Deliver,
    /// Gives the MRA to the user and waits for its service timeout.
    Extend,
    /// Stops waiting; the user knows.
    Settle,
    /// Takes a duplicate without answering.
    Ignore,
    /// Answers a duplicate with the kept answer.
    Repeat,
    /// Answers a duplicate REP with the kept RTU.
    RepeatRtu,
    /// Sends the unanswered message once more; the timer runs on.
    RepeatAsked,
    /// Answers a REQ with the kept REJ, or with a REJ for a stale connection.
    RepeatRej,
    /// Answers a DREQ with the kept DREP, or with a new one.
    RepeatDrep,
    /// Answers with a DREP on the user's behalf and gives the DREQ to the user.
    AnswerDreq,
    /// Sends the unanswered message again and waits again.
    Resend,
    /// Tells the peer by a REJ for timeout, and the user by an error.
    Abandon,
    /// Tells the user by an error.
    Fail,
    /// Tells the user that the connection's QP may be used again.
    Expire,
}

type Rows = &'static [(Event, Reaction, State)];

/// The transition relation: per state, what event causes which reaction and leads where.
pub(super) const TABLE: [(State, Rows); 20] = {
    use Event as E;
    use Reaction as R;
    use State as S;
    [
        (
            S::Idle,
            &[
                (E::SendReq, R::Ask, S::ReqSent),
                (E::SendSidrReq, R::Ask, S::SidrReqSent),
                (E::Req, R::Deliver, S::ReqRcvd),
                (E::SidrReq, R::Deliver, S::SidrReqRcvd),
            ],
        ),
        // A REQ or SIDR_REQ makes a connection of its own; the listener stays as it is.
        (S::Listen, &[]),
        (
            S::ReqSent,
            &[
                (E::SendRej, R::Tell, S::TimeWait),
                (E::PeerReqHigher, R::Deliver, S::ReqRcvd),
                (E::PeerReqLower, R::Ignore, S::ReqSent),
                (E::MraOfReq, R::Extend, S::MraReqRcvd),
                (E::Rej, R::Deliver, S::Idle),
                (E::RejStale, R::Deliver, S::TimeWait),
                (E::Rep, R::Deliver, S::RepRcvd),
                (E::Late, R::Resend, S::ReqSent),
                (E::Exhausted, R::Abandon, S::TimeWait),
            ],
        ),
        (
            S::ReqRcvd,
            &[
                (E::SendRep, R::Ask, S::RepSent),
                (E::SendRej, R::Tell, S::TimeWait),
                (E::SendMra, R::Tell, S::MraReqSent),
                (E::Req, R::Ignore, S::ReqRcvd),
                (E::Rej, R::Deliver, S::TimeWait),
                (E::RejStale, R::Deliver, S::TimeWait),
            ],
        ),
        (
            S::MraReqSent,
            &[
                (E::SendRep, R::Ask, S::RepSent),
                (E::SendRej, R::Tell, S::TimeWait),
                (E::Req, R::Repeat, S::MraReqSent),
                (E::Rej, R::Deliver, S::TimeWait),
                (E::RejStale, R::Deliver, S::TimeWait),
            ],
        ),
        (
            S::MraReqRcvd,
            &[
                (E::SendRej, R::Tell, S::TimeWait),
                (E::PeerReqLower, R::Ignore, S::MraReqRcvd),
                (E::MraOfReq, R::Ignore, S::MraReqRcvd),
                (E::Rej, R::Deliver, S::Idle),
                (E::RejStale, R::Deliver, S::TimeWait),
                (E::Rep, R::Deliver, S::RepRcvd),
                (E::Late, R::Resend, S::ReqSent),
                (E::Exhausted, R::Abandon, S::TimeWait),
            ],
        ),
        (
            S::RepSent,
            &[
                (E::SendRej, R::Tell, S::TimeWait),
                (E::Establish, R::Settle, S::Established),
                (E::Req, R::RepeatAsked, S::RepSent),
                (E::MraOfRep, R::Extend, S::MraRepRcvd),
                (E::Rej, R::Deliver, S::TimeWait),
                (E::RejStale, R::Deliver, S::TimeWait),
                (E::Rtu, R::Deliver, S::Established),
                (E::Dreq, R::Deliver, S::DreqRcvd),
                (E::Late, R::Resend, S::RepSent),
                (E::Exhausted, R::Abandon, S::TimeWait),
            ],
        ),
        (
            S::RepRcvd,
            &[
                (E::SendRtu, R::Tell, S::Established),
                (E::SendRej, R::Tell, S::TimeWait),
                (E::SendMra, R::Tell, S::MraRepSent),
                (E::Req, R::Ignore, S::RepRcvd),
                (E::Rej, R::Deliver, S::TimeWait),
                (E::RejStale, R::Deliver, S::TimeWait),
                (E::Rep, R::Ignore, S::RepRcvd),
                (E::Dreq, R::Deliver, S::DreqRcvd),
            ],
        ),
        (
            S::MraRepSent,
            &[
                (E::SendRtu, R::Tell, S::Established),
                (E::SendRej, R::Tell, S::TimeWait),
                (E::Req, R::Ignore, S::MraRepSent),
                (E::Rej, R::Deliver, S::TimeWait),
                (E::RejStale, R::Deliver, S::TimeWait),
                (E::Rep, R::Repeat, S::MraRepSent),
                (E::Dreq, R::Deliver, S::DreqRcvd),
            ],
        ),
        (
            S::MraRepRcvd,
            &[
                (E::SendRej, R::Tell, S::TimeWait),
                (E::Establish, R::Settle, S::Established),
                (E::Req, R::Ignore, S::MraRepRcvd),
                (E::MraOfRep, R::Ignore, S::MraRepRcvd),
                (E::Rej, R::Deliver, S::TimeWait),
                (E::RejStale, R::Deliver, S::TimeWait),
                (E::Rtu, R::Deliver, S::Established),
                (E::Dreq, R::Deliver, S::DreqRcvd),
                (E::Late, R::Resend, S::RepSent),
                (E::Exhausted, R::Abandon, S::TimeWait),
            ],
        ),
        (
            S::Established,
            &[
                (E::SendDreq, R::Ask, S::DreqSent),
                (E::SendLap, R::Ask, S::LapSent),
                (E::Req, R::Ignore, S::Established),
                (E::MraOfRep, R::Ignore, S::Established),
                (E::MraOfLap, R::Ignore, S::Established),
                (E::Rej, R::Deliver, S::TimeWait),
                (E::RejStale, R::Deliver, S::TimeWait),
                (E::Rep, R::RepeatRtu, S::Established),
                (E::Rtu, R::Ignore, S::Established),
                (E::Dreq, R::Deliver, S::DreqRcvd),
                (E::Lap, R::Deliver, S::LapRcvd),
                (E::LapAgain, R::Repeat, S::Established),
                (E::Apr, R::Ignore, S::Established),
            ],
        ),
        (
            S::LapSent,
            &[
                (E::SendDreq, R::Ask, S::DreqSent),
                (E::Req, R::Ignore, S::LapSent),
                (E::MraOfLap, R::Extend, S::MraLapRcvd),
                (E::Rej, R::Deliver, S::TimeWait),
                (E::RejStale, R::Deliver, S::TimeWait),
                (E::Rep, R::RepeatRtu, S::LapSent),
                (E::Rtu, R::Ignore, S::LapSent),
                (E::Dreq, R::Deliver, S::DreqRcvd),
                (E::LapAgain, R::Repeat, S::LapSent),
                (E::Apr, R::Deliver, S::Established),
                (E::Late, R::Resend, S::LapSent),
                (E::Exhausted, R::Fail, S::Established),
            ],
        ),
        (
            S::LapRcvd,
            &[
                (E::SendMra, R::Tell, S::MraLapSent),
                (E::SendDreq, R::Ask, S::DreqSent),
                (E::SendApr, R::Tell, S::Established),
                (E::Req, R::Ignore, S::LapRcvd),
                (E::Rej, R::Deliver, S::TimeWait),
                (E::RejStale, R::Deliver, S::TimeWait),
                (E::Rep, R::RepeatRtu, S::LapRcvd),
                (E::Rtu, R::Ignore, S::LapRcvd),
                (E::Dreq, R::Deliver, S::DreqRcvd),
                (E::Lap, R::Ignore, S::LapRcvd),
                (E::LapAgain, R::Ignore, S::LapRcvd),
            ],
        ),
        (
            S::MraLapSent,
            &[
                (E::SendDreq, R::Ask, S::DreqSent),
                (E::SendApr, R::Tell, S::Established),
                (E::Req, R::Ignore, S::MraLapSent),
                (E::Rej, R::Deliver, S::TimeWait),
                (E::RejStale, R::Deliver, S::TimeWait),
                (E::Rep, R::RepeatRtu, S::MraLapSent),
                (E::Rtu, R::Ignore, S::MraLapSent),
                (E::Dreq, R::Deliver, S::DreqRcvd),
                (E::Lap, R::Ignore, S::MraLapSent),
                (E::LapAgain, R::Repeat, S::MraLapSent),
            ],
        ),
        (
            S::MraLapRcvd,
            &[
                (E::SendDreq, R::Ask, S::DreqSent),
                (E::Req, R::Ignore, S::MraLapRcvd),
                (E::MraOfLap, R::Ignore, S::MraLapRcvd),
                (E::Rej, R::Deliver, S::TimeWait),
                (E::RejStale, R::Deliver, S::TimeWait),
                (E::Rep, R::RepeatRtu, S::MraLapRcvd),
                (E::Rtu, R::Ignore, S::MraLapRcvd),
                (E::Dreq, R::Deliver, S::DreqRcvd),
                (E::LapAgain, R::Repeat, S::MraLapRcvd),
                (E::Apr, R::Deliver, S::Established),
                (E::Late, R::Resend, S::LapSent),
                (E::Exhausted, R::Fail, S::Established),
            ],
        ),
        (
            S::DreqSent,
            &[
                (E::Req, R::Ignore, S::DreqSent),
                (E::Rej, R::Deliver, S::TimeWait),
                (E::RejStale, R::Deliver, S::TimeWait),
                (E::Rep, R::Ignore, S::DreqSent),
                (E::Rtu, R::Ignore, S::DreqSent),
                (E::Dreq, R::AnswerDreq, S::TimeWait),
                (E::Drep, R::Deliver, S::TimeWait),
                (E::Lap, R::Ignore, S::DreqSent),
                (E::LapAgain, R::Ignore, S::DreqSent),
                (E::Apr, R::Ignore, S::DreqSent),
                (E::Late, R::Resend, S::DreqSent),
                (E::Exhausted, R::Fail, S::TimeWait),
            ],
        ),
        (
            S::DreqRcvd,
            &[
                (E::SendDrep, R::Tell, S::TimeWait),
                (E::Req, R::Ignore, S::DreqRcvd),
                (E::Rep, R::Ignore, S::DreqRcvd),
                (E::Rtu, R::Ignore, S::DreqRcvd),
                (E::Dreq, R::Ignore, S::DreqRcvd),
                (E::Lap, R::Ignore, S::DreqRcvd),
                (E::LapAgain, R::Ignore, S::DreqRcvd),
                (E::Apr, R::Ignore, S::DreqRcvd),
            ],
        ),
        (
            S::TimeWait,
            &[
                (E::Req, R::RepeatRej, S::TimeWait),
                (E::MraOfReq, R::Ignore, S::TimeWait),
                (E::MraOfRep, R::Ignore, S::TimeWait),
                (E::MraOfLap, R::Ignore, S::TimeWait),
                (E::Rej, R::Ignore, S::TimeWait),
                (E::RejStale, R::Ignore, S::TimeWait),
                (E::Rep, R::RepeatRej, S::TimeWait),
                (E::Rtu, R::Ignore, S::TimeWait),
                (E::Dreq, R::RepeatDrep, S::TimeWait),
                (E::Drep, R::Ignore, S::TimeWait),
                (E::Lap, R::Ignore, S::TimeWait),
                (E::LapAgain, R::Ignore, S::TimeWait),
                (E::Apr, R::Ignore, S::TimeWait),
                (E::TimeWaitOver, R::Expire, S::Idle),
            ],
        ),
        (
            S::SidrReqSent,
            &[
                (E::SidrRep, R::Deliver, S::Idle),
                (E::Late, R::Resend, S::SidrReqSent),
                (E::Exhausted, R::Fail, S::Idle),
            ],
        ),
        (
            S::SidrReqRcvd,
            &[
                (E::SendSidrRep, R::Tell, S::Idle),
                (E::SidrReq, R::Ignore, S::SidrReqRcvd),
            ],
        ),
    ]
};

type Cell = Option<(Reaction, State)>;

/// [`TABLE`] by the numbers of state and event.
static CELLS: [[Cell; Event::ALL.len()]; State::ALL.len()] = cells();

const fn cells() -> [[Cell; Event::ALL.len()]; State::ALL.len()] {
    let mut cells = [[None; Event::ALL.len()]; State::ALL.len()];
    let mut state = 0;
    while state < TABLE.len() {
        let (name, rows) = TABLE[state];
        assert!(name as usize == state, "states stand in order");
        let mut row = 0;
        while row < rows.len() {
            let (event, reaction, next) = rows[row];
            let cell = &mut cells[state][event as usize];
            assert!(cell.is_none(), "one row for a state and an event");
            *cell = Some((reaction, next));
            row += 1;
        }
        state += 1;
    }
    cells
}

/// What `event` causes in `state`; `None` if it is not heard there.
pub(super) fn transition(state: State, event: Event) -> Cell {
    CELLS[state as usize][event as usize]
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::string::String;
    use core::fmt::Write as _;

    use super::*;

    fn render() -> String {
        let mut text = String::new();
        for state in State::ALL {
            writeln!(text, "{state:?}").expect("a string takes all");
            for event in Event::ALL {
                if let Some((reaction, next)) = transition(state, event) {
                    writeln!(text, "    {event:?}: {reaction:?} -> {next:?}")
                        .expect("a string takes all");
                }
            }
        }
        text
    }

    #[test]
    fn the_whole_table_is_as_reviewed() {
        assert_eq!(render(), include_str!("table.snapshot"));
    }

    #[test]
    fn numbers_of_states_and_events_are_their_places_in_the_lists() {
        for (i, state) in State::ALL.into_iter().enumerate() {
            assert_eq!(state as usize, i);
        }
        for (i, event) in Event::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, i);
        }
    }

    #[test]
    fn every_state_is_reached_from_idle_and_leads_back_but_listen() {
        let step = |from: &BTreeSet<State>| -> BTreeSet<State> {
            TABLE
                .iter()
                .filter(|(state, _)| from.contains(state))
                .flat_map(|(_, rows)| rows.iter().map(|(_, _, next)| *next))
                .chain(from.iter().copied())
                .collect()
        };
        let mut reached = BTreeSet::from([State::Idle]);
        for _ in State::ALL {
            reached = step(&reached);
        }
        let all_but_listen: BTreeSet<State> = State::ALL
            .into_iter()
            .filter(|&state| state != State::Listen)
            .collect();
        assert_eq!(reached, all_but_listen);

        for start in &all_but_listen {
            let mut reached = BTreeSet::from([*start]);
            for _ in State::ALL {
                reached = step(&reached);
            }
            assert!(reached.contains(&State::Idle), "{start:?} is a trap");
        }
    }

    #[test]
    fn a_state_that_asks_has_both_timers_and_every_other_state_none() {
        for (state, rows) in TABLE {
            let asks = TABLE.iter().any(|(_, rows)| {
                rows.iter().any(|&(_, reaction, next)| {
                    next == state && matches!(reaction, Reaction::Ask | Reaction::Extend)
                })
            });
            let has = |event| rows.iter().any(|&(e, _, _)| e == event);
            assert_eq!(has(Event::Late), asks, "{state:?}");
            assert_eq!(has(Event::Exhausted), asks, "{state:?}");
            assert_eq!(has(Event::TimeWaitOver), state == State::TimeWait);
        }
    }
}
