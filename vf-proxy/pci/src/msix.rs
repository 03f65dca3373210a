//! Interrupts: the MSI-X table and its pending bits.
//!
//! # Who masks
//!
//! A VMM that keeps the MSI-X table itself (QEMU does for vfio-user) never lets the guest's writes to
//! it through, and holds masked vectors back itself. So as long as nothing was written to this table
//! every interrupt is signalled at once. From the first write on the guest is known to program *this*
//! table: then an interrupt that is masked here, by its vector, by the function mask or because MSI-X
//! is off, sets its pending bit, and is signalled when the mask goes.
//!
//! A message is a write to memory. A function that is no bus master sends none, whoever masks.

use std::collections::BTreeSet;

use super::MsixMessage;

/// Where the table is in its BAR.
pub(super) const TABLE_OFFSET: u32 = 0;
/// Where the pending bits are in the same BAR.
pub(super) const PBA_OFFSET: u32 = 0x1000;
/// Bytes of the BAR.
pub(super) const BAR_SIZE: u64 = 0x2000;
/// So many vectors fit before the pending bits.
pub(super) const MAX_VECTORS: u16 = 256;

/// Bytes of a table entry: message address (8), data, vector control.
const ENTRY: usize = 16;
/// Where an entry's vector control is.
const VECTOR_CONTROL: usize = 12;
/// Vector control: masked.
const MASKED: u8 = 1;

/// The table.
#[derive(Debug)]
pub(super) struct MsiX {
    table: Vec<u8>,
    /// Whether the guest programs this table.
    programmed: bool,
    /// Whether the function may write to memory.
    bus_master: bool,
    /// Enabled, and not masked as a whole.
    passes: bool,
    pending: BTreeSet<u16>,
    /// The messages when [`MsiX::changes`] looked last.
    seen: Vec<Option<MsixMessage>>,
}

impl MsiX {
    pub(super) fn new(vectors: u16) -> Self {
        let mut msix = Self {
            table: vec![0; usize::from(vectors) * ENTRY],
            programmed: false,
            bus_master: false,
            passes: false,
            pending: BTreeSet::new(),
            seen: vec![None; usize::from(vectors)],
        };
        msix.reset();
        msix
    }

    /// Puts everything back to what it was at first.
    pub(super) fn reset(&mut self) {
        self.table.fill(0);
        for entry in self.table.chunks_exact_mut(ENTRY) {
            entry[VECTOR_CONTROL] = MASKED;
        }
        (self.programmed, self.bus_master, self.passes) = (false, false, false);
        self.pending.clear();
    }

    /// Returns the message that signals a vector. `None` while anything holds the vector back, and as long as the guest
    /// has not programmed this table.
    pub(super) fn message(&self, vector: u16) -> Option<MsixMessage> {
        let entry = self.table.chunks_exact(ENTRY).nth(vector.into())?;
        let (address, rest) = entry.split_first_chunk()?;
        let (data, _) = rest.split_first_chunk()?;
        (self.programmed && self.passes_now(vector)).then(|| MsixMessage {
            address: u64::from_le_bytes(*address),
            data: u32::from_le_bytes(*data),
        })
    }

    /// Returns the vectors whose messages are others than at the last call.
    pub(super) fn changes(&mut self) -> Vec<u16> {
        let mut changed = Vec::new();
        for vector in 0..self.vectors() {
            let message = self.message(vector);
            let seen = &mut self.seen[usize::from(vector)];
            if *seen != message {
                *seen = message;
                changed.push(vector);
            }
        }
        changed
    }

    /// Vectors of the table.
    pub(super) fn vectors(&self) -> u16 {
        u16::try_from(self.table.len() / ENTRY).unwrap_or(MAX_VECTORS)
    }

    /// Raises an interrupt; gives whether to signal it now.
    pub(super) fn raise(&mut self, vector: u16) -> bool {
        if vector >= self.vectors() {
            return false;
        }
        let passes = self.passes_now(vector);
        if !passes {
            self.pending.insert(vector);
        }
        passes
    }

    /// Sets whether the function may send messages, and whether MSI-X lets any pass; gives the vectors to
    /// signal now.
    pub(super) fn set_passes(&mut self, bus_master: bool, passes: bool) -> Vec<u16> {
        (self.bus_master, self.passes) = (bus_master, passes);
        self.release()
    }

