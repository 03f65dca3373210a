//! A message that is read from memory.

/// Bytes that are appended to a buffer whose bytes stay initialised from one message to the next, so that none is zeroed only to be
/// overwritten: of messages of 64 KiB that is a fourth of the time.
#[derive(Debug, Default)]
pub(in super::super) struct Gathered {
    buffer: Vec<u8>,
    len: usize,
}

impl Gathered {
    /// Makes an empty message in a buffer; its bytes are never shown.
    pub(in super::super) const fn in_buffer(buffer: Vec<u8>) -> Self {
        Self { buffer, len: 0 }
    }

    /// Returns the message.
    pub(in super::super) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    /// Returns the message as the buffer it is in.
    pub(in super::super) fn into_buffer(mut self) -> Vec<u8> {
        self.buffer.truncate(self.len);
        self.buffer
    }

    pub(in super::super) const fn clear(&mut self) {
        self.len = 0;
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
