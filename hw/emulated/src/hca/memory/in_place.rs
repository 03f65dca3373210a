//! Messages that stay in the sender's memory until they are copied to their place at the receiver.

use core::ops::Range;

use hca_api::{AccessFlags, AddressSpace, Cause, DmaFault, PdHandle, Sge};

use super::{Gathered, Memory, Piece, ProtectionFault, owner, parts, usable};

/// The payload of packets that arrived.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Arrived<'a> {
    /// The bytes, which the packets carried.
    Bytes(&'a [u8]),
    /// Bytes in the sender's memory.
    InPlace(&'a dyn AddressSpace, &'a [Piece], Part),
}

/// A part of a message in pieces.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Part {
    /// Bytes of the pieces before it.
    start: usize,
    len: usize,
}

impl<'a> Arrived<'a> {
    /// No bytes.
    pub(in super::super) const NONE: Self = Self::Bytes(&[]);

    /// Returns the number of bytes.
    pub(in super::super) const fn len(self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::InPlace(_, _, part) => part.len,
        }
    }

    /// Returns 8 bytes, or `None` if these are not 8 that packets carried: so few never stay in the sender's memory.
    pub(in super::super) fn word(self) -> Option<[u8; 8]> {
        match self {
            Self::Bytes(bytes) => bytes.try_into().ok(),
            Self::InPlace(..) => None,
        }
    }

    /// Returns a range of the bytes, or `None` if it is longer than these.
    pub(in super::super) fn get(self, range: Range<usize>) -> Option<Self> {
        match self {
            Self::Bytes(bytes) => bytes.get(range).map(Self::Bytes),
            Self::InPlace(space, pieces, part) => {
                let len = range.end.checked_sub(range.start)?;
                let start = part.start + range.start;
                (range.end <= part.len).then_some(Self::InPlace(space, pieces, Part { start, len }))
            }
        }
    }

    /// Returns the first bytes and the rest, or `None` if there are fewer.
    pub(super) fn split_at_checked(self, at: usize) -> Option<(Self, Self)> {
        Some((self.get(0..at)?, self.get(at..self.len())?))
    }

    /// Splits the bytes behind the first `at`. The second part is empty if there are fewer.
    pub(super) fn split_at(self, at: usize) -> (Self, Self) {
        self.split_at_checked(at).unwrap_or((self, Self::NONE))
    }

    /// Copies the bytes to an address.
    pub(super) fn store(self, space: &mut dyn AddressSpace, addr: u64) -> Result<(), DmaFault> {
        let (from, pieces, part) = match self {
            Self::Bytes(bytes) => return space.write(addr, bytes),
            Self::InPlace(from, pieces, part) => (from, pieces, part),
        };
        let (mut skip, mut left, mut addr) = (part.start, part.len, addr);
        for piece in pieces {
            let skipped = piece.len.min(skip);
            skip -= skipped;
            let len = (piece.len - skipped).min(left);
            if len != 0 {
                space.copy_from(addr, (from, piece.addr + skipped as u64), len)?;
                left -= len;
                addr = addr.wrapping_add(len as u64);
            }
        }
        Ok(())
    }
}

impl Memory {
    /// Finds the places of a range of the bytes that a list names. Returns `false` if bytes are not mapped, or are not memory.
    ///
    /// # Errors
    /// As [`Memory::gather`].
    pub(in super::super) fn find_range(
        &self,
        pd: PdHandle,
        sges: &[Sge],
        range: &Range<u64>,
        out: &mut Gathered,
    ) -> Result<bool, ProtectionFault> {
        let mut mapped = true;
        for part in parts(sges, range) {
            let mr = owner(&self.keys, part.lkey)?;
            let region = usable(&self.regions, mr, pd, part.lkey, AccessFlags::empty())?;
            region.pieces(part.addr, part.len.into(), |addr, len| {
                mapped = mapped && self.space.is_mapped(addr, len);
                out.stay(Piece {
                    registration: (mr, region.generation),
                    addr,
                    len,
                });
                Ok(())
            })?;
        }
        Ok(mapped)
    }

    /// Returns `true` if the registration of a piece has not ended.
    fn is_registered(&self, piece: &Piece) -> bool {
        let (mr, generation) = piece.registration;
        let region = self.regions.get(mr.0 as usize);
        region.is_some_and(|region| region.generation == generation)
    }

    /// Returns a message in this memory, or `None` if its owner ended a registration or unmapped a piece.
    pub(in super::super) fn in_place<'a>(&'a self, pieces: &'a [Piece]) -> Option<Arrived<'a>> {
        let is_there = |piece: &Piece| {
            self.is_registered(piece) && self.space.is_mapped(piece.addr, piece.len)
        };
        let len = pieces.iter().map(|piece| piece.len).sum();
        let whole = Part { start: 0, len };
        let there = pieces.iter().all(is_there);
        there.then_some(Arrived::InPlace(&self.space, pieces, whole))
    }

    /// Copies a message that stayed in this memory.
    ///
    /// # Errors
    /// A registration has ended, or the address space lacks the bytes.
    pub(in super::super) fn read_pieces(
        &self,
        pieces: &[Piece],
    ) -> Result<Vec<u8>, ProtectionFault> {
        let mut out = Gathered::default();
        for piece in pieces {
            if !self.is_registered(piece) {
                return Err(ProtectionFault(Cause::NotValid));
            }
            self.space.read(piece.addr, out.room(piece.len))?;
        }
        Ok(out.into_buffer())
    }
}
