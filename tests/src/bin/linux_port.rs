//! A host's software on a port of a Linux HCA, by hca-linux and umad.
//!
//! ```text
//! linux_port DEVICE PORT
//! ```
//!
//! It prints the port's state at first, and whenever that changes, until it is killed. An error is one line, with exit status 2.

use std::process::ExitCode;
use std::time::{Duration, Instant as Clock};

use hca_api::HostMemory;
use hca_linux::{LinuxHca, OpenFiles, PORT};
use ib_endpoint::{EndPort, EndPortConfig, EndPortEvent};
use ib_vtime::Instant;
use vhca_tests::live::linux_hca::{open, wait_for_files};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Longest wait for a file.
const WAIT: Duration = Duration::from_secs(30);

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

    /// Returns the next event.
    fn event(&mut self) -> Result<EndPortEvent> {
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
            if !goes_on {
                let due = [self.hca.poll_timeout(), self.port.poll_timeout()];
                let due = due.into_iter().flatten().min();
                let wait = due.map(|due| due.saturating_duration_since(now));
                wait_for_files(&mut self.hca, wait.unwrap_or(WAIT).min(WAIT))?;
            }
        }
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
    let [device, port] = words.as_slice() else {
        return Err("which device and port?".into());
    };
    Host::open(device, port.parse()?)?.watch()
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
