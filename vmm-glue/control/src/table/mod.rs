//! Tables: the rows that a service sends, and their forms as text and JSON, which the client makes.
//!
//! A table describes its columns itself, so that a client also prints columns that it does not know. GUIDs, keys and ids are
//! written as `0x` and all their digits, GIDs as IPv6 addresses, LIDs and queue pairs as decimal numbers; the PF itself is
//! `pf` where a VF would be a number. Times are seconds in text and milliseconds in JSON, whose keys then end in `_ms`. An
//! unknown value is `-`, or null.

mod cell;
mod column;
mod text;

use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

pub use cell::Cell;
pub use column::{Column, column};

/// Text of problems where there are none.
const NO_PROBLEMS: &str = "no problems\n";

/// Texts in place of tables without rows, by their names.
const NO_ROWS: [(&str, &str); 1] = [("drops", "no packet was dropped\n")];

/// A table with its rows, each of which has a value for every column.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Table<'r> {
    name: &'r str,
    #[serde(borrow)]
    columns: Vec<Column<'r>>,
    rows: Vec<Vec<Cell>>,
}

impl Table<'_> {
    fn text(&self, is_wide: bool) -> String {
        let no_rows = NO_ROWS
            .iter()
            .find(|(name, _)| self.rows.is_empty() && *name == self.name);
        match no_rows {
            Some((_, text)) => (*text).to_owned(),
            None => text::text(&self.columns, &self.rows, is_wide),
        }
    }
}

/// The tables of a subject. Serialized, they are the object that users see: a list of objects for each table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Tables<'r> {
    #[serde(borrow)]
    tables: Vec<Table<'r>>,
}

impl<'r> Tables<'r> {
    /// Reads the reply to a [`ShowQuery`](crate::protocol::ShowQuery).
    ///
    /// # Errors
    /// For anything else.
    pub fn of_reply(reply: &'r str) -> serde_json::Result<Self> {
        serde_json::from_str(reply)
    }

    /// Returns the tables as aligned text, with an empty line between two. Of `problems` there may be none: tables without
    /// rows are left out then.
    #[must_use]
    pub fn text(&self, is_wide: bool, problems: bool) -> String {
        let shown = self.tables.iter();
        let shown = shown.filter(|table| !problems || !table.rows.is_empty());
        let texts: Vec<String> = shown.map(|table| table.text(is_wide)).collect();
        if texts.is_empty() {
            return NO_PROBLEMS.to_owned();
        }
        texts.join("\n")
    }
}

impl Serialize for Tables<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tables = self.tables.iter();
        serializer.collect_map(tables.map(|table| {
            let rows = table.rows.iter().map(|row| Object(&table.columns, row));
            (table.name, rows.collect::<Vec<_>>())
        }))
    }
}

/// A row as a JSON object.
struct Object<'a>(&'a [Column<'a>], &'a [Cell]);

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

    #[test]
    fn columns_that_a_client_does_not_know_are_printed_from_their_description() {
        let reply = r#"{"tables":[
            {"name":"things","columns":[{"name":"node","least":8},{"name":"idle_ms"},
                {"name":"used","head":"USE","separator":"/"},{"name":"more","wide":true}],
             "rows":[["a",1500,{"live":1,"limit":2},null],["bb",null,{"live":0,"limit":2},["x","y"]]]},
            {"name":"empty","columns":[{"name":"node"}],"rows":[]}]}"#;
        let tables = Tables::of_reply(reply).unwrap();
        assert_eq!(
            tables.text(false, false),
            "NODE  IDLE  USE\na     1.5s  1/2\nbb    -     0/2\n\nNODE\n"
        );
        assert_eq!(
            tables.text(true, true),
            "NODE  IDLE  USE  MORE\na     1.5s  1/2  -\nbb    -     0/2  x,y\n"
        );
        assert_eq!(
            serde_json::to_string(&tables).unwrap(),
            concat!(
                r#"{"things":[{"node":"a","idle_ms":1500,"used":{"live":1,"limit":2},"more":null},"#,
                r#"{"node":"bb","idle_ms":null,"used":{"live":0,"limit":2},"more":["x","y"]}],"empty":[]}"#
            )
        );
    }

    #[test]
    fn no_problems_are_a_line() {
        let none = Tables { tables: Vec::new() };
        assert_eq!(none.text(false, true), "no problems\n");
    }

    #[test]
    fn drops_without_rows_are_a_line() {
        let reply = r#"{"tables":[{"name":"drops","columns":[{"name":"node"}],"rows":[]}]}"#;
        let tables = Tables::of_reply(reply).unwrap();
        assert_eq!(tables.text(false, false), "no packet was dropped\n");
        assert_eq!(tables.text(false, true), "no problems\n");
        assert_eq!(serde_json::to_string(&tables).unwrap(), r#"{"drops":[]}"#);
    }
}
