//! A sequence of operations on the communication ids of a PF's VFs.

#[cfg(test)]
mod conversations;
mod model;

use std::collections::BTreeMap;

use cm_paravirt::{
    CmParavirt, Config, Connection, Egress, GidOwner, IdentityCheck, Ingress, PeerAddress,
    ResetPolicy, State, VfIdentity,
};
use ib_vtime::{Duration, Instant};
use ib_wire::cm::{CmReq, CmRtu};
use ib_wire::mad::{AttributeId, Mad};
use ib_wire::{CommId, Gid, Guid, Lid, PKey, PortNum, Qpn, Sl};
use vf_tunnel::{DropReason, VfId};
use zerocopy::IntoBytes;

use self::model::Model;
use super::cm_messages::{MESSAGES, ids, is_sidr, message, reply, request, set_ca, without_ids};
use super::hostile::{Input, pass_time, remember};
use super::sa_side::{MEMBERS as VFS, gid_of, some_vf, vf};

const LIDS: [u16; 2] = [9, 10];
const IDS: u32 = 6;

fn config() -> Config {
    Config {
        ids_per_vf: IDS,
        pending_per_vf: 3,
        answers_per_second: 10,
        answer_burst: 4,
        signals: 4,
        silence: Duration::from_secs(900),
        ..Config::default()
    }
}

fn ca_of(vf: VfId) -> Guid {
    Guid::new(0x0002_c903_00ff_0000 + u64::from(vf.get()))
}

fn at(lid: u16) -> PeerAddress {
    PeerAddress {
        port: PortNum(1),
        lid: Lid::new(lid),
        qpn: Qpn::GSI,
        sl: Sl::default(),
        gid: None,
    }
}

/// The model knows peers by their LIDs alone.
fn somewhere(input: &mut Input<'_>) -> PeerAddress {
    let somewhere = at(LIDS[input.index(2)]);
    let has_gid = input.byte() >= 0xc0 && !input.is_honest();
    PeerAddress {
        gid: has_gid.then_some(Gid([7; 16])),
        ..somewhere
    }
}

/// Damages one message in 16; of these, half lose what they say altogether.
fn disturb(mad: &mut Mad, input: &mut Input<'_>) {
    match input.byte() {
        0xfc.. if !input.is_honest() => input.fill(mad.as_mut_bytes()),
        0xf8.. if !input.is_honest() => input.fill(&mut mad.data),
        0xf0.. => input.damage(mad.as_mut_bytes()),
        _ => {}
    }
}

struct Scene {
    now: Instant,
    machine: CmParavirt,
    /// What was put on the wire, and where it went.
    sent: Vec<(Mad, PeerAddress)>,
    /// What VFs got.
    delivered: Vec<(VfId, Mad, PeerAddress)>,
    /// The quotas that were set and lowered ones' former use.
    most_ids: BTreeMap<VfId, u32>,
    established: usize,
    /// The parties of each exchange, if no message is damaged.
    model: Option<Model>,
    deliveries: usize,
}

