//! The two datagrams of the protocol, and the names of its sockets.
//!
//! The protocol is that of `ibsim` 0.7 to 0.12 and its client library `libumad2sim` (`struct sim_ctl`
//! and `struct sim_request` of `ibsim.h`). Datagrams are C structures as they lie in memory: control
//! datagrams are in host byte order throughout, and MAD datagrams hold values in network byte order in
//! fields of the host. The latter are given here as a little-endian host lays them out.

use core::fmt;

use ib_wire::Lid;
use ib_wire::mad::{MAD_SIZE, Mad};
use zerocopy::native_endian::{U16 as HostU16, U32 as HostU32, U64 as HostU64};
use zerocopy::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a control datagram.
pub const CONTROL_SIZE: usize = 80;

/// Bytes of a MAD datagram.
pub const MAD_DATAGRAM_SIZE: usize = 288;

/// The UDP port of a server's control socket unless told otherwise; that of slot `i` is `i + 1` higher.
pub const DEFAULT_UDP_PORT: u16 = 7070;

/// Slots of a stock server. Ours has more: the names and numbers of their sockets go on likewise.
pub const STOCK_SLOTS: u32 = 10;

/// What a control datagram is about (`ctl_type`).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(transparent)]
pub struct ControlKind(HostU32);

impl ControlKind {
    /// A reply only: the request failed.
    pub const ERROR: Self = Self::new(0);
    /// Attach to a port; see [`Connect`].
    pub const CONNECT: Self = Self::new(1);
    /// Detach.
    pub const DISCONNECT: Self = Self::new(2);
    /// Read LID and state of the port; see [`PortData`].
    pub const GET_PORT: Self = Self::new(3);
    /// Read what the adapter is; see [`VendorData`].
    pub const GET_VENDOR: Self = Self::new(4);
    /// Read the port's GID: 16 bytes.
    pub const GET_GID: Self = Self::new(5);
    /// Read the node GUID: 8 bytes.
    pub const GET_GUID: Self = Self::new(6);
    /// Read NodeInfo: the attribute's 40 bytes.
    pub const GET_NODE_INFO: Self = Self::new(7);
    /// Read PortInfo of the port whose number is the first byte, 0 for the own one: the attribute's 64
    /// bytes.
    pub const GET_PORT_INFO: Self = Self::new(8);
    /// Set PortInfo:CapabilityMask.IsSM as the first four bytes say, a number in host byte order.
    pub const SET_IS_SM: Self = Self::new(9);
    /// Read the first 32 P_Keys: 64 bytes.
    pub const GET_PKEYS: Self = Self::new(10);

    /// The kind with this number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(HostU32::new(number))
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

/// A control datagram (`struct sim_ctl`), in host byte order. A reply repeats the request but for the
/// data.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Control {
    /// [`Control::MAGIC`].
    pub magic: HostU32,
    /// The client's slot; 0 while it connects.
    pub slot: HostU32,
    /// What it is about.
    pub kind: ControlKind,
    /// Bytes of data that mean something, as the sender says.
    pub len: HostU32,
    /// The data.
    pub data: [u8; 64],
}

impl Control {
    /// The magic number.
    pub const MAGIC: u32 = 0xdead_beef;

    /// A datagram with this data, of which the rest is zero.
    #[must_use]
    pub fn new<T: IntoBytes + Immutable>(kind: ControlKind, slot: u32, data: &T) -> Self {
        const { assert!(size_of::<T>() <= 64) };
        let mut control = Self {
            magic: Self::MAGIC.into(),
            slot: slot.into(),
            kind,
            len: u32::try_from(size_of::<T>()).unwrap_or(64).into(),
            data: [0; 64],
        };
        control.set_data(data);
        control
    }

    /// The datagram in these bytes; `None` for another size or magic number.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let control = Self::read_from_bytes(bytes).ok()?;
        (control.magic.get() == Self::MAGIC).then_some(control)
    }

    /// The data as a layout.
    #[must_use]
    pub fn data<T: FromBytes>(&self) -> T {
        const { assert!(size_of::<T>() <= 64) };
        match T::read_from_prefix(&self.data) {
            Ok((data, _)) => data,
            Err(_) => unreachable!("the size is checked at compile time"),
        }
    }

    /// Writes the data, and zero behind it.
    pub fn set_data<T: IntoBytes + Immutable + ?Sized>(&mut self, data: &T) {
        self.data = [0; 64];
        for (to, from) in self.data.iter_mut().zip(data.as_bytes()) {
            *to = *from;
        }
    }
}

