//! Senders of packets of connections, as the fabric knows them.

use hca_api::FunctionId;
use ib_wire::Qpn;

/// The queue pair that sent a packet of a connection.
///
/// It travels beside the bytes, because RC and UC packets name their destination only (IBA 9.2): queue pairs of one port have
/// the LID in common, and no byte of a packet distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketSource {
    /// Function of the sender's adapter.
    pub function: FunctionId,
    /// Real number of the queue pair, unique within the sender's adapter.
    pub qpn: Qpn,
}
