//! The bytes that cross the tunnel.
//!
//! Source of the layouts: the Linux guest driver's `struct mlx4_ib_tunnel_header` (VF to PF) and
//! `struct mlx4_ib_proxy_sqp_hdr` (PF to VF), as interfaces.

use hca_api::GlobalRoute;
use ib_wire::mad::Mad;
use ib_wire::packet::Grh;
use ib_wire::{GidIndex, Lid, PKeyIndex, QKey, Qpn, Sl};
use mlx4_defs::wqe::AddressVector;
use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::VirtualPKeyIndex;

/// Bytes of a tunnel frame in either direction, behind the 40 bytes of GRH space that every UD
/// receive buffer starts with.
pub const TUNNEL_FRAME_SIZE: usize = 312;

/// Why bytes are not a tunnel frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// Fewer than [`TUNNEL_FRAME_SIZE`] bytes.
    Short,
    /// More than [`TUNNEL_FRAME_SIZE`] bytes.
    Long,
}

/// Bit 7 of a byte: the GRH of a frame to a VF is valid.
const TOP_BIT: u8 = 0x80;

/// The global route that a guest's address vector asks for, if it wants a GRH. Its source GID index is
/// the guest's wish.
#[must_use]
pub fn global_route(av: &AddressVector) -> Option<GlobalRoute> {
    av.grh().then(|| GlobalRoute {
        remote_gid: av.dgid,
        sgid_index: GidIndex(u16::from(av.sgid_index)),
        flow_label: av.flow_label(),
        hop_limit: av.hop_limit,
        traffic_class: av.traffic_class(),
    })
}

/// What stands in front of a MAD from the VF to the PF. 56 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ToPfHeader {
    /// Where the MAD shall go.
    pub av: AddressVector,
    /// Reserved.
    pub reserved0: u8,
    /// The remote QP.
    pub remote_qpn: Qpn,
    /// The remote Q_Key.
    pub remote_qkey: QKey,
    /// Ethernet only.
    pub vlan: U16,
    /// Ethernet only.
    pub mac: [u8; 6],
    /// P_Key index in the VF's table.
    pub pkey_index: U16,
    /// Reserved; guests leave whatever was there.
    pub reserved1: [u8; 6],
}

const _: () = assert!(size_of::<ToPfHeader>() == 56);

impl ToPfHeader {
    /// The global route, if a GRH is wanted. Its source GID index is the guest's wish.
    #[must_use]
    pub fn global_route(&self) -> Option<GlobalRoute> {
        global_route(&self.av)
    }

    /// Writes the route. Indices beyond eight bits do not exist in this layout and are cut.
    pub fn set_route(&mut self, sl: Sl, path_bits: u8, route: Option<&GlobalRoute>) {
        let av = &mut self.av;
        av.sl_tclass_flow = U32::ZERO;
        av.set_sl(sl);
        av.set_path_bits(path_bits);
        av.set_grh(route.is_some());
        if let Some(route) = route {
            av.dgid = route.remote_gid;
            [_, av.sgid_index] = route.sgid_index.0.to_be_bytes();
            av.hop_limit = route.hop_limit;
            av.set_traffic_class(route.traffic_class);
            av.set_flow_label(route.flow_label);
        }
    }

    /// The P_Key index, not yet checked against the VF's table.
    #[must_use]
    pub fn virtual_pkey_index(&self) -> VirtualPKeyIndex {
        VirtualPKeyIndex(PKeyIndex(self.pkey_index.get()))
    }
}

/// A frame from the VF to the PF.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ToPf {
    /// Where the MAD shall go.
    pub header: ToPfHeader,
    /// The MAD.
    pub mad: Mad,
}

const _: () = assert!(size_of::<ToPf>() == TUNNEL_FRAME_SIZE);

/// What stands in front of a MAD from the PF to the VF. 56 bytes with the packet's GRH.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ToVfHeader {
    /// Reserved flags.
    pub flags: u8,
    /// The QP that sent the MAD.
    pub src_qpn: Qpn,
    /// Bit 7: `grh` is valid.
    pub grh_valid: u8,
    /// Reserved.
    pub reserved: u8,
    /// P_Key index in the VF's table.
    pub pkey_index: U16,
    /// SL in bits 15..12 (InfiniBand), VLAN (Ethernet).
    pub sl_vid: U16,
    /// Source LID.
    pub slid: Lid,
    /// Ethernet only.
    pub mac: [u8; 4],
    /// The GRH of the packet, zero if it had none.
    pub grh: Grh,
}

const _: () = assert!(size_of::<ToVfHeader>() == 56);

