//! Shared receive queues.

use std::sync::Arc;

use hca_api::{Hca, ReceiveMode, SrqHandle, SrqSpec};
use verbs_link::abi::completion_queue::EventsReported;
use verbs_link::abi::shared_receive_queue::{
    CreateSrq, CreateSrqAnswer, CreateXsrq, ModifySrq, QuerySrqAnswer, RxeCreateSrqAnswer,
    RxeModifySrq,
};
use verbs_link::abi::{AnsweredHandleCommand, command};
use verbs_link::budget::cost;
use verbs_link::{Answer, Command, Errno, Reply};
use zerocopy::{FromBytes, IntoBytes};

use super::{ContextId, Owned, ProcessDevice};
use crate::ring::{ReceiveRing, Ring, SharedReceiveRing, SharedReceiveSource, receive_element};

/// The size is given (`IBV_SRQ_MAX_WR`).
const MAX_WR: u32 = 1;
/// The limit is given (`IBV_SRQ_LIMIT`).
const LIMIT: u32 = 2;

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct Srq {
    pub(super) provider: SrqHandle,
    pub(super) ring: Arc<SharedReceiveRing>,
    pub(super) user_handle: u64,
    max_sge: u32,
    pub(super) async_events: u32,
    /// Queue pairs that take receives here.
    pub(super) users: u32,
}

