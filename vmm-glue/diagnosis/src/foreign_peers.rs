//! VFs that send packets into connections of another.

use crate::commands::vf_name;
use crate::fault::Fault;
use crate::shell::quoted;
use crate::snapshot::{ForeignPeer, OnPort, RECENT, VfPort};
use crate::subnet::Subnet;

/// Senders that a diagnosis names.
const NAMED: usize = 3;

/// Returns the fault that connections of the VF lately refused packets of queue pairs that are not their peers.
pub(crate) fn why(on: OnPort<'_>, vf: u16, row: &VfPort) -> Option<Fault> {
    if on.ago(row.foreign?.last) > RECENT {
        return None;
    }
    let peers = on.pf.foreign_peers.iter().rev();
    let peers: Vec<&ForeignPeer> = peers.filter(|peer| peer.to == vf).collect();
    let summary = "another VF sends packets into connections of the VF, which refuse them";
    let mut fault = Fault::new("foreign_peer", summary);
    for peer in peers.iter().take(NAMED) {
        let ago = on.ago(peer.refused.last).as_secs_f64();
        let (name, packets) = (sender(on.subnet(), peer), peer.refused.packets);
        fault = fault.seen(format!(
            "{name} sent {packets} such packets, the last {ago:.1} s ago"
        ));
    }
    Some(match peers.first() {
        Some(latest) if latest.function != 0 => fault
            .next(format!(
                "vhca set vf {} state disable",
                quoted(&sender(on.subnet(), latest))
            ))
            .remark("unless connections were just made anew: then the packets were late, and end by themselves"),
        _ => fault.next("vhca show drops --problems"),
    })
}

/// Returns the name of a VF that sent packets, or of the host whose own software did.
fn sender(subnet: &Subnet, peer: &ForeignPeer) -> String {
    let Some(at) = subnet.owner(peer.slid) else {
        return format!("LID {}", peer.slid.get());
    };
    let host = subnet.node_name(at.node);
    match peer.function {
        0 => host.to_owned(),
        vf => vf_name(host, vf),
    }
}
