//! Regions for fast registration that are used again and again.

use std::collections::VecDeque;

use hca_api::{AccessFlags, Hca, RKey};

use super::{FastRegion, VfPort, VfPortError};

/// A pool of empty [`FastRegion`]s of a port, which all queue pairs of the port draw from (`ib_mr_pool_init`).
///
/// A region that comes back after its invalidation waits behind all others, and has another key when it is taken again: a late
/// request of a peer finds neither the key nor the memory.
#[derive(Debug)]
pub struct RegistrationPool {
    idle: VecDeque<PooledRegion>,
    /// Regions that were not invalidated.
    spent: Vec<FastRegion>,
    /// Regions to be made.
    missing: usize,
    max_pages: u32,
    access: AccessFlags,
}

/// A region of a [`RegistrationPool`], lent to one user.
#[derive(Debug)]
pub struct PooledRegion {
    region: FastRegion,
    variant: u8,
}

impl PooledRegion {
    /// Returns the region, whose registration takes [`Self::variant`].
    #[must_use]
    pub const fn region(&self) -> &FastRegion {
        &self.region
    }

    /// Low byte of the key, one more at each use of the region, and 0 after 255.
    #[must_use]
    pub const fn variant(&self) -> u8 {
        self.variant
    }

    /// Returns the key, local and remote, of the registration.
    #[must_use]
    pub const fn key(&self) -> RKey {
        self.region.key(self.variant)
    }
}

impl RegistrationPool {
    /// Makes a pool of `count` empty regions of `max_pages` pages each. `access` has the rights that registrations may give; the
    /// regions of a [`Transfer`](super::Transfer) need [`AccessFlags::LOCAL_WRITE`].
    ///
    /// # Errors
    /// As [`VfPort::alloc_mr`]. Nothing is left behind.
    pub fn allocate(
        port: &mut VfPort,
        hca: &mut dyn Hca,
        count: usize,
        max_pages: u32,
        access: AccessFlags,
    ) -> Result<Self, VfPortError> {
        let mut pool = Self {
            idle: VecDeque::new(),
            spent: Vec::new(),
            missing: count,
            max_pages,
            access,
        };
        match pool.renew(port, hca) {
            Ok(()) => Ok(pool),
            Err(error) => {
                pool.deallocate(port, hca);
                Err(error)
            }
        }
    }

    /// Returns the regions that can be taken.
    #[must_use]
    pub fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Pages of a region, at most.
    #[must_use]
    pub const fn max_pages(&self) -> u32 {
        self.max_pages
    }

    /// Takes the region that is idle for longest (`ib_mr_pool_get`); `None` if all are taken.
    pub fn take(&mut self) -> Option<PooledRegion> {
        self.idle.pop_front()
    }

    /// Takes a region back that was invalidated, by a request of its queue pair or of the peer, or never registered
    /// (`ib_mr_pool_put`).
    pub fn give_back(&mut self, used: PooledRegion) {
        let variant = used.variant.wrapping_add(1);
        self.idle.push_back(PooledRegion { variant, ..used });
    }

    /// Takes a region back that may still be registered, such as that of a queue pair that failed. [`Self::renew`] replaces it.
    pub fn discard(&mut self, used: PooledRegion) {
        self.spent.push(used.region);
    }

    /// Deregisters the regions that were discarded, with which their keys end, and makes as many others.
    ///
    /// # Errors
    /// As [`VfPort::alloc_mr`]; the next call makes the regions that are missing.
    pub fn renew(&mut self, port: &mut VfPort, hca: &mut dyn Hca) -> Result<(), VfPortError> {
        while let Some(region) = self.spent.pop() {
            // Only a reset can have taken it away before.
            let _ = port.dealloc_mr(hca, region);
            self.missing += 1;
        }
        while self.missing > 0 {
            let region = port.alloc_mr(hca, self.max_pages, self.access)?;
            self.idle.push_back(PooledRegion { region, variant: 0 });
            self.missing -= 1;
        }
        Ok(())
    }

    /// Deregisters all regions except taken ones, which go with the port.
    pub fn deallocate(self, port: &mut VfPort, hca: &mut dyn Hca) {
        let idle = self.idle.into_iter().map(|idle| idle.region);
        for region in idle.chain(self.spent) {
            let _ = port.dealloc_mr(hca, region);
        }
    }
}

#[cfg(test)]
mod tests;
