//! Both ends send at once.

use ib_transport::{AtomicOp, Operation, Request, Status};
use ib_vtime::SplitMix64;

use crate::host::Buffer;
use crate::model;
use crate::network::{End, Faults, Network, requester, responder};
use crate::random::{generate, host, pick, sequences};
use crate::rig::REMOTE;

#[test]
fn requests_of_both_ends_do_not_disturb_each_other() {
    let mut random = SplitMix64::new(10);
    let templates = [host(0), host(0x55)];
    for seed in 0..sequences() / 5 {
        let there = generate(&mut random, &templates, 0);
        let back = generate(&mut random, &templates, 0);
        let mut hosts = templates.clone();
        hosts[1].receives.extend(&there.hosts[1].receives);
        hosts[1].receives.extend(&there.late);
        hosts[0].receives.extend(&back.hosts[1].receives);
        hosts[0].receives.extend(&back.late);
        let [mut a, mut b] = hosts.clone();
        let [first, second] = hosts;
        let ends = [
            End::new(first, there.requester, back.responder),
            End::new(second, back.requester, there.responder),
        ];
        let mut network = Network::new(ends, there.budget, seed);
        network.framed = random.chance(1, 4);
        let rate = pick(&mut random, &[0, 1, 10]);
        network.faults = Faults {
            lose: rate,
            duplicate: rate,
            delay: rate,
            corrupt: rate,
        };
        for (end, sequence) in [&there, &back].into_iter().enumerate() {
            for request in &sequence.requests {
                let end = &mut network.ends[end];
                end.rc.post(*request, &mut end.host);
            }
            if random.chance(1, 2) {
                network.settle();
            }
        }
        network.settle();
        while network.elapse() {
            network.settle();
        }
        model::execute(&mut a, &mut b, &there.requests, there.responder.rights);
        model::execute(&mut b, &mut a, &back.requests, back.responder.rights);
        for (end, expected) in network.ends.iter().zip([&a, &b]) {
            assert_eq!(end.host.sends, expected.sends, "seed {seed}");
            assert_eq!(end.host.received, expected.received, "seed {seed}");
            assert!(end.host.memory == expected.memory, "seed {seed}: memory");
        }
    }
}

#[test]
fn the_sum_of_many_fetch_and_adds_is_exact() {
    let mut random = SplitMix64::new(11);
    let ends = [0, 1].map(|_| End::new(host(0), requester(5), responder(5)));
    let mut network = Network::new(ends, 4, 12);
    network.faults = Faults {
        lose: 10,
        duplicate: 10,
        delay: 10,
        corrupt: 0,
    };
    let word = |network: &Network| {
        let bytes = &network.ends[1].host.memory[64..72];
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    };
    let mut sum = word(&network);
    for round in 0..sequences() / 10 {
        let mut partial = Vec::new();
        for slot in 0..10 {
            let add = random.next();
            let request = Request {
                operation: Operation::Atomic(REMOTE, AtomicOp::FetchAdd { add }),
                buffer: Buffer {
                    id: slot,
                    at: 8192 + 8 * usize::try_from(slot).expect("small"),
                },
                len: 8,
                fence: false,
                solicited: false,
            };
            let end = &mut network.ends[0];
            end.rc.post(request, &mut end.host);
            partial.push(sum);
            sum = sum.wrapping_add(add);
        }
        network.settle();
        while network.elapse() {
            network.settle();
        }
        let host = &mut network.ends[0].host;
        for (slot, original) in partial.into_iter().enumerate() {
            let bytes = &host.memory[8192 + 8 * slot..8200 + 8 * slot];
            assert_eq!(bytes, original.to_le_bytes(), "round {round}");
        }
        assert!(
            host.sends
                .drain(..)
                .all(|(_, status)| status == Status::Success)
        );
        assert_eq!(word(&network), sum, "round {round}");
    }
    assert_eq!(network.ends[1].host.atomics, sequences() / 10 * 10);
}
