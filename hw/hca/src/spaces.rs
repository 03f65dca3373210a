//! An address space made of several.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::any::Any;

use crate::{AddressSpace, DmaBuffer, DmaFault, FileRun, HcaError, HostMemory};

/// Bits of an address within one of several address spaces.
const BITS: u32 = 48;

/// First address behind each of the address spaces, in its own count.
const END: u64 = 1 << BITS;

/// The number of an address space among [`Spaces`]: bits 48 and up of its addresses there. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(u16);

impl SpaceId {
    /// Returns the address, among the [`Spaces`], of a byte of this one. `None` if `addr` is 2^48 or more.
    #[must_use]
    pub fn address(self, addr: u64) -> Option<u64> {
        (addr < END).then_some(u64::from(self.0) << BITS | addr)
    }
}

/// An address space of several, of which bits 48 and up of an address choose one and the bits below are the address there.
///
/// The consumer's own buffers are at the addresses below 2^48. The number of a space that was removed is given out again
/// only when all the others were, so that a stale address faults. So do accesses that go from one space into the next.
#[derive(Debug, Default)]
pub struct Spaces {
    own: HostMemory,
    others: BTreeMap<SpaceId, Box<dyn AddressSpace>>,
    closed: BTreeSet<SpaceId>,
    /// The number that was given out last; 0 at first.
    last: u16,
}

impl Spaces {
    /// An address space of the consumer's own buffers alone.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an address space.
    ///
    /// # Errors
    /// [`HcaError::InsufficientResources`] if there are 65,535 already.
    pub fn add(&mut self, space: Box<dyn AddressSpace>) -> Result<SpaceId, HcaError> {
        let mut numbers = (self.last..u16::MAX).chain(0..self.last);
        let free = numbers.find_map(|before| {
            let id = SpaceId(before + 1);
            (!self.others.contains_key(&id)).then_some(id)
        });
        let id = free.ok_or(HcaError::InsufficientResources)?;
        self.last = id.0;
        self.others.insert(id, space);
        Ok(id)
    }

    /// Removes an address space, and returns it. Its addresses fault from now on.
    pub fn remove(&mut self, id: SpaceId) -> Option<Box<dyn AddressSpace>> {
        self.closed.remove(&id);
        self.others.remove(&id)
    }

    /// Returns an address space, at its own addresses and closed or not. `None` if there is none of the number.
    pub fn get_mut(&mut self, id: SpaceId) -> Option<&mut dyn AddressSpace> {
        match self.others.get_mut(&id) {
            Some(space) => Some(space.as_mut()),
            None => None,
        }
    }

    /// Opens or closes an address space. Every access to a closed one faults. Each is open at first.
    pub fn set_open(&mut self, id: SpaceId, open: bool) {
        if open || !self.others.contains_key(&id) {
            self.closed.remove(&id);
        } else {
            self.closed.insert(id);
        }
    }

    /// Splits an address as [`split`] does, unless its space is closed.
    fn split_open(&self, addr: u64, len: usize) -> Result<(SpaceId, u64), DmaFault> {
        let (id, within) = split(addr, len)?;
        if self.closed.contains(&id) {
            return Err(DmaFault { addr, len });
        }
        Ok((id, within))
    }

    /// Returns the space in which a range of bytes is, and the address of the first one there.
    fn find(&self, addr: u64, len: usize) -> Result<(&dyn AddressSpace, u64), DmaFault> {
        let (id, within) = self.split_open(addr, len)?;
        match self.others.get(&id) {
            Some(space) => Ok((space.as_ref(), within)),
            None if id == SpaceId(0) => Ok((&self.own, within)),
            None => Err(DmaFault { addr, len }),
        }
    }

    /// As [`Self::find`], to be written.
    fn find_mut(
        &mut self,
        addr: u64,
        len: usize,
    ) -> Result<(&mut dyn AddressSpace, u64), DmaFault> {
        let (id, within) = self.split_open(addr, len)?;
        match self.others.get_mut(&id) {
            Some(space) => Ok((space.as_mut(), within)),
            None if id == SpaceId(0) => Ok((&mut self.own, within)),
            None => Err(DmaFault { addr, len }),
        }
    }
}

