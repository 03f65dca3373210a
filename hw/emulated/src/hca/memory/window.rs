//! Memory windows: made by verbs, bound and invalidated by requests of queue pairs (IBA 10.6.7).

use hca_api::{
    AccessFlags, Cause, HcaError, MrHandle, MwBind, MwHandle, MwKeys, MwType, PdHandle, QpHandle,
    RKey,
};

use super::{KeyOwner, Memory, ProtectionFault, RemoteRegion, index_u32, owner, usable};

/// A memory window.
#[derive(Debug)]
pub(super) struct Window {
    pd: PdHandle,
    kind: MwType,
    key: u32,
    binding: Option<Binding>,
}

/// A part of a region that a window opens.
#[derive(Clone, Copy, Debug)]
struct Binding {
    region: MrHandle,
    /// The queue pair that bound the window.
    qp: QpHandle,
    /// First byte, in the region's count.
    start: u64,
    len: u64,
    access: AccessFlags,
    /// Generation: distinguishes bindings under the same key, and from registrations.
    generation: u64,
}

impl Window {
    /// Returns `true` if the window is bound, and not anew since that generation.
    pub(super) fn is_of(&self, generation: u64) -> bool {
        (self.binding).is_some_and(|binding| binding.generation == generation)
    }
}

impl Memory {
    pub(in super::super) fn window_count(&self) -> usize {
        self.windows.len()
    }

    /// Makes a window. The caller has checked the protection domain and the quota.
    pub(in super::super) fn alloc_window(
        &mut self,
        pd: PdHandle,
        kind: MwType,
    ) -> Result<MwKeys, HcaError> {
        let handle = MwHandle(index_u32(self.windows.vacant_key())?);
        let key = self.claim_key(None, KeyOwner::Window(handle))?;
        self.windows.insert(Window {
            pd,
            kind,
            key,
            binding: None,
        });
        Ok(MwKeys {
            handle,
            rkey: RKey(key),
        })
    }

    /// Destroys a window, and returns its protection domain.
    pub(in super::super) fn dealloc_window(&mut self, mw: MwHandle) -> Result<PdHandle, HcaError> {
        self.unbind(mw);
        let window = self.windows.try_remove(mw.0 as usize);
        let window = window.ok_or(HcaError::InvalidHandle)?;
        self.keys.remove(&window.key);
        Ok(window.pd)
    }

    /// Binds a window for a queue pair of the protection domain.
    ///
    /// # Errors
    /// The first test of IBA 10.6.7.2 that fails; then nothing has changed.
    pub(in super::super) fn bind(
        &mut self,
        pd: PdHandle,
        qp: QpHandle,
        bind: &MwBind,
    ) -> Result<(), ProtectionFault> {
        let handle = match self.keys.get(&bind.window.0) {
            Some(KeyOwner::Window(handle)) => *handle,
            Some(KeyOwner::Region(_)) => return Err(ProtectionFault(Cause::WrongObject)),
            None => return Err(ProtectionFault(Cause::NoSuchKey)),
        };
        let window = self.window_of(pd, handle)?;
        let kind = window.kind;
        let is_bound = kind == MwType::Type2 && window.binding.is_some();
        let is_senseless = match kind {
            MwType::Type1 => bind.access.contains(AccessFlags::ZERO_BASED),
            MwType::Type2 => bind.len == 0,
        };
        if is_bound {
            return Err(ProtectionFault(Cause::NotFree));
        }
        if is_senseless {
            return Err(ProtectionFault(Cause::BadRegistration));
        }
        let region = match bind.len {
            0 => None,
            _ => Some(self.bindable(pd, bind)?),
        };
        let key = bind.window.0 & !0xff | u32::from(bind.variant);
        self.rename(bind.window.0, key)?;
        self.unbind(handle);
        self.windows[handle.0 as usize].key = key;
        let Some(region) = region else {
            return Ok(());
        };
        let binding = Binding {
            region,
            qp,
            start: bind.addr,
            len: bind.len,
            // No window opens a right that no region can have.
            access: bind.access - AccessFlags::FLUSH_PERSISTENT,
            generation: self.next_generation(),
        };
        self.windows[handle.0 as usize].binding = Some(binding);
        self.regions[region.0 as usize].windows += 1;
        if kind == MwType::Type2 {
            self.windows_of_qps.insert((qp, handle));
        }
        Ok(())
    }

