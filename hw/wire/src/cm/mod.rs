//! Communication management messages (IBA 12.6): eleven MADs of class 0x07, method Send.
//!
//! | message | says | answered by |
//! | --- | --- | --- |
//! | [`CmReq`] | open a connection | REP, REJ, MRA |
//! | [`CmMra`] | wait longer | - |
//! | [`CmRej`] | no | - |
//! | [`CmRep`] | yes, with my side's parameters | RTU, REJ, MRA |
//! | [`CmRtu`] | ready to use | - |
//! | [`CmDreq`] | close | DREP |
//! | [`CmDrep`] | closed | - |
//! | [`CmSidrReq`] | which QP serves this service id? | SIDR_REP |
//! | [`CmSidrRep`] | this one | - |
//! | [`CmLap`] | load an alternate path | APR, REJ, MRA |
//! | [`CmApr`] | the alternate path's fate | - |
//!
//! Timeouts in the messages are 5-bit codes for 4.096 µs × 2^code: see [`timeout_nanos`].
//! Field offsets are those of the IBA tables; the kernel's `ibta_vol1_c12.h` is the witness.

mod connect;
mod disconnect;
mod migrate;
mod refuse;
mod sidr;

pub use connect::{CmPath, CmRep, CmReq, CmRtu};
pub use disconnect::{CmDrep, CmDreq};
pub use migrate::{CmApr, CmLap};
pub use refuse::{CmMra, CmRej};
pub use sidr::{CmSidrRep, CmSidrReq};

use crate::CommId;
use crate::mad::{AttributeId, MadHeader, Method, MgmtClass};

/// Attribute ids of class communication management (IBA 16.7.3, table of CM attributes).
impl AttributeId {
    /// ConnectRequest: [`CmReq`].
    pub const CM_REQ: Self = Self::new(0x0010);
    /// MsgRcptAck: [`CmMra`].
    pub const CM_MRA: Self = Self::new(0x0011);
    /// ConnectReject: [`CmRej`].
    pub const CM_REJ: Self = Self::new(0x0012);
    /// ConnectReply: [`CmRep`].
    pub const CM_REP: Self = Self::new(0x0013);
    /// ReadyToUse: [`CmRtu`].
    pub const CM_RTU: Self = Self::new(0x0014);
    /// DisconnectRequest: [`CmDreq`].
    pub const CM_DREQ: Self = Self::new(0x0015);
    /// DisconnectReply: [`CmDrep`].
    pub const CM_DREP: Self = Self::new(0x0016);
    /// ServiceIDResReq: [`CmSidrReq`].
    pub const CM_SIDR_REQ: Self = Self::new(0x0017);
    /// ServiceIDResReqResp: [`CmSidrRep`].
    pub const CM_SIDR_REP: Self = Self::new(0x0018);
    /// LoadAlternatePath: [`CmLap`].
    pub const CM_LAP: Self = Self::new(0x0019);
    /// AlternatePathResponse: [`CmApr`].
    pub const CM_APR: Self = Self::new(0x001a);
}

impl CommId {
    /// "None": the remote id of a REJ to a message whose sender's id is not known.
    pub const NONE: Self = Self::new(0);
}

/// The header of a CM message: class 0x07, class version 2, method Send (IBA 16.7.1).
#[must_use]
pub const fn header(attribute_id: AttributeId) -> MadHeader {
    MadHeader::new(MgmtClass::COM_MGT, Method::SEND, attribute_id)
}

/// The time that a 5-bit timeout code stands for: 4.096 µs × 2^code, in nanoseconds.
///
/// Of `code` only the low five bits count; the largest is about 2.4 hours.
#[must_use]
pub const fn timeout_nanos(code: u8) -> u64 {
    4096 << (code & 0x1f)
}

open_enum! {
    /// Which message an MRA acknowledges or a REJ rejects (IBA 12.6.6, 12.6.7). Two bits.
    CmMessage(u8) {
        /// The REQ.
        REQ = 0,
        /// The REP.
        REP = 1,
        /// In an MRA the LAP; in a REJ anything else, such as the lack of one.
        OTHER = 2,
    }
}

