//! The port of a Linux HCA, in front of which a PF context stands.

use std::ops::{Deref, DerefMut};

use hca_api::{AddressSpace, HcaError, HostMemory};
use hca_linux::{LinuxHca, MappedFiles, OpenError, OpenFiles, PortConfig};
use ib_vtime::{Duration, Instant, Secret};
use vhca::world::OutsideHca;

use super::attach_spec::LinuxSpec;

/// VFs of a port at most.
pub(crate) const MAX_VFS: u16 = 126;

/// Time for which a request waits for its answer: as long as PF contexts keep transactions.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of memory that software of the service on a VF may have, as far as they are written.
const VF_MEMORY: usize = 1 << 26;

/// A port as the world drives it.
#[derive(Debug)]
pub(crate) struct Port {
    hca: LinuxHca<OpenFiles>,
    /// Memory of VFs with data; `None` for a port that has MADs alone.
    files: Option<MappedFiles>,
}

impl Port {
    /// Opens a port with all files that it will need, for data as well where libibverbs has the device. Data of a RoCE port needs a
    /// service without a sandbox.
    ///
    /// # Errors
    /// [`OpenError`] of MADs. Why there is no data is in the log.
    pub(crate) fn open(
        now: Instant,
        spec: &LinuxSpec,
        secret: Secret,
        memory: Box<dyn AddressSpace>,
        sandbox: bool,
    ) -> Result<Self, OpenError> {
        let config = PortConfig {
            device: spec.device.clone(),
            port: spec.port,
            with_cm: spec.with_cm,
            answer_timeout: ANSWER_TIMEOUT,
            secret,
            memory,
        };
        let mut hca = LinuxHca::open(now, config)?;
        if sandbox && hca.is_roce() {
            log::warn!(
                "{spec} has MADs alone: on RoCE, libibverbs opens sockets later, which the sandbox forbids; --no-sandbox goes without"
            );
            return Ok(Self { hca, files: None });
        }
        let files = MappedFiles::default();
        let opened = hca.open_data(&spec.device, spec.port, files.clone());
        if let Err(why) = &opened {
            log::warn!("{spec} has MADs alone: {why}");
        }
        let files = opened.is_ok().then_some(files);
        Ok(Self { hca, files })
    }

    /// Returns memory for software of the service on a VF.
    ///
    /// # Errors
    /// [`HcaError::InsufficientResources`]: the process has too many files or mappings.
    pub(crate) fn vf_memory(&self) -> Result<Box<dyn AddressSpace>, HcaError> {
        let Some(files) = &self.files else {
            return Ok(Box::new(HostMemory::new()));
        };
        let memory = files.memory(VF_MEMORY);
        Ok(Box::new(
            memory.map_err(|_| HcaError::InsufficientResources)?,
        ))
    }
}

impl Deref for Port {
    type Target = LinuxHca<OpenFiles>;

    fn deref(&self) -> &Self::Target {
        &self.hca
    }
}

impl DerefMut for Port {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.hca
    }
}

impl OutsideHca for Port {
    fn poll(&mut self, now: Instant) -> bool {
        self.hca.poll(now)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.hca.poll_timeout()
    }

    fn is_gone(&self) -> bool {
        self.hca.is_gone()
    }
}
