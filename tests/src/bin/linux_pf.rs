//! A PF context on a port of a Linux HCA, by hca-linux, hca-functions and umad, and the software of a host on each of its VFs.
//!
//! ```text
//! linux_pf DEVICE PORT VFS answer EXCHANGES
//! linux_pf DEVICE PORT VFS ask GID...
//! ```
//!
//! Both print the GIDs of the VFs once their ports are active. With `answer` each VF answers so many SIDR requests, the CM's smallest
//! exchange, and the program stays until it is killed. With `ask` each VF looks up the path to its GID of the list and the records of all
//! nodes, has its requests answered, all VFs' with the same ids at the same time, and counts the answers. An error is one line, with exit status 2.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant as Clock};

use hca_api::{Adapter, AsyncEvent, Consumer, GlobalRoute, Hca, HcaEvent, SpecialQp};
use hca_functions::Functions;
use hca_linux::{LinuxHca, OpenFiles, PORT};
use ib_endpoint::cm::{CmEventKind, ConnId};
use ib_endpoint::{EndPort, EndPortConfig, EndPortEvent, MadAddress, SaEvent, SaRequest};
use ib_vtime::Instant;
use ib_wire::cm::{CmSidrRep, CmSidrReq};
use ib_wire::sa::{ComponentMask, NodeRecord, PathRecord};
use ib_wire::{Gid, GidIndex, Guid, PKey, ServiceId};
use pf_context::PfHost;
use pf_context::context::PfConfig;
use vf_proxy::native::ProxyQp;
use vf_tunnel::VfId;
use vhca_tests::live::linux_hca::{open, wait_for_files};
use vhca_tests::world::vf_spec;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const SERVICE: ServiceId = ServiceId::new(0x1000);

/// Requests that each VF sends at once.
const EXCHANGES: usize = 40;

/// MADs that a VF's port holds each way.
const DEPTH: u32 = 128;

/// Time that anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The software of a host on a VF.
#[derive(Debug)]
struct VfSoftware {
    port: EndPort<ProxyQp>,
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
            is_gone: false,
        })
    }
}

