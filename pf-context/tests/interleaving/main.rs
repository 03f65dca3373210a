//! Any interleaving of VFs, peers, time, events and resets: nothing reaches a VF that is not party
//! to it, every frame has its verdict, and what is over leaves nothing.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod ledger;

use std::collections::BTreeMap;

use ib_vtime::{Duration, Instant};
use ib_wire::cm::{self, CmReq, CmRtu};
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::notice::{GidDetails, InformInfo, Notice, NoticeType, ProducerType, TrapNumber};
use ib_wire::sa::{ComponentMask, JoinState, McMemberRecord, SaMad};
use ib_wire::{CommId, Gid, Guid, Lid, PKey, QKey, Qpn, Sl, SubnetPrefix, Tid};
use pf_context::{
    Cause, EgressLimit, Limits, Output, PortConfig, PortEvent, PortMux, Sizes, VfConfig, WireSource,
};
use proptest::prelude::*;
use vf_tunnel::{SpecialQp, ToPf, VfId};
use zerocopy::IntoBytes;

use crate::ledger::{Ledger, check_rows};

const VFS: u16 = 3;
const OWN: u16 = 8;
const SM: u16 = 1;
const PEER: u16 = 0x214;

fn vf(number: u16) -> VfId {
    VfId::new(number).unwrap()
}

fn vf_gid(number: u16) -> Gid {
    let guid = Guid::new(0x0002_c903_0000_0100 + u64::from(number));
    Gid::from_parts(SubnetPrefix::DEFAULT, guid)
}

/// Guests number their exchanges alike: the low bits of the TID say whose a query is, for the test
/// only, and the group's low byte likewise.
fn query(number: u16, n: u8) -> Mad {
    let mut mad = Mad::new(MadHeader::new(
        MgmtClass::SUBN_ADM,
        Method::GET,
        AttributeId::PATH_RECORD,
    ));
    mad.header.tid = Tid::new(u64::from(n));
    mad.data[200] = u8::try_from(number).unwrap();
    mad
}

fn membership(number: u16, method: Method, group: u8, tid: u8) -> Mad {
    let mut mgid = [0; 16];
    (mgid[0], mgid[1], mgid[15]) = (0xff, 0x12, group + 1);
    let mut record = McMemberRecord {
        mgid: Gid(mgid),
        port_gid: vf_gid(number),
        ..McMemberRecord::default()
    };
    record.set_join_state(JoinState::FULL_MEMBER);
    let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
    let mut sa = SaMad::new(method, mask, &record);
    sa.header.tid = Tid::new(u64::from(tid));
    Mad::from_layout(&sa)
}

fn inform(on: bool, trap: u8, tid: u8) -> Mad {
    let info = InformInfo {
        lid_range_begin: Lid::PERMISSIVE,
        is_generic: 1,
        subscribe: on.into(),
        notice_type: InformInfo::ALL_TYPES.into(),
        trap_number: TrapNumber::new(64 + u16::from(trap)),
        qpn: Qpn::GSI,
        producer: ProducerType::ALL.0,
        ..InformInfo::default()
    };
    let mut sa = SaMad::new(Method::SET, ComponentMask::NONE, &info);
    sa.header.tid = Tid::new(u64::from(tid));
    Mad::from_layout(&sa)
}

fn report(trap: u8) -> Mad {
    let notice = Notice::generic(
        NoticeType::SUBNET_MANAGEMENT,
        ProducerType::CLASS_MANAGER,
        TrapNumber::new(64 + u16::from(trap)),
        Lid::new(SM),
        &GidDetails::default(),
    );
    let header = MadHeader::new(MgmtClass::SUBN_ADM, Method::REPORT, AttributeId::NOTICE);
    let mut sa = SaMad {
        header,
        ..SaMad::default()
    };
    sa.data[..notice.as_bytes().len()].copy_from_slice(notice.as_bytes());
    Mad::from_layout(&sa)
}

fn request(number: u16, id: u8, to: Option<u16>) -> Mad {
    let mut mad = Mad::new(cm::header(AttributeId::CM_REQ));
    let req: &mut CmReq = mad.view_mut();
    req.local_comm_id = CommId::new(u32::from(id) + 1);
    req.local_ca_guid = Guid::new(u64::from(number));
    req.pkey = PKey::DEFAULT_FULL;
    req.primary.local_gid = vf_gid(number);
    req.primary.remote_gid = to.map_or(Gid([7; 16]), vf_gid);
    // Who asked, where nobody looks.
    req.private_data[0] = u8::try_from(number).unwrap();
    mad
}

