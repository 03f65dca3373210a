//! The communication channel: four big-endian registers at the start of BAR 2.
//!
//! The driver posts a command by writing `slave_write` with the toggle turned over; the device answers
//! by making the toggle of `slave_read` equal to it (`mlx4_comm_cmd_post`, `comm_pending`). Commands
//! hand over the address of the VHCR in four parts, and then say that it holds a command.
//!
//! A command in the VHCR may take long. Until it is done its toggle stands, and what the driver writes meanwhile waits.
//!
//! Until a driver resets the function it reads an internal error, from power-on and from every reset of the
//! machine or by function level on: a driver that was there before (its guest was restored, or resets the
//! function under it) looks for that every five seconds (`poll_catas`), and then resets the function and
//! starts anew. A driver that begins resets the function before it looks.
//!
//! A command out of order, an unknown one, and a VHCR that cannot be read are answered with the
//! internal-error bit after a reset of the function (`mlx4_master_do_cmd`).

use mlx4_defs::comm::{
    CAPS, CommAnswer, CommCaps, CommCommand, CommFlags, CommRequest, FLAGS, SLAVE_READ, SLAVE_WRITE,
};

/// What the driver has told of its VHCR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Nothing.
    #[default]
    Reset,
    /// So many of the three upper parts of its address.
    Parts { count: u8, address: u64 },
    /// Where it is.
    Active { vhcr: u64 },
}

/// Why the function is being reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaiting {
    /// The driver wrote RESET.
    Command,
    /// The driver turned the request bit over.
    Request,
    /// The driver broke the protocol.
    Violation,
    /// The machine, its VMM or a function-level reset.
    Machine,
}

/// What a write asks of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommAction {
    /// Nothing.
    None,
    /// To forget everything, have the PF reset the function, and say [`CommChannel::reset_done`].
    Reset,
    /// To execute the command in the VHCR at this address, and say [`CommChannel::complete`] or
    /// [`CommChannel::fail`].
    Execute {
        /// Guest-physical address of the VHCR.
        vhcr: u64,
    },
}

/// The channel.
#[derive(Debug)]
pub(super) struct CommChannel {
    request: CommRequest,
    answer: CommAnswer,
    /// The reset request and the acknowledge bit.
    flags: CommFlags,
    stage: Stage,
    awaiting: Option<Awaiting>,
    /// The toggle of the command in the VHCR that is being executed.
    executing: Option<bool>,
}

impl Default for CommChannel {
    /// The channel as it is after power-on.
    fn default() -> Self {
        Self {
            request: CommRequest::default(),
            answer: CommAnswer::failed(false),
            flags: CommFlags::default(),
            stage: Stage::Reset,
            awaiting: None,
            executing: None,
        }
    }
}

impl CommChannel {
    /// Returns `true` if a driver has reset the function and told of its VHCR, and was not told of an
    /// internal error since.
    pub(super) const fn is_active(&self) -> bool {
        matches!(self.stage, Stage::Active { .. })
    }

    /// Reads a register; `None` between them.
    pub(super) fn read(&self, offset: u64) -> Option<u32> {
        match offset {
            SLAVE_WRITE => Some(self.request.word.get()),
            SLAVE_READ => Some(self.answer.word.get()),
            CAPS => {
                let mut caps = CommCaps::default();
                caps.set_vf_reset(true);
                Some(caps.word.get())
            }
            FLAGS => {
                let mut flags = self.flags;
                flags.set_offline(self.awaiting == Some(Awaiting::Machine));
                Some(flags.word.get())
            }
            _ => None,
        }
    }

    /// Writes a register. While a reset is under way nothing else happens; what the driver posted
    /// meanwhile is looked at when the reset is done.
    pub(super) fn write(&mut self, offset: u64, value: u32) -> CommAction {
        match offset {
            SLAVE_WRITE => {
                self.request.word.set(value);
                self.posted()
            }
            // A driver that found the toggles apart puts both words to zero (`sync_toggles`).
            SLAVE_READ if value == 0 => {
                self.answer = CommAnswer::default();
                CommAction::None
            }
            FLAGS => {
                let mut wanted = CommFlags::default();
                wanted.word.set(value);
                self.flags.set_reset_request(wanted.reset_request());
                if self.flags.reset_request() == self.flags.reset_done() {
                    return CommAction::None;
                }
                self.begin_reset(Awaiting::Request)
            }
            _ => CommAction::None,
        }
    }

