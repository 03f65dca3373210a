//! Commands: the VHCR, mailboxes, and how they complete.

use alloc::boxed::Box;
use alloc::format;

use ib_vtime::Duration;
use mlx4_defs::comm::CommCommand;
use mlx4_defs::{MAILBOX_SIZE, Mailbox, MailboxLayout, Opcode, Status, TOKEN, VHCR_SIZE, Vhcr};
use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::comm::{self, Channel};
use super::error::oops;
use super::memory::Memory;
use super::{Bus, DriverError};

/// Input of a command.
#[derive(Clone, Debug)]
pub enum Input {
    /// Nothing.
    None,
    /// A number.
    Value(u64),
    /// A mailbox.
    Mailbox(Box<Mailbox>),
    /// The address of a mailbox, whatever is there.
    At(u64),
}

/// Output of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Nothing.
    None,
    /// A number.
    Value,
    /// A mailbox.
    Mailbox,
    /// A mailbox at an address, whatever is there.
    At(u64),
}

/// A command.
#[derive(Clone, Debug)]
pub struct Command {
    /// Operation.
    pub opcode: Opcode,
    /// Variant of the operation.
    pub op_modifier: u8,
    /// Object of the operation.
    pub in_modifier: u32,
    /// Its input.
    pub input: Input,
    /// Its output.
    pub output: Output,
}

impl Command {
    /// A command without input and output.
    #[must_use]
    pub const fn new(opcode: Opcode, in_modifier: u32) -> Self {
        Self {
            opcode,
            op_modifier: 0,
            in_modifier,
            input: Input::None,
            output: Output::None,
        }
    }

    /// The same command in another variant.
    #[must_use]
    pub fn variant(self, op_modifier: u8) -> Self {
        Self {
            op_modifier,
            ..self
        }
    }

    /// The same command with a mailbox that starts with a layout.
    #[must_use]
    pub fn with<T: MailboxLayout>(self, layout: &T) -> Self {
        Self {
            input: Input::Mailbox(Box::new(Mailbox::with(layout))),
            ..self
        }
    }

    /// The same command with a number.
    #[must_use]
    pub fn value(self, value: u64) -> Self {
        Self {
            input: Input::Value(value),
            ..self
        }
    }

    /// The same command with an output.
    #[must_use]
    pub fn giving(self, output: Output) -> Self {
        Self { output, ..self }
    }
}

/// Result of a command.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The number, if one was asked for.
    pub value: u64,
    /// The mailbox; zero unless one was asked for.
    pub mailbox: Box<Mailbox>,
}

/// Way in which commands complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// By the channel's toggle.
    Polling,
    /// By an event with the next number.
    Events { token: u16 },
}

/// The side of the driver that gives commands.
#[derive(Debug)]
pub(super) struct CommandPort {
    memory: Memory,
    channel: Channel,
    vhcr: u64,
    inbox: u64,
    outbox: u64,
    mode: Mode,
    /// The token of a completion event that came.
    completed: Option<u16>,
}

impl CommandPort {
    /// Opens the channel and gives the device a VHCR.
    pub(super) fn open(bus: &mut dyn Bus, memory: &Memory) -> Result<Self, DriverError> {
        let mut channel = Channel::open(bus)?;
        let [vhcr, inbox, outbox] = [(); 3].map(|()| memory.allocate_page());
        let started = channel.start(bus, vhcr);
        let this = Self {
            memory: memory.clone(),
            channel,
            vhcr,
            inbox,
            outbox,
            mode: Mode::Polling,
            completed: None,
        };
        match started {
            Ok(()) => Ok(this),
            Err(error) => {
                this.free();
                Err(error)
            }
        }
    }

    /// Ends the use of the channel and gives the memory back.
    pub(super) fn close(mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        let stopped = self.channel.stop(bus);
        self.free();
        stopped
    }

    /// Frees the memory without telling the device.
    pub(super) fn free(self) {
        for page in [self.vhcr, self.inbox, self.outbox] {
            self.memory.free(page, 1);
        }
    }

    /// Resets the function by the device, as a driver in its error state does.
    pub(super) fn reset_function(&self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.channel.reset_function(bus)
    }

    /// The address of the VHCR.
    pub(super) const fn vhcr(&self) -> u64 {
        self.vhcr
    }

    /// The address of the input mailbox.
    pub(super) const fn inbox(&self) -> u64 {
        self.inbox
    }

    /// From now on commands complete by events; the tokens count from 1 (`mlx4_cmd_use_events`).
    pub(super) const fn use_events(&mut self) {
        self.mode = Mode::Events { token: 0 };
    }

    /// From now on commands complete by the toggle (`mlx4_cmd_use_polling`).
    pub(super) const fn use_polling(&mut self) {
        self.mode = Mode::Polling;
    }

