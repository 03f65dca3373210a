//! Adapters whose functions share ports by time, with a clock that advances by a microsecond with each look at it.

use core::cell::Cell;
use core::num::NonZeroU16;

use super::*;
use crate::Pace;

/// Packets of an adapter at a time.
const PACKETS: u32 = 16;

thread_local! {
    static LOOKS: Cell<u64> = const { Cell::new(0) };
}

fn clock() -> Duration {
    LOOKS.set(LOOKS.get() + 1);
    Duration::from_micros(LOOKS.get())
}

fn timed() -> Rig {
    let mut rig = Rig::new();
    rig.fabric.set_pace(Pace::timed(PACKETS, clock));
    rig
}

/// Returns the packets that both ports of an adapter's link moved.
fn moved(rig: &Rig) -> u64 {
    let ends = rig.hosts.map(|host| host.port(1));
    let ports = ends.map(|end| rig.fabric.port(end).unwrap().counters.xmit_packets);
    ports.iter().sum()
}

#[test]
fn a_poll_moves_as_many_packets_as_the_pace_says_however_many_queue_pairs_have_some() {
    let mut rig = timed();
    let pairs: Vec<_> = (0..40).map(|_| rig.pair(QpKind::Rc)).collect();
    let len = u32::try_from(REGION).unwrap();
    for [a, b] in &pairs {
        rig.post(a, 1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, len))
            .unwrap();
    }
    let mut before = moved(&rig);
    let mut polls = 0;
    while rig.fabric.poll(rig.now) {
        let after = moved(&rig);
        // A poll that began with less than a run left ends with the run.
        assert!(
            after - before <= 2 * u64::from(PACKETS),
            "{}",
            after - before
        );
        before = after;
        polls += 1;
    }
    assert!(polls > 40 * REGION / 1024 / 32, "{polls}");
    rig.run(1000);
    for [a, _] in &pairs {
        assert_eq!(rig.outcomes(a), [(1, CompletionStatus::Success)]);
    }
}

#[test]
fn a_call_carries_out_four_timers_and_the_rest_come_behind_the_packets() {
    let mut rig = timed();
    let pairs: Vec<_> = (0..100).map(|_| rig.pair(QpKind::Rc)).collect();
    for [a, _] in &pairs {
        rig.post(a, 1, SendOp::Send, a.sge(0, 8)).unwrap();
    }
    // All are refused, and wait for the same time.
    while rig.fabric.poll(rig.now) {}
    let retried = |rig: &Rig| -> u64 {
        let device = rig.fabric.device(rig.hosts[0]).unwrap();
        let rows = device.queue_pairs();
        rows.filter_map(|row| row.counters)
            .map(|counters| counters.sent_bytes)
            .sum()
    };
    let before = retried(&rig);
    let due = rig.fabric.poll_timeout().unwrap() + Duration::from_millis(1);
    assert!(rig.fabric.poll(due));
    let after_one = (retried(&rig) - before) / 8;
    // A poll has work for two calls of four, each with a packet for each timer, and for the peer's answers between.
    assert!(after_one <= 8, "{after_one}");
    while rig.fabric.poll(due) {}
    assert_eq!((retried(&rig) - before) / 8, 100);
}

#[test]
fn functions_have_their_weights_of_the_time_whatever_their_messages_are() {
    let mut rig = timed();
    let vfs = [FunctionId(1), FunctionId(2)];
    for vf in vfs {
        rig.add_vf(0, vf);
    }
    let weight = NonZeroU16::new(4).unwrap();
    let mut pf = rig.device(0).function(PF).unwrap();
    pf.set_egress_weight(vfs[1], PORT, weight).unwrap();
    let mut ends = Vec::new();
    for (vf, pairs) in [(vfs[0], 50), (vfs[1], 2)] {
        for _ in 0..pairs {
            let pair = [rig.end_of(0, vf, QpKind::Uc), rig.end(1, QpKind::Uc)];
            rig.join(&pair, QpKind::Uc);
            ends.push(pair);
        }
    }
    rig.device(0).take_spent().for_each(drop);
    let mut spent = [Duration::ZERO; 2];
    for _ in 0..200 {
        for [a, b] in &ends {
            let len = if a.function == vfs[0] { 8 } else { 20_000 };
            while rig
                .post(a, 1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, len))
                .is_ok()
            {}
        }
        rig.fabric.poll(rig.now);
        for (function, time) in rig.device(0).take_spent() {
            if let Some(at) = vfs.iter().position(|vf| *vf == function) {
                spent[at] += time;
            }
        }
        for [a, _] in &ends {
            rig.outcomes(a);
        }
    }
    let ratio = spent[1].as_secs_f64() / spent[0].as_secs_f64();
    assert!((3.6..=4.4).contains(&ratio), "{spent:?}");
}

#[test]
fn in_virtual_time_no_time_is_spent() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    rig.post(&a, 1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 8))
        .unwrap();
    rig.run(1);
    assert_eq!(rig.device(0).take_spent().count(), 0);
}