/// The data of [`ControlKind::CONNECT`] (`struct sim_client_info`), in host byte order.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Connect {
    /// Asked: what names the client's data socket: a number of its own choice in `<base>:in<id>`, or a
    /// UDP port. Replied: the slot.
    pub id: HostU32,
    /// A QP of the client's other than QP0 and QP1, or 0. `libumad2sim` has none.
    pub qpn: HostU32,
    /// Whether the client takes requests; not 0 for yes.
    pub takes_requests: HostU32,
    /// The node to attach to by its id or description, ended by a zero unless all 32 bytes are used.
    /// Empty for the first node.
    pub node: [u8; 32],
}

impl Connect {
    /// The name in [`Connect::node`].
    #[must_use]
    pub fn node_name(&self) -> &[u8] {
        let end = self.node.iter().position(|byte| *byte == 0);
        &self.node[..end.unwrap_or(self.node.len())]
    }

    /// Writes the name, cut to 31 bytes.
    pub fn set_node_name(&mut self, name: &[u8]) {
        self.node = [0; 32];
        for (to, from) in self.node[..31].iter_mut().zip(name) {
            *to = *from;
        }
    }
}

/// The data of [`ControlKind::GET_VENDOR`] (`struct sim_vendor`), in host byte order.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct VendorData {
    /// NodeInfo:VendorID.
    pub vendor_id: HostU32,
    /// NodeInfo:DeviceID.
    pub device_id: HostU32,
    /// NodeInfo:Revision.
    pub revision: HostU32,
    /// Filler of the structure.
    pub filler: HostU32,
    /// Version of the firmware.
    pub firmware: HostU64,
}

/// The data of [`ControlKind::GET_PORT`] (`struct sim_port`), in host byte order.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct PortData {
    /// PortInfo:LID.
    pub lid: HostU16,
    /// PortInfo:PortState.
    pub state: u8,
}

/// A LID in a 32-bit field of a little-endian host that holds it in network byte order.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct WideLid {
    /// The LID.
    pub lid: Lid,
    /// The rest of the field, zero.
    pub rest: [u8; 2],
}

impl From<Lid> for WideLid {
    fn from(lid: Lid) -> Self {
        Self { lid, rest: [0; 2] }
    }
}

/// A MAD datagram (`struct sim_request`).
///
/// What it cannot carry: SL, P_Key, Q_Key, path bits and a GRH.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MadDatagram {
    /// Destination LID; the permissive one for directed routes.
    pub dlid: WideLid,
    /// Source LID; 0 if the server shall fill it in.
    pub slid: WideLid,
    /// Destination QP.
    pub dqp: U32,
    /// Source QP.
    pub sqp: U32,
    /// 0, or [`MadDatagram::TIMED_OUT`] in a request that comes back.
    pub status: U32,
    /// Filler of the structure.
    pub filler: [u8; 4],
    /// Bytes of the MAD that mean something. What is behind them is whatever was in memory.
    pub length: U64,
    /// The MAD.
    pub mad: [u8; MAD_SIZE],
}

impl MadDatagram {
    /// The status of a request that reached nobody: `ETIMEDOUT`.
    pub const TIMED_OUT: u32 = 110;

    /// A datagram with a whole MAD.
    #[must_use]
    pub fn new(slid: Lid, dlid: Lid, sqp: u32, dqp: u32, mad: &Mad) -> Self {
        let mut datagram = Self {
            dlid: dlid.into(),
            slid: slid.into(),
            dqp: dqp.into(),
            sqp: sqp.into(),
            status: 0.into(),
            filler: [0; 4],
            length: (MAD_SIZE as u64).into(),
            mad: [0; MAD_SIZE],
        };
        datagram.mad.copy_from_slice(mad.as_bytes());
        datagram
    }

    /// The datagram in these bytes; `None` for another size.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Self::read_from_bytes(bytes).ok()
    }

    /// The MAD, with zero for what does not mean anything.
    #[must_use]
    pub fn mad(&self) -> Mad {
        let length = usize::try_from(self.length.get()).unwrap_or(MAD_SIZE);
        let length = length.min(MAD_SIZE);
        let mut bytes = [0; MAD_SIZE];
        bytes[..length].copy_from_slice(&self.mad[..length]);
        let mut mad = Mad::default();
        mad.as_mut_bytes().copy_from_slice(&bytes);
        mad
    }
}

impl fmt::Debug for MadDatagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MadDatagram")
            .field("slid", &self.slid.lid)
            .field("dlid", &self.dlid.lid)
            .field("sqp", &self.sqp.get())
            .field("dqp", &self.dqp.get())
            .field("status", &self.status.get())
            .field("length", &self.length.get())
            .field("header", &self.mad().header)
            .finish()
    }
}

