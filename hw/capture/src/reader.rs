//! Reading capture files, including hostile ones.

use std::io::{self, Read};

use thiserror::Error;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::format::{
    ERF_HEADER_LEN, ERF_TYPE_INFINIBAND, ErfHeader, FileHeader, LINK_TYPE_ERF, MAGIC_MICROS,
    MAGIC_NANOS, RecordHeader, from_timestamp,
};
use crate::{FrameRecord, Interface};

/// The longest pcap record that the reader takes: the longest ERF record.
const MAX_RECORD_LEN: usize = u16::MAX as usize;

/// Why a file cannot be read, or not further.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The source failed.
    #[error("cannot read the capture")]
    Io(#[from] io::Error),
    /// The file does not start with a pcap header of either byte order.
    #[error("not a pcap file (magic 0x{magic:08x})")]
    NotPcap {
        /// The first four bytes, read as little endian.
        magic: u32,
    },
    /// A pcap file, but not of ERF records.
    #[error("pcap link type {link_type} is not ERF ({LINK_TYPE_ERF})")]
    LinkType {
        /// The file's link type.
        link_type: u32,
    },
    /// The file ends within a header or a record.
    #[error("the capture ends in the middle of a record")]
    Truncated,
    /// A record that does not hold a plain InfiniBand frame.
    #[error("ERF record type {kind} is not InfiniBand ({ERF_TYPE_INFINIBAND}) without extensions")]
    RecordType {
        /// The record's type byte.
        kind: u8,
    },
    /// Lengths that contradict each other or the format's limits.
    #[error("a record of {captured} bytes with ERF length {record_length} is malformed")]
    RecordLength {
        /// Bytes that the pcap header announces.
        captured: u32,
        /// Bytes that the ERF header announces; 0 if it was not read.
        record_length: u16,
    },
}

/// Reads the frames of a capture file, one after the other.
///
/// The bytes are trusted with nothing: memory is bounded by one record of at most 64 KiB, and whatever
/// is wrong with the file is a [`ReadError`], after which the iterator ends. A frame that was cut when
/// it was captured is given as far as it goes.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    big_endian: bool,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the file header.
    ///
    /// # Errors
    /// [`ReadError::Io`], [`ReadError::Truncated`], [`ReadError::NotPcap`] or
    /// [`ReadError::LinkType`].
    pub fn new(mut source: R) -> Result<Self, ReadError> {
        let mut header = FileHeader::new_zeroed();
        if fill(&mut source, header.as_mut_bytes())? != size_of::<FileHeader>() {
            return Err(ReadError::Truncated);
        }
        let magic = header.magic.get();
        let big_endian = match (magic, magic.swap_bytes()) {
            (MAGIC_MICROS | MAGIC_NANOS, _) => false,
            (_, MAGIC_MICROS | MAGIC_NANOS) => true,
            _ => return Err(ReadError::NotPcap { magic }),
        };
        let reader = Self {
            source,
            big_endian,
            ended: false,
        };
        match reader.host_order(header.link_type.get()) {
            LINK_TYPE_ERF => Ok(reader),
            link_type => Err(ReadError::LinkType { link_type }),
        }
    }

    const fn host_order(&self, read_as_little_endian: u32) -> u32 {
        if self.big_endian {
            read_as_little_endian.swap_bytes()
        } else {
            read_as_little_endian
        }
    }

    /// The next frame; `None` at a clean end of the file.
    fn read_frame(&mut self) -> Result<Option<FrameRecord>, ReadError> {
        let mut header = RecordHeader::new_zeroed();
        match fill(&mut self.source, header.as_mut_bytes())? {
            0 => return Ok(None),
            n if n < size_of::<RecordHeader>() => return Err(ReadError::Truncated),
            _ => {}
        }
        let captured = self.host_order(header.captured.get());
        let malformed = |record_length| ReadError::RecordLength {
            captured,
            record_length,
        };
        let len = usize::try_from(captured)
            .ok()
            .filter(|len| (ERF_HEADER_LEN..=MAX_RECORD_LEN).contains(len))
            .ok_or_else(|| malformed(0))?;

        let mut record = vec![0; len];
        if fill(&mut self.source, &mut record)? != len {
            return Err(ReadError::Truncated);
        }
        let (erf, frame) = ErfHeader::read_from_prefix(&record).map_err(|_| malformed(0))?;
        if erf.kind != ERF_TYPE_INFINIBAND {
            return Err(ReadError::RecordType { kind: erf.kind });
        }
        let frame_and_padding = usize::from(erf.record_length.get())
            .checked_sub(ERF_HEADER_LEN)
            .ok_or_else(|| malformed(erf.record_length.get()))?;
        let kept = frame
            .len()
            .min(frame_and_padding)
            .min(usize::from(erf.wire_length.get()));
        Ok(Some(FrameRecord {
            time: from_timestamp(erf.timestamp.get()),
            interface: Interface::from_low_bits(erf.flags),
            bytes: frame[..kept].to_vec(),
        }))
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<FrameRecord, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let frame = self.read_frame().transpose();
        self.ended = !matches!(frame, Some(Ok(_)));
        frame
    }
}

/// Reads until `buf` is full or the source ends, and gives the number of bytes read.
fn fill(source: &mut impl Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buf.len() {
        match source.read(&mut buf[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
