//! Address handles and multicast groups.

use hca_api::Hca;
use ib_wire::{Gid, Lid};
use verbs_link::abi::HandleCommand;
use verbs_link::abi::memory::{CreateAh, HandleAnswer, RxeCreateAhAnswer};
use verbs_link::abi::queue_pair::Multicast;
use verbs_link::budget::cost;
use verbs_link::{Answer, Command, Errno};

use super::{ContextId, Owned, ProcessDevice};

impl ProcessDevice {
    pub(super) fn create_ah(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<Answer, Errno> {
        let (asked, _) = command.read::<CreateAh>()?;
        let pd = *self.pds.get(context, asked.pd_handle.get())?;
        let _charge = self.charge(cost::ADDRESS)?;
        let object = hca.create_av(pd, &asked.path().vector())?;
        let handle = self.new_handle();
        let owned = Owned {
            context,
            object,
            _charge,
        };
        self.ahs.0.insert(handle, owned);
        let answer = HandleAnswer {
            handle: handle.into(),
        };
        // The number 0 would stand for a kernel that has no numbers; handles begin with 1.
        Ok(Answer::new(&answer).with(&RxeCreateAhAnswer {
            ah_num: handle.into(),
            reserved: 0.into(),
        }))
    }

    pub(super) fn destroy_ah(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<Answer, Errno> {
        let (named, _) = command.read::<HandleCommand>()?;
        let handle = named.handle.get();
        hca.destroy_av(*self.ahs.get(context, handle)?)?;
        self.ahs.0.remove(&handle);
        Ok(Answer::default())
    }

    pub(super) fn attach(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<Answer, Errno> {
        let (asked, _) = command.read::<Multicast>()?;
        let qp = self.qps.get(context, asked.qp_handle.get())?;
        let mlid = Lid::new(asked.mlid.get());
        hca.attach_multicast(qp.provider, Gid(asked.gid), mlid)?;
        Ok(Answer::default())
    }

    pub(super) fn detach(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<Answer, Errno> {
        let (asked, _) = command.read::<Multicast>()?;
        let qp = self.qps.get(context, asked.qp_handle.get())?;
        let mlid = Lid::new(asked.mlid.get());
        hca.detach_multicast(qp.provider, Gid(asked.gid), mlid)?;
        Ok(Answer::default())
    }
}