impl ToVfHeader {
    /// The header that delivers a MAD.
    #[must_use]
    pub fn new(
        src_qpn: Qpn,
        slid: Lid,
        sl: Sl,
        pkey_index: VirtualPKeyIndex,
        grh: Option<Grh>,
    ) -> Self {
        let mut header = Self::new_zeroed();
        header.src_qpn = src_qpn;
        header.slid = slid;
        header.sl_vid.set(u16::from(sl.get()) << 12);
        header.pkey_index.set(pkey_index.0.0);
        if let Some(grh) = grh {
            header.grh_valid = TOP_BIT;
            header.grh = grh;
        }
        header
    }

    /// The service level.
    #[must_use]
    pub fn sl(&self) -> Sl {
        Sl::from_low_bits((self.sl_vid.get() >> 12) as u8)
    }

    /// The packet's GRH, if it had one.
    #[must_use]
    pub const fn global_route_header(&self) -> Option<&Grh> {
        if self.grh_valid & TOP_BIT != 0 {
            Some(&self.grh)
        } else {
            None
        }
    }
}

/// A frame from the PF to the VF.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ToVf {
    /// Where the MAD came from.
    pub header: ToVfHeader,
    /// The MAD.
    pub mad: Mad,
}

const _: () = assert!(size_of::<ToVf>() == TUNNEL_FRAME_SIZE);

impl ToPf {
    /// Copies a frame out of exactly [`TUNNEL_FRAME_SIZE`] bytes. The copy is all that anybody looks
    /// at afterwards.
    ///
    /// # Errors
    /// [`FrameError`] for any other length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FrameError> {
        copy_exact(bytes)
    }

    /// The frame that asks the PF to send a MAD. Static rates are the PF's own business.
    #[must_use]
    pub fn new(
        vector: &hca_api::AddressVector,
        remote_qpn: Qpn,
        remote_qkey: QKey,
        pkey_index: VirtualPKeyIndex,
        mad: &Mad,
    ) -> Self {
        let mut frame = Self::new_zeroed();
        let header = &mut frame.header;
        header.av.set_port_number(vector.port.0);
        header.av.dlid = vector.dlid;
        header.set_route(vector.sl, vector.path_bits, vector.grh.as_ref());
        header.remote_qpn = remote_qpn;
        header.remote_qkey = remote_qkey;
        header.pkey_index.set(pkey_index.0.0);
        frame.mad = *mad;
        frame
    }

    /// A frame to fill in: all zero.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }
}

impl ToVf {
    /// Copies a frame out of exactly [`TUNNEL_FRAME_SIZE`] bytes.
    ///
    /// # Errors
    /// [`FrameError`] for any other length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FrameError> {
        copy_exact(bytes)
    }

    /// The frame that delivers a MAD.
    #[must_use]
    pub fn new(
        src_qpn: Qpn,
        slid: Lid,
        sl: Sl,
        pkey_index: VirtualPKeyIndex,
        grh: Option<Grh>,
        mad: Mad,
    ) -> Self {
        let header = ToVfHeader::new(src_qpn, slid, sl, pkey_index, grh);
        Self { header, mad }
    }
}

