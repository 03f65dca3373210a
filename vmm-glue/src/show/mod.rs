//! What the PF's inspection data and a fabric look like: tables, JSON, and the text that Prometheus reads.
//!
//! GUIDs, keys and ids are written as `0x` and all their digits, GIDs as IPv6 addresses, LIDs and
//! queue pairs as decimal numbers; the PF itself is `pf` where a VF would be a number. Times are
//! seconds in tables and milliseconds in JSON, whose keys then end in `_ms`. What is not known is `-`, or
//! null.

mod cell;
mod drops;
mod fabric;
mod metrics;
mod rows;
mod table;
#[cfg(test)]
mod tests;
mod totals;
mod vmms;

use std::io::{self, Write};

use emulated_hca::Fabric;
use ib_vtime::Instant;
use pf_context::inspect::{Inspect, Rows};
use serde::{Deserialize, Serialize};

pub(crate) use cell::Printable;
pub use metrics::write_metrics;
pub use totals::Totals;
pub use vmms::VmmRow;

use table::{OfPf, Row, write_json, write_text};

/// What there is to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// The VFs: why their ports are as they are, what they have, and what they may have; and which VMMs have
    /// those that are offered to VMMs.
    Vfs,
    /// The ports.
    Ports,
    /// The transactions.
    Tids,
    /// The communication ids.
    Cm,
    /// The multicast groups, and the subscriptions to notices.
    Mcast,
    /// The GUIDs.
    Guids,
    /// The P_Key tables.
    Pkeys,
    /// What became of MADs.
    Counters,
    /// The packets that nodes dropped, and why: adapters, and in their name VFs, and switches.
    Drops,
    /// The fabric: its nodes, and their ports with what is at the other end of their links.
    Fabric,
}

/// How to show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Tables with a line of column names.
    Text,
    /// One line with an object that has a list for each table.
    Json,
}

/// A PF by name.
#[derive(Clone, Copy, Debug)]
pub struct NamedPf<'a> {
    /// The name of its host.
    pub name: &'a str,
    /// What there is to look at.
    pub rows: &'a dyn Inspect,
}

/// All that there is to look at.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The PFs.
    pub pfs: &'a [NamedPf<'a>],
    /// The VFs of these PFs that are offered to VMMs.
    pub vmms: &'a [VmmRow],
    /// The fabric behind them.
    pub fabric: &'a Fabric,
    /// The time.
    pub now: Instant,
}

/// Shows a subject. In tables of what is in PFs the first column names the host.
///
/// # Errors
/// What `out` says.
pub fn write(
    out: &mut impl Write,
    format: Format,
    subject: Subject,
    scene: &Scene<'_>,
) -> io::Result<()> {
    let mut page = Page {
        out,
        format,
        tables: 0,
    };
    let Scene {
        pfs,
        vmms,
        fabric,
        now,
    } = *scene;
    match subject {
        Subject::Vfs => {
            page.pf_table("vfs", pfs, |pf| pf.vfs(now))?;
            if !vmms.is_empty() {
                page.table("vmms", || vmms.iter().cloned())?;
            }
        }
        Subject::Ports => page.pf_table("ports", pfs, |pf| pf.ports())?,
        Subject::Tids => page.pf_table("tids", pfs, |pf| pf.tids(now))?,
        Subject::Cm => {
            page.pf_table("cm", pfs, |pf| pf.cm(now))?;
            if pfs.iter().any(|pf| pf.rows.sidr().next().is_some()) {
                page.pf_table("sidr", pfs, |pf| pf.sidr())?;
            }
        }
        Subject::Mcast => {
            page.pf_table("groups", pfs, |pf| pf.groups())?;
            page.pf_table("subscriptions", pfs, |pf| pf.subscriptions())?;
        }
        Subject::Guids => page.pf_table("guids", pfs, |pf| pf.guids())?,
        Subject::Pkeys => page.pf_table("pkeys", pfs, |pf| pf.pkeys())?,
        Subject::Counters => page.pf_table("counters", pfs, |pf| pf.counters(now))?,
        Subject::Drops => page.table("drops", || drops::rows(fabric, now))?,
        Subject::Fabric => {
            page.table("nodes", || fabric::nodes(fabric))?;
            page.table("ports", || fabric::ports(fabric))?;
        }
    }
    page.end()
}

/// The tables of a subject.
struct Page<'a, W> {
    out: &'a mut W,
    format: Format,
    tables: usize,
}

impl<W: Write> Page<'_, W> {
    fn pf_table<'a, R: Row + 'a>(
        &mut self,
        name: &str,
        pfs: &'a [NamedPf<'a>],
        rows: impl Fn(&'a dyn Inspect) -> Rows<'a, R>,
    ) -> io::Result<()> {
        self.table(name, || {
            pfs.iter().flat_map(|pf| {
                let name = pf.name;
                rows(pf.rows).map(move |row| OfPf { name, row })
            })
        })
    }

    fn table<R: Row, I: Iterator<Item = R>>(
        &mut self,
        name: &str,
        rows: impl Fn() -> I,
    ) -> io::Result<()> {
        let first = self.tables == 0;
        self.tables += 1;
        match self.format {
            Format::Text => {
                if !first {
                    writeln!(self.out)?;
                }
                write_text(self.out, rows)
            }
            Format::Json => {
                let before = if first { '{' } else { ',' };
                write!(self.out, "{before}\"{name}\":")?;
                write_json(self.out, rows())
            }
        }
    }

    fn end(self) -> io::Result<()> {
        match self.format {
            Format::Text => Ok(()),
            Format::Json => writeln!(self.out, "}}"),
        }
    }
}
