//! Rates, queues and weights of VFs: statements 23, 191, 192 and 221.

use core::num::NonZeroU16;

use ib_vtime::Duration;
use ib_wire::cm;
use ib_wire::mad::{AttributeId, Mad};
use pf_context::{Cause, EgressLimit, Limits, Output, PortConfig, WireLimit};
use vf_tunnel::DropReason;

use crate::harness::*;

const LIMIT: EgressLimit = EgressLimit {
    mads_per_second: 1_000,
    burst: 3,
    queue: 2,
    weight: NonZeroU16::MIN,
};

fn limited() -> Port {
    let limits = Limits {
        egress: LIMIT,
        ..Limits::default()
    };
    Port::with(
        PortConfig { limits, ..config() },
        [vf_config(1), vf_config(2)],
    )
}

#[test]
fn c023_c191_frames_beyond_the_burst_wait_and_then_are_dropped() {
    let mut port = limited();
    for tid in 0..3 {
        sent(port.vf_sends(1, &frame(SM, path_query(tid))));
    }
    for tid in 3..5 {
        assert!(port.vf_sends(1, &frame(SM, path_query(tid))).is_empty());
    }
    assert_eq!(port.mux.sizes().queued, 2);
    assert_eq!(port.mux.sizes().tids, 3, "a frame that waits has no state");
    assert_eq!(
        dropped(port.vf_sends(1, &frame(SM, path_query(5)))),
        DropReason::RateLimited
    );
    sent(port.vf_sends(2, &frame(SM, path_query(5))));

    let mut causes = Vec::new();
    for _ in 0..2 {
        let [(cause, Output::ToWire(..))] = port.wait(Duration::from_millis(1))[..] else {
            panic!("one frame a millisecond");
        };
        causes.push(cause);
    }
    assert_eq!(causes, [Cause(4), Cause(5)]);
    assert_eq!(port.mux.sizes().queued, 0);
}

#[test]
fn c192_vfs_that_wait_are_served_in_turn() {
    let mut port = limited();
    for number in [1, 2] {
        for tid in 0..5 {
            let outputs = port.vf_sends(number, &frame(SM, path_query(tid)));
            assert_eq!(outputs.len(), usize::from(tid < 3));
        }
    }
    // Both have one frame due at each of the next two milliseconds: causes 4, 5 and 9, 10.
    port.now += Duration::from_millis(10);
    port.mux.handle_timeout(port.now);
    let causes: Vec<u64> = core::iter::from_fn(|| port.mux.poll_output())
        .map(|(cause, _)| cause.0)
        .collect();
    assert_eq!(causes, [4, 9, 5, 10]);
}

#[test]
fn c221_another_rate_takes_effect_at_once() {
    let mut port = limited();
    for tid in 0..5 {
        port.vf_sends(1, &frame(SM, path_query(tid)));
    }
    let unlimited = EgressLimit {
        mads_per_second: 0,
        ..LIMIT
    };
    port.mux.set_egress_limit(port.now, vf(1), unlimited);
    let sent_now = core::iter::from_fn(|| port.mux.poll_output()).count();
    assert_eq!((sent_now, port.mux.sizes().queued), (2, 0));
    sent(port.vf_sends(1, &frame(SM, path_query(6))));
}

/// No limit of its own for any VF, and queues that a test does not fill.
const DEEP: EgressLimit = EgressLimit {
    mads_per_second: 0,
    burst: 1,
    queue: 64,
    weight: NonZeroU16::MIN,
};

fn of_weight(weight: u16) -> EgressLimit {
    EgressLimit {
        weight: NonZeroU16::new(weight).unwrap(),
        ..DEEP
    }
}

/// A port that sends one MAD of its VFs a millisecond.
fn busy(vfs: u16) -> Port {
    let limits = Limits {
        egress: DEEP,
        wire: WireLimit {
            mads_per_second: 1_000,
            burst: 1,
        },
        ..Limits::default()
    };
    Port::with(PortConfig { limits, ..config() }, (1..=vfs).map(vf_config))
}

/// Offers so many frames of each VF; the TID says whose it is. One of all of them goes at once.
fn offer(port: &mut Port, vfs: u16, frames: u16) -> usize {
    let mut sent_at_once = 0;
    for tid in 0..frames {
        for number in 1..=vfs {
            let query = path_query(u64::from(number) << 16 | u64::from(tid));
            sent_at_once += port.vf_sends(number, &frame(SM, query)).len();
        }
    }
    sent_at_once
}

/// The causes of what was sent, and when.
fn sent_causes(outputs: &[(Cause, Output)]) -> Vec<u64> {
    let sent = outputs
        .iter()
        .filter(|(_, output)| matches!(output, Output::ToWire(..)));
    sent.map(|(cause, _)| cause.0).collect()
}

#[test]
fn c192_a_busy_port_serves_1024_vfs_in_turn() {
    const VFS: u16 = 1_024;
    let mut port = busy(VFS);
    assert_eq!(offer(&mut port, VFS, 3), 1);
    let causes = sent_causes(&port.wait(Duration::from_millis(2 * u64::from(VFS))));
    assert_eq!(causes.len(), 2 * usize::from(VFS));
    // Causes count the frames offered: that modulo the VFs tells whose it is.
    for round in causes.chunks(usize::from(VFS)) {
        let mut served: Vec<u64> = round.iter().map(|cause| cause % u64::from(VFS)).collect();
        served.sort_unstable();
        assert!(served.into_iter().eq(0..u64::from(VFS)));
    }
}