impl Scene {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            0..4 => self.vf_sends(input),
            4..7 => self.vf_answers(input),
            7..9 => self.peer_sends(input),
            9..12 => self.peer_answers(input),
            12 => {
                let end = self.now + input.time();
                self.wait(end);
            }
            13 => self.reset(some_vf(input), input.flag()),
            // The model knows of addresses that do not change.
            14 if self.model.is_some() => {}
            14 => self.machine.forget_addresses(PortNum(1)),
            _ => {
                let vf = some_vf(input);
                let quota = u32::from(input.byte() % 8);
                self.machine.set_quota(vf, quota);
                let default = self.machine.config().ids_per_vf;
                let most = self.most_ids.entry(vf).or_insert(default);
                *most = (*most).max(quota);
            }
        }
        self.check();
    }

    /// A VF sends any message with a small id.
    fn vf_sends(&mut self, input: &mut Input<'_>) {
        let (vf, to) = (some_vf(input), somewhere(input));
        let mut mad = self.compose(ca_of(vf), gid_of(vf), Gid([7; 16]), input);
        disturb(&mut mad, input);
        self.egress(vf, mad, &to);
    }

    /// A VF answers what it got.
    fn vf_answers(&mut self, input: &mut Input<'_>) {
        let Some((vf, got, to)) = input.pick(&self.delivered) else {
            return;
        };
        let mut mad = reply(&got, ca_of(vf), input);
        disturb(&mut mad, input);
        self.egress(vf, mad, &to);
    }

    /// A peer sends any message, to whichever VF it likes.
    fn peer_sends(&mut self, input: &mut Input<'_>) {
        let (to, from) = (some_vf(input), somewhere(input));
        let mad = self.compose(Guid::new(1), Gid([7; 16]), gid_of(to), input);
        self.peer_says(mad, &from, input.flag().then(|| gid_of(to)), input);
    }

    /// A peer, or somebody else, answers what was sent.
    fn peer_answers(&mut self, input: &mut Input<'_>) {
        let Some((got, honest)) = input.pick(&self.sent) else {
            return;
        };
        let mad = reply(&got, Guid::new(1), input);
        let from = if input.byte().is_multiple_of(8) {
            somewhere(input)
        } else {
            honest
        };
        self.peer_says(mad, &from, None, input);
    }

    fn compose(&self, ca: Guid, from: Gid, to: Gid, input: &mut Input<'_>) -> Mad {
        let attribute = MESSAGES[input.index(MESSAGES.len())];
        let local = u32::from(input.byte() % 6);
        let known = input.pick(&self.sent).map_or(7, |(mad, _)| ids(&mad).0);
        let remote = if input.flag() { known } else { local };
        let mut mad = match attribute {
            AttributeId::CM_REQ => request(local, ca, from, to),
            other => message(other, local, remote),
        };
        if attribute == AttributeId::CM_REP {
            set_ca(&mut mad, ca);
        }
        if attribute == AttributeId::CM_SIDR_REP {
            mad.view_mut::<CmRtu>().local_comm_id = CommId::new(known);
        }
        mad
    }

    /// Returns the message as it leaves.
    fn egress(&mut self, vf: VfId, mut mad: Mad, to: &PeerAddress) -> Option<Mad> {
        let before = mad;
        let who = VfIdentity {
            gids: &[gid_of(vf)],
            ca_guid: Some(ca_of(vf)),
            pkeys: &[PKey::INVALID, PKey::DEFAULT_FULL],
            check: IdentityCheck::Strict,
        };
        match self.machine.egress(self.now, vf, &mut mad, to, &who) {
            Egress::Forward => {
                assert_eq!(
                    without_ids(&mad),
                    without_ids(&before),
                    "more than ids changed"
                );
                assert!(is_sidr(&mad) || ids(&mad).1 == ids(&before).1);
                if let Some(model) = &mut self.model {
                    model.sent(vf, &before, &mad, to);
                }
                remember(&mut self.sent, (mad, *to));
                Some(mad)
            }
            Egress::Drop(_) => None,
        }
    }

    /// A message arrives, and for one in 256 its VF is down or outside of the partition.
    fn peer_says(
        &mut self,
        mut mad: Mad,
        from: &PeerAddress,
        dgid: Option<Gid>,
        input: &mut Input<'_>,
    ) {
        disturb(&mut mad, input);
        let (down, outside) = (input.byte() == 0xff, input.byte() == 0xff);
        let is_named = mad.header.attribute_id == AttributeId::CM_SIDR_REQ;
        // A GID of another VF in a message that names its VF by a wire id is nothing that the model has.
        let dgid = dgid.filter(|_| self.model.is_none() || is_named);
        self.ingress(mad, from, dgid, (down, outside));
    }

    /// Returns whether a VF gets the message.
    fn ingress(
        &mut self,
        mut mad: Mad,
        from: &PeerAddress,
        dgid: Option<Gid>,
        (down, outside): (bool, bool),
    ) -> bool {
        let before = mad;
        let owner = |gid: &Gid| match (1..=VFS).map(vf).find(|vf| gid_of(*vf) == *gid) {
            Some(vf) if down => GidOwner::VfDown(vf),
            Some(vf) => GidOwner::Vf(vf),
            None => GidOwner::Unknown,
        };
        let verdict = self.machine.find(self.now, &mut mad, from, dgid, owner);
        match verdict {
            Ingress::Vf(named) if outside => {
                self.machine.refuse(named, DropReason::PKeyMismatch);
                false
            }
            Ingress::Vf(named) => {
                let vf = named.vf;
                if self.machine.accept(named, &mut mad, from).is_err() {
                    return false;
                }
                assert_eq!(
                    without_ids(&mad),
                    without_ids(&before),
                    "more than ids changed"
                );
                if mad.header.attribute_id == AttributeId::CM_REQ {
                    assert_eq!(mad.view::<CmReq>().primary.remote_gid, gid_of(vf));
                }
                if let Some(model) = &mut self.model {
                    assert!(dgid.is_none_or(|dgid| dgid == gid_of(vf)));
                    model.delivered(vf, &before, &mad, from);
                }
                self.deliveries += 1;
                remember(&mut self.delivered, (vf, mad, *from));
                true
            }
            Ingress::Answer => {
                assert_ne!(mad, before);
                false
            }
            Ingress::ToPf | Ingress::Drop(_) => false,
        }
    }

    fn reset(&mut self, vf: VfId, signal: bool) {
        let policy = if signal {
            ResetPolicy::Signal { ca_guid: ca_of(vf) }
        } else {
            ResetPolicy::Silent
        };
        self.machine.vf_reset(self.now, vf, policy);
        self.delivered.retain(|(of, ..)| *of != vf);
        if let Some(model) = &mut self.model {
            model.reset(vf);
        }
        let mut signals = 0;
        while let Some(transmit) = self.machine.poll_transmit(PortNum(1)) {
            assert_eq!(transmit.vf, vf);
            if let Some(model) = &self.model {
                model.check_signal(&transmit.mad);
            }
            signals += 1;
        }
        assert!(
            signals
                <= if signal {
                    self.machine.config().signals
                } else {
                    0
                }
        );
        assert_eq!(self.machine.connections_of(self.now, vf).count(), 0);
    }

    fn wait(&mut self, end: Instant) {
        pass_time(&mut self.now, end, |at| {
            self.machine.handle_timeout(at);
            self.machine.poll_timeout()
        });
    }

    fn check(&mut self) {
        let mut states: BTreeMap<(VfId, State), u32> = BTreeMap::new();
        let mut wires = BTreeMap::new();
        for connection in self.machine.connections(self.now) {
            let is_up = connection.state == State::Established;
            let is_quiet = connection.state == State::Quiet;
            assert_eq!(connection.idle.is_none(), is_up || is_quiet);
            assert_eq!(connection.remaining.is_none(), is_up);
            self.established = self.established.max(usize::from(is_up));
            *states.entry((connection.vf, connection.state)).or_default() += 1;
            let another = wires.insert(connection.wire_id.0.get(), connection.vf);
            assert_eq!(another, None, "two of one wire id");
        }
        let mut total = 0;
        for vf in (1..=VFS).map(vf) {
            let Some(statistics) = self.machine.vf_statistics(vf) else {
                continue;
            };
            for state in State::ALL {
                let live = states.get(&(vf, state)).copied().unwrap_or(0);
                assert_eq!(statistics.live(state), live);
            }
            let own = self.machine.connections_of(self.now, vf).count();
            assert_eq!(u32::try_from(own), Ok(statistics.ids + statistics.pending));
            assert!(
                statistics.ids
                    <= self
                        .most_ids
                        .get(&vf)
                        .copied()
                        .unwrap_or_else(|| self.machine.config().ids_per_vf)
            );
            assert!(statistics.pending <= self.machine.config().pending_per_vf);
            total += statistics.ids + statistics.pending;
        }
        assert_eq!(u32::try_from(self.machine.len()), Ok(total));
    }

    /// Connections that are up end with their VFs, everything else by itself: quiet ones when they
    /// have been silent for long, the others within minutes.
    fn wind_down(mut self) {
        let silence = self.machine.config().silence;
        if self.model.is_some() {
            self.wait(self.now + Duration::from_secs(600));
            let mut left = self.machine.connections(self.now);
            assert!(left.all(|left| [State::Established, State::Quiet].contains(&left.state)));
        }
        self.wait(self.now + silence.max(Duration::from_secs(3_600)));
        self.check();
        let mut left = self.machine.connections(self.now);
        assert!(left.all(|connection| connection.state == State::Established));
        drop(left);
        assert_eq!(self.machine.poll_timeout(), None);
        for vf in (1..=VFS).map(vf) {
            self.reset(vf, false);
        }
        self.check();
        assert!(self.machine.is_empty());
    }

    /// Wire ids that the machine drew in this play.
    fn drawn(&self) -> (Vec<Connection>, Vec<u32>) {
        let wires = self.model.iter().flat_map(Model::wires).collect();
        (self.machine.connections(self.now).collect(), wires)
    }
}

