//! Named facts, as lines of text or as JSON.

use std::fmt;

use ib_vtime::Duration;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::Printable;

/// Named facts in the order in which they are told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts(Vec<(&'static str, Value)>);

impl Facts {
    /// No facts yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a number or a truth.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.0.push((name, value.into()));
        self
    }

    /// Adds a value as it is printed.
    #[must_use]
    pub fn show(self, name: &'static str, value: impl fmt::Display) -> Self {
        self.with(name, value.to_string())
    }

    /// Adds a duration in milliseconds.
    #[must_use]
    pub fn millis(self, name: &'static str, duration: Duration) -> Self {
        self.with(name, milliseconds(duration))
    }

    /// Adds a list of values as they are printed.
    #[must_use]
    pub fn list<T: fmt::Display>(
        self,
        name: &'static str,
        values: impl IntoIterator<Item = T>,
    ) -> Self {
        let values: Vec<Value> = values
            .into_iter()
            .map(|value| value.to_string().into())
            .collect();
        self.with(name, values)
    }

    /// Returns `true` if there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a fact by its name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        let (_, value) = self.0.iter().find(|(known, _)| *known == name)?;
        Some(value)
    }
}

impl Serialize for Facts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "  " };
            write!(f, "{separator}{name}=")?;
            write_value(f, value)?;
        }
        Ok(())
    }
}

fn write_value(f: &mut fmt::Formatter<'_>, value: &Value) -> fmt::Result {
    match value {
        Value::String(text) => write!(f, "{}", Printable(text)),
        Value::Array(values) => values.iter().enumerate().try_for_each(|(i, value)| {
            f.write_str(if i == 0 { "" } else { "," })?;
            write_value(f, value)
        }),
        other => write!(f, "{other}"),
    }
}

/// Returns a duration in milliseconds.
#[expect(clippy::cast_precision_loss, reason = "2^53 nanoseconds are 104 days")]
#[must_use]
pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}
