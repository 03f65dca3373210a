//! The two checksums of a packet (IBA 7.8).
//!
//! The invariant CRC covers what no switch or router may change, so the variant fields count as
//! ones; the variant CRC covers every byte of the packet on one link. Both are sent with the
//! least significant byte first.
//!
//! ```
//! use ib_wire::packet::crc;
//!
//! // The sample packet of IBA 7.8, up to the end of its padding.
//! let packet = [
//!     0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2, 0x0a, 0x20, 0x24, 0x87, 0x00, 0x87, 0xb1, 0xb3,
//!     0x00, 0x0d, 0xec, 0x2a, 0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2, 0x7a, 0x05,
//!     0x00, 0x00, 0x00, 0x0e, 0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72, 0x8b, 0xc0, 0x69,
//!     0x0e, 0xd4, 0x00, 0x00,
//! ];
//! let icrc = crc::icrc(&packet).ok_or("a raw packet")?;
//! assert_eq!(icrc, [0x96, 0x25, 0xb7, 0x5a]);
//!
//! // A packet in pieces: everything up to the ICRC counts.
//! let mut vcrc = crc::Vcrc::new();
//! vcrc.update(&packet);
//! vcrc.update(&icrc);
//! assert_eq!(vcrc.finish(), [0x45, 0xfa]);
//! # Ok::<(), &str>(())
//! ```

use crc::{Algorithm, Crc, Digest, Table};
use crc32fast::Hasher;

use super::{Grh, Lnh, Lrh};

/// The VCRC's generator 0x100B, reflected, all ones in and out (IBA 7.8.2).
const VCRC_ALGORITHM: Algorithm<u16> = Algorithm {
    width: 16,
    poly: 0x100b,
    init: 0xffff,
    refin: true,
    refout: true,
    xorout: 0xffff,
    check: 0x0a3d,
    residue: 0,
};

static VCRC: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&VCRC_ALGORITHM);

const LRH: usize = size_of::<Lrh>();
const GRH: usize = size_of::<Grh>();
const BTH: usize = size_of::<super::Bth>();

