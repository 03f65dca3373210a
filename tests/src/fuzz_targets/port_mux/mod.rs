//! A sequence of operations on the MAD mux of a port: VFs, wire, events, resets and time.

mod ledger;

use std::collections::{BTreeMap, BTreeSet};

use ib_vtime::{Duration, Instant};
use ib_wire::cm::CmReq;
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::sa::{McMemberRecord, PathRecord, SaMad};
use ib_wire::{Gid, Guid, Lid, PKey, QKey, Qpn, Sl, Tid};
use mad_mux::tid::TidConfig;
use pf_context::{
    Cause, EgressLimit, Limits, Output, PortConfig, PortEvent, PortMux, Route, Sizes, VfConfig,
    WireSend, WireSource,
};
use vf_tunnel::{SpecialQp, ToPf, VfId};
use zerocopy::IntoBytes;

use self::ledger::{Ledger, check_rows};
use super::cm_messages::{ids, reply, request};
use super::hostile::{Input, pass_time, remember};
use super::notices::report;
use super::sa_side::{MEMBERS as VFS, answer, gid_of, guid_of, inform, membership, some_vf, vf};

const OWN: u16 = 8;
const SM: u16 = 1;
const PEER: u16 = 20;
const STRANGER: u16 = 77;

/// Makes the limits of a port: small ones, or the default ones but for the rate of the wire.
fn limits(are_default: bool) -> Limits {
    let egress = EgressLimit {
        mads_per_second: if are_default { 1_000 } else { 100 },
        burst: 16,
        queue: 4,
        ..EgressLimit::default()
    };
    if are_default {
        return Limits {
            egress,
            ..Limits::default()
        };
    }
    Limits {
        tids: TidConfig {
            per_vf: 8,
            sa_per_vf: 4,
        },
        cm: cm_paravirt::Config {
            ids_per_vf: 6,
            pending_per_vf: 3,
            ..cm_paravirt::Config::default()
        },
        mcast: mcast_agg::Config {
            groups_per_member: 4,
            waiting_per_member: 3,
            max_in_flight: 2,
            ..mcast_agg::Config::default()
        },
        egress,
        ..Limits::default()
    }
}

fn mux(limits: Limits) -> PortMux {
    let mut mux = PortMux::new(PortConfig {
        seed: 3,
        lid: Lid::new(OWN),
        sm_lid: Lid::new(SM),
        limits,
        ..PortConfig::default()
    });
    for vf in (1..=VFS).map(vf) {
        let config = VfConfig {
            guid: Some(guid_of(vf)),
            ..VfConfig::default()
        };
        mux.add_vf(vf, config).expect("the VFs differ");
    }
    mux
}

struct Scene {
    mux: PortMux,
    now: Instant,
    cause: u64,
    /// No message is damaged, and no noise looks like an answer: a VF receives only messages about itself.
    honest: bool,
    on_wire: Vec<(u16, Mad)>,
    /// What VFs got, with the LID that it came from.
    delivered: Vec<(VfId, u16, Mad)>,
    deliveries: usize,
    /// Whose each live wire TID of a query and each wire id of a REQ is.
    owner_of_tid: BTreeMap<u64, VfId>,
    owner_of_id: BTreeMap<u32, VfId>,
    /// Frames that wait for their turn, or for a path.
    undecided: BTreeMap<Cause, (VfId, MadHeader)>,
    /// VFs without a driver, and whether the port is in the VFs' partition.
    inactive: BTreeSet<VfId>,
    in_partition: bool,
    ledger: Ledger,
}

