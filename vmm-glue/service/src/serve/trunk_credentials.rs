//! Files of credentials of trunks, as options name them.

use std::path::PathBuf;

use thiserror::Error;
use vhca_trunk::CredentialFiles;

/// The files by which the ends of trunks with `tls:` addresses know each other: `key` and `peers`, or `certificate`, `key` and `ca`.
/// See [`CredentialFiles`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrunkCredentials {
    /// A private key.
    pub key: Option<PathBuf>,
    /// The public keys of the other ends.
    pub peers: Option<PathBuf>,
    /// A certificate of the key, with its chain.
    pub certificate: Option<PathBuf>,
    /// The CAs of the other ends' certificates.
    pub ca: Option<PathBuf>,
}

impl TrunkCredentials {
    /// Returns these files, and others where none is named here; a trunk that has peers of its own takes no certificate, and the other
    /// way round.
    pub(super) fn or(&self, others: &Self) -> Self {
        let either = |own: &Option<PathBuf>, other: &Option<PathBuf>| {
            own.as_ref().or(other.as_ref()).cloned()
        };
        let is_certified = self.certificate.is_some() || self.ca.is_some();
        let none = Self::default();
        let (listed, issued) = match (self.peers.is_some(), is_certified) {
            (true, false) => (others, &none),
            (false, true) => (&none, others),
            _ => (others, others),
        };
        Self {
            key: either(&self.key, &others.key),
            peers: either(&self.peers, &listed.peers),
            certificate: either(&self.certificate, &issued.certificate),
            ca: either(&self.ca, &issued.ca),
        }
    }

    /// Returns the files of one kind of credentials; `None` if some are missing, or there are both kinds.
    pub(super) fn files(&self) -> Option<CredentialFiles> {
        let key = self.key.clone()?;
        match (&self.peers, &self.certificate, &self.ca) {
            (Some(peers), None, None) => Some(CredentialFiles::Keys {
                key,
                peers: peers.clone(),
            }),
            (None, Some(certificate), Some(ca)) => Some(CredentialFiles::Certificates {
                certificate: certificate.clone(),
                key,
                ca: ca.clone(),
            }),
            _ => None,
        }
    }
}

/// Credentials that do not go with the addresses of trunks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TrunkCredentialsError {
    /// A trunk with TLS has no credentials of one kind.
    #[error(
        "trunk {0} needs for its tls: address either key and peers, or certificate, key and ca: make a key with `vhca trunk keygen`, or \
         have a certificate issued"
    )]
    Missing(String),
    /// A trunk without TLS has credentials.
    #[error(
        "trunk {0} has credentials, and an address without TLS: say tls:HOST:PORT at both ends"
    )]
    Plain(String),
    /// Credentials of a site whose trunks have no TLS.
    #[error(
        "key, peers, certificate and ca are for trunks with tls: addresses, and there are none: say tls:HOST:PORT at both ends of a trunk, \
         or leave them out"
    )]
    Unused,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(names: [&str; 4]) -> TrunkCredentials {
        let [key, peers, certificate, ca] =
            names.map(|name| Some(PathBuf::from(name)).filter(|_| !name.is_empty()));
        TrunkCredentials {
            key,
            peers,
            certificate,
            ca,
        }
    }

    #[test]
    fn a_trunk_has_the_credentials_of_its_site_but_for_its_own() {
        for (own, site, both) in [
            (["", "", "", ""], ["k", "p", "", ""], ["k", "p", "", ""]),
            (["", "q", "", ""], ["k", "p", "", ""], ["k", "q", "", ""]),
            (["", "q", "", ""], ["k", "", "c", "a"], ["k", "q", "", ""]),
            (
                ["l", "", "d", ""],
                ["k", "p", "c", "a"],
                ["l", "", "d", "a"],
            ),
        ] {
            let completed = credentials(own).or(&credentials(site));
            assert_eq!(completed, credentials(both));
            assert!(completed.files().is_some());
        }
        for names in [
            ["", "", "", ""],
            ["k", "", "", ""],
            ["", "p", "", ""],
            ["k", "p", "c", "a"],
            ["k", "", "c", ""],
        ] {
            assert_eq!(credentials(names).files(), None, "{names:?}");
        }
    }
}