fn message(attribute: AttributeId, local: u32, remote: u32) -> Mad {
    let mut mad = Mad::new(cm::header(attribute));
    let rtu: &mut CmRtu = mad.view_mut();
    rtu.local_comm_id = CommId::new(local);
    rtu.remote_comm_id = CommId::new(remote);
    mad
}

fn frame(dlid: u16, mad: Mad) -> ToPf {
    let mut frame = ToPf::zeroed();
    frame.header.av.flags_port = 1;
    frame.header.av.dlid = Lid::new(dlid);
    frame.header.remote_qpn = Qpn::GSI;
    frame.header.remote_qkey = QKey::GSI;
    frame.mad = mad;
    frame
}

#[derive(Clone, Debug)]
enum Op {
    Query {
        vf: u16,
        n: u8,
    },
    Member {
        vf: u16,
        join: bool,
        group: u8,
        n: u8,
    },
    Inform {
        vf: u16,
        on: bool,
        trap: u8,
        n: u8,
    },
    Report {
        trap: u8,
    },
    Connect {
        vf: u16,
        id: u8,
    },
    ConnectSibling {
        vf: u16,
        id: u8,
        to: u16,
    },
    PeerConnects {
        vf: u16,
        id: u8,
    },
    /// The oldest but so many of what is on its way to somebody is answered, or lost.
    Answer {
        which: usize,
        twice: bool,
    },
    Lose {
        which: usize,
    },
    /// The same from a stranger.
    Forge {
        which: usize,
    },
    Reset {
        vf: u16,
    },
    Event(u8),
    Wait {
        millis: u16,
    },
    Noise {
        vf: Option<u16>,
        bytes: Vec<u8>,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let vf = || 1..=VFS;
    let n = || 0_u8..4;
    prop_oneof![
        4 => (vf(), n()).prop_map(|(vf, n)| Op::Query { vf, n }),
        4 => (vf(), any::<bool>(), n(), n())
            .prop_map(|(vf, join, group, n)| Op::Member { vf, join, group, n }),
        3 => (vf(), any::<bool>(), n(), n())
            .prop_map(|(vf, on, trap, n)| Op::Inform { vf, on, trap, n }),
        1 => n().prop_map(|trap| Op::Report { trap }),
        3 => (vf(), n()).prop_map(|(vf, id)| Op::Connect { vf, id }),
        2 => (vf(), n(), vf()).prop_map(|(vf, id, to)| Op::ConnectSibling { vf, id, to }),
        2 => (vf(), n()).prop_map(|(vf, id)| Op::PeerConnects { vf, id }),
        8 => (any::<usize>(), any::<bool>())
            .prop_map(|(which, twice)| Op::Answer { which, twice }),
        1 => any::<usize>().prop_map(|which| Op::Lose { which }),
        2 => any::<usize>().prop_map(|which| Op::Forge { which }),
        1 => vf().prop_map(|vf| Op::Reset { vf }),
        1 => any::<u8>().prop_map(Op::Event),
        2 => any::<u16>().prop_map(|millis| Op::Wait { millis }),
        1 => (prop::option::of(vf()), prop::collection::vec(any::<u8>(), 256))
            .prop_map(|(vf, bytes)| Op::Noise { vf, bytes }),
    ]
}

struct World {
    mux: PortMux,
    now: Instant,
    cause: u64,
    /// Frames on their way to the SA or the peer.
    on_wire: Vec<(u16, Mad)>,
    /// Whose each live wire id is that a peer has seen, and each wire TID.
    owner_of_tid: BTreeMap<u64, u16>,
    owner_of_id: BTreeMap<u32, u16>,
    ledger: Ledger,
}

impl World {
    fn new() -> Self {
        let limits = Limits {
            egress: EgressLimit {
                mads_per_second: 1_000,
                burst: 16,
                queue: 4,
                ..EgressLimit::default()
            },
            ..Limits::default()
        };
        let mut mux = PortMux::new(PortConfig {
            seed: 3,
            lid: Lid::new(OWN),
            sm_lid: Lid::new(SM),
            limits,
            ..PortConfig::default()
        });
        for number in 1..=VFS {
            let config = VfConfig {
                guid: Some(vf_gid(number).interface_id()),
                ..VfConfig::default()
            };
            mux.add_vf(vf(number), config).unwrap();
        }
        Self {
            mux,
            now: Instant::from_millis(1),
            cause: 0,
            on_wire: Vec::new(),
            owner_of_tid: BTreeMap::new(),
            owner_of_id: BTreeMap::new(),
            ledger: Ledger::default(),
        }
    }

