//! A program on libibverbs that punches holes into the file of its rings, which the service reads.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use verbs_link::Verb;
use verbs_link::abi::completion_queue::{CreateCq, CreateCqAnswer, ReqNotifyCq, RxeCqAnswer};
use verbs_link::abi::memory::HandleAnswer;
use verbs_link::abi::queue_pair::{
    Caps, CreateQp, CreateQpAnswer, CreateQpAttributes, ModifyQp, RxeCreateQpAnswer, attr_mask,
};
use verbs_link::abi::{CommandHeader, command};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::attacks::note;
use super::put_back::{call, call_for_file, claim, send};
use super::victims::Trouble;

/// Bytes of a file of rings.
const RINGS: usize = 256 << 20;

/// `enum ibv_qp_type`.
const UD: u8 = 4;

/// Doorbells between two requests with an answer.
const DOORBELLS: usize = 16;

/// Pause before a VF is asked for again that was refused.
const PAUSE: Duration = Duration::from_millis(5);

/// Punches the rings of one program after the other, each until the service ends its connection. A refusal counts as a step.
pub(super) fn rings(verbs: &Path, node: &str, bytes: usize) -> Result<(), Trouble> {
    let mut seals = false;
    loop {
        match Program::start(verbs, node, seals) {
            Ok(program) => program.punch(bytes.min(RINGS)),
            Err(_refused) => {
                // Programs of a user whose rings made the service wait have to seal them.
                seals = !seals;
                std::thread::sleep(PAUSE);
            }
        }
        note();
    }
}

/// A program with a queue pair, whose rings are in a file.
struct Program {
    service: OwnedFd,
    context: u32,
    file: File,
    cq: u32,
    qp: u32,
}

impl Program {
    fn start(verbs: &Path, node: &str, seals: bool) -> Result<Self, Trouble> {
        let service = claim(verbs, node)?.ok_or("no VF is free")?;
        let (opened, file) = call_for_file(&service, Verb::Open, &[], None)?;
        let file = file.ok_or("no file of rings")?;
        if seals {
            call(&service, Verb::Mapped, &[], None)?;
        }
        let mut this = Self {
            service,
            context: opened.opened,
            file: file.into(),
            cq: 0,
            qp: 0,
        };
        let _context: u64 = this.command(command::GET_CONTEXT, &0_u64, 8)?;
        let pd: HandleAnswer = this.command(command::ALLOC_PD, &0_u64, 0)?;
        let create = CreateCq {
            cqe: 63.into(),
            comp_channel: (-1).into(),
            ..CreateCq::default()
        };
        let room = size_of::<RxeCqAnswer>();
        let cq: CreateCqAnswer = this.command(command::CREATE_CQ, &create, room)?;
        this.cq = cq.cq_handle.get();
        let create = CreateQp {
            attributes: CreateQpAttributes {
                pd_handle: pd.handle,
                send_cq_handle: cq.cq_handle,
                recv_cq_handle: cq.cq_handle,
                qp_type: UD,
                caps: Caps {
                    max_send_wr: 15.into(),
                    max_recv_wr: 15.into(),
                    max_send_sge: 1.into(),
                    max_recv_sge: 1.into(),
                    max_inline_data: 0.into(),
                },
                ..CreateQpAttributes::default()
            },
            ..CreateQp::default()
        };
        let room = size_of::<RxeCreateQpAnswer>();
        let qp: CreateQpAnswer = this.command(command::CREATE_QP, &create, room)?;
        this.qp = qp.qp_handle.get();
        for (state, mask) in [
            (1, attr_mask::PKEY_INDEX | attr_mask::PORT | attr_mask::QKEY),
            (2, 0),
            (3, attr_mask::SQ_PSN),
        ] {
            let mut change = ModifyQp::new_zeroed();
            change.qp_handle = qp.qp_handle;
            change.attr_mask = (attr_mask::STATE | mask).into();
            change.qp_state = state;
            change.port_num = 1;
            let () = this.command(command::MODIFY_QP, &change, 0)?;
        }
        Ok(this)
    }

    /// Carries out a command whose answer has so many bytes of the provider behind it.
    fn command<A: FromBytes + KnownLayout + Immutable>(
        &self,
        number: u32,
        payload: &(impl IntoBytes + Immutable),
        provider: usize,
    ) -> Result<A, Trouble> {
        let payload = payload.as_bytes();
        let header = CommandHeader {
            command: number.into(),
            in_words: words(size_of::<CommandHeader>() + payload.len())?.into(),
            out_words: words(size_of::<A>() + provider)?.into(),
        };
        let body = [header.as_bytes(), payload].concat();
        let context = self.context;
        let reply = call(&self.service, Verb::Command { context }, &body, None)?;
        if let Some(error) = reply.error {
            return Err(format!("command {number} fails: {error:?}").into());
        }
        let answer = A::read_from_prefix(&reply.body).map_err(|_| "a short answer")?;
        Ok(answer.0)
    }

    /// Punches the file on one thread, and has the service read it on another, until the service ends the connection.
    fn punch(&self, bytes: usize) {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                while !is_over.load(Ordering::Relaxed) {
                    let filled = fallocate(&self.file, FallocateFlags::empty(), 0, bytes as u64);
                    let punched = fallocate(&self.file, hole, 0, bytes as u64);
                    // A file may be sealed, and beside others there may be too little memory at times.
                    if filled.and(punched).is_err() {
                        std::thread::sleep(PAUSE);
                    }
                }
            });
            while self.ring().is_ok() {
                note();
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }

    /// Rings doorbells, for which the service reads the send ring, and arms the completion queue.
    fn ring(&self) -> Result<(), Trouble> {
        let (context, qp) = (self.context, self.qp);
        for _ in 0..DOORBELLS {
            send(&self.service, Verb::Doorbell { context, qp }, &[], &[])?;
        }
        let arm = ReqNotifyCq {
            cq_handle: self.cq.into(),
            ..ReqNotifyCq::default()
        };
        self.command(command::REQ_NOTIFY_CQ, &arm, 0)
    }
}

/// Returns how many words of four bytes so many bytes are.
fn words(bytes: usize) -> Result<u16, Trouble> {
    Ok(u16::try_from(bytes / 4)?)
}
