//! Shared receive queues.

use std::io;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::Arc;

use super::abi::{RecvWr, Sge, Srq, SrqAttr, SrqInitAttr};
use super::resources::{ProtectionDomain, User, Users, count, done, made, unsupported};

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedQueue {
    pub(super) srq: NonNull<Srq>,
    pd: Arc<ProtectionDomain>,
    pub(crate) users: Users,
}

// SAFETY: as for the device.
unsafe impl Send for SharedQueue {}
// SAFETY: as for the device.
unsafe impl Sync for SharedQueue {}

impl SharedQueue {
    /// Makes a queue, whose events name it by a number.
    pub(crate) fn new(pd: &Arc<ProtectionDomain>, attr: SrqAttr, number: u32) -> io::Result<Self> {
        let mut init = SrqInitAttr {
            srq_context: without_provenance_mut(number as usize),
            attr,
        };
        let library = pd.device.library;
        // SAFETY: the queue keeps its domain; the library writes the sizes.
        let srq = made(unsafe { (library.ibv_create_srq)(pd.as_ptr(), &raw mut init) })?;
        Ok(Self {
            srq,
            pd: pd.clone(),
            users: Users::default(),
        })
    }

    /// Returns a user of the protection domain.
    pub(crate) fn user_of_domain(&self) -> User {
        self.pd.users.add()
    }

    /// Changes the attributes of a mask of `enum ibv_srq_attr_mask`.
    pub(crate) fn modify(&self, mut attr: SrqAttr, mask: i32) -> io::Result<()> {
        let library = self.pd.device.library;
        // SAFETY: the library reads the attributes.
        done(unsafe { (library.ibv_modify_srq)(self.srq.as_ptr(), &raw mut attr, mask) })
    }

    pub(crate) fn query(&self) -> io::Result<SrqAttr> {
        let mut attr = SrqAttr::default();
        let library = self.pd.device.library;
        // SAFETY: the library writes the attributes.
        done(unsafe { (library.ibv_query_srq)(self.srq.as_ptr(), &raw mut attr) })?;
        Ok(attr)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// As [`super::QueuePair::post_send`].
    pub(crate) fn post(&self, wr_id: u64, list: &[Sge]) -> io::Result<()> {
        // SAFETY: the device is open.
        let post = unsafe { self.pd.device.context.as_ref() }.ops.post_srq_recv;
        let post = post.ok_or_else(unsupported)?;
        let mut wr = RecvWr {
            wr_id,
            next: null_mut(),
            sg_list: list.as_ptr().cast_mut(),
            num_sge: count(list)?,
        };
        let mut bad = null_mut();
        // SAFETY: the provider reads request and list during the call; regions keep their memory mapped.
        done(unsafe { post(self.srq.as_ptr(), &raw mut wr, &raw mut bad) })
    }
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs keep their queue, so none uses it.
        unsafe { (self.pd.device.library.ibv_destroy_srq)(self.srq.as_ptr()) };
    }
}