    fn vf_sends(&mut self, number: u16, frame: &ToPf) {
        self.cause += 1;
        let queued = self.mux.sizes().queued;
        let cause = Cause(self.cause);
        self.mux
            .from_vf(self.now, cause, vf(number), SpecialQp::Gsi, frame);
        let outputs = self.take();
        let own: Vec<_> = outputs.iter().filter(|(of, _)| *of == cause).collect();
        let dropped = own
            .iter()
            .filter(|(_, output)| matches!(output, Output::Dropped { .. }));
        assert!(dropped.count() <= 1);
        let waits = self.mux.sizes().queued > queued;
        let absorbable = matches!(
            frame.mad.header.attribute_id,
            AttributeId::MC_MEMBER_RECORD | AttributeId::INFORM_INFO
        );
        assert!(
            !own.is_empty() || waits || absorbable,
            "no verdict of {:?}",
            frame.mad.header
        );
        self.note_sender(number, frame, &own);
        self.look_at(outputs);
    }

    /// Remembers whose the wire ids of a frame are, by what the frame itself became.
    fn note_sender(&mut self, number: u16, frame: &ToPf, own: &[&(Cause, Output)]) {
        for (_, output) in own {
            let Output::ToWire(_, mad) = output else {
                continue;
            };
            if mad.header.attribute_id != frame.mad.header.attribute_id {
                continue;
            }
            if mad.header.attribute_id == AttributeId::CM_REQ {
                let id = mad.view::<CmReq>().local_comm_id.get();
                self.owner_of_id.insert(id, number);
            } else if mad.header.attribute_id == AttributeId::PATH_RECORD {
                self.owner_of_tid.insert(mad.header.tid.get(), number);
            }
        }
    }

    fn wire_sends(&mut self, lid: u16, mad: &Mad) -> Vec<(Cause, Output)> {
        self.cause += 1;
        let source = WireSource {
            slid: Lid::new(lid),
            sqpn: Qpn::GSI,
            sl: Sl::default(),
            pkey: PKey::DEFAULT_FULL,
            path_bits: 0,
            grh: None,
        };
        self.mux.from_wire(
            self.now,
            Cause(self.cause),
            SpecialQp::Gsi,
            &source,
            mad.as_bytes(),
        );
        self.take()
    }

    fn take(&mut self) -> Vec<(Cause, Output)> {
        let outputs: Vec<_> = core::iter::from_fn(|| self.mux.poll_output()).collect();
        outputs
            .iter()
            .for_each(|(_, output)| self.ledger.note(output));
        outputs
    }

    /// What holds for every output, whatever it follows from.
    fn look_at(&mut self, outputs: Vec<(Cause, Output)>) {
        for (cause, output) in outputs {
            assert!(cause == Cause::TIMER || cause.0 <= self.cause);
            match output {
                Output::ToWire(send, mad) => {
                    assert!(send.grh.is_none());
                    assert_ne!(send.dlid.get(), OWN);
                    if has_mapped_tid(&mad) && !mad.header.method.is_response() {
                        assert!(mad.header.tid.get() <= u64::from(u32::MAX));
                    }
                    if self.on_wire.len() < 64 {
                        self.on_wire.push((send.dlid.get(), mad));
                    }
                }
                Output::ToVf(to, mad) => check_delivery(to.vf.get(), &mad),
                Output::VfEvent { .. } | Output::Dropped { .. } => {}
            }
        }
    }

