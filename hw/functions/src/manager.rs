//! The management of virtual functions by the physical one.

use core::num::NonZeroU16;

use hca_api::{
    AddressSpace, AsyncEvent, FunctionId, FunctionManager, FunctionSpec, Hca, HcaError, QpNumbers,
    ResourceCounts, SpecialQp, VirtualPort,
};
use ib_wire::PortNum;

use crate::functions::Function;
use crate::vf::Vf;

/// Entries that the P_Key table of a virtual function may have however few its port has: as many as ConnectX-3 has. A RoCE port has one.
const MOST_PKEYS: usize = 128;

impl<H: Hca> Function<'_, H> {
    fn may_manage(&self) -> Result<(), HcaError> {
        if self.is_physical() {
            Ok(())
        } else {
            Err(HcaError::PermissionDenied)
        }
    }

    fn managed(&self, id: FunctionId) -> Result<&Vf, HcaError> {
        self.may_manage()?;
        self.functions.vf(id)
    }

    fn managed_mut(&mut self, id: FunctionId) -> Result<&mut Vf, HcaError> {
        self.may_manage()?;
        self.functions.vf_mut(id)
    }
}

impl<H: Hca> FunctionManager for Function<'_, H> {
    fn create_function(&mut self, spec: FunctionSpec) -> Result<(), HcaError> {
        self.may_manage()?;
        let id = spec.id;
        let is_taken = id == FunctionId::PF || self.functions.vf(id).is_ok();
        if is_taken || id.0 > self.functions.max_functions() {
            return Err(HcaError::InvalidParameter);
        }
        let ports = self.hca.attributes().num_ports;
        let secret = self.functions.secrets.secret();
        let memory = self.functions.spaces.add(spec.memory)?;
        let vf = Vf::new((spec.node_guid, spec.quota), memory, ports, secret);
        self.functions.insert(id, vf);
        Ok(())
    }

    fn reset_function(&mut self, id: FunctionId) -> Result<(), HcaError> {
        let vf = self.managed(id)?;
        let numbers: Vec<_> = vf.side.ends.values().map(|end| end.numbers.real).collect();
        for number in numbers {
            self.functions.numbers.remove(number);
        }
        self.functions.numbers.forget(id);
        self.functions.destroy_physical(&mut self.hca, id)?;
        self.functions.side_mut(id)?;
        self.managed_mut(id)?.reset();
        Ok(())
    }

    fn destroy_function(&mut self, id: FunctionId) -> Result<Box<dyn AddressSpace>, HcaError> {
        self.reset_function(id)?;
        let vf = self.functions.remove(id).ok_or(HcaError::InvalidHandle)?;
        vf.memory.into_space().ok_or(HcaError::InvalidHandle)
    }

    fn set_virtual_port(
        &mut self,
        id: FunctionId,
        port: PortNum,
        view: VirtualPort,
    ) -> Result<(), HcaError> {
        self.managed(id)?;
        let entries = self.hca.query_port(port)?.pkey_table_len;
        let is_beyond = view.pkeys.iter().flatten().any(|at| at.0 >= entries);
        if is_beyond || view.pkeys.len() > usize::from(entries).max(MOST_PKEYS) {
            return Err(HcaError::InvalidIndex);
        }
        self.managed_mut(id)?.port_mut(port)?.view = view;
        self.functions.follow_view(&mut self.hca, id, port)
    }

    /// Functions without data have nothing to share: all have weight 1.
    fn set_egress_weight(
        &mut self,
        id: FunctionId,
        port: PortNum,
        weight: NonZeroU16,
    ) -> Result<(), HcaError> {
        self.managed(id)?.port(port)?;
        if weight == NonZeroU16::MIN {
            Ok(())
        } else {
            Err(HcaError::Unsupported)
        }
    }

    fn notify(&mut self, id: FunctionId, event: AsyncEvent) -> Result<(), HcaError> {
        let vf = self.managed(id)?;
        if let AsyncEvent::Port { port, .. } = event {
            vf.port(port)?;
        }
        self.functions.side_mut(id)?.events.raise(event);
        Ok(())
    }

    fn resources(&self, id: FunctionId) -> Result<ResourceCounts, HcaError> {
        self.may_manage()?;
        if id != FunctionId::PF {
            return Ok(self.functions.vf(id)?.resources());
        }
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (side, owned) = (&self.functions.physical, &self.functions.owned);
        Ok(ResourceCounts {
            pds: count(side.pds.len()),
            cqs: count(side.cqs.len()),
            qps: owned.qps.saturating_add(count(side.ends.len())),
            ..*owned
        })
    }

    fn proxy_qp(
        &self,
        id: FunctionId,
        special: SpecialQp,
        port: PortNum,
    ) -> Result<Option<QpNumbers>, HcaError> {
        let vf = self.managed(id)?;
        let proxy = vf.port(port)?.special(special);
        proxy
            .map(|qp| vf.side.end(qp).map(|end| end.numbers))
            .transpose()
    }
}