const _: () = {
    assert!(size_of::<Control>() == CONTROL_SIZE && align_of::<Control>() == 1);
    assert!(size_of::<Connect>() == 44 && size_of::<VendorData>() == 24);
    assert!(size_of::<MadDatagram>() == MAD_DATAGRAM_SIZE && align_of::<MadDatagram>() == 1);
};

/// A socket of the protocol in the abstract Unix name space. Each name ends with a zero byte that is
/// part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketName {
    /// The server's for control datagrams: `<base>:ctl`.
    ServerControl,
    /// The server's for the MADs of a slot: `<base>:out<slot>`.
    ServerData(u32),
    /// A client's for control datagrams: `<base>:ctl<pid>`.
    ClientControl(u32),
    /// A client's for MADs: `<base>:in<id>`, with the id of its [`Connect`].
    ClientData(u32),
}

impl SocketName {
    /// The name without the leading zero that makes it abstract; with the trailing one.
    #[must_use]
    pub fn bytes(self, base: &str) -> Vec<u8> {
        let name = match self {
            Self::ServerControl => format!("{base}:ctl\0"),
            Self::ServerData(slot) => format!("{base}:out{slot}\0"),
            Self::ClientControl(pid) => format!("{base}:ctl{pid}\0"),
            Self::ClientData(id) => format!("{base}:in{id}\0"),
        };
        name.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::mad::{MadHeader, Method, MgmtClass};

    use super::*;

    #[test]
    fn a_connect_is_read_and_written_as_umad2sim_sends_it() {
        let mut bytes = [0; CONTROL_SIZE];
        bytes[..28].copy_from_slice(&[
            0xef, 0xbe, 0xad, 0xde, 0, 0, 0, 0, 1, 0, 0, 0, 0x2c, 0, 0, 0, 0x15, 0x61, 0, 0, 0, 0,
            0, 0, 1, 0, 0, 0,
        ]);
        bytes[28..33].copy_from_slice(b"hostA");
        let control = Control::parse(&bytes).unwrap();
        assert_eq!(control.kind, ControlKind::CONNECT);
        let connect: Connect = control.data();
        assert_eq!((connect.id.get(), connect.qpn.get()), (24853, 0));
        assert_eq!(connect.takes_requests.get(), 1);
        assert_eq!(connect.node_name(), b"hostA");
        let again = Control::new(ControlKind::CONNECT, 0, &connect);
        assert_eq!(again.as_bytes(), bytes);
    }

    #[test]
    fn control_datagrams_of_another_size_or_magic_number_are_none() {
        let control = Control::new(ControlKind::GET_PKEYS, 3, &[0_u8; 64]);
        let mut bytes = control.as_bytes().to_vec();
        assert_eq!(Control::parse(&bytes), Some(control));
        assert_eq!(Control::parse(&bytes[..79]), None);
        bytes[0] ^= 1;
        assert_eq!(Control::parse(&bytes), None);
    }

    #[test]
    fn a_name_of_32_bytes_has_no_end_and_one_that_is_written_has() {
        let mut connect: Connect = Control::new(ControlKind::CONNECT, 0, &[b'x'; 64]).data();
        assert_eq!(connect.node_name(), [b'x'; 32]);
        connect.set_node_name(&[b'y'; 40]);
        assert_eq!(connect.node_name(), [b'y'; 31]);
    }

    #[test]
    fn bytes_behind_the_length_of_a_mad_do_not_count() {
        let mut mad = Mad::new(MadHeader::new(
            MgmtClass::SUBN_ADM,
            Method::GET,
            ib_wire::mad::AttributeId::new(0x35),
        ));
        mad.data.fill(0xa5);
        let mut datagram = MadDatagram::new(Lid::new(2), Lid::new(1), 1, 1, &mad);
        assert_eq!(datagram.mad(), mad);
        assert_eq!(datagram.as_bytes()[..6], [0, 1, 0, 0, 0, 2]);
        datagram.length = 56.into();
        assert_eq!(datagram.mad().header, mad.header);
        assert_eq!(datagram.mad().data[..32], [0xa5; 32]);
        assert!(datagram.mad().data[32..].iter().all(|byte| *byte == 0));
        datagram.length = u64::MAX.into();
        assert_eq!(datagram.mad(), mad);
    }

    #[test]
    fn names_of_sockets_end_with_a_zero() {
        let names = [
            SocketName::ServerControl,
            SocketName::ServerData(12),
            SocketName::ClientControl(7),
            SocketName::ClientData(99),
        ];
        let names = names.map(|name| name.bytes("sim"));
        let expected: [&[u8]; 4] = [b"sim:ctl\0", b"sim:out12\0", b"sim:ctl7\0", b"sim:in99\0"];
        assert_eq!(names, expected);
    }
}
