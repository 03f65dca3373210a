//! The end that is connected to: it checks the memory, the queues and the eventfds of the front end.

use std::fs::File;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut,
    VhostUserProtocolFeatures,
};

use super::{FEATURES, NegotiationError, PATIENCE, PROTOCOL, VERSION};
use crate::parts::{RingParts, Side};
use crate::ring::memory::{self, QUEUES};
use crate::ring::{QueueAddresses, signal};

/// Messages of a set-up at most. A front end of this crate has 39.
const MESSAGES: usize = 256;

/// Places of a queue at most.
const MAX_PLACES: u16 = 1024;

/// A trunk that was set up.
#[derive(Debug)]
pub(crate) struct Agreed {
    /// The parts for the service, with a lifeline whose other end is below.
    pub(crate) parts: RingParts,
    /// Hangs up when the service gives the trunk up.
    pub(crate) service: UnixStream,
    /// Hangs up when the front end does. It is dropped when the service hangs up.
    pub(crate) front_end: UnixStream,
}

/// Sets up a trunk with a front end that has connected. Blocks for [`PATIENCE`] at most.
///
/// # Errors
/// [`NegotiationError`].
pub(crate) fn accept(stream: UnixStream) -> std::result::Result<Agreed, NegotiationError> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let front_end = stream.try_clone()?;
    let late = stream.try_clone()?;
    let (done, end) = channel::<()>();
    // The handler reads each message to its end, however slowly it comes.
    let watch = move || {
        if end.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            let _ = late.shutdown(Shutdown::Both);
        }
    };
    thread::Builder::new().spawn(watch)?;
    let state = Arc::new(Mutex::new(BackEnd::default()));
    let mut handler = BackendReqHandler::from_stream(stream, state.clone());
    for _ in 0..MESSAGES {
        let handled = handler.handle_request();
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(refusal) = state.refusal.take() {
            return Err(refusal);
        }
        handled?;
        let (service, lifeline) = UnixStream::pair()?;
        if let Some(parts) = state.take(lifeline.into()) {
            drop(done);
            return Ok(Agreed {
                parts,
                service,
                front_end,
            });
        }
    }
    let words = "the front end does not come to the end of the set-up";
    Err(NegotiationError::Protocol(words.to_owned()))
}

/// The memory of the front end.
#[derive(Debug)]
struct Region {
    file: OwnedFd,
    /// Address of its first byte in descriptors.
    base: u64,
    bytes: u64,
    /// Address of its first byte in messages.
    named: u64,
}

/// A queue as far as the front end has described it.
#[derive(Debug, Default)]
struct Vring {
    size: Option<u16>,
    addresses: Option<[u64; 3]>,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    is_enabled: bool,
}

/// The state of a set-up.
#[derive(Debug, Default)]
struct BackEnd {
    has_features: bool,
    region: Option<Region>,
    vrings: [Vring; QUEUES],
    /// Reason that the front end hears as an error alone.
    refusal: Option<NegotiationError>,
}

impl BackEnd {
    fn vring(&mut self, index: u32) -> Result<&mut Vring> {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        self.vrings.get_mut(index).ok_or(Error::InvalidParam)
    }

    /// Takes the parts once all of them are there.
    fn take(&mut self, lifeline: OwnedFd) -> Option<RingParts> {
        let is_whole = |vring: &Vring| {
            let is_placed = vring.size.is_some() && vring.addresses.is_some();
            is_placed && vring.is_enabled && vring.kick.is_some() && vring.call.is_some()
        };
        if !self.has_features || !self.vrings.iter().all(is_whole) {
            return None;
        }
        let region = self.region.take()?;
        let (mut queues, mut kicks, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        for vring in &mut self.vrings {
            // A part outside the region is found where the queue is mapped.
            let place = |named: u64| named.wrapping_sub(region.named).wrapping_add(region.base);
            let [descriptors, available, used] = vring.addresses?.map(place);
            queues.push(QueueAddresses {
                size: vring.size?,
                descriptors,
                available,
                used,
            });
            kicks.push(vring.kick.take()?);
            calls.push(vring.call.take()?);
        }
        Some(RingParts {
            side: Side::Device,
            lifeline,
            memory: region.file,
            base: region.base,
            bytes: region.bytes,
            queues: queues.try_into().ok()?,
            kicks: kicks.try_into().ok()?,
            calls: calls.try_into().ok()?,
        })
    }
}

/// Checks an eventfd of the front end.
fn eventfd(file: Option<File>) -> Result<Option<OwnedFd>> {
    let file = OwnedFd::from(file.ok_or(Error::IncorrectFds)?);
    signal::check(&file).map_err(|_| Error::IncorrectFds)?;
    Ok(Some(file))
}

/// Error of a message that the back end did not offer to understand.
const fn not_offered<T>() -> Result<T> {
    Err(Error::InvalidOperation("a trunk has no such message"))
}

impl VhostUserBackendReqHandlerMut for BackEnd {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        not_offered()
    }

