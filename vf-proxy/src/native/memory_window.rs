//! Memory windows of a VF's program.

use hca_api::{AccessFlags, Hca, HcaError, LKey, MwBind, MwHandle, MwKeys, MwType, PdHandle, RKey};

/// A memory window: a remote key for a part of a region, bound and ended by work requests (`ibv_alloc_mw`, IBA 10.6.7, 11.2.8.9).
///
/// [`SendOp::BindWindow`](hca_api::SendOp::BindWindow) with [`Self::binding`] opens the part to peers. A window of type 1 is bound
/// again and again, for all queue pairs of the port. One of type 2 (2B) belongs to the queue pair that bound it, until
/// [`SendOp::LocalInvalidate`](hca_api::SendOp::LocalInvalidate) of that or
/// [`SendOp::SendInvalidate`](hca_api::SendOp::SendInvalidate) of its peer frees it. A binding that is refused completes with
/// [`CompletionStatus::MwBind`](hca_api::CompletionStatus::MwBind) and ends the connection.
///
/// Copies name the same window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryWindow {
    keys: MwKeys,
}

impl MemoryWindow {
    /// Makes a window that is not bound.
    ///
    /// # Errors
    /// See [`Hca::alloc_mw`].
    pub fn allocate(hca: &mut dyn Hca, pd: PdHandle, kind: MwType) -> Result<Self, HcaError> {
        let keys = hca.alloc_mw(pd, kind)?;
        Ok(Self { keys })
    }

    /// Destroys the window, bound or not.
    ///
    /// # Errors
    /// [`HcaError::InvalidHandle`] if it is destroyed already.
    pub fn deallocate(self, hca: &mut dyn Hca) -> Result<(), HcaError> {
        hca.dealloc_mw(self.keys.handle)
    }

    pub(super) const fn handle(&self) -> MwHandle {
        self.keys.handle
    }

    /// Returns the key that the window has until it is bound for the first time.
    #[must_use]
    pub const fn first_key(&self) -> RKey {
        self.keys.rkey
    }

    /// Returns the key whose low byte is `variant`: from a binding with that variant to the next one, the key of the window.
    #[must_use]
    pub const fn key(&self, variant: u8) -> RKey {
        RKey(self.keys.rkey.0 & !0xff | variant as u32)
    }

    /// Returns a binding of the window, whose key is `current`, to `len` bytes of a region from `addr` on, under [`Self::key`]. The
    /// region needs [`AccessFlags::MW_BIND`], and for remote writes and atomics [`AccessFlags::LOCAL_WRITE`].
    #[must_use]
    pub const fn binding(
        &self,
        current: RKey,
        variant: u8,
        region: LKey,
        (addr, len): (u64, u64),
        access: AccessFlags,
    ) -> MwBind {
        MwBind {
            window: current,
            variant,
            region,
            addr,
            len,
            access,
        }
    }
}

#[cfg(test)]
mod tests;