    /// Reads the BAR; what is not the table and not its pending bits reads as zeros.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) {
        for (byte, distance) in out.iter_mut().zip(0..) {
            *byte = offset.checked_add(distance).map_or(0, |at| self.byte(at));
        }
    }

    fn byte(&self, at: u64) -> u8 {
        match at.checked_sub(u64::from(PBA_OFFSET)) {
            None => usize::try_from(at)
                .ok()
                .and_then(|at| self.table.get(at))
                .copied()
                .unwrap_or(0),
            Some(at) => {
                let first = at.saturating_mul(8);
                (0..8_u8)
                    .filter(|bit| {
                        let vector = first.saturating_add(u64::from(*bit));
                        u16::try_from(vector).is_ok_and(|vector| self.pending.contains(&vector))
                    })
                    .fold(0, |byte, bit| byte | 1 << bit)
            }
        }
    }

    /// Writes the table; gives the vectors to signal now. Pending bits are read-only.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> Vec<u16> {
        let Ok(at) = usize::try_from(offset) else {
            return Vec::new();
        };
        for (to, from) in self.table.iter_mut().skip(at).zip(bytes) {
            *to = *from;
            self.programmed = true;
        }
        self.release()
    }

    /// Forgets interrupts that were raised.
    pub(super) fn forget_pending(&mut self) {
        self.pending.clear();
    }

    fn passes_now(&self, vector: u16) -> bool {
        let control = usize::from(vector) * ENTRY + VECTOR_CONTROL;
        let masked = self.table.get(control).is_none_or(|c| c & MASKED != 0);
        self.bus_master && (!self.programmed || (self.passes && !masked))
    }

    /// Takes the pending vectors that nothing holds back any more.
    fn release(&mut self) -> Vec<u16> {
        let pending = self.pending.iter().copied();
        let free: Vec<_> = pending.filter(|v| self.passes_now(*v)).collect();
        for vector in &free {
            self.pending.remove(vector);
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unmask(msix: &mut MsiX, vector: u64) -> Vec<u16> {
        msix.write(vector * 16 + 12, &[0; 4])
    }

    #[test]
    fn an_untouched_table_holds_nothing_back() {
        let mut msix = MsiX::new(4);
        msix.set_passes(true, false);
        assert!(msix.raise(3));
        assert!(!msix.raise(4), "there is no such vector");
    }

    #[test]
    fn a_function_that_is_no_bus_master_signals_later() {
        let mut msix = MsiX::new(4);
        assert!(!msix.raise(3));
        assert_eq!(msix.set_passes(false, true), []);
        assert_eq!(msix.set_passes(true, false), [3]);
        unmask(&mut msix, 1);
        assert_eq!(msix.set_passes(false, true), []);
        assert!(!msix.raise(1));
        assert_eq!(msix.set_passes(true, true), [1]);
    }

    #[test]
    fn a_masked_vector_becomes_pending_and_comes_when_it_is_unmasked() {
        let mut msix = MsiX::new(4);
        msix.set_passes(true, true);
        msix.write(0, &[0; 12]);
        assert!(!msix.raise(2));
        let mut pba = [0; 8];
        msix.read(0x1000, &mut pba);
        assert_eq!(pba, [4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(unmask(&mut msix, 1), []);
        assert_eq!(unmask(&mut msix, 2), [2]);
        msix.read(0x1000, &mut pba);
        assert_eq!(pba, [0; 8]);
        assert!(msix.raise(2));
    }

    #[test]
    fn a_function_mask_holds_every_vector_of_a_programmed_table_back() {
        let mut msix = MsiX::new(4);
        unmask(&mut msix, 0);
        unmask(&mut msix, 1);
        assert!(!msix.raise(0));
        assert!(!msix.raise(1));
        assert_eq!(msix.set_passes(true, true), [0, 1]);
        assert!(msix.raise(1));
    }

    #[test]
    fn a_vector_has_a_message_while_nothing_holds_it_back() {
        let mut msix = MsiX::new(4);
        assert_eq!(msix.set_passes(true, true), []);
        assert_eq!(msix.message(1), None, "nobody has programmed the table");
        msix.write(16, &0xfee0_1004_u64.to_le_bytes());
        msix.write(24, &0x31_u32.to_le_bytes());
        assert_eq!(msix.message(1), None, "masked");
        assert_eq!(msix.changes(), []);
        unmask(&mut msix, 1);
        let message = MsixMessage {
            address: 0xfee0_1004,
            data: 0x31,
        };
        assert_eq!(msix.message(1), Some(message));
        assert_eq!(msix.changes(), [1]);
        assert_eq!(msix.changes(), []);
        for holds_back in [(true, false), (false, true)] {
            msix.set_passes(holds_back.0, holds_back.1);
            assert_eq!((msix.message(1), msix.changes()), (None, vec![1]));
            msix.set_passes(true, true);
            assert_eq!((msix.message(1), msix.changes()), (Some(message), vec![1]));
        }
        msix.write(24, &0x32_u32.to_le_bytes());
        assert_eq!(msix.changes(), [1]);
        msix.reset();
        assert_eq!((msix.message(1), msix.changes()), (None, vec![1]));
        assert_eq!([msix.message(4), msix.message(u16::MAX)], [None; 2]);
    }

    #[test]
    fn forgotten_interrupts_do_not_come() {
        let mut msix = MsiX::new(4);
        unmask(&mut msix, 0);
        assert!(!msix.raise(0));
        msix.forget_pending();
        assert_eq!(msix.set_passes(true, true), []);
    }

    #[test]
    fn the_table_reads_back_and_its_surroundings_are_zero() {
        let mut msix = MsiX::new(2);
        msix.write(16, &0xfee0_1004_u64.to_le_bytes());
        msix.write(30, &[0xff; 8]);
        msix.write(u64::MAX, &[0xff; 8]);
        let mut entry = [0; 20];
        msix.read(16, &mut entry);
        assert_eq!(entry[..8], 0xfee0_1004_u64.to_le_bytes());
        assert_eq!(entry[14..], [0xff, 0xff, 0, 0, 0, 0]);
        msix.read(u64::MAX - 3, &mut entry);
        assert_eq!(entry, [0; 20]);
    }
}
