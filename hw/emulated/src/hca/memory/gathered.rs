//! A message that is read from memory, or stays there.

use hca_api::MrHandle;

/// Bytes of the least message that stays in memory: of a smaller one the second copy takes less time than the search for its pieces.
const LEAST: u64 = 4096;

/// A part of a message in its sender's address space.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Piece {
    /// Region, and the generation of its registration.
    pub(super) registration: (MrHandle, u64),
    pub(super) addr: u64,
    pub(super) len: usize,
}

/// Bytes that are appended to a buffer whose bytes stay initialised from one message to the next, so that none is zeroed only to be
/// overwritten: of messages of 64 KiB that is a fourth of the time.
#[derive(Debug, Default)]
pub(in super::super) struct Gathered {
    buffer: Vec<u8>,
    len: usize,
    /// Pieces in which the message stays in memory; then the buffer holds nothing of it.
    pieces: Vec<Piece>,
    may_stay: bool,
}

impl Gathered {
    /// Makes an empty message in a buffer; its bytes are never shown.
    pub(in super::super) const fn in_buffer(buffer: Vec<u8>) -> Self {
        Self {
            buffer,
            len: 0,
            pieces: Vec::new(),
            may_stay: false,
        }
    }

    /// Allows that the message stays in memory, if that is worth while.
    pub(in super::super) const fn allow_to_stay(&mut self, allowed: bool) {
        self.may_stay = allowed;
    }

    /// Returns `true` if a message of so many bytes may stay in memory.
    pub(in super::super) const fn may_stay(&self, len: u64) -> bool {
        self.may_stay && len >= LEAST
    }

    /// Appends a piece that stays in memory.
    pub(super) fn stay(&mut self, piece: Piece) {
        self.pieces.push(piece);
    }

    /// Returns the number of bytes of the message.
    pub(in super::super) fn len(&self) -> usize {
        self.len + self.pieces.iter().map(|piece| piece.len).sum::<usize>()
    }

    /// Returns the message.
    pub(in super::super) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    /// Returns the message as the buffer it is in.
    pub(in super::super) fn into_buffer(self) -> Vec<u8> {
        self.into_parts().0
    }

    /// Returns the message as the buffer or the pieces that it is in. The buffer of one in pieces is as it was.
    pub(in super::super) fn into_parts(mut self) -> (Vec<u8>, Vec<Piece>) {
        if self.pieces.is_empty() {
            self.buffer.truncate(self.len);
        }
        (self.buffer, self.pieces)
    }

    pub(in super::super) fn clear(&mut self) {
        self.len = 0;
        self.pieces.clear();
    }

    pub(in super::super) fn extend(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
    }

    /// Makes the message so many bytes longer, and returns their place; it holds bytes of any value.
    pub(in super::super) fn room(&mut self, len: usize) -> &mut [u8] {
        let end = self.len + len;
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        let place = &mut self.buffer[self.len..end];
        self.len = end;
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_shows_nothing_of_the_one_before_it_in_the_buffer() {
        let mut first = Gathered::default();
        first.extend(b"a long message");
        let mut second = Gathered::in_buffer(first.into_buffer());
        assert_eq!(second.bytes(), b"");
        second.extend(b"short");
        second.room(1)[0] = b'!';
        assert_eq!(second.bytes(), b"short!");
        assert_eq!(second.into_buffer(), b"short!");
    }
}