impl Scene {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            0..5 => self.vf_asks(input),
            5 | 6 => self.vf_answers(input),
            7..11 => self.wire_answers(input),
            11 => self.wire_asks(input),
            12 => self.reset(some_vf(input)),
            13 => self.event(input),
            14 => {
                let end = self.now + input.time();
                self.wait(end);
            }
            _ => {
                let vf = some_vf(input);
                let is_active = input.byte() >= 0x20;
                self.mux.set_active(vf, is_active);
                if is_active {
                    self.inactive.remove(&vf);
                } else {
                    self.inactive.insert(vf);
                }
            }
        }
        check_rows(&self.mux, self.now);
    }

    fn vf_asks(&mut self, input: &mut Input<'_>) {
        let vf = some_vf(input);
        let sibling = some_vf(input);
        let (to, mad) = match input.byte() % 8 {
            0 | 1 => (SM, query(vf, input)),
            2 | 3 => (SM, Mad::from_layout(&membership(vf, input))),
            4 => (SM, Mad::from_layout(&inform(input))),
            5 => {
                let id = u32::from(input.byte() % 4);
                (PEER, request(id, Guid::new(1), gid_of(vf), Gid([7; 16])))
            }
            6 => {
                let id = u32::from(input.byte() % 4);
                (OWN, request(id, Guid::new(1), gid_of(vf), gid_of(sibling)))
            }
            _ => ([SM, PEER, OWN][input.index(3)], input.mad()),
        };
        self.vf_sends(vf, to, mad, input);
    }

    fn vf_answers(&mut self, input: &mut Input<'_>) {
        if let Some((vf, to, got)) = input.pick(&self.delivered) {
            let mad = answer_to(&got, input);
            self.vf_sends(vf, to, mad, input);
        }
    }

    fn vf_sends(&mut self, vf: VfId, to: u16, mut mad: Mad, input: &mut Input<'_>) {
        if input.byte() >= 0xf0 {
            input.damage(mad.as_mut_bytes());
        }
        let mut frame = ToPf::zeroed();
        frame.header.av.flags_port = 1;
        frame.header.av.dlid = Lid::new(to);
        frame.header.remote_qpn = Qpn::GSI;
        frame.header.remote_qkey = QKey::GSI;
        frame.mad = mad;
        if input.byte() >= 0xf8 {
            input.damage(frame.as_mut_bytes());
        }
        let qp = if input.byte() == 0xff {
            SpecialQp::Smi
        } else {
            SpecialQp::Gsi
        };
        // A verdict on a repetition is one on the request that waits for the same path, too.
        let repeated = (vf, frame.mad.header);
        self.undecided.retain(|_, waits| *waits != repeated);
        let queued = self.mux.sizes().queued;
        let cause = self.next_cause();
        self.mux.from_vf(self.now, cause, vf, qp, &frame);
        let waits = self.mux.sizes().queued > queued;
        let outputs = self.take(cause);
        let dropped = drops(&outputs);
        assert!(dropped <= 1, "dropped twice");
        assert!(
            dropped == 0 || outputs.len() == 1,
            "dropped, and yet something came of it"
        );
        assert!(
            !waits || outputs.is_empty(),
            "a frame that waits has a verdict"
        );
        let absorbable = [
            AttributeId::MC_MEMBER_RECORD,
            AttributeId::INFORM_INFO,
            AttributeId::NOTICE,
        ];
        if outputs.is_empty() && !absorbable.contains(&frame.mad.header.attribute_id) {
            self.undecided.insert(cause, (vf, frame.mad.header));
        }
        self.note_owner(vf, &frame.mad, &outputs);
    }

    /// Remembers whose the wire ids of a frame are, by what the frame itself became.
    fn note_owner(&mut self, vf: VfId, sent: &Mad, outputs: &[Output]) {
        for output in outputs {
            let Output::ToWire(_, mad) = output else {
                continue;
            };
            if mad.header.attribute_id != sent.header.attribute_id {
                continue;
            }
            match (mad.header.mgmt_class, mad.header.attribute_id) {
                (MgmtClass::COM_MGT, AttributeId::CM_REQ) => {
                    self.owner_of_id.insert(ids(mad).0, vf);
                }
                (MgmtClass::SUBN_ADM, AttributeId::PATH_RECORD) => {
                    self.owner_of_tid.insert(mad.header.tid.get(), vf);
                }
                _ => {}
            }
        }
    }

    /// The SA or a peer, or somebody else, answers what was sent.
    fn wire_answers(&mut self, input: &mut Input<'_>) {
        let sent = if input.byte() < 0x20 {
            input.pick(&self.on_wire)
        } else {
            input.take(&mut self.on_wire)
        };
        let Some((lid, sent)) = sent else {
            return;
        };
        let mad = answer_to(&sent, input);
        let from = if input.byte() < 0x10 { STRANGER } else { lid };
        let outputs = self.wire_sends(from, mad, input);
        if !self.honest {
            return;
        }
        let answers = outputs.iter().filter_map(|output| match output {
            Output::ToVf(to, got) if got.header.attribute_id == mad.header.attribute_id => {
                Some(to.vf)
            }
            _ => None,
        });
        let is_answer = mad.header.method.is_response()
            || [AttributeId::CM_REP, AttributeId::CM_DREP].contains(&mad.header.attribute_id);
        let owner = match (mad.header.mgmt_class, mad.header.attribute_id) {
            (MgmtClass::SUBN_ADM, AttributeId::PATH_RECORD) => {
                self.owner_of_tid.get(&mad.header.tid.get())
            }
            (MgmtClass::COM_MGT, AttributeId::CM_REP) => self.owner_of_id.get(&ids(&mad).1),
            _ => None,
        };
        for vf in answers {
            assert!(from != STRANGER || !is_answer, "an answer of a stranger");
            assert!(owner.is_none_or(|owner| *owner == vf), "another's answer");
        }
    }

    fn wire_asks(&mut self, input: &mut Input<'_>) {
        let to = some_vf(input);
        let (from, mad) = match input.byte() % 4 {
            0 => (SM, Mad::from_layout(&report(input))),
            1 | 2 => {
                let id = u32::from(input.byte() % 4);
                (PEER, request(id, Guid::new(2), Gid([7; 16]), gid_of(to)))
            }
            _ => (PEER, input.mad()),
        };
        let usage = self.mux.vf_usage(to);
        let outputs = self.wire_sends(from, mad, input);
        if !self.honest {
            return;
        }
        match (mad.header.mgmt_class, mad.header.attribute_id) {
            (MgmtClass::SUBN_ADM, AttributeId::NOTICE) if from == SM => {
                let answers = outputs.iter().filter(|output| {
                    matches!(output, Output::ToWire(_, mad)
                        if mad.header.method == Method::REPORT_RESP)
                });
                assert_eq!(answers.count(), 1, "answers to a report");
            }
            (MgmtClass::COM_MGT, AttributeId::CM_REQ) => {
                let has_room = usage.cm_pending.live < usage.cm_pending.limit;
                let hears = !self.inactive.contains(&to) && self.in_partition;
                let is_heard = outputs
                    .iter()
                    .any(|output| matches!(output, Output::ToVf(got, _) if got.vf == to));
                assert!(
                    is_heard || !has_room || !hears,
                    "a REQ that {to} did not get: {outputs:?}"
                );
            }
            _ => assert_eq!(outputs.len(), 1, "one verdict of noise"),
        }
    }

    fn wire_sends(&mut self, from: u16, mut mad: Mad, input: &mut Input<'_>) -> Vec<Output> {
        if input.byte() >= 0xf0 {
            input.damage(mad.as_mut_bytes());
        }
        let to = input.byte();
        let dgid = (to >= 0xf0 && !self.honest).then(|| gid_of(vf(1 + u16::from(to) % VFS)));
        let source = wire_source(from, dgid);
        let cause = self.next_cause();
        self.mux
            .from_wire(self.now, cause, SpecialQp::Gsi, &source, mad.as_bytes());
        let outputs = self.take(cause);
        // What the SA says to the port goes on to all VFs that wait for it, and lets the port go on.
        let is_for_one = mad.header.mgmt_class != MgmtClass::SUBN_ADM;
        assert!(
            drops(&outputs) == 0 || outputs.len() == 1 || !is_for_one,
            "two verdicts"
        );
        outputs
    }

    fn reset(&mut self, vf: VfId) {
        let cause = self.next_cause();
        self.mux.reset_vf(self.now, cause, vf);
        self.owner_of_tid.retain(|_, owner| *owner != vf);
        self.owner_of_id.retain(|_, owner| *owner != vf);
        self.undecided.retain(|_, (of, _)| *of != vf);
        let usage = self.mux.vf_usage(vf);
        let left = [
            usage.tids,
            usage.cm_ids,
            usage.cm_pending,
            usage.groups,
            usage.subscriptions,
            usage.queued,
        ];
        assert!(left.iter().all(|used| used.live == 0), "{usage:?}");
        self.look_at_outputs();
    }

    fn event(&mut self, input: &mut Input<'_>) {
        let event = match input.byte() % 8 {
            0 | 1 => PortEvent::ClientReregister,
            2 => PortEvent::PortDown,
            3 => PortEvent::PortUp,
            4 => {
                let lid = OWN + u16::from(input.byte() % 2);
                PortEvent::LidChange(Lid::new(if self.honest { OWN } else { lid }))
            }
            5 => {
                self.in_partition = !input.byte().is_multiple_of(4);
                PortEvent::PKeyTable(vec![if self.in_partition {
                    PKey::DEFAULT_FULL
                } else {
                    PKey::DEFAULT_LIMITED
                }])
            }
            _ => PortEvent::SmChange {
                lid: Lid::new(SM),
                sl: Sl::from_low_bits(input.byte()),
            },
        };
        let cause = self.next_cause();
        self.mux.event(self.now, cause, event);
        self.look_at_outputs();
    }

    fn next_cause(&mut self) -> Cause {
        self.cause += 1;
        Cause(self.cause)
    }

    fn look_at_outputs(&mut self) {
        self.take(Cause(self.cause));
    }

    /// Takes and returns the outputs that follow from one input.
    fn take(&mut self, cause: Cause) -> Vec<Output> {
        let mut own = Vec::new();
        while let Some((of, output)) = self.mux.poll_output() {
            assert!(of == Cause::TIMER || of.0 <= self.cause);
            self.ledger.note(&output);
            self.undecided.remove(&of);
            match &output {
                Output::ToWire(send, mad) => {
                    if self.honest {
                        check_sent(send, mad);
                    }
                    remember(&mut self.on_wire, (send.dlid.get(), *mad));
                }
                Output::ToVf(to, mad) => {
                    self.deliveries += 1;
                    // An answer to another VF's request answers those that wait for the same path.
                    let (tid, attribute) = (mad.header.tid, mad.header.attribute_id);
                    self.undecided.retain(|_, (vf, waits)| {
                        (*vf, waits.tid, waits.attribute_id) != (to.vf, tid, attribute)
                    });
                    if self.honest {
                        check_delivery(to.vf, mad);
                    }
                    remember(&mut self.delivered, (to.vf, to.slid.get(), *mad));
                }
                Output::Dropped { .. } | Output::VfEvent { .. } => {}
            }
            if of == cause {
                own.push(output);
            }
        }
        own
    }

    fn wait(&mut self, end: Instant) {
        let mut now = self.now;
        pass_time(&mut now, end, |at| {
            self.mux.handle_timeout(at);
            self.take(Cause::TIMER);
            self.mux.poll_timeout()
        });
        self.now = now;
    }

    /// The VFs are reset, and nobody answers.
    fn wind_down(mut self) {
        self.wait(self.now + Duration::from_secs(3_600));
        assert!(
            self.undecided.is_empty(),
            "no verdict: {:?}",
            self.undecided
        );
        self.ledger.check(&self.mux, self.now);
        for vf in (1..=VFS).map(vf) {
            self.reset(vf);
        }
        check_rows(&self.mux, self.now);
        self.wait(self.now + Duration::from_secs(24 * 3_600));
        check_rows(&self.mux, self.now);
        assert_eq!(self.mux.sizes(), Sizes::default());
        self.ledger.check(&self.mux, self.now);
    }
}

