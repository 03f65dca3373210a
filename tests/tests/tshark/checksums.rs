//! The two checksums, bit by bit from the standard's definition (IBA 7.8) and without a line of the
//! code under test.

/// Shifts the bytes through a reflected generator polynomial, bit by bit, starting from all ones; the
/// remainder is inverted.
fn remainder(bytes: &[u8], polynomial: u32, ones: u32) -> u32 {
    let mut register = ones;
    for byte in bytes {
        for bit in 0..8 {
            let feedback = (register ^ u32::from(byte >> bit)) & 1;
            register >>= 1;
            if feedback == 1 {
                register ^= polynomial;
            }
        }
    }
    register ^ ones
}

/// The VCRC of everything before it: x^16 + x^12 + x^3 + x + 1.
fn vcrc(covered: &[u8]) -> [u8; 2] {
    let [low, high, ..] = remainder(covered, 0xd008, 0xffff).to_le_bytes();
    [low, high]
}

/// The ICRC of everything before it: the polynomial of Ethernet, with what may change on the way
/// counted as ones.
fn icrc(covered: &[u8]) -> [u8; 4] {
    let mut fixed = covered.to_vec();
    let has_grh = fixed[1] & 3 == 3;
    if has_grh {
        fixed[..8].fill(0xff); // LRH
        fixed[8] |= 0x0f; // traffic class
        fixed[9..12].fill(0xff); // traffic class, flow label
        fixed[15] = 0xff; // hop limit
    } else {
        fixed[0] |= 0xf0; // virtual lane
    }
    let bth = if has_grh { 48 } else { 8 };
    fixed[bth + 4] = 0xff;
    remainder(&fixed, 0xedb8_8320, u32::MAX).to_le_bytes()
}

/// Whether both checksums of an IBA transport packet are right.
pub(crate) fn are_right(frame: &[u8]) -> bool {
    let (rest, sent_vcrc) = frame.split_at(frame.len() - 2);
    let (covered, sent_icrc) = rest.split_at(rest.len() - 4);
    vcrc(rest) == sent_vcrc && icrc(covered) == sent_icrc
}

/// The sample packet of IBA 7.8 with its checksums.
const SAMPLE: [u8; 58] = [
    0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2, 0x0a, 0x20, 0x24, 0x87, 0x00, 0x87, 0xb1, 0xb3,
    0x00, 0x0d, 0xec, 0x2a, 0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2, 0x7a, 0x05,
    0x00, 0x00, 0x00, 0x0e, 0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72, 0x8b, 0xc0, 0x69,
    0x0e, 0xd4, 0x00, 0x00, 0x96, 0x25, 0xb7, 0x5a, 0x45, 0xfa,
];

#[test]
fn the_standards_sample_packet_has_the_computed_checksums() {
    assert!(are_right(&SAMPLE));
}

#[test]
fn any_flipped_bit_of_the_sample_packet_makes_a_checksum_wrong() {
    for bit in 0..SAMPLE.len() * 8 {
        let mut damaged = SAMPLE;
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(!are_right(&damaged), "bit {bit}");
    }
}
