//! A sequence of operations on the MAD mux of a port: VFs, wire, events, resets and time.

use ib_vtime::{Duration, Instant};
use ib_wire::mad::{Mad, Method, MgmtClass};
use ib_wire::sa::{PathRecord, SaMad};
use ib_wire::{Gid, Guid, Lid, PKey, PortNum, QKey, Qpn, Sl, Tid};
use mad_mux::tid::TidConfig;
use pf_context::{
    Cause, EgressLimit, Limits, Output, PortConfig, PortEvent, PortMux, Route, Sizes, VfConfig,
    WireSource,
};
use vf_tunnel::{SpecialQp, ToPf, VfId};
use zerocopy::IntoBytes;

use super::cm_messages::{reply, request};
use super::hostile::{Input, pass_time, remember};
use super::notices::report;
use super::sa_side::{MEMBERS as VFS, answer, gid_of, guid_of, inform, membership, some_vf, vf};

const OWN: u16 = 8;
const SM: u16 = 1;
const PEER: u16 = 20;
const STRANGER: u16 = 77;

fn mux() -> PortMux {
    let limits = Limits {
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
        egress: EgressLimit {
            mads_per_second: 100,
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
    on_wire: Vec<(u16, Mad)>,
    /// What VFs got, with the LID that it came from.
    delivered: Vec<(VfId, u16, Mad)>,
    deliveries: usize,
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
                self.mux.set_active(vf, input.byte() >= 0x20);
            }
        }
        self.check();
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
        let queued = self.mux.sizes().queued;
        let cause = self.next_cause();
        self.mux.from_vf(self.now, cause, vf, qp, &frame);
        let waits = self.mux.sizes().queued > queued;
        let (outputs, dropped) = self.take(cause);
        assert!(dropped <= 1, "dropped twice");
        assert!(
            dropped == 0 || outputs == 1,
            "dropped, and yet something came of it"
        );
        assert!(!waits || outputs == 0, "a frame that waits has a verdict");
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
        self.wire_sends(from, mad, input);
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
        self.wire_sends(from, mad, input);
    }

    fn wire_sends(&mut self, from: u16, mut mad: Mad, input: &mut Input<'_>) {
        if input.byte() >= 0xf0 {
            input.damage(mad.as_mut_bytes());
        }
        let to = input.byte();
        let source = WireSource {
            slid: Lid::new(from),
            sqpn: Qpn::GSI,
            sl: Sl::default(),
            pkey: PKey::DEFAULT_FULL,
            path_bits: 0,
            grh: (to >= 0xf0).then(|| Route {
                sgid: Gid([7; 16]),
                dgid: gid_of(vf(1 + u16::from(to) % VFS)),
                traffic_class: 0,
                flow_label: 0,
                hop_limit: 1,
            }),
        };
        let cause = self.next_cause();
        self.mux
            .from_wire(self.now, cause, SpecialQp::Gsi, &source, mad.as_bytes());
        let (outputs, dropped) = self.take(cause);
        // What the SA says to the port goes on to all VFs that wait for it, and lets the port go on.
        let is_for_one = mad.header.mgmt_class != MgmtClass::SUBN_ADM;
        assert!(dropped == 0 || outputs == 1 || !is_for_one, "two verdicts");
    }

    fn reset(&mut self, vf: VfId) {
        let cause = self.next_cause();
        self.mux.reset_vf(self.now, cause, vf);
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
            4 => PortEvent::LidChange(Lid::new(OWN + u16::from(input.byte() % 2))),
            5 => PortEvent::PKeyTable(match input.byte() % 4 {
                0 => vec![PKey::DEFAULT_LIMITED],
                _ => vec![PKey::DEFAULT_FULL],
            }),
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

    /// Takes the outputs. Gives how many follow from one input, and how many of them are drops.
    fn take(&mut self, cause: Cause) -> (usize, usize) {
        let (mut own, mut dropped) = (0, 0);
        while let Some((of, output)) = self.mux.poll_output() {
            assert!(of == Cause::TIMER || of.0 <= self.cause);
            own += usize::from(of == cause);
            match output {
                Output::Dropped { .. } => dropped += usize::from(of == cause),
                Output::ToWire(send, mad) => {
                    remember(&mut self.on_wire, (send.dlid.get(), mad));
                }
                Output::ToVf(to, mad) => {
                    self.deliveries += 1;
                    remember(&mut self.delivered, (to.vf, to.slid.get(), mad));
                }
                Output::VfEvent { .. } => {}
            }
        }
        (own, dropped)
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

    /// The rows are as many as the sizes say, and nobody has more than a quota.
    fn check(&self) {
        let (view, sizes) = (self.mux.inspect(PortNum(1)), self.mux.sizes());
        assert_eq!(view.port().sizes, sizes);
        assert_eq!(view.tids(self.now).count(), sizes.tids);
        assert_eq!(view.cm(self.now).count(), sizes.cm_ids);
        assert_eq!(view.groups().count(), sizes.mcast_groups);
        let members = view.groups().map(|group| group.members.len());
        assert_eq!(members.sum::<usize>(), sizes.mcast_members);
        let holders = view.subscriptions().map(|row| row.holders.len());
        assert_eq!(holders.sum::<usize>(), sizes.subscriptions);
        let mut queued = 0;
        for row in view.vfs(self.now) {
            let usage = row.usage;
            queued += usage.queued.live;
            for used in [
                usage.tids,
                usage.sa_requests,
                usage.cm_ids,
                usage.cm_pending,
                usage.groups,
                usage.joins,
                usage.subscriptions,
                usage.subscribing,
                usage.queued,
            ] {
                assert!(used.live <= used.limit, "{usage:?}");
            }
        }
        assert_eq!(queued, sizes.queued);
    }

    /// The VFs are reset, and nobody answers.
    fn wind_down(mut self) {
        for vf in (1..=VFS).map(vf) {
            self.reset(vf);
        }
        self.check();
        self.wait(self.now + Duration::from_secs(24 * 3_600));
        self.check();
        assert_eq!(self.mux.sizes(), Sizes::default());
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
/// No input drops a frame twice, exceeds a quota, disagrees with its own rows, or keeps anything for
/// ever.
pub(super) fn port_mux(data: &[u8]) {
    play(data).wind_down();
}

fn play(data: &[u8]) -> Scene {
    let mut input = Input::new(data);
    let mut scene = Scene {
        mux: mux(),
        now: Instant::from_millis(1),
        cause: 0,
        on_wire: Vec::new(),
        delivered: Vec::new(),
        deliveries: 0,
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
        let groups = play(include_bytes!("../../fuzz/corpus/port_mux/path-and-group"));
        let sizes = groups.mux.sizes();
        assert_eq!((sizes.mcast_members, sizes.subscriptions), (1, 1));
        assert_eq!(groups.deliveries, 5);
        let connection = play(include_bytes!("../../fuzz/corpus/port_mux/connection"));
        assert_eq!(connection.deliveries, 3);
    }
}
