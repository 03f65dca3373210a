//! Event queue entries.

use ib_wire::{Lid, PortNum, Qpn, SubnetPrefix, bit_fields};
use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::{Cqn, Srqn, Status};

/// Bytes of an entry.
pub const EQE_SIZE: usize = size_of::<Eqe>();

ib_wire::open_enum! {
    /// What an event is about (`enum mlx4_event`).
    EventType(u8) {
        /// A completion in a queue that was armed.
        COMP = 0x00,
        /// A path has migrated.
        PATH_MIG = 0x01,
        /// A packet arrived at a queue pair in "ready to receive".
        COMM_EST = 0x02,
        /// A send queue has drained.
        SQ_DRAINED = 0x03,
        /// A completion queue is out of order.
        CQ_ERROR = 0x04,
        /// A work queue is out of order.
        WQ_CATAS_ERROR = 0x05,
        /// An end-to-end context is out of order.
        EEC_CATAS_ERROR = 0x06,
        /// A path could not migrate.
        PATH_MIG_FAILED = 0x07,
        /// The device is out of order.
        LOCAL_CATAS_ERROR = 0x08,
        /// A port went up or down.
        PORT_CHANGE = 0x09,
        /// A command is done.
        CMD = 0x0a,
        /// A memory error.
        ECC_DETECT = 0x0e,
        /// An event queue has overflowed.
        EQ_OVERFLOW = 0x0f,
        /// A queue pair got an invalid request.
        WQ_INVAL_REQ_ERROR = 0x10,
        /// A queue pair got a request without permission.
        WQ_ACCESS_ERROR = 0x11,
        /// A shared receive queue is out of order.
        SRQ_CATAS_ERROR = 0x12,
        /// The last receive that a failed queue pair took from its shared queue is complete.
        SRQ_QP_LAST_WQE = 0x13,
        /// A shared receive queue fell below its limit.
        SRQ_LIMIT = 0x14,
        /// PF only: a virtual function gave a command.
        COMM_CHANNEL = 0x18,
        /// PF only: a port's MAC changed.
        VEP_UPDATE = 0x19,
        /// PF only. A virtual function's driver crashes on it.
        OP_REQUIRED = 0x1a,
        /// The device is hot.
        FATAL_WARNING = 0x1b,
        /// PF only: a function-level reset.
        FLR_EVENT = 0x1c,
        /// An attribute of a port changed.
        PORT_MNG_CHG_EVENT = 0x1d,
        /// A cable is bad.
        RECOVERABLE_ERROR_EVENT = 0x3e,
        /// No event.
        NONE = 0xff,
    }
}

ib_wire::open_enum! {
    /// What changed, in [`EventType::PORT_MNG_CHG_EVENT`] (`MLX4_DEV_PMC_SUBTYPE_*`).
    PortManagementSubtype(u8) {
        /// The port's GUID.
        GUID_INFO = 0x14,
        /// Attributes of the port's PortInfo, see [`ChangedAttributes`].
        PORT_INFO = 0x15,
        /// The P_Key table.
        PKEY_TABLE = 0x16,
        /// The SL to VL table.
        SL_TO_VL_MAP = 0x17,
    }
}

/// Subtype of [`EventType::PORT_CHANGE`]: the port went down (`MLX4_PORT_CHANGE_SUBTYPE_DOWN`).
pub const PORT_DOWN: u8 = 1;

/// Subtype of [`EventType::PORT_CHANGE`]: the port is active (`MLX4_PORT_CHANGE_SUBTYPE_ACTIVE`).
pub const PORT_ACTIVE: u8 = 4;

/// Syndrome of [`EventType::CQ_ERROR`]: the queue was full (`mlx4_ib_cq_event` and `mlx4_eq_int` tell it
/// from an access violation, which is any other).
pub const CQ_OVERRUN: u8 = 1;

/// Syndrome of [`EventType::CQ_ERROR`]: its memory could not be written.
pub const CQ_ACCESS_VIOLATION: u8 = 2;

