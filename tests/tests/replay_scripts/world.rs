//! Many conversations at once, and the examiner's own idea of who is known by which ids.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::mads::{self, DREQ, Mad, REJ, REP, REQ, SIDR_REP, get_u32, put};
use crate::plan::{Mapped, Parties, Step, Topic, id_place, line, passed};
use crate::session::{Outcome, Session};

/// A conversation under way.
struct Talk {
    who: Parties,
    topic: Topic,
    steps: Vec<Step>,
    next: usize,
    wire_id: Option<u32>,
    wire_tid: Option<u32>,
}

impl Talk {
    /// A step's MAD as the wire has it, whoever sends it.
    fn on_the_wire(&self, step: &Step) -> Mad {
        let mut mad = step.mad;
        match step.mapped {
            Mapped::CommId | Mapped::RequestId => {
                let place = id_place(step.mapped, step.from_vf);
                put(&mut mad, place, &self.wire_id.unwrap().to_be_bytes());
            }
            Mapped::Tid => {
                let tid = u64::from(self.wire_tid.unwrap());
                put(&mut mad, mads::TID, &tid.to_be_bytes());
            }
            Mapped::Nothing => {}
        }
        mad
    }

    /// A step's MAD as the VF must get it.
    fn at_the_vf(&self, step: &Step) -> Mad {
        let mut mad = step.mad;
        if matches!(step.mapped, Mapped::CommId | Mapped::RequestId) {
            let place = id_place(step.mapped, step.from_vf);
            put(&mut mad, place, &self.who.vf_id.to_be_bytes());
        }
        mad
    }

    /// Whether the peer knows none of the VF's ids yet.
    fn is_silent(&self) -> bool {
        self.wire_id.is_none() && self.wire_tid.is_none()
    }

    /// Whether both sides know that it is over. Under an id of one that only fell silent, a new
    /// request would be the old one once more.
    fn has_ended(&self) -> bool {
        self.messages([REJ, DREQ, SIDR_REP]).next().is_some()
    }

    /// Whether it got as far as a connection that may be up: its REP was repeated no more, though it might have been as
    /// often as the REQ allows.
    fn is_quiet(&self) -> bool {
        let repeated = self.messages([REP]).count().checked_sub(1);
        let allowed = self.messages([REQ]).next().map(mads::max_cm_retries);
        !self.has_ended() && repeated.is_some_and(|repeated| Some(repeated) < allowed)
    }

    /// Its messages of some kinds.
    fn messages(&self, attributes: impl AsRef<[u16]>) -> impl Iterator<Item = &Mad> {
        let attribute = |mad: &Mad| u16::from_be_bytes([mad[16], mad[17]]);
        let mads = self.steps.iter().map(|step| &step.mad);
        mads.filter(move |mad| attributes.as_ref().contains(&attribute(mad)))
    }
}

/// What a run was like.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) conversations: usize,
    pub(crate) mads: usize,
}

pub(crate) struct World {
    rng: ChaCha8Rng,
    session: Session,
    now: u64,
    vfs: u16,
    /// Conversations by the time of their next step.
    due: BTreeMap<(u64, u64), Talk>,
    order: u64,
    wire_ids: BTreeSet<u32>,
    wire_tids: BTreeSet<u32>,
    /// Who spoke with whom.
    spoken: BTreeSet<(u16, u16)>,
    /// How many transactions each VF began.
    vf_tids: BTreeMap<u16, u64>,
    /// Ids in use: of each VF, and of each peer.
    vf_ids: BTreeSet<(u16, u32)>,
    peer_ids: BTreeSet<(u16, u32)>,
    /// The VFs of connections that were never said to be over.
    quiet: Vec<u16>,
    tally: Tally,
}

const TEN_MINUTES: u64 = 600_000;
const WEEK: u64 = 7 * 24 * 3_600_000;
const PKEYS: [u16; 3] = [0xffff, 0x8001, 0x8002];

pub(crate) fn vf_guid(vf: u16) -> u64 {
    0x0014_0500_0000_0000 + u64::from(vf) * 0x10
}