/// Four VFs and their peers, who follow the protocol, break it, and lie about who they are. No input
/// changes more than ids, gives a wire id to two, exceeds a quota, or keeps an exchange without end. If no
/// message is damaged, each reaches only the VF that is party to it, and the same input has the same end.
pub(super) fn cm_paravirt(data: &[u8]) {
    let scene = play(Input::honest(data));
    assert_eq!(scene.drawn(), play(Input::honest(data)).drawn());
    scene.wind_down();
    play(Input::new(data)).wind_down();
}

fn scene(config: Config, model: Option<Model>) -> Scene {
    Scene {
        now: Instant::from_millis(1_000),
        machine: CmParavirt::new(config, 42),
        sent: Vec::new(),
        delivered: Vec::new(),
        most_ids: BTreeMap::new(),
        established: 0,
        model,
        deliveries: 0,
    }
}

fn play(mut input: Input<'_>) -> Scene {
    let config = if input.has_default_quotas() {
        Config::default()
    } else {
        config()
    };
    let mut scene = scene(config, input.is_honest().then(Model::default));
    while input.has_operation() {
        scene.step(&mut input);
    }
    scene
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_bring_connections_up() {
        for seed in [
            include_bytes!("../../../fuzz/corpus/cm_paravirt/vf-connects").as_slice(),
            include_bytes!("../../../fuzz/corpus/cm_paravirt/peer-connects"),
        ] {
            assert_eq!(play(Input::new(seed)).established, 1);
        }
    }
}
