//! A PF context on a port of a Linux HCA with software of hosts on its VFs, for programs of tests.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant as Clock};
use std::{fs, thread};

use hca_api::{
    Adapter, AddressSpace, AddressVector, AsyncEvent, Consumer, CqHandle, Hca, HcaError, HcaEvent,
    HostMemory, MrHandle, MrKeys, MrSpec, PdHandle, SpecialQp,
};
use hca_functions::Functions;
use hca_linux::{LinuxHca, MappedFiles, OpenFiles, PORT};
use ib_endpoint::{EndPort, EndPortConfig, EndPortEvent};
use ib_vtime::Instant;
use ib_wire::{Gid, GidIndex, Guid, Lid, Psn, Qpn};
use pf_context::PfHost;
use pf_context::context::PfConfig;
use vf_proxy::native::{Peer, ProxyQp};
use vf_tunnel::VfId;

use super::linux_hca::{open, wait_for_files};
use crate::world::vf_spec;

/// Result of a program of tests.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// MADs that a VF's port holds each way.
const DEPTH: u32 = 128;

/// Bytes of memory that a VF with data may have.
const MEMORY: usize = 1 << 26;

/// Time that anything may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the way to a VF.
#[must_use]
pub const fn vector(gid: Gid, lid: Lid) -> AddressVector {
    Peer::on_subnet(PORT, lid, gid, Qpn::GSI, Psn::from_low_bits(0)).address
}

