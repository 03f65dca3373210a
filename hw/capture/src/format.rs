//! The bytes of the two nested formats.
//!
//! pcap: the classic libpcap file header and record header. ERF: the Extensible Record Format of
//! Endace, type 21 (InfiniBand).

use ib_vtime::Instant;
use zerocopy::little_endian::{U16 as Le16, U32 as Le32, U64 as Le64};
use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// pcap magic of files with microsecond times.
pub(crate) const MAGIC_MICROS: u32 = 0xa1b2_c3d4;
/// pcap magic of files with nanosecond times.
pub(crate) const MAGIC_NANOS: u32 = 0xa1b2_3c4d;
/// `LINKTYPE_ERF`.
pub(crate) const LINK_TYPE_ERF: u32 = 197;
/// ERF record type of an InfiniBand frame.
pub(crate) const ERF_TYPE_INFINIBAND: u8 = 21;
/// ERF flag: record lengths vary. The two low bits of the flags are the interface.
pub(crate) const ERF_FLAG_VARYING_LENGTH: u8 = 0x04;

/// Bytes of an ERF header.
pub(crate) const ERF_HEADER_LEN: usize = size_of::<ErfHeader>();

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The pcap file header, as this crate writes it: little endian.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct FileHeader {
    pub(crate) magic: Le32,
    pub(crate) version_major: Le16,
    pub(crate) version_minor: Le16,
    pub(crate) time_zone: Le32,
    pub(crate) time_accuracy: Le32,
    pub(crate) snap_length: Le32,
    pub(crate) link_type: Le32,
}

/// The pcap record header. `fraction` counts microseconds or nanoseconds, as the magic says.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RecordHeader {
    pub(crate) seconds: Le32,
    pub(crate) fraction: Le32,
    pub(crate) captured: Le32,
    pub(crate) original: Le32,
}

/// The ERF header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct ErfHeader {
    /// Seconds in the upper half, a binary fraction in the lower. Little endian, unlike the rest.
    pub(crate) timestamp: Le64,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// Length of the record: this header, the frame, padding.
    pub(crate) record_length: U16,
    pub(crate) loss_counter: U16,
    /// Length of the frame on the wire.
    pub(crate) wire_length: U16,
}

const _: () = assert!(size_of::<FileHeader>() == 24 && align_of::<FileHeader>() == 1);
const _: () = assert!(size_of::<RecordHeader>() == 16 && align_of::<RecordHeader>() == 1);
const _: () = assert!(size_of::<ErfHeader>() == 16 && align_of::<ErfHeader>() == 1);

/// Splits a time into whole seconds and nanoseconds.
pub(crate) const fn split_seconds(time: Instant) -> (u64, u32) {
    let nanos = time.as_nanos();
    let rest = (nanos % NANOS_PER_SECOND) as u32;
    (nanos / NANOS_PER_SECOND, rest)
}

/// The ERF timestamp of a time, rounded down. The seconds must fit in 32 bits.
pub(crate) const fn to_timestamp(seconds: u32, nanos: u32) -> u64 {
    ((seconds as u64) << 32) | (((nanos as u64) << 32) / NANOS_PER_SECOND)
}

/// The time of an ERF timestamp, to the nearest nanosecond, which undoes [`to_timestamp`].
pub(crate) const fn from_timestamp(timestamp: u64) -> Instant {
    let fraction = timestamp & 0xffff_ffff;
    let nanos = (fraction * NANOS_PER_SECOND + (1 << 31)) >> 32;
    Instant::from_nanos((timestamp >> 32) * NANOS_PER_SECOND + nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nanosecond_survives_the_binary_fraction() {
        for nanos in (0..1_000_000_000).step_by(99_991).chain([999_999_999]) {
            assert_eq!(
                from_timestamp(to_timestamp(3, nanos)),
                Instant::from_nanos(3_000_000_000 + u64::from(nanos))
            );
        }
    }

    #[test]
    fn the_largest_timestamp_is_a_time() {
        assert_eq!(
            from_timestamp(u64::MAX),
            Instant::from_nanos((1 << 32) * NANOS_PER_SECOND)
        );
    }
}
