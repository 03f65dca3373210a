//! Bytes of the stream, cut into records.

use zerocopy::FromBytes;

use crate::close::CloseReason;
use crate::record::Header;

/// Bytes that came and are not a whole record yet.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    bytes: Vec<u8>,
    /// Bytes at the start that were read.
    read: usize,
}

impl Incoming {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.read);
        self.read = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next record, with a body of at most `most` bytes.
    ///
    /// # Errors
    /// [`CloseReason::Garbage`] for a longer one, as soon as its header is there.
    pub(crate) fn next(&mut self, most: usize) -> Result<Option<(Header, &[u8])>, CloseReason> {
        let rest = self.bytes.get(self.read..).unwrap_or_default();
        let Ok((header, behind)) = Header::read_from_prefix(rest) else {
            return Ok(None);
        };
        let length = header.length();
        if length > most {
            return Err(CloseReason::Garbage);
        }
        if behind.len() < length {
            return Ok(None);
        }
        let start = self.read + Header::SIZE;
        self.read = start + length;
        Ok(Some((
            header,
            self.bytes.get(start..self.read).unwrap_or_default(),
        )))
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
