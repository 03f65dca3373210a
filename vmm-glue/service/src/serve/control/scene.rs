//! The scene of a lab, of which tables and metrics are made.

use crate::serve::lab::Lab;
use crate::show::{NamedPf, Scene, ServiceFacts};

/// Returns the PFs by the names of their hosts.
pub(super) fn pfs(lab: &Lab) -> Vec<NamedPf<'_>> {
    let hosts = lab.inventory.pf_hosts().map(|pf| NamedPf {
        name: &pf.name,
        node: lab.world().host(pf.id).node(),
        rows: lab.world().context(pf.id),
    });
    hosts.collect()
}

/// Returns the scene of a lab, with the PFs from [`pfs`] and the facts from [`Lab::service_facts`].
pub(super) fn scene<'l>(
    lab: &'l Lab,
    pfs: &'l [NamedPf<'l>],
    service: &'l ServiceFacts,
) -> Scene<'l> {
    Scene {
        pfs,
        vmms: lab,
        fabric: lab.world().fabric(),
        service,
        now: lab.world().now(),
    }
}
