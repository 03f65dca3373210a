//! Outcome of two lists of requests by IBA, message by message: no packets, no PSNs.

use ib_transport::{
    AtomicOp, Effects, Event, Flush, Operation, Received, ReceivedKind, RemoteRight, RemoteRights,
    RemoteStart, Request, Status,
};

use ib_wire::packet::FlushSelectivity;

use crate::host::{Buffer, Host};

/// A message that was not delivered: bytes of it may or may not be in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unknown {
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// Executes the requests of `a` at `b`. Returns the part of `b`'s memory that a failed request leaves open.
pub(crate) fn execute(
    a: &mut Host,
    b: &mut Host,
    requests: &[Request<Buffer>],
    rights: RemoteRights,
) -> Option<Unknown> {
    let mut failed = false;
    let mut unknown = None;
    for request in requests {
        if failed {
            a.complete_send(*request, Status::Flushed);
            continue;
        }
        let (status, left_open) = one(a, b, request, rights);
        a.complete_send(*request, status);
        failed = status != Status::Success;
        unknown = unknown.or(left_open);
    }
    unknown
}

fn one(
    a: &mut Host,
    b: &mut Host,
    request: &Request<Buffer>,
    rights: RemoteRights,
) -> (Status, Option<Unknown>) {
    let has_wrong_length = match request.operation {
        Operation::Atomic(..) => request.len < 8,
        Operation::AtomicWrite(_) => request.len != 8,
        _ => false,
    };
    if has_wrong_length {
        return (Status::LocalLength, None);
    }
    let is_bad = a.bad_buffers.contains(&request.buffer.id);
    if request.operation.is_local() {
        let status = if is_bad {
            Status::MemoryManagement
        } else {
            Status::Success
        };
        return (status, None);
    }
    if is_bad {
        return (Status::LocalProtection, None);
    }
    let len = request.len as usize;
    let bytes = a.memory[request.buffer.at..request.buffer.at + len].to_vec();
    match request.operation {
        Operation::Send => deliver(b, request, &bytes, None),
        Operation::SendImmediate(data) => deliver(b, request, &bytes, Some(data)),
        Operation::SendInvalidate(_) | Operation::Local { .. } => unreachable!("not generated"),
        Operation::Write(to) => write(b, request, to, &bytes, None, rights.write),
        Operation::WriteImmediate(to, data) => {
            write(b, request, to, &bytes, Some(data), rights.write)
        }
        Operation::Read(from) => {
            if !rights.read {
                return refuse(b, Status::RemoteInvalidRequest, Event::RequestError);
            }
            if request.len > 0
                && b.look_up(from.rkey, from.addr, request.len, RemoteRight::Read)
                    .is_err()
            {
                return refuse(b, Status::RemoteAccess, Event::AccessError);
            }
            let at = usize::try_from(from.addr).unwrap_or(0);
            if len > 0 {
                let data = b.memory[at..at + len].to_vec();
                a.memory[request.buffer.at..request.buffer.at + len].copy_from_slice(&data);
            }
            (Status::Success, None)
        }
        Operation::Atomic(at, op) => atomic(a, b, request, at, op, rights.atomic),
        Operation::Flush(at, kind) => flush(b, request, at, kind, rights),
        Operation::AtomicWrite(to) => {
            if !rights.write || !to.addr.is_multiple_of(8) {
                return refuse(b, Status::RemoteInvalidRequest, Event::RequestError);
            }
            if b.look_up(to.rkey, to.addr, 8, RemoteRight::Write).is_err() {
                return refuse(b, Status::RemoteAccess, Event::AccessError);
            }
            let at = usize::try_from(to.addr).unwrap_or(0);
            b.atomics += 1;
            b.memory[at..at + 8].copy_from_slice(&a.memory[request.buffer.at..][..8]);
            (Status::Success, None)
        }
    }
}

