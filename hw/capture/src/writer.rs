//! Writing capture files.

use std::io::{self, Write};

use ib_vtime::Instant;
use thiserror::Error;
use zerocopy::{FromZeros, IntoBytes};

use crate::format::{
    ERF_FLAG_VARYING_LENGTH, ERF_HEADER_LEN, ERF_TYPE_INFINIBAND, ErfHeader, FileHeader,
    LINK_TYPE_ERF, MAGIC_NANOS, RecordHeader, split_seconds, to_timestamp,
};
use crate::{FrameRecord, Interface, MAX_FRAME_LEN};

/// Why a frame was not written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The destination failed; a full disk is [`io::ErrorKind::StorageFull`]. The capture has stopped.
    #[error("cannot write the capture")]
    Io(#[from] io::Error),
    /// An earlier write failed, so nothing more is written: what follows would be unreadable.
    #[error("the capture stopped when an earlier write failed")]
    Stopped,
    /// The frame is longer than [`MAX_FRAME_LEN`]. The capture goes on.
    #[error("a frame of {len} bytes is longer than a record can hold ({MAX_FRAME_LEN})")]
    FrameTooLong {
        /// The frame's length.
        len: usize,
    },
    /// The time is 2^32 seconds (136 years) or more after the origin. The capture goes on.
    #[error("{0} is past the last time that a capture can hold")]
    TimeOutOfRange(Instant),
}

/// Writes a capture file.
///
/// Each frame reaches the destination in a single `write_all`, so a failing destination cuts the file
/// within one record at most. The writer does not buffer; wrap a file in [`std::io::BufWriter`] and
/// call [`Writer::finish`] to see the errors of its last flush.
#[derive(Debug)]
pub struct Writer<W> {
    destination: W,
    record: Vec<u8>,
    frames: u64,
    failed: bool,
}

impl<W: Write> Writer<W> {
    /// Starts a capture: writes the file header.
    ///
    /// # Errors
    /// [`WriteError::Io`].
    pub fn new(mut destination: W) -> Result<Self, WriteError> {
        let header = FileHeader {
            magic: MAGIC_NANOS.into(),
            version_major: 2.into(),
            version_minor: 4.into(),
            snap_length: u32::from(u16::MAX).into(),
            link_type: LINK_TYPE_ERF.into(),
            ..FileHeader::new_zeroed()
        };
        destination.write_all(header.as_bytes())?;
        Ok(Self {
            destination,
            record: Vec::new(),
            frames: 0,
            failed: false,
        })
    }

    /// Writes a frame, given from its LRH through its VCRC. Times should not decrease: Wireshark
    /// shows frames in the order of the file.
    ///
    /// # Errors
    /// Any [`WriteError`]. After [`WriteError::Io`] every call gives [`WriteError::Stopped`].
    pub fn write(
        &mut self,
        time: Instant,
        interface: Interface,
        frame: &[u8],
    ) -> Result<(), WriteError> {
        if self.failed {
            return Err(WriteError::Stopped);
        }
        self.encode(time, interface, frame)?;
        if let Err(error) = self.destination.write_all(&self.record) {
            self.failed = true;
            return Err(error.into());
        }
        self.frames += 1;
        Ok(())
    }

    /// Writes a frame record.
    ///
    /// # Errors
    /// As [`Writer::write`].
    pub fn write_record(&mut self, record: &FrameRecord) -> Result<(), WriteError> {
        self.write(record.time, record.interface, &record.bytes)
    }

    /// Frames written so far.
    #[must_use]
    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// The destination, which holds whole records: to take them from a buffer.
    pub const fn destination_mut(&mut self) -> &mut W {
        &mut self.destination
    }

    /// Flushes and gives the destination back.
    ///
    /// # Errors
    /// [`WriteError::Io`], or [`WriteError::Stopped`] if an earlier write failed.
    pub fn finish(mut self) -> Result<W, WriteError> {
        if self.failed {
            return Err(WriteError::Stopped);
        }
        self.destination.flush()?;
        Ok(self.destination)
    }

