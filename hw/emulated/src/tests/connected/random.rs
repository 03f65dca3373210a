//! Random operations against a model of memory that knows no packets.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Write {
        from: usize,
        to: usize,
        len: u32,
    },
    Read {
        from: usize,
        to: usize,
        len: u32,
    },
    Send {
        from: usize,
        to: usize,
        len: u32,
    },
    Add {
        at: usize,
        to: usize,
        add: u64,
    },
    /// Runs the fabric for a moment.
    Pass,
}

const HALF: usize = 1 << 15;

fn step() -> impl Strategy<Value = (bool, Step)> {
    let place = || (0..HALF - 5000, 0..HALF - 5000, 0_u32..5000);
    let step = prop_oneof![
        3 => place().prop_map(|(from, to, len)| Step::Write { from, to, len }),
        3 => place().prop_map(|(from, to, len)| Step::Read { from, to, len }),
        3 => place().prop_map(|(from, to, len)| Step::Send { from, to, len }),
        2 => (0..100_usize, 0..HALF / 8, any::<u64>())
            .prop_map(|(at, to, add)| Step::Add { at: at * 8, to: to * 8, add }),
        2 => Just(Step::Pass),
    ];
    (any::<bool>(), step)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Memory ends as if both ends had acted one after the other, whatever the link loses: each reads from the
    /// lower half of its own memory and writes into the upper half of the other's.
    #[test]
    fn memory_holds_what_the_requests_say_in_order(
        steps in prop::collection::vec(step(), 1..40),
        loss in prop::sample::select(vec![0, 0, 10_000, 80_000]),
    ) {
        let mut rig = Rig::new();
        let ends = rig.pair(QpKind::Rc);
        if loss != 0 {
            rig.faults(When::PerMillion(loss), Fault::Drop);
        }
        let mut model: [Vec<u8>; 2] = [0_usize, 1].map(|at| {
            let mut bytes = pattern(HALF, u8::try_from(at).unwrap());
            // Where the other writes, and where it reads: of that nobody writes.
            bytes.extend(vec![0; HALF]);
            bytes.extend(vec![0; HALF]);
            bytes
        });
        for (end, model) in ends.iter().zip(&model) {
            rig.write(end, 0, model);
        }
        let mut posted = [0_u64; 2];
        for (side, step) in steps {
            let (own, other) = (usize::from(side), usize::from(!side));
            let (end, peer) = (ends[own], ends[other]);
            let wr_id = posted[own];
            match step {
                Step::Write { from, to, len } => {
                    let op = SendOp::RdmaWrite(peer.remote(HALF + to));
                    rig.post(&end, wr_id, op, end.sge(from, len)).unwrap();
                    let bytes = model[own][from..from + len as usize].to_vec();
                    model[other][HALF + to..HALF + to + bytes.len()].copy_from_slice(&bytes);
                }
                Step::Read { from, to, len } => {
                    let op = SendOp::RdmaRead(peer.remote(from));
                    rig.post(&end, wr_id, op, end.sge(2 * HALF + to, len)).unwrap();
                    let bytes = model[other][from..from + len as usize].to_vec();
                    let to = 2 * HALF + to;
                    model[own][to..to + bytes.len()].copy_from_slice(&bytes);
                }
                Step::Send { from, to, len } => {
                    rig.receive(&peer, 1000 + wr_id, peer.sge(HALF + to, 5000));
                    rig.post(&end, wr_id, SendOp::Send, end.sge(from, len)).unwrap();
                    let bytes = model[own][from..from + len as usize].to_vec();
                    model[other][HALF + to..HALF + to + bytes.len()].copy_from_slice(&bytes);
                }
                Step::Add { at, to, add } => {
                    let op = SendOp::FetchAdd { remote: peer.remote(HALF + to), add };
                    let here = 2 * HALF + at;
                    rig.post(&end, wr_id, op, end.sge(here, 8)).unwrap();
                    let cell = &mut model[other][HALF + to..HALF + to + 8];
                    let original = u64::from_ne_bytes((&*cell).try_into().unwrap());
                    cell.copy_from_slice(&original.wrapping_add(add).to_ne_bytes());
                    model[own][here..here + 8].copy_from_slice(&original.to_ne_bytes());
                }
                Step::Pass => {
                    rig.fabric.poll(rig.now);
                    continue;
                }
            }
            posted[own] += 1;
        }
        rig.run(5000);
        for ((end, model), posted) in ends.iter().zip(&model).zip(posted) {
            let done = rig.done(end);
            prop_assert!(done.iter().all(|done| done.status == CompletionStatus::Success));
            let sent = done.iter().filter(|done| done.op != CompletionOp::Recv);
            let sent: Vec<_> = sent.map(|done| done.wr_id).collect();
            prop_assert_eq!(sent, (0..posted).collect::<Vec<_>>());
            prop_assert_eq!(&rig.read(end, 0, model.len()), model);
        }
    }
}
