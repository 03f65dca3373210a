//! A VF and its driver, from the moment on in which its port is active.

use anyhow::{Context, bail};
use hca_vfio::VfioBus;
use ib_endpoint::cm::{CmEventKind, ConnId};
use ib_endpoint::{PortPath, SaAnswer, SaEvent, SaRequest};
use ib_vtime::Duration;
use ib_wire::sa::PathRecord;
use ib_wire::{PortNum, Rate};
use mlx4_driver::{Bus, Driver, DriverError, PortCache};

use crate::cli::Destination;

/// The port: VFs of a ConnectX-3 with two ports have their first on port 1.
pub(super) const PORT: PortNum = PortNum(1);

/// Memory of the driver: its event queues have 4 MiB, and a connection as many as it moves.
const MEMORY: usize = 32 << 20;

/// Time for the port to become active, and for a peer or the SA to answer.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// Time that the side which waits has for its peer: until it is stopped.
pub(super) const FOREVER: Duration = Duration::MAX;

/// The longest wait for an interrupt before the driver looks by itself.
const LOOK: Duration = Duration::from_millis(100);

pub(super) struct Session {
    pub(super) bus: VfioBus,
    pub(super) driver: Driver,
}

impl Session {
    /// Takes the VF, and waits until its port is active.
    pub(super) fn open(address: &str) -> anyhow::Result<Self> {
        let (mut bus, memory) = hca_vfio::open(address, MEMORY)?;
        let driver = Driver::probe(&mut bus, memory).context("the VF does not come up")?;
        let mut this = Self { bus, driver };
        let active = this.until(LIMIT, |driver, _| {
            Ok(driver.port(PORT).is_active().then_some(()))
        })?;
        if active.is_none() {
            let state = this.port().info.port_state();
            bail!(
                "the port is {state:?} after 30 s: is there a subnet manager, and is the link up?"
            );
        }
        Ok(this)
    }

    /// Returns the VF to the kernel.
    pub(super) fn close(mut self) -> anyhow::Result<()> {
        let removed = self.driver.remove(&mut self.bus);
        removed.context("the VF does not shut down")
    }

    pub(super) fn port(&self) -> &PortCache {
        self.driver.port(PORT)
    }

    /// Serves the driver until something is so. Returns `None` if it is not within the limit.
    pub(super) fn until<T>(
        &mut self,
        limit: Duration,
        mut is_so: impl FnMut(&mut Driver, &mut VfioBus) -> Result<Option<T>, DriverError>,
    ) -> anyhow::Result<Option<T>> {
        let begun = self.bus.now();
        loop {
            self.driver.serve(&mut self.bus)?;
            while self.driver.poll_event().is_some() {}
            if let Some(found) = is_so(&mut self.driver, &mut self.bus)? {
                return Ok(Some(found));
            }
            if self.bus.now().saturating_duration_since(begun) >= limit {
                return Ok(None);
            }
            if !self.driver.has_work() {
                self.bus.wait(LOOK);
            }
        }
    }

    /// Asks the SA.
    pub(super) fn ask(&mut self, request: SaRequest) -> anyhow::Result<SaAnswer> {
        let now = self.bus.now();
        let mads = self.driver.mads(PORT);
        let asked = mads.sa.query(now, &mut mads.agent, request);
        let answer = self.until(LIMIT, |driver, _| {
            let event = driver.mads(PORT).sa.poll_event();
            Ok(event.and_then(|event| match event {
                SaEvent::Answered { query, result } if query == asked => Some(result),
                _ => None,
            }))
        })?;
        Ok(answer.context("the SA does not answer")??)
    }

    /// Asks the SA for the path to a port, by the VF's own GID: its LID is that of all VFs of the adapter.
    pub(super) fn path(&mut self, to: Destination) -> anyhow::Result<PortPath> {
        let sgid = self.port().gid();
        let request = match to {
            Destination::Gid(gid) => SaRequest::path_by_gids(sgid, gid, None),
            Destination::Lid(dlid) => {
                let mut record = PathRecord {
                    sgid,
                    dlid,
                    ..PathRecord::default()
                };
                record.set_reversible(true);
                record.set_numb_path(1);
                let ends = PathRecord::SGID | PathRecord::DLID;
                let mask = ends | PathRecord::REVERSIBLE | PathRecord::NUMB_PATH;
                SaRequest::get(&record, mask)
            }
        };
        let answer = self.ask(request);
        let answer = answer.with_context(|| format!("no path to {to}"))?;
        let record: PathRecord = answer.record().context("the SA's answer is no path")?;
        let path = PortPath::new(PORT, &self.port().view(), &record);
        let path = path.with_context(|| format!("the path to {to} is none of this port"))?;
        Ok(path.with_grh())
    }

    /// Waits for a message of the connection manager.
    pub(super) fn message<T>(
        &mut self,
        limit: Duration,
        mut is_it: impl FnMut(CmEventKind) -> Result<Option<T>, String>,
    ) -> anyhow::Result<(ConnId, T)> {
        let found = self.until(limit, |driver, _| {
            let Some(event) = driver.mads(PORT).cm.poll_event() else {
                return Ok(None);
            };
            let found = match event.kind {
                CmEventKind::RejReceived(rej) => Err(format!("the peer refuses: {}", rej.reason)),
                CmEventKind::ReqError | CmEventKind::RepError => {
                    Err("the peer does not answer".to_owned())
                }
                kind => is_it(kind),
            };
            Ok(found.transpose().map(|found| (event.conn, found)))
        })?;
        let (id, found) = found.context("the peer does not answer in time")?;
        found
            .map(|found| (id, found))
            .map_err(|why| anyhow::anyhow!(why))
    }

    /// Describes the port in a line.
    pub(super) fn port_line(&self) -> String {
        let port = self.port();
        let partitions = port.pkeys.iter().filter(|pkey| pkey.base() != 0);
        let partitions: Vec<_> = partitions.map(ToString::to_string).collect();
        format!(
            "port {}: LID {}, GID {}, MTU {}, P_Keys {}, SM at LID {}",
            PORT.0,
            port.info.lid,
            port.gid(),
            port.info.neighbor_mtu().bytes().unwrap_or(0),
            partitions.join(" "),
            port.info.master_sm_lid
        )
    }

    /// Asks for the path to a port, and describes it in a line.
    pub(super) fn path_line(&mut self, to: Destination) -> anyhow::Result<String> {
        let path = self.path(to)?;
        let record = path.record();
        Ok(format!(
            "path to {to}: LID {}, GID {}, MTU {}, {}, SL {}, P_Key {}",
            record.dlid,
            record.dgid,
            record.mtu_value().bytes().unwrap_or(0),
            rate(record.rate_value()),
            record.sl(),
            record.pkey
        ))
    }
}

/// Describes a rate, whose name is such as `GBPS_2_5`.
fn rate(rate: Rate) -> String {
    let name = rate.to_string();
    match name.strip_prefix("GBPS_") {
        Some(number) => format!("{} Gb/s", number.replace('_', ".")),
        None => format!("rate {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_their_unit() {
        assert_eq!(rate(Rate::GBPS_2_5), "2.5 Gb/s");
        assert_eq!(rate(Rate::GBPS_56), "56 Gb/s");
    }
}