    fn answer_on_wire(&mut self, which: usize, from: Option<u16>, twice: bool) {
        if self.on_wire.is_empty() {
            return;
        }
        let (lid, request) = self.on_wire.remove(which % self.on_wire.len());
        let Some(answer) = answer(&request) else {
            return;
        };
        let source = from.unwrap_or(lid);
        for _ in 0..=usize::from(twice) {
            let outputs = self.wire_sends(source, &answer);
            let cause = Cause(self.cause);
            let delivered: Vec<u16> = outputs
                .iter()
                .filter_map(|(of, output)| match output {
                    Output::ToVf(to, mad)
                        if *of == cause
                            && mad.header.attribute_id == answer.header.attribute_id =>
                    {
                        Some(to.vf.get())
                    }
                    _ => None,
                })
                .collect();
            if from.is_some() {
                assert_eq!(delivered, [], "from a stranger");
            }
            let owner = match answer.header.attribute_id {
                AttributeId::PATH_RECORD => self.owner_of_tid.get(&answer.header.tid.get()),
                AttributeId::CM_REP => self
                    .owner_of_id
                    .get(&answer.view::<CmRtu>().remote_comm_id.get()),
                _ => None,
            };
            if let Some(owner) = owner {
                assert!(delivered.iter().all(|vf| vf == owner));
            }
            self.look_at(outputs);
        }
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.mux.poll_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.mux.handle_timeout(self.now);
            let outputs = self.take();
            self.look_at(outputs);
        }
        self.now = end;
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Query { vf, n } => self.vf_sends(vf, &frame(SM, query(vf, n))),
            Op::Member { vf, join, group, n } => {
                let method = if join { Method::SET } else { Method::DELETE };
                self.vf_sends(vf, &frame(SM, membership(vf, method, group, n)));
            }
            Op::Inform { vf, on, trap, n } => {
                self.vf_sends(vf, &frame(SM, inform(on, trap, n)));
            }
            Op::Report { trap } => {
                let outputs = self.wire_sends(SM, &report(trap));
                let answers = outputs.iter().filter(|(_, output)| {
                    matches!(output, Output::ToWire(_, mad)
                        if mad.header.method == Method::REPORT_RESP)
                });
                assert_eq!(answers.count(), 1);
                self.look_at(outputs);
            }
            Op::Connect { vf, id } => self.vf_sends(vf, &frame(PEER, request(vf, id, None))),
            Op::ConnectSibling { vf, id, to } => {
                self.vf_sends(vf, &frame(OWN, request(vf, id, Some(to))));
            }
            Op::PeerConnects { vf, id } => {
                let mut req = request(vf, id, Some(vf));
                req.view_mut::<CmReq>().primary.local_gid = Gid([7; 16]);
                let outputs = self.wire_sends(PEER, &req);
                let to: Vec<_> = outputs
                    .iter()
                    .filter_map(|(_, output)| match output {
                        Output::ToVf(to, _) => Some(to.vf.get()),
                        _ => None,
                    })
                    .collect();
                assert_eq!(to, [vf]);
                self.look_at(outputs);
            }
            Op::Answer { which, twice } => self.answer_on_wire(which, None, twice),
            Op::Lose { which } if !self.on_wire.is_empty() => {
                self.on_wire.remove(which % self.on_wire.len());
            }
            Op::Lose { .. } => {}
            Op::Forge { which } => self.answer_on_wire(which, Some(77), false),
            Op::Reset { vf: number } => {
                self.cause += 1;
                self.mux.reset_vf(self.now, Cause(self.cause), vf(number));
                self.owner_of_tid.retain(|_, owner| *owner != number);
                self.owner_of_id.retain(|_, owner| *owner != number);
                let outputs = self.take();
                self.look_at(outputs);
            }
            Op::Event(which) => {
                let event = match which % 4 {
                    0 => PortEvent::ClientReregister,
                    1 => PortEvent::PortDown,
                    2 => PortEvent::PortUp,
                    _ => PortEvent::SmChange {
                        lid: Lid::new(SM),
                        sl: Sl::from_low_bits(which >> 4),
                    },
                };
                self.cause += 1;
                self.mux.event(self.now, Cause(self.cause), event);
                let outputs = self.take();
                self.look_at(outputs);
            }
            Op::Wait { millis } => self.wait(Duration::from_millis(millis.into())),
            Op::Noise { vf: None, bytes } => {
                let outputs = self.wire_sends(PEER, &Mad::from_bytes(&bytes).unwrap());
                assert_eq!(outputs.len(), 1);
            }
            Op::Noise {
                vf: Some(number),
                bytes,
            } => {
                let mad = Mad::from_bytes(&bytes).unwrap();
                self.vf_sends(number, &frame(PEER, mad));
            }
        }
    }
}

