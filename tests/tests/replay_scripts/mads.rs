//! MADs by offset, without the layouts under test.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// A MAD.
pub(crate) type Mad = [u8; 256];

pub(crate) const REQ: u16 = 0x10;
pub(crate) const MRA: u16 = 0x11;
pub(crate) const REJ: u16 = 0x12;
pub(crate) const REP: u16 = 0x13;
pub(crate) const RTU: u16 = 0x14;
pub(crate) const DREQ: u16 = 0x15;
pub(crate) const DREP: u16 = 0x16;
pub(crate) const SIDR_REQ: u16 = 0x17;
pub(crate) const SIDR_REP: u16 = 0x18;
pub(crate) const LAP: u16 = 0x19;
pub(crate) const APR: u16 = 0x1a;

/// Where a CM message has its sender's id, or the SIDR request id.
pub(crate) const LOCAL_ID: usize = 24;
/// Where a CM message has its receiver's id.
pub(crate) const REMOTE_ID: usize = 28;
pub(crate) const TID: usize = 8;

pub(crate) fn put(mad: &mut Mad, at: usize, bytes: &[u8]) {
    mad[at..at + bytes.len()].copy_from_slice(bytes);
}

pub(crate) fn get_u32(mad: &Mad, at: usize) -> u32 {
    u32::from_be_bytes(mad[at..at + 4].try_into().unwrap())
}

/// How often the sender of a REQ sends a message again.
pub(crate) fn max_cm_retries(req: &Mad) -> usize {
    usize::from(req[75] >> 4)
}

pub(crate) fn tid(mad: &Mad) -> u64 {
    u64::from_be_bytes(mad[TID..TID + 8].try_into().unwrap())
}

/// Random bytes behind a header: whatever the mux need not look at.
pub(crate) fn noise(
    rng: &mut ChaCha8Rng,
    class: u8,
    version: u8,
    method: u8,
    attribute: u16,
) -> Mad {
    let mut mad = [0; 256];
    rng.fill_bytes(&mut mad[24..]);
    mad[..4].copy_from_slice(&[1, class, version, method]);
    put(&mut mad, 16, &attribute.to_be_bytes());
    mad
}

/// A CM message between two ids.
pub(crate) fn cm(rng: &mut ChaCha8Rng, attribute: u16, local: u32, remote: u32) -> Mad {
    let mut mad = noise(rng, 7, 2, 3, attribute);
    put(
        &mut mad,
        TID,
        &(0x5000_0000_0000 | u64::from(local)).to_be_bytes(),
    );
    put(&mut mad, LOCAL_ID, &local.to_be_bytes());
    put(&mut mad, REMOTE_ID, &remote.to_be_bytes());
    mad
}

/// A REJ of a message (0 REQ, 1 REP, 2 any other) for a reason.
pub(crate) fn rej(rng: &mut ChaCha8Rng, local: u32, remote: u32, rejected: u8, reason: u16) -> Mad {
    let mut mad = cm(rng, REJ, local, remote);
    mad[32] = rejected << 6;
    mad[33] = 0;
    put(&mut mad, 34, &reason.to_be_bytes());
    mad
}

/// The REJ of who gives up waiting, which names its CA.
pub(crate) fn timeout(rng: &mut ChaCha8Rng, local: u32, remote: u32, ca: u64) -> Mad {
    let mut mad = rej(rng, local, remote, 2, 4);
    mad[33] = 8 << 1;
    put(&mut mad, 36, &ca.to_be_bytes());
    mad
}

/// An SA MAD without RMPP, SM_Key or component mask.
pub(crate) fn sa(rng: &mut ChaCha8Rng, method: u8, attribute: u16) -> Mad {
    let mut mad = noise(rng, 3, 2, method, attribute);
    mad[24..56].fill(0);
    mad
}

/// Turns an SA MAD into a packet of an RMPP transfer.
pub(crate) fn rmpp(mut mad: Mad, kind: u8, flags: u8, segment: u32, last: u32) -> Mad {
    mad[24] = 1;
    mad[25] = kind;
    mad[26] = 0x78 | 1 | flags;
    put(&mut mad, 28, &segment.to_be_bytes());
    put(&mut mad, 32, &last.to_be_bytes());
    mad
}

pub(crate) fn to_hex(mad: &Mad) -> String {
    mad.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn from_hex(digits: &str) -> Mad {
    assert_eq!(digits.len(), 512);
    std::array::from_fn(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap())
}
