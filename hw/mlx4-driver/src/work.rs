//! Send requests, as the driver writes them into slots.

use alloc::vec::Vec;

use hca_api::{GlobalRoute, UdAddress, UdDestination};
use ib_endpoint::MadAddress;
use ib_wire::{GidIndex, Lid, PortNum, QKey, Qpn, Sl};
use mlx4_defs::Pdn;
use mlx4_defs::wqe::{
    AddressVector, AtomicSegment, ControlSegment, DatagramSegment, INLINE_ALIGN, InlineHeader,
    RemoteAddressSegment, SEGMENT_UNIT, USE_QP_QKEY, WqeOpcode,
};
use vf_tunnel::ToPfHeader;
use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::DriverError;
use super::ring::Sge;

/// The bytes of a send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Gathered from memory.
    Gather(Vec<Sge>),
    /// In the request itself; for user-like queue pairs.
    Inline(Vec<u8>),
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The way (`struct mlx4_av`).
    pub av: AddressVector,
    /// The remote queue pair.
    pub qpn: Qpn,
    /// Its Q_Key, or one with the top bit set for the queue pair's own.
    pub qkey: QKey,
    /// The P_Key index, for special queue pairs.
    pub pkey_index: u16,
}

impl Destination {
    /// A queue pair at a port, reached without a GRH.
    #[must_use]
    pub fn new(pd: Pdn, port: PortNum, dlid: Lid, qpn: Qpn, qkey: QKey) -> Self {
        let mut av = AddressVector::default();
        let [_, pd @ ..] = pd.0.to_be_bytes();
        av.pd = pd;
        av.set_port_number(port.0);
        av.dlid = dlid;
        Self {
            av,
            qpn,
            qkey,
            pkey_index: 0,
        }
    }

    /// The same with a GRH.
    #[must_use]
    pub fn routed(mut self, route: &GlobalRoute) -> Self {
        self.av.set_grh(true);
        let GidIndex(index) = route.sgid_index;
        let [_, index] = index.to_be_bytes();
        self.av.sgid_index = index;
        self.av.hop_limit = route.hop_limit;
        self.av.dgid = route.remote_gid;
        self.av.set_traffic_class(route.traffic_class);
        self.av.set_flow_label(route.flow_label);
        self
    }

    /// The same on another service level.
    #[must_use]
    pub fn with_sl(mut self, sl: Sl) -> Self {
        self.av.set_sl(sl);
        self
    }

    /// Converts a destination of `ib_endpoint`. Returns `None` for a handle instead of a vector, which is none of the driver's.
    #[must_use]
    pub fn of_datagram(pd: Pdn, to: &UdDestination) -> Option<Self> {
        let UdAddress::Vector(vector) = to.address else {
            return None;
        };
        let plain = Self::new(pd, vector.port, vector.dlid, to.qpn, to.qkey).with_sl(vector.sl);
        let mut routed = vector.grh.map_or(plain, |route| plain.routed(&route));
        routed.av.set_path_bits(vector.path_bits);
        Some(routed)
    }

    /// Converts the address of a MAD.
    #[must_use]
    pub fn of_mad(pd: Pdn, port: PortNum, to: &MadAddress) -> Self {
        let plain = Self::new(pd, port, to.lid, to.qpn, to.qkey).with_sl(to.sl);
        let mut routed = to.grh.map_or(plain, |route| plain.routed(&route));
        routed.av.set_path_bits(to.path_bits);
        routed.pkey_index = to.pkey_index.0;
        routed
    }

    fn segment(&self) -> DatagramSegment {
        DatagramSegment {
            av: self.av,
            remote_qpn: self.qpn,
            qkey: self.qkey,
            ..DatagramSegment::default()
        }
    }

    /// Appends the address of the tunnel, and as the datagram's first bytes the one that is meant
    /// (`set_tunnel_datagram_seg`, `build_tunnel_header`).
    fn append_tunnelled(&self, tunnel: Qpn, bytes: &mut Vec<u8>) {
        let mut to_tunnel = DatagramSegment {
            remote_qpn: tunnel,
            qkey: QKey::new(USE_QP_QKEY),
            ..DatagramSegment::default()
        };
        to_tunnel.av.pd = self.av.pd;
        to_tunnel.av.set_port_number(self.av.port_number());
        to_tunnel.av.set_force_loopback(true);
        to_tunnel.av.set_path_bits(self.av.path_bits());
        to_tunnel.av.set_sl(self.av.sl());
        // Left by requests that had the slot before.
        to_tunnel.vlan = U16::new(0xdead);
        bytes.extend_from_slice(to_tunnel.as_bytes());
        let mut header = ToPfHeader::new_zeroed();
        header.av = self.av;
        header.remote_qpn = self.qpn;
        header.remote_qkey = self.qkey;
        header.pkey_index.set(self.pkey_index);
        header.reserved1 = [0xa5; 6];
        let length = InlineHeader::new(u16::try_from(size_of::<ToPfHeader>()).unwrap_or(0));
        bytes.extend_from_slice(length.as_bytes());
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&[0xa5; 4]);
    }
}