#[test]
fn c192_a_busy_port_serves_vfs_by_their_weights() {
    let mut port = busy(3);
    for (number, weight) in [(1, 1), (2, 2), (3, 5)] {
        port.mux
            .set_egress_limit(port.now, vf(number), of_weight(weight));
    }
    offer(&mut port, 3, 60);
    let causes = sent_causes(&port.wait(Duration::from_millis(80)));
    let share = |number: u64| {
        causes
            .iter()
            .filter(|&cause| cause % 3 == number % 3)
            .count()
    };
    assert_eq!([share(1), share(2), share(3)], [10, 20, 50]);
}

#[test]
fn c221_another_weight_takes_effect_while_frames_wait() {
    let mut port = busy(2);
    offer(&mut port, 2, 60);
    let share_of_first = |outputs: &[(Cause, Output)]| {
        let causes = sent_causes(outputs);
        causes.iter().filter(|&cause| cause % 2 == 1).count()
    };
    assert_eq!(share_of_first(&port.wait(Duration::from_millis(20))), 10);
    port.mux.set_egress_limit(port.now, vf(1), of_weight(4));
    let shifted = share_of_first(&port.wait(Duration::from_millis(20)));
    assert!((15..=17).contains(&shifted), "{shifted}");
}

#[test]
fn c023_a_full_send_ring_keeps_frames_with_their_vfs_up_to_their_quotas() {
    let limits = Limits {
        egress: EgressLimit { queue: 2, ..DEEP },
        ..Limits::default()
    };
    let mut port = Port::with(
        PortConfig { limits, ..config() },
        [vf_config(1), vf_config(2)],
    );
    port.mux.set_wire_room(port.now, Some(1));
    sent(port.vf_sends(1, &frame(SM, path_query(0))));
    for tid in 1..3 {
        assert!(port.vf_sends(1, &frame(SM, path_query(tid))).is_empty());
    }
    let refused = port.vf_sends(1, &frame(SM, path_query(3)));
    assert_eq!(dropped(refused), DropReason::Backpressure);
    assert!(port.vf_sends(2, &frame(SM, path_query(0))).is_empty());
    assert_eq!(port.mux.sizes().queued, 3);
    assert!(
        port.wait(Duration::from_secs(1)).is_empty(),
        "no time helps"
    );

    port.mux.set_wire_room(port.now, Some(2));
    let outputs: Vec<_> = core::iter::from_fn(|| port.mux.poll_output()).collect();
    assert_eq!(sent_causes(&outputs), [2, 5], "one of each VF");
    port.mux.set_wire_room(port.now, None);
    let outputs: Vec<_> = core::iter::from_fn(|| port.mux.poll_output()).collect();
    assert_eq!(sent_causes(&outputs), [3]);
    assert_eq!(port.mux.sizes().queued, 0);
}

#[test]
fn c191_a_flood_of_a_sibling_delays_a_cm_message_by_no_more_than_one_frame() {
    let limits = Limits {
        wire: WireLimit {
            mads_per_second: 50_000,
            burst: 1,
        },
        ..Limits::default()
    };
    let mut port = Port::with(
        PortConfig { limits, ..config() },
        [vf_config(1), vf_config(2)],
    );
    let mut asked = None;
    let mut latencies = Vec::new();
    // A million frames a second for a tenth of a second, and a message of the sibling every millisecond.
    for microsecond in 0..100_000_u64 {
        let mut outputs = port.wait(Duration::from_micros(1));
        let flood = frame(SM, path_query(microsecond));
        port.vf_sends(1, &flood);
        if microsecond % 1_000 == 500 {
            let id = u32::try_from(microsecond).unwrap();
            let message = frame(PEER, sidr_request(id));
            let at_once = port.vf_sends(2, &message);
            assert!(asked.replace(microsecond).is_none(), "still waiting");
            outputs.extend(at_once.into_iter().map(|output| (Cause(0), output)));
        }
        let is_out = outputs.iter().any(|(_, output)| {
            matches!(output, Output::ToWire(_, mad)
                if mad.header.attribute_id == AttributeId::CM_SIDR_REQ)
        });
        if is_out && let Some(since) = asked.take() {
            latencies.push(microsecond - since);
        }
    }
    assert_eq!(latencies.len(), 100);
    // One frame takes 20 us; one of the flood may have the port already and one more be before.
    assert!(
        latencies.iter().all(|&latency| latency <= 40),
        "{latencies:?}"
    );
}

fn sidr_request(id: u32) -> Mad {
    let mut mad = Mad::new(cm::header(AttributeId::CM_SIDR_REQ));
    let request: &mut cm::CmSidrReq = mad.view_mut();
    request.request_id = ib_wire::CommId::new(id);
    request.pkey = ib_wire::PKey::DEFAULT_FULL;
    mad
}

#[test]
fn a_frame_that_waits_at_a_reset_is_dropped_with_its_own_cause() {
    let mut port = limited();
    for tid in 0..5 {
        port.vf_sends(1, &frame(SM, path_query(tid)));
    }
    port.mux.reset_vf(port.now, Cause(99), vf(1));
    let outputs: Vec<_> = core::iter::from_fn(|| port.mux.poll_output()).collect();
    let drop = Output::Dropped {
        vf: Some(vf(1)),
        reason: DropReason::VfInReset,
    };
    assert_eq!(outputs, [(Cause(4), drop.clone()), (Cause(5), drop)]);
    assert_eq!(port.mux.sizes().queued, 0);
}

#[test]
fn c221_another_rate_of_the_port_takes_effect_at_once() {
    let mut port = Port::new();
    sent(port.vf_sends(1, &frame(SM, path_query(1))));
    let limit = WireLimit {
        mads_per_second: 1,
        burst: 1,
    };
    port.mux.set_wire_limit(port.now, limit);
    let mut waiting = 0;
    for tid in 2..10 {
        waiting += usize::from(port.vf_sends(1, &frame(SM, path_query(tid))).is_empty());
    }
    assert!(waiting > 6, "{waiting}");
}
