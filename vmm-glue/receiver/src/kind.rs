//! Which descriptors the protocol of a socket takes.

use std::fs::read_link;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, fcntl_get_seals, fstat, fstatfs};
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;

use crate::SCM_MAX_FD;

/// The protocol of a client's socket, by the descriptors that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// None.
    Nothing,
    /// Memory and eventfds: vfio-user.
    Vmm,
    /// A Unix socket for an answer: umad.
    Answers,
    /// A Unix socket for an answer, and the memory of a process (`/proc/PID/mem`): verbs.
    Program,
    /// Datagrams with descriptors are discarded whole: ibsim.
    Datagrams,
}

/// Kind of file behind a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum File {
    /// Pages of this host.
    Memory,
    Eventfd,
    UnixSocket,
    ProcessMemory,
    Other,
}

/// File systems (`linux/magic.h`) whose files are closed without waiting for another process.
const LOCAL: [u64; 6] = [
    0x0102_1994, // tmpfs
    0x9584_58f6, // hugetlbfs
    0x8584_58f6, // ramfs
    0xef53,      // ext2 to ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
];

/// The file system of `/proc`.
const PROC: u64 = 0x9fa0;

impl Kind {
    pub(crate) const ALL: [Self; 5] = [
        Self::Nothing,
        Self::Vmm,
        Self::Answers,
        Self::Program,
        Self::Datagrams,
    ];

    /// Returns the number of the kind in a message to the receiver.
    pub(crate) fn number(self) -> u8 {
        let at = Self::ALL.iter().position(|kind| *kind == self);
        at.and_then(|at| u8::try_from(at).ok()).unwrap_or(0)
    }

    /// Returns the number of descriptors that one message may have.
    pub(crate) const fn most(self) -> usize {
        match self {
            Self::Vmm => 64,
            Self::Nothing | Self::Answers | Self::Program => 4,
            // They are closed beside the thread that receives them.
            Self::Datagrams => SCM_MAX_FD,
        }
    }

    /// Returns `true` if the protocol takes a descriptor. May wait for the owner of the file.
    pub(crate) fn takes(self, fd: &OwnedFd) -> bool {
        match self {
            Self::Nothing | Self::Datagrams => false,
            Self::Vmm => matches!(file(fd), File::Memory | File::Eventfd),
            Self::Answers => file(fd) == File::UnixSocket,
            Self::Program => matches!(file(fd), File::UnixSocket | File::ProcessMemory),
        }
    }
}

/// Returns what a descriptor is of. The questions that no file system answers come first.
fn file(fd: &OwnedFd) -> File {
    if fcntl_get_seals(fd).is_ok() {
        return File::Memory;
    }
    let link = read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default();
    let link = link.as_os_str().as_bytes();
    if link == b"anon_inode:[eventfd]" {
        return File::Eventfd;
    }
    if link.starts_with(b"socket:[") {
        return match socket_domain(fd) {
            Ok(AddressFamily::UNIX) => File::UnixSocket,
            _ => File::Other,
        };
    }
    // Another file system can have a file of that name.
    let system = system(fd);
    if is_named_as_memory(link) && system == Some(PROC) {
        return File::ProcessMemory;
    }
    let is_regular =
        || fstat(fd).is_ok_and(|status| FileType::from_raw_mode(status.st_mode).is_file());
    if system.is_some_and(|system| LOCAL.contains(&system)) && is_regular() {
        return File::Memory;
    }
    File::Other
}

/// Returns `true` if a path ends as that of a process's memory does. It may begin with anything: a program in a root of its own has
/// its `/proc` elsewhere in the receiver's.
fn is_named_as_memory(path: &[u8]) -> bool {
    let Some(folder) = path.strip_suffix(b"/mem") else {
        return false;
    };
    let process = folder.rsplit(|byte| *byte == b'/').next();
    process.is_some_and(|name| !name.is_empty() && name.iter().all(u8::is_ascii_digit))
}

/// Returns the magic number of a descriptor's file system.
fn system(fd: &OwnedFd) -> Option<u64> {
    #[expect(clippy::cast_sign_loss, reason = "a number of 32 bits")]
    let magic = |magic| magic as u64 & 0xffff_ffff;
    Some(magic(fstatfs(fd).ok()?.f_type))
}

#[cfg(test)]
mod tests {
    use std::fs::File as StdFile;
    use std::net::TcpListener;
    use std::os::unix::net::UnixDatagram;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn descriptors_are_told_apart_by_what_they_are_of() {
        let open = |path| OwnedFd::from(StdFile::open(path).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let on_disk = StdFile::create(folder.path().join("mem")).unwrap();
        let (unix, _) = UnixDatagram::pair().unwrap();
        for (fd, expected) in [
            (
                memfd_create("m", MemfdFlags::ALLOW_SEALING).unwrap(),
                File::Memory,
            ),
            (eventfd(0, EventfdFlags::CLOEXEC).unwrap(), File::Eventfd),
            (unix.into(), File::UnixSocket),
            (
                TcpListener::bind("127.0.0.1:0").unwrap().into(),
                File::Other,
            ),
            (open("/proc/self/mem"), File::ProcessMemory),
            (open("/dev/null"), File::Other),
            (open("/proc/self/maps"), File::Other),
            (open("/"), File::Other),
        ] {
            assert_eq!(file(&fd), expected, "{fd:?}");
        }
        let local = system(&OwnedFd::from(on_disk.try_clone().unwrap()));
        let is_local = local.is_some_and(|system| LOCAL.contains(&system));
        let expected = if is_local { File::Memory } else { File::Other };
        assert_eq!(file(&on_disk.into()), expected);
    }

    #[test]
    fn the_memory_of_a_process_is_known_by_the_end_of_its_path() {
        for path in ["/proc/7/mem", "/srv/root/proc/7/mem", "/proc/7/task/8/mem"] {
            assert!(is_named_as_memory(path.as_bytes()), "{path}");
        }
        for path in [
            "/proc/7/maps",
            "/proc/mem",
            "/proc/7a/mem",
            "//mem",
            "/mem",
            "7",
        ] {
            assert!(!is_named_as_memory(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn protocols_take_what_they_have_use_for() {
        let memory = memfd_create("m", MemfdFlags::CLOEXEC).unwrap();
        let (unix, _) = UnixDatagram::pair().unwrap();
        let unix = OwnedFd::from(unix);
        let taken = |fd: &OwnedFd| Kind::ALL.map(|kind| kind.takes(fd));
        assert_eq!(taken(&memory), [false, true, false, false, false]);
        assert_eq!(taken(&unix), [false, false, true, true, false]);
    }
}
