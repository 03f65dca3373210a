//! The M_Key: who may manage a port (IBA 14.2.4).

use core::time::Duration;

use ib_wire::PortNum;
use ib_wire::mad::{Mad, Method, MgmtClass};
use ib_wire::notice::MKeyDetails;
use ib_wire::smp::{DirectedRouteSmp, LidRoutedSmp};

use crate::{DropReason, Node, NodeKind};

/// What the M_Key check lets a request do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guard {
    /// Everything.
    Open,
    /// Read, but not the key itself.
    HideKey,
    /// Nothing.
    Closed,
}

/// Checks a request that came from the subnet by `port` and is about another port of the node, too, which has a key of its
/// own: who manages the one reads of the other only what that port's key and protection allow. As Linux' `qib` does it
/// (`process_subn` and `subn_get_portinfo`), a wrong key counts at both.
pub(super) fn check_both(
    node: &mut Node,
    port: PortNum,
    about: Option<PortNum>,
    mad: &Mad,
) -> Guard {
    let guard = check(node, port, mad);
    match about.map(|about| check(node, about, mad)) {
        Some(_) if guard == Guard::Closed => Guard::Closed,
        // Of the attributes of another port nothing shows the key of the port that the request came by.
        Some(other) => other,
        None => guard,
    }
}

/// Checks a request that came from the subnet. A failure is counted, told to the SM, and starts the
/// lease; a success ends it.
pub(super) fn check(node: &mut Node, port: PortNum, mad: &Mad) -> Guard {
    let now = node.now();
    // A switch has one M_Key, that of its management port.
    let port = match node.kind() {
        NodeKind::Switch => PortNum::SWITCH_MANAGEMENT,
        NodeKind::ChannelAdapter => port,
    };
    let Some(state) = node.port_mut(port) else {
        return Guard::Closed;
    };
    if state.m_key_lease_end.is_some_and(|end| end <= now) {
        state.m_key_lease_end = None;
        state.m_key_protect = 0;
    }
    let smp: &LidRoutedSmp = mad.view();
    if state.m_key.get() == 0 || smp.mkey == state.m_key {
        state.m_key_lease_end = None;
        return Guard::Open;
    }
    let reads = mad.header.method == Method::GET;
    match (reads, state.m_key_protect) {
        (true, 0) => return Guard::Open,
        (true, 1) => return Guard::HideKey,
        _ => {}
    }
    state.m_key_violations = state.m_key_violations.saturating_add(1);
    if state.m_key_lease_seconds != 0 && state.m_key_lease_end.is_none() {
        state.m_key_lease_end =
            Some(now + Duration::from_secs(u64::from(state.m_key_lease_seconds)));
    }
    let details = violation(state.lid, mad);
    node.count_drop(port, None, DropReason::BadMKey);
    node.trap_bad_m_key(port, &details);
    Guard::Closed
}

fn violation(lid: ib_wire::Lid, mad: &Mad) -> MKeyDetails {
    let smp: &DirectedRouteSmp = mad.view();
    let mut details = MKeyDetails {
        lid,
        method: mad.header.method,
        attribute_id: mad.header.attribute_id,
        attribute_modifier: mad.header.attribute_modifier,
        mkey: smp.mkey,
        ..MKeyDetails::default()
    };
    if mad.header.mgmt_class == MgmtClass::SUBN_DIRECTED_ROUTE {
        let hops = usize::from(smp.hop_count());
        let room = details.dr_return_path.len();
        let kept = hops.min(room);
        details.dr_slid = smp.dr_slid;
        details.set_dr_notice(true);
        details.set_dr_path_truncated(hops > room);
        details.set_dr_hop_count(smp.hop_count());
        details.dr_return_path[..kept].copy_from_slice(&smp.return_path[1..=kept]);
    }
    details
}
