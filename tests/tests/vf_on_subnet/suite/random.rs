//! Two VFs under random calls of their programs and resets by their PF, against a model: which objects
//! each owns, and whom a message to the group reaches.

use std::time::Duration;

use hca_api::ResourceCounts;
use ib_wire::sa::JoinState;
use ib_wire::{Gid, PKey, QKey};
use proptest::prelude::*;
use vf_proxy::native::{GroupId, GroupSpec, Partition, UdQpId, UdQpSpec};
use vhca_tests::vf_subnet::VfAt;

use super::{VfSubnet, start};

const QKEY: QKey = QKey::new(0x1234);
const MGID: Gid = Gid([
    0xff, 0x12, 0x42, 0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x2a,
]);
const VFS: [VfAt; 2] = [VfAt { host: 0, vf: 1 }, VfAt { host: 0, vf: 2 }];

/// More than a join and its way to the switches take.
const SETTLING: Duration = Duration::from_secs(3);

/// A call of a VF's program, or its PF's.
#[derive(Clone, Copy, Debug)]
enum Call {
    /// Close, or open again with a queue pair.
    Toggle,
    Join(JoinState),
    Leave,
    Send,
    Reset,
}

fn call() -> impl Strategy<Value = (usize, Call)> {
    let calls = prop_oneof![
        Just(Call::Toggle),
        Just(Call::Join(JoinState::FULL_MEMBER)),
        Just(Call::Join(JoinState::FULL_MEMBER)),
        Just(Call::Join(JoinState::SEND_ONLY_FULL_MEMBER)),
        Just(Call::Leave),
        Just(Call::Send),
        Just(Call::Send),
        Just(Call::Reset),
    ];
    (0..VFS.len(), calls)
}

/// What is true of a VF.
#[derive(Clone, Copy, Debug, Default)]
struct Model {
    qp: Option<UdQpId>,
    group: Option<(GroupId, JoinState)>,
}

impl Model {
    fn listens(&self) -> bool {
        self.group.is_some_and(|(_, kind)| kind.receives())
    }

    /// What an open VF owns: a PD, a CQ and a region for each queue pair, and the proxy's.
    fn owned(&self) -> ResourceCounts {
        let Some(_) = self.qp else {
            return ResourceCounts::default();
        };
        ResourceCounts {
            pds: 2,
            cqs: 2,
            qps: 2,
            mrs: 2,
            attachments: u32::from(self.listens()),
            ..ResourceCounts::default()
        }
    }
}

fn open_qp(subnet: &mut VfSubnet, at: VfAt) -> Model {
    let spec = UdQpSpec {
        block_multicast_loopback: true,
        ..UdQpSpec::new(Partition::Key(PKey::DEFAULT_FULL), QKEY)
    };
    let qp = subnet.on_port(at, |_, port, hca| port.open_qp(hca, &spec));
    Model {
        qp: Some(qp.expect("a queue pair")),
        group: None,
    }
}

fn join(subnet: &mut VfSubnet, at: VfAt, model: &mut Model, kind: JoinState) {
    let Some(qp) = model.qp.filter(|_| model.group.is_none()) else {
        return;
    };
    let spec = GroupSpec::create(MGID, kind, PKey::DEFAULT_FULL, QKEY);
    let group = subnet.on_port(at, |now, port, hca| {
        let group = port.join(now, spec)?;
        port.attach(hca, group, qp)?;
        Ok::<_, vf_proxy::native::VfPortError>(group)
    });
    model.group = Some((group.expect("a group"), kind));
}

/// Sends to the group, and counts what each VF gets.
fn send(subnet: &mut VfSubnet, models: &[Model; 2], from: usize) {
    let Some((qp, (group, _))) = models[from].qp.zip(models[from].group) else {
        return;
    };
    subnet
        .on_port(VFS[from], |_, port, hca| {
            port.send_to_group(hca, qp, group, b"x")
        })
        .expect("it is sent");
    subnet.run_for(Duration::from_millis(1));
    for (to, (at, model)) in VFS.into_iter().zip(models).enumerate() {
        let Some(qp) = model.qp else { continue };
        let got = subnet.on_port(at, |_, port, hca| {
            std::iter::from_fn(|| port.receive(hca, qp)).count()
        });
        assert_eq!(got, usize::from(to != from && model.listens()), "{at:?}");
    }
}

fn apply(subnet: &mut VfSubnet, models: &mut [Model; 2], who: usize, call: Call) {
    let at = VFS[who];
    let model = &mut models[who];
    match call {
        Call::Toggle if model.qp.is_some() => {
            subnet.close(at);
            *model = Model::default();
        }
        Call::Toggle => {
            subnet.open(at);
            *model = open_qp(subnet, at);
        }
        Call::Join(kind) => join(subnet, at, model, kind),
        Call::Leave => {
            if let Some((group, _)) = model.group.take() {
                subnet
                    .on_port(at, |now, port, hca| port.leave(now, hca, group))
                    .expect("a group");
            }
        }
        Call::Send => send(subnet, models, who),
        Call::Reset => {
            let was_open = model.qp.is_some();
            subnet.reset(at);
            *model = Model::default();
            if was_open {
                subnet.on_vf(at, |now, hca, function| {
                    let hca = hca.as_mut().expect("an open VF");
                    hca.reopen(now, function).expect("it begins anew");
                });
                *model = open_qp(subnet, at);
            }
        }
    }
}

fn group_members(subnet: &VfSubnet) -> usize {
    let mut groups = subnet.sm().sa().groups();
    groups
        .find(|group| group.record.mgid == MGID)
        .map_or(0, |group| group.members.len())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn random_calls_leak_nothing_and_reach_members_only(
        calls in prop::collection::vec(call(), 1..24),
    ) {
        let mut subnet = start(1, 1, 2);
        let mut models = VFS.map(|at| open_qp(&mut subnet, at));
        for (who, call) in calls {
            apply(&mut subnet, &mut models, who, call);
            subnet.run_for(SETTLING);
            for (at, model) in VFS.into_iter().zip(models) {
                prop_assert_eq!(subnet.owned(at), model.owned(), "{:?} after {:?}", at, call);
            }
        }
        for (at, model) in VFS.into_iter().zip(models) {
            if model.qp.is_some() {
                subnet.close(at);
            }
            prop_assert_eq!(subnet.owned(at), ResourceCounts::default());
        }
        subnet.run_for(SETTLING);
        prop_assert_eq!(group_members(&subnet), 0, "the SA has members that are gone");
    }
}
