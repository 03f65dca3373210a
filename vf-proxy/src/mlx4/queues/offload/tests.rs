use hca_api::LKey;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// The header of IPv4 of the example that RFC 1071 is most often explained by; its checksum is 0xb861.
const EXAMPLE: [u8; 20] = [
    0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7,
];

/// A packet of IPoIB with this protocol and so many bytes of it, checksums left open.
fn packet(protocol: u8, own: &[u8]) -> Vec<u8> {
    let mut packet = vec![8, 0, 0, 0];
    packet.extend(EXAMPLE);
    set_word(&mut packet, 6, u16::try_from(20 + own.len()).unwrap());
    packet[13] = protocol;
    packet.extend(own);
    packet
}

/// Headers of TCP with these flags.
fn tcp_headers(flags: u8) -> Vec<u8> {
    let mut tcp = [0; 20];
    tcp[4..8].copy_from_slice(&0xffff_ff00_u32.to_be_bytes());
    (tcp[12], tcp[13]) = (5 << 4, flags);
    packet(6, &tcp)
}

fn with_checksums(mut head: Vec<u8>, rest: &[u8]) -> Vec<u8> {
    write_checksums(&mut head, rest.len(), |sum| sum.add(rest));
    [&head, rest].concat()
}

#[test]
fn the_sum_is_that_of_rfc_1071() {
    for cut in 0..=8 {
        let bytes = [0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7];
        let mut sum = Sum::default();
        sum.add(&bytes[..cut]);
        sum.add(&bytes[cut..]);
        assert_eq!(sum.fold(), 0xddf2, "cut at {cut}");
    }
    let packet = with_checksums(packet(17, &[0; 95]), &[]);
    assert_eq!(packet[4..24], EXAMPLE);
}

#[test]
fn packets_that_the_device_does_not_know_are_left_as_they_are() {
    let mut fragment = packet(6, &[0; 20]);
    fragment[10] = 0x20;
    let mut arp = packet(6, &[0; 20]);
    arp[1] = 6;
    let mut version = packet(6, &[0; 20]);
    version[4] = 0x65;
    let mut short = packet(6, &[0; 20]);
    short[7] = 200;
    for (name, given, ip) in [
        ("a fragment", fragment, true),
        ("ARP", arp, false),
        ("IPv6", version, false),
        ("longer than its bytes", short, true),
        ("ICMP", packet(1, &[0; 20]), true),
        ("headers that end", packet(6, &[0; 7]), true),
    ] {
        let done = with_checksums(given.clone(), &[]);
        assert_eq!(done[24..], given[24..], "{name}");
        assert_eq!(done[14..16] != given[14..16], ip, "{name}");
        assert_eq!(verified(&done), None, "{name}");
    }
    // UDP says by zero that it has none, and a sum of zero is written as its complement.
    let mut unsummed = with_checksums(packet(17, &[0, 9, 0, 9, 0, 8, 0, 0]), &[]);
    assert_eq!(verified(&unsummed), Some(Protocol::Udp));
    set_word(&mut unsummed, 30, 0);
    assert_eq!(verified(&unsummed), None);
}

#[test]
fn a_message_that_cannot_be_cut_has_no_segments() {
    let headers = tcp_headers(0);
    assert!(Segment::new(&headers, 1000, 1, 0).is_some());
    let mut options = headers.clone();
    options[36] = 6 << 4;
    for (name, headers, mss, payload, number) in [
        ("no MSS", &headers[..], 0, 9, 0),
        ("no headers", &[][..], 1, 9, 0),
        ("half a header", &headers[..40], 1, 9, 0),
        ("options beyond the headers", &options[..], 1, 9, 0),
        ("UDP", &packet(17, &[0x50; 20])[..], 1, 9, 0),
        ("no payload", &headers[..], 1, 0, 0),
        ("behind the last", &headers[..], 3, 9, 3),
    ] {
        assert_eq!(Segment::new(headers, mss, payload, number), None, "{name}");
    }
}

proptest! {
    /// A receiver of all segments has the message, as one that TCP of the guest would have cut.
    #[test]
    fn segments_are_the_message(payload in vec(any::<u8>(), 1..5000), mss in 1_usize..2500, flags: u8) {
        let headers = tcp_headers(flags);
        let mut got: Vec<u8> = Vec::new();
        for number in 0.. {
            let segment = Segment::new(&headers, mss, payload.len(), number).unwrap();
            let mut head = headers.clone();
            segment.patch(&mut head);
            let packet = with_checksums(head, &payload[segment.start..segment.start + segment.len]);
            prop_assert_eq!(verified(&packet), Some(Protocol::Tcp));
            let sequence = u32::from_be_bytes(packet[28..32].try_into().unwrap());
            let sent = u32::try_from(got.len()).unwrap();
            prop_assert_eq!(sequence, 0xffff_ff00_u32.wrapping_add(sent));
            prop_assert_eq!(word(&packet, 8), Some(number));
            let kept = if number == 0 { CWR } else { 0 } | if segment.last { FIN | PSH } else { 0 };
            prop_assert_eq!(packet[37], flags & (kept | !(CWR | FIN | PSH)));
            got.extend(&packet[44..]);
            if segment.last {
                break;
            }
        }
        prop_assert_eq!(got, payload);
    }

    #[test]
    fn a_wrong_bit_is_found(own in vec(any::<u8>(), 20..60), bit in 0_usize..160) {
        let mut packet = with_checksums(packet(6, &own), &[]);
        prop_assert_eq!(verified(&packet), Some(Protocol::Tcp));
        packet[24 + bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(verified(&packet), None);
    }

    #[test]
    fn a_part_of_a_list_is_that_part_of_its_bytes(lens in vec(0_u32..9, 0..6), skip in 0_usize..30, len in 0_usize..30) {
        let mut at = 0;
        let list: Vec<_> = lens.iter().map(|len| {
            at += 100;
            Sge { addr: at, len: *len, lkey: LKey(1) }
        }).collect();
        let bytes = |list: &[Sge]| -> Vec<u64> {
            list.iter().flat_map(|sge| sge.addr..sge.addr + u64::from(sge.len)).collect()
        };
        let expected: Vec<_> = bytes(&list).into_iter().skip(skip).take(len).collect();
        prop_assert_eq!(bytes(&part(&list, skip, len).collect::<Vec<_>>()), expected);
    }
}
