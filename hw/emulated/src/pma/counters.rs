//! What a port counts.

/// The counters of one port (IBA 16.1.3.5 PortCounters, 16.1.4.11 PortCountersExtended).
///
/// They count without bound here; the PMA shows them cut to the width of the attribute that is
/// asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Minor link errors.
    pub symbol_errors: u64,
    /// Successful link error recoveries.
    pub link_error_recoveries: u64,
    /// Times that the link went down.
    pub link_downed: u64,
    /// Packets received with an error: a bad VCRC, length or version.
    pub rcv_errors: u64,
    /// Packets received with the end-bad delimiter.
    pub rcv_remote_physical_errors: u64,
    /// Packets that a switch could not forward.
    pub rcv_switch_relay_errors: u64,
    /// Packets that could not be sent.
    pub xmit_discards: u64,
    /// Packets not sent for partition or raw filtering.
    pub xmit_constraint_errors: u64,
    /// Packets refused on reception for partition or raw filtering.
    pub rcv_constraint_errors: u64,
    /// Local physical errors past their threshold.
    pub local_link_integrity_errors: u64,
    /// Consecutive buffer overruns past their threshold.
    pub excessive_buffer_overruns: u64,
    /// SMPs dropped for lack of room.
    pub vl15_dropped: u64,
    /// Ticks during which data waited and could not be sent.
    pub xmit_wait: u64,
    /// Sent, in units of 4 bytes.
    pub xmit_data: u64,
    /// Received, in units of 4 bytes.
    pub rcv_data: u64,
    /// Packets sent.
    pub xmit_packets: u64,
    /// Packets received.
    pub rcv_packets: u64,
    /// Of them, unicast packets sent.
    pub unicast_xmit_packets: u64,
    /// Unicast packets received.
    pub unicast_rcv_packets: u64,
    /// Multicast packets sent.
    pub multicast_xmit_packets: u64,
    /// Multicast packets received.
    pub multicast_rcv_packets: u64,
}
