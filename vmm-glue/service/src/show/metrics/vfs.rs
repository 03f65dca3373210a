//! Metrics of VFs, and of the ports that they share.

use pf_context::{CountedClass, MadStatistics};
use vf_tunnel::DropReason;
use vhca_control::By;

use super::snapshot::{HostSample, PfPortSample, Snapshot, VfSample};
use super::{Family, Kind, Samples};

pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "vhca_port_state",
        kind: Kind::Gauge,
        help: "Ports that are up: of VFs one by one, or physical ones (vf is pf, or missing).",
        part: port_state,
    },
    Family {
        name: "vhca_port_reason",
        kind: Kind::Gauge,
        help: "Why a VF's port is as it is.",
        part: |snapshot, place, samples| {
            each_vf(snapshot, place, |vf| {
                if let Some((_, reason)) = vf.state {
                    samples.sample(&vf.labels, &[("reason", reason)], 1);
                }
            })
        },
    },
    Family {
        name: "vhca_vfs",
        kind: Kind::Gauge,
        help: "VFs by why their ports are as they are, and by their faults.",
        part: |snapshot, place, samples| {
            each_port(snapshot, place, |port| {
                for ((reason, fault), vfs) in &port.reasons {
                    let more = [("reason", *reason), ("fault", *fault)];
                    samples.sample(&port.labels, &more, vfs);
                }
            })
        },
    },
    Family {
        name: "vhca_sa_answer_age_seconds",
        kind: Kind::Gauge,
        help: "How long ago the SA last answered a question that the port asks it every ten seconds.",
        part: |snapshot, place, samples| {
            each_port(snapshot, place, |port| {
                if let Some(age) = port.sa_answer_age {
                    samples.sample(&port.labels, &[], age.as_secs_f64());
                }
            })
        },
    },
    Family {
        name: "vhca_vfs_at_quota",
        kind: Kind::Gauge,
        help: "VFs that have all that they may have of a resource.",
        part: |snapshot, place, samples| {
            each_port(snapshot, place, |port| {
                for (resource, vfs) in &port.at_quota {
                    samples.sample(&port.labels, &[("resource", resource)], vfs);
                }
            })
        },
    },
    Family {
        name: "vhca_mad_total",
        kind: Kind::Counter,
        help: "MADs by what became of them.",
        part: |snapshot, place, samples| each_statistics(snapshot, place, samples, mads),
    },
    Family {
        name: "vhca_mad_dropped_total",
        kind: Kind::Counter,
        help: "Frames that went nowhere.",
        part: |snapshot, place, samples| each_statistics(snapshot, place, samples, dropped),
    },
    Family {
        name: "vhca_tid_entries",
        kind: Kind::Gauge,
        help: "Live transactions of VFs.",
        part: |snapshot, place, samples| {
            each_vf(snapshot, place, |vf| {
                samples.sample(&vf.labels, &[], vf.usage.tids.live);
            })
        },
    },
    Family {
        name: "vhca_cm_idmap_entries",
        kind: Kind::Gauge,
        help: "Live communication ids of VFs on all ports of the adapter, those in quarantine included.",
        part: |snapshot, place, samples| {
            each_vf(snapshot, place, |vf| {
                samples.sample(&vf.labels, &[], vf.usage.cm_ids.live);
            })
        },
    },
    Family {
        name: "vhca_mcast_groups",
        kind: Kind::Gauge,
        help: "Multicast groups with members at the port.",
        part: |snapshot, place, samples| {
            each_port(snapshot, place, |port| {
                samples.sample(&port.labels, &[], port.groups);
            })
        },
    },
    Family {
        name: "vhca_mcast_members",
        kind: Kind::Gauge,
        help: "Memberships in multicast groups.",
        part: |snapshot, place, samples| {
            each_port(snapshot, place, |port| {
                samples.sample(&port.labels, &[], port.members);
            })
        },
    },
    Family {
        name: "vhca_mcast_group_members",
        kind: Kind::Gauge,
        help: "Members of a multicast group.",
        part: |snapshot, place, samples| {
            for group in &snapshot.hosts.get(place)?.groups {
                samples.sample(&group.labels, &[], group.members);
            }
            Some(())
        },
    },
    Family {
        name: "vhca_mcast_sa_joins_total",
        kind: Kind::Counter,
        help: "Joins of a multicast group that the port asked the SA for.",
        part: |snapshot, place, samples| {
            for group in &snapshot.hosts.get(place)?.groups {
                samples.sample(&group.labels, &[], group.sa_joins);
            }
            Some(())
        },
    },
    Family {
        name: "vhca_notice_subscriptions",
        kind: Kind::Gauge,
        help: "Subscriptions of VFs to notices.",
        part: |snapshot, place, samples| {
            each_vf(snapshot, place, |vf| {
                samples.sample(&vf.labels, &[], vf.usage.subscriptions.live);
            })
        },
    },
    Family {
        name: "vhca_sa_outstanding",
        kind: Kind::Gauge,
        help: "SA requests that wait for their answer.",
        part: sa_outstanding,
    },
    Family {
        name: "vhca_queued_frames",
        kind: Kind::Gauge,
        help: "Frames beyond a VF's rate that wait for their turn.",
        part: |snapshot, place, samples| {
            each_vf(snapshot, place, |vf| {
                samples.sample(&vf.labels, &[], vf.usage.queued.live);
            })
        },
    },
    Family {
        name: "vhca_delivering_frames",
        kind: Kind::Gauge,
        help: "Frames that wait for a VF's tunnel.",
        part: |snapshot, place, samples| {
            each_vf(snapshot, place, |vf| {
                samples.sample(&vf.labels, &[], vf.delivering);
            })
        },
    },
    Family {
        name: "vhca_path_cache_entries",
        kind: Kind::Gauge,
        help: "Cached paths.",
        part: |snapshot, place, samples| {
            each_port(snapshot, place, |port| {
                samples.sample(&port.labels, &[], port.path_cache);
            })
        },
    },
    Family {
        name: "vhca_quota",
        kind: Kind::Gauge,
        help: "How much a VF may have.",
        part: |snapshot, place, samples| {
            if snapshot.by != By::Vf {
                return None;
            }
            each_vf(snapshot, place, |vf| {
                for (resource, used) in vf.usage.named() {
                    samples.sample(&vf.labels, &[("resource", resource)], used.limit);
                }
            })
        },
    },
    Family {
        name: "vhca_oldest_age_seconds",
        kind: Kind::Gauge,
        help: "How long the oldest has rested or waited.",
        part: |snapshot, place, samples| {
            each_vf(snapshot, place, |vf| {
                for (what, age) in [
                    ("transaction", vf.ages.transaction),
                    ("exchange", vf.ages.exchange),
                    ("frame", vf.ages.frame),
                ] {
                    if let Some(age) = age {
                        samples.sample(&vf.labels, &[("what", what)], age.as_secs_f64());
                    }
                }
            })
        },
    },
];

