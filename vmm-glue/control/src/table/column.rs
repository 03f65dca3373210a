//! Columns of tables.

use serde::{Deserialize, Serialize};

/// A column of a table. Its name is the key of the JSON objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column<'r> {
    pub(super) name: &'r str,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    head: Option<&'r str>,
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    wide: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    least: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    separator: Option<&'r str>,
}

/// Returns a column that every text has, as wide as its values are.
#[must_use]
pub const fn column(name: &str) -> Column<'_> {
    Column {
        name,
        head: None,
        wide: false,
        least: None,
        separator: None,
    }
}

impl<'r> Column<'r> {
    /// Leaves the column to wide texts.
    #[must_use]
    pub const fn wide(mut self) -> Self {
        self.wide = true;
        self
    }

    /// Sets the number of characters to which the client may cut values of a line that is too long.
    #[must_use]
    pub const fn shrinks_to(mut self, least: usize) -> Self {
        self.least = Some(least);
        self
    }

    /// Sets the text above the values.
    #[must_use]
    pub const fn headed(mut self, head: &'r str) -> Self {
        self.head = Some(head);
        self
    }

    /// Sets the text between the values of an object.
    #[must_use]
    pub const fn separated_by(mut self, separator: &'r str) -> Self {
        self.separator = Some(separator);
        self
    }

    /// Returns true if only wide texts have it.
    #[must_use]
    pub const fn is_wide(&self) -> bool {
        self.wide
    }

    /// Returns the number of characters to which its values may be cut.
    pub(super) const fn least(&self) -> Option<usize> {
        self.least
    }

    /// Returns true if its numbers are milliseconds.
    pub(super) fn is_time(&self) -> bool {
        self.name.ends_with("_ms")
    }

    pub(super) fn separator(&self) -> &'r str {
        self.separator.unwrap_or(" ")
    }

    /// Returns the text above the values, which have their unit themselves.
    pub(super) fn head(&self) -> String {
        let name = self.name.strip_suffix("_ms").unwrap_or(self.name);
        self.head
            .map_or_else(|| name.to_uppercase().replace('_', "-"), str::to_owned)
    }
}
