//! Named facts, as lines of text or as JSON.

use std::borrow::Cow;
use std::fmt::{self, Write};

use ib_vtime::Duration;
use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// Text of another program, on its way to a terminal: control characters are escaped.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'t>(pub &'t str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| {
            if c.is_control() {
                c.escape_default().fmt(f)
            } else {
                f.write_char(c)
            }
        })
    }
}

/// Named facts, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts(Vec<(Cow<'static, str>, Value)>);

impl Facts {
    /// No facts yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a number or a truth.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.0.push((name.into(), value.into()));
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

impl<'de> Deserialize<'de> for Facts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Facts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("named facts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Facts, A::Error> {
                let mut facts = Facts::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    facts.0.push((name.into(), value));
                }
                Ok(facts)
            }
        }

        deserializer.deserialize_map(InOrder)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_keep_their_order_through_json() {
        let facts = Facts::new()
            .with("z", 3)
            .show("a", "text")
            .list("m", ["one", "two"])
            .millis("took_ms", Duration::from_nanos(12_345_678));
        let json = serde_json::to_string(&facts).unwrap();
        let read: Facts = serde_json::from_str(&json).unwrap();
        assert_eq!(read, facts);
        assert_eq!(
            read.to_string(),
            "z=3  a=text  m=one,two  took_ms=12.345678"
        );
    }
}
