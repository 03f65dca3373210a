//! Credentials of an end of a trunk, from files.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{
    AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage, WebPkiClientVerifier,
};
use rustls::sign::{CertifiedKey, SigningKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{ClientConfig, Error, InconsistentKeys, RootCertStore, ServerConfig};
use thiserror::Error as ThisError;

use super::key::{PublicKey, signing_key};
use super::pinned::PinnedKeys;
use crate::address::bare;

/// Files by which the ends of a trunk know each other. Both ends have the same kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialFiles {
    /// Keys without certificates: each end lists the public keys of the other ends.
    Keys {
        /// A private key of Ed25519, in PEM (PKCS #8), as [`keygen`](crate::keygen) writes it.
        key: PathBuf,
        /// The public keys of the other ends, one a line, with a comment behind it; lines that begin with `#` are comments.
        peers: PathBuf,
    },
    /// Certificates of X.509 that a CA issued.
    Certificates {
        /// The certificate of this end, and those between it and the CA, in PEM.
        certificate: PathBuf,
        /// Its private key, in PEM.
        key: PathBuf,
        /// The CAs that issue the certificates of the other ends, in PEM.
        ca: PathBuf,
    },
}

/// Why there are no credentials.
#[derive(Debug, ThisError)]
pub enum CredentialsError {
    /// A file cannot be read.
    #[error("cannot read the {what} {}: {error}; {remedy}", .path.display())]
    Unreadable {
        /// The contents that are expected.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
        /// A way to have such a file.
        remedy: &'static str,
    },
    /// A file without the expected contents.
    #[error("there is no {what} in PEM in {}: {remedy}", .path.display())]
    Missing {
        /// The contents that are expected.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// A way to have such a file.
        remedy: &'static str,
    },
    /// A private key of another algorithm than Ed25519.
    #[error("the key in {} is none of Ed25519: make one with `vhca trunk keygen`", .0.display())]
    Algorithm(PathBuf),
    /// A line of a file of peers.
    #[error("{} line {line}: expected a public key, as `vhca trunk keygen` prints it, or a comment that begins with #", .path.display())]
    PeerLine {
        /// The file.
        path: PathBuf,
        /// The line, from 1 on.
        line: usize,
    },
    /// A file of peers without a key.
    #[error("{} lists no keys: add the public key of each other end, as `vhca trunk keygen` prints it", .0.display())]
    NoPeers(PathBuf),
    /// A private key that is not that of the certificate.
    #[error("the key in {} does not fit the certificate in {}: name the key with which the certificate was requested", .key.display(), .certificate.display())]
    Mismatch {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate.
        certificate: PathBuf,
    },
    /// A certificate or key that TLS cannot use.
    #[error("{} cannot be used for TLS: {error}", .path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: String,
    },
    /// An address whose host cannot stand in a certificate.
    #[error("{0:?} is no name that a certificate can have: connect by a DNS name or an IP address")]
    Name(String),
}

const KEY: &str = "private key";
const MAKE_KEY: &str = "make one with `vhca trunk keygen FILE`";
const PEERS: &str = "list of peers";
const LIST_PEERS: &str =
    "write the public key of each other end into it, as `vhca trunk keygen` prints it";
const CERTIFICATE: &str = "certificate";
const HAVE_ISSUED: &str = "have a CA issue it, and name the file of its chain";
const CA: &str = "certificate of a CA";
const NAME_CA: &str = "name the file with the CA of the other ends";

/// An end of TLS, from which each connection of a trunk is made.
#[derive(Clone, Debug)]
pub struct TlsEnd {
    pub(super) side: Side,
    pub(super) identity: Arc<Identity>,
}

/// The side of the handshake that the end takes.
#[derive(Clone, Debug)]
pub(super) enum Side {
    Client(Arc<ClientConfig>, ServerName<'static>),
    Server(Arc<ServerConfig>),
}

/// Parts of the credentials that messages name.
#[derive(Debug)]
pub(super) enum Identity {
    Pinned { own: PublicKey, peers: PathBuf },
    Certified { certificate: PathBuf, ca: PathBuf },
}

impl Identity {
    /// Returns the name that the certificate of a host must have.
    fn server_name(&self, host: &str) -> Result<ServerName<'static>, CredentialsError> {
        let name = match self {
            // The key is the name: any will do.
            Self::Pinned { .. } => "trunk",
            Self::Certified { .. } => bare(host),
        };
        let name = ServerName::try_from(name.to_owned());
        name.map_err(|_| CredentialsError::Name(host.to_owned()))
    }
}

