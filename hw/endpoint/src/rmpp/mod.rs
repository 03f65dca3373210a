//! The reliable multi-packet protocol (IBA 13.6): the two halves of one transfer.
//!
//! **Sender.** The window starts at one segment. Each ACK says up to where everything arrived and
//! how far the sender may go.
//!
//! | state | input | does |
//! | --- | --- | --- |
//! | sending | room in the window | next segment; ACK timer restarts |
//! | sending | ACK of more, or of a wider window | the window moves; resends are restored |
//! | sending | ACK of the last segment | done |
//! | sending | old or repeated ACK | nothing |
//! | sending | ACK beyond what was sent | ABORT 123 |
//! | sending | ACK whose window ends before its segment | ABORT 122 |
//! | sending | ACK timer | back to the first unacknowledged segment; after the last resend ABORT 126 |
//! | sending | STOP, ABORT | ends |
//!
//! **Receiver.**
//!
//! | state | input | does |
//! | --- | --- | --- |
//! | receiving | first segment, or the last of the window in order | ACK, opening the window |
//! | receiving | any other new segment of the window | keeps it |
//! | receiving | segment that was acknowledged | repeats the ACK |
//! | receiving | segment that was received but not acknowledged | ACK of what is in order: the sender went back |
//! | receiving | segment beyond the window | drops it |
//! | receiving | last segment in order | ACK; the message is complete |
//! | receiving | First or Last flag, or length, inconsistent | ABORT 120 or 119 |
//! | receiving | longer than allowed | STOP 1 |
//! | receiving | nothing new for the receive timeout | ABORT 118 |
//! | complete | any DATA segment within the retention time | repeats the last ACK |
//!
//! **Dual-sided** (IBA 13.6.5): the request itself is a transfer. When its sender gets the last ACK
//! it sends the turn-around: an ACK of segment 0 with a window of 1. The responder repeats its last
//! ACK until it sees that, and only then sends the first segment of its response.

mod receiver;
mod sender;

pub(crate) use receiver::{Ack, Received, Receiver};
pub(crate) use sender::{AckOutcome, Sender};