/// A byte of a peer's memory, and the key to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// Address, as the region counts.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
}

/// The operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Sends a datagram.
    Datagram(Destination),
    /// Sends to the peer of a connected queue pair.
    Send,
    /// Writes to the peer's memory.
    Write(Remote),
    /// Reads the peer's memory.
    Read(Remote),
    /// Replaces 8 bytes of the peer's memory if they have a value.
    CompareSwap {
        /// The bytes.
        remote: Remote,
        /// Value to compare with.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Adds to 8 bytes of the peer's memory.
    FetchAdd {
        /// The bytes.
        remote: Remote,
        /// The addend.
        add: u64,
    },
}

impl Operation {
    const fn opcode(self, has_immediate: bool) -> WqeOpcode {
        match (self, has_immediate) {
            (Self::Datagram(_) | Self::Send, false) => WqeOpcode::SEND,
            (Self::Datagram(_) | Self::Send, true) => WqeOpcode::SEND_IMM,
            (Self::Write(_), false) => WqeOpcode::RDMA_WRITE,
            (Self::Write(_), true) => WqeOpcode::RDMA_WRITE_IMM,
            (Self::Read(_), _) => WqeOpcode::RDMA_READ,
            (Self::CompareSwap { .. }, _) => WqeOpcode::ATOMIC_CS,
            (Self::FetchAdd { .. }, _) => WqeOpcode::ATOMIC_FA,
        }
    }

    /// Appends the segments that come before the data (`set_raddr_seg`, `set_atomic_seg`).
    fn append_segments(&self, tunnel: Option<Qpn>, bytes: &mut Vec<u8>) {
        let mut remote_segment = |remote: &Remote| {
            let segment = RemoteAddressSegment {
                address: U64::new(remote.addr),
                rkey: U32::new(remote.rkey),
                ..RemoteAddressSegment::default()
            };
            bytes.extend_from_slice(segment.as_bytes());
        };
        match self {
            Self::Datagram(to) => match tunnel {
                None => bytes.extend_from_slice(to.segment().as_bytes()),
                Some(tunnel) => to.append_tunnelled(tunnel, bytes),
            },
            Self::Send => {}
            Self::Write(remote) | Self::Read(remote) => remote_segment(remote),
            Self::CompareSwap {
                remote,
                compare,
                swap,
            } => {
                remote_segment(remote);
                let operands = AtomicSegment {
                    swap_add: U64::new(*swap),
                    compare: U64::new(*compare),
                };
                bytes.extend_from_slice(operands.as_bytes());
            }
            Self::FetchAdd { remote, add } => {
                remote_segment(remote);
                let operands = AtomicSegment {
                    swap_add: U64::new(*add),
                    ..AtomicSegment::default()
                };
                bytes.extend_from_slice(operands.as_bytes());
            }
        }
    }
}

/// A send request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendWork {
    /// The request's name.
    pub wr_id: u64,
    /// Bytes to send or write, or the place for those that are read.
    pub payload: Payload,
    /// Operation.
    pub operation: Operation,
    /// Immediate data of a send or a write.
    pub immediate: Option<[u8; 4]>,
    /// `true` if it completes with an entry.
    pub signaled: bool,
    /// `true` if the receiver is to be woken.
    pub solicited: bool,
}

impl SendWork {
    /// A signalled datagram.
    #[must_use]
    pub const fn new(wr_id: u64, payload: Payload, to: Destination) -> Self {
        Self::to_peer(wr_id, payload, Operation::Datagram(to))
    }

    /// A signalled request of a connected queue pair.
    #[must_use]
    pub const fn to_peer(wr_id: u64, payload: Payload, operation: Operation) -> Self {
        Self {
            wr_id,
            payload,
            operation,
            immediate: None,
            signaled: true,
            solicited: false,
        }
    }

