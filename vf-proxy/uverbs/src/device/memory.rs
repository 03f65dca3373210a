//! Protection domains, memory regions and windows.

use hca_api::{AccessFlags, DeviceCaps, Hca, MrKind, MrSpec, MwType};
use verbs_link::abi::HandleCommand;
use verbs_link::abi::memory::{AllocMw, AllocMwAnswer, HandleAnswer, RegMr, RegMrAnswer};
use verbs_link::budget::cost;
use verbs_link::{Answer, Command, Errno};

use super::{ContextId, Owned, ProcessDevice};
use crate::rights::{RIGHTS, rights};

/// Rights that a device may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
const OPTIONAL: u32 = 0x3ff0_0000;
/// Pages are registered as they come (`IBV_ACCESS_ON_DEMAND`).
const ON_DEMAND: u32 = 1 << 6;
/// The memory is of huge pages (`IBV_ACCESS_HUGETLB`); says nothing to this device.
const HUGETLB: u32 = 1 << 7;
/// Offsets within a page.
const IN_PAGE: u64 = 0xfff;
/// End of the addresses that a program can have. Behind them are no program's bytes, whatever it registers.
const USER_END: u64 = 1 << 56;

/// Returns the rights that a program gives to a region of a device with these abilities (`ib_check_mr_access` of the kernel).
fn access(flags: u32, caps: DeviceCaps) -> Result<AccessFlags, Errno> {
    if flags & ON_DEMAND != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if flags & !(RIGHTS | OPTIONAL | HUGETLB) != 0 {
        return Err(Errno::EINVAL);
    }
    let access = rights(flags);
    let flushes = access.contains(AccessFlags::FLUSH_GLOBAL);
    // No device here has memory that outlives a loss of power.
    if flushes && !caps.contains(DeviceCaps::FLUSH_GLOBAL)
        || access.contains(AccessFlags::FLUSH_PERSISTENT)
    {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(access)
}

impl ProcessDevice {
    pub(super) fn alloc_pd(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
    ) -> Result<Answer, Errno> {
        let _charge = self.charge(cost::PROTECTION_DOMAIN)?;
        let object = hca.alloc_pd()?;
        let handle = self.new_handle();
        let owned = Owned {
            context,
            object,
            _charge,
        };
        self.pds.0.insert(handle, owned);
        Ok(Answer::new(&HandleAnswer {
            handle: handle.into(),
        }))
    }

    pub(super) fn dealloc_pd(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<Answer, Errno> {
        let (named, _) = command.read::<HandleCommand>()?;
        let handle = named.handle.get();
        hca.dealloc_pd(*self.pds.get(context, handle)?)?;
        self.pds.0.remove(&handle);
        Ok(Answer::default())
    }

    pub(super) fn reg_mr(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<Answer, Errno> {
        let (asked, _) = command.read::<RegMr>()?;
        let pd = *self.pds.get(context, asked.pd_handle.get())?;
        let access = access(asked.access_flags.get(), hca.attributes().caps)?;
        let writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        if access.intersects(writes) && !access.contains(AccessFlags::LOCAL_WRITE) {
            return Err(Errno::EINVAL);
        }
        let (start, length, iova) = (asked.start.get(), asked.length.get(), asked.hca_va.get());
        // As `ib_umem_check_addr_iova`: both have the same place within their page.
        if start & IN_PAGE != iova & IN_PAGE {
            return Err(Errno::EINVAL);
        }
        if start.checked_add(length).is_none_or(|end| end > USER_END) {
            return Err(Errno::EFAULT);
        }
        if length > hca.attributes().limits.max_mr_size {
            return Err(Errno::EINVAL);
        }
        let kind = MrKind::Translated {
            addr: start,
            len: length,
            iova,
        };
        let _charge = self.charge(cost::REGION)?;
        let keys = hca.register_mr(&MrSpec {
            pd,
            kind,
            access: access - AccessFlags::ZERO_BASED,
            key: None,
        })?;
        let handle = self.new_handle();
        let object = keys.handle;
        let owned = Owned {
            context,
            object,
            _charge,
        };
        self.mrs.0.insert(handle, owned);
        Ok(Answer::new(&RegMrAnswer {
            mr_handle: handle.into(),
            lkey: keys.lkey.0.into(),
            rkey: keys.rkey.0.into(),
        }))
    }

    pub(super) fn dereg_mr(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<Answer, Errno> {
        let (named, _) = command.read::<HandleCommand>()?;
        let handle = named.handle.get();
        hca.deregister_mr(*self.mrs.get(context, handle)?)?;
        self.mrs.0.remove(&handle);
        Ok(Answer::default())
    }

    pub(super) fn alloc_mw(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<Answer, Errno> {
        let (asked, _) = command.read::<AllocMw>()?;
        let pd = *self.pds.get(context, asked.pd_handle.get())?;
        let kind = match asked.mw_type {
            1 => MwType::Type1,
            2 => MwType::Type2,
            _ => return Err(Errno::EINVAL),
        };
        let _charge = self.charge(cost::WINDOW)?;
        let keys = hca.alloc_mw(pd, kind)?;
        let handle = self.new_handle();
        let owned = Owned {
            context,
            object: keys.handle,
            _charge,
        };
        self.mws.0.insert(handle, owned);
        Ok(Answer::new(&AllocMwAnswer {
            mw_handle: handle.into(),
            rkey: keys.rkey.0.into(),
        }))
    }

    pub(super) fn dealloc_mw(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<Answer, Errno> {
        let (named, _) = command.read::<HandleCommand>()?;
        let handle = named.handle.get();
        hca.dealloc_mw(*self.mws.get(context, handle)?)?;
        self.mws.0.remove(&handle);
        Ok(Answer::default())
    }

    /// Destroys a window of a file that was closed.
    pub(super) fn end_window(&mut self, hca: &mut dyn Hca, handle: u32) {
        if let Some(owned) = self.mws.0.remove(&handle) {
            let _ = hca.dealloc_mw(owned.object);
        }
    }

    /// Destroys a region of a file that was closed.
    pub(super) fn end_region(&mut self, hca: &mut dyn Hca, handle: u32) {
        if let Some(owned) = self.mrs.0.remove(&handle) {
            let _ = hca.deregister_mr(owned.object);
        }
    }

    /// Destroys an address of a file that was closed.
    pub(super) fn end_address(&mut self, hca: &mut dyn Hca, handle: u32) {
        if let Some(owned) = self.ahs.0.remove(&handle) {
            let _ = hca.destroy_av(owned.object);
        }
    }

    /// Destroys a protection domain of a file that was closed, whose other objects are gone.
    pub(super) fn end_domain(&mut self, hca: &mut dyn Hca, handle: u32) {
        if let Some(owned) = self.pds.0.remove(&handle) {
            let _ = hca.dealloc_pd(owned.object);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `IBV_ACCESS_FLUSH_GLOBAL`.
    const GLOBAL: u32 = 1 << 8;
    /// `IBV_ACCESS_FLUSH_PERSISTENT`.
    const PERSISTENT: u32 = 1 << 9;
    /// A right that the kernel has not named.
    const UNKNOWN: u32 = 1 << 10;

    #[test]
    fn rights_that_are_unknown_are_left_out_of_queue_pairs_and_refused_for_regions() {
        let both = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let bits = u32::from(both.bits());
        assert_eq!(rights(bits | UNKNOWN | ON_DEMAND), both);
        let access = |flags| access(flags, DeviceCaps::empty());
        assert_eq!(access(bits | OPTIONAL | HUGETLB), Ok(both));
        assert_eq!(access(bits | UNKNOWN), Err(Errno::EINVAL));
        assert_eq!(access(bits | ON_DEMAND), Err(Errno::EOPNOTSUPP));
    }

    #[test]
    fn a_region_may_be_flushed_if_the_device_flushes_and_never_to_persistent_memory() {
        let offered = DeviceCaps::FLUSH_GLOBAL;
        let global = AccessFlags::FLUSH_GLOBAL;
        assert_eq!(access(GLOBAL, offered), Ok(global));
        assert_eq!(access(GLOBAL, DeviceCaps::empty()), Err(Errno::EOPNOTSUPP));
        for flags in [PERSISTENT, PERSISTENT | GLOBAL] {
            assert_eq!(access(flags, offered), Err(Errno::EOPNOTSUPP));
        }
        let both = global | AccessFlags::FLUSH_PERSISTENT;
        assert_eq!(rights(PERSISTENT | GLOBAL), both);
    }
}