layout! {
    /// An entry (`struct mlx4_eqe`).
    Eqe, 32 {
        /// Reserved.
        0x00 pub reserved0: u8,
        /// What the event is about.
        0x01 pub event_type: EventType,
        /// Reserved.
        0x02 pub reserved1: u8,
        /// A variant of the event.
        0x03 pub subtype: u8,
        /// The event's data: [`NumberEvent`], [`CqErrorEvent`], [`CommandEvent`],
        /// [`PortChangeEvent`] or [`PortManagementEvent`].
        0x04 pub data: [u8; 24],
        /// The virtual function's number; 0 in its own queues.
        0x1c pub slave_id: u8,
        /// Reserved.
        0x1d pub reserved2: [u8; 2],
        /// See [`Self::owner`].
        0x1f pub owner_byte: u8,
    }
}

/// Data of an event ([`Eqe::data`]).
pub trait EventData:
    FromBytes + IntoBytes + zerocopy::Immutable + zerocopy::KnownLayout + zerocopy::Unaligned
{
}

layout! {
    /// Data of an event of a queue: its number.
    NumberEvent, 24 {
        /// Reserved.
        0x00 pub reserved0: u8,
        /// A number of 24 bits: a CQN, QPN or SRQN.
        0x01 pub number: [u8; 3],
        /// Reserved.
        0x04 pub reserved1: [u8; 20],
    }
}

impl EventData for NumberEvent {}

impl NumberEvent {
    /// The number.
    #[must_use]
    pub const fn get(&self) -> u32 {
        let [a, b, c] = self.number;
        u32::from_be_bytes([0, a, b, c])
    }
}

layout! {
    /// Data of [`EventType::CQ_ERROR`].
    CqErrorEvent, 24 {
        /// Reserved.
        0x00 pub reserved0: u8,
        /// The queue.
        0x01 pub cqn: Cqn,
        /// Reserved.
        0x04 pub reserved1: [u8; 7],
        /// [`CQ_OVERRUN`] or [`CQ_ACCESS_VIOLATION`].
        0x0b pub syndrome: u8,
        /// Reserved.
        0x0c pub reserved2: [u8; 12],
    }
}

impl EventData for CqErrorEvent {}

layout! {
    /// Data of [`EventType::CMD`].
    CommandEvent, 24 {
        /// Reserved.
        0x00 pub reserved0: [u8; 2],
        /// Which command: a virtual function's commands that end by event are counted from 1.
        0x02 pub token: U16,
        /// Reserved.
        0x04 pub reserved1: [u8; 7],
        /// Always [`Status::OK`] for a virtual function, whose status is in the [`crate::Vhcr`].
        0x0b pub status: Status,
        /// Zero for a virtual function.
        0x0c pub out_param: U64,
        /// Reserved.
        0x14 pub reserved2: [u8; 4],
    }
}

impl EventData for CommandEvent {}

layout! {
    /// Data of [`EventType::PORT_CHANGE`].
    PortChangeEvent, 24 {
        /// Reserved.
        0x00 pub reserved0: [u8; 8],
        /// See [`Self::port`].
        0x08 pub port_word: U32,
        /// Reserved.
        0x0c pub reserved1: [u8; 12],
    }
}

impl EventData for PortChangeEvent {}

impl PortChangeEvent {
    bit_fields! {
        /// The port's number.
        port, set_port: u8 = port_word >> 28, 4;
    }
}

layout! {
    /// Data of [`EventType::PORT_MNG_CHG_EVENT`]. With [`PortManagementSubtype::PORT_INFO`] all fields
    /// count, else the port alone.
    PortManagementEvent, 24 {
        /// Reserved.
        0x00 pub reserved0: [u8; 3],
        /// The port's number.
        0x03 pub port: u8,
        /// LID of the master SM.
        0x04 pub sm_lid: Lid,
        /// LID of the port.
        0x06 pub lid: Lid,
        /// Which attributes changed.
        0x08 pub changed: ChangedAttributes,
        /// Reserved.
        0x0c pub reserved1: [u8; 3],
        /// SL to the master SM.
        0x0f pub sm_sl: u8,
        /// The port's prefix.
        0x10 pub gid_prefix: SubnetPrefix,
    }
}