impl CmMessage {
    /// The LAP, in an MRA (IBA 12.6.6).
    pub const LAP: Self = Self::OTHER;
}

open_enum! {
    /// Transport service type of a connection (IBA 12.6.5, REQ). Two bits.
    CmTransport(u8) {
        /// Reliable connected.
        RC = 0,
        /// Unreliable connected.
        UC = 1,
        /// Reliable datagram.
        RD = 2,
        /// See the extended transport type: 1 is XRC.
        EXTENDED = 3,
    }
}

impl CmTransport {
    /// Extended transport type of the XRC transport (IBA annex A14).
    pub const EXTENDED_XRC: u8 = 1;
}

open_enum! {
    /// What the acceptor says of the REQ's alternate path (IBA 12.6.8, REP). Two bits.
    FailoverAccepted(u8) {
        /// Accepted, or none was asked for.
        ACCEPTED = 0,
        /// Failover is not supported.
        UNSUPPORTED = 1,
        /// Supported, but this path was rejected.
        REJECTED = 2,
    }
}

open_enum! {
    /// Why a REJ was sent (IBA 12.6.7.2; the kernel's `enum ib_cm_rej_reason`).
    RejReason(u16) {
        /// No QP available.
        NO_QP = 1,
        /// No EE context available.
        NO_EEC = 2,
        /// No other resource available.
        NO_RESOURCES = 3,
        /// The sender gave up waiting; the ARI is its CA GUID.
        TIMEOUT = 4,
        /// The request is not supported.
        UNSUPPORTED_REQUEST = 5,
        /// The message's communication id is not known.
        INVALID_COMM_ID = 6,
        /// Communication ids or QPN do not belong together.
        INVALID_COMM_INSTANCE = 7,
        /// Nobody serves the service id.
        INVALID_SERVICE_ID = 8,
        /// The service does not use this transport.
        INVALID_TRANSPORT_TYPE = 9,
        /// The QP or communication id belongs to a connection that has not ended here.
        STALE_CONNECTION = 10,
        /// The reliable datagram channel does not exist.
        RDC_NOT_EXIST = 11,
        /// Primary remote port GID; the ARI may hold an acceptable one.
        PRIMARY_GID = 12,
        /// Primary remote port LID; the ARI may hold an acceptable one.
        PRIMARY_LID = 13,
        /// Primary SL; the ARI may hold an acceptable one.
        PRIMARY_SL = 14,
        /// Primary traffic class; the ARI may hold an acceptable one.
        PRIMARY_TRAFFIC_CLASS = 15,
        /// Primary hop limit; the ARI may hold an acceptable one.
        PRIMARY_HOP_LIMIT = 16,
        /// Primary packet rate; the ARI may hold an acceptable one.
        PRIMARY_PACKET_RATE = 17,
        /// Alternate remote port GID; the ARI may hold an acceptable one.
        ALTERNATE_GID = 18,
        /// Alternate remote port LID; the ARI may hold an acceptable one.
        ALTERNATE_LID = 19,
        /// Alternate SL; the ARI may hold an acceptable one.
        ALTERNATE_SL = 20,
        /// Alternate traffic class; the ARI may hold an acceptable one.
        ALTERNATE_TRAFFIC_CLASS = 21,
        /// Alternate hop limit; the ARI may hold an acceptable one.
        ALTERNATE_HOP_LIMIT = 22,
        /// Alternate packet rate; the ARI may hold an acceptable one.
        ALTERNATE_PACKET_RATE = 23,
        /// Ask another port and CM; the ARI is a ClassPortInfo that names them.
        PORT_AND_CM_REDIRECT = 24,
        /// Connect to another port; the ARI is its GID.
        PORT_REDIRECT = 25,
        /// Path MTU; the ARI holds the largest acceptable one.
        INVALID_MTU = 26,
        /// Too few responder resources.
        INSUFFICIENT_RESPONDER_RESOURCES = 27,
        /// The consumer's decision; the ARI is the consumer's.
        CONSUMER = 28,
        /// RNR retry count; the ARI may hold an acceptable one.
        RNR_RETRY_COUNT = 29,
        /// The sender's communication id is in use by another connection of its own.
        DUPLICATE_LOCAL_COMM_ID = 30,
        /// The class version is not supported; the ARI holds the supported one.
        INVALID_CLASS_VERSION = 31,
        /// Primary flow label; the ARI may hold an acceptable one.
        PRIMARY_FLOW_LABEL = 32,
        /// Alternate flow label; the ARI may hold an acceptable one.
        ALTERNATE_FLOW_LABEL = 33,
        /// A vendor option is not supported.
        VENDOR_OPTION_UNSUPPORTED = 35,
    }
}

