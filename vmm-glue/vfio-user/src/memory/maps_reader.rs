//! A process beside the service that reads `/proc/PID/maps` of VMMs for it.
//!
//! A process that Landlock confines cannot look into others, this file of theirs included. So the service starts this
//! one before it confines itself, and can ask it one thing: whether a process has a file mapped privately. It ends when
//! the service does, since nobody else has the other end of its socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg,
    socketpair,
};
use rustix::process::Pid;

use super::file::FileId;
use super::sharing::is_mapped_privately;

/// The name of the hidden command that runs it.
pub const COMMAND: &str = "maps-reader";

/// Process, device and inode of a question.
const QUESTION: usize = 4 + 8 + 8;

static READER: OnceLock<OwnedFd> = OnceLock::new();

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

/// Starts the process, which is this program again. From then on it is asked.
///
/// # Errors
/// What the system says.
pub fn start() -> io::Result<()> {
    let (own, other) = pair()?;
    Command::new(std::env::current_exe()?)
        .arg(COMMAND)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(other))
        .stdout(Stdio::null())
        .spawn()?;
    // There is one already if two services are in this process: the new one ends at once.
    let _ = READER.set(own);
    Ok(())
}

/// Asks it, with a socket for the answer, so that one VMM that keeps it waiting keeps nobody else's answer back.
/// `None` if there is no such process.
pub(super) fn ask(pid: Pid, file: FileId) -> Option<bool> {
    let reader = READER.get()?;
    Some(exchange(reader, pid, file).unwrap_or_default())
}

fn exchange(reader: &OwnedFd, pid: Pid, file: FileId) -> io::Result<bool> {
    let (own, other) = pair()?;
    let mut question = [0; QUESTION];
    question[..4].copy_from_slice(&pid.as_raw_nonzero().get().to_ne_bytes());
    question[4..12].copy_from_slice(&file.device.to_ne_bytes());
    question[12..].copy_from_slice(&file.inode.to_ne_bytes());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let answer_to = [other.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&answer_to));
    let parts = [IoSlice::new(&question)];
    sendmsg(reader, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
    drop(other);
    let mut answer = [0];
    let (len, _) = recv(&own, &mut answer, RecvFlags::empty())?;
    Ok(len == 1 && answer[0] == 1)
}

/// Is the process: answers what comes by its standard input, until the service is gone.
///
/// # Errors
/// What the system says.
pub fn run() -> io::Result<()> {
    let service = io::stdin();
    while let Some((question, answer_to)) = receive(service.as_fd())? {
        let answer = move || {
            let is_private =
                read(&question).is_some_and(|(pid, file)| is_mapped_privately(pid, file));
            // The service may be gone, and then nobody is left to be told.
            let _ = send(&answer_to, &[u8::from(is_private)], SendFlags::NOSIGNAL);
        };
        // Without a thread for it the question goes unanswered: the socket for the answer is closed.
        let _ = std::thread::Builder::new().spawn(answer);
    }
    Ok(())
}

/// The next question, with the socket for its answer; `None` at the end.
fn receive(service: impl AsFd) -> io::Result<Option<([u8; QUESTION], OwnedFd)>> {
    loop {
        let mut question = [0; QUESTION];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut question)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let len = match recvmsg(&service, &mut parts, &mut ancillary, flags) {
            Ok(received) => received.bytes,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let answer_to = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        match (len, answer_to) {
            (QUESTION, Some(answer_to)) => return Ok(Some((question, answer_to))),
            (0, None) => return Ok(None),
            _ => {}
        }
    }
}

fn read(question: &[u8; QUESTION]) -> Option<(Pid, FileId)> {
    let (pid, file) = question.split_first_chunk::<4>()?;
    let (device, inode) = file.split_first_chunk::<8>()?;
    let file = FileId {
        device: u64::from_ne_bytes(*device),
        inode: u64::from_ne_bytes(inode.try_into().ok()?),
    };
    Some((Pid::from_raw(i32::from_ne_bytes(*pid))?, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_arrives_with_the_socket_for_its_answer() {
        let (service, reader) = pair().unwrap();
        let file = FileId {
            device: 1,
            inode: 77,
        };
        let asked = Pid::from_raw(4711).unwrap();
        let asking = std::thread::spawn(move || {
            let answer = exchange(&service, asked, file);
            drop(service);
            answer
        });
        let (question, answer_to) = receive(&reader).unwrap().unwrap();
        assert_eq!(read(&question), Some((asked, file)));
        send(&answer_to, &[1], SendFlags::empty()).unwrap();
        assert!(asking.join().unwrap().unwrap());
        assert!(receive(&reader).unwrap().is_none(), "the service is gone");
    }

    #[test]
    fn a_reader_that_dies_keeps_nobody_waiting() {
        let (service, reader) = pair().unwrap();
        drop(reader);
        let file = FileId {
            device: 1,
            inode: 1,
        };
        assert!(exchange(&service, rustix::process::getpid(), file).is_err());
    }
}