impl EventData for PortManagementEvent {}

layout! {
    /// What changed in a port's PortInfo.
    ChangedAttributes, 4 {
        /// The bits.
        0x0 pub word: U32,
    }
}

impl ChangedAttributes {
    bit_fields! {
        /// SL to the master SM (`MLX4_EQ_PORT_INFO_MSTR_SM_SL_CHANGE_MASK`). Never told to a
        /// virtual function.
        sm_sl, set_sm_sl: bool = word >> 4, 1;
        /// Clients shall register anew with the SA (`MLX4_EQ_PORT_INFO_CLIENT_REREG_MASK`).
        client_reregister, set_client_reregister: bool = word >> 3, 1;
        /// LID of the port (`MLX4_EQ_PORT_INFO_LID_CHANGE_MASK`).
        lid, set_lid: bool = word >> 2, 1;
        /// The prefix of its GIDs (`MLX4_EQ_PORT_INFO_GID_PFX_CHANGE_MASK`).
        gid_prefix, set_gid_prefix: bool = word >> 1, 1;
        /// LID of the master SM (`MLX4_EQ_PORT_INFO_MSTR_SM_LID_CHANGE_MASK`). Never told to a
        /// virtual function.
        sm_lid, set_sm_lid: bool = word >> 0, 1;
    }
}

impl Eqe {
    bit_fields! {
        /// Who may read the entry: entry `n` of the running count is the driver's if this equals
        /// `n & entries != 0`.
        owner, set_owner: bool = owner_byte >> 7, 1;
    }

    /// A completion arrived in an armed queue.
    #[must_use]
    pub fn completion(cqn: Cqn) -> Self {
        Self::number(EventType::COMP, cqn.get())
    }

    /// Something happened to a queue pair; `event_type` says what.
    #[must_use]
    pub fn qp(event_type: EventType, qpn: Qpn) -> Self {
        Self::number(event_type, qpn.get())
    }

    /// Something happened to a shared receive queue; `event_type` says what.
    #[must_use]
    pub fn srq(event_type: EventType, srqn: Srqn) -> Self {
        Self::number(event_type, srqn.get())
    }

    /// A completion queue is out of order.
    #[must_use]
    pub fn cq_error(cqn: Cqn, syndrome: u8) -> Self {
        let data = CqErrorEvent {
            cqn,
            syndrome,
            ..CqErrorEvent::default()
        };
        Self::new(EventType::CQ_ERROR, 0, &data)
    }

    /// The command with a token is done.
    #[must_use]
    pub fn command(token: u16) -> Self {
        let data = CommandEvent {
            token: U16::new(token),
            ..CommandEvent::default()
        };
        Self::new(EventType::CMD, 0, &data)
    }

    /// A port is active, or no longer.
    #[must_use]
    pub fn port_change(port: PortNum, active: bool) -> Self {
        let mut data = PortChangeEvent::default();
        data.set_port(port.0);
        let subtype = if active { PORT_ACTIVE } else { PORT_DOWN };
        Self::new(EventType::PORT_CHANGE, subtype, &data)
    }

    /// The GUID of a port changed.
    #[must_use]
    pub fn guid_change(port: PortNum) -> Self {
        Self::port_management(
            PortManagementSubtype::GUID_INFO,
            port,
            ChangedAttributes::default(),
        )
    }

    /// The P_Key table of a port changed.
    #[must_use]
    pub fn pkey_change(port: PortNum) -> Self {
        Self::port_management(
            PortManagementSubtype::PKEY_TABLE,
            port,
            ChangedAttributes::default(),
        )
    }

    /// Attributes of a port's PortInfo changed.
    #[must_use]
    pub fn port_info_change(port: PortNum, changed: ChangedAttributes) -> Self {
        Self::port_management(PortManagementSubtype::PORT_INFO, port, changed)
    }

