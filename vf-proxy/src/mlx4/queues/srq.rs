//! Shared receive queues.

use hca_api::{Hca, LKey, ReceiveMode, SrqHandle, SrqSpec};
use mlx4_defs::srq::SrqContext;
use mlx4_defs::{Pdn, Status};
use zerocopy::network_endian::U16;

use super::super::mtt::{MttPin, Mtts};
use super::super::pd::{Pds, status_of};
use super::keys::{LocalKeys, SharedKeys};
use super::receive::{SharedReceiveQueue, Slots};

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct Srq {
    pub(super) handle: SrqHandle,
    context: SrqContext,
    pin: MttPin,
    keys: SharedKeys,
    /// Queue pairs that take from here and may use the reserved key.
    kernel_users: u32,
    /// All queue pairs that take from here.
    users: u32,
}

impl Srq {
    /// Makes a queue.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`], [`Status::EXCEED_LIM`].
    pub(super) fn new(
        hca: &mut dyn Hca,
        mtts: &mut Mtts,
        pds: &mut Pds,
        context: &SrqContext,
    ) -> Result<Self, Status> {
        let log_stride = context.log_stride() + 4;
        let log_entries = context.log_entries();
        // The first 16 bytes of a receive chain it to the next one.
        if log_stride < 5 || context.page_offset != 0 {
            return Err(Status::BAD_PARAM);
        }
        let bytes = 1 << (log_entries + log_stride);
        let first = context.mtt_base.entry();
        let keys = SharedKeys::new();
        let slots = Slots {
            buffer: mtts.queue(first, context.log_page_size, bytes)?,
            offset: 0,
            log_entries,
            log_stride,
            doorbell_record: context.doorbell_record.get(),
        };
        let pin = mtts.pin(first)?;
        let limits = hca.attributes().limits;
        let made = pds.acquire(hca, tag(context)).and_then(|pd| {
            let receives = SharedReceiveQueue::new(slots, keys.clone());
            let spec = SrqSpec {
                pd,
                max_wr: (1 << log_entries).min(limits.max_srq_wr),
                max_sge: ((1 << (log_stride - 4)) - 1).min(limits.max_sge),
                limit: 0,
                receives: ReceiveMode::Pulled(Box::new(receives)),
            };
            hca.create_srq(spec).map_err(|error| {
                pds.release(hca, tag(context));
                status_of(error)
            })
        });
        match made {
            Ok(handle) => Ok(Self {
                handle,
                context: *context,
                pin,
                keys,
                kernel_users: 0,
                users: 0,
            }),
            Err(status) => {
                mtts.unpin(pin);
                Err(status)
            }
        }
    }

    /// Whether queue pairs take from it.
    pub(super) const fn is_used(&self) -> bool {
        self.users != 0
    }

    /// Ends a queue that nobody uses.
    pub(super) fn end(self, hca: &mut dyn Hca, mtts: &mut Mtts, pds: &mut Pds) {
        let gone = hca.destroy_srq(self.handle);
        debug_assert_eq!(gone, Ok(()), "nobody uses it");
        pds.release(hca, tag(&self.context));
        mtts.unpin(self.pin);
    }

    /// One more queue pair takes from it, one of the guest's kernel or not. The reserved key is valid as
    /// long as all of them are.
    ///
    /// # Errors
    /// [`Status::EXCEED_LIM`].
    pub(super) fn join(
        &mut self,
        hca: &mut dyn Hca,
        pds: &mut Pds,
        kernel: bool,
    ) -> Result<(), Status> {
        let all_kernel = kernel && self.kernel_users == self.users;
        let whole = if all_kernel {
            Some(pds.reserved_lkey(hca, tag(&self.context))?)
        } else {
            None
        };
        self.users += 1;
        self.kernel_users += u32::from(kernel);
        self.open(whole);
        Ok(())
    }

    /// A queue pair takes from it no more. A queue that was closed stays so.
    pub(super) fn leave(&mut self, kernel: bool) {
        self.users = self.users.saturating_sub(1);
        self.kernel_users = self.kernel_users.saturating_sub(u32::from(kernel));
        if self.users == 0 {
            self.open(None);
        }
    }

    fn open(&self, whole_space: Option<LKey>) {
        self.keys.set(LocalKeys { whole_space });
    }

    /// The queue as the driver asks for it.
    pub(super) fn query(&self, hca: &dyn Hca) -> SrqContext {
        let limit = hca.query_srq(self.handle).map_or(0, |srq| srq.limit);
        SrqContext {
            limit_watermark: U16::new(u16::try_from(limit).unwrap_or(u16::MAX)),
            ..self.context
        }
    }

    /// Wants an event when fewer receives are left; with 0 no more.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for a limit beyond the queue.
    pub(super) fn arm(&self, hca: &mut dyn Hca, limit: u16) -> Result<(), Status> {
        hca.modify_srq(self.handle, limit.into(), None)
            .map_err(status_of)
    }
}

/// The protection domain that a context names.
fn tag(context: &SrqContext) -> Pdn {
    Pdn(context.pd.get() & 0x1_ffff)
}