    /// Fills `self.record` with the frame's pcap record.
    fn encode(
        &mut self,
        time: Instant,
        interface: Interface,
        frame: &[u8],
    ) -> Result<(), WriteError> {
        let too_long = || WriteError::FrameTooLong { len: frame.len() };
        let wire_length = u16::try_from(frame.len()).map_err(|_| too_long())?;
        let record_length = u16::try_from(ERF_HEADER_LEN + frame.len()).map_err(|_| too_long())?;
        let (seconds, nanos) = split_seconds(time);
        let seconds = u32::try_from(seconds).map_err(|_| WriteError::TimeOutOfRange(time))?;

        let record = RecordHeader {
            seconds: seconds.into(),
            fraction: nanos.into(),
            captured: u32::from(record_length).into(),
            original: u32::from(record_length).into(),
        };
        let erf = ErfHeader {
            timestamp: to_timestamp(seconds, nanos).into(),
            kind: ERF_TYPE_INFINIBAND,
            flags: ERF_FLAG_VARYING_LENGTH | interface.get(),
            record_length: record_length.into(),
            loss_counter: 0.into(),
            wire_length: wire_length.into(),
        };
        self.record.clear();
        self.record.extend_from_slice(record.as_bytes());
        self.record.extend_from_slice(erf.as_bytes());
        self.record.extend_from_slice(frame);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes, then is full.
    struct Disk {
        free: usize,
        taken: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            let n = buf.len().min(self.free - self.taken.len());
            if n == 0 && !buf.is_empty() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.taken.extend_from_slice(&buf[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn disk(free: usize) -> Disk {
        Disk {
            free,
            taken: Vec::new(),
        }
    }

    #[test]
    fn a_file_of_two_frames_equals_the_hand_made_bytes() {
        let mut writer = Writer::new(Vec::new()).unwrap();
        writer
            .write(
                Instant::from_nanos(1_500_000_000),
                Interface::default(),
                &[0xaa, 0xbb, 0xcc],
            )
            .unwrap();
        writer
            .write(
                Instant::from_nanos(0x1_0000_0002 * 500_000_000),
                Interface::MAX,
                &[],
            )
            .unwrap();
        assert_eq!(writer.frames(), 2);
        #[rustfmt::skip]
        let expected = [
            // File: magic, version 2.4, zone, accuracy, snap length 65535, link type 197.
            0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 197, 0, 0, 0,
            // Record: 1 s, 500,000,000 ns, 19 bytes captured of 19.
            1, 0, 0, 0, 0x00, 0x65, 0xcd, 0x1d, 19, 0, 0, 0, 19, 0, 0, 0,
            // ERF: 1.5 s as 32.32 little endian, type 21, interface 0, lengths big endian.
            0, 0, 0, 0x80, 1, 0, 0, 0, 21, 0x04, 0, 19, 0, 0, 0, 3,
            0xaa, 0xbb, 0xcc,
            // Record: 0x80000001 s, empty frame on interface 3.
            1, 0, 0, 0x80, 0, 0, 0, 0, 16, 0, 0, 0, 16, 0, 0, 0,
            0, 0, 0, 0, 1, 0, 0, 0x80, 21, 0x07, 0, 16, 0, 0, 0, 0,
        ];
        assert_eq!(writer.finish().unwrap(), expected);
    }

    #[test]
    fn a_full_disk_is_reported_once_and_nothing_follows() {
        let mut writer = Writer::new(disk(24 + 40)).unwrap();
        let at = Instant::ZERO;
        writer.write(at, Interface::default(), &[1; 8]).unwrap();
        let Err(WriteError::Io(error)) = writer.write(at, Interface::default(), &[2; 8]) else {
            panic!("the disk is full");
        };
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(matches!(
            writer.write(at, Interface::default(), &[3; 8]),
            Err(WriteError::Stopped)
        ));
        assert_eq!(writer.frames(), 1);
        assert_eq!(writer.destination.taken.len(), 24 + 40);
        assert!(matches!(writer.finish(), Err(WriteError::Stopped)));
    }

    #[test]
    fn a_disk_too_small_for_the_header_is_reported_at_the_start() {
        assert!(matches!(Writer::new(disk(10)), Err(WriteError::Io(_))));
    }

    #[test]
    fn a_frame_too_long_or_too_late_is_refused_and_the_capture_goes_on() {
        let mut writer = Writer::new(Vec::new()).unwrap();
        let at = Instant::ZERO;
        for len in [MAX_FRAME_LEN + 1, 1 << 17] {
            assert!(matches!(
                writer.write(at, Interface::default(), &vec![0; len]),
                Err(WriteError::FrameTooLong { len: reported }) if reported == len
            ));
        }
        assert!(matches!(
            writer.write(Instant::FAR_FUTURE, Interface::default(), &[0; 8]),
            Err(WriteError::TimeOutOfRange(Instant::FAR_FUTURE))
        ));
        writer
            .write(at, Interface::default(), &vec![0; MAX_FRAME_LEN])
            .unwrap();
        assert_eq!(writer.frames(), 1);
    }
}
