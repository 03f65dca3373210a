//! Pages: the tables of a subject, written as aligned text or as lists of JSON objects, in as many turns as it takes.

use std::collections::VecDeque;

use serde::ser::{Serialize, SerializeMap, Serializer};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};
use vhca_control::Format;

use super::Scene;
use super::cell::Cell;
use super::table::{Cells, Column, Filter, Table};
use vhca::Slice;

/// Characters of a line of text at most, unless it is wide. The same for terminals and pipes, so that scripts get what
/// people see.
const MAX_WIDTH: usize = 120;

/// Blanks between two columns.
const GAP: &str = "  ";

/// Text of problems where there are none.
const NO_PROBLEMS: &[u8] = b"no problems\n";

/// Stands for what is cut out of a long value.
const ELLIPSIS: char = '…';

/// The tables of a subject, on their way to a reader.
///
/// What [`Page::write`] appends are the rows as they are at that time. Nothing of the scene is kept between two calls,
/// except the text of the table under way, whose columns are as wide as its widest rows.
pub struct Page {
    tables: VecDeque<Table>,
    format: Format,
    filter: Filter,
    is_wide: bool,
    /// Tables that were begun.
    begun: usize,
    /// The text has a table.
    has_table: bool,
    /// The part that is taken next.
    part: usize,
    rows: Option<Cells>,
    /// Rows of the table that were taken.
    taken: usize,
    lines: Lines,
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.tables.iter().map(|table| table.name);
        f.debug_list().entries(names).finish()
    }
}

/// The text of a table.
#[derive(Debug, Default)]
struct Lines {
    texts: VecDeque<Vec<String>>,
    widths: Vec<usize>,
    /// All rows were taken.
    is_complete: bool,
}

impl Page {
    pub(super) fn new(tables: Vec<Table>, format: Format, filter: Filter, is_wide: bool) -> Self {
        Self {
            tables: tables.into(),
            format,
            filter,
            is_wide,
            begun: 0,
            has_table: false,
            part: 0,
            rows: None,
            taken: 0,
            lines: Lines::default(),
        }
    }

    /// Appends what comes next, until the slice is over. Returns true if that was all.
    pub fn write(&mut self, scene: &Scene<'_>, out: &mut Vec<u8>, slice: &mut Slice) -> bool {
        while !self.tables.is_empty() {
            match self.format {
                Format::Text => self.step_text(scene, out),
                Format::Json => self.step_json(scene, out),
            }
            if self.tables.is_empty() {
                match self.format {
                    Format::Json => out.push(b'}'),
                    Format::Text if !self.has_table => out.extend_from_slice(NO_PROBLEMS),
                    Format::Text => {}
                }
            }
            if slice.is_over() {
                break;
            }
        }
        self.tables.is_empty()
    }

    /// Takes the next row of the table. Returns `None` where there is none, with whether it is the end.
    fn next_row(&mut self, scene: &Scene<'_>) -> Result<Vec<Cell>, bool> {
        if let Some(rows) = &mut self.rows {
            if let Some(row) = rows.next() {
                self.taken += 1;
                return Ok(row);
            }
            self.rows = None;
            self.part += 1;
        }
        let Some(table) = self.tables.front() else {
            return Err(true);
        };
        self.rows = (table.part)(scene, &self.filter, self.part);
        Err(self.rows.is_none())
    }

    fn end_table(&mut self) {
        self.tables.pop_front();
        self.part = 0;
        self.taken = 0;
        self.lines = Lines::default();
        self.begun += 1;
    }

    fn step_json(&mut self, scene: &Scene<'_>, out: &mut Vec<u8>) {
        let is_first = self.taken == 0;
        if is_first && self.part == 0 && self.rows.is_none() {
            let before = if self.begun == 0 { '{' } else { ',' };
            let name = self.tables.front().map_or("", |table| table.name);
            out.extend_from_slice(format!("{before}\"{name}\":[").as_bytes());
        }
        match self.next_row(scene) {
            Ok(cells) => {
                if !is_first {
                    out.push(b',');
                }
                let columns = self.tables.front().map_or(&[][..], |table| &table.columns);
                // A vector takes everything, and no cell fails to be written.
                let _ = serde_json::to_writer(out, &Object(columns, &cells));
            }
            Err(true) => {
                out.push(b']');
                self.end_table();
            }
            Err(false) => {}
        }
    }

    fn step_text(&mut self, scene: &Scene<'_>, out: &mut Vec<u8>) {
        if !self.lines.is_complete {
            let columns = self.columns();
            if self.lines.widths.is_empty() {
                let heads = columns.iter().map(|(_, column)| column.head());
                self.lines.push(heads.collect());
            }
            match self.next_row(scene) {
                Ok(cells) => {
                    let cells = columns.iter().filter_map(|(place, _)| cells.get(*place));
                    self.lines.push(cells.map(Cell::to_string).collect());
                }
                // Of problems there may be none: the names of columns alone say nothing.
                Err(true) if self.filter.problems && self.taken == 0 => self.end_table(),
                Err(true) => {
                    if !self.is_wide {
                        let least: Vec<_> = columns.iter().map(|(_, c)| c.least()).collect();
                        fit(&mut self.lines.widths, &least);
                    }
                    if core::mem::replace(&mut self.has_table, true) {
                        out.push(b'\n');
                    }
                    self.lines.is_complete = true;
                }
                Err(false) => {}
            }
        } else if let Some(texts) = self.lines.texts.pop_front() {
            write_line(out, &self.lines.widths, &texts);
        } else {
            self.end_table();
        }
    }

