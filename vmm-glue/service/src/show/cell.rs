//! A value of a table, as text and as JSON.

use std::fmt::{self, Display};

use ib_vtime::Duration;
use pf_context::Use;
use serde::ser::{Serialize, SerializeMap, Serializer};
use vhca_control::Printable;

/// A value of a table.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    /// Nothing: `-`, or null.
    None,
    /// A word, or a quantity with a form of its own.
    Text(String),
    /// A number.
    Number(u64),
    /// `yes` or `no`, or a truth value.
    Flag(bool),
    /// Seconds, or a number of milliseconds.
    Time(Duration),
    /// Values with commas between, or a list.
    List(Vec<Self>),
    /// Values with a separator between, or an object.
    Object(&'static str, Vec<(&'static str, Self)>),
}

impl Cell {
    pub(super) fn text(value: impl Display) -> Self {
        Self::Text(value.to_string())
    }

    /// A count of things in memory.
    pub(super) fn count(value: usize) -> Self {
        Self::Number(u64::try_from(value).unwrap_or(u64::MAX))
    }

    pub(super) fn usage(used: Use) -> Self {
        let parts = [("live", used.live), ("limit", used.limit)];
        let parts = parts.map(|(name, value)| (name, Self::count(value)));
        Self::Object("/", parts.to_vec())
    }

    /// What may be missing.
    pub(super) fn option<T>(value: Option<T>, cell: impl FnOnce(T) -> Self) -> Self {
        value.map_or(Self::None, cell)
    }
}

impl Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined =
            |f: &mut fmt::Formatter<'_>, separator, cells: &mut dyn Iterator<Item = &Self>| {
                cells.enumerate().try_for_each(|(place, cell)| {
                    f.write_str(if place == 0 { "" } else { separator })?;
                    cell.fmt(f)
                })
            };
        match self {
            Self::None => f.write_str("-"),
            Self::Text(text) => Printable(text).fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Flag(flag) => f.write_str(if *flag { "yes" } else { "no" }),
            Self::Time(time) => write!(f, "{:.1}s", time.as_secs_f64()),
            Self::List(cells) if cells.is_empty() => f.write_str("-"),
            Self::List(cells) => joined(f, ",", &mut cells.iter()),
            Self::Object(separator, parts) => {
                joined(f, separator, &mut parts.iter().map(|(_, cell)| cell))
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
            Self::Time(time) => {
                serializer.serialize_u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
            }
            Self::List(cells) => serializer.collect_seq(cells),
            Self::Object(_, parts) => {
                let mut map = serializer.serialize_map(Some(parts.len()))?;
                for (name, cell) in parts {
                    map.serialize_entry(name, cell)?;
                }
                map.end()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(cell: &Cell) -> (String, String) {
        (cell.to_string(), serde_json::to_string(cell).unwrap())
    }

    #[test]
    fn each_kind_of_value_has_a_text_and_a_json_form() {
        let used = Use { live: 3, limit: 9 };
        let table = [
            (Cell::None, "-", "null"),
            (Cell::text("up"), "up", "\"up\""),
            (
                Cell::text("\u{e9}\u{1b}[0m\n"),
                "\u{e9}\\u{1b}[0m\\n",
                "\"\u{e9}\\u001b[0m\\n\"",
            ),
            (Cell::Number(7), "7", "7"),
            (Cell::Flag(true), "yes", "true"),
            (Cell::Time(Duration::from_millis(12_345)), "12.3s", "12345"),
            (Cell::List(vec![]), "-", "[]"),
            (
                Cell::List(vec![Cell::Number(1), Cell::None]),
                "1,-",
                "[1,null]",
            ),
            (Cell::usage(used), "3/9", "{\"live\":3,\"limit\":9}"),
        ];
        for (cell, text, json) in table {
            assert_eq!(both(&cell), (text.to_owned(), json.to_owned()));
        }
    }
}
