//! Accesses of connected transports: at an offset of a list, and by a remote key.

use core::ops::Range;
use core::sync::atomic::{Ordering, fence};

use hca_api::{AccessFlags, AddressSpace, Cause, MrHandle, MwHandle, PdHandle, QpHandle, Sge};
use slab::Slab;

use super::{
    Arrived, Gathered, KeyOwner, Memory, ProtectionFault, Region, Window, owner, parts, usable,
};

/// Bytes of a message that are stored after all others.
const TAIL: usize = 8;

/// A region that was looked up for a peer, by its own key or a window's. Its generation names one registration or binding, for the
/// slot has other owners later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct RemoteRegion {
    pub(super) region: MrHandle,
    pub(super) window: Option<MwHandle>,
    /// Of the window if there is one.
    pub(super) generation: u64,
    /// Address in the region's count of the peer's address 0.
    pub(super) shift: u64,
}

impl RemoteRegion {
    /// Returns the region and an address of the peer in its count.
    fn resolve<'a>(
        &self,
        regions: &'a Slab<Region>,
        windows: &Slab<Window>,
        addr: u64,
    ) -> Result<(&'a Region, u64), ProtectionFault> {
        let region = regions.get(self.region.0 as usize);
        let region = region.filter(|region| match self.window {
            // A region stays as it is while windows are bound to it.
            Some(mw) => {
                (windows.get(mw.0 as usize)).is_some_and(|window| window.is_of(self.generation))
            }
            None => region.generation == self.generation,
        });
        Ok((
            region.ok_or(ProtectionFault(Cause::NotValid))?,
            addr.wrapping_add(self.shift),
        ))
    }
}

impl Memory {
    /// Checks that the first `len` bytes of a list are in regions of the protection domain with the rights.
    ///
    /// # Errors
    /// Key, protection domain, right or range, or a list that is too short. That the address space lacks bytes shows when
    /// they are used.
    pub(in super::super) fn check_list(
        &self,
        pd: PdHandle,
        sges: &[Sge],
        len: u64,
        access: AccessFlags,
    ) -> Result<(), ProtectionFault> {
        let mut left = len;
        for part in parts(sges, &(0..len)) {
            let region = usable(
                &self.regions,
                owner(&self.keys, part.lkey)?,
                pd,
                part.lkey,
                access,
            )?;
            region.offset(part.addr, u64::from(part.len))?;
            left -= u64::from(part.len);
        }
        if left == 0 {
            Ok(())
        } else {
            Err(ProtectionFault(Cause::TooLong))
        }
    }

    /// Appends a range of the bytes that a list names to `out`.
    pub(in super::super) fn gather_range(
        &self,
        pd: PdHandle,
        sges: &[Sge],
        range: &Range<u64>,
        out: &mut Gathered,
    ) -> Result<(), ProtectionFault> {
        parts(sges, range).try_for_each(|part| self.gather(pd, &[part], out))
    }

    /// Writes bytes at an offset of a scatter list that is long enough.
    pub(in super::super) fn scatter_at(
        &mut self,
        pd: PdHandle,
        sges: &[Sge],
        offset: u64,
        bytes: Arrived<'_>,
    ) -> Result<(), ProtectionFault> {
        let mut usual = MrHandle(0);
        let mut offset = offset;
        tail_last(bytes, |bytes| {
            let mut rest = bytes;
            for part in parts(sges, &(offset..offset + bytes.len() as u64)) {
                let (now, later) = rest
                    .split_at_checked(part.len as usize)
                    .ok_or(ProtectionFault(Cause::TooLong))?;
                self.scatter(pd, &[part], &[now], &mut usual)?;
                rest = later;
            }
            offset += bytes.len() as u64;
            let stored = (rest.len() == 0).then_some(());
            stored.ok_or(ProtectionFault(Cause::TooLong))
        })
    }

    /// Looks up a key of a peer's request for an access to a range, as its address and bytes, or to all that the key names (IBA
    /// 10.6.3.2): key, protection domain, right, range.
    ///
    /// # Errors
    /// The first test that fails.
    pub(in super::super) fn look_up_remote(
        &self,
        (pd, qp): (PdHandle, QpHandle),
        key: u32,
        range: Option<(u64, u64)>,
        access: AccessFlags,
    ) -> Result<RemoteRegion, ProtectionFault> {
        let handle = match self.keys.get(&key) {
            Some(KeyOwner::Region(handle)) => handle,
            Some(KeyOwner::Window(mw)) => {
                return self.look_up_window((pd, qp), *mw, range, access);
            }
            None => return Err(ProtectionFault(Cause::NoSuchKey)),
        };
        let region = self
            .regions
            .get(handle.0 as usize)
            .ok_or(ProtectionFault(Cause::NoSuchKey))?;
        region.permits(pd, access)?;
        if let Some((addr, len)) = range {
            region.offset(addr, len)?;
        }
        Ok(RemoteRegion {
            region: *handle,
            window: None,
            generation: region.generation,
            shift: 0,
        })
    }