/// Splits an address into the number of its space, 0 for the consumer's own, and the address there.
fn split(addr: u64, len: usize) -> Result<(SpaceId, u64), DmaFault> {
    let fault = DmaFault { addr, len };
    let id = u16::try_from(addr >> BITS).map_err(|_| fault)?;
    let within = addr % END;
    let left = END - within;
    match u64::try_from(len) {
        Ok(len) if len <= left => Ok((SpaceId(id), within)),
        _ => Err(fault),
    }
}

impl AddressSpace for Spaces {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let len = buf.len();
        let (space, within) = self.find(addr, len)?;
        let read = space.read(within, buf);
        read.map_err(|_| DmaFault { addr, len })
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        let len = bytes.len();
        let (space, within) = self.find_mut(addr, len)?;
        let written = space.write(within, bytes);
        written.map_err(|_| DmaFault { addr, len })
    }

    fn update_u64(
        &mut self,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        let (space, within) = self.find_mut(addr, 8)?;
        let updated = space.update_u64(within, update);
        updated.map_err(|_| DmaFault { addr, len: 8 })
    }

    fn is_mapped(&self, addr: u64, len: usize) -> bool {
        let found = self.find(addr, len);
        found.is_ok_and(|(space, within)| space.is_mapped(within, len))
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn copy_from(
        &mut self,
        addr: u64,
        (source, from): (&dyn AddressSpace, u64),
        len: usize,
    ) -> Result<(), DmaFault> {
        let several = source.as_any().and_then(|any| any.downcast_ref::<Self>());
        // The space behind it may be one from which this one's copies without a buffer.
        let source = match several {
            Some(spaces) => spaces.find(from, len)?,
            None => (source, from),
        };
        let (space, within) = self.find_mut(addr, len)?;
        let copied = space.copy_from(within, source, len);
        copied.map_err(|_| DmaFault { addr, len })
    }

    fn runs(&self, addr: u64, len: u64) -> Option<Vec<FileRun>> {
        let (space, within) = self.find(addr, usize::try_from(len).ok()?).ok()?;
        space.runs(within, len)
    }

    fn allocate(&mut self, len: usize) -> Result<DmaBuffer, HcaError> {
        let buffer = self.own.allocate(len)?;
        if split(buffer.addr, len).is_ok_and(|(id, _)| id == SpaceId(0)) {
            return Ok(buffer);
        }
        self.own.free(buffer);
        Err(HcaError::InsufficientResources)
    }

    fn free(&mut self, buffer: DmaBuffer) {
        self.own.free(buffer);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    /// Returns memory with a buffer, and its address.
    fn memory(len: usize) -> (Box<HostMemory>, u64) {
        let mut memory = Box::new(HostMemory::new());
        let addr = memory.allocate(len).unwrap().addr;
        (memory, addr)
    }

    fn with_one(len: usize) -> (Spaces, u64) {
        let mut spaces = Spaces::new();
        let (memory, addr) = memory(len);
        let id = spaces.add(memory).unwrap();
        (spaces, id.address(addr).unwrap())
    }

    #[test]
    fn own_buffers_are_below_the_others_and_freed_ones_fault() {
        let (mut spaces, addr) = with_one(8);
        let own = spaces.allocate(8).unwrap();
        assert!(own.addr < END && addr >= END);
        spaces.write(own.addr, b"the own ").unwrap();
        spaces.write(addr, b"another ").unwrap();
        let mut bytes = [0; 8];
        spaces.read(own.addr, &mut bytes).unwrap();
        assert_eq!(&bytes, b"the own ");
        spaces.free(DmaBuffer { addr, len: 8 });
        spaces.free(own);
        assert!(spaces.read(own.addr, &mut bytes).is_err());
        spaces.read(addr, &mut bytes).unwrap();
        assert_eq!(&bytes, b"another ");
    }

    #[test]
    fn the_number_of_a_removed_space_comes_again_when_all_others_did() {
        let mut spaces = Spaces::new();
        let first = spaces.add(memory(1).0).unwrap();
        spaces.remove(first).unwrap();
        assert!(spaces.remove(first).is_none());
        for _ in 1..u16::MAX {
            let id = spaces.add(memory(1).0).unwrap();
            assert_ne!(id, first);
        }
        assert_eq!(spaces.add(memory(1).0), Ok(first));
        assert_eq!(
            spaces.add(memory(1).0),
            Err(HcaError::InsufficientResources)
        );
        let some = SpaceId(777);
        spaces.remove(some).unwrap();
        assert_eq!(spaces.add(memory(1).0), Ok(some));
    }

    #[test]
    fn an_access_that_leaves_its_space_faults() {
        let (mut spaces, addr) = with_one(16);
        let last = addr | (END - 1);
        for (addr, len) in [(addr + 9, 8), (last, 2), (last, 0x10_0000), (u64::MAX, 9)] {
            let fault = Err(DmaFault { addr, len });
            assert_eq!(spaces.write(addr, &vec![0; len]), fault);
            assert_eq!(spaces.read(addr, &mut vec![0; len]), fault);
            assert!(!spaces.is_mapped(addr, len));
        }
        assert_eq!(SpaceId(1).address(END), None);
        assert_eq!(spaces.update_u64(addr + 8, &mut |old| old + 5), Ok(0));
        assert_eq!(spaces.update_u64(addr + 8, &mut |old| old), Ok(5));
        let fault = DmaFault {
            addr: addr + 4,
            len: 8,
        };
        assert_eq!(spaces.update_u64(addr + 4, &mut |old| old), Err(fault));
    }

    #[test]
    fn a_closed_space_faults_until_it_is_opened() {
        let (mut spaces, addr) = with_one(8);
        for open in [false, true] {
            spaces.set_open(SpaceId(1), open);
            assert_eq!(spaces.write(addr, &[1; 8]).is_ok(), open);
            assert_eq!(spaces.read(addr, &mut [0; 8]).is_ok(), open);
            assert_eq!(spaces.update_u64(addr, &mut |old| old).is_ok(), open);
        }
        spaces.set_open(SpaceId(1), false);
        let mut taken = spaces.remove(SpaceId(1)).unwrap();
        assert_eq!(taken.read(addr % END, &mut [0; 8]), Ok(()));
        spaces.set_open(SpaceId(1), false);
        assert!(spaces.closed.is_empty());
        assert_eq!(spaces.get_mut(SpaceId(1)).map(|_| ()), None);
        taken.allocate(1).unwrap();
    }

    #[test]
    fn bytes_are_copied_between_spaces_of_several_and_of_one() {
        let (mut to, addr) = with_one(100);
        let (mut from, source) = with_one(100);
        from.write(source, &[7; 100]).unwrap();
        to.copy_from(addr, (&from, source), 60).unwrap();
        let (mut plain, at) = memory(40);
        plain.write(at, &[9; 40]).unwrap();
        to.copy_from(addr + 60, (plain.as_ref(), at), 40).unwrap();
        let mut bytes = [0; 100];
        to.read(addr, &mut bytes).unwrap();
        assert_eq!((&bytes[..60], &bytes[60..]), (&[7; 60][..], &[9; 40][..]));
        assert!(to.copy_from(addr, (&from, source + 41), 60).is_err());
        let fault = Err(DmaFault {
            addr: addr + 41,
            len: 60,
        });
        assert_eq!(to.copy_from(addr + 41, (&from, source), 60), fault);
        assert!(to.is_mapped(addr, 100) && !to.is_mapped(source + END, 1));
    }

    proptest! {
        #[test]
        fn each_space_holds_what_was_written_to_it_until_it_is_removed(
            steps in prop::collection::vec((0_u8..4, any::<prop::sample::Index>(), 0_usize..40, any::<u8>()), 1..120)
        ) {
            let mut spaces = Spaces::new();
            let mut model: Vec<(SpaceId, u64, Vec<u8>)> = Vec::new();
            let mut stale = Vec::new();
            for (step, index, at, byte) in steps {
                if step == 0 || model.is_empty() {
                    let (memory, addr) = memory(40);
                    let id = spaces.add(memory).unwrap();
                    model.push((id, id.address(addr).unwrap(), vec![0; 40]));
                } else if step == 1 {
                    let (id, addr, _) = model.swap_remove(index.index(model.len()));
                    spaces.remove(id).unwrap();
                    stale.push(addr);
                } else {
                    let place = index.index(model.len());
                    let (_, addr, bytes) = &mut model[place];
                    bytes[at] = byte;
                    spaces.write(*addr + at as u64, &[byte]).unwrap();
                }
                for (_, addr, bytes) in &model {
                    let mut read = vec![0; 40];
                    spaces.read(*addr, &mut read).unwrap();
                    prop_assert_eq!(&read, bytes);
                }
                for addr in &stale {
                    prop_assert!(spaces.read(*addr, &mut [0]).is_err());
                    prop_assert!(spaces.write(*addr, &[1]).is_err());
                }
            }
        }
    }
}
