//! The PF's end of a VF's tunnel.

use hca_api::{CqHandle, FunctionManager, Hca, HcaError, QpKind, SpecialQp};
use ib_endpoint::{DatagramQp, DatagramQpSpec};
use ib_wire::{PKeyIndex, PortNum, QKey, Qpn};
use vf_tunnel::{DropReason, TUNNEL_FRAME_SIZE, ToPf, ToVf, VfId};
use zerocopy::IntoBytes;

use super::config::Depths;
use crate::delivery::{DeliveryClass, DeliveryQueue};

const FRAME_LEN: u32 = 312;

const _: () = assert!(FRAME_LEN as usize == TUNNEL_FRAME_SIZE);

/// What a tunnel QP received.
pub(super) enum Received {
    /// A frame of the VF's proxy QP.
    Frame,
    /// Something else.
    Refused(DropReason),
}

/// The tunnel QP of a VF's port and special QP, and what waits for it.
#[derive(Debug)]
pub(super) struct Tunnel {
    qp: DatagramQp,
    vf: VfId,
    special: SpecialQp,
    /// The number of the proxy QP, once it is known.
    partner: Option<Qpn>,
    waiting: DeliveryQueue<ToVf>,
    /// Receives that had failed when it was looked last.
    failed_receives: u64,
    refused_sends: u64,
}

impl Tunnel {
    pub(super) fn open(
        hca: &mut dyn Hca,
        vf: VfId,
        special: SpecialQp,
        port: PortNum,
        depths: &Depths,
    ) -> Result<Self, HcaError> {
        let kind = QpKind::Tunnel {
            function: vf.into(),
            special,
            port,
        };
        let spec = DatagramQpSpec {
            kind,
            port,
            pkey_index: PKeyIndex(0),
            // The key of the pair is the provider's.
            qkey: QKey::default(),
            receives: depths.tunnel_receives,
            sends: depths.tunnel_sends,
            max_message: FRAME_LEN,
            block_multicast_loopback: false,
        };
        Ok(Self {
            qp: DatagramQp::open(hca, spec)?,
            vf,
            special,
            partner: None,
            waiting: DeliveryQueue::new(depths.delivery),
            failed_receives: 0,
            refused_sends: 0,
        })
    }

    /// The number that the adapter has for the tunnel QP.
    pub(super) const fn qpn(&self) -> Qpn {
        self.qp.numbers().real
    }

    pub(super) const fn special(&self) -> SpecialQp {
        self.special
    }

    /// The queue that tells of receives and of completed sends.
    pub(super) const fn cq(&self) -> CqHandle {
        self.qp.cq()
    }

    /// Whether nothing waits and every buffer is where it belongs.
    pub(super) fn is_at_rest(&self) -> bool {
        self.waiting.is_empty() && self.qp.is_at_rest()
    }

    /// Frames that wait for a send buffer.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sends that the HCA refused: their buffers were free again at once.
    pub(super) const fn refused_sends(&self) -> u64 {
        self.refused_sends
    }

    /// Copies the next received frame out of the VF's reach.
    pub(super) fn receive(
        &mut self,
        hca: &mut dyn FunctionManager,
        frame: &mut ToPf,
    ) -> Option<Received> {
        let received = self.qp.poll_into(hca, frame.as_mut_bytes());
        let failed = self.qp.failures().1;
        if failed != self.failed_receives && received.is_none() {
            // Longer than a frame: the provider could not place it.
            self.failed_receives += 1;
            return Some(Received::Refused(DropReason::BadLength));
        }
        let received = received?;
        if !self.is_partner(hca, received.source.src_qpn) {
            return Some(Received::Refused(DropReason::ForeignSource));
        }
        if received.len != TUNNEL_FRAME_SIZE {
            return Some(Received::Refused(DropReason::BadLength));
        }
        Some(Received::Frame)
    }

    /// Whether a queue pair is the VF's proxy for this very port and special QP. The VF makes a new
    /// one after each reset, so the number that is known may be old.
    fn is_partner(&mut self, hca: &dyn FunctionManager, source: Qpn) -> bool {
        if self.partner != Some(source) {
            let port = self.qp.spec().port;
            let proxy = hca.proxy_qp(self.vf.into(), self.special, port);
            self.partner = proxy.ok().flatten().map(|numbers| numbers.real);
        }
        self.partner == Some(source)
    }

    /// Sends a frame to the VF, or lets it wait while no send buffer is free.
    pub(super) fn deliver(&mut self, hca: &mut dyn Hca, frame: &ToVf) -> Result<(), DropReason> {
        if self.waiting.is_empty() && self.qp.can_send() {
            self.post(hca, frame);
            return Ok(());
        }
        self.waiting.push(*frame, DeliveryClass::of(&frame.mad))?;
        self.flush(hca);
        Ok(())
    }

    /// Sends what waits, as far as there are buffers.
    pub(super) fn flush(&mut self, hca: &mut dyn Hca) {
        while self.qp.can_send()
            && let Some(frame) = self.waiting.pop()
        {
            self.post(hca, &frame);
        }
    }

    fn post(&mut self, hca: &mut dyn Hca, frame: &ToVf) {
        let sent = self.qp.send(hca, None, frame.as_bytes());
        self.refused_sends += u64::from(sent.is_err());
    }

    /// Asks for an event when there is something to receive or a send is done. `true` if there is
    /// already.
    pub(super) fn arm(&self, hca: &mut dyn Hca) -> bool {
        self.qp.arm(hca)
    }

    /// Forgets what waits: the VF was reset.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.partner = None;
    }

    pub(super) fn close(self, hca: &mut dyn Hca) {
        self.qp.close(hca);
    }
}