impl ProcessDevice {
    pub(super) fn create_srq(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<Answer, Errno> {
        let asked = if command.number == command::CREATE_XSRQ {
            let (asked, _) = command.read::<CreateXsrq>()?;
            if asked.srq_type.get() != 0 {
                return Err(Errno::EOPNOTSUPP);
            }
            CreateSrq {
                response: asked.response,
                user_handle: asked.user_handle,
                pd_handle: asked.pd_handle,
                max_wr: asked.max_wr,
                max_sge: asked.max_sge,
                srq_limit: asked.srq_limit,
            }
        } else {
            command.read::<CreateSrq>()?.0
        };
        let pd = *self.pds.get(context, asked.pd_handle.get())?;
        let limits = hca.attributes().limits;
        let (max_wr, max_sge) = (asked.max_wr.get(), asked.max_sge.get());
        if !(1..limits.max_srq_wr).contains(&max_wr) || max_sge > limits.max_sge {
            return Err(Errno::EINVAL);
        }
        let rings = self.rings()?;
        let _charge = self.charge(cost::SHARED_RECEIVE_QUEUE)?;
        let list = usize::try_from(max_sge).map_err(|_| Errno::EINVAL)?;
        let ring = Ring::new(&rings, &mut self.extents, max_wr, receive_element(list));
        let ring = ring.ok_or(Errno::ENOMEM)?;
        let (capacity, place) = (ring.capacity(), ring.place());
        let ring = Arc::new(SharedReceiveRing::new(ReceiveRing::new(ring, list)));
        let made = hca.create_srq(SrqSpec {
            pd,
            max_wr: capacity,
            max_sge,
            limit: asked.srq_limit.get(),
            receives: ReceiveMode::Pulled(Box::new(SharedReceiveSource(ring.clone()))),
        });
        let provider = match made {
            Ok(provider) => provider,
            Err(error) => {
                ring.current().ring().give_back(&mut self.extents);
                return Err(error.into());
            }
        };
        let object = Srq {
            provider,
            ring,
            user_handle: asked.user_handle.get(),
            max_sge,
            async_events: 0,
            users: 0,
        };
        let handle = self.new_handle();
        let owned = Owned {
            context,
            object,
            _charge,
        };
        self.srqs.0.insert(handle, owned);
        let answer = CreateSrqAnswer {
            srq_handle: handle.into(),
            max_wr: capacity.into(),
            max_sge: max_sge.into(),
            srqn: handle.into(),
        };
        Ok(Answer::new(&answer).with(&RxeCreateSrqAnswer {
            ring: place,
            srq_num: handle.into(),
            reserved: 0.into(),
        }))
    }

    pub(super) fn modify_srq(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<Answer, Errno> {
        let (asked, rest) = command.read::<ModifySrq>()?;
        let srq = self.srqs.get(context, asked.srq_handle.get())?;
        let mask = asked.attr_mask.get();
        if mask & !(MAX_WR | LIMIT) != 0 {
            return Err(Errno::EINVAL);
        }
        if mask & MAX_WR != 0 {
            let (to, _) = RxeModifySrq::read_from_prefix(rest).map_err(|_| Errno::EINVAL)?;
            self.resize_srq(hca, context, &asked, to.mmap_info_addr.get())?;
        } else if mask & LIMIT != 0 {
            let limit = asked.srq_limit.get();
            if limit > srq.ring.current().ring().capacity() {
                return Err(Errno::EINVAL);
            }
            hca.modify_srq(srq.provider, limit, None)?;
        }
        Ok(Answer::default())
    }

    /// Moves a queue to a ring of another size, and writes the place of that ring to the program's memory. The limit stays unless
    /// the command gives one.
    fn resize_srq(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        asked: &ModifySrq,
        to: u64,
    ) -> Result<(), Errno> {
        let srq = self.srqs.get(context, asked.srq_handle.get())?;
        let max_wr = asked.max_wr.get();
        let limit = if asked.attr_mask.get() & LIMIT != 0 {
            asked.srq_limit.get()
        } else {
            hca.query_srq(srq.provider)?.limit
        };
        let most = hca.attributes().limits.max_srq_wr;
        let waiting = srq.ring.current().waiting();
        if !(1..most).contains(&max_wr) || limit > max_wr || waiting > max_wr {
            return Err(Errno::EINVAL);
        }
        let list = usize::try_from(srq.max_sge).map_err(|_| Errno::EINVAL)?;
        let (provider, current) = (srq.provider, srq.ring.clone());
        let rings = self.rings()?;
        let ring = Ring::new(&rings, &mut self.extents, max_wr, receive_element(list));
        let ring = ring.ok_or(Errno::ENOMEM)?;
        let (capacity, place) = (ring.capacity(), ring.place());
        if !ring.reach(waiting) {
            ring.give_back(&mut self.extents);
            return Err(Errno::ENOMEM);
        }
        if hca.dma_write(to, place.as_bytes()).is_err() {
            ring.give_back(&mut self.extents);
            return Err(Errno::EFAULT);
        }
        let resized = hca.modify_srq(provider, limit, Some(capacity));
        if let Err(error) = resized {
            ring.give_back(&mut self.extents);
            return Err(error.into());
        }
        match current.move_to(ReceiveRing::new(ring, list)) {
            Ok(old) => {
                old.ring().give_back(&mut self.extents);
                Ok(())
            }
            Err(new) => {
                new.ring().give_back(&mut self.extents);
                Err(Errno::ENOMEM)
            }
        }
    }

    pub(super) fn query_srq(
        &self,
        hca: &dyn Hca,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<Answer, Errno> {
        let (asked, _) = command.read::<AnsweredHandleCommand>()?;
        let srq = self.srqs.get(context, asked.handle.get())?;
        let is = hca.query_srq(srq.provider)?;
        Ok(Answer::new(&QuerySrqAnswer {
            max_wr: srq.ring.current().ring().capacity().into(),
            max_sge: srq.max_sge.into(),
            srq_limit: is.limit.into(),
            reserved: 0.into(),
        }))
    }

    pub(super) fn destroy_srq(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<(Answer, Reply), Errno> {
        let (asked, _) = command.read::<AnsweredHandleCommand>()?;
        let handle = asked.handle.get();
        let srq = self.srqs.get(context, handle)?;
        if srq.users > 0 {
            return Err(Errno::EBUSY);
        }
        let answer = EventsReported {
            events_reported: srq.async_events.into(),
        };
        let reply = self.retired(context, srq.user_handle);
        self.end_srq(hca, handle);
        Ok((Answer::new(&answer), reply))
    }

    pub(super) fn end_srq(&mut self, hca: &mut dyn Hca, handle: u32) {
        if let Some(owned) = self.srqs.0.remove(&handle) {
            // No queue pair takes receives there any more.
            let _ = hca.destroy_srq(owned.object.provider);
            owned
                .object
                .ring
                .current()
                .ring()
                .give_back(&mut self.extents);
        }
    }
}
