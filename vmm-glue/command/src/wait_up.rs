//! VFs that come up, waited for.

use core::fmt::Write;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Deserialize;
use vhca_control::Remote;
use vhca_control::Subject;
use vhca_control::protocol::{Request, ShowQuery};
use vhca_control::table::Tables;

/// Pause between two looks at the VFs.
const PAUSE: Duration = Duration::from_millis(100);

/// Time that ports may take to come up before guests use them.
const COMING_UP: Duration = Duration::from_secs(20);

/// Time after which a command says that it waits.
const SILENCE: Duration = Duration::from_secs(1);

/// VFs that are named in one message.
const NAMED: usize = 8;

/// A VF's port in a table.
#[derive(Debug, Deserialize)]
struct Row {
    host: String,
    port: u8,
    vf: u16,
    up: bool,
    reason: Option<String>,
    fault: Option<String>,
}

impl Row {
    /// Returns `true` if the port is down, and a subnet manager may soon change that.
    fn is_coming_up(&self) -> bool {
        let waits = [
            "no_sm",
            "port_not_active",
            "waiting_for_sa",
            "waiting_for_hardware",
        ];
        let fault = self.fault.as_deref();
        !self.up && fault.is_some_and(|fault| waits.contains(&fault))
    }

    /// Returns `true` if the port is up and the fabric has no fault that the VF suffers from. Faults of guests do not count: they come
    /// and go with VMMs.
    fn is_well(&self) -> bool {
        self.up && !self.fault.as_deref().is_some_and(is_of_fabric)
    }
}

/// Waits until the ports of the VFs that guests are to use are up, if they come up soon: right after the start of a service they are
/// not yet. What keeps others down is in the guests' reports.
pub(crate) fn await_ports(
    remote: &mut Remote,
    vf: &str,
    host: Option<&str>,
    say: fn(&str),
) -> anyhow::Result<()> {
    let (within, number) = match vf.rsplit_once('/') {
        Some((within, number)) => (Some(within), number),
        None => (host, vf),
    };
    let one = (number != "all").then(|| number.to_owned());
    let query = ShowQuery {
        host: within.map(ToOwned::to_owned),
        vf: one,
        ..ShowQuery::new(Subject::Vfs)
    };
    let began = Instant::now();
    let mut is_said = false;
    loop {
        let Ok(reply) = remote.ask(&Request::Show(query.clone())) else {
            // The refusal of the action itself names the mistake better.
            return Ok(());
        };
        let tables = serde_json::to_value(Tables::of_reply(&reply)?)?;
        let Rows { vfs } = Rows::deserialize(&tables)?;
        let coming = vfs.iter().filter(|row| row.is_coming_up()).count();
        let waited = began.elapsed();
        if coming == 0 || waited >= COMING_UP {
            return Ok(());
        }
        if waited >= SILENCE && !core::mem::replace(&mut is_said, true) {
            let seconds = COMING_UP.as_secs();
            say(&format!(
                "waiting for {coming} of {} ports, for {seconds} s at most",
                vfs.len()
            ));
        }
        sleep(PAUSE);
    }
}

/// Returns `true` for the codes of faults of links, subnet managers and SAs.
fn is_of_fabric(code: &str) -> bool {
    let kinds = ["sa_", "link_", "duplicate_"];
    ["no_sm", "pkey_missing"].contains(&code) || kinds.iter().any(|kind| code.starts_with(kind))
}

#[derive(Debug, Deserialize)]
struct Rows {
    vfs: Vec<Row>,
}

/// Waits until all VFs that a query shows are up and have no fault of the fabric. Returns a line that names the others when the
/// limit is over.
pub(crate) fn wait_up(
    remote: &mut Remote,
    query: &ShowQuery,
    limit: Duration,
) -> anyhow::Result<Option<String>> {
    let query = ShowQuery {
        problems: false,
        ..query.clone()
    };
    let began = Instant::now();
    loop {
        let reply = remote.ask(&Request::Show(query.clone()))?;
        let tables = serde_json::to_value(Tables::of_reply(&reply)?)?;
        let Rows { vfs } = Rows::deserialize(&tables)?;
        if vfs.iter().all(Row::is_well) {
            return Ok(None);
        }
        if began.elapsed() >= limit {
            return Ok(Some(late(&vfs, limit)));
        }
        sleep(PAUSE);
    }
}

/// Names the ports that are not well.
fn late(vfs: &[Row], limit: Duration) -> String {
    let down: Vec<&Row> = vfs.iter().filter(|row| !row.is_well()).collect();
    let mut line = format!(
        "{} of {} VFs are not up after {} s:",
        down.len(),
        vfs.len(),
        limit.as_secs()
    );
    for (place, row) in down.iter().take(NAMED).enumerate() {
        let comma = if place == 0 { "" } else { "," };
        let port = match row.port {
            1 => String::new(),
            port => format!(" port {port}"),
        };
        let fault = row.fault.as_deref().filter(|fault| is_of_fabric(fault));
        let reason = fault.or(row.reason.as_deref()).unwrap_or("down");
        // A string takes all that is written to it.
        let _ = write!(line, "{comma} {}/{}{port} ({reason})", row.host, row.vf);
    }
    if down.len() > NAMED {
        let _ = write!(line, " and {} more", down.len() - NAMED);
    }
    line + "; vhca why all names the faults"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(vf: u16, port: u8, up: bool) -> Row {
        Row {
            host: "H1-1".to_owned(),
            port,
            vf,
            up,
            reason: Some("no_sm".to_owned()),
            fault: None,
        }
    }

    #[test]
    fn vfs_that_are_late_are_named_with_the_reason() {
        let rows = [row(1, 1, true), row(2, 1, false), row(2, 2, false)];
        assert_eq!(
            late(&rows, Duration::from_secs(7)),
            "2 of 3 VFs are not up after 7 s: H1-1/2 (no_sm), H1-1/2 port 2 (no_sm); vhca why all names the faults"
        );
    }

    #[test]
    fn a_vf_that_is_up_is_late_for_a_fault_of_the_fabric_and_not_for_one_of_its_guest() {
        let with = |fault: &str| Row {
            fault: Some(fault.to_owned()),
            ..row(1, 1, true)
        };
        for code in [
            "sa_not_answering",
            "link_faulty",
            "duplicate_lid",
            "pkey_missing",
            "no_sm",
        ] {
            assert!(!with(code).is_well(), "{code}");
        }
        for code in ["no_vmm", "no_driver", "no_pkey"] {
            assert!(with(code).is_well(), "{code}");
        }
        assert!(
            late(&[with("sa_unreachable")], Duration::ZERO).contains("H1-1/1 (sa_unreachable)")
        );
    }

    #[test]
    fn of_many_late_vfs_the_first_are_named_and_the_others_counted() {
        let rows: Vec<_> = (1..=20).map(|vf| row(vf, 1, false)).collect();
        let line = late(&rows, Duration::from_secs(1));
        assert!(line.contains("H1-1/8 (no_sm) and 12 more; "), "{line}");
        assert!(!line.contains("H1-1/9"), "{line}");
    }
}
