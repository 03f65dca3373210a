//! The text that Prometheus reads (its exposition format 0.0.4).
//!
//! | metric | type | labels besides `pf` and `port` |
//! | --- | --- | --- |
//! | `vhca_port_state` | gauge | `vf`: 1 if its port is up; `vf="pf"` is the physical port |
//! | `vhca_port_reason` | gauge | `vf`, `reason`: 1 |
//! | `vhca_mad_total` | counter | `vf`, `class`, `dir`, `verdict` |
//! | `vhca_mad_dropped_total` | counter | `vf`, `reason` |
//! | `vhca_tid_entries` | gauge | `vf` |
//! | `vhca_cm_idmap_entries` | gauge | `vf` |
//! | `vhca_mcast_group_members` | gauge | `mgid` |
//! | `vhca_mcast_sa_joins_total` | counter | `mgid` |
//! | `vhca_notice_subscriptions` | gauge | `vf` |
//! | `vhca_sa_outstanding` | gauge | `vf` |
//! | `vhca_queued_frames` | gauge | `vf` |
//! | `vhca_delivering_frames` | gauge | `vf` |
//! | `vhca_quota` | gauge | `vf`, `resource` |
//! | `vhca_oldest_age_seconds` | gauge | `vf`, `what`, where there is one |
//! | `vhca_path_cache_entries` | gauge | |
//!
//! Of the nodes of the fabric, with a label `node` instead of `pf`:
//!
//! | metric | type | labels besides `node` and `port` |
//! | --- | --- | --- |
//! | `vhca_packet_dropped_total` | counter | `vf`, if the packet was of a function or for one, `reason` |
//!
//! Of VFs that are offered to VMMs, without `port`:
//!
//! | metric | type | labels besides `pf` |
//! | --- | --- | --- |
//! | `vhca_vmm_attached` | gauge | `vf`: 1 if a VMM has it |
//! | `vhca_vmm_vectors` | gauge | `vf` |
//! | `vhca_vmm_shared_bytes` | gauge | `vf` |
//! | `vhca_vmm_touched_bytes` | gauge | `vf` |
//! | `vhca_vmm_unshared_bytes` | gauge | `vf` |
//! | `vhca_vmm_resets_total` | counter | `vf` |
//! | `vhca_vmm_total` | counter | `vf` |
//! | `vhca_vmm_refused_total` | counter | `vf` |
//!
//! Counters appear with their first count. `dir` is `tx` for what a VF sends and `rx` for what it
//! gets. MADs are not counted by attribute, and bytes of queue pairs not at all, so `vhca_mad_total` has
//! no label `attr` and there is no `vhca_qp_bytes_total`.

use std::fmt::Display;
use std::io::{self, Write};

use ib_vtime::Instant;
use ib_wire::PortNum;
use pf_context::Use;
use pf_context::inspect::{Counted, Inspect, VfRow};
use vf_tunnel::VfId;

use super::{Scene, drops, vmms};

/// Writes all metrics.
///
/// # Errors
/// What `out` says.
pub fn write_metrics(out: &mut impl Write, scene: &Scene<'_>) -> io::Result<()> {
    let Scene {
        pfs,
        vmms,
        fabric,
        now,
    } = *scene;
    let pfs = pfs.iter().map(|pf| Pf {
        name: escaped(pf.name),
        rows: pf.rows,
        vfs: pf.rows.vfs(now).collect(),
    });
    let pfs: Vec<Pf<'_>> = pfs.collect();
    let mut page = Page { out };
    page.states(&pfs)?;
    page.counters(&pfs, now)?;
    page.entries(&pfs)?;
    page.quotas(&pfs)?;
    page.ages(&pfs)?;
    drops::write_metrics(page.out, fabric, now)?;
    let hosts = pfs.iter().map(|pf| vmms.of_host(&pf.name));
    vmms::write_metrics(page.out, &hosts.flatten().collect::<Vec<_>>())
}

/// A label's value may hold anything but what ends it.
pub(super) fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

/// A VF's number; the PF has a word.
fn vf_label(vf: VfId) -> (&'static str, String) {
    let value = if vf == VfId::PF {
        vf.to_string()
    } else {
        vf.get().to_string()
    };
    ("vf", value)
}

fn label(name: &'static str, value: impl Display) -> (&'static str, String) {
    (name, value.to_string())
}

/// A PF, with the rows that several families need.
struct Pf<'a> {
    name: String,
    rows: &'a dyn Inspect,
    vfs: Vec<VfRow>,
}

struct Page<'a, W> {
    out: &'a mut W,
}

