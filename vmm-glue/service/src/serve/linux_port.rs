//! The port of a Linux HCA, in front of which a PF context stands.

use std::ops::{Deref, DerefMut};

use hca_api::AddressSpace;
use hca_linux::{LinuxHca, OpenError, OpenFiles, PortConfig};
use ib_vtime::{Duration, Instant, Secret};
use vhca::world::OutsideHca;

use super::attach_spec::LinuxSpec;

/// VFs of a port at most.
pub(crate) const MAX_VFS: u16 = 126;

/// Time for which a request waits for its answer: as long as PF contexts keep transactions.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A port as the world drives it.
#[derive(Debug)]
pub(crate) struct Port(LinuxHca<OpenFiles>);

impl Port {
    /// Opens a port with all files that it will need.
    ///
    /// # Errors
    /// [`OpenError`].
    pub(crate) fn open(
        now: Instant,
        spec: &LinuxSpec,
        secret: Secret,
        memory: Box<dyn AddressSpace>,
    ) -> Result<Self, OpenError> {
        let config = PortConfig {
            device: spec.device.clone(),
            port: spec.port,
            with_cm: spec.with_cm,
            answer_timeout: ANSWER_TIMEOUT,
            secret,
            memory,
        };
        LinuxHca::open(now, config).map(Self)
    }
}

impl Deref for Port {
    type Target = LinuxHca<OpenFiles>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Port {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl OutsideHca for Port {
    fn poll(&mut self, now: Instant) -> bool {
        self.0.poll(now)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }
}
