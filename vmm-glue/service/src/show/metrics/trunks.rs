//! Metrics of trunks to the fabrics of other services.

use super::snapshot::Snapshot;
use super::{Family, Kind, Samples};
use crate::show::TrunkRow;

/// Declares a metric of each trunk.
macro_rules! trunk {
    ($name:literal, $kind:ident, $help:literal, $write:expr) => {
        Family {
            name: $name,
            kind: Kind::$kind,
            help: $help,
            part: |snapshot, place, samples| {
                let write: fn(&TrunkRow, [(&str, &str); 1], &mut Samples<'_>) = $write;
                let trunk = trunks(snapshot).get(place)?;
                write(trunk, [("trunk", &trunk.port)], samples);
                Some(())
            },
        }
    };
}

pub(super) const FAMILIES: &[Family] = &[
    trunk!(
        "vhca_trunk_up",
        Gauge,
        "1 if the trunk at a port is up.",
        |trunk, labels, samples| {
            samples.sample("", &labels, u8::from(trunk.peer.is_ok()));
        }
    ),
    trunk!(
        "vhca_trunk_round_trip_seconds",
        Gauge,
        "Time from the latest ping of a trunk to its pong.",
        |trunk, labels, samples| {
            if let Some(time) = trunk.statistics.round_trip {
                samples.sample("", &labels, time.as_secs_f64());
            }
        }
    ),
    trunk!(
        "vhca_trunk_bytes_total",
        Counter,
        "Bytes of packets that crossed a trunk since it is up.",
        |trunk, [label], samples| {
            let counted = &trunk.statistics;
            samples.sample("", &[label, ("dir", "tx")], counted.sent_bytes);
            samples.sample("", &[label, ("dir", "rx")], counted.received_bytes);
        }
    ),
    trunk!(
        "vhca_trunk_packets_total",
        Counter,
        "Packets that crossed a trunk since it is up.",
        |trunk, [label], samples| {
            let counted = &trunk.statistics;
            samples.sample("", &[label, ("dir", "tx")], counted.sent_packets);
            samples.sample("", &[label, ("dir", "rx")], counted.received_packets);
        }
    ),
    trunk!(
        "vhca_trunk_discarded_total",
        Counter,
        "Packets of management that a trunk discarded, since too many waited.",
        |trunk, labels, samples| samples.sample("", &labels, trunk.statistics.discarded)
    ),
];

fn trunks(snapshot: &Snapshot) -> &[TrunkRow] {
    snapshot
        .service
        .as_ref()
        .map_or(&[], |service| &service.trunks)
}
