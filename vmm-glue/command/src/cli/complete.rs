//! Completion of the command line in shells. A running service is asked for its hosts, VFs and nodes.

use core::time::Duration;
use std::collections::BTreeSet;

use clap::CommandFactory;
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use serde_json::Value;
use vhca_control::protocol::{Request, ShowQuery};
use vhca_control::table::Tables;
use vhca_control::{Places, Remote, Subject, default_places};

use super::Cli;

/// Variable by which the scripts of `vhca generate completions` have this program complete a line.
pub(super) const VARIABLE: &str = "VHCA_COMPLETE";

/// Completes a line and ends the process if that is what it was started for.
pub(crate) fn complete() {
    CompleteEnv::with_factory(Cli::command)
        .var(VARIABLE)
        .complete();
}

/// Returns the rows of a table of the service that answers at once, if one does.
fn rows(subject: Subject, table: &str) -> Vec<Value> {
    let ask = || {
        let named = std::env::var_os("VHCA_CONTROL").filter(|path| !path.is_empty());
        let paths = match named {
            Some(path) => vec![path.into()],
            None => default_places().ok()?,
        };
        let places = Places {
            paths,
            wait: Duration::ZERO,
        };
        let mut remote = Remote::connect_to(&places, |_| {}).ok()?;
        let reply = remote.ask(&Request::Show(ShowQuery::new(subject))).ok()?;
        let mut tables = serde_json::to_value(Tables::of_reply(&reply).ok()?).ok()?;
        match tables[table].take() {
            Value::Array(rows) => Some(rows),
            _ => None,
        }
    };
    ask().unwrap_or_default()
}

/// Returns names without repetition, in the order of their first.
fn candidates(names: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    let mut seen = BTreeSet::new();
    let names = names.into_iter().filter(|name| seen.insert(name.clone()));
    names.map(CompletionCandidate::new).collect()
}

/// Returns a value of a row as text.
fn text(row: &Value, column: &str) -> String {
    match &row[column] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns the VFs of the service by their names, and words for several of them.
fn vf_names(words: &[&str]) -> Vec<CompletionCandidate> {
    let rows = rows(Subject::Guids, "guids");
    let vfs = rows.iter().filter(|row| row["vf"].is_number());
    let name = |row: &Value| format!("{}/{}", text(row, "host"), text(row, "vf"));
    let mut names: Vec<String> = vfs.map(name).collect();
    for word in words {
        names.extend(
            rows.iter()
                .map(|row| format!("{}/{word}", text(row, "host"))),
        );
        names.push((*word).to_owned());
    }
    candidates(names)
}

/// Completes a VF.
pub(super) fn vf() -> ArgValueCandidates {
    ArgValueCandidates::new(|| vf_names(&[]))
}

/// Completes a VF, those of a host, or all.
pub(super) fn vfs() -> ArgValueCandidates {
    ArgValueCandidates::new(|| vf_names(&["all"]))
}

/// Completes a host with VFs.
pub(super) fn host() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let rows = rows(Subject::Guids, "guids");
        candidates(rows.iter().map(|row| text(row, "host")))
    })
}

/// Completes a node.
pub(super) fn node() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let rows = rows(Subject::Fabric, "nodes");
        candidates(rows.iter().map(|row| text(row, "node")))
    })
}

/// Completes an end of a link, a port of a node or a node, and words behind it.
pub(super) fn link(words: &'static [&'static str]) -> ArgValueCandidates {
    ArgValueCandidates::new(move || {
        let rows = rows(Subject::Ports, "ports");
        let port = |row: &Value| format!("{}/{}", text(row, "node"), text(row, "port"));
        let nodes = rows.iter().map(|row| text(row, "node"));
        let words = words.iter().map(|word| (*word).to_owned());
        candidates(rows.iter().map(port).chain(nodes).chain(words))
    })
}
