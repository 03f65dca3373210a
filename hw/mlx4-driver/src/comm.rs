//! The communication channel, as a guest's driver uses it.

use ib_vtime::Duration;
use mlx4_defs::comm::{self, CommAnswer, CommCaps, CommCommand, CommFlags, CommRequest};
use zerocopy::FromBytes;
use zerocopy::network_endian::U32;

use super::error::refused;
use super::{Bus, DriverError};

/// The register that holds the channel.
pub(super) const UAR_BAR: u8 = mlx4_defs::pci::UAR_BAR;

/// Value of every register of a function that is gone.
const GONE: u32 = u32::MAX;

/// Longest wait for the toggles to agree (`sync_toggles`).
const SYNC: Duration = Duration::from_secs(5);

/// Longest wait for a channel that is offline (`mlx4_comm_check_offline`).
const OFFLINE: Duration = Duration::from_secs(30);

/// Longest wait for an answer to anything but a posted command (`MLX4_COMM_TIME`).
const ANSWER: Duration = Duration::from_secs(10);

/// Longest wait for a posted command.
pub(super) const COMMAND: Duration = Duration::from_secs(70);

/// Time between two reads of a register that the driver waits for.
const LOOK: Duration = Duration::from_micros(50);

/// The communication channel.
#[derive(Debug)]
pub(super) struct Channel {
    toggle: bool,
    may_reset: bool,
}

fn read<T: FromBytes>(bus: &mut dyn Bus, offset: u64) -> Result<T, DriverError> {
    let mut bytes = [0; 4];
    bus.bar_read(UAR_BAR, offset, &mut bytes);
    if u32::from_be_bytes(bytes) == GONE {
        return Err(DriverError::Gone);
    }
    T::read_from_bytes(&bytes).map_err(|_| DriverError::Gone)
}

/// Waits until a condition on registers holds. Returns `true` if it did within `limit`.
fn wait_until(
    bus: &mut dyn Bus,
    limit: Duration,
    mut condition: impl FnMut(&mut dyn Bus) -> Result<bool, DriverError>,
) -> Result<bool, DriverError> {
    let end = bus.now() + limit.min(bus.patience());
    while !condition(bus)? {
        if bus.now() >= end {
            return Ok(false);
        }
        bus.wait(LOOK);
    }
    Ok(true)
}

impl Channel {
    /// Agrees with the device on the toggle, and checks that the channel is online.
    pub(super) fn open(bus: &mut dyn Bus) -> Result<Self, DriverError> {
        let toggle = Self::sync(bus)?;
        let online = wait_until(bus, OFFLINE, |bus| {
            read(bus, comm::FLAGS).map(|flags: CommFlags| !flags.offline())
        })?;
        if !online {
            return Err(DriverError::Offline);
        }
        let caps: CommCaps = read(bus, comm::CAPS)?;
        Ok(Self {
            toggle,
            may_reset: caps.vf_reset(),
        })
    }

    fn sync(bus: &mut dyn Bus) -> Result<bool, DriverError> {
        let mut toggle = false;
        let agreed = wait_until(bus, SYNC, |bus| {
            let written: CommRequest = read(bus, comm::SLAVE_WRITE)?;
            let answered: CommAnswer = read(bus, comm::SLAVE_READ)?;
            toggle = answered.toggle();
            Ok(written.toggle() == toggle)
        })?;
        if agreed {
            return Ok(toggle);
        }
        // "recovering from previously mis-behaved VM"
        bus.write_be32(UAR_BAR, comm::SLAVE_READ, 0);
        bus.write_be32(UAR_BAR, comm::SLAVE_WRITE, 0);
        Ok(false)
    }

    /// Resets the device and gives it the address of the VHCR.
    pub(super) fn start(&mut self, bus: &mut dyn Bus, vhcr: u64) -> Result<(), DriverError> {
        if !self.call(bus, CommCommand::RESET, 0, ANSWER)? {
            return Err(DriverError::Deferred);
        }
        let answer: CommAnswer = read(bus, comm::SLAVE_READ)?;
        if answer.interface_revision() != comm::INTERFACE_REVISION {
            self.post(bus, CommCommand::RESET, 0);
            return Err(DriverError::Revision(answer.interface_revision()));
        }
        let [a, b, c, d, e, f, g, h] = vhcr.to_be_bytes();
        let parts = [
            (CommCommand::VHCR0, [a, b]),
            (CommCommand::VHCR1, [c, d]),
            (CommCommand::VHCR2, [e, f]),
            (CommCommand::VHCR_EN, [g, h]),
        ];
        for (command, part) in parts {
            if !self.call(bus, command, u16::from_be_bytes(part), ANSWER)? {
                return Err(DriverError::TimedOut {
                    command: command.get(),
                    opcode: 0,
                });
            }
        }
        Ok(())
    }

    /// Announces to the device that the driver goes away (`mlx4_slave_exit`).
    pub(super) fn stop(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        if self.call(bus, CommCommand::RESET, 0, ANSWER)? {
            Ok(())
        } else {
            Err(refused("failed to close slave function"))
        }
    }

    /// Returns `true` if the last request is not answered yet.
    pub(super) fn is_pending(&self, bus: &mut dyn Bus) -> Result<bool, DriverError> {
        let answer: CommAnswer = read(bus, comm::SLAVE_READ)?;
        Ok(answer.toggle() != self.toggle)
    }

    /// Returns `true` if the device reports that it lost the driver's state (`poll_catas`).
    pub(super) fn has_failed(bus: &mut dyn Bus) -> Result<bool, DriverError> {
        let answer: CommAnswer = read(bus, comm::SLAVE_READ)?;
        Ok(answer.internal_error())
    }

    /// Writes a request without waiting for its answer.
    pub(super) fn post(&mut self, bus: &mut dyn Bus, command: CommCommand, param: u16) {
        self.toggle = !self.toggle;
        let word = CommRequest::new(self.toggle, command, param).word;
        bus.write_be32(UAR_BAR, comm::SLAVE_WRITE, word.get());
    }

    /// Writes a request and waits for its answer. Returns `true` if it came in time.
    pub(super) fn call(
        &mut self,
        bus: &mut dyn Bus,
        command: CommCommand,
        param: u16,
        limit: Duration,
    ) -> Result<bool, DriverError> {
        if self.is_pending(bus)? {
            return Err(refused("communication channel is not idle"));
        }
        self.post(bus, command, param);
        wait_until(bus, limit, |bus| Ok(!self.is_pending(bus)?))
    }

    /// Resets the function by the device (`mlx4_reset_slave`), after which the driver starts anew.
    pub(super) fn reset_function(&self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        let flags: CommFlags = match read(bus, comm::FLAGS) {
            Err(DriverError::Gone) => return Ok(()),
            flags => flags?,
        };
        if !self.may_reset || flags.reset_request() != flags.reset_done() {
            return Err(DriverError::ResetFailed);
        }
        let wanted = !flags.reset_request();
        let mut request = CommFlags::default();
        request.set_reset_request(wanted);
        let word: U32 = request.word;
        bus.write_be32(UAR_BAR, comm::FLAGS, word.get());
        let done = wait_until(bus, ANSWER, |bus| {
            read(bus, comm::FLAGS).map(|flags: CommFlags| flags.reset_done() == wanted)
        })?;
        if done {
            Ok(())
        } else {
            Err(DriverError::ResetFailed)
        }
    }
}