    /// Returns the region that a binding names, if it has the part and may be opened with the rights.
    fn bindable(&self, pd: PdHandle, bind: &MwBind) -> Result<MrHandle, ProtectionFault> {
        let handle = owner(&self.keys, bind.region)?;
        let changes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        let mut needed = AccessFlags::MW_BIND;
        needed.set(AccessFlags::LOCAL_WRITE, bind.access.intersects(changes));
        let region = usable(&self.regions, handle, pd, bind.region, needed)?;
        if region.access.contains(AccessFlags::ZERO_BASED) {
            return Err(ProtectionFault(Cause::WrongObject));
        }
        region.offset(bind.addr, bind.len)?;
        Ok(handle)
    }

    /// Takes a window from its region and its queue pair, if it is bound.
    fn unbind(&mut self, mw: MwHandle) {
        let window = self.windows.get_mut(mw.0 as usize);
        let Some(binding) = window.and_then(|window| window.binding.take()) else {
            return;
        };
        self.windows_of_qps.remove(&(binding.qp, mw));
        if let Some(region) = self.regions.get_mut(binding.region.0 as usize) {
            region.windows -= 1;
        }
    }

    /// Frees the windows of type 2 that a queue pair has bound: it goes.
    pub(in super::super) fn free_windows_of(&mut self, qp: QpHandle) {
        let all = (qp, MwHandle(0))..=(qp, MwHandle(u32::MAX));
        while let Some((_, mw)) = self.windows_of_qps.range(all.clone()).next().copied() {
            self.unbind(mw);
        }
    }

    /// Frees a window of type 2 for a queue pair of the protection domain. One that is free stays so.
    ///
    /// # Errors
    /// The window is of type 1, of another protection domain, or bound by another queue pair.
    pub(super) fn free_window(
        &mut self,
        pd: PdHandle,
        qp: QpHandle,
        mw: MwHandle,
    ) -> Result<(), ProtectionFault> {
        let window = self.window_of(pd, mw)?;
        if window.kind != MwType::Type2 {
            return Err(ProtectionFault(Cause::WrongObject));
        }
        if window.binding.is_some_and(|binding| binding.qp != qp) {
            return Err(ProtectionFault(Cause::OtherQp));
        }
        self.unbind(mw);
        Ok(())
    }

    /// Returns a window of a protection domain.
    fn window_of(&self, pd: PdHandle, mw: MwHandle) -> Result<&Window, ProtectionFault> {
        let window = self.windows.get(mw.0 as usize);
        let window = window.ok_or(ProtectionFault(Cause::NoSuchKey))?;
        if window.pd != pd {
            return Err(ProtectionFault(Cause::OtherPd));
        }
        Ok(window)
    }

    /// Looks up the window of a peer's request to a queue pair.
    pub(super) fn look_up_window(
        &self,
        (pd, qp): (PdHandle, QpHandle),
        mw: MwHandle,
        range: Option<(u64, u64)>,
        access: AccessFlags,
    ) -> Result<RemoteRegion, ProtectionFault> {
        let window = self.window_of(pd, mw)?;
        let binding = window.binding.ok_or(ProtectionFault(Cause::NotValid))?;
        if window.kind == MwType::Type2 && binding.qp != qp {
            return Err(ProtectionFault(Cause::OtherQp));
        }
        if !binding.access.contains(access) {
            return Err(ProtectionFault(Cause::NoRight));
        }
        let shift = if binding.access.contains(AccessFlags::ZERO_BASED) {
            binding.start
        } else {
            0
        };
        if let Some((addr, len)) = range {
            let offset = (addr.checked_add(shift)).and_then(|addr| addr.checked_sub(binding.start));
            let end = offset.and_then(|offset| offset.checked_add(len));
            if end.is_none_or(|end| end > binding.len) {
                return Err(ProtectionFault(Cause::OutOfBounds));
            }
        }
        Ok(RemoteRegion {
            region: binding.region,
            window: Some(mw),
            generation: binding.generation,
            shift,
        })
    }
}
