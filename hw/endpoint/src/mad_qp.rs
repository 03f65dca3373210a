//! A port's QP0 or QP1: MADs in, MADs out.

use alloc::boxed::Box;
use core::fmt;

use hca_api::{CqHandle, Hca, HcaError, QpKind, SpecialQp};
use ib_wire::mad::Mad;
use ib_wire::{PKeyIndex, PortNum, QKey};
use zerocopy::IntoBytes;

use crate::{DatagramQp, DatagramQpSpec, MadAddress};

/// Bytes of a MAD.
const MAD_LEN: u32 = 256;

const _: () = assert!(size_of::<Mad>() == MAD_LEN as usize);

/// What carries MADs between a port's QP0 or QP1 and the machines of this crate: the special QP
/// itself ([`MadQp`]), or a function's way to reach a special QP that is not its own.
pub trait MadTransport: fmt::Debug + Send {
    /// The port.
    fn port(&self) -> PortNum;

    /// Whether a MAD can be sent now. Once it cannot, [`Self::poll`] makes room.
    fn can_send(&self) -> bool;

    /// Sends a MAD.
    ///
    /// # Errors
    /// [`HcaError::QueueFull`] unless [`Self::can_send`], and those of [`Hca::post_send`].
    fn send(&mut self, hca: &mut dyn Hca, to: &MadAddress, mad: &Mad) -> Result<(), HcaError>;

    /// The next received MAD and its sender.
    fn poll(&mut self, hca: &mut dyn Hca) -> Option<(MadAddress, Mad)>;

    /// Asks for a [`hca_api::HcaEvent::Completion`] when [`Self::poll`] has something to do next.
    /// `true` if it has already; then no event may come.
    fn arm(&self, hca: &mut dyn Hca) -> bool;

    /// Gives everything back.
    fn close(self: Box<Self>, hca: &mut dyn Hca);
}

/// A port's QP0 or QP1, as the machines of this crate need one: it carries whole MADs between them
/// and an HCA.
#[derive(Debug)]
pub struct MadQp {
    qp: DatagramQp,
    qkey: QKey,
    malformed: u64,
}

impl MadQp {
    /// Takes a port's special QP, with room for so many MADs each way.
    ///
    /// # Errors
    /// Those of [`DatagramQp::open`]; [`HcaError::SpecialQpTaken`] if somebody has it.
    pub fn open(
        hca: &mut dyn Hca,
        special: SpecialQp,
        port: PortNum,
        depth: u32,
    ) -> Result<Self, HcaError> {
        let qkey = match special {
            SpecialQp::Smi => QKey::SMI,
            SpecialQp::Gsi => QKey::GSI,
        };
        let qp = DatagramQp::open(
            hca,
            DatagramQpSpec {
                kind: QpKind::Special { special, port },
                port,
                pkey_index: PKeyIndex(0),
                qkey,
                receives: depth,
                sends: depth,
                max_message: MAD_LEN,
                block_multicast_loopback: false,
            },
        )?;
        Ok(Self {
            qp,
            qkey,
            malformed: 0,
        })
    }

    /// Received messages that were not 256 bytes long, and so were dropped.
    #[must_use]
    pub const fn malformed(&self) -> u64 {
        self.malformed
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> PortNum {
        self.qp.spec().port
    }

    /// The completion queue of its sends and receives.
    #[must_use]
    pub const fn cq(&self) -> CqHandle {
        self.qp.cq()
    }

    /// Whether every buffer is where it belongs; see [`DatagramQp::is_at_rest`].
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.qp.is_at_rest()
    }

    /// MADs that can be sent now.
    #[must_use]
    pub fn free_sends(&self) -> usize {
        self.qp.free_sends()
    }

    /// Whether a MAD can be sent now.
    #[must_use]
    pub fn can_send(&self) -> bool {
        self.qp.can_send()
    }

    /// Sends a MAD.
    ///
    /// # Errors
    /// Those of [`DatagramQp::send`].
    pub fn send(&mut self, hca: &mut dyn Hca, to: &MadAddress, mad: &Mad) -> Result<(), HcaError> {
        self.qp
            .send(hca, Some(&to.destination(self.port())), mad.as_bytes())
    }

    /// The next received MAD and its sender.
    pub fn poll(&mut self, hca: &mut dyn Hca) -> Option<(MadAddress, Mad)> {
        let mut mad = Mad::default();
        let from = self.poll_into(hca, &mut mad)?;
        Some((from, mad))
    }

    /// Writes the next received MAD to `mad` and gives its sender.
    pub fn poll_into(&mut self, hca: &mut dyn Hca, mad: &mut Mad) -> Option<MadAddress> {
        loop {
            let received = self.qp.poll_into(hca, mad.as_mut_bytes())?;
            if received.len == size_of::<Mad>() {
                return Some(MadAddress::of_sender(&received.source, self.qkey));
            }
            self.malformed += 1;
        }
    }

    /// Asks for an event when [`Self::poll`] has something to do; see [`DatagramQp::arm`].
    pub fn arm(&self, hca: &mut dyn Hca) -> bool {
        self.qp.arm(hca)
    }

    /// Gives the special QP up.
    pub fn close(self, hca: &mut dyn Hca) {
        self.qp.close(hca);
    }
}

impl MadTransport for MadQp {
    fn port(&self) -> PortNum {
        self.port()
    }

    fn can_send(&self) -> bool {
        self.can_send()
    }

    fn send(&mut self, hca: &mut dyn Hca, to: &MadAddress, mad: &Mad) -> Result<(), HcaError> {
        self.send(hca, to, mad)
    }

    fn poll(&mut self, hca: &mut dyn Hca) -> Option<(MadAddress, Mad)> {
        self.poll(hca)
    }

    fn arm(&self, hca: &mut dyn Hca) -> bool {
        self.arm(hca)
    }

    fn close(self: Box<Self>, hca: &mut dyn Hca) {
        (*self).close(hca);
    }
}

impl<T: MadTransport + ?Sized> MadTransport for Box<T> {
    fn port(&self) -> PortNum {
        (**self).port()
    }

    fn can_send(&self) -> bool {
        (**self).can_send()
    }

    fn send(&mut self, hca: &mut dyn Hca, to: &MadAddress, mad: &Mad) -> Result<(), HcaError> {
        (**self).send(hca, to, mad)
    }

    fn poll(&mut self, hca: &mut dyn Hca) -> Option<(MadAddress, Mad)> {
        (**self).poll(hca)
    }

    fn arm(&self, hca: &mut dyn Hca) -> bool {
        (**self).arm(hca)
    }

    fn close(self: Box<Self>, hca: &mut dyn Hca) {
        (*self).close(hca);
    }
}
