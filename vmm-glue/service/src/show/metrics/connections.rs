//! Metrics of RC and UC connections.

use emulated_hca::hca::ConnectionCounters;

use super::snapshot::Snapshot;
use super::{Family, Kind, Samples};

/// Declares a metric of what connections count.
macro_rules! counted {
    ($name:literal, $help:literal, $value:expr) => {
        Family {
            name: $name,
            kind: Kind::Counter,
            help: $help,
            part: |snapshot, place, samples| counter(snapshot, place, samples, $value),
        }
    };
}

pub(super) const FAMILIES: &[Family] = &[
    counted!(
        "vhca_connection_sent_bytes_total",
        "Bytes of payload that RC and UC queue pairs sent.",
        |all| all.sent_bytes
    ),
    counted!(
        "vhca_connection_received_bytes_total",
        "Bytes of payload that RC and UC queue pairs received.",
        |all| all.received_bytes
    ),
    counted!(
        "vhca_connection_retransmissions_total",
        "Times that RC queue pairs sent packets again.",
        |all| all.retransmissions
    ),
    counted!(
        "vhca_connection_rnr_naks_total",
        "RNR NAKs that RC queue pairs received.",
        |all| all.rnr_naks
    ),
];

/// Writes what is not zero.
fn counter(
    snapshot: &Snapshot,
    place: usize,
    samples: &mut Samples<'_>,
    value: fn(&ConnectionCounters) -> u64,
) -> Option<()> {
    /// Samples of a part.
    const PART: usize = 256;
    let part = snapshot.connections.iter().skip(place * PART).take(PART);
    part.fold(None, |_, (labels, counters)| {
        let value = value(counters);
        if value > 0 {
            samples.sample(labels, &[], value);
        }
        Some(())
    })
}