    fn port_management(
        subtype: PortManagementSubtype,
        port: PortNum,
        changed: ChangedAttributes,
    ) -> Self {
        let data = PortManagementEvent {
            port: port.0,
            changed,
            ..PortManagementEvent::default()
        };
        Self::new(EventType::PORT_MNG_CHG_EVENT, subtype.get(), &data)
    }

    fn number(event_type: EventType, number: u32) -> Self {
        let [_, number @ ..] = number.to_be_bytes();
        let data = NumberEvent {
            number,
            ..NumberEvent::default()
        };
        Self::new(event_type, 0, &data)
    }

    fn new(event_type: EventType, subtype: u8, data: &impl EventData) -> Self {
        let mut eqe = Self {
            event_type,
            subtype,
            ..Self::default()
        };
        eqe.data.copy_from_slice(data.as_bytes());
        eqe
    }

    /// The event's data, as one of the layouts.
    #[must_use]
    pub fn view<T: EventData>(&self) -> &T {
        let Ok(data) = T::ref_from_bytes(&self.data) else {
            unreachable!("the layouts of an event's data all have its size and need no alignment")
        };
        data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: PortNum = PortNum(1);

    fn entry(words: [u32; 4]) -> [u8; EQE_SIZE] {
        let mut bytes = [0; EQE_SIZE];
        for (chunk, word) in bytes.chunks_mut(4).zip(words) {
            chunk.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    #[test]
    fn events_have_the_bytes_that_the_driver_reads() {
        let mut rereg = ChangedAttributes::default();
        rereg.set_client_reregister(true);
        let mut lid = ChangedAttributes::default();
        lid.set_lid(true);
        let mut prefix = ChangedAttributes::default();
        prefix.set_gid_prefix(true);
        let cqn = Cqn::from_low_bits(0x85);
        let qpn = Qpn::from_low_bits(0x4a1);
        let events = [
            (Eqe::command(1), [0x000a_0000, 1, 0, 0]),
            (Eqe::port_change(PORT, true), [0x0009_0004, 0, 0, 1 << 28]),
            (Eqe::port_change(PORT, false), [0x0009_0001, 0, 0, 1 << 28]),
            (Eqe::pkey_change(PORT), [0x001d_0016, 1, 0, 0]),
            (Eqe::guid_change(PORT), [0x001d_0014, 1, 0, 0]),
            (Eqe::port_info_change(PORT, rereg), [0x001d_0015, 1, 0, 8]),
            (Eqe::port_info_change(PORT, lid), [0x001d_0015, 1, 0, 4]),
            (Eqe::port_info_change(PORT, prefix), [0x001d_0015, 1, 0, 2]),
            (Eqe::completion(cqn), [0, 0x85, 0, 0]),
            (Eqe::cq_error(cqn, CQ_OVERRUN), [0x0004_0000, 0x85, 0, 1]),
            (
                Eqe::qp(EventType::SQ_DRAINED, qpn),
                [0x0003_0000, 0x4a1, 0, 0],
            ),
            (
                Eqe::srq(EventType::SRQ_LIMIT, Srqn::from_low_bits(7)),
                [0x0014_0000, 7, 0, 0],
            ),
        ];
        for (eqe, words) in events {
            assert_eq!(eqe.as_bytes(), entry(words), "{eqe:?}");
        }
    }

    #[test]
    fn data_reads_back() {
        let eqe = Eqe::completion(Cqn::from_low_bits(0xab_cdef));
        assert_eq!(eqe.view::<NumberEvent>().get(), 0xab_cdef);
        assert_eq!(
            Eqe::command(0x102).view::<CommandEvent>().token.get(),
            0x102
        );
        let eqe = Eqe::port_change(PortNum(2), true);
        assert_eq!(eqe.view::<PortChangeEvent>().port(), 2);
    }

    #[test]
    fn the_owner_is_the_top_bit_of_the_last_byte() {
        let mut eqe = Eqe::default();
        eqe.set_owner(true);
        assert_eq!(eqe.as_bytes()[31], 0x80);
    }
}