/// Requests leave under wire TIDs; CM messages keep theirs.
fn has_mapped_tid(mad: &Mad) -> bool {
    mad.header.mgmt_class != MgmtClass::COM_MGT
}

/// What a VF gets says whose it is.
fn check_delivery(number: u16, mad: &Mad) {
    match mad.header.attribute_id {
        AttributeId::PATH_RECORD if mad.header.mgmt_class == MgmtClass::SUBN_ADM => {
            assert_eq!(u16::from(mad.data[200]), number);
            assert!(mad.header.tid.get() < 4);
        }
        AttributeId::MC_MEMBER_RECORD => {
            let record: McMemberRecord = mad.view::<SaMad>().record();
            assert_eq!(record.port_gid, vf_gid(number));
            assert!(mad.header.tid.get() < 4);
        }
        AttributeId::CM_REQ => {
            assert_eq!(mad.view::<CmReq>().primary.remote_gid, vf_gid(number));
        }
        AttributeId::CM_REP => {
            // The VF's own id again.
            assert!((1..=4).contains(&mad.view::<CmRtu>().remote_comm_id.get()));
        }
        _ => {}
    }
}

/// What the SA or the peer says to a MAD.
fn answer(request: &Mad) -> Option<Mad> {
    if request.header.mgmt_class == MgmtClass::SUBN_ADM {
        let mut answer = *request;
        answer.header.method = request.header.method.response();
        if request.header.attribute_id == AttributeId::MC_MEMBER_RECORD {
            let sa: &mut SaMad = answer.view_mut();
            let mut record: McMemberRecord = sa.record();
            record.pkey = PKey::DEFAULT_FULL;
            record.mlid = Lid::new(0xc000 + u16::from(record.mgid.0[15]));
            sa.set_record(&record);
        }
        return (!request.header.method.is_response()).then_some(answer);
    }
    let (local, remote) = {
        let ids: &CmRtu = request.view();
        (ids.local_comm_id.get(), ids.remote_comm_id.get())
    };
    match request.header.attribute_id {
        AttributeId::CM_REQ => Some(message(AttributeId::CM_REP, local ^ 0x5555, local)),
        AttributeId::CM_DREQ => Some(message(AttributeId::CM_DREP, remote, local)),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn nothing_goes_astray_and_everything_ends(ops in prop::collection::vec(op(), 1..80)) {
        let mut world = World::new();
        for op in ops {
            world.run(op);
            check_rows(&world.mux, world.now);
        }
        world.ledger.check(&world.mux, world.now);
        // The port's own memberships last as long as their holders.
        for number in 1..=VFS {
            world.run(Op::Reset { vf: number });
        }
        world.wait(Duration::from_secs(600));
        prop_assert_eq!(world.mux.sizes(), Sizes::default());
        check_rows(&world.mux, world.now);
        world.ledger.check(&world.mux, world.now);
    }

    #[test]
    fn packets_of_any_bytes_have_one_verdict(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        global in any::<bool>(),
        to in 0..=VFS,
        plausible in any::<bool>(),
    ) {
        let mut world = World::new();
        let mut bytes = bytes;
        if plausible {
            bytes.resize(256, 0);
            bytes[0] = 1;
            bytes[1] = [3, 6, 7][usize::from(bytes[1]) % 3];
            bytes[2] = if bytes[1] == 6 { 1 } else { 2 };
            bytes[3] &= 0x83;
        }
        let source = WireSource {
            slid: Lid::new(SM),
            sqpn: Qpn::GSI,
            sl: Sl::default(),
            pkey: PKey::DEFAULT_FULL,
            path_bits: 0,
            grh: global.then_some(pf_context::Route {
                sgid: Gid([7; 16]),
                dgid: vf_gid(to),
                traffic_class: 0,
                flow_label: 0,
                hop_limit: 1,
            }),
        };
        world.mux.from_wire(world.now, Cause(1), SpecialQp::Gsi, &source, &bytes);
        prop_assert_eq!(world.take().len(), 1);
    }
}
