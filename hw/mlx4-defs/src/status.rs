//! How a command ends.

ib_wire::open_enum! {
    /// The status of a command (`mlx4_status_to_errno`): what the driver returns to its caller is said
    /// with each value. Any other value is `EIO` to it.
    Status(u8) {
        /// Done.
        OK = 0x00,
        /// The device failed (`EIO`).
        INTERNAL_ERR = 0x01,
        /// The command is not permitted (`EPERM`).
        BAD_OP = 0x02,
        /// A parameter is wrong, or the opcode is unknown (`EINVAL`).
        BAD_PARAM = 0x03,
        /// The device is not in the state for it (`ENXIO`).
        BAD_SYS_STATE = 0x04,
        /// The resource does not exist or is in the wrong ownership (`EBADF`).
        BAD_RESOURCE = 0x05,
        /// The resource is in use (`EBUSY`).
        RESOURCE_BUSY = 0x06,
        /// A limit is reached (`ENOMEM`).
        EXCEED_LIM = 0x08,
        /// The resource is not in the state for it (`EBADF`).
        BAD_RES_STATE = 0x09,
        /// The index is beyond the table (`EBADF`).
        BAD_INDEX = 0x0a,
        /// The non-volatile memory is faulty (`EFAULT`).
        BAD_NVMEM = 0x0b,
        /// The device's own memory cannot be mapped (`ENFILE`).
        ICM_ERROR = 0x0c,
        /// The queue pair is not in the state for it (`EINVAL`).
        BAD_QP_STATE = 0x10,
        /// A parameter of a segment is wrong (`EFAULT`).
        BAD_SEG_PARAM = 0x20,
        /// Memory windows are bound to the region (`EBUSY`).
        REG_BOUND = 0x21,
        /// The host's memory is not ready (`EAGAIN`).
        LAM_NOT_PRE = 0x22,
        /// The packet is malformed (`EINVAL`).
        BAD_PKT = 0x30,
        /// More than there is room for (`ENOMEM`).
        BAD_SIZE = 0x40,
        /// The driver has to run as a virtual function's (`EACCES`). A virtual function's driver that reads
        /// this during its start begins again, for ever.
        MULTI_FUNC_REQ = 0x50,
    }
}

impl core::error::Error for Status {}
