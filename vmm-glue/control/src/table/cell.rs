//! A value of a table.

use std::borrow::Cow;
use std::fmt::{self, Display};

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::column::Column;
use crate::facts::Printable;

/// A value of a table. Its JSON form is the one that users see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// No value: `-`, or null.
    None,
    /// A word, or a quantity with a form of its own.
    Text(String),
    /// A number; in columns of times one of milliseconds.
    Number(u64),
    /// `yes` or `no`, or a truth value.
    Flag(bool),
    /// Values with commas between, or a list.
    List(Vec<Self>),
    /// Values with the column's separator between, or an object.
    Object(Vec<(Cow<'static, str>, Self)>),
}

impl Cell {
    /// Returns a text of a value that can be printed.
    pub fn of(value: impl Display) -> Self {
        Self::Text(value.to_string())
    }

    /// Returns a number of things in memory.
    #[must_use]
    pub fn count(value: usize) -> Self {
        Self::Number(u64::try_from(value).unwrap_or(u64::MAX))
    }

    /// Returns a number of milliseconds, for columns of times.
    #[must_use]
    pub fn time(time: core::time::Duration) -> Self {
        Self::Number(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }

    /// Returns an object of named values.
    #[must_use]
    pub fn object<const N: usize>(parts: [(&'static str, Self); N]) -> Self {
        Self::Object(parts.map(|(name, cell)| (name.into(), cell)).into())
    }

    /// Returns the cell of a value that may be missing.
    pub fn option<T>(value: Option<T>, cell: impl FnOnce(T) -> Self) -> Self {
        value.map_or(Self::None, cell)
    }

    /// Returns the text of the value in a column.
    pub(super) fn text(&self, column: &Column<'_>) -> String {
        match self {
            Self::None => "-".to_owned(),
            Self::Text(text) => Printable(text).to_string(),
            #[expect(
                clippy::cast_precision_loss,
                reason = "2^53 milliseconds are 285,000 years"
            )]
            Self::Number(number) if column.is_time() => format!("{:.1}s", *number as f64 / 1e3),
            Self::Number(number) => number.to_string(),
            Self::Flag(flag) => if *flag { "yes" } else { "no" }.to_owned(),
            Self::List(cells) if cells.is_empty() => "-".to_owned(),
            Self::List(cells) => {
                let texts: Vec<String> = cells.iter().map(|cell| cell.text(column)).collect();
                texts.join(",")
            }
            Self::Object(parts) => {
                let texts: Vec<String> = parts.iter().map(|(_, cell)| cell.text(column)).collect();
                texts.join(column.separator())
            }
        }
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_none(),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::List(cells) => serializer.collect_seq(cells),
            Self::Object(parts) => {
                let mut map = serializer.serialize_map(Some(parts.len()))?;
                for (name, cell) in parts {
                    map.serialize_entry(name, cell)?;
                }
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Cell {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OfJson)
    }
}

/// Takes any JSON. Members of objects keep their order.
struct OfJson;

impl<'de> Visitor<'de> for OfJson {
    type Value = Cell;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of a table")
    }

    fn visit_unit<E: Error>(self) -> Result<Cell, E> {
        Ok(Cell::None)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Cell, E> {
        Ok(Cell::of(text))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Cell, E> {
        Ok(Cell::Number(number))
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Cell, E> {
        Ok(Cell::Flag(flag))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Cell, A::Error> {
        let mut cells = Vec::new();
        while let Some(cell) = list.next_element()? {
            cells.push(cell);
        }
        Ok(Cell::List(cells))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Cell, A::Error> {
        let mut parts = Vec::new();
        while let Some((name, cell)) = map.next_entry::<String, Cell>()? {
            parts.push((name.into(), cell));
        }
        Ok(Cell::Object(parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::column::column;

    #[test]
    fn each_kind_of_value_has_a_text_and_a_json_form() {
        let used = Cell::object([("live", Cell::Number(3)), ("limit", Cell::Number(9))]);
        let table = [
            (Cell::None, "-", "null"),
            (Cell::of("up"), "up", "\"up\""),
            (
                Cell::of("\u{e9}\u{1b}[0m\n"),
                "\u{e9}\\u{1b}[0m\\n",
                "\"\u{e9}\\u001b[0m\\n\"",
            ),
            (Cell::Number(7), "7", "7"),
            (Cell::Flag(true), "yes", "true"),
            (Cell::List(vec![]), "-", "[]"),
            (
                Cell::List(vec![Cell::Number(1), Cell::None]),
                "1,-",
                "[1,null]",
            ),
            (used, "3/9", "{\"live\":3,\"limit\":9}"),
        ];
        let usage = column("usage").separated_by("/");
        for (cell, text, json) in table {
            assert_eq!(cell.text(&usage), text);
            assert_eq!(serde_json::to_string(&cell).unwrap(), json);
            assert_eq!(serde_json::from_str::<Cell>(json).unwrap(), cell);
        }
        let time = Cell::time(core::time::Duration::from_millis(12_345));
        assert_eq!(time.text(&column("age_ms")), "12.3s");
        assert_eq!(time.text(&column("packets")), "12345");
    }
}