/// A running variant CRC, for packets that come in pieces.
pub struct Vcrc(Digest<'static, u16, Table<16>>);

impl Vcrc {
    /// Starts at the LRH's first byte.
    #[must_use]
    pub fn new() -> Self {
        Self(VCRC.digest())
    }

    /// Takes the next bytes, up to and with the ICRC.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum as it stands on the wire.
    #[must_use]
    pub fn finish(self) -> [u8; super::VCRC_SIZE] {
        self.0.finalize().to_le_bytes()
    }
}

/// A running invariant CRC, whose generator is Ethernet's (IBA 7.8.1). [`Icrc::new`] takes the headers up to the BTH and masks the variant
/// fields; everything behind them is taken as it is.
pub struct Icrc(Hasher);

impl Icrc {
    /// Starts with a packet's routing headers and BTH: `headers` holds exactly the LRH, the GRH if
    /// the LRH announces one, and the BTH. `None` if it does not, and for raw packets, which have
    /// no ICRC.
    #[must_use]
    pub fn new(headers: &[u8]) -> Option<Self> {
        let mut masked = [0; LRH + GRH + BTH];
        let masked = masked.get_mut(..headers.len())?;
        masked.copy_from_slice(headers);
        if headers_len(masked)? != masked.len() {
            return None;
        }
        mask(masked);
        let mut hasher = Hasher::new();
        hasher.update(masked);
        Some(Self(hasher))
    }

    /// Takes the next bytes, up to the end of the padding.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum as it stands on the wire.
    #[must_use]
    pub fn finish(self) -> [u8; super::ICRC_SIZE] {
        self.0.finalize().to_le_bytes()
    }
}

/// Bytes up to the end of the BTH. `None` for raw packets.
fn headers_len(bytes: &[u8]) -> Option<usize> {
    match Lnh::of_first_bytes(bytes)? {
        Lnh::IbaLocal => Some(LRH + BTH),
        Lnh::IbaGlobal => Some(LRH + GRH + BTH),
        Lnh::RawEthertype | Lnh::RawIpv6 => None,
    }
}

/// Sets the variant fields of headers that end with their BTH to ones.
fn mask(headers: &mut [u8]) {
    if headers.len() > LRH + BTH {
        headers[..LRH].fill(0xff);
        // The IP version stays; traffic class, flow label and hop limit do not.
        headers[LRH] |= 0x0f;
        headers[LRH + 1..LRH + 4].fill(0xff);
        headers[LRH + 7] = 0xff;
    } else {
        headers[0] |= 0xf0;
    }
    let congestion = headers.len() - BTH + 4;
    headers[congestion] = 0xff;
}

/// The variant CRC of a packet, as it stands on the wire. `bytes` runs from the LRH to the ICRC.
#[must_use]
pub fn vcrc(bytes: &[u8]) -> [u8; super::VCRC_SIZE] {
    VCRC.checksum(bytes).to_le_bytes()
}

/// The invariant CRC of a packet, as it stands on the wire. `bytes` runs from the LRH to the end of
/// the padding. `None` for raw packets and for packets that end before their BTH does.
#[must_use]
pub fn icrc(bytes: &[u8]) -> Option<[u8; super::ICRC_SIZE]> {
    let (headers, rest) = bytes.split_at_checked(headers_len(bytes)?)?;
    let mut icrc = Icrc::new(headers)?;
    icrc.update(rest);
    Some(icrc.finish())
}

/// As [`icrc`], of a packet that is being written, in one go: the variant fields are masked where they
/// stand, and are then as they were.
pub(super) fn icrc_in_place(bytes: &mut [u8]) -> Option<[u8; super::ICRC_SIZE]> {
    let len = headers_len(bytes)?;
    let mut kept = [0; LRH + GRH + BTH];
    let kept = &mut kept[..len];
    kept.copy_from_slice(bytes.get(..len)?);
    mask(&mut bytes[..len]);
    let icrc = crc32fast::hash(bytes).to_le_bytes();
    bytes[..len].copy_from_slice(kept);
    Some(icrc)
}

impl Default for Vcrc {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for Vcrc {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Vcrc").finish_non_exhaustive()
    }
}

impl core::fmt::Debug for Icrc {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Icrc").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::SAMPLE;

    /// The checksums bit by bit, as the standard's polynomials define them.
    fn bitwise(bytes: &[u8], reflected_poly: u32, ones: u32) -> u32 {
        let mut crc = ones;
        for byte in bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 0 {
                    crc >> 1
                } else {
                    (crc >> 1) ^ reflected_poly
                };
            }
        }
        crc ^ ones
    }

    #[test]
    fn the_standards_sample_packet_has_its_checksums() {
        let (covered, vcrc_bytes) = SAMPLE.split_at(SAMPLE.len() - 2);
        let (invariant, icrc_bytes) = covered.split_at(covered.len() - 4);
        assert_eq!(icrc(invariant).unwrap(), icrc_bytes);
        assert_eq!(vcrc(covered), vcrc_bytes);
    }

    #[test]
    fn the_algorithms_agree_with_their_check_values() {
        assert_eq!(VCRC.checksum(b"123456789"), VCRC_ALGORITHM.check);
        assert_eq!(
            bitwise(b"123456789", 0xd008, 0xffff),
            u32::from(VCRC_ALGORITHM.check)
        );
    }

    #[test]
    fn pieces_give_the_checksums_of_the_whole() {
        let (covered, vcrc_bytes) = SAMPLE.split_at(SAMPLE.len() - 2);
        let mut pieces = Vcrc::new();
        covered.chunks(7).for_each(|piece| pieces.update(piece));
        assert_eq!(pieces.finish(), vcrc_bytes);

        let (headers, rest) = covered[..covered.len() - 4].split_at(LRH + BTH);
        let mut pieces = Icrc::new(headers).unwrap();
        rest.chunks(5).for_each(|piece| pieces.update(piece));
        assert_eq!(pieces.finish(), covered[covered.len() - 4..]);
    }

    #[test]
    fn a_global_packets_variant_fields_do_not_count() {
        let mut packet = [0x11_u8; LRH + GRH + BTH + 8];
        packet[1] = 0x53;
        let mut masked = packet;
        masked[..8].fill(0xff);
        masked[8] = 0x1f;
        masked[9..12].fill(0xff);
        masked[15] = 0xff;
        masked[LRH + GRH + 4] = 0xff;
        let expected = bitwise(&masked, 0xedb8_8320, u32::MAX).to_le_bytes();
        assert_eq!(icrc(&packet), Some(expected));
        // A router may change these.
        packet[0] = 0x77;
        packet[2..8].fill(9);
        packet[15] = 3;
        assert_eq!(icrc(&packet), Some(expected));
    }

    #[test]
    fn a_packet_is_the_same_after_its_icrc_was_computed_where_it_stands() {
        for lnh in 0..4 {
            for len in 0..100_u8 {
                let mut packet: std::vec::Vec<u8> = (0..len).map(|n| n.wrapping_mul(37)).collect();
                if let Some(byte) = packet.get_mut(1) {
                    *byte = *byte & 0xfc | lnh;
                }
                let before = packet.clone();
                assert_eq!(icrc_in_place(&mut packet), icrc(&before));
                assert_eq!(packet, before);
            }
        }
    }

    #[test]
    fn raw_and_short_packets_have_no_icrc() {
        let mut raw = SAMPLE;
        raw[1] &= 0xfc;
        assert_eq!(icrc(&raw), None);
        assert_eq!(icrc(&SAMPLE[..19]), None);
        assert_eq!(icrc(&[]), None);
        assert!(Icrc::new(&SAMPLE[..21]).is_none());
    }
}
