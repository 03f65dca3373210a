//! Metrics of the VFs that are offered to VMMs.

use super::snapshot::{Snapshot, VmmSample};
use super::{Family, Kind, Samples};

/// Declares a metric.
macro_rules! vmms {
    ($name:literal, $kind:ident, $help:literal, $value:expr) => {
        Family {
            name: $name,
            kind: Kind::$kind,
            help: $help,
            part: |snapshot, place, samples| each(snapshot, place, samples, $value),
        }
    };
}

pub(super) const FAMILIES: &[Family] = &[
    vmms!("vhca_vmm_attached", Gauge, "VFs that a VMM has.", |vmm| vmm
        .attached),
    vmms!(
        "vhca_vmm_vectors",
        Gauge,
        "Interrupt vectors that guests' drivers have set up.",
        |vmm| u64::try_from(vmm.row.vectors).unwrap_or(u64::MAX)
    ),
    vmms!(
        "vhca_vmm_shared_bytes",
        Gauge,
        "Memory of guests that their VMMs share.",
        |vmm| vmm.row.shared
    ),
    vmms!(
        "vhca_vmm_touched_bytes",
        Gauge,
        "Memory of guests that devices have touched, for which the service may be charged.",
        |vmm| vmm.row.touched
    ),
    vmms!(
        "vhca_vmm_unshared_bytes",
        Gauge,
        "Memory of guests that their VMMs do not share.",
        |vmm| vmm.row.unshared
    ),
    vmms!(
        "vhca_vmm_resets_total",
        Counter,
        "Resets of VFs by guests' drivers or their VMMs.",
        |vmm| vmm.row.resets
    ),
    vmms!("vhca_vmm_total", Counter, "VMMs that had a VF.", |vmm| vmm
        .row
        .vmms),
    vmms!(
        "vhca_vmm_refused_total",
        Counter,
        "VMMs that were turned away from a VF.",
        |vmm| vmm.row.refused
    ),
];

fn each(
    snapshot: &Snapshot,
    place: usize,
    samples: &mut Samples<'_>,
    value: fn(&VmmSample) -> u64,
) -> Option<()> {
    for (labels, vmm) in &snapshot.hosts.get(place)?.vmms {
        samples.sample(labels, &[], value(vmm));
    }
    Some(())
}
