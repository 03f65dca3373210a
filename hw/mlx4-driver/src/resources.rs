//! Numbers that the device hands out.

use alloc::format;

use mlx4_defs::Opcode;
use mlx4_defs::resource::{
    QpReservation, ResourceModifier, ResourceOp, ResourceParam, ResourceType,
};

use super::error::oops;
use super::lower::Core;
use super::{Bus, Command, DriverError, Output};

/// User of a number (`enum mlx4_resource_usage`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Usage {
    Nobody = 0,
    Driver = 1,
    User = 2,
}

impl Core {
    fn allocate(
        &mut self,
        bus: &mut dyn Bus,
        resource: ResourceType,
        op: ResourceOp,
        usage: Usage,
        value: u64,
    ) -> Result<u64, DriverError> {
        let mut modifier = ResourceModifier::new(resource);
        modifier.set_usage(usage as u8);
        let command = Command::new(Opcode::ALLOC_RES, modifier.word.get())
            .variant(op.get())
            .value(value)
            .giving(Output::Value);
        self.execute(bus, &command).map(|reply| reply.value)
    }

    fn give_back(
        &mut self,
        bus: &mut dyn Bus,
        resource: ResourceType,
        op: ResourceOp,
        value: u64,
    ) -> Result<(), DriverError> {
        let modifier = ResourceModifier::new(resource);
        let command = Command::new(Opcode::FREE_RES, modifier.word.get())
            .variant(op.get())
            .value(value);
        self.execute(bus, &command).map(|_| ())
    }

    /// Takes a number, or a range, that needs no more.
    pub(super) fn reserve_and_map(
        &mut self,
        bus: &mut dyn Bus,
        resource: ResourceType,
        value: u64,
    ) -> Result<u64, DriverError> {
        let op = ResourceOp::RESERVE_AND_MAP;
        let number = self.allocate(bus, resource, op, Usage::Nobody, value)?;
        u32::try_from(number)
            .map(u64::from)
            .map_err(|_| oops(format!("{resource:?} number {number:#x}")))
    }

    pub(super) fn unmap_and_release(
        &mut self,
        bus: &mut dyn Bus,
        resource: ResourceType,
        value: u64,
    ) -> Result<(), DriverError> {
        self.give_back(bus, resource, ResourceOp::RESERVE_AND_MAP, value)
    }

    /// Reserves queue pair numbers (`mlx4_qp_reserve_range`).
    pub(super) fn reserve_qpns(
        &mut self,
        bus: &mut dyn Bus,
        count: u32,
        align: u32,
        usage: Usage,
    ) -> Result<u32, DriverError> {
        let mut reservation = QpReservation::default();
        reservation.set_count(count);
        let value = ResourceParam {
            low: reservation.word.get(),
            high: align,
        };
        let (resource, op) = (ResourceType::QP, ResourceOp::RESERVE);
        let first = self.allocate(bus, resource, op, usage, value.into())?;
        let first = ResourceParam::from(first).low;
        // Bit 23 marks extended reliable connections; 0 is no number.
        if first == 0 || first + count > 1 << 23 || !first.is_multiple_of(align.max(1)) {
            return Err(oops(format!("queue pair number {first:#x}")));
        }
        Ok(first)
    }

    pub(super) fn release_qpns(
        &mut self,
        bus: &mut dyn Bus,
        first: u32,
        count: u32,
    ) -> Result<(), DriverError> {
        let value = ResourceParam {
            low: first,
            high: count,
        };
        self.give_back(bus, ResourceType::QP, ResourceOp::RESERVE, value.into())
    }

    /// Backs a reserved number with the device's memory.
    pub(super) fn map(
        &mut self,
        bus: &mut dyn Bus,
        resource: ResourceType,
        number: u32,
        usage: Usage,
    ) -> Result<(), DriverError> {
        let op = ResourceOp::MAP_ICM;
        self.allocate(bus, resource, op, usage, number.into())
            .map(|_| ())
    }

    pub(super) fn unmap(
        &mut self,
        bus: &mut dyn Bus,
        resource: ResourceType,
        number: u32,
    ) -> Result<(), DriverError> {
        self.give_back(bus, resource, ResourceOp::MAP_ICM, number.into())
    }

    /// Reserves the index of a memory region.
    pub(super) fn reserve_mpt(&mut self, bus: &mut dyn Bus) -> Result<u32, DriverError> {
        let (resource, op) = (ResourceType::MPT, ResourceOp::RESERVE);
        let index = self.allocate(bus, resource, op, Usage::Nobody, 0)?;
        let index = ResourceParam::from(index).low;
        if index >= self.caps.num_mpts || index == 1 {
            return Err(oops(format!("memory region {index:#x}")));
        }
        Ok(index)
    }

    pub(super) fn release_mpt(&mut self, bus: &mut dyn Bus, index: u32) -> Result<(), DriverError> {
        self.give_back(bus, ResourceType::MPT, ResourceOp::RESERVE, index.into())
    }

    pub(super) fn reserve_counter(&mut self, bus: &mut dyn Bus) -> Result<u32, DriverError> {
        let (resource, op) = (ResourceType::COUNTER, ResourceOp::RESERVE);
        let counter = self.allocate(bus, resource, op, Usage::Driver, 0)?;
        Ok(ResourceParam::from(counter).low)
    }

    pub(super) fn free_counter(
        &mut self,
        bus: &mut dyn Bus,
        counter: u32,
    ) -> Result<(), DriverError> {
        let op = ResourceOp::RESERVE;
        self.give_back(bus, ResourceType::COUNTER, op, counter.into())
    }
}
