//! The layouts of `/dev/infiniband/rdma_cm` (`rdma/rdma_user_cm.h`).

use linux_abi::abi_layout;
use zerocopy::native_endian::{U16, U32, U64};

use super::queue_pair::Caps;

/// Numbers of commands (`RDMA_USER_CM_CMD_*`).
pub mod cm_command {
    /// Creates an id.
    pub const CREATE_ID: u32 = 0;
    /// Destroys an id.
    pub const DESTROY_ID: u32 = 1;
    /// Finds the path to the peer.
    pub const RESOLVE_ROUTE: u32 = 4;
    /// Asks for a connection.
    pub const CONNECT: u32 = 6;
    /// Listens.
    pub const LISTEN: u32 = 7;
    /// Accepts a connection, or its acceptance.
    pub const ACCEPT: u32 = 8;
    /// Rejects a connection.
    pub const REJECT: u32 = 9;
    /// Ends a connection.
    pub const DISCONNECT: u32 = 10;
    /// Returns attributes of a queue pair for its next state.
    pub const INIT_QP_ATTR: u32 = 11;
    /// Reads an event.
    pub const GET_EVENT: u32 = 12;
    /// Sets an option.
    pub const SET_OPTION: u32 = 14;
    /// Reports an event of the queue pair.
    pub const NOTIFY: u32 = 15;
    /// Joins a multicast group of an IP address.
    pub const JOIN_IP_MCAST: u32 = 16;
    /// Leaves a multicast group.
    pub const LEAVE_MCAST: u32 = 17;
    /// Moves an id to another channel.
    pub const MIGRATE_ID: u32 = 18;
    /// Reads addresses or paths of an id.
    pub const QUERY: u32 = 19;
    /// Binds an id to an address.
    pub const BIND: u32 = 20;
    /// Resolves the address of the peer.
    pub const RESOLVE_ADDR: u32 = 21;
    /// Joins a multicast group of an address of any family.
    pub const JOIN_MCAST: u32 = 22;
}

/// Numbers of events (`enum rdma_cm_event_type`).
pub mod cm_event {
    /// The address is resolved.
    pub const ADDR_RESOLVED: u32 = 0;
    /// The address cannot be resolved.
    pub const ADDR_ERROR: u32 = 1;
    /// The path is found.
    pub const ROUTE_RESOLVED: u32 = 2;
    /// There is no path.
    pub const ROUTE_ERROR: u32 = 3;
    /// A peer asks for a connection.
    pub const CONNECT_REQUEST: u32 = 4;
    /// The peer accepts.
    pub const CONNECT_RESPONSE: u32 = 5;
    /// The connection cannot be made.
    pub const CONNECT_ERROR: u32 = 6;
    /// The peer does not answer.
    pub const UNREACHABLE: u32 = 7;
    /// The peer rejects.
    pub const REJECTED: u32 = 8;
    /// The connection is established.
    pub const ESTABLISHED: u32 = 9;
    /// The connection is over.
    pub const DISCONNECTED: u32 = 10;
    /// The port is a member of the multicast group.
    pub const MULTICAST_JOIN: u32 = 12;
    /// The multicast group cannot be joined, or the membership is over.
    pub const MULTICAST_ERROR: u32 = 13;
    /// The queue pair may be used again.
    pub const TIMEWAIT_EXIT: u32 = 15;
}

/// Port space of IPoIB (`enum rdma_ucm_port_space`).
pub const PS_IPOIB: u16 = 0x0002;
/// Port space of connections.
pub const PS_TCP: u16 = 0x0106;
/// Port space of datagrams.
pub const PS_UDP: u16 = 0x0111;
/// Port space of InfiniBand, whose ids name the type of their queue pairs.
pub const PS_IB: u16 = 0x013f;

/// Type of queue pairs (`enum ib_qp_type`): RC.
pub const QPT_RC: u8 = 2;
/// Type of queue pairs: UD.
pub const QPT_UD: u8 = 4;
/// Type of queue pairs: the initiator's of XRC.
pub const QPT_XRC_INI: u8 = 9;