/// Waits until a file has the address of the peer. `read` returns it once the text is whole.
///
/// # Errors
/// It did not come in time.
pub fn peer_in<T>(file: &str, read: impl Fn(&str) -> Option<T>) -> Result<T> {
    let patience = Clock::now() + PATIENCE;
    loop {
        let text = fs::read_to_string(file).unwrap_or_default();
        match read(&text) {
            Some(address) => return Ok(address),
            None if Clock::now() > patience => return Err("the peer has no address".into()),
            None => thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Returns the exit status of a program, and prints its error as one line.
#[must_use]
pub fn ended(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// The software of a host on a VF.
#[derive(Debug)]
pub struct VfSoftware {
    /// Its port.
    pub port: EndPort<ProxyQp>,
    /// Completion queues that were announced.
    pub announced: Vec<CqHandle>,
    /// Asynchronous events, but for changes of the port.
    pub raised: Vec<AsyncEvent>,
    is_gone: bool,
}

impl VfSoftware {
    /// Opens a VF's port. All VFs have the same transaction and communication ids.
    fn open(hca: &mut dyn Hca) -> Result<Self> {
        let proxy = ProxyQp::open(hca, SpecialQp::Gsi, PORT, DEPTH)?;
        let config = EndPortConfig {
            depth: DEPTH,
            ..EndPortConfig::host(PORT, 7)
        };
        let port = EndPort::open_on(Instant::ZERO, hca, config, proxy, None)?;
        Ok(Self {
            port,
            announced: Vec::new(),
            raised: Vec::new(),
            is_gone: false,
        })
    }
}

impl Consumer for VfSoftware {
    fn handle_hca_event(&mut self, now: Instant, hca: &mut dyn Hca, event: &HcaEvent) {
        self.is_gone |= *event == HcaEvent::Async(AsyncEvent::FunctionReset);
        match event {
            HcaEvent::Completion(cq) => self.announced.push(*cq),
            HcaEvent::Async(AsyncEvent::Port { .. }) => {}
            HcaEvent::Async(event) => self.raised.push(*event),
        }
        // A port that cannot be read now is read again with the next event.
        let _ = self.port.handle_hca_event(now, hca, event);
    }

    fn poll(&mut self, now: Instant, hca: &mut dyn Hca) -> bool {
        !self.is_gone && self.port.poll(now, hca)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.port.poll_timeout().filter(|_| !self.is_gone)
    }
}

/// An adapter shared among VFs.
pub struct Shared {
    hca: LinuxHca<OpenFiles>,
    functions: Functions,
    pf: PfHost,
    /// Its VFs.
    pub vfs: Vec<VfId>,
    started: Clock,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("hca", &self.hca)
            .field("vfs", &self.vfs)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Opens a port for so many VFs, with data if there are files for it.
    ///
    /// # Errors
    /// Whatever is in the way.
    pub fn open(device: &str, port: u8, vfs: u16, data: Option<MappedFiles>) -> Result<Self> {
        let mut functions = Functions::new(vfs, 3);
        let mut hca = open(device, port, functions.memory())?;
        if let Some(files) = &data {
            hca.open_data(device, port, files.clone())?;
        }
        let node = hca.attributes().node_guid.get();
        let mut adapter = functions.on(&mut hca);
        let config = PfConfig::new(node);
        let mut pf = PfHost::open(Instant::ZERO, &mut adapter, &config)?;
        let vfs: Vec<_> = (1..=vfs).filter_map(VfId::new).collect();
        for vf in &vfs {
            let mut spec = vf_spec(Guid::new(node | u64::from(vf.get()) << 40));
            spec.memory = match &data {
                Some(files) => Box::new(files.memory(MEMORY)?) as Box<dyn AddressSpace>,
                None => Box::new(HostMemory::new()),
            };
            pf.add_vf(Instant::ZERO, &mut adapter, *vf, spec)?;
            let mut function = adapter.function((*vf).into()).ok_or("no function")?;
            pf.place(*vf, Box::new(VfSoftware::open(&mut function)?))?;
        }
        Ok(Self {
            hca,
            functions,
            pf,
            vfs,
            started: Clock::now(),
        })
    }

    /// Returns the time since it was opened.
    pub fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    /// Returns the software of a VF, to be used.
    ///
    /// # Errors
    /// There is no such VF.
    pub fn software(&mut self, vf: VfId) -> Result<&mut VfSoftware> {
        let consumer = self.pf.consumer_mut(vf).ok_or("no consumer")?;
        Ok(consumer.downcast_mut().ok_or("another consumer")?)
    }

    /// Returns the port of a VF, to be used.
    ///
    /// # Errors
    /// As [`Self::software`].
    pub fn port(&mut self, vf: VfId) -> Result<&mut EndPort<ProxyQp>> {
        Ok(&mut self.software(vf)?.port)
    }

    /// Calls `with` with the function of a VF.
    ///
    /// # Errors
    /// There is no such VF; or those of `with`.
    pub fn with<T>(&mut self, vf: VfId, with: impl FnOnce(&mut dyn Hca) -> Result<T>) -> Result<T> {
        let mut adapter = self.functions.on(&mut self.hca);
        let mut function = adapter.function(vf.into()).ok_or("no function")?;
        with(&mut function)
    }

    /// Registers memory of a VF, and waits for the outcome.
    ///
    /// # Errors
    /// The error of the registration; errors of [`Self::until`].
    pub fn register(&mut self, vf: VfId, spec: &MrSpec<'_>) -> Result<MrKeys> {
        self.outcome(vf, spec.pd, |hca| hca.register_mr(spec))
    }

    /// Deregisters memory of a protection domain of a VF, and waits until it is done.
    ///
    /// # Errors
    /// The error of the deregistration; errors of [`Self::until`].
    pub fn deregister(&mut self, vf: VfId, pd: PdHandle, region: MrHandle) -> Result<()> {
        self.outcome(vf, pd, |hca| hca.deregister_mr(region))
    }

    /// Repeats a call that can be under way, until it has an outcome.
    fn outcome<T>(
        &mut self,
        vf: VfId,
        pd: PdHandle,
        mut call: impl FnMut(&mut dyn Hca) -> std::result::Result<T, HcaError>,
    ) -> Result<T> {
        let done = AsyncEvent::RegistrationDone(pd);
        loop {
            let raised = &mut self.software(vf)?.raised;
            raised.retain(|event| *event != done);
            match self.with(vf, |hca| Ok(call(hca)))? {
                Err(HcaError::Pending) => self.until(|shared| {
                    let raised = &shared.software(vf)?.raised;
                    Ok(raised.contains(&done).then_some(()))
                })?,
                outcome => return Ok(outcome?),
            }
        }
    }

    /// Does what there is to do at once.
    ///
    /// # Errors
    /// Errors of the software of VFs.
    pub fn turn(&mut self) -> Result<()> {
        self.poll(self.now())?;
        let files = Duration::ZERO;
        Ok(wait_for_files(&mut self.hca, files)?)
    }

    /// Polls adapter, functions and software. Returns `true` if there may be more to do at once.
    fn poll(&mut self, now: Instant) -> Result<bool> {
        let goes_on = self.hca.poll(now);
        self.functions.handle_timeout(&mut self.hca, now);
        let mut adapter = self.functions.on(&mut self.hca);
        Ok(goes_on | self.pf.poll(now, &mut adapter, &mut || false)?)
    }

    /// Returns the GID of a VF, if it has one.
    ///
    /// # Errors
    /// As [`Self::software`].
    pub fn gid(&mut self, vf: VfId) -> Result<Option<Gid>> {
        Ok(self.port(vf)?.view().gid(GidIndex(0)))
    }

    /// Does what there is to do until `done` returns something, and waits for files and timers in between.
    ///
    /// # Errors
    /// Errors of `done`; nothing came in time.
    pub fn until<T>(&mut self, mut done: impl FnMut(&mut Self) -> Result<Option<T>>) -> Result<T> {
        let patience = Clock::now() + PATIENCE;
        loop {
            let now = self.now();
            let goes_on = self.poll(now)?;
            if let Some(result) = done(self)? {
                return Ok(result);
            }
            if Clock::now() > patience {
                return Err(format!("nothing came: {:?}", self.hca.counters()).into());
            }
            if !goes_on {
                let functions = self.functions.poll_timeout();
                let due = [self.hca.poll_timeout(), self.pf.poll_timeout(), functions];
                let due = due.into_iter().flatten().min();
                let wait = due.map(|due| due.saturating_duration_since(now));
                wait_for_files(&mut self.hca, wait.unwrap_or(PATIENCE).min(PATIENCE))?;
            }
        }
    }

    /// Returns the next event of a VF.
    ///
    /// # Errors
    /// As [`Self::until`].
    pub fn event(&mut self) -> Result<(VfId, EndPortEvent)> {
        self.until(|shared| {
            for vf in shared.vfs.clone() {
                if let Some(event) = shared.port(vf)?.poll_event() {
                    return Ok(Some((vf, event)));
                }
            }
            Ok(None)
        })
    }

    /// Waits until all VFs have GIDs, and returns them.
    ///
    /// # Errors
    /// As [`Self::until`].
    pub fn bring_up(&mut self) -> Result<BTreeMap<VfId, Gid>> {
        let mut gids = BTreeMap::new();
        while gids.len() < self.vfs.len() {
            self.event()?;
            for vf in self.vfs.clone() {
                let is_active = self.port(vf)?.view().state == ib_wire::smp::PortState::ACTIVE;
                if let Some(gid) = self.gid(vf)?.filter(|_| is_active) {
                    gids.insert(vf, gid);
                }
            }
        }
        Ok(gids)
    }
}