fn drops(outputs: &[Output]) -> usize {
    let is_drop = |output: &&Output| matches!(output, Output::Dropped { .. });
    outputs.iter().filter(is_drop).count()
}

/// Requests leave under wire TIDs, and no frame to the port itself leaves it.
fn check_sent(send: &WireSend, mad: &Mad) {
    assert!(send.grh.is_none());
    assert_ne!(send.dlid.get(), OWN);
    if mad.header.mgmt_class != MgmtClass::COM_MGT && !mad.header.method.is_response() {
        assert!(mad.header.tid.get() <= u64::from(u32::MAX));
    }
}

/// Each message to a VF is about that VF, under its own TID or id.
fn check_delivery(vf: VfId, mad: &Mad) {
    match mad.header.attribute_id {
        AttributeId::PATH_RECORD => {
            let path: PathRecord = mad.view::<SaMad>().record();
            assert_eq!(path.sgid, gid_of(vf));
            assert!(mad.header.tid.get() < 8);
        }
        AttributeId::MC_MEMBER_RECORD => {
            let record: McMemberRecord = mad.view::<SaMad>().record();
            assert_eq!(record.port_gid, gid_of(vf));
            assert!(mad.header.tid.get() < 8);
        }
        AttributeId::CM_REQ => {
            assert_eq!(mad.view::<CmReq>().primary.remote_gid, gid_of(vf));
        }
        AttributeId::CM_REP => assert!(ids(mad).1 < 6, "not an id of a VF"),
        _ => {}
    }
}

