//! Any sequence of verbs from two functions: no panic, resources as a model counts them, and every
//! posted request completes exactly once, unless a reset dropped it.

use std::collections::BTreeMap;

use hca_api::ResourceCounts;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    AllocPd,
    DeallocPd(u32),
    CreateCq(u32),
    DestroyCq(u32),
    Register {
        pd: u32,
        len: u64,
    },
    Deregister(u32),
    CreateAv {
        pd: u32,
        dlid: u16,
    },
    DestroyAv(u32),
    CreateQp {
        pd: u32,
        cq: u32,
        kind: u8,
    },
    Modify {
        qp: u32,
        to: u8,
    },
    MakeReady(u32),
    DestroyQp(u32),
    PostRecv {
        qp: u32,
        addr: u64,
        len: u32,
        lkey: u32,
    },
    PostSend {
        qp: u32,
        to: u32,
        dlid: u16,
        addr: u64,
        len: u32,
        lkey: u32,
        qkey: u32,
    },
    Attach {
        qp: u32,
        group: u8,
    },
    Detach {
        qp: u32,
        group: u8,
    },
    Transmit,
    Reset,
}

fn step() -> impl Strategy<Value = (bool, Step)> {
    let small = 0_u32..4;
    let step = prop_oneof![
        1 => Just(Step::AllocPd),
        1 => small.clone().prop_map(Step::DeallocPd),
        1 => (0_u32..6).prop_map(Step::CreateCq),
        1 => small.clone().prop_map(Step::DestroyCq),
        1 => (small.clone(), prop_oneof![Just(0), Just(8192_u64), any::<u64>()])
            .prop_map(|(pd, len)| Step::Register { pd, len }),
        1 => small.clone().prop_map(Step::Deregister),
        1 => (small.clone(), prop_oneof![Just(5), any::<u16>()])
            .prop_map(|(pd, dlid)| Step::CreateAv { pd, dlid }),
        1 => small.clone().prop_map(Step::DestroyAv),
        4 => (small.clone(), small.clone(), 0_u8..8)
            .prop_map(|(pd, cq, kind)| Step::CreateQp { pd, cq, kind }),
        2 => (small.clone(), 0_u8..7).prop_map(|(qp, to)| Step::Modify { qp, to }),
        4 => small.clone().prop_map(Step::MakeReady),
        1 => small.clone().prop_map(Step::DestroyQp),
        8 => (small.clone(), 0_u64..8192, 0_u32..600, 0_u32..4)
            .prop_map(|(qp, addr, len, lkey)| Step::PostRecv { qp, addr, len, lkey }),
        12 => (
            (small.clone(), 0_u32..6, prop_oneof![4 => Just(5), 1 => Just(0xc001), 2 => any::<u16>()]),
            (0_u64..8192, 0_u32..2600, 0_u32..4, prop_oneof![4 => Just(0x1234), 1 => any::<u32>()]),
        )
            .prop_map(|((qp, to, dlid), (addr, len, lkey, qkey))| {
                Step::PostSend { qp, to, dlid, addr, len, lkey, qkey }
            }),
        1 => (small.clone(), 0_u8..2).prop_map(|(qp, group)| Step::Attach { qp, group }),
        1 => (small, 0_u8..2).prop_map(|(qp, group)| Step::Detach { qp, group }),
        1 => Just(Step::Transmit),
    ];
    let reset = prop_oneof![30 => step, 1 => Just(Step::Reset)];
    (any::<bool>(), reset)
}

/// What the model knows of a function.
#[derive(Default)]
struct Model {
    counts: ResourceCounts,
    /// Posted and not completed, by name: the queue pair.
    open: BTreeMap<u64, u32>,
    cqs: Vec<CqHandle>,
    qps: BTreeMap<u32, Qpn>,
    keys: Vec<LKey>,
    mrs: Vec<hca_api::MrHandle>,
    memory: Option<DmaBuffer>,
}

struct World {
    device: Device,
    models: BTreeMap<FunctionId, Model>,
    next_id: u64,
}

/// Whether a call succeeded; what it may not do is fail for a reason that is not its own.
fn count(ok: bool, counter: &mut u32, change: i8) {
    if ok {
        *counter = counter.wrapping_add_signed(i32::from(change));
    }
}

impl World {
    fn new() -> Self {
        let mut device = device(5);
        add_vf(&mut device, VF1);
        let models = [(PF, Model::default()), (VF1, Model::default())].into();
        let mut world = Self {
            device,
            models,
            next_id: 0,
        };
        world.give_memory(PF);
        world.give_memory(VF1);
        world
    }

    fn give_memory(&mut self, id: FunctionId) {
        let mut hca = self.device.function(id).unwrap();
        let memory = hca.allocate_dma(8192).unwrap();
        self.models.get_mut(&id).unwrap().memory = Some(memory);
    }