impl<W: Write> Page<'_, W> {
    fn family(&mut self, name: &str, kind: &str, help: &str) -> io::Result<()> {
        writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}")
    }

    fn sample(
        &mut self,
        name: &str,
        pf: &Pf<'_>,
        port: PortNum,
        labels: &[(&str, String)],
        value: impl Display,
    ) -> io::Result<()> {
        write!(self.out, "{name}{{pf=\"{}\",port=\"{port}\"", pf.name)?;
        for (label, value) in labels {
            write!(self.out, ",{label}=\"{value}\"")?;
        }
        writeln!(self.out, "}} {value}")
    }

    /// A gauge of each VF.
    fn of_vfs<T: Display>(
        &mut self,
        name: &str,
        help: &str,
        pfs: &[Pf<'_>],
        value: impl Fn(&VfRow) -> T,
    ) -> io::Result<()> {
        self.family(name, "gauge", help)?;
        pfs.iter()
            .try_for_each(|pf| self.samples_of_vfs(name, pf, &value))
    }

    fn samples_of_vfs<T: Display>(
        &mut self,
        name: &str,
        pf: &Pf<'_>,
        value: impl Fn(&VfRow) -> T,
    ) -> io::Result<()> {
        pf.vfs
            .iter()
            .try_for_each(|row| self.sample(name, pf, row.port, &[vf_label(row.vf)], value(row)))
    }

    fn states(&mut self, pfs: &[Pf<'_>]) -> io::Result<()> {
        let name = "vhca_port_state";
        self.family(name, "gauge", "Whether a port is up.")?;
        for pf in pfs {
            for row in pf.rows.ports() {
                let labels = [vf_label(VfId::PF)];
                self.sample(name, pf, row.port, &labels, u8::from(row.up))?;
            }
            self.samples_of_vfs(name, pf, |row| u8::from(row.up))?;
        }
        let name = "vhca_port_reason";
        self.family(name, "gauge", "Why a VF's port is as it is.")?;
        for pf in pfs {
            for row in &pf.vfs {
                let labels = [vf_label(row.vf), label("reason", row.reason)];
                self.sample(name, pf, row.port, &labels, 1)?;
            }
        }
        Ok(())
    }

    fn counters(&mut self, pfs: &[Pf<'_>], now: Instant) -> io::Result<()> {
        let name = "vhca_mad_total";
        self.family(name, "counter", "MADs by what became of them.")?;
        for pf in pfs {
            for row in pf.rows.counters(now) {
                if let Counted::Mads(class, verdict) = row.counted {
                    let dir = if verdict == "delivered" { "rx" } else { "tx" };
                    let labels = [
                        vf_label(row.vf),
                        label("class", class.as_str()),
                        label("dir", dir),
                        label("verdict", verdict),
                    ];
                    self.sample(name, pf, row.port, &labels, row.value)?;
                }
            }
        }
        let name = "vhca_mad_dropped_total";
        self.family(name, "counter", "Frames that went nowhere.")?;
        for pf in pfs {
            for row in pf.rows.counters(now) {
                if let Counted::Dropped(reason) = row.counted {
                    let labels = [vf_label(row.vf), label("reason", reason.as_str())];
                    self.sample(name, pf, row.port, &labels, row.value)?;
                }
            }
        }
        Ok(())
    }

    fn entries(&mut self, pfs: &[Pf<'_>]) -> io::Result<()> {
        let live = |of: fn(&VfRow) -> Use| move |row: &VfRow| of(row).live;
        let tids = live(|row| row.usage.tids);
        self.of_vfs("vhca_tid_entries", "Live transactions.", pfs, tids)?;
        let help =
            "Live communication ids on all ports of the adapter, those in quarantine included.";
        let ids = live(|row| row.usage.cm_ids);
        self.of_vfs("vhca_cm_idmap_entries", help, pfs, ids)?;
        let name = "vhca_mcast_group_members";
        self.family(name, "gauge", "Members of a multicast group.")?;
        for pf in pfs {
            for row in pf.rows.groups() {
                let mgid = [label("mgid", row.mgid)];
                self.sample(name, pf, row.port, &mgid, row.members.len())?;
            }
        }
        let name = "vhca_mcast_sa_joins_total";
        self.family(name, "counter", "Joins that the port asked the SA for.")?;
        for pf in pfs {
            for row in pf.rows.groups() {
                let mgid = [label("mgid", row.mgid)];
                self.sample(name, pf, row.port, &mgid, row.sa_joins)?;
            }
        }
        let held = live(|row| row.usage.subscriptions);
        let help = "Subscriptions to notices.";
        self.of_vfs("vhca_notice_subscriptions", help, pfs, held)?;
        let name = "vhca_sa_outstanding";
        self.family(name, "gauge", "SA requests that wait for their answer.")?;
        for pf in pfs {
            for row in pf.rows.ports() {
                let labels = [vf_label(VfId::PF)];
                self.sample(name, pf, row.port, &labels, row.sa_requests)?;
            }
            self.samples_of_vfs(name, pf, live(|row| row.usage.sa_requests))?;
        }
        let help = "Frames beyond a VF's rate that wait for their turn.";
        let queued = live(|row| row.usage.queued);
        self.of_vfs("vhca_queued_frames", help, pfs, queued)?;
        let help = "Frames that wait for a VF's tunnel.";
        self.of_vfs("vhca_delivering_frames", help, pfs, |row| row.delivering)?;
        let name = "vhca_path_cache_entries";
        self.family(name, "gauge", "Cached paths.")?;
        for pf in pfs {
            for row in pf.rows.ports() {
                self.sample(name, pf, row.port, &[], row.sizes.path_cache)?;
            }
        }
        Ok(())
    }

    fn quotas(&mut self, pfs: &[Pf<'_>]) -> io::Result<()> {
        let name = "vhca_quota";
        self.family(name, "gauge", "How much a VF may have.")?;
        for pf in pfs {
            for row in &pf.vfs {
                for (resource, used) in row.usage.named() {
                    let labels = [vf_label(row.vf), label("resource", resource)];
                    self.sample(name, pf, row.port, &labels, used.limit)?;
                }
            }
        }
        Ok(())
    }

    fn ages(&mut self, pfs: &[Pf<'_>]) -> io::Result<()> {
        let name = "vhca_oldest_age_seconds";
        self.family(name, "gauge", "How long the oldest has rested or waited.")?;
        for pf in pfs {
            for row in &pf.vfs {
                for (what, age) in [
                    ("transaction", row.ages.transaction),
                    ("exchange", row.ages.exchange),
                    ("frame", row.ages.frame),
                ] {
                    if let Some(age) = age {
                        let labels = [vf_label(row.vf), label("what", what)];
                        self.sample(name, pf, row.port, &labels, age.as_secs_f64())?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_end_a_label_is_escaped() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