    /// Returns the columns of the table that the text has, with their places in its rows.
    fn columns(&self) -> Vec<(usize, Column)> {
        let columns = self.tables.front().map_or(&[][..], |table| &table.columns);
        let shown = columns.iter().copied().enumerate();
        shown
            .filter(|(_, column)| self.is_wide || !column.is_wide())
            .collect()
    }
}

impl Lines {
    fn push(&mut self, texts: Vec<String>) {
        self.widths.resize(texts.len(), 0);
        for (width, text) in self.widths.iter_mut().zip(&texts) {
            *width = (*width).max(text.width());
        }
        self.texts.push_back(texts);
    }
}

/// Narrows columns that may be, the widest first, until a line is short enough.
fn fit(widths: &mut [usize], least: &[Option<usize>]) {
    let gaps = GAP.len() * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > MAX_WIDTH {
        let can_shrink = |(place, width): &(usize, &mut usize)| {
            least[*place].is_some_and(|least| **width > least)
        };
        let places = widths.iter_mut().enumerate().filter(can_shrink);
        let Some((_, widest)) = places.max_by_key(|(_, width)| **width) else {
            return;
        };
        *widest -= 1;
    }
}

fn write_line(out: &mut Vec<u8>, widths: &[usize], texts: &[String]) {
    let mut line = String::new();
    for (&width, text) in widths.iter().zip(texts) {
        let text = cut(text, width);
        let blanks = width.saturating_sub(text.width());
        line.push_str(&format!("{text}{:blanks$}{GAP}", ""));
    }
    out.extend_from_slice(line.trim_end().as_bytes());
    out.push(b'\n');
}

/// Cuts a text to a width. Its ends stay, since names differ at either.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let tail = width.saturating_sub(1) / 2;
    let head = width.saturating_sub(1 + tail);
    let first: String = within(text.chars(), head).collect();
    let last: Vec<char> = within(text.chars().rev(), tail).collect();
    let last: String = last.into_iter().rev().collect();
    format!("{first}{ELLIPSIS}{last}")
}

/// Returns the first characters, as many as a terminal shows in a width.
fn within(chars: impl Iterator<Item = char>, width: usize) -> impl Iterator<Item = char> {
    let wide = chars.scan(0, |taken, c| {
        *taken += c.width().unwrap_or(0);
        Some((*taken, c))
    });
    wide.take_while(move |(taken, _)| *taken <= width)
        .map(|(_, c)| c)
}

/// A row as a JSON object.
struct Object<'a>(&'a [Column], &'a [Cell]);

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (column, cell) in self.0.iter().zip(self.1) {
            map.serialize_entry(column.name, cell)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(widths: &[usize], rows: &[&[&str]]) -> String {
        let mut out = Vec::new();
        for row in rows {
            let texts: Vec<String> = row.iter().map(|&text| text.to_owned()).collect();
            write_line(&mut out, widths, &texts);
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn text_is_aligned_without_trailing_blanks_and_letters_are_one_wide() {
        let rows: &[&[&str]] = &[&["COUNT", "NAME"], &["1234567", "a"], &["\u{e9}\u{e9}", ""]];
        let expected = "COUNT    NAME\n1234567  a\n\u{e9}\u{e9}\n";
        assert_eq!(lines(&[7, 4], rows), expected);
    }

    #[test]
    fn wide_characters_take_two_columns_and_combining_ones_none() {
        let rows: &[&[&str]] = &[
            &["NODE", "X"],
            &["\u{8a08}\u{7b97}", "a"],
            &["e\u{301}", "b"],
        ];
        let expected = "NODE  X\n\u{8a08}\u{7b97}  a\ne\u{301}     b\n";
        assert_eq!(lines(&[4, 1], rows), expected);
        let cut = cut("\u{8a08}\u{7b97}\u{6a5f}\u{7fa4}-17", 8);
        assert_eq!(cut, "\u{8a08}\u{7b97}\u{2026}-17");
        assert_eq!(cut.width(), 8);
    }

    #[test]
    fn the_widest_of_the_columns_that_may_shrink_gives_way_first() {
        for (mut widths, least, fitted) in [
            ([60, 48, 8], [Some(8), None, None], [60, 48, 8]),
            ([64, 54, 8], [Some(8), None, None], [54, 54, 8]),
            ([80, 50, 10], [Some(8), Some(8), None], [56, 50, 10]),
            ([9, 130, 1], [Some(8), None, None], [8, 130, 1]),
        ] {
            fit(&mut widths, &least);
            assert_eq!(widths, fitted);
        }
    }

    #[test]
    fn a_cut_text_keeps_both_its_ends() {
        for (width, shown) in [(20, "rack17-node-0042"), (9, "rack…0042"), (8, "rack…042")] {
            assert_eq!(cut("rack17-node-0042", width), shown);
        }
    }
}