impl World {
    pub(crate) fn new(seed: u64, vfs: u16) -> Self {
        let guids: BTreeMap<_, _> = (1..=vfs)
            .map(|vf| (vf.to_string(), format!("{:#018x}", vf_guid(vf))))
            .collect();
        // Each VF has the port's partitions in another order.
        let pkeys: BTreeMap<_, _> = (1..=vfs)
            .map(|vf| (vf.to_string(), [0, 1, 2].map(|i| (i + vf) % 3)))
            .collect();
        let config = json!({
            "seed": seed, "vfs": vfs,
            "port": {"lid": 5, "sm_lid": 1, "guid": "0x0002c90300000001",
                "pkeys": PKEYS.map(|key| format!("{key:#06x}"))},
            "vf_guids": guids, "vf_pkeys": pkeys,
        });
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            session: Session::new(&config),
            now: 0,
            vfs,
            due: BTreeMap::new(),
            order: 0,
            wire_ids: BTreeSet::new(),
            wire_tids: BTreeSet::new(),
            spoken: BTreeSet::new(),
            vf_tids: BTreeMap::new(),
            vf_ids: BTreeSet::new(),
            peer_ids: BTreeSet::new(),
            quiet: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// Holds conversations, so many at a time; resets a VF before each of one in `resets`, 0 for none.
    pub(crate) fn run(&mut self, conversations: usize, at_once: usize, resets: usize) {
        for number in 1..=conversations {
            while self.due.len() >= at_once {
                self.step();
            }
            if resets != 0 && number % resets == 0 {
                let vf = self.rng.random_range(1..=self.vfs);
                self.reset(vf);
            }
            self.begin();
        }
        while !self.due.is_empty() {
            self.step();
        }
    }

    /// Ten minutes later nothing is left but connections that may be up, and a week later none of those.
    pub(crate) fn end(self) -> Tally {
        self.end_with_transcript().0
    }

    /// As [`Self::end`]. Returns the transcript, too.
    pub(crate) fn end_with_transcript(mut self) -> (Tally, String) {
        let quiet = self.quiet.len();
        self.left_after(TEN_MINUTES, quiet);
        self.left_after(WEEK, 0);
        (self.tally, self.session.end())
    }

    fn left_after(&mut self, pause: u64, connections: usize) {
        self.now += pause;
        let barrier = json!({ "at": self.now });
        let mut outcome = self.session.send(self.now, &barrier);
        assert!(outcome.others.is_empty(), "{outcome:?}");
        let sizes = outcome.sizes.as_object_mut().unwrap();
        assert_eq!(sizes.remove("cm_ids"), Some(connections.into()));
        assert!(sizes.values().all(|size| size == 0), "{sizes:?}");
    }

    /// Who will talk. Clones of one snapshot count the same ids up, so the lowest free ones are used.
    fn parties(&mut self, topic: Topic) -> Parties {
        let vf = self.rng.random_range(1..=self.vfs);
        let peer = self.rng.random_range(0..4_u16);
        let peer_lid = if topic.is_for_the_sa() { 1 } else { 10 + peer };
        let vf_id = (1..).find(|&id| self.vf_ids.insert((vf, id))).unwrap();
        let peer_id = (1..)
            .find(|&id| self.peer_ids.insert((peer_lid, id)))
            .unwrap();
        self.spoken.insert((vf, peer_lid));
        let begun = self.vf_tids.entry(vf).or_default();
        *begun += 1;
        let vf_tid = 0xfedc_ba98_0000_0000 | *begun;
        let pkey_index = self.rng.random_range(0..3_u16);
        // A SIDR request names whom it is for in the GRH.
        let must_be_global = topic == Topic::Sidr { vf_asks: false };
        Parties {
            vf,
            vf_guid: vf_guid(vf),
            vf_id,
            vf_tid,
            peer_lid,
            peer_guid: 0x0002_c903_0a00_0000 + u64::from(peer_lid),
            peer_id,
            sl: self.rng.random_range(0..15),
            pkey_index,
            pkey: PKEYS[usize::from((pkey_index + vf) % 3)],
            global: must_be_global || self.rng.random_ratio(1, 3),
        }
    }

    fn begin(&mut self) {
        let topic = Topic::random(&mut self.rng);
        let who = self.parties(topic);
        let steps = topic.plan(&mut self.rng, &who);
        self.tally.conversations += 1;
        let talk = Talk {
            who,
            topic,
            steps,
            next: 0,
            wire_id: None,
            wire_tid: None,
        };
        self.schedule(talk);
    }

    fn schedule(&mut self, talk: Talk) {
        let Some(step) = talk.steps.get(talk.next) else {
            if talk.has_ended() {
                self.vf_ids.remove(&(talk.who.vf, talk.who.vf_id));
                self.peer_ids.remove(&(talk.who.peer_lid, talk.who.peer_id));
            } else if talk.is_quiet() {
                self.quiet.push(talk.who.vf);
            }
            return;
        };
        let at = self.now + self.rng.random_range(0..=step.gap);
        self.order += 1;
        self.due.insert((at, self.order), talk);
    }

    fn step(&mut self) {
        let ((at, _), mut talk) = self.due.pop_first().unwrap();
        self.now = at;
        self.take(&mut talk);
        talk.next += 1;
        self.schedule(talk);
    }

    /// One step of a conversation, and what the mux makes of it.
    fn take(&mut self, talk: &mut Talk) {
        let step = talk.steps[talk.next].clone();
        let mad = if step.from_vf {
            step.mad
        } else {
            talk.on_the_wire(&step)
        };
        if !step.from_vf && step.mapped != Mapped::Nothing && self.rng.random_ratio(1, 10) {
            self.forge(&talk.who, &mad);
        }
        let sent = line(&talk.who, self.now, step.from_vf, &mad);
        let outcome = self.session.send(self.now, &sent);
        self.tally.mads += 1;
        let story = format!("{:?} {:?}\n{sent}\n{outcome:?}", talk.topic, talk.who);
        let got = self.passed_mad(talk, step.from_vf, outcome, &story);
        let wanted = if step.from_vf {
            self.learn(talk, step.mapped, &got);
            talk.on_the_wire(&step)
        } else {
            talk.at_the_vf(&step)
        };
        assert_eq!(mads::to_hex(&got), mads::to_hex(&wanted), "{story}");
    }

    /// A stranger who saw a peer's message sends it, too: nobody gets it, and nothing changes.
    fn forge(&mut self, who: &Parties, mad: &Mad) {
        let stranger = Parties {
            // A port with the largest LMC would have both LIDs.
            peer_lid: who.peer_lid ^ 0x40,
            peer_guid: 0x0002_c903_0b00_0000,
            ..who.clone()
        };
        let sent = line(&stranger, self.now, false, mad);
        let Outcome { own, others, .. } = self.session.send(self.now, &sent);
        assert!(others.is_empty(), "{sent}\n{others:?}");
        let [verdict] = &own[..] else {
            panic!("one verdict: {sent}\n{own:?}");
        };
        assert_eq!(verdict["drop"], "wrong_peer", "{sent}\n{verdict}");
    }

    /// Resets a VF: its peers may be told, and what they still say reaches no VF.
    fn reset(&mut self, vf: u16) {
        let event = json!({"at": self.now, "event": "vf_reset", "vf": vf});
        let Outcome { own, others, .. } = self.session.send(self.now, &event);
        assert!(others.is_empty(), "{others:?}");
        let (cut, due): (BTreeMap<_, _>, _) = mem::take(&mut self.due)
            .into_iter()
            .partition(|(_, talk)| talk.who.vf == vf);
        self.due = due;
        for told in &own {
            assert_eq!(told["to"], "wire", "{told}");
            let dlid = u16::try_from(told["dlid"].as_u64().unwrap()).unwrap();
            assert!(self.spoken.contains(&(vf, dlid)), "{told}");
        }
        for mut talk in cut.into_values() {
            if talk.is_silent() {
                continue;
            }
            while let Some(step) = talk.steps.get(talk.next) {
                if !step.from_vf && step.mapped != Mapped::Nothing {
                    let sent = line(&talk.who, self.now, false, &talk.on_the_wire(step));
                    let Outcome { own, .. } = self.session.send(self.now, &sent);
                    let [verdict] = &own[..] else {
                        panic!("one verdict: {sent}\n{own:?}");
                    };
                    let answered = verdict["to"] == "wire";
                    assert!(answered || verdict["drop"].is_string(), "{verdict}");
                }
                talk.next += 1;
            }
        }
        self.vf_ids.retain(|&(owner, _)| owner != vf);
        self.quiet.retain(|&owner| owner != vf);
    }

    /// The MAD of the one line that a step must lead to.
    fn passed_mad(&self, talk: &Talk, from_vf: bool, outcome: Outcome, story: &str) -> Mad {
        assert!(outcome.others.is_empty(), "{story}");
        let [mut verdict] = <[Value; 1]>::try_from(outcome.own).expect(story);
        let fields = verdict.as_object_mut().unwrap();
        assert_eq!(fields.remove("at"), Some(self.now.into()), "{story}");
        fields.remove("cause");
        let Some(Value::String(digits)) = fields.remove("mad") else {
            panic!("it goes on: {story}");
        };
        assert_eq!(verdict, passed(&talk.who, from_vf), "{story}");
        mads::from_hex(&digits)
    }

    /// Takes note of the ids that the mux gave an exchange: new ones, and always the same.
    fn learn(&mut self, talk: &mut Talk, mapped: Mapped, got: &Mad) {
        match mapped {
            Mapped::CommId | Mapped::RequestId => {
                let id = get_u32(got, mads::LOCAL_ID);
                if talk.wire_id.is_none() {
                    assert!(id != 0 && id != u32::MAX);
                    assert!(self.wire_ids.insert(id), "{id:#x} is in use");
                    talk.wire_id = Some(id);
                }
            }
            Mapped::Tid => {
                if talk.wire_tid.is_none() {
                    let tid = u32::try_from(mads::tid(got)).unwrap();
                    assert!(self.wire_tids.insert(tid), "{tid:#x} is in use");
                    talk.wire_tid = Some(tid);
                }
            }
            Mapped::Nothing => {}
        }
    }
}