    fn qpn(&self, n: u32) -> Qpn {
        let all: Vec<Qpn> = self
            .models
            .values()
            .flat_map(|model| model.qps.values().copied())
            .collect();
        match all.get(n as usize) {
            Some(qpn) => *qpn,
            None => Qpn::MULTICAST,
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm per step")]
    fn step(&mut self, id: FunctionId, step: &Step) {
        if let Step::Reset = step {
            return self.reset();
        }
        if let Step::Transmit = step {
            self.device.poll_transmit(Instant::ZERO, PORT);
            return;
        }
        let destination = match *step {
            Step::PostSend {
                to: n, dlid, qkey, ..
            } => {
                let group = Gid([0xff; 16]);
                let address = if dlid == 0xc001 {
                    global(dlid, group)
                } else {
                    vector(dlid)
                };
                Some(to(address, self.qpn(n), QKey::new(qkey)))
            }
            _ => None,
        };
        self.next_id += 1;
        let wr_id = self.next_id;
        let model = self.models.get_mut(&id).unwrap();
        let mut hca = self.device.function(id).unwrap();
        let base = model.memory.unwrap().addr;
        let key = |n: u32| model.keys.get(n as usize).copied().unwrap_or(LKey(n));
        match *step {
            Step::AllocPd => count(hca.alloc_pd().is_ok(), &mut model.counts.pds, 1),
            Step::DeallocPd(pd) => {
                count(
                    hca.dealloc_pd(PdHandle(pd)).is_ok(),
                    &mut model.counts.pds,
                    -1,
                );
            }
            Step::CreateCq(entries) => {
                // Large enough to hold all that can complete, or refused.
                if let Ok(cq) = hca.create_cq(entries * 4096) {
                    model.cqs.push(cq);
                    model.counts.cqs += 1;
                }
            }
            Step::DestroyCq(cq) => {
                let cq = CqHandle(cq);
                if hca.destroy_cq(cq).is_ok() {
                    model.cqs.retain(|known| *known != cq);
                    model.counts.cqs -= 1;
                }
            }
            Step::Register { pd, len } => {
                let registered = hca.register_mr(&MrSpec {
                    pd: PdHandle(pd),
                    kind: MrKind::Virtual { addr: base, len },
                    access: AccessFlags::LOCAL_WRITE,
                    key: None,
                });
                if let Ok(keys) = registered {
                    model.keys.push(keys.lkey);
                    model.mrs.push(keys.handle);
                    model.counts.mrs += 1;
                }
            }
            Step::Deregister(n) => {
                let mr = model.mrs.get(n as usize).copied();
                let ok = hca
                    .deregister_mr(mr.unwrap_or(hca_api::MrHandle(n)))
                    .is_ok();
                model.mrs.retain(|known| !ok || Some(*known) != mr);
                count(ok, &mut model.counts.mrs, -1);
            }
            Step::CreateAv { pd, dlid } => {
                let made = hca.create_av(PdHandle(pd), &vector(dlid));
                count(made.is_ok(), &mut model.counts.avs, 1);
            }
            Step::DestroyAv(av) => {
                let ok = hca.destroy_av(hca_api::AvHandle(av)).is_ok();
                count(ok, &mut model.counts.avs, -1);
            }
            Step::CreateQp { pd, cq, kind } => {
                use hca_api::SpecialQp::Gsi;

                let kind = match kind {
                    0 => QpKind::Special {
                        special: Gsi,
                        port: PORT,
                    },
                    1 => QpKind::Proxy {
                        special: Gsi,
                        port: PORT,
                    },
                    2 => QpKind::Tunnel {
                        function: VF1,
                        special: Gsi,
                        port: PORT,
                    },
                    3 => QpKind::Rc,
                    _ => QpKind::Ud,
                };
                if let Ok((qp, numbers)) = hca.create_qp(spec(kind, PdHandle(pd), CqHandle(cq))) {
                    model.qps.insert(qp.0, numbers.real);
                    model.counts.qps += 1;
                }
            }
            Step::Modify { qp, to } => {
                let state = [
                    QpState::Reset,
                    QpState::Init,
                    QpState::ReadyToReceive,
                    QpState::ReadyToSend,
                    QpState::SendQueueDrain,
                    QpState::SendQueueError,
                    QpState::Error,
                ][usize::from(to)];
                let done = hca.modify_qp(QpHandle(qp), &to_state(state));
                if done.is_ok() && state == QpState::Reset {
                    model.open.retain(|_, of| *of != qp);
                }
            }
            Step::MakeReady(qp) => {
                let qp = QpHandle(qp);
                let init = QpModify {
                    port: Some(PORT),
                    pkey_index: Some(PKeyIndex(0)),
                    qkey: Some(QKEY),
                    ..to_state(QpState::Init)
                };
                if hca.modify_qp(qp, &init).is_ok() {
                    ready(&mut hca, qp);
                }
            }
            Step::DestroyQp(qp) => {
                if hca.destroy_qp(QpHandle(qp)).is_ok() {
                    model.qps.remove(&qp);
                    model.counts.qps -= 1;
                }
            }
            Step::PostRecv {
                qp,
                addr,
                len,
                lkey,
            } => {
                let scatter = [Sge {
                    addr: base + addr,
                    len,
                    lkey: key(lkey),
                }];
                let request = RecvRequest {
                    wr_id,
                    scatter: &scatter,
                };
                if hca.post_recv(QpHandle(qp), &request).is_ok() {
                    model.open.insert(wr_id, qp);
                }
            }
            Step::PostSend {
                qp,
                addr,
                len,
                lkey,
                ..
            } => {
                let gather = [Sge {
                    addr: base + addr,
                    len,
                    lkey: key(lkey),
                }];
                let request = SendRequest {
                    wr_id,
                    ..request(&gather, destination)
                };
                if hca.post_send(QpHandle(qp), &request).is_ok() {
                    model.open.insert(wr_id, qp);
                }
            }
            Step::Attach { qp, group } => {
                let before = hca.resources_of_own();
                let (gid, lid) = (Gid([0xff; 16]), Lid::new(0xc001 + u16::from(group)));
                let _ = hca.attach_multicast(QpHandle(qp), gid, lid);
                model.counts.attachments += hca.resources_of_own().attachments - before.attachments;
            }
            Step::Detach { qp, group } => {
                let (gid, lid) = (Gid([0xff; 16]), Lid::new(0xc001 + u16::from(group)));
                let ok = hca.detach_multicast(QpHandle(qp), gid, lid).is_ok();
                count(ok, &mut model.counts.attachments, -1);
            }
            Step::Transmit | Step::Reset => {}
        }
    }

    fn reset(&mut self) {
        let mut pf = self.device.function(PF).unwrap();
        pf.reset_function(VF1).unwrap();
        let memory = self.models[&VF1].memory;
        let fresh = Model {
            memory,
            ..Model::default()
        };
        self.models.insert(VF1, fresh);
    }

    /// Polls everything, and lets go of what completed.
    fn collect(&mut self) -> Result<(), TestCaseError> {
        for (id, model) in &mut self.models {
            let mut hca = self.device.function(*id).unwrap();
            for cq in &model.cqs {
                let mut out = [Completion::BLANK; 64];
                loop {
                    let count = hca.poll_cq(*cq, &mut out).unwrap();
                    for done in &out[..count] {
                        prop_assert!(
                            model.open.remove(&done.wr_id).is_some(),
                            "completed twice or never posted: {:?}",
                            done
                        );
                    }
                    if count == 0 {
                        break;
                    }
                }
            }
            prop_assert_eq!(hca.resources_of_own(), model.counts);
            for qp in model.qps.keys() {
                if hca.query_qp(QpHandle(*qp)).unwrap().state == QpState::Error {
                    prop_assert!(!model.open.values().any(|of| of == qp), "not flushed");
                }
            }
            while hca.poll_event().is_some() {}
        }
        Ok(())
    }

    /// Destroys all queue pairs: whatever was posted has to come back.
    fn wind_up(&mut self) -> Result<(), TestCaseError> {
        for (id, model) in &mut self.models {
            let mut hca = self.device.function(*id).unwrap();
            for (qp, _) in core::mem::take(&mut model.qps) {
                for group in 0..2 {
                    let (gid, lid) = (Gid([0xff; 16]), Lid::new(0xc001 + group));
                    let ok = hca.detach_multicast(QpHandle(qp), gid, lid).is_ok();
                    count(ok, &mut model.counts.attachments, -1);
                }
                hca.destroy_qp(QpHandle(qp)).unwrap();
                model.counts.qps -= 1;
            }
        }
        self.collect()?;
        for model in self.models.values() {
            prop_assert!(model.open.is_empty(), "lost: {:?}", model.open);
        }
        Ok(())
    }
}

impl super::super::Function<'_> {
    fn resources_of_own(&self) -> ResourceCounts {
        self.device.state(self.id).unwrap().resources()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn requests_complete_once_and_resources_are_counted(
        steps in prop::collection::vec(step(), 1..160)
    ) {
        let mut world = World::new();
        for id in [PF, VF1] {
            for step in [
                Step::AllocPd,
                Step::CreateCq(1),
                Step::Register { pd: 0, len: 8192 },
                Step::CreateQp { pd: 0, cq: 0, kind: 7 },
                Step::MakeReady(0),
            ] {
                world.step(id, &step);
            }
        }
        for (vf, step) in &steps {
            world.step(if *vf { VF1 } else { PF }, step);
            world.collect()?;
        }
        world.wind_up()?;
    }
}
