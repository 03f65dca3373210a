//! The files of a port, open.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use linux_abi::Errno;

use crate::hca::LinuxHca;
use crate::umad::{FILES, PortFiles};

/// Bytes of the longest text in sysfs: a page.
const LONGEST: usize = 4096;

/// The files of a port: nine of umad, and files of sysfs by their paths below the folder of the port. No other file is opened later, so a
/// sandbox can forbid that.
#[derive(Debug)]
pub struct OpenFiles {
    pub(crate) umad: [File; FILES],
    pub(crate) sysfs: BTreeMap<String, File>,
}

impl OpenFiles {
    /// Returns the umad files with their numbers, for [`LinuxHca::set_ready`] once they can be read.
    pub fn descriptors(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        self.umad.iter().map(AsFd::as_fd).enumerate()
    }
}

impl LinuxHca<OpenFiles> {
    /// Returns the umad files and the files of events of libibverbs with their numbers, for [`Self::set_ready`] once they can be read.
    pub fn descriptors(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        let events = (FILES..).zip(self.event_files());
        self.files().descriptors().chain(events)
    }
}

impl PortFiles for OpenFiles {
    fn write(&mut self, file: usize, packet: &[u8]) -> Result<(), Errno> {
        let mut file = self.umad.get(file).ok_or(Errno::EINVAL)?;
        file.write(packet).map(drop).map_err(|error| errno(&error))
    }

    fn read(&mut self, file: usize, packet: &mut [u8]) -> Result<usize, Errno> {
        let mut file = self.umad.get(file).ok_or(Errno::EINVAL)?;
        file.read(packet).map_err(|error| errno(&error))
    }

    fn attribute(&self, path: &str) -> Option<String> {
        let mut text = [0; LONGEST];
        let length = self.sysfs.get(path)?.read_at(&mut text, 0).ok()?;
        String::from_utf8(text.get(..length)?.to_vec()).ok()
    }
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno)
}