    /// Stores a peer's bytes.
    ///
    /// # Errors
    /// The registration or binding ended, or the address space lacks the bytes.
    pub(in super::super) fn place(
        &mut self,
        at: RemoteRegion,
        addr: u64,
        bytes: Arrived<'_>,
    ) -> Result<(), ProtectionFault> {
        let (region, addr) = at.resolve(&self.regions, &self.windows, addr)?;
        let space = &mut self.space;
        let mut start = addr;
        tail_last(bytes, |bytes| {
            let mut rest = bytes;
            region.pieces(start, bytes.len() as u64, |addr, len| {
                let cut = rest.split_at_checked(len);
                let (piece, behind) = cut.ok_or(ProtectionFault(Cause::OutOfBounds))?;
                rest = behind;
                Ok(piece.store(space, addr)?)
            })?;
            start = start.wrapping_add(bytes.len() as u64);
            Ok(())
        })
    }

    /// Appends bytes that a peer reads to `out`.
    ///
    /// # Errors
    /// As [`Self::place`].
    pub(in super::super) fn fetch(
        &self,
        at: RemoteRegion,
        addr: u64,
        len: u32,
        out: &mut Gathered,
    ) -> Result<(), ProtectionFault> {
        let (region, addr) = at.resolve(&self.regions, &self.windows, addr)?;
        region.pieces(addr, u64::from(len), |addr, len| {
            Ok(self.space.read(addr, out.room(len))?)
        })
    }

    /// Replaces 8 bytes for a peer, and returns what they were.
    ///
    /// # Errors
    /// As [`Self::place`], or 8 bytes that are not together or not aligned in the address space.
    pub(in super::super) fn update(
        &mut self,
        at: RemoteRegion,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, ProtectionFault> {
        const LEN: u64 = size_of::<u64>() as u64;

        let (region, addr) = at.resolve(&self.regions, &self.windows, addr)?;
        let backing = region
            .backing
            .as_ref()
            .ok_or(ProtectionFault(Cause::NotValid))?;
        match backing.piece(region.offset(addr, LEN)?, LEN) {
            (addr, LEN) => Ok(self.space.update_u64(addr, update)?),
            _ => Err(ProtectionFault(Cause::OutOfBounds)),
        }
    }
}

/// Stores bytes in two parts: the last 8 are visible after all others, since programs poll the last byte of a message (IBA
/// 9.5), and a copy may store its end first.
fn tail_last<'a>(
    bytes: Arrived<'a>,
    mut store: impl FnMut(Arrived<'a>) -> Result<(), ProtectionFault>,
) -> Result<(), ProtectionFault> {
    let at = bytes.len().saturating_sub(TAIL);
    let (front, tail) = bytes.split_at(at);
    if front.len() != 0 {
        store(front)?;
        fence(Ordering::Release);
    }
    store(tail)
}

#[cfg(test)]
mod tests {
    use hca_api::LKey;

    use super::*;

    #[test]
    fn t044_the_last_bytes_are_stored_after_all_others() {
        let stored = |len: usize| {
            let bytes: Vec<u8> = (0..u8::try_from(len).unwrap()).collect();
            let mut lens = Vec::new();
            let mut all = Vec::new();
            tail_last(Arrived::Bytes(&bytes), |part| {
                let Arrived::Bytes(part) = part else {
                    panic!("bytes came");
                };
                lens.push(part.len());
                all.extend_from_slice(part);
                Ok(())
            })
            .unwrap();
            assert_eq!(all, bytes);
            lens
        };
        assert_eq!(stored(100), [92, 8]);
        assert_eq!(stored(9), [1, 8]);
        assert_eq!(stored(8), [8]);
        assert_eq!(stored(0), [0]);
        let failed = tail_last(Arrived::Bytes(&[0; 100]), |part| {
            assert_eq!(part.len(), 92);
            Err(ProtectionFault(Cause::NoMemory))
        });
        assert_eq!(failed, Err(ProtectionFault(Cause::NoMemory)));
    }

    #[test]
    fn a_range_of_a_list_is_cut_out_of_its_entries() {
        let sge = |addr, len| Sge {
            addr,
            len,
            lkey: LKey(7),
        };
        let list = [sge(100, 10), sge(0, 0), sge(200, 5), sge(300, 20)];
        let cut = |range| parts(&list, &range).collect::<Vec<_>>();
        assert_eq!(cut(0..10), [sge(100, 10)]);
        assert_eq!(cut(8..16), [sge(108, 2), sge(200, 5), sge(300, 1)]);
        assert_eq!(cut(15..99), [sge(300, 20)]);
        assert_eq!(cut(35..40), []);
        assert_eq!(cut(3..3), []);
    }
}
