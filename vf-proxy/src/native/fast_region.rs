//! Memory regions that work requests fill.

use hca_api::{
    AccessFlags, FastRegister, Hca, HcaError, MrHandle, MrKeys, MrKind, MrSpec, PageList, PdHandle,
    RKey,
};

/// A region that is empty until a work request gives it pages, and again from its invalidation on (`ib_alloc_mr`, IBA 11.2.8.6).
///
/// [`SendOp::FastRegister`](hca_api::SendOp::FastRegister) with [`Self::registration`] fills the region,
/// [`SendOp::LocalInvalidate`](hca_api::SendOp::LocalInvalidate) of the queue pair or
/// [`SendOp::SendInvalidate`](hca_api::SendOp::SendInvalidate) of its peer empties it. A registration of a region that is not empty
/// completes with [`CompletionStatus::MwBind`](hca_api::CompletionStatus::MwBind) and ends the connection.
///
/// Copies name the same region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastRegion {
    keys: MrKeys,
    max_pages: u32,
}

impl FastRegion {
    /// Base-2 logarithm of the size of a page.
    pub const PAGE_SHIFT: u8 = 12;

    /// Makes an empty region of `max_pages` pages at most. `access` has the rights that a registration may give;
    /// with [`AccessFlags::REMOTE_INVALIDATE`] peers may invalidate the key.
    ///
    /// # Errors
    /// See [`Hca::register_mr`].
    pub fn allocate(
        hca: &mut dyn Hca,
        pd: PdHandle,
        max_pages: u32,
        access: AccessFlags,
    ) -> Result<Self, HcaError> {
        let spec = MrSpec {
            pd,
            kind: MrKind::FastRegister { max_pages },
            access,
            key: None,
        };
        let keys = hca.register_mr(&spec)?;
        Ok(Self { keys, max_pages })
    }

    /// Deregisters the region, whether it is empty or not.
    ///
    /// # Errors
    /// [`HcaError::InvalidHandle`] if it is deregistered already.
    pub fn deregister(self, hca: &mut dyn Hca) -> Result<(), HcaError> {
        hca.deregister_mr(self.keys.handle)
    }

    pub(super) const fn handle(&self) -> MrHandle {
        self.keys.handle
    }

    /// Pages, at most.
    #[must_use]
    pub const fn max_pages(&self) -> u32 {
        self.max_pages
    }

    /// Returns the key, local and remote, whose low byte is `variant`. The key of the latest registration is valid, and no other: a
    /// program that changes the variant with each keeps late requests of a peer out.
    #[must_use]
    pub const fn key(&self, variant: u8) -> RKey {
        RKey(self.keys.rkey.0 & !0xff | variant as u32)
    }

    /// Returns a registration of pages of the function's memory under [`Self::key`]. The region's first byte has the address `iova`, and
    /// is as far into the first page as `iova` is into a page.
    #[must_use]
    pub const fn registration<'a>(
        &self,
        variant: u8,
        (iova, len): (u64, u64),
        pages: &'a [u64],
        access: AccessFlags,
    ) -> FastRegister<'a> {
        FastRegister {
            key: self.key(variant),
            iova,
            len,
            pages: PageList::Given(pages),
            page_shift: Self::PAGE_SHIFT,
            access,
        }
    }
}

#[cfg(test)]
mod tests;
