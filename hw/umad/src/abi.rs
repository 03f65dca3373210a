//! The layouts that Linux' umad shares with programs (`rdma/ib_user_mad.h`). Integers are in the
//! host's byte order unless their type says otherwise.

use hca_api::GlobalRoute;
use ib_endpoint::MadAddress;
use ib_wire::{Gid, GidIndex, Lid, PKeyIndex, QKey, Qpn, Sl};
use linux_abi::abi_layout;
use zerocopy::native_endian::{U16, U32, U64};
use zerocopy::{IntoBytes, network_endian};

/// Agents that one open file may have (`IB_UMAD_MAX_AGENTS`).
pub const MAX_AGENTS: usize = 32;

/// Bytes of the header before each MAD once the file has P_Key indices.
pub const HEADER_SIZE: usize = size_of::<UmadHeader>();

/// Bytes of the header without P_Key index, which files begin with (`struct ib_user_mad_hdr_old`).
pub const OLD_HEADER_SIZE: usize = 56;

/// The requests of `ioctl`, in the coding of Linux (`_IOWR(0x1b, …)`).
pub mod ioctl {
    /// `IB_USER_MAD_REGISTER_AGENT`.
    pub const REGISTER_AGENT: u32 = 0xc01c_1b01;
    /// `IB_USER_MAD_UNREGISTER_AGENT`.
    pub const UNREGISTER_AGENT: u32 = 0x4004_1b02;
    /// `IB_USER_MAD_ENABLE_PKEY`.
    pub const ENABLE_PKEY: u32 = 0x0000_1b03;
    /// `IB_USER_MAD_REGISTER_AGENT2`.
    pub const REGISTER_AGENT2: u32 = 0xc028_1b04;
}

abi_layout! {
    /// What stands before each MAD (`struct ib_user_mad_hdr`). The old form ends before
    /// `pkey_index`.
    pub UmadHeader, 64 {
        /// The agent of this file that sends or received the MAD.
        pub id: U32,
        /// Read: 0, or the error with which a request comes back.
        pub status: U32,
        /// Write: milliseconds to wait for an answer; 0 expects none.
        pub timeout_ms: U32,
        /// Write: how often to repeat an unanswered request.
        pub retries: U32,
        /// Read: bytes of header and MAD.
        pub length: U32,
        /// The remote QP.
        pub qpn: network_endian::U32,
        /// Write: the Q_Key to send with.
        pub qkey: network_endian::U32,
        /// The remote LID.
        pub lid: Lid,
        /// Service level.
        pub sl: u8,
        /// Low bits of the local LID.
        pub path_bits: u8,
        /// Whether the MAD has a GRH: not 0 if it has.
        pub grh_present: u8,
        /// Index of the local GID.
        pub gid_index: u8,
        /// Hop limit of the GRH.
        pub hop_limit: u8,
        /// Traffic class of the GRH.
        pub traffic_class: u8,
        /// The remote GID.
        pub gid: [u8; 16],
        /// Flow label of the GRH.
        pub flow_label: network_endian::U32,
        /// Index into the port's P_Key table.
        pub pkey_index: U16,
        /// Reserved.
        pub reserved: [u8; 6],
    }
}

impl UmadHeader {
    /// The header at the start of what a program wrote, in the form of so many bytes. `None` if the
    /// bytes are too few.
    #[must_use]
    pub fn read(bytes: &[u8], header_size: usize) -> Option<Self> {
        let mut header = Self::default();
        let given = bytes.get(..header_size)?;
        header
            .as_mut_bytes()
            .get_mut(..header_size)?
            .copy_from_slice(given);
        Some(header)
    }

