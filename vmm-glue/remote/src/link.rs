//! Commands to a service, one after the other.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use vhca_vfio_user_codec::{
    Access, ClientCommand, HeaderFlags, IoEventFd, IrqData, Message, ServerLimits, SetIrqs,
    error_reply, parse_done, parse_io_fds, parse_registers, parse_reply, parse_version,
    signal_by_eventfds,
};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::error::LinkError;
use crate::socket::{Deadline, MOST_FDS, Socket};

/// Time for which a call waits for a service. A service that runs answers within milliseconds.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// The connection to a service.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Socket,
    limits: ServerLimits,
    last_id: u16,
    timeout: Duration,
}

impl Link {
    /// Agrees on a version with a service.
    pub(crate) fn new(socket: Socket, timeout: Duration) -> Result<Self, LinkError> {
        let limits = ServerLimits {
            max_data: 1,
            max_fds: 1,
        };
        let mut link = Self {
            socket,
            limits,
            last_id: 0,
            timeout,
        };
        let command = ClientCommand::Version;
        let reply = link.ask(&command, &[])?;
        let limits = parse_version(&reply);
        link.limits = limits.map_err(|error| LinkError::of(command.command(), error))?;
        Ok(link)
    }

    /// Returns the socket.
    pub(crate) const fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Sends a command and waits for its reply.
    fn ask(
        &mut self,
        command: &ClientCommand<'_>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Message<OwnedFd>, LinkError> {
        let deadline = Deadline::after(self.timeout);
        let id = self.next_id();
        self.socket.send(&command.message(id), fds, deadline)?;
        loop {
            let message = self.socket.receive(deadline)?;
            let header = &message.header;
            if header.flags().contains(HeaderFlags::REPLY) {
                return match header.id.get() == id {
                    true => Ok(message),
                    false => Err(LinkError::Malformed(header.command())),
                };
            }
            // The service asks for memory that it cannot map. All memory has a file, so it has no other way to it.
            let refusal = error_reply(header, Errno::OPNOTSUPP);
            self.socket.send(&refusal, &[], deadline)?;
        }
    }

    /// Sends a command whose reply is a layout.
    pub(crate) fn get<T: FromBytes + KnownLayout + Immutable>(
        &mut self,
        command: &ClientCommand<'_>,
    ) -> Result<T, LinkError> {
        let reply = self.ask(command, &[])?;
        let parsed = parse_reply(command.command(), &reply);
        parsed
            .map(|(layout, _)| layout)
            .map_err(|error| LinkError::of(command.command(), error))
    }

    /// Asks for the parts of a region that have an eventfd, with that. Parts that share one are left out but for the first.
    pub(crate) fn io_fds(&mut self, index: u32) -> Result<Vec<(IoEventFd, OwnedFd)>, LinkError> {
        let most = u32::try_from(MOST_FDS).unwrap_or(u32::MAX);
        let command = ClientCommand::RegionIoFds { index, most };
        let reply = self.ask(&command, &[])?;
        let parts = parse_io_fds(&reply);
        let parts = parts.map_err(|error| LinkError::of(command.command(), error))?;
        let mut fds: Vec<_> = reply.fds.into_iter().map(Some).collect();
        let parts = parts.into_iter().filter_map(|(part, index)| {
            let fd = fds.get_mut(index).and_then(Option::take)?;
            Some((part, fd))
        });
        Ok(parts.collect())
    }

    /// Asks the service to signal interrupts of a type by eventfds, from the first on.
    pub(crate) fn signal_by(&mut self, index: u32, events: &[OwnedFd]) -> Result<(), LinkError> {
        let mut start = 0;
        for part in events.chunks(self.limits.max_fds) {
            // Vectors are numbered by 11 bits.
            let count = u32::try_from(part.len()).unwrap_or(u32::MAX);
            let set = ClientCommand::SetIrqs(signal_by_eventfds(index, start, count));
            let fds: Vec<_> = part.iter().map(AsFd::as_fd).collect();
            self.carry_out(&set, &fds)?;
            start += count;
        }
        Ok(())
    }

    /// Asks the service to signal no interrupt of a type.
    pub(crate) fn signal_none(&mut self, index: u32) -> Result<(), LinkError> {
        let end = SetIrqs {
            data: IrqData::None,
            ..signal_by_eventfds(index, 0, 0)
        };
        self.carry_out(&ClientCommand::SetIrqs(end), &[])
    }

    /// Sends a command, with descriptors, whose reply says only that it is done.
    pub(crate) fn carry_out(
        &mut self,
        command: &ClientCommand<'_>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), LinkError> {
        let reply = self.ask(command, fds)?;
        let done = parse_done(command.command(), &reply);
        done.map_err(|error| LinkError::of(command.command(), error))
    }

    /// Reads registers. Registers that the service does not have are ones.
    pub(crate) fn read(
        &mut self,
        region: u32,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), LinkError> {
        let pieces = out.chunks_mut(self.limits.max_data);
        for (piece, offset) in pieces.zip(offsets(offset, self.limits.max_data)) {
            let access = access(region, offset, piece);
            let command = ClientCommand::RegionRead(access);
            let reply = self.ask(&command, &[])?;
            match parse_registers(access, &reply) {
                Ok(data) => piece.copy_from_slice(data),
                Err(error) => match LinkError::of(command.command(), error) {
                    LinkError::Refused(..) => piece.fill(0xff),
                    failure => return Err(failure),
                },
            }
        }
        Ok(())
    }

    /// Writes registers, and returns when the service has done so. Registers that it has not are left alone.
    pub(crate) fn write(
        &mut self,
        region: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), LinkError> {
        let pieces = bytes.chunks(self.limits.max_data);
        for (piece, offset) in pieces.zip(offsets(offset, self.limits.max_data)) {
            let command = ClientCommand::RegionWrite(access(region, offset, piece), piece);
            match self.carry_out(&command, &[]) {
                Ok(()) | Err(LinkError::Refused(..)) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// Writes registers without a reply: the service does so before any command that comes later.
    pub(crate) fn post(&mut self, region: u32, offset: u64, bytes: &[u8]) -> Result<(), LinkError> {
        let deadline = Deadline::after(self.timeout);
        let pieces = bytes.chunks(self.limits.max_data);
        for (piece, offset) in pieces.zip(offsets(offset, self.limits.max_data)) {
            let command = ClientCommand::RegionWrite(access(region, offset, piece), piece);
            let message = command.posted(self.next_id());
            self.socket.send(&message, &[], deadline)?;
        }
        Ok(())
    }

    const fn next_id(&mut self) -> u16 {
        self.last_id = self.last_id.wrapping_add(1);
        self.last_id
    }
}

/// Returns the offsets of pieces that follow each other. The service refuses those beyond a region.
fn offsets(first: u64, step: usize) -> impl Iterator<Item = u64> {
    let step = step as u64;
    core::iter::successors(Some(first), move |offset| Some(offset.wrapping_add(step)))
}

fn access(region: u32, offset: u64, piece: &[u8]) -> Access {
    Access {
        region,
        offset,
        // A piece is no longer than a message.
        count: u32::try_from(piece.len()).unwrap_or(u32::MAX),
    }
}