/// Bytes of `struct sockaddr_storage`.
pub const ADDRESS_SIZE: usize = 128;

/// Bytes of private data in the layouts (`RDMA_MAX_PRIVATE_DATA`).
pub const MAX_PRIVATE_DATA: usize = 256;

/// Q_Key of datagram services over the RDMA CM (`RDMA_UDP_QKEY`).
pub const UDP_QKEY: u32 = 0x0123_4567;

abi_layout! {
    /// Header of each command.
    pub CmCommandHeader, 8 {
        /// Number.
        pub command: U32,
        /// Bytes of the payload.
        pub in_bytes: U16,
        /// Bytes for the answer.
        pub out_bytes: U16,
    }
}

abi_layout! {
    /// CREATE_ID. The address of the answer comes second.
    pub CreateId, 24 {
        /// The program's name for the id.
        pub uid: U64,
        /// Address of the answer.
        pub response: U64,
        /// Port space.
        pub ps: U16,
        /// `enum ibv_qp_type`.
        pub qp_type: u8,
        /// Reserved.
        pub reserved: [u8; 5],
    }
}

abi_layout! {
    /// Answers that are one number: the id, the multicast group, or events that were read.
    pub IdAnswer, 4 {
        /// The number.
        pub value: U32,
    }
}

abi_layout! {
    /// DESTROY_ID and LEAVE_MCAST; of INIT_QP_ATTR, QUERY and MIGRATE_ID with an argument.
    pub IdCommand, 16 {
        /// Address of the answer.
        pub response: U64,
        /// Id.
        pub id: U32,
        /// State of the queue pair, what is asked for, or the old channel.
        pub argument: U32,
    }
}

/// Bytes of `struct sockaddr_in6`.
pub const IP_ADDRESS_SIZE: usize = 28;

abi_layout! {
    /// JOIN_IP_MCAST.
    pub JoinIpMcast, 48 {
        /// Address of the answer.
        pub response: U64,
        /// The program's name for the group.
        pub uid: U64,
        /// Address of the group.
        pub addr: [u8; IP_ADDRESS_SIZE],
        /// Id.
        pub id: U32,
    }
}

abi_layout! {
    /// JOIN_MCAST.
    pub JoinMcast, 152 {
        /// Address of the answer.
        pub response: U64,
        /// The program's name for the group.
        pub uid: U64,
        /// Id.
        pub id: U32,
        /// Bytes of the address.
        pub addr_size: U16,
        /// Kind of membership.
        pub join_flags: U16,
        /// Address of the group.
        pub addr: [u8; ADDRESS_SIZE],
    }
}

abi_layout! {
    /// BIND.
    pub Bind, 136 {
        /// Id.
        pub id: U32,
        /// Bytes of the address.
        pub addr_size: U16,
        /// Reserved.
        pub reserved: U16,
        /// Address.
        pub addr: [u8; ADDRESS_SIZE],
    }
}

abi_layout! {
    /// RESOLVE_ADDR.
    pub ResolveAddr, 272 {
        /// Id.
        pub id: U32,
        /// Time for it, in milliseconds.
        pub timeout_ms: U32,
        /// Bytes of the source; 0 for none.
        pub src_size: U16,
        /// Bytes of the destination.
        pub dst_size: U16,
        /// Reserved.
        pub reserved: U32,
        /// Source.
        pub src_addr: [u8; ADDRESS_SIZE],
        /// Destination.
        pub dst_addr: [u8; ADDRESS_SIZE],
    }
}

abi_layout! {
    /// SET_OPTION (`struct rdma_ucm_set_option`).
    pub SetOption, 24 {
        /// Address of the value.
        pub optval: U64,
        /// Id.
        pub id: U32,
        /// Level (`RDMA_OPTION_ID`, `RDMA_OPTION_IB`).
        pub level: U32,
        /// Option of the level.
        pub optname: U32,
        /// Bytes of the value.
        pub optlen: U32,
    }
}

