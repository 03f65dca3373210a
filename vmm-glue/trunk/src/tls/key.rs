//! Ed25519 keys of trunks, as files and as texts.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls::crypto::ring;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::sign::SigningKey;
use thiserror::Error;

/// Bytes of a key of either kind.
const KEY: usize = 32;

/// DER of a private key of Ed25519 before its 32 bytes: PKCS #8 version 0 (RFC 8410, section 7).
const PRIVATE: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// DER of a public key of Ed25519 before its 32 bytes: a SubjectPublicKeyInfo (RFC 8410, section 4).
const PUBLIC: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// The text of a public key before its Base64.
const ED25519: &str = "ed25519:";

/// A public key of Ed25519. Its text is `ed25519:` and the Base64 of its 32 bytes (RFC 4648, section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicKey([u8; KEY]);

/// A text that is no public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("expected ed25519: and 44 characters of Base64, as `vhca trunk keygen` prints them")]
pub struct PublicKeyError;

/// Why there is no new key.
#[derive(Debug, Error)]
pub enum KeygenError {
    /// The file, or its folder.
    #[error("cannot write {0}: choose another file, or remove it")]
    File(String, #[source] io::Error),
    /// The random numbers of the kernel.
    #[error("the kernel gives no random bytes")]
    Random,
}

impl PublicKey {
    /// Reads the DER of a SubjectPublicKeyInfo. Returns `None` for keys of other algorithms.
    pub(super) fn from_spki(der: &[u8]) -> Option<Self> {
        let key = der.strip_prefix(&PUBLIC)?;
        key.try_into().ok().map(Self)
    }

    /// Returns the public key of a private one; `None` if that has another algorithm.
    pub(super) fn of(private: &dyn SigningKey) -> Option<Self> {
        Self::from_spki(private.public_key()?.as_ref())
    }
}

impl FromStr for PublicKey {
    type Err = PublicKeyError;

    fn from_str(text: &str) -> Result<Self, PublicKeyError> {
        let key = text.strip_prefix(ED25519).ok_or(PublicKeyError)?;
        let key = BASE64_STANDARD.decode(key).map_err(|_| PublicKeyError)?;
        key.try_into().map(Self).map_err(|_| PublicKeyError)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ED25519}{}", BASE64_STANDARD.encode(self.0))
    }
}

/// Writes a new private key into a file that must not exist, in PEM and for its owner alone. Returns its public key.
///
/// # Errors
/// [`KeygenError`].
pub fn keygen(path: &Path) -> Result<PublicKey, KeygenError> {
    let mut key = [0; KEY];
    let random = ring::default_provider().secure_random;
    random.fill(&mut key).map_err(|_| KeygenError::Random)?;
    let der = [&PRIVATE[..], &key].concat();
    let public = signing_key(&PrivatePkcs8KeyDer::from(&der[..]));
    let public = public.and_then(|key| PublicKey::of(&*key));
    let cannot = |error| KeygenError::File(path.display().to_string(), error);
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(path).map_err(cannot)?;
    let encoded = BASE64_STANDARD.encode(&der);
    writeln!(
        file,
        "-----BEGIN PRIVATE KEY-----\n{encoded}\n-----END PRIVATE KEY-----"
    )
    .and_then(|()| file.sync_all())
    .map_err(cannot)?;
    public.ok_or(KeygenError::Random)
}

/// Returns a private key of Ed25519 that signs; `None` for keys of other algorithms.
pub(super) fn signing_key(der: &PrivatePkcs8KeyDer<'_>) -> Option<Arc<dyn SigningKey>> {
    ring::sign::any_eddsa_type(der).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_new_key_is_for_its_owner_alone_and_replaces_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let public = keygen(&path).unwrap();
        assert_eq!(public.to_string().parse(), Ok(public));
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let refused = keygen(&path).unwrap_err().to_string();
        assert!(refused.contains("choose another file"), "{refused}");
        assert_ne!(keygen(&dir.path().join("other")).unwrap(), public);
    }

    #[test]
    fn texts_that_are_no_public_keys_are_refused() {
        let key = PublicKey([7; KEY]).to_string();
        assert_eq!(key, "ed25519:BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=");
        for text in ["", "ed25519:", &key[1..], &key[..20], &format!("{key}=")] {
            assert_eq!(text.parse::<PublicKey>(), Err(PublicKeyError), "{text}");
        }
    }
}
