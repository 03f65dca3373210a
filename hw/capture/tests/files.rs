//! Whole files: what is written is what is read, and no bytes make the reader panic.

use ib_capture::{FrameRecord, Interface, MAX_FRAME_LEN, ReadError, Reader, Writer};
use ib_vtime::Instant;
use proptest::prelude::*;

const CASES: u32 = 256;

/// The largest time that a file can hold.
const LAST_NANOSECOND: u64 = (1 << 32) * 1_000_000_000 - 1;

fn write(frames: &[FrameRecord]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).expect("a vector takes everything");
    for frame in frames {
        writer
            .write_record(frame)
            .expect("the frame is within limits");
    }
    writer.finish().expect("a vector takes everything")
}

fn read(file: &[u8]) -> Result<Vec<FrameRecord>, ReadError> {
    Reader::new(file)?.collect()
}

fn frame(bytes: Vec<u8>) -> FrameRecord {
    FrameRecord {
        time: Instant::from_nanos(7),
        interface: Interface::default(),
        bytes,
    }
}

fn any_frame() -> impl Strategy<Value = FrameRecord> {
    (
        0..=LAST_NANOSECOND,
        0_u8..4,
        prop::collection::vec(any::<u8>(), 0..400),
    )
        .prop_map(|(nanos, interface, bytes)| FrameRecord {
            time: Instant::from_nanos(nanos),
            interface: Interface::from_low_bits(interface),
            bytes,
        })
}

/// One frame as another program may write it: big endian, microseconds, padded to 8 bytes.
#[rustfmt::skip]
const BIG_ENDIAN_PADDED: [u8; 24 + 16 + 16 + 8] = [
    0xa1, 0xb2, 0xc3, 0xd4, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 197,
    0, 0, 0, 2, 0, 0x03, 0xd0, 0x90, 0, 0, 0, 24, 0, 0, 0, 24,
    0, 0, 0, 0x40, 2, 0, 0, 0, 21, 0x06, 0, 24, 0, 0, 0, 5,
    1, 2, 3, 4, 5, 0, 0, 0,
];

#[test]
fn the_longest_frame_survives() {
    let frames = [frame(vec![0x5a; MAX_FRAME_LEN])];
    assert_eq!(read(&write(&frames)).unwrap(), frames);
}

#[test]
fn a_big_endian_file_with_padded_records_is_read() {
    let frames = read(&BIG_ENDIAN_PADDED).unwrap();
    assert_eq!(
        frames,
        [FrameRecord {
            time: Instant::from_millis(2250),
            interface: Interface::new(2).unwrap(),
            bytes: vec![1, 2, 3, 4, 5],
        }]
    );
}

#[test]
fn a_file_of_another_kind_is_named() {
    assert!(matches!(
        read(b"\x7fELF and twenty more bytes of it"),
        Err(ReadError::NotPcap { magic: 0x464c_457f })
    ));
    let mut ethernet = write(&[]);
    ethernet[20] = 1;
    assert!(matches!(
        read(&ethernet),
        Err(ReadError::LinkType { link_type: 1 })
    ));
    assert!(matches!(read(&[]), Err(ReadError::Truncated)));
}

#[test]
fn a_record_of_another_type_is_named_and_ends_the_file() {
    let mut file = write(&[frame(vec![1]), frame(vec![2])]);
    file[24 + 16 + 8] = 0x80 | 21;
    let mut reader = Reader::new(file.as_slice()).unwrap();
    assert!(matches!(
        reader.next(),
        Some(Err(ReadError::RecordType { kind: 0x95 }))
    ));
    assert!(reader.next().is_none());
}

#[test]
fn a_record_that_claims_four_gigabytes_is_refused_before_memory_is_taken() {
    let mut file = write(&[frame(vec![1])]);
    file[24 + 8..24 + 12].fill(0xff);
    assert!(matches!(
        read(&file),
        Err(ReadError::RecordLength {
            captured: u32::MAX,
            ..
        })
    ));
}

#[test]
fn a_record_shorter_than_its_own_header_is_refused() {
    let mut file = write(&[frame(vec![1])]);
    file[24 + 16 + 10..24 + 16 + 12].fill(0);
    assert!(matches!(
        read(&file),
        Err(ReadError::RecordLength {
            captured: 17,
            record_length: 0
        })
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn what_is_written_is_read(frames in prop::collection::vec(any_frame(), 0..20)) {
        prop_assert_eq!(read(&write(&frames)).unwrap(), frames);
    }

    #[test]
    fn a_cut_file_gives_the_whole_frames_then_says_so(
        frames in prop::collection::vec(any_frame(), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let file = write(&frames);
        let cut = 24 + cut.index(file.len() - 24);
        let mut whole = 0;
        let mut at = 24;
        while let Some(frame) = frames.get(whole) && at + 32 + frame.bytes.len() <= cut {
            at += 32 + frame.bytes.len();
            whole += 1;
        }
        let mut reader = Reader::new(&file[..cut]).unwrap();
        for frame in &frames[..whole] {
            prop_assert_eq!(&reader.next().unwrap().unwrap(), frame);
        }
        match reader.next() {
            None => prop_assert_eq!(at, cut),
            Some(Err(ReadError::Truncated)) => prop_assert!(at < cut),
            other => prop_assert!(false, "{other:?}"),
        }
    }

    #[test]
    fn changed_bytes_never_panic_and_never_give_more_frames_than_fit(
        frames in prop::collection::vec(any_frame(), 0..8),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let mut file = write(&frames);
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if let Ok(reader) = Reader::new(file.as_slice()) {
            prop_assert!(reader.count() <= file.len() / 32 + 1);
        }
    }

    #[test]
    fn arbitrary_bytes_after_a_header_never_panic(tail in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut file = write(&[]);
        file.extend_from_slice(&tail);
        prop_assert!(Reader::new(file.as_slice()).unwrap().count() <= tail.len() / 32 + 1);
    }
}
