//! What a command does.

ib_wire::open_enum! {
    /// The opcode of a command (`MLX4_CMD_*`), 12 bits. Only those that a virtual function's driver gives.
    Opcode(u16) {
        /// Read the device's limits.
        QUERY_DEV_CAP = 0x003,
        /// Read the firmware's version.
        QUERY_FW = 0x004,
        /// Read the board's identification.
        QUERY_ADAPTER = 0x006,
        /// Start a port.
        INIT_PORT = 0x009,
        /// Stop a port.
        CLOSE_PORT = 0x00a,
        /// Read what the PF set the device up with.
        QUERY_HCA = 0x00b,
        /// Change a port's attributes.
        SET_PORT = 0x00c,
        /// Hand a memory region to the device.
        SW2HW_MPT = 0x00d,
        /// Read a memory region.
        QUERY_MPT = 0x00e,
        /// Take a memory region back.
        HW2SW_MPT = 0x00f,
        /// Write page addresses.
        WRITE_MTT = 0x011,
        /// Assign event types to an event queue.
        MAP_EQ = 0x012,
        /// Hand an event queue to the device.
        SW2HW_EQ = 0x013,
        /// Take an event queue back.
        HW2SW_EQ = 0x014,
        /// Hand a completion queue to the device.
        SW2HW_CQ = 0x016,
        /// Take a completion queue back.
        HW2SW_CQ = 0x017,
        /// Read a completion queue's context.
        QUERY_CQ = 0x018,
        /// Queue pair: reset to initialised.
        RST2INIT_QP = 0x019,
        /// Queue pair: initialised to ready to receive.
        INIT2RTR_QP = 0x01a,
        /// Queue pair: ready to receive to ready to send.
        RTR2RTS_QP = 0x01b,
        /// Queue pair: change attributes in ready to send.
        RTS2RTS_QP = 0x01c,
        /// Queue pair: send queue error to ready to send.
        SQERR2RTS_QP = 0x01d,
        /// Queue pair: any state to error.
        TO_ERR_QP = 0x01e,
        /// Queue pair: ready to send to send queue drained.
        RTS2SQD_QP = 0x01f,
        /// Queue pair: send queue drained to ready to send.
        SQD2RTS_QP = 0x020,
        /// Queue pair: any state to reset.
        TO_RST_QP = 0x021,
        /// Read a queue pair's context.
        QUERY_QP = 0x022,
        /// Ask the port's management agent.
        MAD_IFC = 0x024,
        /// Resize a completion queue, or set its moderation.
        MODIFY_CQ = 0x02c,
        /// Queue pair: change attributes in initialised.
        INIT2INIT_QP = 0x02d,
        /// Wait until accesses under earlier keys are over.
        SYNC_TPT = 0x02f,
        /// Do nothing, and say so by interrupt.
        NOP = 0x031,
        /// Hand a shared receive queue to the device.
        SW2HW_SRQ = 0x035,
        /// Take a shared receive queue back.
        HW2SW_SRQ = 0x036,
        /// Read a shared receive queue's context.
        QUERY_SRQ = 0x037,
        /// Queue pair: change attributes in send queue drained.
        SQD2SQD_QP = 0x038,
        /// Read or change the device's configuration.
        CONFIG_DEV = 0x03a,
        /// Access a register.
        ACCESS_REG = 0x03b,
        /// Set the limit of a shared receive queue.
        ARM_SRQ = 0x040,
        /// Read a port's limits.
        QUERY_PORT = 0x043,
        /// Read a counter.
        QUERY_IF_STAT = 0x054,
        /// Change attributes of a queue pair in any state.
        UPDATE_QP = 0x061,
        /// Reserve numbers of a resource.
        ALLOC_RES = 0xf00,
        /// Give numbers of a resource back.
        FREE_RES = 0xf01,
        /// Read what the function may use.
        QUERY_FUNC_CAP = 0xf0a,
        /// Attach a queue pair to a multicast group, or detach it.
        QP_ATTACH = 0xf0b,
    }
}

ib_wire::impl_bits! {
    Opcode, u16, Opcode::new, Opcode::get;
}
