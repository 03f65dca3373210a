//! Event queues, and what the driver makes of their entries.

use alloc::format;

use ib_wire::{PortNum, Qpn};
use mlx4_defs::bar::Register;
use mlx4_defs::eq::EqDoorbell;
use mlx4_defs::eqe::{
    CommandEvent, CqErrorEvent, EQE_SIZE, Eqe, EventType, NumberEvent, PORT_ACTIVE, PORT_DOWN,
    PortChangeEvent, PortManagementEvent, PortManagementSubtype,
};
use mlx4_defs::{Cqn, Eqn, Srqn};
use zerocopy::FromBytes;

use super::buffer::MappedBuffer;
use super::comm::UAR_BAR;
use super::error::oops;
use super::{Bus, DriverError};

/// Entries that the driver takes before it tells the device, without arming
/// (`MLX4_NUM_SPARE_EQE`).
pub(super) const SPARE_ENTRIES: u32 = 0x80;

/// An event of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Something about a queue pair.
    Qp {
        /// The queue pair's number.
        qpn: Qpn,
        /// Type of the event.
        kind: EventType,
    },
    /// Something about a shared receive queue.
    Srq {
        /// The queue's number.
        srqn: Srqn,
        /// Type of the event.
        kind: EventType,
    },
    /// A completion queue is out of order.
    CqError {
        /// The queue's number.
        cqn: Cqn,
        /// Why.
        syndrome: u8,
    },
    /// A port became active, or is no longer.
    PortChange {
        /// The port.
        port: PortNum,
        /// `true` if it is active now.
        active: bool,
    },
    /// An attribute of a port changed.
    PortManagement {
        /// The port.
        port: PortNum,
        /// Table that changed.
        what: PortManagementSubtype,
        /// The changed attributes of PortInfo, as bits.
        changed: u32,
    },
}

/// An entry, before the driver looks anything up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A completion queue that was armed has something.
    Completion(Cqn),
    /// A command is done.
    Command { token: u16, status: u8 },
    /// Everything else.
    Event(Event),
}

/// An event queue.
#[derive(Debug)]
pub(super) struct EventQueue {
    pub(super) eqn: Eqn,
    pub(super) vector: u16,
    pub(super) entries: u32,
    pub(super) mapped: MappedBuffer,
    /// `true` if its interrupt is requested, so that the driver serves it.
    pub(super) is_served: bool,
    consumer: u32,
}

impl EventQueue {
    pub(super) const fn new(eqn: Eqn, vector: u16, entries: u32, mapped: MappedBuffer) -> Self {
        Self {
            eqn,
            vector,
            entries,
            mapped,
            is_served: false,
            consumer: 0,
        }
    }

    /// Takes the next entry, if it is the driver's.
    pub(super) fn next(&mut self) -> Result<Option<Entry>, DriverError> {
        let slot = (self.consumer & (self.entries - 1)) as usize;
        let bytes: [u8; EQE_SIZE] = self.mapped.buffer.read(slot * EQE_SIZE);
        let eqe = Eqe::read_from_bytes(&bytes).map_err(|_| oops("an EQE has 32 bytes"))?;
        if eqe.owner() != (self.consumer & self.entries != 0) {
            return Ok(None);
        }
        self.consumer = self.consumer.wrapping_add(1);
        parse(&eqe).map(Some)
    }

    /// Writes the consumer index for the device, and asks for an interrupt for the next entry if `arm`.
    pub(super) fn set_consumer(&self, bus: &mut dyn Bus, arm: bool) {
        let doorbell = EqDoorbell::new(self.consumer, arm).word;
        let register = Register::Eq { eqn: self.eqn };
        bus.write_be32(UAR_BAR, register.offset(), doorbell.get());
    }
}

/// Parses an entry as `mlx4_eq_int` does. An entry that no VF's driver can live with is an error.
fn parse(eqe: &Eqe) -> Result<Entry, DriverError> {
    let number = eqe.view::<NumberEvent>().get();
    let kind = eqe.event_type;
    let event = match kind {
        EventType::COMP => return Ok(Entry::Completion(Cqn::from_low_bits(number))),
        EventType::CMD => {
            let data: &CommandEvent = eqe.view();
            return Ok(Entry::Command {
                token: data.token.get(),
                status: data.status.get(),
            });
        }
        EventType::PATH_MIG
        | EventType::COMM_EST
        | EventType::SQ_DRAINED
        | EventType::SRQ_QP_LAST_WQE
        | EventType::WQ_CATAS_ERROR
        | EventType::PATH_MIG_FAILED
        | EventType::WQ_INVAL_REQ_ERROR
        | EventType::WQ_ACCESS_ERROR => Event::Qp {
            qpn: Qpn::from_low_bits(number),
            kind,
        },
        EventType::SRQ_LIMIT | EventType::SRQ_CATAS_ERROR => Event::Srq {
            srqn: Srqn::from_low_bits(number),
            kind,
        },
        EventType::CQ_ERROR => {
            let data: &CqErrorEvent = eqe.view();
            Event::CqError {
                cqn: data.cqn,
                syndrome: data.syndrome,
            }
        }
        EventType::PORT_CHANGE => {
            let data: &PortChangeEvent = eqe.view();
            if ![PORT_ACTIVE, PORT_DOWN].contains(&eqe.subtype) {
                return Err(oops(format!("a port change of kind {:#x}", eqe.subtype)));
            }
            Event::PortChange {
                port: PortNum(data.port()),
                active: eqe.subtype == PORT_ACTIVE,
            }
        }
        EventType::PORT_MNG_CHG_EVENT => {
            let data: &PortManagementEvent = eqe.view();
            if data.changed.sm_lid() || data.changed.sm_sl() {
                return Err(oops("a VF is told of another SM in interrupt context"));
            }
            Event::PortManagement {
                port: PortNum(data.port),
                what: PortManagementSubtype::new(eqe.subtype),
                changed: data.changed.word.get(),
            }
        }
        _ => return Err(oops(format!("unhandled event {:#x}", kind.get()))),
    };
    Ok(Entry::Event(event))
}