fn copy_exact<T: FromBytes>(bytes: &[u8]) -> Result<T, FrameError> {
    match T::read_from_bytes(bytes) {
        Ok(frame) => Ok(frame),
        Err(_) if bytes.len() < TUNNEL_FRAME_SIZE => Err(FrameError::Short),
        Err(_) => Err(FrameError::Long),
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use ib_wire::{Gid, PortNum, SubnetPrefix};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_frame_to_a_vf_has_the_packets_grh_or_none() {
        let grh = Grh::new_zeroed();
        let header = |grh| {
            let index = VirtualPKeyIndex(PKeyIndex(0));
            ToVfHeader::new(Qpn::GSI, Lid::new(3), Sl::default(), index, grh)
        };
        assert_eq!(header(Some(grh)).global_route_header(), Some(&grh));
        assert_eq!(header(None).global_route_header(), None);
    }

    #[test]
    fn a_guest_frame_is_read_at_the_offsets_of_the_driver() {
        let mut bytes = vec![0; TUNNEL_FRAME_SIZE];
        bytes[0] = 0x82; // loopback, port 2
        bytes[5] = 0x83; // GRH, path bits 3
        bytes[6..8].copy_from_slice(&[0x00, 0x05]);
        bytes[9] = 1;
        bytes[11] = 64;
        bytes[12..16].copy_from_slice(&0x3ab1_2345_u32.to_be_bytes());
        bytes[16..18].copy_from_slice(&[0xfe, 0x80]);
        bytes[33..36].copy_from_slice(&[0, 0, 1]);
        bytes[36..40].copy_from_slice(&0x8001_0000_u32.to_be_bytes());
        bytes[48..50].copy_from_slice(&[0, 7]);
        bytes[56] = 1;
        let frame = ToPf::from_bytes(&bytes).unwrap();
        assert_eq!(frame.header.av.port(), PortNum(2));
        assert_eq!(frame.header.av.path_bits(), 3);
        assert_eq!(frame.header.av.dlid, Lid::new(5));
        assert_eq!(frame.header.av.sl().get(), 3);
        let route = frame.header.global_route().unwrap();
        assert_eq!(route.remote_gid.prefix(), SubnetPrefix::DEFAULT);
        assert_eq!((route.traffic_class, route.flow_label), (0xab, 0x1_2345));
        assert_eq!((route.sgid_index, route.hop_limit), (GidIndex(1), 64));
        assert_eq!(frame.header.remote_qpn, Qpn::GSI);
        assert_eq!(frame.header.remote_qkey, QKey::GSI);
        assert_eq!(
            frame.header.virtual_pkey_index(),
            VirtualPKeyIndex(PKeyIndex(7))
        );
        assert_eq!(frame.mad.header.base_version, 1);
    }

    #[test]
    fn a_delivered_frame_is_written_at_the_offsets_of_the_driver() {
        let mut grh = Grh::new_zeroed();
        grh.as_mut_bytes()[24] = 0xfe;
        let mad = Mad::from_bytes(&[0xcc; 256]).unwrap();
        let frame = ToVf::new(
            Qpn::GSI,
            Lid::new(0x1234),
            Sl::from_low_bits(5),
            VirtualPKeyIndex(PKeyIndex(2)),
            Some(grh),
            mad,
        );
        let bytes = frame.as_bytes();
        assert_eq!(
            &bytes[..12],
            [0, 0, 0, 1, 0x80, 0, 0, 2, 0x50, 0, 0x12, 0x34]
        );
        assert_eq!(&bytes[12..16], [0; 4]);
        assert_eq!(bytes[16 + 24], 0xfe);
        assert!(bytes[56..].iter().all(|&b| b == 0xcc));
        assert_eq!(frame.header.sl().get(), 5);
    }

    #[test]
    fn a_delivery_without_grh_has_zeros_in_its_place() {
        let frame = ToVf::new(
            Qpn::GSI,
            Lid::new(1),
            Sl::default(),
            VirtualPKeyIndex(PKeyIndex(0)),
            None,
            Mad::default(),
        );
        assert!(frame.header.global_route_header().is_none());
        assert!(frame.header.grh.as_bytes().iter().all(|&b| b == 0));
    }

    #[test]
    fn other_lengths_are_refused() {
        assert_eq!(ToPf::from_bytes(&[0; 311]), Err(FrameError::Short));
        assert_eq!(ToPf::from_bytes(&[0; 313]), Err(FrameError::Long));
        assert_eq!(ToVf::from_bytes(&[]), Err(FrameError::Short));
    }

    proptest! {
        #[test]
        fn any_frame_is_encoded_as_it_was_decoded(
            bytes in prop::collection::vec(any::<u8>(), TUNNEL_FRAME_SIZE)
        ) {
            let to_pf = ToPf::from_bytes(&bytes).unwrap();
            prop_assert_eq!(to_pf.as_bytes(), &bytes[..]);
            let to_vf = ToVf::from_bytes(&bytes).unwrap();
            prop_assert_eq!(to_vf.as_bytes(), &bytes[..]);
        }

        #[test]
        fn a_route_reads_back_as_it_was_set(
            sl in 0_u8..16,
            path_bits in 0_u8..128,
            route in prop::option::of((any::<[u8; 16]>(), any::<u8>(), 0_u32..1 << 20, any::<u8>(), any::<u8>())),
        ) {
            let route = route.map(|(gid, index, flow_label, hop_limit, traffic_class)| GlobalRoute {
                remote_gid: Gid(gid),
                sgid_index: GidIndex(u16::from(index)),
                flow_label,
                hop_limit,
                traffic_class,
            });
            let mut header = ToPfHeader::new_zeroed();
            header.set_route(Sl::from_low_bits(sl), path_bits, route.as_ref());
            prop_assert_eq!(header.av.sl().get(), sl);
            prop_assert_eq!(header.av.path_bits(), path_bits);
            prop_assert_eq!(header.global_route(), route);
        }
    }
}
