//! What a port counts, and how the two attributes show it.

use ib_wire::PortNum;
use ib_wire::perf;
use zerocopy::network_endian::{U16, U32};

/// The counters of one port (IBA 16.1.3.5 PortCounters, 16.1.4.11 PortCountersExtended).
///
/// They count with 64 bits here. PortCountersExtended shows them so, PortCounters in fewer bits
/// that stick at their largest value; a Set of the one does not change the other.
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
    /// Packets received for QP1 and dropped for lack of a posted receive.
    pub qp1_dropped: u64,
    /// Packets received on VL15 and dropped for lack of room, or of a posted receive of QP0.
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

/// Calls a macro with every counter: its name here, in PortCounters and in PortCountersExtended.
macro_rules! for_each_counter {
    ($call:ident!($($args:tt)*)) => {
        $call! { ($($args)*)
            symbol_errors symbol_error_counter,
            link_error_recoveries link_error_recovery_counter,
            link_downed link_downed_counter,
            rcv_errors port_rcv_errors,
            rcv_remote_physical_errors port_rcv_remote_physical_errors,
            rcv_switch_relay_errors port_rcv_switch_relay_errors,
            xmit_discards port_xmit_discards,
            xmit_constraint_errors port_xmit_constraint_errors,
            rcv_constraint_errors port_rcv_constraint_errors,
            qp1_dropped qp1_dropped,
            vl15_dropped vl15_dropped,
            xmit_wait port_xmit_wait,
            xmit_data port_xmit_data,
            rcv_data port_rcv_data,
            xmit_packets port_xmit_pkts,
            rcv_packets port_rcv_pkts,
        }
    };
}

/// A field of PortCounters, of some width.
trait Sticky: Copy {
    fn show(value: u64) -> Self;
    fn value(self) -> u64;
}

impl Sticky for u8 {
    fn show(value: u64) -> Self {
        Self::try_from(value).unwrap_or(Self::MAX)
    }

    fn value(self) -> u64 {
        u64::from(self)
    }
}

impl Sticky for U16 {
    fn show(value: u64) -> Self {
        Self::new(u16::try_from(value).unwrap_or(u16::MAX))
    }

    fn value(self) -> u64 {
        u64::from(self.get())
    }
}

impl Sticky for U32 {
    fn show(value: u64) -> Self {
        Self::new(u32::try_from(value).unwrap_or(u32::MAX))
    }

    fn value(self) -> u64 {
        u64::from(self.get())
    }
}

macro_rules! show_basic {
    (($to:ident, $from:ident) $($own:ident $wire:ident,)*) => {
        $( $to.$wire = Sticky::show($from.$own); )*
    };
}

macro_rules! store_basic {
    (($from:ident, $total:ident, $base:ident) $($own:ident $wire:ident,)*) => {
        $( $base.$own = $total.$own.wrapping_sub($from.$wire.value()); )*
    };
}

macro_rules! show_extended {
    (($to:ident, $total:ident) $($own:ident $wire:ident,)*) => {
        $( $to.$wire.set($total.$own); )*
    };
}

macro_rules! store_extended {
    (($from:ident, $total:ident) $($own:ident $wire:ident,)*) => {
        $( $total.$own = $from.$wire.get(); )*
    };
}

impl PortCounters {
    /// PortCounters that shows these counters, each as far as it reaches.
    pub(super) fn basic(&self, port: PortNum) -> perf::PortCounters {
        let mut shown = perf::PortCounters {
            port_select: port,
            ..perf::PortCounters::default()
        };
        for_each_counter!(show_basic!(shown, self));
        // These two have four bits each.
        let nibble = |value: u64| u8::try_from(value).unwrap_or(u8::MAX).min(15);
        shown.set_local_link_integrity_errors(nibble(self.local_link_integrity_errors));
        shown.set_excessive_buffer_overrun_errors(nibble(self.excessive_buffer_overruns));
        shown
    }

    /// The base that makes PortCounters read as `shown`.
    pub(super) fn base_for(&self, shown: &perf::PortCounters) -> Self {
        let mut base = *self;
        for_each_counter!(store_basic!(shown, self, base));
        base.local_link_integrity_errors = self
            .local_link_integrity_errors
            .wrapping_sub(u64::from(shown.local_link_integrity_errors()));
        base.excessive_buffer_overruns = self
            .excessive_buffer_overruns
            .wrapping_sub(u64::from(shown.excessive_buffer_overrun_errors()));
        base
    }

    /// PortCountersExtended.
    pub(super) fn extended(&self, port: PortNum) -> perf::PortCountersExtended {
        let mut shown = perf::PortCountersExtended {
            port_select: port,
            port_unicast_xmit_pkts: self.unicast_xmit_packets.into(),
            port_unicast_rcv_pkts: self.unicast_rcv_packets.into(),
            port_multicast_xmit_pkts: self.multicast_xmit_packets.into(),
            port_multicast_rcv_pkts: self.multicast_rcv_packets.into(),
            local_link_integrity_errors: self.local_link_integrity_errors.into(),
            excessive_buffer_overrun_errors: self.excessive_buffer_overruns.into(),
            ..perf::PortCountersExtended::default()
        };
        for_each_counter!(show_extended!(shown, self));
        shown
    }

    /// The counters that PortCountersExtended shows as `shown`.
    pub(super) fn from_extended(shown: &perf::PortCountersExtended) -> Self {
        let mut counters = Self {
            unicast_xmit_packets: shown.port_unicast_xmit_pkts.get(),
            unicast_rcv_packets: shown.port_unicast_rcv_pkts.get(),
            multicast_xmit_packets: shown.port_multicast_xmit_pkts.get(),
            multicast_rcv_packets: shown.port_multicast_rcv_pkts.get(),
            local_link_integrity_errors: shown.local_link_integrity_errors.get(),
            excessive_buffer_overruns: shown.excessive_buffer_overrun_errors.get(),
            ..Self::default()
        };
        for_each_counter!(store_extended!(shown, counters));
        counters
    }

    /// Returns what this and other counters count together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.zip_with(other, u64::saturating_add)
    }

    /// What was counted since the counters stood at `base`.
    pub(super) fn since(&self, base: &Self) -> Self {
        self.zip_with(base, u64::wrapping_sub)
    }

    fn zip_with(&self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        macro_rules! zip {
            (() $($own:ident $wire:ident,)*) => {
                Self {
                    $( $own: f(self.$own, other.$own), )*
                    unicast_xmit_packets: f(self.unicast_xmit_packets, other.unicast_xmit_packets),
                    unicast_rcv_packets: f(self.unicast_rcv_packets, other.unicast_rcv_packets),
                    multicast_xmit_packets: f(
                        self.multicast_xmit_packets,
                        other.multicast_xmit_packets,
                    ),
                    multicast_rcv_packets: f(
                        self.multicast_rcv_packets,
                        other.multicast_rcv_packets,
                    ),
                    local_link_integrity_errors: f(
                        self.local_link_integrity_errors,
                        other.local_link_integrity_errors,
                    ),
                    excessive_buffer_overruns: f(
                        self.excessive_buffer_overruns,
                        other.excessive_buffer_overruns,
                    ),
                }
            };
        }
        for_each_counter!(zip!())
    }
}
