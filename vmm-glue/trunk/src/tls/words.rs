//! Words for handshakes that fail, each with the remedy.

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

use super::credentials::{Identity, Side, TlsEnd};
use super::pinned::Unlisted;

const SPEAKS_NO_TLS: &str = "the other end does not speak TLS: give both ends tls: addresses";
const NO_TLS13: &str =
    "the other end does not offer TLS 1.3, and trunks have nothing older: run vhca at both ends";
const TWO_KINDS: &str = "one end has pinned keys and the other certificates: give both ends key and peers, or both certificate, key and ca";
const NOTHING_SHOWN: &str = "the other end shows neither key nor certificate: give it key and peers, or certificate, key and ca";

/// Returns the reason for which a connection of an end fails, in one line.
pub(super) fn words(error: &Error, end: &TlsEnd) -> String {
    match error {
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType
            | InvalidMessage::UnknownProtocolVersion
            | InvalidMessage::MessageTooLarge
            | InvalidMessage::InvalidEmptyPayload,
        ) => SPEAKS_NO_TLS.to_owned(),
        Error::PeerIncompatible(
            PeerIncompatible::IncorrectCertificateTypeExtension
            | PeerIncompatible::UnsolicitedCertificateTypeExtension,
        )
        | Error::AlertReceived(AlertDescription::HandshakeFailure) => TWO_KINDS.to_owned(),
        Error::PeerIncompatible(
            PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
            | PeerIncompatible::Tls12NotOfferedOrEnabled,
        )
        | Error::AlertReceived(AlertDescription::ProtocolVersion) => NO_TLS13.to_owned(),
        Error::NoCertificatesPresented => NOTHING_SHOWN.to_owned(),
        Error::InvalidCertificate(error) => refused(error, end),
        Error::AlertReceived(alert) => refused_by_peer(*alert, end),
        error => format!("TLS with the other end failed: {error}"),
    }
}

/// This end refuses the other one.
fn refused(error: &CertificateError, end: &TlsEnd) -> String {
    match (error, &*end.identity) {
        (CertificateError::Other(other), Identity::Pinned { peers, .. }) => {
            match other.0.downcast_ref() {
                Some(Unlisted(key)) => format!(
                    "the key of the other end is not listed: add {key} to {} here if it is a site of yours, and start the service anew",
                    peers.display()
                ),
                None => format!("the key of the other end is refused: {error}"),
            }
        }
        (
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
            Identity::Certified { ca, .. },
        ) => format!(
            "no CA in {} issued the certificate of the other end: add the CA there, or have the certificate issued by one of them",
            ca.display()
        ),
        (CertificateError::Expired | CertificateError::ExpiredContext { .. }, _) => {
            "the certificate of the other end has expired: renew it there".to_owned()
        }
        (CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }, _) => {
            "the certificate of the other end is not valid yet: compare the clocks of both machines"
                .to_owned()
        }
        (CertificateError::NotValidForNameContext { presented, .. }, _) => format!(
            "the certificate of the other end is not for {}, by which it was reached, but for {}: connect by one of its names, or have it issued for this one",
            host(end),
            presented.join(", ")
        ),
        (CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. }, _) => {
            format!(
                "the certificate of the other end is not for {}: have it issued with the extended key usages serverAuth and clientAuth",
                match end.side {
                    Side::Client(..) => "servers",
                    Side::Server(_) => "clients",
                }
            )
        }
        (error, _) => format!("the certificate of the other end is refused: {error}"),
    }
}

/// The other end refuses this one.
fn refused_by_peer(alert: AlertDescription, end: &TlsEnd) -> String {
    match (alert, &*end.identity) {
        (
            AlertDescription::CertificateUnknown | AlertDescription::AccessDenied,
            Identity::Pinned { own, .. },
        ) => {
            format!("the other end does not list the key of this one: add {own} to the peers there")
        }
        (AlertDescription::UnknownCA, Identity::Certified { certificate, .. }) => format!(
            "the other end does not know the CA of {}: add that CA to the file ca there",
            certificate.display()
        ),
        (AlertDescription::CertificateExpired, Identity::Certified { certificate, .. }) => {
            format!(
                "the other end says that {} has expired, or is not valid yet: renew it, and compare the clocks",
                certificate.display()
            )
        }
        (
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::DecryptError,
            Identity::Certified { certificate, .. },
        ) => format!(
            "the other end refuses {}: its log says why",
            certificate.display()
        ),
        (alert, _) => format!("the other end ended TLS with the alert {alert:?}: its log says why"),
    }
}

fn host(end: &TlsEnd) -> String {
    match &end.side {
        Side::Client(_, name) => name.to_str().into_owned(),
        Side::Server(_) => String::new(),
    }
}
