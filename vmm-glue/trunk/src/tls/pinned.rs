//! Peers by their public keys, without certificates (RFC 7250).

use std::collections::BTreeSet;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    PeerIncompatible, SignatureScheme,
};
use std::sync::Arc;
use thiserror::Error as ThisError;

use super::key::PublicKey;

/// The key of a peer that is not among the allowed ones.
#[derive(Clone, Copy, Debug, ThisError)]
#[error("the key {0} is not listed")]
pub(super) struct Unlisted(pub(super) PublicKey);

/// The keys that the other end may have.
#[derive(Debug)]
pub(super) struct PinnedKeys {
    pub(super) allowed: BTreeSet<PublicKey>,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl PinnedKeys {
    /// Checks that a key is allowed. The handshake proves that the other end has its private half.
    fn check(&self, spki: &[u8]) -> Result<(), Error> {
        let wrong = || Error::InvalidCertificate(CertificateError::BadEncoding);
        let key = PublicKey::from_spki(spki).ok_or_else(wrong)?;
        if self.allowed.contains(&key) {
            return Ok(());
        }
        let unlisted = OtherError(Arc::new(Unlisted(key)));
        Err(Error::InvalidCertificate(CertificateError::Other(unlisted)))
    }

    fn verify(
        &self,
        message: &[u8],
        spki: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(spki.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }
}

/// TLS 1.2, which is never negotiated.
const TLS12: Error = Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13);

impl ServerCertVerifier for PinnedKeys {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let checked = self.check(end_entity);
        checked.map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(TLS12)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for PinnedKeys {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let checked = self.check(end_entity);
        checked.map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(TLS12)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
