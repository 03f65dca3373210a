//! Rates and queues of VFs: statements 23, 191, 192 and 221.

use ib_vtime::Duration;
use pf_context::{Cause, EgressLimit, Limits, Output, PortConfig};
use vf_tunnel::DropReason;

use crate::harness::*;

const LIMIT: EgressLimit = EgressLimit {
    mads_per_second: 1_000,
    burst: 3,
    queue: 2,
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
        let [(cause, Output::ToWire { .. })] = port.wait(Duration::from_millis(1))[..] else {
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
