//! What came of each fault.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Faults that are injected at least.
const FAULTS: usize = 60;

/// The code of VFs that have none.
const NO_FAULT: &str = "ok";

/// The codes that no fault here has. Every SA that is packaged gives out additional GUIDs; the tests of pf-context have an SA that
/// does not. No packaged program has memory for which the service waits; the tests of vhca-service note such waits.
const UNINJECTED: [&str; 2] = ["guids_not_supported", "program_memory_slow"];

/// What came of a fault.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// What was broken.
    pub(crate) fault: String,
    /// The code that it is to be told by.
    pub(crate) code: &'static str,
    /// The code that it was told by, and how long that took.
    pub(crate) told: String,
    /// What was told to do next.
    pub(crate) remedy: String,
    /// Whether that made the fault go; or why it did not.
    pub(crate) worked: Result<String, String>,
}

/// What came of all faults.
#[derive(Debug, Default)]
pub(crate) struct Report(Mutex<Vec<Row>>);

impl Report {
    pub(crate) fn add(&self, row: Row) {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rows.push(row);
    }

    /// Prints the table, and fails if a fault was not told or a remedy did not work.
    pub(crate) fn finish(self) {
        let rows = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        println!("| # | fault | code | seen | remedy | worked |");
        println!("| --- | --- | --- | --- | --- | --- |");
        for (number, row) in (1..).zip(&rows) {
            let Row {
                fault,
                code,
                told,
                remedy,
                worked,
            } = row;
            let worked = match worked {
                Ok(how) => format!("yes: {how}"),
                Err(why) => format!("NO: {why}"),
            };
            println!("| {number} | {fault} | {code} | {told} | {remedy} | {worked} |");
        }
        let failed: Vec<&str> = rows
            .iter()
            .filter(|row| row.worked.is_err())
            .map(|row| row.fault.as_str())
            .collect();
        let names: BTreeSet<&str> = rows.iter().map(|row| row.fault.as_str()).collect();
        assert_eq!(names.len(), rows.len(), "each fault has a name of its own");
        assert!(failed.is_empty(), "{failed:#?}");
        assert!(rows.len() >= FAULTS, "{} faults", rows.len());
        let injected: BTreeSet<&str> = rows.iter().map(|row| row.code).collect();
        let untold: Vec<String> = documented()
            .into_iter()
            .filter(|code| {
                !injected.contains(code.as_str())
                    && code != NO_FAULT
                    && !UNINJECTED.contains(&code.as_str())
            })
            .collect();
        assert!(untold.is_empty(), "no fault has the codes {untold:?}");
    }
}

/// The codes of which the service's page says that `vhca why` has them.
fn documented() -> Vec<String> {
    let page = include_str!("../../../vmm-glue/service/docs/serve.md");
    let (_, codes) = page.split_once("## What `vhca why` can say").unwrap();
    let (codes, _) = codes.split_once("\n#").unwrap();
    let rows = codes.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split(" | ").next())
        .flat_map(|codes| codes.split(", "))
        .map(|code| code.trim_matches('`').to_owned())
        .collect()
}