abi_layout! {
    /// RESOLVE_ROUTE, LISTEN, NOTIFY and DISCONNECT, of which the last one has no argument.
    pub IdArgument, 8 {
        /// Id.
        pub id: U32,
        /// Time in milliseconds, backlog, or event.
        pub argument: U32,
    }
}

abi_layout! {
    /// DISCONNECT.
    pub Disconnect, 4 {
        /// Id.
        pub id: U32,
    }
}

abi_layout! {
    /// Answer of QUERY for addresses, and for GIDs.
    pub QueryAddrAnswer, 280 {
        /// Node GUID in the wire's byte order; 0 while the id is bound to no device.
        pub node_guid: [u8; 8],
        /// Port.
        pub port_num: u8,
        /// Reserved.
        pub reserved: u8,
        /// P_Key.
        pub pkey: U16,
        /// Bytes of the source.
        pub src_size: U16,
        /// Bytes of the destination.
        pub dst_size: U16,
        /// Source.
        pub src_addr: [u8; ADDRESS_SIZE],
        /// Destination.
        pub dst_addr: [u8; ADDRESS_SIZE],
        /// Index of the device, as netlink has it.
        pub ibdev_index: U32,
        /// Reserved.
        pub reserved1: U32,
    }
}

abi_layout! {
    /// Answer of QUERY for paths, of which there is one.
    pub QueryPathAnswer, 80 {
        /// Paths.
        pub num_paths: U32,
        /// Reserved.
        pub reserved: U32,
        /// Uses of the path.
        pub flags: U32,
        /// Reserved.
        pub reserved2: U32,
        /// PathRecord as on the wire.
        pub record: [u8; 64],
    }
}

abi_layout! {
    /// Parameters of a connection (`struct rdma_ucm_conn_param`).
    pub ConnParam, 272 {
        /// Queue pair.
        pub qp_num: U32,
        /// Q_Key, of datagrams.
        pub qkey: U32,
        /// Private data.
        pub private_data: [u8; MAX_PRIVATE_DATA],
        /// Bytes of it.
        pub private_data_len: u8,
        /// The queue pair has a shared receive queue.
        pub srq: u8,
        /// Reads and atomics as responder.
        pub responder_resources: u8,
        /// Reads and atomics as initiator.
        pub initiator_depth: u8,
        /// End-to-end flow control.
        pub flow_control: u8,
        /// Retries.
        pub retry_count: u8,
        /// RNR retries.
        pub rnr_retry_count: u8,
        /// The parameters are given.
        pub valid: u8,
    }
}

abi_layout! {
    /// Parameters of a datagram service (`struct rdma_ucm_ud_param`).
    pub UdParam, 304 {
        /// Queue pair.
        pub qp_num: U32,
        /// Q_Key.
        pub qkey: U32,
        /// Path to it.
        pub path: AhAttr,
        /// Private data.
        pub private_data: [u8; MAX_PRIVATE_DATA],
        /// Bytes of it.
        pub private_data_len: u8,
        /// Reserved.
        pub reserved: [u8; 7],
    }
}

abi_layout! {
    /// CONNECT. Older libraries leave out what follows the id.
    pub Connect, 288 {
        /// Parameters.
        pub param: ConnParam,
        /// Id.
        pub id: U32,
        /// Reserved.
        pub reserved: U32,
        /// Enhanced connection establishment; not used.
        pub ece: [u8; 8],
    }
}

abi_layout! {
    /// ACCEPT. Older libraries leave out what follows the id.
    pub Accept, 296 {
        /// The program's name for the id.
        pub uid: U64,
        /// Parameters.
        pub param: ConnParam,
        /// Id.
        pub id: U32,
        /// Reserved.
        pub reserved: U32,
        /// Enhanced connection establishment; not used.
        pub ece: [u8; 8],
    }
}

