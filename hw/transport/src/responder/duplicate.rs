//! Requests that were executed before (IBA 9.7.5.1.1, 9.7.5.1.3).

use super::Responder;
use super::history::{Record, Stream};
use crate::effects::{Effects, RemoteRight};
use crate::psn::PsnOrder;
use crate::request::RemoteRange;
use crate::run::{Run, RunOperation};

impl<R: Copy, V> Responder<R, V> {
    /// Answers a request that was executed before; nothing is executed but reads.
    pub(super) fn duplicate<E>(&mut self, run: &Run, fx: &mut E)
    where
        E: Effects<Region = R, Receive = V>,
    {
        self.duplicates += u64::from(run.packets);
        let answered = match run.operation {
            RunOperation::Send(_) | RunOperation::Write(..) => {
                if run.ack_request {
                    // Beyond the next read or atomic operation the acknowledgement would tell the requester that
                    // the answer of that one is lost.
                    let newest = run.psn.wrapping_add(run.packets - 1);
                    let end = self.history.first_after(newest).unwrap_or(self.expected);
                    self.duplicate_ack = Some(end.wrapping_sub(1));
                }
                run.ack_request
            }
            RunOperation::Read(range) => self.read_again(run, range, fx),
            RunOperation::Atomic(_, asked) => self.answer_again(
                run,
                |record| matches!(record, Record::Atomic { op, .. } if op.is_same_opcode(asked)),
            ),
            RunOperation::AtomicWrite(_) => {
                self.answer_again(run, |record| matches!(record, Record::AtomicWrite))
            }
            RunOperation::Flush(..) => {
                self.answer_again(run, |record| matches!(record, Record::Flush))
            }
            RunOperation::Reserved => false,
        };
        // The requester has gone back, so a NAK may have been lost: the next gap is told again.
        self.nak_sent &= !answered;
    }

    /// Serves a read again from memory as it is now. Returns `false` if it is not one that is remembered.
    fn read_again<E>(&mut self, run: &Run, asked: RemoteRange, fx: &mut E) -> bool
    where
        E: Effects<Region = R, Receive = V>,
    {
        let pmtu = self.config.pmtu;
        let Some(entry) = self.history.find(run.psn) else {
            return false;
        };
        let Record::Read {
            region,
            range,
            from,
        } = &mut entry.record
        else {
            return false;
        };
        let at = run.psn.since(entry.psn).unsigned_abs();
        let skipped = u64::from(at) * u64::from(pmtu.bytes());
        // Equal PSNs carry equal bytes (IBA 9.4.4): the rest of the range, at the place that the PSN says.
        let is_rest = at >= *from
            && asked.rkey == range.rkey
            && asked.addr == range.addr.wrapping_add(skipped)
            && u64::from(asked.len) + skipped == u64::from(range.len);
        if !is_rest {
            return false;
        }
        if asked.len > 0 {
            let Ok(found) = fx.look_up(asked.rkey, asked.addr, asked.len, RemoteRight::Read) else {
                return false;
            };
            *region = Some(found);
        }
        *from = at;
        // A stream that has not come so far yet will bring it.
        if entry.pending.is_none_or(|stream| stream.next > at) {
            entry.pending = Some(Stream {
                start: at,
                next: at,
            });
        }
        true
    }

    /// Answers a request of one packet again: an atomic operation by its remembered value, an atomic write or a flush. Returns `false`
    /// if it is not one that is remembered.
    fn answer_again(&mut self, run: &Run, is_same: impl FnOnce(&Record<R>) -> bool) -> bool {
        let Some(entry) = self.history.find(run.psn) else {
            return false;
        };
        let is_same = is_same(&entry.record);
        if is_same {
            entry.pending = Some(Stream { start: 0, next: 0 });
        }
        is_same
    }
}
