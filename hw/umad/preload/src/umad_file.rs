//! What `read`, `write` and `ioctl` do on an umad file, after the kernel's `user_mad.c`.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use umad_link::{
    Call, Delivery, FileRules, LONG_HEAD, MAD_HEADER_SIZE, RegisterRequest, RegisterRequest2,
    RequestKey, frames, ioctl,
};

use crate::client;

/// Bytes of a MAD, the least that a reader of a longer message has room for.
const MAD_SIZE: usize = 256;

/// Requests that are noted as sent; beyond, the service is asked about each.
const MAX_NOTED: usize = 1 << 16;

/// An open umad file: the rules that it keeps to.
#[derive(Debug)]
pub(crate) struct UmadFile {
    rules: Mutex<FileRules>,
    /// Requests whose end the program has not read.
    sent: Mutex<BTreeSet<RequestKey>>,
    /// Held from looking at a message until it is taken.
    reading: Mutex<()>,
    /// Held while the parts of a message are sent.
    writing: Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a read found.
enum Found {
    /// A message, taken.
    Message(Vec<u8>),
    /// The start of a message that is too long for the reader's buffer, and stays.
    TooLong(Vec<u8>),
}

impl UmadFile {
    pub(crate) fn new() -> Self {
        Self {
            rules: Mutex::default(),
            sent: Mutex::default(),
            reading: Mutex::default(),
            writing: Mutex::default(),
        }
    }

    /// `read` with room for `count` bytes. Gives the bytes for the reader's buffer, and whether the
    /// read succeeds: a reader whose buffer is too small gets the start of the message, and ENOSPC.
    pub(crate) fn read(
        &self,
        fd: BorrowedFd<'_>,
        count: usize,
    ) -> Result<(Vec<u8>, Result<(), Errno>), Errno> {
        if count < lock(&self.rules).header_size() {
            return Err(Errno::INVAL);
        }
        loop {
            match self.take(fd, count) {
                Ok(Found::Message(bytes)) => {
                    let header_size = lock(&self.rules).header_size();
                    if let Some(key) = RequestKey::ended_by(&bytes, header_size) {
                        lock(&self.sent).remove(&key);
                    }
                    return Ok((bytes, Ok(())));
                }
                Ok(Found::TooLong(head)) => return Ok((head, Err(Errno::NOSPC))),
                Err(Errno::AGAIN) => {}
                Err(error) => return Err(error),
            }
            if rustix::fs::fcntl_getfl(fd)?.contains(OFlags::NONBLOCK) {
                return Err(Errno::AGAIN);
            }
            let mut wanted = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            rustix::event::poll(&mut wanted, None)?;
        }
    }

    fn take(&self, fd: BorrowedFd<'_>, count: usize) -> Result<Found, Errno> {
        let reading = lock(&self.reading);
        let mut head = [0; Delivery::HEADER_SIZE + LONG_HEAD];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let seen = receive(fd, &mut head, flags)?;
        let delivery = Delivery::decode(seen).map_err(client::errno)?;
        let (total, header_size) = (delivery.total, delivery.header_size);
        let least = total.min(header_size + MAD_SIZE);
        if count < least {
            return Err(Errno::INVAL);
        }
        if count < total {
            let head = delivery.body.get(..least).ok_or(Errno::PROTO)?;
            return Ok(Found::TooLong(head.to_vec()));
        }
        if let Some(serial) = delivery.serial {
            receive(fd, &mut [0; Delivery::HEADER_SIZE], RecvFlags::DONTWAIT)?;
            drop(reading);
            return fetch(fd, serial, total).map(Found::Message);
        }
        let mut datagram = vec![0; Delivery::HEADER_SIZE + total];
        receive(fd, &mut datagram, RecvFlags::DONTWAIT)?;
        drop(reading);
        Ok(Found::Message(datagram.split_off(Delivery::HEADER_SIZE)))
    }

