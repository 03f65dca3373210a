//! Two ends of TLS over a pair of sockets.

use std::fs;
use std::path::{Path, PathBuf};

use ib_trunk::{CloseReason, Hello, Session, SessionConfig, SessionEvent};
use ib_vtime::{Duration, Instant};
use ib_wire::Guid;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use tempfile::TempDir;

use super::*;
use crate::{Carrier, Security};

const TIMEOUT: Duration = Duration::from_secs(30);

fn session(site: &str) -> Session {
    let hello = Hello {
        site: site.parse().unwrap(),
        node_guid: Guid::NONE,
        port: 1,
    };
    let timeout = TIMEOUT;
    Session::new(Instant::ZERO, SessionConfig { hello, timeout })
}

fn carriers(client: &Security, server: &Security) -> [Carrier; 2] {
    let (near, far) = pair();
    let client = Carrier::new(near, TIMEOUT, client).unwrap();
    [client, Carrier::new(far, TIMEOUT, server).unwrap()]
}

fn pair() -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) {
    let (unix, stream) = (AddressFamily::UNIX, SocketType::STREAM);
    socketpair(unix, stream, SocketFlags::CLOEXEC, None).unwrap()
}

/// Runs both handshakes until neither has bytes for the other. Returns the outcome of each end.
fn shake(carriers: &mut [Carrier; 2]) -> [Result<bool, String>; 2] {
    let mut said = [Ok(false), Ok(false)];
    for _ in 0..8 {
        for (carrier, said) in carriers.iter_mut().zip(&mut said) {
            if *said == Ok(false) {
                *said = carrier.establish();
            }
        }
    }
    said
}

/// Passes a server's records after the handshake to a client. Returns the reason for which the client's end failed.
fn failure_of_client(carriers: &mut [Carrier; 2]) -> String {
    let [client, _] = carriers;
    let mut session = session("a");
    assert!(!client.receive(Instant::ZERO, &mut session));
    client.failure().unwrap().to_owned()
}

/// A folder with the files of two sites.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// Makes the key of a site.
    fn key(&self, site: &str) -> PublicKey {
        keygen(&self.path(&format!("{site}.key"))).unwrap()
    }

    /// Returns the credentials of a site that lists these keys.
    fn keys(&self, site: &str, peers: &[PublicKey]) -> CredentialFiles {
        let list: Vec<_> = peers.iter().map(|key| format!("{key} peer\n")).collect();
        CredentialFiles::Keys {
            key: self.path(&format!("{site}.key")),
            peers: self.write(
                &format!("{site}.peers"),
                &format!("# peers\n\n{}", list.concat()),
            ),
        }
    }

    /// Writes a certificate of a CA for a name, changed before it is signed, and its key.
    fn certified(
        &self,
        site: &str,
        ca: &CertifiedIssuer<'_, KeyPair>,
        change: impl FnOnce(&mut CertificateParams),
    ) -> CredentialFiles {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([site.to_owned()]).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, ca).unwrap();
        CredentialFiles::Certificates {
            certificate: self.write(&format!("{site}.pem"), &certificate.pem()),
            key: self.write(&format!("{site}.key"), &key.serialize_pem()),
            ca: self.write("ca.pem", &ca.pem()),
        }
    }
}