    /// Where the MAD goes.
    #[must_use]
    pub fn address(&self) -> MadAddress {
        MadAddress {
            lid: self.lid,
            qpn: Qpn::from_low_bits(self.qpn.get()),
            qkey: QKey::new(self.qkey.get()),
            sl: Sl::from_low_bits(self.sl),
            pkey_index: PKeyIndex(self.pkey_index.get()),
            path_bits: self.path_bits,
            grh: (self.grh_present != 0).then(|| GlobalRoute {
                remote_gid: Gid(self.gid),
                sgid_index: GidIndex(u16::from(self.gid_index)),
                flow_label: self.flow_label.get() & 0x000f_ffff,
                hop_limit: self.hop_limit,
                traffic_class: self.traffic_class,
            }),
        }
    }

    /// Returns the header of a MAD that an agent sends to an address, and for whose answer umad waits so many milliseconds, without
    /// repeating it; with 0 there will be none. Of the index of the source GID eight bits are kept.
    #[must_use]
    pub fn to_send(id: u32, timeout_ms: u32, to: &MadAddress) -> Self {
        Self {
            timeout_ms: timeout_ms.into(),
            qkey: to.qkey.get().into(),
            hop_limit: to.grh.map_or(0, |route| route.hop_limit),
            ..Self::received(id, to)
        }
    }

    /// The header of a received MAD. As in the kernel the Q_Key is not told, and the hop limit is the one with which an answer
    /// is to leave (`ib_init_ah_attr_from_wc`).
    #[must_use]
    pub fn received(id: u32, from: &MadAddress) -> Self {
        let mut header = Self {
            id: id.into(),
            qpn: from.qpn.get().into(),
            lid: from.lid,
            sl: from.sl.get(),
            path_bits: from.path_bits,
            pkey_index: from.pkey_index.0.into(),
            ..Self::default()
        };
        if let Some(route) = &from.grh {
            header.grh_present = 1;
            header.gid_index = u8::try_from(route.sgid_index.0).unwrap_or(0);
            header.hop_limit = u8::MAX;
            header.traffic_class = route.traffic_class;
            header.gid = route.remote_gid.0;
            header.flow_label = route.flow_label.into();
        }
        header
    }
}

abi_layout! {
    /// The argument of [`ioctl::REGISTER_AGENT`] (`struct ib_user_mad_reg_req`).
    pub RegisterRequest, 28 {
        /// Filled in: the agent's number in this file.
        pub id: U32,
        /// The requests that the agent takes: bit `n` for method `n`.
        pub method_mask: [U64; 2],
        /// 0 or 1.
        pub qpn: u8,
        /// Management class; 0 for an agent that only sends.
        pub mgmt_class: u8,
        /// Version of the class.
        pub mgmt_class_version: u8,
        /// The vendor, of classes 0x30 to 0x4F.
        pub oui: [u8; 3],
        /// 1 to have RMPP done for the agent, 0 to get its packets one by one.
        pub rmpp_version: u8,
        /// Padding.
        pub padding: u8,
    }
}

abi_layout! {
    /// The argument of [`ioctl::REGISTER_AGENT2`] (`struct ib_user_mad_reg_req2`).
    pub RegisterRequest2, 40 {
        /// Filled in: the agent's number in this file.
        pub id: U32,
        /// 0 or 1.
        pub qpn: U32,
        /// Management class; 0 for an agent that only sends.
        pub mgmt_class: u8,
        /// Version of the class.
        pub mgmt_class_version: u8,
        /// Reserved.
        pub reserved: U16,
        /// See [`RegisterRequest2::USER_RMPP`].
        pub flags: U32,
        /// The requests that the agent takes: bit `n` for method `n`.
        pub method_mask: [U64; 2],
        /// The vendor, of classes 0x30 to 0x4F: 24 bits.
        pub oui: U32,
        /// 1 to have RMPP done for the agent, 0 to get its packets one by one.
        pub rmpp_version: u8,
        /// Reserved.
        pub reserved2: [u8; 3],
    }
}

impl RegisterRequest2 {
    /// The agent does RMPP itself whatever its RMPP version says (`IB_USER_MAD_USER_RMPP`).
    pub const USER_RMPP: u32 = 1;
}

