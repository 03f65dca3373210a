//! A port of a Linux HCA for programs of tests.

use std::time::Duration;

use hca_api::AddressSpace;
use hca_linux::{LinuxHca, OpenError, OpenFiles, PortConfig};
use ib_vtime::{Instant, Secret};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Opens a port with the CM.
///
/// # Errors
/// [`OpenError`].
pub fn open(
    device: &str,
    port: u8,
    memory: Box<dyn AddressSpace>,
) -> Result<LinuxHca<OpenFiles>, OpenError> {
    let config = PortConfig {
        device: device.to_owned(),
        port,
        with_cm: true,
        answer_timeout: Duration::from_secs(60),
        secret: Secret::from(1),
        memory,
    };
    LinuxHca::open(Instant::ZERO, config)
}

/// Waits until a umad file can be read, for `most` at most.
///
/// # Errors
/// Errors of the system.
pub fn wait_for_files(hca: &mut LinuxHca<OpenFiles>, most: Duration) -> rustix::io::Result<()> {
    let timeout = Timespec::try_from(most).map_err(|_| rustix::io::Errno::INVAL)?;
    let files: Vec<_> = hca.descriptors().collect();
    let mut wanted: Vec<_> = files
        .iter()
        .map(|(_, file)| PollFd::from_borrowed_fd(*file, PollFlags::IN))
        .collect();
    poll(&mut wanted, Some(&timeout))?;
    let numbers = files.iter().map(|(number, _)| *number);
    let ready: Vec<_> = numbers
        .zip(&wanted)
        .filter(|(_, wanted)| !wanted.revents().is_empty())
        .map(|(number, _)| number)
        .collect();
    for number in ready {
        hca.set_ready(number);
    }
    Ok(())
}
