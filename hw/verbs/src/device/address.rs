//! Address handles and multicast groups.

use hca_api::{AddressVector, GlobalRoute, Hca};
use ib_wire::{Gid, GidIndex, Lid, PortNum, Rate, Sl};

use super::{ContextId, Owned, ProcessDevice};
use crate::abi::HandleCommand;
use crate::abi::memory::{CreateAh, HandleAnswer, RxeCreateAhAnswer};
use crate::abi::queue_pair::{Multicast, QpDestination};
use crate::budget::cost;
use crate::{Answer, Command, Errno};

impl QpDestination {
    /// Returns the address vector that a path stands for.
    pub(super) fn vector(&self) -> AddressVector {
        AddressVector {
            port: PortNum(self.port_num),
            dlid: Lid::new(self.dlid.get()),
            sl: Sl::from_low_bits(self.sl),
            path_bits: self.src_path_bits,
            static_rate: (self.static_rate != 0).then_some(Rate::new(self.static_rate)),
            grh: (self.is_global != 0).then(|| GlobalRoute {
                remote_gid: Gid(self.dgid),
                sgid_index: GidIndex(self.sgid_index.into()),
                flow_label: self.flow_label.get() & 0x000f_ffff,
                hop_limit: self.hop_limit,
                traffic_class: self.traffic_class,
            }),
        }
    }

    /// Returns the path of an address vector.
    pub(super) fn of(vector: &AddressVector) -> Self {
        let mut path = Self {
            dlid: vector.dlid.get().into(),
            sl: vector.sl.get(),
            src_path_bits: vector.path_bits,
            static_rate: vector.static_rate.map_or(0, |rate| rate.get()),
            port_num: vector.port.0,
            ..Self::default()
        };
        if let Some(route) = &vector.grh {
            path.is_global = 1;
            path.dgid = route.remote_gid.0;
            path.flow_label = route.flow_label.into();
            path.sgid_index = u8::try_from(route.sgid_index.0).unwrap_or(0);
            path.hop_limit = route.hop_limit;
            path.traffic_class = route.traffic_class;
        }
        path
    }
}

impl CreateAh {
    fn path(&self) -> QpDestination {
        QpDestination {
            dgid: self.dgid,
            flow_label: self.flow_label,
            dlid: self.dlid,
            reserved: 0.into(),
            sgid_index: self.sgid_index,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            sl: self.sl,
            src_path_bits: self.src_path_bits,
            static_rate: self.static_rate,
            is_global: self.is_global,
            port_num: self.port_num,
        }
    }
}

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
