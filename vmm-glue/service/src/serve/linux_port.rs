//! The port of a Linux HCA, in front of which a PF context stands.

use std::ops::{Deref, DerefMut};

use hca_api::{AddressSpace, HcaError, HostMemory};
use hca_linux::{LinuxHca, MappedFiles, OpenFiles, PortConfig};
use ib_endpoint::EndPortError;
use ib_vtime::{Duration, Instant, Secret};
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use vf_tunnel::VfId;
use vhca::world::{HostId, OutsideHca, VfError, World};

use super::attach_spec::LinuxSpec;
use super::lab_error::LabError;
use super::options::Options;

/// VFs of a port at most.
pub(crate) const MAX_VFS: u16 = 126;

/// Time for which a request waits for its answer: as long as PF contexts keep transactions.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of memory that software of the service on a VF may have, as far as they are written.
const VF_MEMORY: usize = 1 << 26;

/// The reason for no data on RoCE in a service with a sandbox.
const SANDBOX: &str =
    "on RoCE, libibverbs opens sockets later, which the sandbox forbids; --no-sandbox goes without";

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
    /// [`LabError::Linux`]; [`LabError::NoData`], which the service logs and goes on unless its own software on VFs needs data.
    pub(crate) fn open(
        now: Instant,
        spec: &LinuxSpec,
        secret: Secret,
        memory: Box<dyn AddressSpace>,
        options: &Options,
    ) -> Result<Self, LabError> {
        let config = PortConfig {
            device: spec.device.clone(),
            port: spec.port,
            with_cm: spec.with_cm,
            answer_timeout: ANSWER_TIMEOUT,
            secret,
            memory,
        };
        let hca = LinuxHca::open(now, config);
        let mut hca = hca.map_err(|error| LabError::Linux(spec.clone(), error))?;
        let files = MappedFiles::default();
        let opened = if options.sandbox && hca.is_roce() {
            Err(SANDBOX.to_owned())
        } else {
            let opened = hca.open_data(&spec.device, spec.port, files.clone());
            opened.map_err(|error| error.to_string())
        };
        match opened.map_err(|why| LabError::NoData(spec.clone(), why)) {
            Ok(()) => {
                raise_lock_limit();
                let files = Some(files);
                Ok(Self { hca, files })
            }
            Err(why) if options.guests => Err(why),
            Err(why) => {
                log::warn!("{why}");
                Ok(Self { hca, files: None })
            }
        }
    }

    /// Returns the KiB of memory that the process may lock for data. `None` if there is no limit, or no data.
    fn lock_limit(&self) -> Option<u64> {
        self.files.as_ref()?;
        let rights = capabilities(None).ok()?.effective;
        let bytes = getrlimit(Resource::Memlock).current?;
        (!rights.contains(CapabilitySet::IPC_LOCK)).then_some(bytes / 1024)
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

/// Returns the error of a VF that cannot be started. On the port of a Linux HCA it names the limit of locked memory, if the process has one.
pub(crate) fn vf_error(
    world: &mut World,
    host: HostId,
    (name, vf): (&str, VfId),
    error: VfError,
) -> LabError {
    let is_refused = error == EndPortError::from(HcaError::InsufficientResources).into();
    let port = world.outside_hca_mut::<Port>(host).filter(|_| is_refused);
    match port.and_then(|port| port.lock_limit()) {
        Some(limit) => LabError::LockedMemory(name.to_owned(), vf, limit),
        None => LabError::Vf(name.to_owned(), vf, error),
    }
}

/// Raises the limit of memory that the process may lock to what the system allows: the adapter locks that of regions.
fn raise_lock_limit() {
    let mut limit = getrlimit(Resource::Memlock);
    if limit.current == limit.maximum {
        return;
    }
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Memlock, limit) {
        log::warn!("cannot raise the limit on locked memory: {error}");
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
