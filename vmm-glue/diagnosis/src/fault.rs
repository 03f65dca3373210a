//! A fault, before it is known whose it is.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::known::{Code, code, is_known};

/// A fault, before it is known whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    #[serde(deserialize_with = "code")]
    pub(crate) code: Code,
    pub(crate) summary: String,
    pub(crate) seen: Vec<String>,
    pub(crate) next: String,
}

impl Fault {
    pub(crate) fn new(code: Code, summary: impl Into<String>) -> Self {
        debug_assert!(is_known(code), "{code} is not among the known faults");
        Self {
            code,
            summary: summary.into(),
            seen: Vec::new(),
            next: String::new(),
        }
    }

    /// Returns the stable word.
    #[must_use]
    pub const fn code(&self) -> Code {
        self.code
    }

    pub(crate) fn seen(mut self, fact: impl Into<String>) -> Self {
        self.seen.push(fact.into());
        self
    }

    /// Takes a command, quoted for a shell, or, where none helps, what to do in words.
    pub(crate) fn next(mut self, remedy: impl Into<String>) -> Self {
        self.next = remedy.into();
        self
    }

    /// Adds words behind a command, which the shell takes for a comment.
    pub(crate) fn remark(mut self, words: impl fmt::Display) -> Self {
        self.next = format!("{} # {words}", self.next);
        self
    }

    /// Names another fault, of which this one is the cause. Evidence and remedy stay the same.
    pub(crate) fn called(mut self, code: Code, summary: impl Into<String>) -> Self {
        debug_assert!(is_known(code), "{code} is not among the known faults");
        self.code = code;
        self.summary = summary.into();
        self
    }
}