    /// Takes a completion event.
    pub(super) fn handle_event(&mut self, token: u16, status: u8) -> Result<(), DriverError> {
        let Mode::Events { token: expected } = self.mode else {
            return Err(oops(
                "a command completed by event while the driver was polling",
            ));
        };
        if token != expected || self.completed.is_some() {
            return Err(oops(format!(
                "a command completed with token {token} instead of {expected}"
            )));
        }
        if status != 0 {
            return Err(oops(format!("a completion event has status {status:#x}")));
        }
        self.completed = Some(token);
        Ok(())
    }

    /// Posts a command.
    pub(super) fn post(&mut self, bus: &mut dyn Bus, command: &Command) -> Result<(), DriverError> {
        if self.channel.is_pending(bus)? {
            return Err(oops("communication channel is not idle"));
        }
        let mut vhcr = Vhcr {
            in_modifier: U32::new(command.in_modifier),
            token: U16::new(TOKEN),
            ..Vhcr::default()
        };
        vhcr.in_param = U64::new(match &command.input {
            Input::None => 0,
            Input::Value(value) => *value,
            Input::At(addr) => *addr,
            Input::Mailbox(mailbox) => {
                self.memory.write(self.inbox, &mailbox.0);
                self.inbox
            }
        });
        vhcr.out_param = U64::new(match command.output {
            Output::None | Output::Value => 0,
            Output::At(addr) => addr,
            Output::Mailbox => {
                self.memory.write(self.outbox, &[0; MAILBOX_SIZE]);
                self.outbox
            }
        });
        vhcr.set_opcode(command.opcode);
        vhcr.set_op_modifier(command.op_modifier);
        if let Mode::Events { token } = &mut self.mode {
            *token = token.wrapping_add(1);
            self.completed = None;
            vhcr.set_event(true);
        }
        self.memory.write(self.vhcr, vhcr.as_bytes());
        self.channel.post(bus, CommCommand::VHCR_POST, 0);
        Ok(())
    }

    /// Posts a command and waits for its end by reading the channel.
    pub(super) fn execute_polling(
        &mut self,
        bus: &mut dyn Bus,
        command: &Command,
    ) -> Result<Reply, DriverError> {
        self.post(bus, command)?;
        let end = bus.now() + Self::LIMIT.min(bus.patience());
        while !self.is_done(bus)? {
            if bus.now() >= end {
                return Err(Self::timed_out(command));
            }
            bus.wait(Self::LOOK);
        }
        self.reply(command)
    }

    /// Returns `true` if the device has answered the command that was posted.
    pub(super) fn is_answered(&self, bus: &mut dyn Bus) -> Result<bool, DriverError> {
        self.channel.is_pending(bus).map(|pending| !pending)
    }

    /// Returns `true` if the command that was posted is done.
    pub(super) fn is_done(&mut self, bus: &mut dyn Bus) -> Result<bool, DriverError> {
        match self.mode {
            Mode::Polling => self.is_answered(bus),
            Mode::Events { .. } if self.completed.is_none() => Ok(false),
            // "always flip the toggle before or together with the EQE"
            Mode::Events { .. } if self.channel.is_pending(bus)? => Err(oops(
                "a command completed by event before the channel's toggle",
            )),
            Mode::Events { .. } => Ok(true),
        }
    }

    /// Returns the VHCR of the command that was posted, unless that failed.
    pub(super) fn status(&self, command: &Command) -> Result<Vhcr, DriverError> {
        let mut bytes = [0; VHCR_SIZE];
        self.memory.read(self.vhcr, &mut bytes);
        let vhcr = Vhcr::read_from_bytes(&bytes).map_err(|_| oops("a VHCR has 32 bytes"))?;
        if vhcr.status != Status::OK {
            return Err(DriverError::Command {
                opcode: command.opcode.get(),
                status: vhcr.status.get(),
            });
        }
        Ok(vhcr)
    }

    /// Returns the result of the command that was posted.
    pub(super) fn reply(&self, command: &Command) -> Result<Reply, DriverError> {
        let vhcr = self.status(command)?;
        let mut mailbox = Box::new(Mailbox::default());
        if command.output == Output::Mailbox {
            self.memory.read(self.outbox, &mut mailbox.0);
        }
        Ok(Reply {
            value: vhcr.out_param.get(),
            mailbox,
        })
    }

    /// The error of a command that was not answered.
    pub(super) const fn timed_out(command: &Command) -> DriverError {
        DriverError::TimedOut {
            command: CommCommand::VHCR_POST.get(),
            opcode: command.opcode.get(),
        }
    }

    /// Longest time that a command may take.
    pub(super) const LIMIT: Duration = comm::COMMAND;

    /// The longest time between two looks at whether a command is done.
    pub(super) const LOOK: Duration = Duration::from_millis(1);
}