impl Consumer for VfSoftware {
    fn handle_hca_event(&mut self, now: Instant, hca: &mut dyn Hca, event: &HcaEvent) {
        self.is_gone |= *event == HcaEvent::Async(AsyncEvent::FunctionReset);
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
struct Shared {
    hca: LinuxHca<OpenFiles>,
    functions: Functions,
    pf: PfHost,
    vfs: Vec<VfId>,
    started: Clock,
}

impl Shared {
    fn open(device: &str, port: u8, vfs: u16) -> Result<Self> {
        let mut functions = Functions::new(vfs, 3);
        let mut hca = open(device, port, functions.memory())?;
        let node = hca.attributes().node_guid.get();
        let mut adapter = functions.on(&mut hca);
        let config = PfConfig::new(node);
        let mut pf = PfHost::open(Instant::ZERO, &mut adapter, &config)?;
        let vfs: Vec<_> = (1..=vfs).filter_map(VfId::new).collect();
        for vf in &vfs {
            let guid = Guid::new(node | u64::from(vf.get()) << 40);
            pf.add_vf(Instant::ZERO, &mut adapter, *vf, vf_spec(guid))?;
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

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    /// Returns the software of a VF, to be used.
    fn port(&mut self, vf: VfId) -> Result<&mut EndPort<ProxyQp>> {
        let consumer = self.pf.consumer_mut(vf).ok_or("no consumer")?;
        let software: &mut VfSoftware = consumer.downcast_mut().ok_or("another consumer")?;
        Ok(&mut software.port)
    }

    fn gid(&mut self, vf: VfId) -> Result<Option<Gid>> {
        Ok(self.port(vf)?.view().gid(GidIndex(0)))
    }

    /// Returns the next event of a VF.
    fn event(&mut self) -> Result<(VfId, EndPortEvent)> {
        let patience = Clock::now() + PATIENCE;
        loop {
            let now = self.now();
            let mut goes_on = self.hca.poll(now);
            let mut adapter = self.functions.on(&mut self.hca);
            goes_on |= self.pf.poll(now, &mut adapter, &mut || false)?;
            for vf in self.vfs.clone() {
                if let Some(event) = self.port(vf)?.poll_event() {
                    return Ok((vf, event));
                }
            }
            if Clock::now() > patience {
                return Err(format!("nothing came: {:?}", self.hca.counters()).into());
            }
            if !goes_on {
                let due = [self.hca.poll_timeout(), self.pf.poll_timeout()];
                let due = due.into_iter().flatten().min();
                let wait = due.map(|due| due.saturating_duration_since(now));
                wait_for_files(&mut self.hca, wait.unwrap_or(PATIENCE).min(PATIENCE))?;
            }
        }
    }

    /// Waits until all VFs have GIDs, and prints them.
    fn bring_up(&mut self) -> Result<()> {
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
        for (vf, gid) in gids {
            println!("{vf}: {gid}");
        }
        Ok(())
    }

    fn answer(&mut self, exchanges: usize) -> Result<()> {
        for vf in self.vfs.clone() {
            self.port(vf)?.cm().listen(SERVICE, u64::MAX)?;
        }
        self.bring_up()?;
        for _ in 0..exchanges * self.vfs.len() {
            let (vf, conn) = self.request()?;
            let now = self.now();
            let reply = CmSidrRep::default();
            self.port(vf)?.cm().send_sidr_rep(now, conn, &reply)?;
        }
        println!("answered {exchanges} each");
        // Answers that have not left yet would be lost with the files.
        while self.event().is_ok() {}
        Ok(())
    }

    /// Returns the next SIDR request.
    fn request(&mut self) -> Result<(VfId, ConnId)> {
        loop {
            if let (vf, EndPortEvent::Cm(event)) = self.event()?
                && matches!(event.kind, CmEventKind::SidrReqReceived { .. })
            {
                return Ok((vf, event.conn));
            }
        }
    }

    fn ask(&mut self, gids: &[Gid]) -> Result<()> {
        self.bring_up()?;
        let asked = self.vfs.clone().into_iter().zip(gids.iter().copied());
        let asked: BTreeMap<_, _> = asked.collect();
        let now = self.now();
        for (vf, to) in &asked {
            let own = self.gid(*vf)?.ok_or("the VF has no GID")?;
            let port = self.port(*vf)?;
            port.query(now, SaRequest::path_by_gids(own, *to, None));
            port.query(
                now,
                SaRequest::get_table(&NodeRecord::default(), ComponentMask::NONE),
            );
        }
        let (mut paths, mut nodes) = (BTreeMap::new(), BTreeMap::new());
        while paths.len() + nodes.len() < 2 * asked.len() {
            let (vf, EndPortEvent::Sa(SaEvent::Answered { result, .. })) = self.event()? else {
                continue;
            };
            let answer = result?;
            match answer.records::<NodeRecord>().count() {
                0 | 1 => {
                    let path: PathRecord = answer.record().ok_or("no path")?;
                    paths.insert(vf, path);
                }
                count => {
                    nodes.insert(vf, count);
                }
            }
        }
        for _ in 0..EXCHANGES {
            for (vf, path) in &paths {
                let now = self.now();
                let request = CmSidrReq {
                    service_id: SERVICE,
                    pkey: PKey::DEFAULT_FULL,
                    ..CmSidrReq::default()
                };
                let route = GlobalRoute {
                    remote_gid: path.dgid,
                    sgid_index: GidIndex(0),
                    flow_label: 0,
                    hop_limit: 1,
                    traffic_class: 0,
                };
                let to = MadAddress {
                    grh: Some(route),
                    ..MadAddress::gsi(path.dlid)
                };
                let second = Duration::from_secs(1);
                let cm = self.port(*vf)?.cm();
                cm.send_sidr_req(now, &to, &request, second, 8)?;
            }
        }
        let mut answers: BTreeMap<VfId, usize> = BTreeMap::new();
        while answers.values().sum::<usize>() < EXCHANGES * asked.len() {
            if let (vf, EndPortEvent::Cm(event)) = self.event()? {
                let CmEventKind::SidrRepReceived { from, .. } = event.kind else {
                    return Err(format!("{vf}: {event:?}").into());
                };
                let answers_as = from.grh.map(|route| route.remote_gid);
                if answers_as != asked.get(&vf).copied() {
                    return Err(format!("{vf} is answered by {answers_as:?}").into());
                }
                *answers.entry(vf).or_default() += 1;
            }
        }
        for (vf, to) in &asked {
            let is_it = paths.get(vf).is_some_and(|path| path.dgid == *to);
            println!(
                "{vf}: path {is_it}, nodes {}, answers {}",
                nodes[vf], answers[vf]
            );
        }
        Ok(())
    }
}

fn run() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [device, port, vfs, rest @ ..] = words.as_slice() else {
        return Err("which device and port, and how many VFs?".into());
    };
    let mut shared = Shared::open(device, port.parse()?, vfs.parse()?)?;
    match rest {
        ["answer", exchanges] => shared.answer(exchanges.parse()?),
        ["ask", gids @ ..] => {
            let gids = gids.iter().map(|gid| {
                let address: std::net::Ipv6Addr = gid.parse()?;
                Ok(Gid(address.octets()))
            });
            shared.ask(&gids.collect::<Result<Vec<_>>>()?)
        }
        _ => Err("answer or ask?".into()),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