fn ca(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new([]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn client(files: &CredentialFiles) -> Security {
    Security::Tls(TlsEnd::connecting(files, "b").unwrap())
}

fn server(files: &CredentialFiles) -> Security {
    Security::Tls(TlsEnd::listening(files).unwrap())
}

/// Returns two ends that list each other's keys.
fn pinned() -> [Security; 2] {
    let files = Files::new();
    let [a, b] = ["a", "b"].map(|site| files.key(site));
    [
        client(&files.keys("a", &[b])),
        server(&files.keys("b", &[a])),
    ]
}

#[test]
fn ends_that_list_each_other_exchange_sessions_both_ways() {
    let [client, server] = pinned();
    let mut carriers = carriers(&client, &server);
    assert_eq!(shake(&mut carriers), [Ok(true), Ok(true)]);
    let mut sessions = ["a", "b"].map(session);
    for (carrier, session) in carriers.iter_mut().zip(&mut sessions) {
        assert!(carrier.transmit(session) && !carrier.is_waiting());
    }
    for (carrier, session) in carriers.iter_mut().zip(&mut sessions) {
        assert!(carrier.receive(Instant::ZERO, session));
        assert!(matches!(
            session.poll_event(),
            Some(SessionEvent::Opened(_))
        ));
    }
    let [mut near, mut far] = carriers;
    sessions[0].close(CloseReason::Stopping);
    assert!(near.transmit(&mut sessions[0]));
    drop(near);
    far.receive(Instant::ZERO, &mut sessions[1]);
    let closed = SessionEvent::Closed(CloseReason::Stopping);
    assert_eq!(sessions[1].poll_event(), Some(closed));
    assert_eq!(far.failure(), None);
}

/// Moves some bytes from one machine to another. Returns the number of them.
fn carry(from: &mut Tls, to: &mut Tls, cut: &mut impl FnMut() -> usize) -> usize {
    let length = from.unsent().len().min(cut()).min(to.room().len());
    to.room()[..length].copy_from_slice(&from.unsent()[..length]);
    from.transmitted(length);
    to.received(length);
    length
}

/// Moves bytes between two machines until neither has any.
fn exchange(client: &mut Tls, server: &mut Tls, cut: &mut impl FnMut() -> usize) {
    loop {
        let there = carry(client, server, cut);
        server.shake();
        let back = carry(server, client, cut);
        client.shake();
        if there + back == 0 {
            return;
        }
    }
}

/// Returns two machines whose handshake has not begun.
fn machines([client, server]: &[Security; 2]) -> [Tls; 2] {
    let [mut client, server] = [client, server].map(|security| match security {
        Security::Tls(end) => Tls::new(end).unwrap(),
        Security::Plain => unreachable!("the ends of this test have TLS"),
    });
    client.shake();
    [client, server]
}

#[test]
fn large_amounts_arrive_as_they_left_however_the_stream_is_cut() {
    let ends = pinned();
    let mut numbers = ib_vtime::SplitMix64::new(7);
    let mut cut = move || 1 + usize::try_from(numbers.next() % 20_000).unwrap();
    let [mut client, mut server] = machines(&ends);
    exchange(&mut client, &mut server, &mut cut);
    assert!(client.is_established() && server.is_established());
    let sent: Vec<u8> = (0_u32..1 << 20)
        .flat_map(|word| word.to_be_bytes())
        .collect();
    for chunk in sent.chunks(130_000) {
        for _ in 0..2 {
            let (from, to) = (&mut client, &mut server);
            from.encrypt(chunk);
            let mut came: Vec<u8> = Vec::new();
            while !from.unsent().is_empty() {
                carry(from, to, &mut cut);
                to.deliver(&mut |bytes| came.extend(bytes));
            }
            assert!(came == chunk && !to.is_over());
            std::mem::swap(from, to);
        }
    }
}

/// Hands a server the bytes of a client's handshake but for a change at a place.
fn handshake(ends: &[Security; 2], change: &mut dyn FnMut(usize, &mut Vec<u8>)) -> Tls {
    let [mut client, mut server] = machines(ends);
    let mut before = 0;
    loop {
        let mut bytes = client.unsent().to_vec();
        let length = bytes.len();
        client.transmitted(length);
        change(before, &mut bytes);
        before += length;
        server.room()[..bytes.len()].copy_from_slice(&bytes);
        server.received(bytes.len());
        server.shake();
        if carry(&mut server, &mut client, &mut || usize::MAX) == 0 {
            return server;
        }
        client.shake();
    }
}

#[test]
fn a_handshake_that_ends_at_any_byte_or_has_a_wrong_one_opens_nothing() {
    let ends = pinned();
    let mut flights = Vec::new();
    let whole = handshake(&ends, &mut |_, bytes| flights.extend_from_slice(bytes));
    assert!(whole.is_established());
    // Type and version in the header of an encrypted record say nothing (RFC 8446, section 5.2).
    let (mut ignored, mut record) = (Vec::new(), 0);
    while let Some(header) = flights.get(record..record + 5) {
        ignored.extend(record..record + 3);
        record += 5 + usize::from(u16::from_be_bytes([header[3], header[4]]));
    }
    for place in 0..flights.len() {
        let server = handshake(&ends, &mut |before, bytes| {
            bytes.truncate(place.saturating_sub(before));
        });
        assert!(!server.is_established() && !server.is_over(), "{place}");
        let server = handshake(&ends, &mut |before, bytes| {
            let byte = place
                .checked_sub(before)
                .and_then(|place| bytes.get_mut(place));
            if let Some(byte) = byte {
                *byte ^= 1;
            }
        });
        let is_opened = server.is_established();
        assert!(!is_opened || ignored.contains(&place), "{place}");
    }
}

#[test]
fn bytes_without_sense_end_the_connection_and_cost_no_more_than_a_buffer() {
    let ends = pinned();
    let mut numbers = ib_vtime::SplitMix64::new(11);
    for round in 0_u32..2000 {
        let [_, mut server] = machines(&ends);
        for _ in 0..8 {
            let room = server.room();
            let length = room.len().min(1 << (round % 15));
            for byte in &mut room[..length] {
                *byte = numbers.next().to_be_bytes()[0];
            }
            // Records as far as their headers.
            let body = u16::try_from(length.saturating_sub(5)).unwrap();
            let header = [22, 3, 3, body.to_be_bytes()[0], body.to_be_bytes()[1]];
            let header = &header[..length.min(5)];
            if round % 2 == 0 {
                room[..header.len()].copy_from_slice(header);
            }
            server.received(length);
            server.shake();
            assert!(server.incoming.len() == RECORD && server.outgoing.len() < RECORD);
            if server.is_over() {
                break;
            }
        }
        assert!(!server.is_established());
    }
    // A message of the handshake that is longer than the buffer.
    let [_, mut server] = machines(&ends);
    let record = [
        &[22, 3, 3, 0x40, 0, 1, 0, 0xff, 0xff][..],
        &[0; (1 << 14) - 4],
    ]
    .concat();
    for chunk in record.chunks(RECORD).chain([&record[..9]]) {
        let room = server.room();
        let length = room.len().min(chunk.len());
        room[..length].copy_from_slice(&chunk[..length]);
        server.received(length);
        server.shake();
    }
    let filler = server.room().len();
    server.received(filler);
    server.shake();
    assert!(server.is_over());
}

#[test]
fn a_changed_record_ends_the_connection() {
    let ends = pinned();
    let [mut client, mut server] = machines(&ends);
    exchange(&mut client, &mut server, &mut || usize::MAX);
    client.encrypt(&[7; 100]);
    carry(&mut client, &mut server, &mut || usize::MAX);
    let place = server.filled - 1;
    server.incoming[place] ^= 1;
    server.deliver(&mut |_| unreachable!("a changed record is not delivered"));
    assert!(server.failure().unwrap().contains("TLS"));
}

#[test]
fn a_key_that_is_not_listed_is_shown_at_both_ends() {
    let files = Files::new();
    let [a, b, other] = ["a", "b", "other"].map(|site| files.key(site));
    let (near, far) = (files.keys("a", &[b]), files.keys("b", &[other]));
    let mut ends = carriers(&client(&near), &server(&far));
    let [near_said, far_said] = shake(&mut ends);
    // A client of TLS 1.3 has ended its handshake before the server judges its key.
    assert_eq!(near_said, Ok(true));
    let far_said = far_said.unwrap_err();
    assert!(far_said.contains(&format!("add {a} to ")), "{far_said}");
    assert!(far_said.contains("b.peers"), "{far_said}");
    let near_said = failure_of_client(&mut ends);
    assert!(
        near_said.contains(&format!("add {a} to the peers there")),
        "{near_said}"
    );

    let (near, far) = (files.keys("a", &[other]), files.keys("b", &[a]));
    let [near_said, far_said] = shake(&mut carriers(&client(&near), &server(&far)));
    let (near_said, far_said) = (near_said.unwrap_err(), far_said.unwrap_err());
    assert!(near_said.contains(&format!("add {b} to ")), "{near_said}");
    assert!(
        far_said.contains(&format!("add {b} to the peers there")),
        "{far_said}"
    );
}

#[test]
fn certificates_of_a_ca_are_taken_from_both_ends_and_others_are_refused_with_the_remedy() {
    let (files, others, ours, theirs) = (Files::new(), Files::new(), ca("ours"), ca("theirs"));
    let expired = |params: &mut CertificateParams| {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    };
    let later = |params: &mut CertificateParams| params.not_before = date_time_ymd(3000, 1, 1);
    let for_servers = |params: &mut CertificateParams| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    };
    let good = |site: &str| files.certified(site, &ours, |_| ());
    let (a, b) = (good("a"), good("b"));
    let mut fine = carriers(&client(&a), &server(&b));
    assert_eq!(shake(&mut fine), [Ok(true), Ok(true)]);
    let refused_clients = [
        (
            files.certified("x", &ours, expired),
            "has expired",
            "x.pem has expired",
        ),
        (
            files.certified("y", &ours, later),
            "not valid yet",
            "not valid yet",
        ),
        (
            files.certified("z", &ours, for_servers),
            "clientAuth",
            "refuses",
        ),
    ];
    for (files, far, near) in refused_clients {
        let mut ends = carriers(&client(&files), &server(&b));
        let [near_said, far_said] = shake(&mut ends);
        assert_eq!(near_said, Ok(true));
        let far_said = far_said.unwrap_err();
        assert!(far_said.contains(far), "{far_said}");
        let near_said = failure_of_client(&mut ends);
        assert!(near_said.contains(near), "{near_said}");
    }
    let foreign = others.certified("b", &theirs, |_| ());
    for (far, near_words, far_words) in [
        (
            good("c"),
            "is not for b, by which it was reached, but for",
            "refuses",
        ),
        (
            files.certified("b", &ours, expired),
            "has expired",
            "b.pem has expired",
        ),
        (foreign, "no CA in", "add that CA"),
    ] {
        let [near_said, far_said] = shake(&mut carriers(&client(&a), &server(&far)));
        let (near_said, far_said) = (near_said.unwrap_err(), far_said.unwrap_err());
        assert!(near_said.contains(near_words), "{near_said}");
        assert!(far_said.contains(far_words), "{far_said}");
    }
    // A trunk that is redirected keeps its credentials, and expects the certificate of the new host.
    let redirected = TlsEnd::connecting(&a, "b").unwrap().towards("c").unwrap();
    let redirected = Security::Tls(redirected);
    for (far, is_expected) in [("b", false), ("c", true)] {
        let shaken = shake(&mut carriers(&redirected, &server(&good(far))));
        assert_eq!(shaken == [Ok(true), Ok(true)], is_expected, "{far}");
    }
}

#[test]
fn ends_with_keys_and_with_certificates_say_that_they_do_not_match() {
    let (files, issuer) = (Files::new(), ca("ours"));
    let [a, b] = ["k1", "k2"].map(|site| files.key(site));
    let [keys, other] = [files.keys("k1", &[b]), files.keys("k2", &[a])];
    let certificates = ["a", "b"].map(|site| files.certified(site, &issuer, |_| ()));
    for (near, far) in [(&keys, &certificates[1]), (&certificates[0], &other)] {
        let said = shake(&mut carriers(&client(near), &server(far)));
        for said in said {
            let said = said.unwrap_err();
            assert!(
                said.contains("pinned keys and the other certificates"),
                "{said}"
            );
        }
    }
}

#[test]
fn an_end_with_tls_and_one_without_both_say_so() {
    let [near, far] = pinned();
    for (with_tls, security) in [
        (0, [&near, &Security::Plain]),
        (1, [&Security::Plain, &far]),
    ] {
        let mut carriers = carriers(security[0], security[1]);
        let plain = 1 - with_tls;
        let mut session = session("a");
        assert_eq!(carriers[plain].establish(), Ok(true));
        assert!(carriers[plain].transmit(&mut session));
        let said = carriers[with_tls].establish().unwrap_err();
        assert!(said.contains("does not speak TLS"), "{said}");
        assert!(!carriers[plain].receive(Instant::ZERO, &mut session));
        let said = carriers[plain].failure().unwrap();
        assert!(said.contains("speaks TLS"), "{said}");
    }
}

#[test]
fn tls_1_2_is_refused() {
    let [_, end] = pinned();
    let (near, far) = pair();
    let mut carrier = Carrier::new(far, TIMEOUT, &end).unwrap();
    // A client hello of TLS 1.2 (RFC 5246, section 7.4.1.2): one suite, null compression, the groups x25519 and P-256, and the signature
    // algorithms of ECDSA and RSA with SHA-256.
    let body = [
        &[3, 3][..],
        &[9; 32],
        &[0, 0, 2, 0xc0, 0x2f, 1, 0, 0, 22],
        &[0, 10, 0, 6, 0, 4, 0, 0x1d, 0, 0x17],
        &[0, 13, 0, 8, 0, 6, 4, 3, 4, 1, 8, 4],
    ]
    .concat();
    let size = u8::try_from(body.len()).unwrap();
    let hello = [&[22, 3, 1, 0, size + 4, 1, 0, 0, size][..], &body].concat();
    send(&near, &hello, SendFlags::empty()).unwrap();
    let said = carrier.establish().unwrap_err();
    assert!(said.contains("TLS 1.3"), "{said}");
    // A fatal alert: protocol_version.
    let mut alert = [0; 7];
    recv(&near, &mut alert[..], RecvFlags::empty()).unwrap();
    assert_eq!(alert, [21, 3, 3, 0, 2, 2, 70]);
}

#[test]
fn credentials_that_are_missing_or_do_not_fit_are_refused_with_the_remedy() {
    let (files, issuer) = (Files::new(), ca("ours"));
    let key = files.key("a");
    assert_eq!(public_key(&files.path("a.key")).unwrap(), key);
    let keys = |key: &Path, peers: &Path| CredentialFiles::Keys {
        key: key.to_owned(),
        peers: peers.to_owned(),
    };
    let CredentialFiles::Certificates {
        certificate,
        key: second,
        ca,
    } = files.certified("c", &issuer, |_| ())
    else {
        unreachable!("certificates were asked for")
    };
    let certified = |certificate: &Path, key: &Path, ca: &Path| CredentialFiles::Certificates {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        ca: ca.to_owned(),
    };
    let (own, none) = (files.path("a.key"), files.path("none"));
    let empty = files.write("empty", "# nothing\n");
    let wrong = files.write("wrong", "\nssh-ed25519 AAAA\n");
    let peers = files.write("peers", &format!("{key}  # a comment\n"));
    for (files, words) in [
        (keys(&none, &peers), "cannot read the private key"),
        (keys(&empty, &peers), "no private key in PEM"),
        (keys(&second, &peers), "none of Ed25519"),
        (keys(&own, &none), "cannot read the list of peers"),
        (keys(&own, &empty), "lists no keys"),
        (keys(&own, &wrong), "wrong line 2: expected a public key"),
        (
            certified(&none, &second, &ca),
            "cannot read the certificate",
        ),
        (certified(&own, &second, &ca), "no certificate in PEM"),
        (
            certified(&certificate, &own, &ca),
            "does not fit the certificate",
        ),
        (
            certified(&certificate, &certificate, &ca),
            "no private key in PEM",
        ),
        (
            certified(&certificate, &second, &own),
            "no certificate of a CA in PEM",
        ),
    ] {
        let error = TlsEnd::listening(&files).unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains('\n'), "{error}");
    }
    let fine = certified(&certificate, &second, &ca);
    for host in ["10.0.0.1", "[fe80::1]", "spine-0.vhca.svc"] {
        TlsEnd::connecting(&fine, host).unwrap();
    }
    let error = TlsEnd::connecting(&fine, "a b").unwrap_err().to_string();
    assert!(
        error.contains("no name that a certificate can have"),
        "{error}"
    );
    TlsEnd::connecting(&keys(&own, &peers), "a b").unwrap();
}
