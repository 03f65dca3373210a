//! The memory regions, windows and connected queue pairs of a VF's port.

use hca_api::{AccessFlags, Completion, Hca, MwType};

use super::shared_completions::SharedCompletions;
use super::{
    ConnectedQp, ConnectedQpId, ConnectedQpSpec, FastRegion, MemoryRegion, MemoryWindow,
    SharedCompletionsId, VfPort, VfPortError,
};

impl VfPort {
    /// Allocates and registers `len` bytes of the function's memory, for the connected queue pairs of this port.
    ///
    /// # Errors
    /// Those of [`MemoryRegion::register`].
    pub fn reg_mr(
        &mut self,
        hca: &mut dyn Hca,
        len: usize,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VfPortError> {
        let pd = self.connections.pd(hca)?;
        let region = MemoryRegion::register(hca, pd, len, access)?;
        self.connections.regions.insert(region.handle(), region);
        Ok(region)
    }

    /// Deregisters a region of this port and frees its memory.
    ///
    /// # Errors
    /// [`VfPortError::NoRegion`] if it is deregistered already, [`HcaError::InUse`](hca_api::HcaError::InUse) while windows are
    /// bound to it, and [`HcaError::Pending`](hca_api::HcaError::Pending) as [`MemoryRegion::deregister`].
    pub fn dereg_mr(&mut self, hca: &mut dyn Hca, region: MemoryRegion) -> Result<(), VfPortError> {
        let regions = &mut self.connections.regions;
        if regions.get(&region.handle()) != Some(&region) {
            return Err(VfPortError::NoRegion);
        }
        region.deregister(hca)?;
        regions.remove(&region.handle());
        Ok(())
    }

    /// Makes an empty region of `max_pages` pages at most, which requests of this port's RC queue pairs fill. `access` has the rights
    /// that they may give it.
    ///
    /// # Errors
    /// See [`FastRegion::allocate`].
    pub fn alloc_mr(
        &mut self,
        hca: &mut dyn Hca,
        max_pages: u32,
        access: AccessFlags,
    ) -> Result<FastRegion, VfPortError> {
        let pd = self.connections.pd(hca)?;
        let region = FastRegion::allocate(hca, pd, max_pages, access)?;
        self.connections
            .fast_regions
            .insert(region.handle(), region);
        Ok(region)
    }

    /// Deregisters a region that [`Self::alloc_mr`] made.
    ///
    /// # Errors
    /// As [`Self::dereg_mr`].
    pub fn dealloc_mr(&mut self, hca: &mut dyn Hca, region: FastRegion) -> Result<(), VfPortError> {
        let regions = &mut self.connections.fast_regions;
        if regions.get(&region.handle()) != Some(&region) {
            return Err(VfPortError::NoRegion);
        }
        region.deregister(hca)?;
        regions.remove(&region.handle());
        Ok(())
    }

    /// Makes a memory window, which requests of this port's RC queue pairs bind to its regions.
    ///
    /// # Errors
    /// See [`MemoryWindow::allocate`].
    pub fn alloc_mw(
        &mut self,
        hca: &mut dyn Hca,
        kind: MwType,
    ) -> Result<MemoryWindow, VfPortError> {
        let pd = self.connections.pd(hca)?;
        let window = MemoryWindow::allocate(hca, pd, kind)?;
        self.connections.windows.insert(window.handle(), window);
        Ok(window)
    }

    /// Destroys a memory window of this port, bound or not.
    ///
    /// # Errors
    /// [`VfPortError::NoWindow`] if it is destroyed already.
    pub fn dealloc_mw(
        &mut self,
        hca: &mut dyn Hca,
        window: MemoryWindow,
    ) -> Result<(), VfPortError> {
        let windows = &mut self.connections.windows;
        if windows.get(&window.handle()) != Some(&window) {
            return Err(VfPortError::NoWindow);
        }
        windows.remove(&window.handle());
        Ok(window.deallocate(hca)?)
    }

    /// Makes an RC or UC queue pair, which is not connected yet.
    ///
    /// # Errors
    /// [`VfPortError::NoPKey`], and those of [`ConnectedQp::create`].
    pub fn open_connected_qp(
        &mut self,
        hca: &mut dyn Hca,
        spec: &ConnectedQpSpec,
    ) -> Result<ConnectedQpId, VfPortError> {
        let pkey_index = spec.partition.index(self.view())?;
        let pd = self.connections.pd(hca)?;
        let qp = ConnectedQp::create(hca, pd, self.port(), pkey_index, spec)?;
        let id = ConnectedQpId(self.fresh());
        self.connections.qps.insert(id, qp);
        Ok(id)
    }

    /// Makes a completion queue of `entries` completions that queue pairs of this port share. The first completion raises an event.
    ///
    /// # Errors
    /// As [`Hca::create_cq`].
    pub fn create_shared_completions(
        &mut self,
        hca: &mut dyn Hca,
        entries: u32,
    ) -> Result<SharedCompletionsId, VfPortError> {
        let shared = SharedCompletions::create(hca, entries)?;
        let id = SharedCompletionsId(self.fresh());
        self.connections.shared.insert(id, shared);
        Ok(id)
    }

    /// Makes a queue pair as [`Self::open_connected_qp`] does, whose completions go to a queue that others share.
    ///
    /// # Errors
    /// As [`Self::open_connected_qp`]; [`VfPortError::NoSharedCompletions`], and
    /// [`HcaError::InsufficientResources`](hca_api::HcaError::InsufficientResources) if the completion queue has no room for all
    /// requests of one more queue pair.
    pub fn open_connected_qp_on(
        &mut self,
        hca: &mut dyn Hca,
        spec: &ConnectedQpSpec,
        shared: SharedCompletionsId,
    ) -> Result<ConnectedQpId, VfPortError> {
        let pkey_index = spec.partition.index(self.view())?;
        let pd = self.connections.pd(hca)?;
        let (port, id) = (self.port(), ConnectedQpId(self.fresh()));
        let shared = self.connections.shared.get_mut(&shared);
        let shared = shared.ok_or(VfPortError::NoSharedCompletions)?;
        shared.check_room(&spec.caps)?;
        let qp = ConnectedQp::create_on(hca, pd, port, pkey_index, spec, shared.cq())?;
        shared.add(qp.qpn(), id, &spec.caps);
        self.connections.qps.insert(id, qp);
        Ok(id)
    }

    /// Returns completions of queue pairs that share a completion queue, `budget` at most: one of each queue pair in turn, and those of
    /// one in their order. With fewer than `budget`, the next completion raises an event; otherwise the caller polls again.
    ///
    /// # Errors
    /// [`VfPortError::NoSharedCompletions`], and those of [`Hca::poll_cq`].
    pub fn poll_shared_completions(
        &mut self,
        hca: &mut dyn Hca,
        shared: SharedCompletionsId,
        budget: usize,
    ) -> Result<Vec<(ConnectedQpId, Completion)>, VfPortError> {
        let shared = self.connections.shared.get_mut(&shared);
        let shared = shared.ok_or(VfPortError::NoSharedCompletions)?;
        Ok(shared.poll(hca, budget)?)
    }

    /// Destroys a completion queue that queue pairs shared.
    ///
    /// # Errors
    /// [`VfPortError::NoSharedCompletions`], and [`HcaError::InUse`](hca_api::HcaError::InUse) while a queue pair is on it.
    pub fn destroy_shared_completions(
        &mut self,
        hca: &mut dyn Hca,
        id: SharedCompletionsId,
    ) -> Result<(), VfPortError> {
        let shared = self.connections.shared.get(&id);
        let cq = shared.ok_or(VfPortError::NoSharedCompletions)?.cq();
        hca.destroy_cq(cq)?;
        self.connections.shared.remove(&id);
        Ok(())
    }

    /// Returns a connected queue pair, by which its peer is named, requests are posted and completions polled.
    ///
    /// # Errors
    /// [`VfPortError::NoQp`].
    pub fn connected_qp(&self, id: ConnectedQpId) -> Result<&ConnectedQp, VfPortError> {
        self.connections.qps.get(&id).ok_or(VfPortError::NoQp)
    }

    /// Destroys a connected queue pair, with its completions that were not polled. The peer learns nothing of it.
    ///
    /// # Errors
    /// [`VfPortError::NoQp`].
    pub fn close_connected_qp(
        &mut self,
        hca: &mut dyn Hca,
        id: ConnectedQpId,
    ) -> Result<(), VfPortError> {
        let qp = self.connections.qps.remove(&id);
        let qp = qp.ok_or(VfPortError::NoQp)?;
        let (qpn, cq) = (qp.qpn(), qp.cq());
        qp.destroy(hca);
        let mut shared = self.connections.shared.values_mut();
        if let Some(shared) = shared.find(|shared| shared.cq() == cq) {
            shared.remove(hca, qpn);
        }
        Ok(())
    }
}