fn query(vf: VfId, input: &mut Input<'_>) -> Mad {
    let record = PathRecord {
        sgid: gid_of(vf),
        dgid: Gid([input.byte() % 4; 16]),
        ..PathRecord::default()
    };
    let method = [Method::GET, Method::GET_TABLE][input.index(2)];
    let mut sa = SaMad::new(method, PathRecord::SGID | PathRecord::DGID, &record);
    sa.header.tid = Tid::new(u64::from(input.byte() % 8));
    Mad::from_layout(&sa)
}

/// What could follow a MAD.
fn answer_to(got: &Mad, input: &mut Input<'_>) -> Mad {
    match got.header.mgmt_class {
        MgmtClass::SUBN_ADM => Mad::from_layout(&answer(got.view(), input)),
        MgmtClass::COM_MGT => reply(got, Guid::new(1), input),
        _ => {
            let mut mad = *got;
            mad.header.method = got.header.method.response();
            mad
        }
    }
}

/// Four VFs that ask, answer and misbehave; a wire that answers, lies and asks; events and resets.
/// No input leaves a frame without a verdict or drops it twice, exceeds a quota, disagrees with its own
/// rows and counters, or leaves state behind. Without damage a VF receives only its own messages.
pub(super) fn port_mux(data: &[u8]) {
    check_packet(data);
    play(Input::honest(data)).wind_down();
    play(Input::new(data)).wind_down();
}

