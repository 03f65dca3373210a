//! VFs as arguments name them.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

/// A VF that gets a guest, as `HOST/N`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestVf {
    /// The host.
    pub(crate) host: String,
    /// The VF's number, from 1.
    pub(crate) vf: u16,
}

/// A text that names no VF.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("a guest needs a VF: HOST/N, as in H1-1/1")]
pub(crate) struct GuestVfError;

impl FromStr for GuestVf {
    type Err = GuestVfError;

    fn from_str(text: &str) -> Result<Self, GuestVfError> {
        let (host, number) = text.rsplit_once('/').ok_or(GuestVfError)?;
        let vf = number.parse().map_err(|_| GuestVfError)?;
        if host.is_empty() || vf == 0 {
            return Err(GuestVfError);
        }
        let host = host.to_owned();
        Ok(Self { host, vf })
    }
}

impl fmt::Display for GuestVf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.vf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_and_a_number_name_a_vf() {
        let vf: GuestVf = "a/b/3".parse().unwrap();
        assert_eq!((vf.host.as_str(), vf.vf), ("a/b", 3));
        assert_eq!(vf.to_string(), "a/b/3");
    }

    #[test]
    fn less_is_refused() {
        for text in ["", "H1-1", "/1", "H1-1/", "H1-1/0", "H1-1/x", "H1-1/70000"] {
            assert_eq!(text.parse::<GuestVf>(), Err(GuestVfError), "{text}");
        }
    }
}