open_enum! {
    /// What became of a LAP (IBA 12.6.14, APR, table of AP status).
    ApStatus(u8) {
        /// The alternate path was loaded.
        OK = 0,
        /// The communication id is not known.
        INVALID_COMM_ID = 1,
        /// Alternate paths are not supported.
        UNSUPPORTED = 2,
        /// Rejected.
        REJECTED = 3,
        /// Use another port; the additional information is a ClassPortInfo.
        REDIRECT = 4,
        /// The path is the current one.
        PATH_IS_CURRENT = 5,
        /// QPN or EECN does not belong to the communication id.
        INVALID_QPN = 6,
        /// Remote port LID; the information may hold an acceptable one.
        LID = 7,
        /// Remote port GID; the information may hold an acceptable one.
        GID = 8,
        /// Flow label; the information may hold an acceptable one.
        FLOW_LABEL = 9,
        /// Traffic class; the information may hold an acceptable one.
        TRAFFIC_CLASS = 10,
        /// Hop limit; the information may hold an acceptable one.
        HOP_LIMIT = 11,
        /// Packet rate; the information may hold an acceptable one.
        PACKET_RATE = 12,
        /// SL; the information may hold an acceptable one.
        SL = 13,
    }
}

open_enum! {
    /// The answer to a SIDR_REQ (IBA 12.11.2, table of SIDR_REP status).
    SidrStatus(u8) {
        /// QPN and Q_Key are valid.
        OK = 0,
        /// Nobody serves the service id.
        UNSUPPORTED_SERVICE_ID = 1,
        /// Rejected by the service.
        REJECTED = 2,
        /// No QP available.
        NO_QP = 3,
        /// Ask another port; the additional information is a ClassPortInfo.
        REDIRECT = 4,
        /// The class version is not supported.
        UNSUPPORTED_VERSION = 5,
    }
}

impl_bits! {
    CmMessage, u8, CmMessage::new, CmMessage::get;
    CmTransport, u8, CmTransport::new, CmTransport::get;
    FailoverAccepted, u8, FailoverAccepted::new, FailoverAccepted::get;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_codes_double_from_4_microseconds() {
        assert_eq!(timeout_nanos(0), 4_096);
        assert_eq!(timeout_nanos(20), 4_294_967_296);
        assert_eq!(timeout_nanos(31), 8_796_093_022_208);
        assert_eq!(timeout_nanos(0x34), timeout_nanos(20), "five bits count");
    }

    #[test]
    fn every_reason_of_the_table_has_a_name() {
        assert!((1..=33).all(|code| RejReason::new(code).name().is_some()));
        assert_eq!(RejReason::new(36).name(), None);
        assert_eq!(RejReason::new(0).name(), None);
    }

    #[test]
    fn headers_are_of_class_version_2_and_method_send() {
        let header = header(AttributeId::CM_APR);
        assert_eq!(header.class_version, 2);
        assert_eq!(header.method, Method::SEND);
        assert_eq!(header.attribute_id.get(), 0x1a);
    }
}
