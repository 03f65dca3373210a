//! What the physical function does with the virtual ones.

use core::num::NonZeroU16;

use hca_api::{
    AddressSpace, AsyncEvent, FunctionId, FunctionManager, FunctionSpec, HcaError, Privileges,
    QpHandle, QpNumbers, ResourceCounts, SpecialQp, VirtualPort,
};
use ib_wire::PortNum;

use super::function::FunctionState;
use super::{Device, Function};

impl Function<'_> {
    fn may_manage(&self) -> Result<(), HcaError> {
        if self
            .device
            .state(self.id)?
            .has(Privileges::MANAGE_FUNCTIONS)
        {
            Ok(())
        } else {
            Err(HcaError::PermissionDenied)
        }
    }

    /// A virtual function, to be worked on by a function that may.
    fn virtual_function(&mut self, id: FunctionId) -> Result<&mut FunctionState, HcaError> {
        self.may_manage()?;
        if id == FunctionId::PF {
            return Err(HcaError::InvalidHandle);
        }
        self.device.state_mut(id)
    }
}

impl FunctionManager for Function<'_> {
    fn create_function(&mut self, spec: FunctionSpec) -> Result<(), HcaError> {
        self.may_manage()?;
        let device = &mut *self.device;
        let index = usize::from(spec.id.0);
        let taken = device.functions.get(index).is_some_and(Option::is_some);
        if taken || spec.id.0 > device.max_functions {
            return Err(HcaError::InvalidParameter);
        }
        let secret = device.secrets.secret();
        let ports = device.node.port_count();
        let state = FunctionState::new(spec, Privileges::empty(), ports, secret);
        if device.functions.len() <= index {
            device.functions.resize_with(index + 1, || None);
        }
        device.functions[index] = Some(Box::new(state));
        Ok(())
    }

    fn reset_function(&mut self, id: FunctionId) -> Result<(), HcaError> {
        self.virtual_function(id)?;
        self.device.disarm_all(id);
        self.virtual_function(id)?.reset();
        self.device.forget_queue_pairs(id);
        // What the function had announced on the ports goes with it.
        for port in 1..=self.device.node.port_count() {
            self.device.merge_capabilities(PortNum(port));
        }
        Ok(())
    }

    fn destroy_function(&mut self, id: FunctionId) -> Result<Box<dyn AddressSpace>, HcaError> {
        self.reset_function(id)?;
        self.device.stirred.retain(|stirred| *stirred != id);
        for egress in &mut self.device.egress {
            egress.backlog.set_weight(id, NonZeroU16::MIN);
        }
        self.device.functions[usize::from(id.0)]
            .take()
            .map(|state| state.memory.into_space())
            .ok_or(HcaError::InvalidHandle)
    }

    fn set_virtual_port(
        &mut self,
        id: FunctionId,
        port: PortNum,
        view: VirtualPort,
    ) -> Result<(), HcaError> {
        self.virtual_function(id)?;
        let physical = self.device.node.port(port).ok_or(HcaError::InvalidPort)?;
        if view.pkeys.len() > usize::from(physical.pkey_cap)
            || view
                .pkeys
                .iter()
                .flatten()
                .any(|at| at.0 >= physical.pkey_cap)
        {
            return Err(HcaError::InvalidIndex);
        }
        self.virtual_function(id)?
            .port_mut(port)
            .ok_or(HcaError::InvalidPort)?
            .view = view;
        Ok(())
    }

    fn set_egress_weight(
        &mut self,
        id: FunctionId,
        port: PortNum,
        weight: NonZeroU16,
    ) -> Result<(), HcaError> {
        self.virtual_function(id)?;
        let egress = self.device.egress_mut(port).ok_or(HcaError::InvalidPort)?;
        egress.backlog.set_weight(id, weight);
        Ok(())
    }

    fn notify(&mut self, id: FunctionId, event: AsyncEvent) -> Result<(), HcaError> {
        let state = self.virtual_function(id)?;
        if let AsyncEvent::Port { port, .. } = event {
            state.port(port).ok_or(HcaError::InvalidPort)?;
        }
        state.events.raise(event);
        Ok(())
    }

    fn resources(&self, id: FunctionId) -> Result<ResourceCounts, HcaError> {
        self.may_manage()?;
        Ok(self.device.state(id)?.resources())
    }

    fn proxy_qp(
        &self,
        id: FunctionId,
        special: SpecialQp,
        port: PortNum,
    ) -> Result<Option<QpNumbers>, HcaError> {
        self.may_manage()?;
        if id == FunctionId::PF {
            return Err(HcaError::InvalidHandle);
        }
        let state = self.device.state(id)?;
        let own = state.port(port).ok_or(HcaError::InvalidPort)?;
        own.special(special)
            .map(|index| state.qp(QpHandle(index)).map(|qp| qp.numbers))
            .transpose()
    }
}

impl Device {
    /// Takes a function's queue pairs, which are gone, out of the device's tables.
    fn forget_queue_pairs(&mut self, id: FunctionId) {
        self.qpns.release_all(id);
        self.groups.detach_all(id);
        for egress in &mut self.egress {
            egress.backlog.remove_function(id);
        }
    }
}
