//! What the PF's inspection data looks like: tables, JSON, and the text that Prometheus reads.
//!
//! GUIDs, keys and ids are written as `0x` and all their digits, GIDs as IPv6 addresses, LIDs and
//! queue pairs as decimal numbers; the PF itself is `pf` where a VF would be a number. Times are
//! seconds in tables and milliseconds in JSON, whose keys then end in `_ms`. What is not known is `-`, or
//! null.

mod cell;
mod metrics;
mod rows;
mod table;
#[cfg(test)]
mod tests;
mod totals;

use std::io::{self, Write};

use ib_vtime::Instant;
use pf_context::inspect::Inspect;

pub use metrics::write_metrics;
pub use totals::Totals;

use table::{Row, write_json, write_text};

/// What there is to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Subject {
    /// The VFs: why their ports are as they are, what they have, and what they may have.
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
}

/// How to show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Tables with a line of column names.
    Text,
    /// One line with an object that has a list for each table.
    Json,
}

/// Shows a subject.
///
/// # Errors
/// What `out` says.
pub fn write(
    out: &mut impl Write,
    format: Format,
    subject: Subject,
    from: &dyn Inspect,
    now: Instant,
) -> io::Result<()> {
    let mut page = Page {
        out,
        format,
        tables: 0,
    };
    match subject {
        Subject::Vfs => page.table("vfs", || from.vfs(now))?,
        Subject::Ports => page.table("ports", || from.ports())?,
        Subject::Tids => page.table("tids", || from.tids(now))?,
        Subject::Cm => page.table("cm", || from.cm(now))?,
        Subject::Mcast => {
            page.table("groups", || from.groups())?;
            page.table("subscriptions", || from.subscriptions())?;
        }
        Subject::Guids => page.table("guids", || from.guids())?,
        Subject::Pkeys => page.table("pkeys", || from.pkeys())?,
        Subject::Counters => page.table("counters", || from.counters(now))?,
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
