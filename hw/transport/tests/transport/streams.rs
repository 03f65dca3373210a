//! Long streams of messages over networks with faults: exactly once and in order.

use ib_transport::{Operation, RemoteStart, Request, Status};
use ib_vtime::SplitMix64;

use crate::host::{Buffer, Receive};
use crate::network::{End, Faults, Network, requester, responder};
use crate::random::{ALL, below, host, sequences};

/// Messages under way, and lists that they use in turn.
const DEPTH: u64 = 8;

/// Sends messages that are numbered by their immediate data. Returns `false` if the requester gave up.
fn stream(faults: Faults, messages: u64, seed: u64) -> bool {
    let mut random = SplitMix64::new(seed);
    let first_psn = 0xff_fff0;
    let ends =
        [0, 0x55].map(|salt| End::new(host(salt), requester(first_psn), responder(first_psn)));
    let mut network = Network::new(ends, 3, seed);
    network.faults = faults;
    network.framed = seed.is_multiple_of(2);
    let mut arrived = 0;
    for batch in 0..messages / DEPTH {
        let mut sent = Vec::new();
        for slot in 0..DEPTH {
            let id = batch * DEPTH + slot;
            let data = u32::try_from(id).expect("small").to_be_bytes();
            let to = RemoteStart {
                addr: 500 * slot,
                rkey: ALL,
            };
            let operation = if random.chance(1, 2) {
                Operation::SendImmediate(data)
            } else {
                Operation::WriteImmediate(to, data)
            };
            let at = 4096 + usize::try_from(random.below(3000)).expect("small");
            let len = below(&mut random, 500);
            let request = Request {
                operation,
                buffer: Buffer { id, at },
                len,
                fence: false,
                solicited: false,
            };
            let [from, to] = &mut network.ends;
            from.rc.post(request, &mut from.host);
            let place = 8192 + 500 * usize::try_from(slot).expect("small");
            to.host.receives.push_back(Receive {
                id,
                at: place,
                len: 500,
            });
            sent.push(request);
        }
        network.settle();
        while network.elapse() {
            network.settle();
        }
        let [from, to] = &mut network.ends;
        if from
            .host
            .sends
            .iter()
            .any(|(_, status)| *status == Status::RetryExceeded)
        {
            return false;
        }
        assert!(
            from.host
                .sends
                .drain(..)
                .all(|(_, status)| status == Status::Success)
        );
        for (request, received) in sent.iter().zip(to.host.received.drain(..)) {
            assert_eq!((received.receive.id, received.len), (arrived, request.len));
            let data = u32::try_from(arrived).expect("small").to_be_bytes();
            assert_eq!(received.immediate, Some(data));
            let at = match request.operation {
                Operation::WriteImmediate(to, _) => usize::try_from(to.addr).expect("small"),
                _ => received.receive.at,
            };
            let len = request.len as usize;
            let bytes = &from.host.memory[request.buffer.at..][..len];
            assert!(&to.host.memory[at..][..len] == bytes, "message {arrived}");
            arrived += 1;
        }
        assert_eq!(arrived, (batch + 1) * DEPTH);
    }
    true
}

#[test]
fn long_streams_arrive_exactly_once_and_in_order() {
    let messages = sequences() / 50;
    let none = Faults::default();
    let mut given_up = 0;
    let mut seed = 0;
    for rate in [1, 10, 100] {
        let alone = [
            Faults { lose: rate, ..none },
            Faults {
                duplicate: rate,
                ..none
            },
            Faults {
                delay: rate,
                ..none
            },
            Faults {
                corrupt: rate,
                ..none
            },
        ];
        let together = Faults {
            lose: rate,
            duplicate: rate,
            delay: rate,
            corrupt: rate,
        };
        for faults in alone.into_iter().chain([together]) {
            seed += 1;
            let arrived = stream(faults, messages, seed);
            given_up += u32::from(!arrived);
            // At the highest rates eight round trips in a row fail now and then.
            assert!(arrived || faults.lose.max(faults.corrupt) == 100);
        }
    }
    assert!(given_up <= 3);
    assert!(stream(none, messages, seed));
}
