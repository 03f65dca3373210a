//! The commands that ask a running service.

use std::io::{self, Write};

use anyhow::Context;
use serde::Deserialize;
use vhca_control::protocol::{MetricsQuery, Request};
use vhca_control::table::Tables;
use vhca_control::{GuestReports, OfferedVf};
use vhca_diagnosis::{Diagnosis, Faults, PairDiagnosis};

use crate::cli::{
    ClearArgs, ClearCommand, GuestArgs, MetricsArgs, PlainArgs, QemuArgsArgs, SetArgs, SetCommand,
    ShowArgs, SmCommand, WhyArgs, say,
};
use crate::qemu::{QemuArgs, QemuGuest};
use crate::wait_up::{await_ports, wait_up};

/// Prints tables. Returns `false` if VFs that were waited for are not up.
pub(crate) fn show(args: &ShowArgs) -> anyhow::Result<bool> {
    let (query, limit) = args.query();
    let mut remote = args.server.connect()?;
    let late = match limit {
        Some(limit) => wait_up(&mut remote, &query, limit)?,
        None => None,
    };
    let problems = query.problems;
    let reply = remote.ask(&Request::Show(query))?;
    let tables = Tables::of_reply(&reply)?;
    print(&match args.json {
        true => serde_json::to_string(&tables)? + "\n",
        false => tables.text(args.wide, problems),
    })?;
    if let Some(late) = &late {
        say(late);
    }
    Ok(late.is_none())
}

/// Prints the faults of VFs. Returns `true` if there is none.
pub(crate) fn why(args: WhyArgs) -> anyhow::Result<bool> {
    /// The reply for one VF, for several, or for two ends.
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Found {
        Several(Faults),
        Two(PairDiagnosis),
        One(Diagnosis),
    }

    let reply = args.server.connect()?.ask(&Request::Why {
        vf: args.vf,
        host: args.host,
        port: args.port,
        peer: args.peer,
    })?;
    let (text, is_well) = match serde_json::from_str(&reply)? {
        Found::Several(found) => (found.to_string(), found.faults.is_empty()),
        Found::Two(found) => (found.to_string(), found.verdict == "ok"),
        Found::One(found) => (found.to_string(), found.code == "ok"),
    };
    let text = if args.json { reply } else { text };
    print(&(text + "\n"))?;
    Ok(is_well)
}

/// What QEMU is to be given for VFs.
pub(crate) fn qemu_args(args: &QemuArgsArgs) -> anyhow::Result<QemuArgs> {
    let mut sockets = Vec::new();
    for vf in &args.vf {
        let reply = args.server.connect()?.ask(&Request::Offered {
            vf: vf.clone(),
            host: args.host.clone(),
        })?;
        let offered: OfferedVf = serde_json::from_str(&reply)?;
        sockets.push(offered.socket);
    }
    let guest = QemuGuest {
        memory_mib: args.memory,
        sockets,
    };
    Ok(guest.arguments())
}

/// Changes something.
pub(crate) fn set(args: SetArgs) -> anyhow::Result<()> {
    let (mut remote, request) = match args.what {
        SetCommand::Vf(args) => (args.server.connect()?, args.request()),
        SetCommand::Link(args) => {
            // Wrong words need no service to be refused.
            let request = args.request()?;
            (args.server.connect()?, request)
        }
        SetCommand::Trunk(args) => (args.server.connect()?, args.request()),
    };
    remote.ask(&request)?;
    Ok(())
}

/// Ends what [`set`] began.
pub(crate) fn clear(args: ClearArgs) -> anyhow::Result<()> {
    let ClearCommand::Link(args) = args.what;
    args.server.connect()?.ask(&args.request())?;
    Ok(())
}

/// Controls the subnet manager.
pub(crate) fn sm(what: &SmCommand) -> anyhow::Result<()> {
    let SmCommand::Sweep(args) = what;
    args.server.connect()?.ask(&Request::SweepSm {})?;
    Ok(())
}

/// Sends an action to guests and prints their reports. Returns `true` if all guests carried it out.
pub(crate) fn guest(args: GuestArgs) -> anyhow::Result<bool> {
    let (mut remote, json) = (args.server.connect()?, args.json);
    let (vf, host) = args.vfs();
    await_ports(&mut remote, vf, host, say)?;
    let reply = remote.ask(&args.request())?;
    let reports: GuestReports = serde_json::from_str(&reply)?;
    print(&match json {
        true => reply + "\n",
        false => (reports.guests.iter())
            .map(|report| format!("{report}\n"))
            .collect(),
    })?;
    Ok(reports.guests.iter().all(|report| report.ok))
}

/// Prints the text that Prometheus reads.
pub(crate) fn metrics(args: MetricsArgs) -> anyhow::Result<()> {
    #[derive(Deserialize)]
    struct Text {
        text: String,
    }

    let reply = args.server.connect()?.ask(&Request::Metrics(MetricsQuery {
        by: args.by,
        host: args.host,
        vf: args.vf,
    }))?;
    print(&serde_json::from_str::<Text>(&reply)?.text)
}

/// Ends the service.
pub(crate) fn stop(args: &PlainArgs) -> anyhow::Result<()> {
    Ok(args.server.connect()?.stop()?)
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    printed.context("cannot print")
}
