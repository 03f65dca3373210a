//! Transaction ids on their way through the simulator, which writes the slot of the sender into the top
//! 16 bits of each request and expects them back in the response.

use ib_wire::Tid;

/// Marks the uplink's own questions, above the 32 bits that a PF context uses.
const QUERY: u64 = 0x5550;

/// The bits that the simulator writes.
const SLOT: u64 = 0xffff << 48;

/// The id of one of the uplink's own questions.
pub(super) const fn of_query(serial: u32) -> Tid {
    Tid::new(QUERY << 32 | serial as u64)
}

/// The question behind an id that came back, if it is one of the uplink's.
pub(super) fn query_serial(tid: Tid) -> Option<u32> {
    let id = without_slot(tid);
    let low = u32::try_from(id & u64::from(u32::MAX)).ok()?;
    (id >> 32 == QUERY).then_some(low)
}

/// What the sender of a request may count on.
pub(super) const fn without_slot(tid: Tid) -> u64 {
    tid.get() & !SLOT
}

/// The bits that the simulator overwrites, as a number.
pub(super) const fn top(tid: Tid) -> u64 {
    tid.get() & SLOT
}
