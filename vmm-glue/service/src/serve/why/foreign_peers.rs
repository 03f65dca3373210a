//! VFs that send packets into connections of another.

use emulated_hca::DropReason;
use emulated_hca::hca::ForeignPeer;
use hca_api::FunctionId;
use ib_wire::PortNum;

use super::Fault;
use super::hampered::RECENT;
use crate::serve::{Lab, NamedVf};
use crate::shell::quoted;

/// Senders that a diagnosis names.
const NAMED: usize = 3;

impl Lab {
    /// Returns the fault that connections of the VF lately refused packets of queue pairs that are not their peers.
    pub(super) fn foreign_peers(&self, vf: &NamedVf, port: PortNum) -> Option<Fault> {
        let device = self.fabric().device(self.world().host(vf.host).node())?;
        let own = FunctionId(vf.vf.get());
        let refused = device.drops().of(port, own, DropReason::ForeignPeer)?;
        let now = self.world().now();
        if now.saturating_duration_since(refused.last) > RECENT {
            return None;
        }
        let peers = device.foreign_peers().filter(|peer| peer.to == own);
        let mut peers: Vec<ForeignPeer> = peers.collect();
        peers.reverse();
        let summary = "another VF sends packets into connections of the VF, which refuse them";
        let mut fault = Fault::new("foreign_peer", summary);
        for peer in peers.iter().take(NAMED) {
            let ago = now.saturating_duration_since(peer.last).as_secs_f64();
            let (name, packets) = (self.sender(peer), peer.packets);
            fault = fault.seen(format!(
                "{name} sent {packets} such packets, the last {ago:.1} s ago"
            ));
        }
        Some(match peers.first() {
            Some(latest) if latest.function != FunctionId::PF => fault
                .next(format!(
                    "vhca set vf {} state disable",
                    quoted(&self.sender(latest))
                ))
                .remark("unless connections were just made anew: then the packets were late, and end by themselves"),
            _ => fault.next("vhca show drops --problems"),
        })
    }

    /// The name of a VF that sent packets, or of the host whose own software did.
    fn sender(&self, peer: &ForeignPeer) -> String {
        let Some(at) = self.owner(peer.slid) else {
            return format!("LID {}", peer.slid.get());
        };
        let host = self.node_name(at.node);
        match peer.function {
            FunctionId::PF => host.to_owned(),
            vf => format!("{host}/{}", vf.0),
        }
    }
}