fn each_vf(snapshot: &Snapshot, place: usize, write: impl FnMut(&VfSample)) -> Option<()> {
    snapshot.hosts.get(place)?.vfs.iter().for_each(write);
    Some(())
}

fn each_port(snapshot: &Snapshot, place: usize, write: impl FnMut(&PfPortSample)) -> Option<()> {
    snapshot.hosts.get(place)?.ports.iter().for_each(write);
    Some(())
}

/// Returns the label of what is a port's own, where what is a VF's has the VF's number.
const fn own(snapshot: &Snapshot) -> &'static [(&'static str, &'static str)] {
    match snapshot.by {
        By::Vf => &[("vf", "pf")],
        By::Host | By::Total => &[],
    }
}

fn port_state(snapshot: &Snapshot, place: usize, samples: &mut Samples<'_>) -> Option<()> {
    each_port(snapshot, place, |port| {
        samples.sample(&port.labels, own(snapshot), port.up);
    })?;
    each_vf(snapshot, place, |vf| {
        if let Some((up, _)) = vf.state {
            samples.sample(&vf.labels, &[], u8::from(up));
        }
    })
}

fn sa_outstanding(snapshot: &Snapshot, place: usize, samples: &mut Samples<'_>) -> Option<()> {
    each_port(snapshot, place, |port| {
        samples.sample(&port.labels, own(snapshot), port.sa_requests);
    })?;
    each_vf(snapshot, place, |vf| {
        if snapshot.by == By::Vf {
            samples.sample(&vf.labels, &[], vf.usage.sa_requests.live);
        }
    })
}

/// Writes the samples of a host's MADs: of its ports with those of VFs, or of each by itself.
fn each_statistics(
    snapshot: &Snapshot,
    place: usize,
    samples: &mut Samples<'_>,
    write: fn(&mut Samples<'_>, &str, &MadStatistics),
) -> Option<()> {
    let HostSample { ports, vfs, .. } = snapshot.hosts.get(place)?;
    for port in ports {
        let mut labels = port.labels.clone();
        for (name, value) in own(snapshot) {
            super::add_label(&mut labels, name, value);
        }
        write(samples, &labels, &port.statistics);
    }
    for vf in vfs.iter().filter(|_| snapshot.by == By::Vf) {
        write(samples, &vf.labels, &vf.statistics);
    }
    Some(())
}

fn mads(samples: &mut Samples<'_>, labels: &str, statistics: &MadStatistics) {
    for class in CountedClass::ALL {
        let mads = statistics.class(class);
        for (verdict, dir, value) in [
            ("to_wire", "tx", mads.to_wire),
            ("loopback", "tx", mads.loopback),
            ("answered", "tx", mads.answered),
            ("absorbed", "tx", mads.absorbed),
            ("delivered", "rx", mads.delivered),
        ] {
            if value > 0 {
                let more = [
                    ("class", class.as_str()),
                    ("dir", dir),
                    ("verdict", verdict),
                ];
                samples.sample(labels, &more, value);
            }
        }
    }
}

fn dropped(samples: &mut Samples<'_>, labels: &str, statistics: &MadStatistics) {
    for &reason in DropReason::ALL {
        let value = statistics.drops(reason);
        if value > 0 {
            samples.sample(labels, &[("reason", reason.as_str())], value);
        }
    }
}
