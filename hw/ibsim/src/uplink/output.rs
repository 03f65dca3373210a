//! What comes out of an uplink, and where it stands.

use core::fmt;

use ib_fabric::Frame;
use ib_vtime::Instant;
use ib_wire::Guid;

use crate::codec::{CONTROL_SIZE, MAD_DATAGRAM_SIZE};

/// What the uplink wants done. In order: what is on the way to the adapter or to the simulator must
/// not overtake the rest.
#[derive(Clone, Debug)]
pub enum UplinkOutput {
    /// Open the two sockets: bind the control socket and connect it to the simulator's, bind the data
    /// socket. Then call [`Uplink::opened`](super::Uplink::opened), or
    /// [`Uplink::failed`](super::Uplink::failed).
    Open,
    /// Send this on the control socket.
    Control(Box<[u8; CONTROL_SIZE]>),
    /// Connect the data socket to the simulator's socket of this slot.
    Join(u32),
    /// Send this on the data socket.
    Mad(Box<[u8; MAD_DATAGRAM_SIZE]>),
    /// Close both sockets.
    Close,
    /// The node that the uplink is attached to, once, at the first time: the adapter must be made
    /// with these values, and cabled to a gateway that is unplugged.
    Identity(Identity),
    /// Plug the cable between adapter and gateway in or out.
    Cable(bool),
    /// Send this from the gateway.
    Frame(Frame),
    /// Whether the fabric is known to refuse the GUIDs that its SA grants.
    GuidsRefused(bool),
}

/// Who the simulated node is, as far as the emulated adapter must be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// NodeInfo:NodeGUID. The port's GUID is this plus the port's number in the simulator.
    pub node_guid: Guid,
    /// NodeInfo:PortGUID: what the SA knows the port by.
    pub port_guid: Guid,
    /// NodeInfo:SystemImageGUID.
    pub system_image_guid: Guid,
    /// Entries of its P_Key table.
    pub pkey_table_len: u16,
    /// Entries of its GUID table, PortInfo:GUIDCap.
    pub guid_table_len: u16,
}

/// Why an uplink is not attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The simulator's sockets are not there, or not any more.
    Gone,
    /// The simulator refused: it has no such node, no free place, or another client there that takes
    /// requests.
    Refused,
    /// The simulator answers nothing.
    Silent,
    /// The node has another GUID, or other tables, than when the uplink attached first.
    OtherNode,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "the simulator is not there",
            Self::Refused => {
                "the simulator refuses: no such node, no free place, or another client on the node"
            }
            Self::Silent => "the simulator does not answer",
            Self::OtherNode => {
                "the node is another one than before: the simulator was started with another net file"
            }
        })
    }
}

/// Where an uplink stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UplinkState {
    /// It attaches.
    Attaching,
    /// It is attached.
    Attached {
        /// Its slot at the simulator.
        slot: u32,
    },
    /// It tries again later.
    Waiting {
        /// When.
        retry_at: Instant,
        /// Why it is not attached.
        failure: Failure,
    },
}
