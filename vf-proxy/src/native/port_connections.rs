//! The memory regions and connected queue pairs of a VF's port.

use hca_api::{AccessFlags, Hca};

use super::{
    ConnectedQp, ConnectedQpId, ConnectedQpSpec, FastRegion, MemoryRegion, VfPort, VfPortError,
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
    /// [`VfPortError::NoRegion`] if it is deregistered already.
    pub fn dereg_mr(&mut self, hca: &mut dyn Hca, region: MemoryRegion) -> Result<(), VfPortError> {
        let regions = &mut self.connections.regions;
        if regions.get(&region.handle()) != Some(&region) {
            return Err(VfPortError::NoRegion);
        }
        regions.remove(&region.handle());
        Ok(region.deregister(hca)?)
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
    /// [`VfPortError::NoRegion`] if it is deregistered already.
    pub fn dealloc_mr(&mut self, hca: &mut dyn Hca, region: FastRegion) -> Result<(), VfPortError> {
        let regions = &mut self.connections.fast_regions;
        if regions.get(&region.handle()) != Some(&region) {
            return Err(VfPortError::NoRegion);
        }
        regions.remove(&region.handle());
        Ok(region.deregister(hca)?)
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

    /// Returns a connected queue pair, by which its peer is named, requests are posted and completions polled.
    ///
    /// # Errors
    /// [`VfPortError::NoQp`].
    pub fn connected_qp(&self, id: ConnectedQpId) -> Result<&ConnectedQp, VfPortError> {
        self.connections.qps.get(&id).ok_or(VfPortError::NoQp)
    }

    /// Destroys a connected queue pair. The peer is not told.
    ///
    /// # Errors
    /// [`VfPortError::NoQp`].
    pub fn close_connected_qp(
        &mut self,
        hca: &mut dyn Hca,
        id: ConnectedQpId,
    ) -> Result<(), VfPortError> {
        let qp = self.connections.qps.remove(&id);
        qp.ok_or(VfPortError::NoQp)?.destroy(hca);
        Ok(())
    }
}
