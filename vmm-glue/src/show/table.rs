//! Tables of rows, written as aligned text or as lists of JSON objects.

use std::io::{self, Write};

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::cell::Cell;

/// A row of a table: a value for each of its columns.
pub(super) trait Row {
    /// The names of the columns, which are the keys of the JSON objects.
    const COLUMNS: &'static [&'static str];

    /// All column names, those of what is around the row included.
    fn columns() -> Vec<&'static str> {
        Self::COLUMNS.to_vec()
    }

    /// The values, one for each column.
    fn cells(&self) -> Vec<Cell>;
}

/// A row of one PF among several, whose name comes first.
pub(super) struct OfPf<'a, R> {
    pub(super) name: &'a str,
    pub(super) row: R,
}

impl<R: Row> Row for OfPf<'_, R> {
    const COLUMNS: &'static [&'static str] = &["host"];

    fn columns() -> Vec<&'static str> {
        [Self::COLUMNS, &R::columns()].concat()
    }

    fn cells(&self) -> Vec<Cell> {
        let mut cells = vec![Cell::text(self.name)];
        cells.extend(self.row.cells());
        cells
    }
}

/// A row as a JSON object.
struct Object<'a, R>(&'a R);

impl<R: Row> Serialize for Object<'_, R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let columns = R::columns();
        let mut map = serializer.serialize_map(Some(columns.len()))?;
        for (column, cell) in columns.into_iter().zip(self.0.cells()) {
            map.serialize_entry(column, &cell)?;
        }
        map.end()
    }
}

/// Writes rows as a JSON list.
pub(super) fn write_json<R: Row>(
    out: &mut impl Write,
    rows: impl Iterator<Item = R>,
) -> io::Result<()> {
    out.write_all(b"[")?;
    for (place, row) in rows.enumerate() {
        if place > 0 {
            out.write_all(b",")?;
        }
        serde_json::to_writer(&mut *out, &Object(&row))?;
    }
    out.write_all(b"]")
}

/// Writes rows in aligned columns below their names. `rows` is called twice: for the widths, then for
/// the text, so that no table is ever in memory.
pub(super) fn write_text<R: Row, I: Iterator<Item = R>>(
    out: &mut impl Write,
    rows: impl Fn() -> I,
) -> io::Result<()> {
    let heads: Vec<String> = R::columns().into_iter().map(head).collect();
    let mut widths: Vec<usize> = heads.iter().map(String::len).collect();
    for row in rows() {
        for (width, cell) in widths.iter_mut().zip(row.cells()) {
            *width = (*width).max(cell.to_string().chars().count());
        }
    }
    write_line(out, &widths, &heads)?;
    for row in rows() {
        let texts: Vec<String> = row.cells().iter().map(Cell::to_string).collect();
        write_line(out, &widths, &texts)?;
    }
    Ok(())
}

/// A column's name above its values, which say their unit themselves.
fn head(column: &str) -> String {
    let name = column.strip_suffix("_ms").unwrap_or(column);
    name.to_uppercase().replace('_', "-")
}

fn write_line(out: &mut impl Write, widths: &[usize], texts: &[String]) -> io::Result<()> {
    let mut line = String::new();
    for (width, text) in widths.iter().zip(texts) {
        line.push_str(&format!("{text:<width$}  "));
    }
    writeln!(out, "{}", line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Pair(u64, &'static str);

    impl Row for Pair {
        const COLUMNS: &'static [&'static str] = &["count", "long_name_ms"];

        fn cells(&self) -> Vec<Cell> {
            vec![Cell::Number(self.0), Cell::text(self.1)]
        }
    }

    fn rows() -> impl Iterator<Item = Pair> {
        [Pair(1_234_567, "a"), Pair(2, "")].into_iter()
    }

    #[test]
    fn text_is_aligned_below_its_heads_without_trailing_blanks() {
        let mut out = Vec::new();
        write_text(&mut out, rows).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "COUNT    LONG-NAME\n1234567  a\n2\n");
    }

    #[test]
    fn letters_of_more_than_a_byte_are_one_wide() {
        struct Named(&'static str);
        impl Row for Named {
            const COLUMNS: &'static [&'static str] = &["name", "count"];
            fn cells(&self) -> Vec<Cell> {
                vec![Cell::text(self.0), Cell::Number(1)]
            }
        }
        let mut out = Vec::new();
        let names = ["\u{e9}\u{e9}\u{e9}\u{e9}", "abcd"];
        write_text(&mut out, || names.into_iter().map(Named)).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "NAME  COUNT\n\u{e9}\u{e9}\u{e9}\u{e9}  1\nabcd  1\n");
    }

    #[test]
    fn json_is_a_list_of_objects() {
        let mut out = Vec::new();
        write_json(&mut out, rows()).unwrap();
        let json = String::from_utf8(out).unwrap();
        let expected = r#"[{"count":1234567,"long_name_ms":"a"},{"count":2,"long_name_ms":""}]"#;
        assert_eq!(json, expected);
        let mut out = Vec::new();
        write_json(&mut out, rows().take(0)).unwrap();
        assert_eq!(out, b"[]");
    }
}