    /// The request's segments for a queue pair with slots of so many bytes. The owner's bit is not set.
    pub(super) fn encode(&self, tunnel: Option<Qpn>, room: usize) -> Result<Vec<u8>, DriverError> {
        let mut bytes = Vec::with_capacity(room);
        bytes.resize(size_of::<ControlSegment>(), 0);
        self.operation.append_segments(tunnel, &mut bytes);
        match &self.payload {
            Payload::Gather(sges) => {
                for sge in sges {
                    bytes.extend_from_slice(sge.segment().as_bytes());
                }
            }
            Payload::Inline(data) => append_inline(&mut bytes, data),
        }
        if bytes.len() > room {
            return Err(DriverError::Usage("the request is too long for a slot"));
        }
        let units = u8::try_from(bytes.len() / SEGMENT_UNIT);
        let mut control = ControlSegment::default();
        control.set_size(units.map_err(|_| DriverError::Usage("the request is too long"))?);
        if self.signaled {
            control.set_completion(ControlSegment::SIGNALED);
        }
        control.set_solicited(self.solicited);
        control.immediate = self.immediate.unwrap_or_default();
        control.set_opcode(self.operation.opcode(self.immediate.is_some()));
        bytes[..size_of::<ControlSegment>()].copy_from_slice(control.as_bytes());
        Ok(bytes)
    }
}

/// Appends inline data as libmlx4 does: at each multiple of 64 bytes a new segment begins, and the
/// request ends at a multiple of 16.
fn append_inline(bytes: &mut Vec<u8>, mut data: &[u8]) {
    loop {
        let room = INLINE_ALIGN - (bytes.len() + size_of::<InlineHeader>()) % INLINE_ALIGN;
        let (here, rest) = data.split_at(room.min(data.len()));
        let header = InlineHeader::new(u16::try_from(here.len()).unwrap_or(0));
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(here);
        data = rest;
        if data.is_empty() {
            break;
        }
    }
    bytes.resize(bytes.len().next_multiple_of(SEGMENT_UNIT), 0);
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn to() -> Destination {
        Destination::new(Pdn(5), PortNum(1), Lid::new(7), Qpn::GSI, QKey::GSI)
    }

    #[test]
    fn a_tunnelled_request_has_its_data_at_128() {
        let sge = Sge {
            addr: 0x1000,
            len: 256,
            lkey: 9,
        };
        let work = SendWork::new(1, Payload::Gather(vec![sge]), to());
        let bytes = work.encode(Some(Qpn::from_low_bits(0x1234)), 256).unwrap();
        assert_eq!(bytes.len(), 0x90);
        assert_eq!(bytes[7], 9);
        assert_eq!(bytes[0x30..0x38], [0, 0, 0x12, 0x34, 0x80, 0, 0, 0]);
        assert_eq!(bytes[0x40..0x44], [0x80, 0, 0, 0x38]);
        assert_eq!(bytes[0x44 + 6..0x44 + 8], [0, 7]);
        assert_eq!(bytes[0x80..0x84], [0, 0, 1, 0]);
    }

    #[test]
    fn an_atomic_has_its_operands_between_the_remote_address_and_the_data() {
        let sge = Sge {
            addr: 0x1000,
            len: 8,
            lkey: 9,
        };
        let remote = Remote {
            addr: 0x2000,
            rkey: 7,
        };
        let swap = Operation::CompareSwap {
            remote,
            compare: 2,
            swap: 1,
        };
        let work = SendWork::to_peer(1, Payload::Gather(vec![sge]), swap);
        let bytes = work.encode(None, 64).unwrap();
        assert_eq!((bytes.len(), bytes[3], bytes[7]), (64, 0x11, 4));
        let words = [0, 0x2000, 7, 0, 0, 1, 0, 2, 8, 9, 0, 0x1000];
        let words: Vec<u8> = words
            .iter()
            .flat_map(|word: &u32| word.to_be_bytes())
            .collect();
        assert_eq!(bytes[16..], words);
    }

    #[test]
    fn inline_data_begins_anew_at_each_64_bytes() {
        let work = SendWork::new(1, Payload::Inline(vec![7; 100]), to());
        let bytes = work.encode(None, 256).unwrap();
        assert_eq!(bytes[64..68], [0x80, 0, 0, 60]);
        assert_eq!(bytes[128..132], [0x80, 0, 0, 40]);
        assert_eq!(bytes.len(), 176);
    }
}