fn flush(
    b: &mut Host,
    request: &Request<Buffer>,
    at: RemoteStart,
    flush: Flush,
    rights: RemoteRights,
) -> (Status, Option<Unknown>) {
    let known = matches!(flush.placement.get(), 1..=3);
    if !known || !rights.flush.contains(flush.placement) {
        return refuse(b, Status::RemoteInvalidRequest, Event::RequestError);
    }
    let is_range = flush.selectivity == FlushSelectivity::RANGE;
    let range = is_range.then_some((at.addr, request.len));
    if b.flush(at.rkey, range, flush.placement).is_err() {
        return refuse(b, Status::RemoteAccess, Event::AccessError);
    }
    (Status::Success, None)
}

fn refuse(b: &mut Host, status: Status, event: Event) -> (Status, Option<Unknown>) {
    b.raise(event);
    (status, None)
}

fn deliver(
    b: &mut Host,
    request: &Request<Buffer>,
    bytes: &[u8],
    immediate: Option<[u8; 4]>,
) -> (Status, Option<Unknown>) {
    let Some(receive) = b.receives.pop_front() else {
        return (Status::RnrRetryExceeded, None);
    };
    let capacity = receive.len as usize;
    let unknown = Unknown {
        at: receive.at,
        len: capacity,
    };
    let (status, answer) = if b.bad_receives.contains(&receive.id) && !bytes.is_empty() {
        // The first packet tells; one that is longer than the receive by itself is found to be that first.
        if bytes.len().min(256) > capacity {
            (Status::LocalLength, Status::RemoteInvalidRequest)
        } else {
            (Status::LocalProtection, Status::RemoteOperation)
        }
    } else if bytes.len() > capacity {
        (Status::LocalLength, Status::RemoteInvalidRequest)
    } else {
        b.memory[receive.at..receive.at + bytes.len()].copy_from_slice(bytes);
        (Status::Success, Status::Success)
    };
    let success = status == Status::Success;
    b.complete_receive(Received {
        receive,
        status,
        kind: ReceivedKind::Send,
        len: if success { request.len } else { 0 },
        immediate: immediate.filter(|_| success),
        invalidated: None,
        solicited: success && request.solicited,
    });
    (answer, (!success).then_some(unknown))
}

fn write(
    b: &mut Host,
    request: &Request<Buffer>,
    to: RemoteStart,
    bytes: &[u8],
    immediate: Option<[u8; 4]>,
    right: bool,
) -> (Status, Option<Unknown>) {
    if !right {
        return refuse(b, Status::RemoteInvalidRequest, Event::RequestError);
    }
    if request.len > 0
        && b.look_up(to.rkey, to.addr, request.len, RemoteRight::Write)
            .is_err()
    {
        return refuse(b, Status::RemoteAccess, Event::AccessError);
    }
    let at = usize::try_from(to.addr).unwrap_or(0);
    if immediate.is_some() {
        let Some(receive) = b.receives.pop_front() else {
            let len = bytes.len();
            let open = (len > 0).then_some(Unknown { at, len });
            return (Status::RnrRetryExceeded, open);
        };
        b.complete_receive(Received {
            receive,
            status: Status::Success,
            kind: ReceivedKind::WriteImmediate,
            len: request.len,
            immediate,
            invalidated: None,
            solicited: request.solicited,
        });
    }
    if !bytes.is_empty() {
        b.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }
    (Status::Success, None)
}

fn atomic(
    a: &mut Host,
    b: &mut Host,
    request: &Request<Buffer>,
    at: RemoteStart,
    op: AtomicOp,
    right: bool,
) -> (Status, Option<Unknown>) {
    if !right || !at.addr.is_multiple_of(8) {
        return refuse(b, Status::RemoteInvalidRequest, Event::RequestError);
    }
    let Ok(region) = b.look_up(at.rkey, at.addr, 8, RemoteRight::Atomic) else {
        return refuse(b, Status::RemoteAccess, Event::AccessError);
    };
    let original = b.atomic(region, at.addr, op).expect("just looked up");
    a.store_original(&request.buffer, original)
        .expect("checked before");
    (Status::Success, None)
}