    fn is_pending(&self) -> bool {
        self.request.toggle() != self.answer.toggle()
    }

    /// Looks at what the driver wrote, once the command before is done.
    fn posted(&mut self) -> CommAction {
        if !self.is_pending() || self.awaiting.is_some() || self.executing.is_some() {
            return CommAction::None;
        }
        let param = u64::from(self.request.param());
        self.stage = match (self.request.command(), self.stage) {
            (CommCommand::RESET, _) => return self.begin_reset(Awaiting::Command),
            (CommCommand::VHCR0, Stage::Reset) => Stage::Parts {
                count: 1,
                address: param,
            },
            (CommCommand::VHCR1, Stage::Parts { count: 1, address }) => Stage::Parts {
                count: 2,
                address: address << 16 | param,
            },
            (CommCommand::VHCR2, Stage::Parts { count: 2, address }) => Stage::Parts {
                count: 3,
                address: address << 16 | param,
            },
            (CommCommand::VHCR_EN, Stage::Parts { count: 3, address }) => Stage::Active {
                vhcr: address << 16 | param,
            },
            (CommCommand::VHCR_POST, Stage::Active { vhcr }) => {
                self.executing = Some(self.request.toggle());
                return CommAction::Execute { vhcr };
            }
            _ => return self.begin_reset(Awaiting::Violation),
        };
        self.answer = CommAnswer::new(self.request.toggle());
        CommAction::None
    }

    /// The command in the VHCR is done. What the driver wrote while it was executed is looked at now.
    pub(super) fn complete(&mut self) -> CommAction {
        let Some(toggle) = self.executing.take() else {
            return CommAction::None;
        };
        self.answer = CommAnswer::new(toggle);
        self.posted()
    }

    /// The VHCR could not be read or written.
    pub(super) fn fail(&mut self) -> CommAction {
        self.begin_reset(Awaiting::Violation)
    }

    /// The machine or its VMM is reset, or a function-level reset is due.
    pub(super) fn machine_reset(&mut self) -> CommAction {
        let awaiting = self.awaiting;
        *self = Self {
            awaiting,
            ..Self::default()
        };
        self.begin_reset(Awaiting::Machine)
    }

    /// Begins a reset, or only changes why one is under way.
    const fn begin_reset(&mut self, why: Awaiting) -> CommAction {
        self.stage = Stage::Reset;
        self.executing = None;
        if self.awaiting.replace(why).is_some() {
            return CommAction::None;
        }
        CommAction::Reset
    }

    /// The PF has reset the function, asked or not. A driver that did not ask is told of an internal
    /// error, if it was there at all; it then resets the function itself and starts anew.
    pub(super) fn reset_done(&mut self) {
        let toggle = self.request.toggle();
        let asked = self.request.command() == CommCommand::RESET;
        match self.awaiting.take() {
            Some(Awaiting::Request) => {
                self.request = CommRequest::default();
                self.answer = CommAnswer::default();
                self.flags.set_reset_done(self.flags.reset_request());
            }
            Some(Awaiting::Violation) => self.answer = CommAnswer::failed(toggle),
            // The driver came, or came again, while the reset was under way.
            Some(_) if self.is_pending() && asked => self.answer = CommAnswer::to_reset(toggle),
            Some(_) if self.is_pending() => self.answer = CommAnswer::failed(toggle),
            Some(_) => {}
            None => self.device_failed(),
        }
        self.stage = Stage::Reset;
    }

    /// What the driver made is gone, and nobody asked for that. A driver that is there is told of an
    /// internal error; one that waits for a reset is not, since it starts anew anyway.
    pub(super) fn device_failed(&mut self) {
        if self.awaiting.is_none() && self.stage != Stage::Reset {
            self.answer.set_internal_error(true);
            self.stage = Stage::Reset;
            self.executing = None;
        }
    }
}

#[cfg(test)]
mod tests;