    /// `write`.
    pub(crate) fn write(&self, fd: BorrowedFd<'_>, message: &[u8]) -> Result<(), Errno> {
        let rules = *lock(&self.rules);
        let shape = rules
            .check_write(message, message.len())
            .map_err(client::errno)?;
        let _writing = lock(&self.writing);
        let key = RequestKey::of_request(message, rules.header_size());
        if let Some(key) = key.filter(|_| shape.header.timeout_ms.get() != 0) {
            self.check_free(fd, key, message, rules.header_size())?;
        }
        frames(message).try_for_each(|frame| client::send(fd, &frame, None))
    }

    /// Checks that a request may be under way, and notes that it is. One that the program sent, and whose end it has not
    /// read, may have ended all the same: the service knows.
    fn check_free(
        &self,
        fd: BorrowedFd<'_>,
        key: RequestKey,
        message: &[u8],
        header_size: usize,
    ) -> Result<(), Errno> {
        let may_be_under_way = {
            let mut sent = lock(&self.sent);
            // A program that reads nothing does not get to keep more.
            let is_full = sent.len() >= MAX_NOTED && !sent.contains(&key);
            is_full || !sent.insert(key)
        };
        if may_be_under_way {
            let head = message.get(..header_size + MAD_HEADER_SIZE);
            client::call(fd, Call::MayWrite, head.ok_or(Errno::INVAL)?)?.result?;
        }
        Ok(())
    }

    /// Bytes of the argument of an `ioctl`; `None` if an umad file knows no such request.
    pub(crate) const fn argument_size(request: u32) -> Option<usize> {
        match request {
            ioctl::REGISTER_AGENT => Some(size_of::<RegisterRequest>()),
            ioctl::REGISTER_AGENT2 => Some(size_of::<RegisterRequest2>()),
            ioctl::UNREGISTER_AGENT => Some(size_of::<u32>()),
            ioctl::ENABLE_PKEY => Some(0),
            _ => None,
        }
    }

    /// `ioctl`. Gives the argument as the kernel would leave it.
    pub(crate) fn ioctl(
        &self,
        fd: BorrowedFd<'_>,
        request: u32,
        argument: &[u8],
    ) -> Result<(Result<(), Errno>, Vec<u8>), Errno> {
        let called = client::call(fd, Call::Ioctl(request), argument)?;
        let (result, reply) = (called.result, called.argument);
        if reply.len() != argument.len() {
            return Err(Errno::PROTO);
        }
        if result.is_ok() {
            self.note(request, argument, &reply)?;
        }
        Ok((result, reply))
    }

    /// Keeps the rules as the service has them.
    fn note(&self, request: u32, argument: &[u8], reply: &[u8]) -> Result<(), Errno> {
        let mut rules = lock(&self.rules);
        match request {
            ioctl::REGISTER_AGENT | ioctl::REGISTER_AGENT2 => {
                rules.note_registration(reply).map_err(client::errno)
            }
            ioctl::UNREGISTER_AGENT => {
                let id = argument.try_into().map_err(|_| Errno::PROTO)?;
                rules
                    .unregister(u32::from_ne_bytes(id))
                    .map_err(client::errno)
            }
            _ => rules.enable_pkey().map_err(client::errno),
        }
    }
}

/// Receives a datagram, or the start of one. The end of the connection ends the program.
fn receive<'b>(
    fd: BorrowedFd<'_>,
    buffer: &'b mut [u8],
    flags: RecvFlags,
) -> Result<&'b [u8], Errno> {
    match rustix::net::recv(fd, &mut *buffer, flags) {
        Ok((_, 0)) | Err(Errno::CONNRESET) => client::end_program(),
        Ok((_, length)) => buffer.get(..length).ok_or(Errno::PROTO),
        Err(error) => Err(error),
    }
}

/// Fetches an announced message.
fn fetch(fd: BorrowedFd<'_>, serial: u64, total: usize) -> Result<Vec<u8>, Errno> {
    let called = client::call(fd, Call::Fetch(serial), &[])?;
    called.result?;
    let file = called.attachment.ok_or(Errno::PROTO)?;
    let mut message = vec![0; total];
    let mut filled = 0;
    while let Some(rest) = message.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let offset = u64::try_from(filled).map_err(|_| Errno::PROTO)?;
        match rustix::io::pread(&file, rest, offset) {
            Ok(0) => return Err(Errno::PROTO),
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(message)
}
