//! Trunks: cables to the fabrics of other worlds and services, in other processes and on other machines.

use emulated_hca::Endpoint;
use vhca_trunk::{Door, TrunkAddress, TrunkConfig, TrunkError, TrunkId, Trunks};

use super::World;

impl World {
    /// Makes a trunk of a port without a link. It is down until the other end answers, and again after that; [`Trunks::poll_event`] of
    /// [`World::trunks_mut`] says when.
    ///
    /// Packets cross in the time of the wall clock, so nothing of a world with trunks can be repeated. An
    /// [`EventLoop`](crate::device::event::EventLoop) that is made after the first trunk watches the connections of all.
    ///
    /// # Errors
    /// [`TrunkError`].
    pub fn add_trunk(
        &mut self,
        near: Endpoint,
        config: TrunkConfig,
    ) -> Result<TrunkId, TrunkError> {
        let trunks = match &mut self.trunks {
            Some(trunks) => trunks,
            none => none.insert(Trunks::new(Door::in_thread).map_err(TrunkError::Door)?),
        };
        trunks.add(&mut self.adapters.fabric, near, config)
    }

    /// Redirects a trunk that connects to another address, see [`Trunks::redirect`].
    ///
    /// # Errors
    /// [`TrunkError`], as of [`Trunks::redirect`].
    pub fn redirect_trunk(&mut self, id: TrunkId, address: TrunkAddress) -> Result<(), TrunkError> {
        let trunks = self.trunks.as_mut().ok_or(TrunkError::Unknown)?;
        let fabric = &mut self.adapters.fabric;
        trunks.redirect(self.now, fabric, id, address)
    }

    /// Takes trunks, to which [`World::add_trunk`] adds. A process that is confined makes them with a door in another process.
    pub fn set_trunks(&mut self, trunks: Trunks) {
        self.trunks = Some(trunks);
    }

    /// Returns the trunks, if there are any.
    #[must_use]
    pub const fn trunks(&self) -> Option<&Trunks> {
        self.trunks.as_ref()
    }

    /// Returns the trunks, if there are any, for their events.
    pub const fn trunks_mut(&mut self) -> Option<&mut Trunks> {
        self.trunks.as_mut()
    }

    /// Takes packets that have come by trunks, and sends those for them. Returns `true` if that changed the fabric.
    pub(super) fn serve_trunks(&mut self) -> bool {
        let trunks = self.trunks.as_mut();
        trunks.is_some_and(|trunks| trunks.poll(self.now, &mut self.adapters.fabric))
    }

    /// Sends the packets for trunks. Returns `true` if that changed the fabric.
    pub(super) fn flush_trunks(&mut self) -> bool {
        let trunks = self.trunks.as_mut();
        trunks.is_some_and(|trunks| trunks.exchange(self.now, &mut self.adapters.fabric))
    }
}
