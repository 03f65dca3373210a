//! VFs that are members of groups under their own aliases.

use ib_wire::mad::{Mad, Method};
use ib_wire::sa::{JoinState, McMemberRecord, SaMad};
use ib_wire::{Gid, PKey};
use mcast_agg::JoinAs;
use pf_context::{Limits, Output, PortConfig, VfEvent};

use crate::harness::{
    Port, SM, answer, config, frame, from, got, sent, told, vf, vf_config, vf_gid, vf_guid,
};

const MGID: Gid = Gid([0xff, 0x12, 0x40, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);

fn port_with_aliases() -> Port {
    let mut limits = Limits::default();
    limits.mcast.join_as = JoinAs::Alias;
    Port::with(
        PortConfig { limits, ..config() },
        [vf_config(1), vf_config(2)],
    )
}

fn join(number: u16) -> Mad {
    let mut record = McMemberRecord {
        mgid: MGID,
        port_gid: vf_gid(number),
        ..McMemberRecord::default()
    };
    record.set_join_state(JoinState::FULL_MEMBER);
    let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
    Mad::from_layout(&SaMad::new(Method::SET, mask, &record))
}

fn record(mad: &Mad) -> McMemberRecord {
    mad.view::<SaMad>().record()
}

fn granted(request: &Mad) -> Mad {
    let mut sa: SaMad = *answer(request).view();
    let mut record: McMemberRecord = sa.record();
    record.pkey = PKey::DEFAULT_FULL;
    sa.set_record(&record);
    Mad::from_layout(&sa)
}

#[test]
fn c151_c160_each_vf_joins_under_its_alias_and_leaves_before_the_alias_goes() {
    let mut port = port_with_aliases();
    for number in [1, 2] {
        let out = sent(port.vf_sends(number, &frame(SM, join(number))));
        assert_eq!(record(&out.mad).port_gid, vf_gid(number));
        assert_eq!(
            got(port.wire_sends(&from(SM), &granted(&out.mad))).vf,
            number
        );
    }
    assert!(port.mux.has_alias_members());
    let cause = port.next_cause();
    port.mux.leave_groups(port.now, cause, vf(1), vf_guid(1));
    let (events, requests): (Vec<_>, Vec<_>) = port
        .outputs()
        .into_iter()
        .partition(|output| matches!(output, Output::VfEvent { .. }));
    assert_eq!(told(events), [(1, VfEvent::ClientReregister)]);
    let out = sent(requests);
    assert_eq!(out.mad.header.method, Method::DELETE);
    assert_eq!(record(&out.mad).port_gid, vf_gid(1));
    assert_eq!(port.mux.poll_groups_left(), None);
    assert!(port.wire_sends(&from(SM), &answer(&out.mad)).is_empty());
    assert_eq!(port.mux.poll_groups_left(), Some(vf(1)));
    assert_eq!(port.mux.sizes().mcast_members, 1);
}
