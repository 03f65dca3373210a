//! A VF's proxy of a special QP, as the endpoint's machines need one.

use hca_api::{AddressVector, GlobalRoute, Hca, HcaError, QpKind, SpecialQp};
use ib_endpoint::{DatagramQp, DatagramQpSpec, MadAddress, MadTransport};
use ib_wire::mad::Mad;
use ib_wire::packet::Grh;
use ib_wire::{GidIndex, PKeyIndex, PortNum, QKey};
use vf_tunnel::{TUNNEL_FRAME_SIZE, ToPf, ToVf, ToVfHeader, VirtualPKeyIndex};
use zerocopy::{FromZeros, IntoBytes};

/// Bytes of a tunnel frame, as the verbs count them.
const FRAME_LEN: u32 = 312;

const _: () = assert!(FRAME_LEN as usize == TUNNEL_FRAME_SIZE);

/// The proxy QP of a VF's port: MADs of the VF, in the frames of the tunnel.
#[derive(Debug)]
pub struct ProxyQp {
    qp: DatagramQp,
    /// The key of the special QP that this stands for.
    qkey: QKey,
    malformed: u64,
}

impl ProxyQp {
    /// Makes the proxy QP on a VF's function, with room for so many MADs each way.
    ///
    /// # Errors
    /// Those of [`DatagramQp::open`]; [`HcaError::SpecialQpTaken`] if somebody has it.
    pub fn open(
        hca: &mut dyn Hca,
        special: SpecialQp,
        port: PortNum,
        depth: u32,
    ) -> Result<Self, HcaError> {
        let spec = DatagramQpSpec {
            kind: QpKind::Proxy { special, port },
            port,
            pkey_index: PKeyIndex(0),
            // The key of the pair is the provider's, and a VF may set no controlled one.
            qkey: QKey::default(),
            receives: depth,
            sends: depth,
            max_message: FRAME_LEN,
            block_multicast_loopback: false,
        };
        let qkey = match special {
            SpecialQp::Smi => QKey::SMI,
            SpecialQp::Gsi => QKey::GSI,
        };
        Ok(Self {
            qp: DatagramQp::open(hca, spec)?,
            qkey,
            malformed: 0,
        })
    }

    /// Received messages that were no tunnel frames, and so were dropped.
    #[must_use]
    pub const fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Whether every buffer is where it belongs; see [`DatagramQp::is_at_rest`].
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.qp.is_at_rest()
    }

    /// The address of a delivered MAD's sender, as a packet on a QP1 of the VF's own would give it.
    fn sender(&self, header: &ToVfHeader) -> MadAddress {
        MadAddress {
            lid: header.slid,
            qpn: header.src_qpn,
            qkey: self.qkey,
            sl: header.sl(),
            pkey_index: PKeyIndex(header.pkey_index.get()),
            path_bits: 0,
            grh: header.global_route_header().map(route_back),
        }
    }
}

/// The route that answers a packet. A VF has one GID, at index 0.
fn route_back(grh: &Grh) -> GlobalRoute {
    GlobalRoute {
        remote_gid: grh.sgid,
        sgid_index: GidIndex(0),
        flow_label: grh.flow_label(),
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class(),
    }
}

/// The frame that asks the PF to send a MAD.
fn frame(port: PortNum, to: &MadAddress, mad: &Mad) -> ToPf {
    let vector = AddressVector {
        port,
        dlid: to.lid,
        sl: to.sl,
        path_bits: to.path_bits,
        static_rate: None,
        grh: to.grh,
    };
    let pkey_index = VirtualPKeyIndex(to.pkey_index);
    ToPf::new(&vector, to.qpn, to.qkey, pkey_index, mad)
}

impl MadTransport for ProxyQp {
    fn port(&self) -> PortNum {
        self.qp.spec().port
    }

    fn can_send(&self) -> bool {
        self.qp.can_send()
    }

    fn send(&mut self, hca: &mut dyn Hca, to: &MadAddress, mad: &Mad) -> Result<(), HcaError> {
        let frame = frame(self.port(), to, mad);
        self.qp.send(hca, None, frame.as_bytes())
    }

    fn poll(&mut self, hca: &mut dyn Hca) -> Option<(MadAddress, Mad)> {
        let mut frame = ToVf::new_zeroed();
        loop {
            let received = self.qp.poll_into(hca, frame.as_mut_bytes())?;
            if received.len == TUNNEL_FRAME_SIZE {
                return Some((self.sender(&frame.header), frame.mad));
            }
            self.malformed += 1;
        }
    }

    fn arm(&self, hca: &mut dyn Hca) -> bool {
        self.qp.arm(hca)
    }

    fn close(self: Box<Self>, hca: &mut dyn Hca) {
        self.qp.close(hca);
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::{Gid, Lid, Qpn, Sl, SubnetPrefix};

    use super::*;

    #[test]
    fn a_frame_names_what_the_mad_was_sent_to() {
        let route = GlobalRoute {
            remote_gid: Gid::from_parts(SubnetPrefix::DEFAULT, ib_wire::Guid::new(7)),
            sgid_index: GidIndex(0),
            flow_label: 0x1_2345,
            hop_limit: 9,
            traffic_class: 3,
        };
        let to = MadAddress {
            sl: Sl::from_low_bits(4),
            pkey_index: PKeyIndex(2),
            path_bits: 1,
            grh: Some(route),
            ..MadAddress::gsi(Lid::new(5))
        };
        let frame = frame(PortNum(2), &to, &Mad::default());
        assert_eq!(frame.header.av.port(), PortNum(2));
        assert_eq!(frame.header.av.dlid, Lid::new(5));
        assert_eq!(frame.header.av.sl(), Sl::from_low_bits(4));
        assert_eq!(frame.header.av.path_bits(), 1);
        assert_eq!(frame.header.global_route(), Some(route));
        assert_eq!(frame.header.remote_qpn, Qpn::GSI);
        assert_eq!(frame.header.remote_qkey, QKey::GSI);
        assert_eq!(frame.header.virtual_pkey_index().0, PKeyIndex(2));
    }
}