impl TlsEnd {
    /// Reads the credentials of an end that connects to a host. Certificates of the other end must be for this name or address.
    ///
    /// # Errors
    /// [`CredentialsError`].
    pub fn connecting(files: &CredentialFiles, host: &str) -> Result<Self, CredentialsError> {
        let credentials = Credentials::read(files)?;
        let name = credentials.identity.server_name(host)?;
        let config = Arc::new(credentials.client()?);
        Ok(Self {
            side: Side::Client(config, name),
            identity: credentials.identity,
        })
    }

    /// Returns the end for connections to another host; one that listens stays as it is.
    ///
    /// # Errors
    /// [`CredentialsError::Name`].
    pub(crate) fn towards(self, host: &str) -> Result<Self, CredentialsError> {
        let side = match self.side {
            Side::Client(config, _) => Side::Client(config, self.identity.server_name(host)?),
            side @ Side::Server(_) => side,
        };
        Ok(Self { side, ..self })
    }

    /// Reads the credentials of an end that listens.
    ///
    /// # Errors
    /// [`CredentialsError`].
    pub fn listening(files: &CredentialFiles) -> Result<Self, CredentialsError> {
        let credentials = Credentials::read(files)?;
        let config = Arc::new(credentials.server()?);
        Ok(Self {
            side: Side::Server(config),
            identity: credentials.identity,
        })
    }
}

struct Credentials {
    provider: Arc<CryptoProvider>,
    own: Arc<CertifiedKey>,
    allowed: Allowed,
    identity: Arc<Identity>,
}

/// The other ends that are allowed.
enum Allowed {
    Pinned(Arc<PinnedKeys>),
    Certified(Arc<RootCertStore>),
}

impl Credentials {
    fn read(files: &CredentialFiles) -> Result<Self, CredentialsError> {
        let provider = Arc::new(ring::default_provider());
        match files {
            CredentialFiles::Keys { key, peers } => {
                let own = pinned_key(key)?;
                let wrong = || CredentialsError::Algorithm(key.clone());
                let public = PublicKey::of(&*own).ok_or_else(wrong)?;
                let spki = own.public_key().ok_or_else(wrong)?;
                let chain = vec![CertificateDer::from(spki.as_ref().to_vec())];
                let pinned = PinnedKeys {
                    allowed: read_peers(peers)?,
                    algorithms: provider.signature_verification_algorithms,
                };
                Ok(Self {
                    provider,
                    own: Arc::new(CertifiedKey::new(chain, own)),
                    allowed: Allowed::Pinned(Arc::new(pinned)),
                    identity: Arc::new(Identity::Pinned {
                        own: public,
                        peers: peers.clone(),
                    }),
                })
            }
            CredentialFiles::Certificates {
                certificate,
                key,
                ca,
            } => {
                let chain = certificates(certificate, CERTIFICATE, HAVE_ISSUED)?;
                let unusable = |path: &Path| {
                    let path = path.to_owned();
                    move |error: Error| CredentialsError::Unusable {
                        path,
                        error: error.to_string(),
                    }
                };
                let private = private_key(key)?;
                let private = provider.key_provider.load_private_key(private);
                let own = CertifiedKey::new(chain, private.map_err(unusable(key))?);
                match own.keys_match() {
                    // A key that does not say its public half cannot be compared.
                    Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
                    Err(Error::InconsistentKeys(_)) => {
                        return Err(CredentialsError::Mismatch {
                            key: key.clone(),
                            certificate: certificate.clone(),
                        });
                    }
                    Err(error) => return Err(unusable(certificate)(error)),
                }
                let mut roots = RootCertStore::empty();
                for root in certificates(ca, CA, NAME_CA)? {
                    roots.add(root).map_err(unusable(ca))?;
                }
                Ok(Self {
                    provider,
                    own: Arc::new(own),
                    allowed: Allowed::Certified(Arc::new(roots)),
                    identity: Arc::new(Identity::Certified {
                        certificate: certificate.clone(),
                        ca: ca.clone(),
                    }),
                })
            }
        }
    }

