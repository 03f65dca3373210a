//! The MSI-X table as the guest has written it. The service masks by its own copy; this one says with which message a vector is
//! signalled, and holds back vectors that were on their way when they were masked.

use std::collections::BTreeSet;

use vhca_device::MsixMessage;

/// Bytes of a table entry: message address (8), data (4), vector control (4).
const ENTRY: usize = 16;

/// Vector control: masked.
const MASKED: u8 = 1;

/// A vector and its message; `None` while it is masked.
pub(crate) type Change = (u16, Option<MsixMessage>);

/// The messages of a function's vectors.
#[derive(Debug)]
pub(crate) struct Messages {
    table: Vec<[u8; ENTRY]>,
    /// Messages are sent at all.
    sends: bool,
    /// Messages that the VMM has been given.
    given: Vec<Option<MsixMessage>>,
    /// Vectors that were signalled while they had no message.
    waiting: BTreeSet<u16>,
}

impl Messages {
    pub(crate) fn new(vectors: u16) -> Self {
        let vectors = usize::from(vectors);
        let mut messages = Self {
            table: vec![[0; ENTRY]; vectors],
            sends: false,
            given: vec![None; vectors],
            waiting: BTreeSet::new(),
        };
        messages.reset();
        messages
    }

    /// Puts the table back to its state after a reset, in which all vectors are masked, and forgets vectors that wait.
    pub(crate) fn reset(&mut self) {
        for entry in &mut self.table {
            *entry = [0; ENTRY];
            entry[12] = MASKED;
        }
        self.sends = false;
        self.waiting.clear();
    }

    /// Takes a write to the table, `offset` bytes behind its beginning.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let Ok(offset) = usize::try_from(offset) else {
            return;
        };
        let table = self.table.as_flattened_mut().iter_mut();
        for (to, from) in table.skip(offset).zip(bytes) {
            *to = *from;
        }
    }

    /// Sets if messages are sent at all.
    pub(crate) const fn set_sends(&mut self, sends: bool) {
        self.sends = sends;
    }

    /// Takes the messages that are others than those at the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        for (vector, (entry, given)) in (0..).zip(self.table.iter().zip(&mut self.given)) {
            let message = message(entry, self.sends);
            if *given != message {
                *given = message;
                changes.push((vector, message));
            }
        }
        changes
    }

    /// Returns the message by which a vector is to be signalled now. `None` if it waits until it has one.
    pub(crate) fn raise(&mut self, vector: u16) -> Option<MsixMessage> {
        let message = self.given.get(usize::from(vector)).copied().flatten();
        if message.is_none() {
            self.waiting.insert(vector);
        }
        message
    }

    /// Takes the vectors that waited and have a message now.
    pub(crate) fn take_released(&mut self) -> Vec<(u16, MsixMessage)> {
        let waiting = core::mem::take(&mut self.waiting);
        let mut released = Vec::new();
        for vector in waiting {
            if let Some(message) = self.raise(vector) {
                released.push((vector, message));
            }
        }
        released
    }
}

fn message(entry: &[u8; ENTRY], sends: bool) -> Option<MsixMessage> {
    let (address, rest) = entry.split_first_chunk()?;
    let (data, control) = rest.split_first_chunk()?;
    let is_masked = control.first().is_none_or(|byte| byte & MASKED != 0);
    (sends && !is_masked).then(|| MsixMessage {
        address: u64::from_le_bytes(*address),
        data: u32::from_le_bytes(*data),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: MsixMessage = MsixMessage {
        address: 0xfee0_1000,
        data: 0x41,
    };

    /// A table whose vector 1 has a message.
    fn messages() -> Messages {
        let mut messages = Messages::new(3);
        messages.write(16, &MESSAGE.address.to_le_bytes());
        messages.write(24, &MESSAGE.data.to_le_bytes());
        messages.write(28, &[0; 4]);
        messages.set_sends(true);
        assert_eq!(messages.take_changes(), [(1, Some(MESSAGE))]);
        messages
    }

    #[test]
    fn a_vector_is_signalled_with_the_message_that_the_vmm_has() {
        let mut messages = messages();
        assert_eq!(messages.raise(1), Some(MESSAGE));
        messages.write(24, &[0x42]);
        assert_eq!(
            messages.raise(1),
            Some(MESSAGE),
            "until the VMM has the new one"
        );
        let new = MsixMessage {
            data: 0x42,
            ..MESSAGE
        };
        assert_eq!(messages.take_changes(), [(1, Some(new))]);
        assert_eq!(messages.raise(1), Some(new));
        assert!(messages.take_changes().is_empty());
    }

    #[test]
    fn a_vector_that_was_masked_on_its_way_comes_when_it_is_unmasked() {
        let mut messages = messages();
        messages.write(28, &[1]);
        assert_eq!(messages.take_changes(), [(1, None)]);
        assert_eq!(messages.raise(1), None);
        assert!(messages.take_released().is_empty());
        messages.write(28, &[0]);
        assert_eq!(messages.take_changes(), [(1, Some(MESSAGE))]);
        assert_eq!(messages.take_released(), [(1, MESSAGE)]);
        assert!(messages.take_released().is_empty());
    }

    #[test]
    fn a_reset_masks_all_and_forgets_what_waited() {
        let mut messages = messages();
        assert_eq!(messages.raise(0), None);
        messages.reset();
        messages.set_sends(true);
        assert_eq!(messages.take_changes(), [(1, None)]);
        messages.write(12, &[0]);
        assert_eq!(messages.take_changes().len(), 1);
        assert!(messages.take_released().is_empty());
    }

    #[test]
    fn writes_and_vectors_beyond_the_table_do_nothing() {
        let mut messages = messages();
        for offset in [48, 47, u64::MAX] {
            messages.write(offset, &[0xff; 8]);
        }
        assert!(messages.take_changes().is_empty());
        assert_eq!(messages.raise(77), None);
        assert!(messages.take_released().is_empty());
    }
}