abi_layout! {
    /// REJECT.
    pub Reject, 264 {
        /// Id.
        pub id: U32,
        /// Bytes of private data.
        pub private_data_len: u8,
        /// Reason; 0 is the consumer's.
        pub reason: u8,
        /// Reserved.
        pub reserved: [u8; 2],
        /// Private data.
        pub private_data: [u8; MAX_PRIVATE_DATA],
    }
}

abi_layout! {
    /// An event (`struct rdma_ucm_event_resp`).
    pub CmEventRecord, 336 {
        /// The program's name for the id, or for the multicast group.
        pub uid: U64,
        /// Id, or multicast group.
        pub id: U32,
        /// Number of the event.
        pub event: U32,
        /// Error number below 0, or reason.
        pub status: U32,
        /// Parameters of a connection; of datagrams they have another layout.
        pub param: [u8; EVENT_PARAM],
        /// Reserved.
        pub reserved: U32,
        /// Enhanced connection establishment; not used.
        pub ece: [u8; 8],
    }
}

/// Bytes of an event's parameters: those of datagrams are the longer ones.
pub const EVENT_PARAM: usize = size_of::<UdParam>();

abi_layout! {
    /// Attributes of a queue pair (`struct ib_uverbs_qp_attr`), the answer of INIT_QP_ATTR.
    pub QpAttrAnswer, 144 {
        /// Attributes that are given.
        pub attr_mask: U32,
        /// State.
        pub qp_state: U32,
        /// State that the queue pair is in.
        pub cur_qp_state: U32,
        /// Path MTU code.
        pub path_mtu: U32,
        /// Migration state.
        pub path_mig_state: U32,
        /// Q_Key.
        pub qkey: U32,
        /// First PSN to expect.
        pub rq_psn: U32,
        /// First PSN to send.
        pub sq_psn: U32,
        /// Peer.
        pub dest_qp_num: U32,
        /// Remote rights.
        pub qp_access_flags: U32,
        /// Path.
        pub path: AhAttr,
        /// Alternate path.
        pub alternate: AhAttr,
        /// Sizes.
        pub caps: Caps,
        /// Index of the P_Key.
        pub pkey_index: U16,
        /// Index of the P_Key on the alternate path.
        pub alt_pkey_index: U16,
        /// The program is told when the send queue has drained.
        pub en_sqd_async_notify: u8,
        /// The send queue drains.
        pub sq_draining: u8,
        /// Reads and atomics as initiator.
        pub max_rd_atomic: u8,
        /// Reads and atomics as responder.
        pub max_dest_rd_atomic: u8,
        /// RNR NAK timer code.
        pub min_rnr_timer: u8,
        /// Port.
        pub port_num: u8,
        /// ACK timeout code.
        pub timeout: u8,
        /// Retries.
        pub retry_cnt: u8,
        /// RNR retries.
        pub rnr_retry: u8,
        /// Port of the alternate path.
        pub alt_port_num: u8,
        /// ACK timeout code of the alternate path.
        pub alt_timeout: u8,
        /// Reserved.
        pub reserved: [u8; 5],
    }
}

abi_layout! {
    /// A path (`struct ib_uverbs_ah_attr`).
    pub AhAttr, 32 {
        /// Destination GID.
        pub dgid: [u8; 16],
        /// Flow label.
        pub flow_label: U32,
        /// Index of the local GID.
        pub sgid_index: u8,
        /// Hop limit.
        pub hop_limit: u8,
        /// Traffic class.
        pub traffic_class: u8,
        /// Reserved.
        pub reserved: u8,
        /// Destination LID.
        pub dlid: U16,
        /// Service level.
        pub sl: u8,
        /// Low bits of the source LID.
        pub src_path_bits: u8,
        /// Rate code; 0 is the port's.
        pub static_rate: u8,
        /// Not 0 to send a GRH.
        pub is_global: u8,
        /// Local port.
        pub port_num: u8,
        /// Reserved.
        pub reserved2: u8,
    }
}
