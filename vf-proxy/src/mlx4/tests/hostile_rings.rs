//! Rings of a guest that writes anything into them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use hca_api::{DmaBuffer, DmaFault, HcaError};
use mlx4_defs::cq::ArmCommand;
use mlx4_defs::wqe::WqeOpcode;
use proptest::prelude::*;
use vf_queues::TURNS;

use super::super::queues::BATCH;
use super::queue_scene::*;
use super::*;

/// Memory in which another processor of the guest posts the one request of a ring anew each time that the
/// device asks whether it is posted.
#[derive(Debug, Default)]
struct Racing {
    memory: HostMemory,
    ring: Arc<AtomicU64>,
    posted: Arc<AtomicU32>,
}

impl AddressSpace for Racing {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        self.memory.read(addr, buf)?;
        if addr == self.ring.load(Ordering::Relaxed) && buf.len() == 4 {
            let odd = self.posted.fetch_add(1, Ordering::Relaxed) & 1 == 1;
            buf[0] = if odd { 0x80 } else { 0 };
        }
        Ok(())
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        self.memory.write(addr, bytes)
    }

    fn update_u64(&mut self, addr: u64, to: &mut dyn FnMut(u64) -> u64) -> Result<u64, DmaFault> {
        self.memory.update_u64(addr, to)
    }

    fn allocate(&mut self, len: usize) -> Result<DmaBuffer, HcaError> {
        self.memory.allocate(len)
    }

    fn free(&mut self, buffer: DmaBuffer) {
        self.memory.free(buffer);
    }
}

/// A guest that posts faster than it is served has its share of an instant, and others the rest.
#[test]
fn a_ring_that_never_ends_is_served_up_to_a_bound_at_a_time() {
    let racing = Racing::default();
    let (ring, posted) = (racing.ring.clone(), racing.posted.clone());
    let mut guest = Guest::with_memory(racing).go_online();
    let cq = guest.make_cq(10);
    let qpn = guest.reserve_qpn();
    let mut qp = guest.make_qp_with(12, &cq, qpn, |context| context.set_log_sq_entries(0));
    let mut quiet = control(WqeOpcode::SEND);
    quiet.set_completion(0);
    guest.post_send(&mut qp, quiet, datagram(qpn).as_bytes());
    ring.store(qp.send_slot(0), Ordering::Relaxed);
    guest.ring(&qp);
    let mut now = NOW;
    for instants in 1..4 {
        guest.settle_at(now);
        let done = posted.load(Ordering::Relaxed);
        let most = u32::try_from(BATCH).unwrap() * (TURNS * instants + 1);
        assert!((most / 2..=most).contains(&done), "{done} of {most}");
        let next = guest.function.poll_timeout().unwrap();
        assert!(next > now, "not before time has passed");
        now = next;
    }
}

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
