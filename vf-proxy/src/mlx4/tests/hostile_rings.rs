//! Rings of a guest that writes anything into them.

use mlx4_defs::cq::ArmCommand;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// Writes into the pages of a queue.
    Scribble {
        page: u64,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// Posts a request with any bytes behind the segments that it needs.
    Post {
        which: bool,
        control: [u8; 16],
        segments: Vec<u8>,
    },
    /// Tells of receives.
    Receives {
        which: bool,
        record: u32,
    },
    Ring(bool),
    Arm(bool),
    Transit {
        which: bool,
        command: u16,
    },
    Take,
    Wait(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = |most| prop::collection::vec(any::<u8>(), 1..most);
    prop_oneof![
        (
            prop::sample::select(vec![10_u64, 12, 13, 16, 17]),
            0..4000_u64,
            bytes(96)
        )
            .prop_map(|(page, offset, bytes)| Step::Scribble {
                page,
                offset,
                bytes
            }),
        (any::<bool>(), any::<[u8; 16]>(), bytes(100)).prop_map(|(which, control, segments)| {
            Step::Post {
                which,
                control,
                segments,
            }
        }),
        (any::<bool>(), any::<u32>()).prop_map(|(which, record)| Step::Receives { which, record }),
        any::<bool>().prop_map(Step::Ring),
        any::<bool>().prop_map(Step::Arm),
        (any::<bool>(), 0x19..0x23_u16)
            .prop_map(|(which, command)| Step::Transit { which, command }),
        Just(Step::Take),
        (0..600_u16).prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Nothing that stands in the rings makes the function stumble or keeps it from giving everything
    /// back, and its work ends.
    #[test]
    fn any_bytes_in_the_rings_are_survived(steps in prop::collection::vec(step(), 1..60)) {
        let mut guest = Guest::online();
        let mut cq = guest.make_cq(10);
        let mut pair = [guest.make_qp(12, &cq), guest.make_qp(16, &cq)];
        let mut now = NOW;
        for step in steps {
            match step {
                Step::Scribble { page, offset, bytes } => {
                    let at = guest.page(page) + offset;
                    guest.write(at, &bytes);
                }
                Step::Post { which, control, segments } => {
                    let control = zerocopy::transmute!(control);
                    guest.post_send(&mut pair[usize::from(which)], control, &segments);
                }
                Step::Receives { which, record } => {
                    let at = pair[usize::from(which)].record;
                    guest.write(at, &record.to_be_bytes());
                }
                Step::Ring(which) => guest.ring(&pair[usize::from(which)]),
                Step::Arm(any) => {
                    guest.arm(&cq, if any { ArmCommand::NEXT } else { ArmCommand::SOLICITED });
                }
                Step::Transit { which, command } => {
                    let qp = &pair[usize::from(which)];
                    let context = guest.context(qp, &cq);
                    guest.transition(Opcode::new(command), qp.qpn, &context, 1 << 4 | 1 << 5);
                }
                Step::Take => { guest.poll_all(&mut cq); }
                Step::Wait(ms) => {
                    now += ib_vtime::Duration::from_millis(ms.into());
                    let mut hca = guest.fabric.hca(guest.node, VF).unwrap();
                    let calls = (0..10_000).take_while(|_| guest.function.poll(now, &mut hca)).count();
                    prop_assert!(calls < 10_000, "the work does not end");
                }
            }
        }
        for qp in &pair {
            guest.reset_qp(qp);
        }
        let input = Input { modifier: cq.cqn, variant: 1, ..Input::default() };
        guest.ok(Opcode::HW2SW_CQ, input);
        let owned = guest.owned();
        prop_assert_eq!((owned.qps, owned.cqs, owned.pds, owned.mrs), (0, 0, 0, 0));
        prop_assert_eq!(guest.function.poll_timeout(), None);
    }
}