    fn reset_device(&mut self) -> Result<()> {
        not_offered()
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(FEATURES)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        self.has_features = features == FEATURES;
        match self.has_features {
            true => Ok(()),
            false => Err(Error::FeatureMismatch),
        }
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<vhost::VhostUserMemoryRegionBase>>> {
        let mut files = files.into_iter();
        let ([region], Some(file), None) = (regions, files.next(), files.next()) else {
            return Err(Error::InvalidParam);
        };
        if region.mmap_offset != 0 || region.guest_phys_addr == 0 {
            return Err(Error::InvalidParam);
        }
        let (file, bytes) = (OwnedFd::from(file), region.memory_size);
        if let Err(refusal) = memory::check(&file, bytes) {
            self.refusal = Some(refusal.into());
            return Err(Error::InvalidParam);
        }
        self.region = Some(Region {
            file,
            base: region.guest_phys_addr,
            bytes,
            named: region.user_addr,
        });
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, size: u32) -> Result<()> {
        let size = u16::try_from(size).ok();
        let size = size.filter(|size| size.is_power_of_two() && *size <= MAX_PLACES);
        self.vring(index)?.size = Some(size.ok_or(Error::InvalidParam)?);
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.vring(index)?.addresses = Some([descriptors, available, used]);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.vring(index)?;
        match base {
            0 => Ok(()),
            _ => Err(Error::InvalidParam),
        }
    }

    fn get_vring_base(&mut self, _index: u32) -> Result<VhostUserVringState> {
        not_offered()
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        self.vring(index.into())?.kick = eventfd(file)?;
        Ok(())
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        self.vring(index.into())?.call = eventfd(file)?;
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, _file: Option<File>) -> Result<()> {
        self.vring(index.into()).map(drop)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(PROTOCOL)
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(QUEUES as u64)
    }

    fn set_vring_enable(&mut self, index: u32, is_enabled: bool) -> Result<()> {
        self.vring(index)?.is_enabled = is_enabled;
        Ok(())
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        let version = VERSION.to_le_bytes();
        match (offset, usize::try_from(size)) {
            (0, Ok(size)) if size == version.len() => Ok(version.to_vec()),
            _ => Err(Error::InvalidParam),
        }
    }

    fn set_config(
        &mut self,
        _offset: u32,
        _bytes: &[u8],
        _flags: VhostUserConfigFlags,
    ) -> Result<()> {
        not_offered()
    }

    fn set_gpu_socket(&mut self, _socket: GpuBackend) -> Result<()> {
        not_offered()
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        not_offered()
    }

    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        not_offered()
    }

    fn set_inflight_fd(&mut self, _inflight: &VhostUserInflight, _file: File) -> Result<()> {
        not_offered()
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        not_offered()
    }

    fn add_mem_region(
        &mut self,
        _region: &VhostUserSingleMemoryRegion,
        _file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<vhost::VhostUserMemoryRegionBase>> {
        not_offered()
    }

    fn remove_mem_region(&mut self, _region: &VhostUserSingleMemoryRegion) -> Result<()> {
        not_offered()
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        not_offered()
    }

    fn check_device_state(&mut self) -> Result<()> {
        not_offered()
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        not_offered()
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        not_offered()
    }
}
