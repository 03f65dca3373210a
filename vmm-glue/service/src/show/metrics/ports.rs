//! Metrics of the ports of all nodes. What they count has the names of node_exporter's infiniband collector.

use emulated_hca::PortCounters;

use super::snapshot::Snapshot;
use super::{Family, Kind, Samples};
use crate::show::link::Link;

/// Declares a metric of what ports count: always there, or from its first count on.
macro_rules! counted {
    ($name:literal, $help:literal, $always:literal, $value:expr) => {
        Family {
            name: $name,
            kind: Kind::Counter,
            help: $help,
            part: |snapshot, place, samples| counter(snapshot, place, samples, $always, $value),
        }
    };
}

/// Declares a metric of links.
macro_rules! link {
    ($name:literal, $help:literal, $value:expr) => {
        Family {
            name: $name,
            kind: Kind::Gauge,
            help: $help,
            part: |snapshot, place, samples| gauge(snapshot, place, samples, $value),
        }
    };
}

pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "vhca_links",
        kind: Kind::Gauge,
        help: "Ports with a cable by their logical state.",
        part: |snapshot, place, samples| {
            let (state, ports) = snapshot.states.iter().nth(place)?;
            samples.sample("", &[("state", state)], ports);
            Some(())
        },
    },
    link!(
        "vhca_link_state_id",
        "Logical state of a port: 1 down, 2 initialize, 3 armed, 4 active.",
        |link| Some(link.state_id())
    ),
    link!(
        "vhca_link_physical_state_id",
        "Physical state of a port: 1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, 6 error recovery.",
        |link| Some(link.physical_state_id())
    ),
    link!(
        "vhca_link_width_lanes",
        "Lanes of a link that is up.",
        |link| link.rate().map(|(lanes, _)| lanes.into())
    ),
    link!(
        "vhca_link_rate_bytes_per_second",
        "Signalling rate of a link that is up, all lanes together.",
        |link| {
            let rate = link.rate();
            rate.map(|(lanes, kbps)| u64::from(lanes) * u64::from(kbps) * 1000 / 8)
        }
    ),
    counted!(
        "vhca_port_data_transmitted_bytes_total",
        "Bytes sent, link headers included.",
        true,
        |port| port.xmit_data.saturating_mul(4)
    ),
    counted!(
        "vhca_port_data_received_bytes_total",
        "Bytes received, link headers included.",
        true,
        |port| port.rcv_data.saturating_mul(4)
    ),
    counted!(
        "vhca_port_packets_transmitted_total",
        "Packets sent.",
        true,
        |port| port.xmit_packets
    ),
    counted!(
        "vhca_port_packets_received_total",
        "Packets received.",
        true,
        |port| port.rcv_packets
    ),
    counted!(
        "vhca_port_unicast_packets_transmitted_total",
        "Unicast packets sent.",
        false,
        |port| port.unicast_xmit_packets
    ),
    counted!(
        "vhca_port_unicast_packets_received_total",
        "Unicast packets received.",
        false,
        |port| port.unicast_rcv_packets
    ),
    counted!(
        "vhca_port_multicast_packets_transmitted_total",
        "Multicast packets sent.",
        false,
        |port| port.multicast_xmit_packets
    ),
    counted!(
        "vhca_port_multicast_packets_received_total",
        "Multicast packets received.",
        false,
        |port| port.multicast_rcv_packets
    ),
    counted!(
        "vhca_port_errors_received_total",
        "Packets received with an error.",
        false,
        |port| port.rcv_errors
    ),
    counted!(
        "vhca_port_receive_remote_physical_errors_total",
        "Packets received that were marked as bad on their way.",
        false,
        |port| port.rcv_remote_physical_errors
    ),
    counted!(
        "vhca_port_receive_switch_relay_errors_total",
        "Packets that a switch could not forward.",
        false,
        |port| port.rcv_switch_relay_errors
    ),
    counted!(
        "vhca_port_discards_transmitted_total",
        "Packets that could not be sent.",
        false,
        |port| port.xmit_discards
    ),
    counted!(
        "vhca_port_constraint_errors_transmitted_total",
        "Packets not sent for their partition, or because they are raw.",
        false,
        |port| port.xmit_constraint_errors
    ),
    counted!(
        "vhca_port_constraint_errors_received_total",
        "Packets refused for their partition, or because they are raw.",
        false,
        |port| port.rcv_constraint_errors
    ),
    counted!(
        "vhca_port_transmit_wait_total",
        "Ticks during which data waited and could not be sent.",
        false,
        |port| port.xmit_wait
    ),
    counted!(
        "vhca_port_symbol_error_total",
        "Minor link errors.",
        false,
        |port| port.symbol_errors
    ),
    counted!(
        "vhca_port_local_link_integrity_errors_total",
        "Times that local physical errors passed their threshold.",
        false,
        |port| port.local_link_integrity_errors
    ),
    counted!(
        "vhca_port_excessive_buffer_overrun_errors_total",
        "Times that buffer overruns passed their threshold.",
        false,
        |port| port.excessive_buffer_overruns
    ),
    counted!(
        "vhca_port_vl15_dropped_total",
        "SMPs dropped for lack of room.",
        false,
        |port| port.vl15_dropped
    ),
    counted!(
        "vhca_port_qp1_dropped_total",
        "GMPs dropped for lack of room.",
        false,
        |port| port.qp1_dropped
    ),
    counted!(
        "vhca_link_downed_total",
        "Times that a link went down.",
        false,
        |port| port.link_downed
    ),
    counted!(
        "vhca_link_error_recovery_total",
        "Times that a link recovered from errors.",
        false,
        |port| port.link_error_recoveries
    ),
    Family {
        name: "vhca_packet_dropped_total",
        kind: Kind::Counter,
        help: "Packets that a node dropped.",
        part: |snapshot, place, samples| {
            /// Samples of a part.
            const PART: usize = 256;
            let drops = snapshot.drops.iter().skip(place * PART).take(PART);
            drops.fold(None, |_, (labels, packets)| {
                samples.sample(labels, &[], packets);
                Some(())
            })
        },
    },
];

fn counter(
    snapshot: &Snapshot,
    place: usize,
    samples: &mut Samples<'_>,
    always: bool,
    value: fn(&PortCounters) -> u64,
) -> Option<()> {
    for port in snapshot.nodes.get(place)? {
        let value = value(&port.counters);
        if always || value > 0 {
            samples.sample(&port.labels, &[], value);
        }
    }
    Some(())
}

fn gauge(
    snapshot: &Snapshot,
    place: usize,
    samples: &mut Samples<'_>,
    value: fn(&Link) -> Option<u64>,
) -> Option<()> {
    for port in snapshot.nodes.get(place)? {
        if let Some(value) = port.link.as_ref().and_then(value) {
            samples.sample(&port.labels, &[], value);
        }
    }
    Some(())
}