    /// Returns the error of a library that refuses what the files hold.
    fn unusable(&self, error: &dyn ToString) -> CredentialsError {
        let path = match &*self.identity {
            Identity::Pinned { peers, .. } => peers,
            Identity::Certified { ca, .. } => ca,
        };
        CredentialsError::Unusable {
            path: path.clone(),
            error: error.to_string(),
        }
    }

    fn client(&self) -> Result<ClientConfig, CredentialsError> {
        let builder = ClientConfig::builder_with_provider(self.provider.clone());
        let builder = builder.with_protocol_versions(&[&TLS13]);
        let builder = builder.map_err(|error| self.unusable(&error))?;
        let own = self.own.clone();
        let mut config = match &self.allowed {
            Allowed::Pinned(pinned) => builder
                .dangerous()
                .with_custom_certificate_verifier(pinned.clone())
                .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(own))),
            Allowed::Certified(roots) => {
                let provider = self.provider.clone();
                let verifier =
                    WebPkiServerVerifier::builder_with_provider(roots.clone(), provider).build();
                builder
                    .with_webpki_verifier(verifier.map_err(|error| self.unusable(&error))?)
                    .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own)))
            }
        };
        // Each connection proves who it is by itself.
        config.resumption = Resumption::disabled();
        config.enable_sni = matches!(self.allowed, Allowed::Certified(_));
        Ok(config)
    }

    fn server(&self) -> Result<ServerConfig, CredentialsError> {
        let builder = ServerConfig::builder_with_provider(self.provider.clone());
        let builder = builder.with_protocol_versions(&[&TLS13]);
        let builder = builder.map_err(|error| self.unusable(&error))?;
        let own = self.own.clone();
        let mut config = match &self.allowed {
            Allowed::Pinned(pinned) => builder
                .with_client_cert_verifier(pinned.clone())
                .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own))),
            Allowed::Certified(roots) => {
                let provider = self.provider.clone();
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots.clone(), provider).build();
                builder
                    .with_client_cert_verifier(verifier.map_err(|error| self.unusable(&error))?)
                    .with_cert_resolver(Arc::new(SingleCertAndKey::from(own)))
            }
        };
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

/// Returns the public key of the private one in a file, which another end lists among its peers.
///
/// # Errors
/// [`CredentialsError`] if the file has no key of Ed25519.
pub fn public_key(path: &Path) -> Result<PublicKey, CredentialsError> {
    let wrong = || CredentialsError::Algorithm(path.to_owned());
    PublicKey::of(&*pinned_key(path)?).ok_or_else(wrong)
}

fn contents(
    path: &Path,
    what: &'static str,
    remedy: &'static str,
) -> Result<Vec<u8>, CredentialsError> {
    fs::read(path).map_err(|error| CredentialsError::Unreadable {
        what,
        path: path.to_owned(),
        error,
        remedy,
    })
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, CredentialsError> {
    let pem = contents(path, KEY, MAKE_KEY)?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|_| CredentialsError::Missing {
        what: KEY,
        path: path.to_owned(),
        remedy: MAKE_KEY,
    })
}

/// Reads a private key that needs no certificate.
fn pinned_key(path: &Path) -> Result<Arc<dyn SigningKey>, CredentialsError> {
    let key = match private_key(path)? {
        PrivateKeyDer::Pkcs8(key) => signing_key(&key),
        _ => None,
    };
    key.ok_or_else(|| CredentialsError::Algorithm(path.to_owned()))
}

fn certificates(
    path: &Path,
    what: &'static str,
    remedy: &'static str,
) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let pem = contents(path, what, remedy)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty());
    chain.ok_or_else(|| CredentialsError::Missing {
        what,
        path: path.to_owned(),
        remedy,
    })
}

fn read_peers(path: &Path) -> Result<BTreeSet<PublicKey>, CredentialsError> {
    let text = contents(path, PEERS, LIST_PEERS)?;
    let text = String::from_utf8_lossy(&text);
    let mut peers = BTreeSet::new();
    for (line, text) in (1..).zip(text.lines()) {
        let Some(word) = text
            .split_whitespace()
            .next()
            .filter(|word| !word.starts_with('#'))
        else {
            continue;
        };
        let key = word.parse().map_err(|_| CredentialsError::PeerLine {
            path: path.to_owned(),
            line,
        })?;
        peers.insert(key);
    }
    if peers.is_empty() {
        return Err(CredentialsError::NoPeers(path.to_owned()));
    }
    Ok(peers)
}
