//! Pages: the tables of a subject, written as the reply to a query in as many turns as it takes.

use std::collections::VecDeque;

use serde_json::json;

use super::Scene;
use super::table::{Cells, Filter, Table};
use vhca::Slice;

/// The tables of a subject, on their way to a reader, as [`Tables`](vhca_control::table::Tables) reads them.
///
/// [`Page::write`] appends the rows of its moment and keeps nothing of the scene between two calls.
pub struct Page {
    tables: VecDeque<Table>,
    filter: Filter,
    is_begun: bool,
    /// The part that is taken next.
    part: usize,
    rows: Option<Cells>,
    /// Rows of the table that were taken.
    taken: usize,
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.tables.iter().map(|table| table.name);
        f.debug_list().entries(names).finish()
    }
}

impl Page {
    pub(super) fn new(tables: Vec<Table>, filter: Filter) -> Self {
        Self {
            tables: tables.into(),
            filter,
            is_begun: false,
            part: 0,
            rows: None,
            taken: 0,
        }
    }

    /// Appends rows until the slice is over. Returns true if they were the last.
    pub fn write(&mut self, scene: &Scene<'_>, out: &mut Vec<u8>, slice: &mut Slice) -> bool {
        while let Some(table) = self.tables.front() {
            if self.taken == 0 && self.part == 0 && self.rows.is_none() {
                let before = match core::mem::replace(&mut self.is_begun, true) {
                    false => "{\"tables\":[",
                    true => ",",
                };
                let (name, columns) = (json!(table.name), json!(table.columns));
                let head = format!("{before}{{\"name\":{name},\"columns\":{columns},\"rows\":[");
                out.extend_from_slice(head.as_bytes());
            }
            self.step(scene, out);
            if self.tables.is_empty() {
                out.extend_from_slice(b"]}");
            }
            if slice.is_over() {
                break;
            }
        }
        self.tables.is_empty()
    }

    /// Writes a row, or takes the rows of the next part, or ends the table.
    fn step(&mut self, scene: &Scene<'_>, out: &mut Vec<u8>) {
        if let Some(rows) = &mut self.rows {
            let Some(cells) = rows.next() else {
                self.rows = None;
                self.part += 1;
                return;
            };
            if self.taken > 0 {
                out.push(b',');
            }
            self.taken += 1;
            // A vector takes everything, and no cell fails to be written.
            let _ = serde_json::to_writer(out, &cells);
        } else if let Some(table) = self.tables.front() {
            self.rows = (table.part)(scene, &self.filter, self.part);
            if self.rows.is_none() {
                out.extend_from_slice(b"]}");
                self.tables.pop_front();
                (self.part, self.taken) = (0, 0);
            }
        }
    }
}
