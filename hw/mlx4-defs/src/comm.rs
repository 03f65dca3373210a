//! The communication channel: how the driver of a virtual function gives commands.
//!
//! Source: `mlx4_comm_cmd_post`, `mlx4_init_slave`, `mlx4_master_do_cmd`, `mlx4_reset_slave`.

use ib_wire::bit_fields;
use zerocopy::network_endian::U32;

/// Offset of the register that the driver writes its commands to (`slave_write`).
pub const SLAVE_WRITE: u64 = 0x0;

/// Offset of the register that the driver reads the answers from (`slave_read`).
pub const SLAVE_READ: u64 = 0x4;

/// Offset of the capabilities (`MLX4_COMM_CHAN_CAPS`).
pub const CAPS: u64 = 0x8;

/// Offset of the flags (`MLX4_COMM_CHAN_FLAGS`).
pub const FLAGS: u64 = 0xc;

/// Offset behind the last register.
pub const REGISTERS_END: u64 = 0x10;

/// Revision of the interface that the driver accepts (`mlx4_init_slave`).
pub const INTERFACE_REVISION: u8 = 1;

/// Version of the channel.
pub const CHANNEL_VERSION: u8 = 1;

ib_wire::open_enum! {
    /// A command of the channel (`enum mlx4_comm_cmd` of the driver).
    CommCommand(u8) {
        /// Forget everything; legal at any time.
        RESET = 0,
        /// Bits 63..48 of the VHCR's address.
        VHCR0 = 1,
        /// Bits 47..32 of the VHCR's address.
        VHCR1 = 2,
        /// Bits 31..16 of the VHCR's address.
        VHCR2 = 3,
        /// Bits 15..0 of the VHCR's address; commands may follow.
        VHCR_EN = 4,
        /// Execute the command in the VHCR.
        VHCR_POST = 5,
    }
}

ib_wire::impl_bits! {
    CommCommand, u8, CommCommand::new, CommCommand::get;
}

layout! {
    /// What the driver writes to [`SLAVE_WRITE`].
    CommRequest, 4 {
        /// The bits.
        0x0 pub word: U32,
    }
}

impl CommRequest {
    /// The request's word.
    #[must_use]
    pub fn new(toggle: bool, command: CommCommand, param: u16) -> Self {
        let mut request = Self::default();
        request.set_toggle(toggle);
        request.set_command(command);
        request.set_param(param);
        request
    }

    bit_fields! {
        /// Differs from the toggle of the command before: a command is outstanding as long as
        /// [`SLAVE_READ`] has another one.
        toggle, set_toggle: bool = word >> 31, 1;
        /// What to do.
        command, set_command: CommCommand = word >> 16, 8;
        /// 16 bits of the VHCR's address, else zero.
        param, set_param: u16 = word >> 0, 16;
    }
}

layout! {
    /// What the driver reads from [`SLAVE_READ`].
    CommAnswer, 4 {
        /// The bits.
        0x0 pub word: U32,
    }
}

impl CommAnswer {
    /// The answer to any command but [`CommCommand::RESET`].
    #[must_use]
    pub fn new(toggle: bool) -> Self {
        let mut answer = Self::default();
        answer.set_toggle(toggle);
        answer
    }

    /// The answer to [`CommCommand::RESET`], with the revisions of the interface.
    #[must_use]
    pub fn to_reset(toggle: bool) -> Self {
        let mut answer = Self::new(toggle);
        answer.set_interface_revision(INTERFACE_REVISION);
        answer.set_channel_version(CHANNEL_VERSION);
        answer
    }

    /// The answer to a command out of order: the channel is back where it was before a reset.
    #[must_use]
    pub fn failed(toggle: bool) -> Self {
        let mut answer = Self::new(toggle);
        answer.set_internal_error(true);
        answer
    }

    bit_fields! {
        /// The toggle of the last command that is done.
        toggle, set_toggle: bool = word >> 31, 1;
        /// The device lost the driver's state and wants it to start anew
        /// (`COMM_CHAN_EVENT_INTERNAL_ERR`).
        internal_error, set_internal_error: bool = word >> 17, 1;
        /// After a reset: revision of the interface.
        interface_revision, set_interface_revision: u8 = word >> 8, 8;
        /// After a reset: version of the channel.
        channel_version, set_channel_version: u8 = word >> 0, 8;
    }
}

layout! {
    /// The word at [`CAPS`].
    CommCaps, 4 {
        /// The bits.
        0x0 pub word: U32,
    }
}

impl CommCaps {
    bit_fields! {
        /// The driver may reset the function by [`CommFlags`] (`COMM_CHAN_RST_OFFSET`). Without
        /// it a driver that wants to recover from an error halts the guest.
        vf_reset, set_vf_reset: bool = word >> 30, 1;
    }
}

layout! {
    /// The word at [`FLAGS`].
    CommFlags, 4 {
        /// The bits.
        0x0 pub word: U32,
    }
}

impl CommFlags {
    bit_fields! {
        /// The driver wants a reset as long as this differs from [`Self::reset_done`]
        /// (`COM_CHAN_RST_REQ_OFFSET`).
        reset_request, set_reset_request: bool = word >> 16, 1;
        /// The channel does not answer yet (`COMM_CHAN_OFFLINE_OFFSET`).
        offline, set_offline: bool = word >> 9, 1;
        /// The last request that the device has served (`COM_CHAN_RST_ACK_OFFSET`).
        reset_done, set_reset_done: bool = word >> 8, 1;
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn commands_have_the_bytes_of_the_driver() {
        let commands = [
            (true, CommCommand::RESET, 0, [0x80, 0, 0, 0]),
            (false, CommCommand::VHCR0, 0, [0, 1, 0, 0]),
            (true, CommCommand::VHCR1, 1, [0x80, 2, 0, 1]),
            (false, CommCommand::VHCR2, 0x2345, [0, 3, 0x23, 0x45]),
            (true, CommCommand::VHCR_EN, 0x6000, [0x80, 4, 0x60, 0]),
            (false, CommCommand::VHCR_POST, 0, [0, 5, 0, 0]),
        ];
        for (toggle, command, param, bytes) in commands {
            let request = CommRequest::new(toggle, command, param);
            assert_eq!(request.as_bytes(), bytes);
            assert_eq!(request.toggle(), toggle);
            assert_eq!(request.command(), command);
            assert_eq!(request.param(), param);
        }
    }

    #[test]
    fn answers_have_the_bytes_of_the_device() {
        assert_eq!(CommAnswer::to_reset(true).as_bytes(), [0x80, 0, 1, 1]);
        assert_eq!(CommAnswer::new(false).as_bytes(), [0; 4]);
        assert_eq!(CommAnswer::failed(true).as_bytes(), [0x80, 2, 0, 0]);
    }

    #[test]
    fn reset_bits_are_where_the_driver_looks() {
        let mut caps = CommCaps::default();
        caps.set_vf_reset(true);
        assert_eq!(caps.word.get(), 1 << 0x1e);
        let mut flags = CommFlags::default();
        flags.set_reset_request(true);
        assert_eq!(flags.word.get(), 1 << 0x10);
        flags.set_reset_done(true);
        flags.set_offline(true);
        assert_eq!(flags.word.get(), 1 << 0x10 | 1 << 9 | 1 << 8);
    }
}