/// A packet of any bytes and any length has one verdict.
fn check_packet(data: &[u8]) {
    let mut input = Input::new(data);
    let (shape, to) = (input.byte(), some_vf(&mut input));
    let mut bytes = input.rest(300).to_vec();
    if shape & 1 != 0 {
        // Mostly what has a reader: a MAD of one of three classes.
        bytes.resize(256, 0);
        let classes = [
            (MgmtClass::SUBN_ADM, 2),
            (MgmtClass::DEV_MGT, 1),
            (MgmtClass::COM_MGT, 2),
        ];
        let (class, version) = classes[usize::from(bytes[1]) % classes.len()];
        (bytes[0], bytes[1], bytes[2]) = (1, class.get(), version);
        bytes[3] &= 0x83;
    }
    let mut mux = mux(limits(false));
    let gid = (shape & 2 != 0).then(|| {
        if shape & 4 != 0 {
            gid_of(to)
        } else {
            Gid([7; 16])
        }
    });
    let source = wire_source(SM, gid);
    mux.from_wire(
        Instant::from_millis(1),
        Cause(1),
        SpecialQp::Gsi,
        &source,
        &bytes,
    );
    assert_eq!(std::iter::from_fn(|| mux.poll_output()).count(), 1);
}

fn wire_source(from: u16, dgid: Option<Gid>) -> WireSource {
    WireSource {
        slid: Lid::new(from),
        sqpn: Qpn::GSI,
        sl: Sl::default(),
        pkey: PKey::DEFAULT_FULL,
        path_bits: 0,
        grh: dgid.map(|dgid| Route {
            sgid: Gid([7; 16]),
            dgid,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 1,
        }),
    }
}

fn play(mut input: Input<'_>) -> Scene {
    let mut scene = Scene {
        mux: mux(limits(input.has_default_quotas())),
        now: Instant::from_millis(1),
        cause: 0,
        honest: input.is_honest(),
        on_wire: Vec::new(),
        delivered: Vec::new(),
        deliveries: 0,
        owner_of_tid: BTreeMap::new(),
        owner_of_id: BTreeMap::new(),
        undecided: BTreeMap::new(),
        inactive: BTreeSet::new(),
        in_partition: true,
        ledger: Ledger::default(),
    };
    while input.has_operation() {
        scene.step(&mut input);
    }
    scene
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_deliver_answers_and_a_report() {
        let groups = play(Input::new(include_bytes!(
            "../../../fuzz/corpus/port_mux/path-and-group"
        )));
        let sizes = groups.mux.sizes();
        assert_eq!((sizes.mcast_members, sizes.subscriptions), (1, 1));
        assert_eq!(groups.deliveries, 5);
        let connection = play(Input::new(include_bytes!(
            "../../../fuzz/corpus/port_mux/connection"
        )));
        assert_eq!(connection.deliveries, 3);
    }
}