impl From<RegisterRequest> for RegisterRequest2 {
    fn from(old: RegisterRequest) -> Self {
        let [high, middle, low] = old.oui;
        Self {
            id: old.id,
            qpn: u32::from(old.qpn).into(),
            mgmt_class: old.mgmt_class,
            mgmt_class_version: old.mgmt_class_version,
            method_mask: old.method_mask,
            oui: u32::from_be_bytes([0, high, middle, low]).into(),
            rmpp_version: old.rmpp_version,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_gives_the_address_that_it_was_made_from() {
        let from = MadAddress {
            lid: Lid::new(5),
            qpn: Qpn::GSI,
            qkey: QKey::new(0),
            sl: Sl::from_low_bits(3),
            pkey_index: PKeyIndex(7),
            path_bits: 2,
            grh: Some(GlobalRoute {
                remote_gid: Gid([9; 16]),
                sgid_index: GidIndex(1),
                flow_label: 0xabcde,
                hop_limit: 255,
                traffic_class: 8,
            }),
        };
        let header = UmadHeader::received(4, &from);
        assert_eq!(header.id.get(), 4);
        assert_eq!(header.address(), from);
        let bytes = header.as_bytes();
        assert_eq!(bytes[20..24], [0, 0, 0, 1], "the QP number is big endian");
        assert_eq!(bytes[28..34], [0, 5, 3, 2, 1, 1]);
        assert_eq!(UmadHeader::read(bytes, HEADER_SIZE), Some(header));
    }

    #[test]
    fn a_header_sends_to_the_address_that_it_was_made_from() {
        let mut to = MadAddress::gsi(Lid::new(5));
        for grh in [None, Some(3)] {
            to.grh = grh.map(|hop_limit| GlobalRoute {
                remote_gid: Gid([9; 16]),
                sgid_index: GidIndex(1),
                flow_label: 7,
                hop_limit,
                traffic_class: 8,
            });
            let header = UmadHeader::to_send(4, 100, &to);
            assert_eq!((header.id.get(), header.timeout_ms.get()), (4, 100));
            assert_eq!(header.address(), to);
        }
    }

    #[test]
    fn the_old_header_has_no_pkey_index() {
        let mut bytes = [0xff; HEADER_SIZE];
        bytes[56] = 1;
        let header = UmadHeader::read(&bytes, OLD_HEADER_SIZE).unwrap();
        assert_eq!(header.pkey_index.get(), 0);
        assert!(UmadHeader::read(&bytes[..55], OLD_HEADER_SIZE).is_none());
    }

    #[test]
    fn the_numbers_of_ioctls_are_those_of_the_header_file() {
        let number = |direction: u32, size: usize, nr: u32| {
            direction << 30 | u32::try_from(size).unwrap() << 16 | 0x1b << 8 | nr
        };
        assert_eq!(
            ioctl::REGISTER_AGENT,
            number(3, size_of::<RegisterRequest>(), 1)
        );
        assert_eq!(ioctl::UNREGISTER_AGENT, number(1, 4, 2));
        assert_eq!(ioctl::ENABLE_PKEY, number(0, 0, 3));
        assert_eq!(
            ioctl::REGISTER_AGENT2,
            number(3, size_of::<RegisterRequest2>(), 4)
        );
    }

    #[test]
    fn the_old_request_means_the_same_in_the_new_form() {
        let old = RegisterRequest {
            qpn: 1,
            mgmt_class: 0x32,
            mgmt_class_version: 1,
            oui: [0, 0x14, 5],
            rmpp_version: 1,
            method_mask: [2.into(), 4.into()],
            ..RegisterRequest::default()
        };
        let new = RegisterRequest2::from(old);
        assert_eq!(new.oui.get(), 0x1405);
        assert_eq!(new.method_mask, old.method_mask);
        assert_eq!(new.flags.get(), 0);
    }
}
