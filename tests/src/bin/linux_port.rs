//! A host's software on a port of a Linux HCA, by hca-linux and umad.
//!
//! ```text
//! linux-port DEVICE PORT answer EXCHANGES
//! linux-port DEVICE PORT ask GID
//! linux-port DEVICE PORT watch
//! ```
//!
//! `answer` prints its port's GID, answers so many SIDR requests, the CM's smallest exchange, and stays until it is killed. `ask` looks up the path to a port and
//! the records of all ports, has all requests of that port answered, and counts the answers. `watch` prints the port's state whenever it changes.
//! An error is one line, with exit status 2.

use std::process::ExitCode;
use std::time::{Duration, Instant as Clock};

use hca_api::HostMemory;
use hca_linux::{LinuxHca, OpenFiles, PORT};
use ib_endpoint::cm::CmEventKind;
use ib_endpoint::{EndPort, EndPortConfig, EndPortEvent, MadAddress, SaAnswer, SaEvent, SaRequest};
use ib_vtime::Instant;
use ib_wire::cm::{CmSidrRep, CmSidrReq};
use ib_wire::sa::{ComponentMask, NodeRecord, PathRecord};
use ib_wire::{Gid, GidIndex, ServiceId};
use vhca_tests::live::linux_hca::{open, wait_for_files};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const SERVICE: ServiceId = ServiceId::new(0x1000);

/// Requests that `ask` sends at once.
const EXCHANGES: usize = 40;

/// Time that anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A host: its port, and the software on it.
struct Host {
    hca: LinuxHca<OpenFiles>,
    port: EndPort,
    started: Clock,
}

impl Host {
    fn open(device: &str, port: u8) -> Result<Self> {
        let memory = Box::new(HostMemory::new());
        let mut hca = open(device, port, memory)?;
        let config = EndPortConfig::host(PORT, u64::from(std::process::id()));
        let port = EndPort::open(Instant::ZERO, &mut hca, config)?;
        Ok(Self {
            hca,
            port,
            started: Clock::now(),
        })
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    fn gid(&self) -> Option<Gid> {
        self.port.view().gid(GidIndex(0))
    }

    /// Returns the next event.
    fn event(&mut self) -> Result<EndPortEvent> {
        let patience = Clock::now() + PATIENCE;
        loop {
            let now = self.now();
            let mut goes_on = self.hca.poll(now);
            while let Some(event) = hca_api::Hca::poll_event(&mut self.hca) {
                self.port.handle_hca_event(now, &mut self.hca, &event)?;
            }
            goes_on |= self.port.poll(now, &mut self.hca);
            if let Some(event) = self.port.poll_event() {
                return Ok(event);
            }
            if Clock::now() > patience {
                return Err(format!("nothing came: {:?}", self.hca.counters()).into());
            }
            if !goes_on {
                let due = [self.hca.poll_timeout(), self.port.poll_timeout()];
                let due = due.into_iter().flatten().min();
                let wait = due.map(|due| due.saturating_duration_since(now));
                wait_for_files(&mut self.hca, wait.unwrap_or(PATIENCE).min(PATIENCE))?;
            }
        }
    }

    /// Asks the SA.
    fn query(&mut self, request: SaRequest) -> Result<SaAnswer> {
        let asked = self.port.query(self.now(), request);
        loop {
            if let EndPortEvent::Sa(SaEvent::Answered { query, result }) = self.event()?
                && query == asked
            {
                return Ok(result?);
            }
        }
    }

    fn answer(&mut self, exchanges: usize) -> Result<()> {
        self.port.cm().listen(SERVICE, u64::MAX)?;
        println!("{}", self.gid().ok_or("the port has no GID")?);
        for _ in 0..exchanges {
            let conn = loop {
                if let EndPortEvent::Cm(event) = self.event()?
                    && matches!(event.kind, CmEventKind::SidrReqReceived { .. })
                {
                    break event.conn;
                }
            };
            let now = self.now();
            let reply = CmSidrRep::default();
            self.port.cm().send_sidr_rep(now, conn, &reply)?;
        }
        println!("answered {exchanges}");
        // Answers that have not left yet would be lost with the files.
        while self.event().is_ok() {}
        Ok(())
    }

    fn ask(&mut self, to: Gid) -> Result<()> {
        let own = self.gid().ok_or("the port has no GID")?;
        let path = self.query(SaRequest::path_by_gids(own, to, None))?;
        let path: PathRecord = path.record().ok_or("no path")?;
        println!("path to {}: {}", path.dgid, path.dgid == to);
        let all = SaRequest::get_table(&NodeRecord::default(), ComponentMask::NONE);
        let nodes = self.query(all)?;
        println!("nodes: {}", nodes.records::<NodeRecord>().count());
        let request = CmSidrReq {
            service_id: SERVICE,
            ..CmSidrReq::default()
        };
        let address = MadAddress::gsi(path.dlid);
        for _ in 0..EXCHANGES {
            let now = self.now();
            let second = Duration::from_secs(1);
            let cm = self.port.cm();
            cm.send_sidr_req(now, &address, &request, second, 8)?;
        }
        let mut answered = 0;
        while answered < EXCHANGES {
            if let EndPortEvent::Cm(event) = self.event()? {
                let CmEventKind::SidrRepReceived { from, .. } = event.kind else {
                    return Err(format!("{event:?}").into());
                };
                assert_eq!(from.lid, path.dlid);
                answered += 1;
            }
        }
        println!("answers: {answered}");
        let counters = self.hca.counters();
        println!(
            "refused: {}, dropped: {}",
            counters.refused, counters.overrun
        );
        Ok(())
    }

    fn watch(&mut self) -> Result<()> {
        loop {
            println!("{}", self.port.view().state);
            while !matches!(self.event()?, EndPortEvent::Port(_)) {}
        }
    }
}

fn run() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [device, port, rest @ ..] = words.as_slice() else {
        return Err("which device and port?".into());
    };
    let mut host = Host::open(device, port.parse()?)?;
    match rest {
        ["answer", exchanges] => host.answer(exchanges.parse()?),
        ["ask", gid] => {
            let address: std::net::Ipv6Addr = gid.parse()?;
            host.ask(Gid(address.octets()))
        }
        ["watch"] => host.watch(),
        _ => Err("answer, ask or watch?".into()),
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
