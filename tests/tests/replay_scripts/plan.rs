//! Conversations as lists of steps, each with what must come of it.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::mads::{
    self, APR, DREP, DREQ, LAP, LOCAL_ID, MRA, Mad, REP, REQ, RTU, SIDR_REP, SIDR_REQ, cm, noise,
    put, rej, rmpp, sa,
};

/// Which field of a MAD the mux maps, as its sender or receiver on the wire sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapped {
    /// The VF's communication id.
    CommId,
    /// The VF's SIDR request id.
    RequestId,
    /// The transaction id.
    Tid,
    /// None.
    Nothing,
}

/// A MAD of one of the two sides.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) from_vf: bool,
    pub(crate) mad: Mad,
    pub(crate) mapped: Mapped,
    /// Milliseconds since the step before, at most.
    pub(crate) gap: u64,
}

/// Who talks about what.
#[derive(Clone, Debug)]
pub(crate) struct Parties {
    pub(crate) vf: u16,
    pub(crate) vf_guid: u64,
    /// The VF's id of the exchange, and its TID.
    pub(crate) vf_id: u32,
    pub(crate) vf_tid: u64,
    pub(crate) peer_lid: u16,
    pub(crate) peer_guid: u64,
    pub(crate) peer_id: u32,
    pub(crate) sl: u8,
    /// A virtual index of the VF's, and the key behind it.
    pub(crate) pkey_index: u16,
    pub(crate) pkey: u16,
    /// Whether packets have a GRH.
    pub(crate) global: bool,
}

/// A link-local GID.
pub(crate) fn gid(guid: u64) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[8..].copy_from_slice(&guid.to_be_bytes());
    gid
}

pub(crate) fn gid_text(guid: u64) -> String {
    std::net::Ipv6Addr::from(gid(guid)).to_string()
}

/// The longest pause in a handshake. Linux repeats itself every 4.3 s and asks for up to 69 s more.
const PAUSE: u64 = 20_000;
/// How late a message of a closed exchange may come.
const LATE: u64 = 15_000;
/// How late an answer may be repeated.
const LATE_ANSWER: u64 = 10_000;

/// A conversation in the making.
struct Draft<'a> {
    rng: &'a mut ChaCha8Rng,
    who: &'a Parties,
    steps: Vec<Step>,
}

impl Draft<'_> {
    fn chance(&mut self, of_100: u32) -> bool {
        self.rng.random_ratio(of_100, 100)
    }

    fn push(&mut self, from_vf: bool, mad: Mad, mapped: Mapped, gap: u64) {
        self.steps.push(Step {
            from_vf,
            mad,
            mapped,
            gap,
        });
    }

    /// The step before once more, or a few times, as a retransmission.
    fn maybe_again(&mut self, gap: u64) {
        while self.chance(25) {
            let mut step = self.steps.last().unwrap().clone();
            step.gap = gap;
            self.steps.push(step);
        }
    }

    /// A CM message of the VF's.
    fn vf(&mut self, attribute: u16) {
        let mad = cm(self.rng, attribute, self.who.vf_id, self.who.peer_id);
        self.push(true, mad, Mapped::CommId, PAUSE);
    }

    /// A CM message of the peer's to the VF's id.
    fn peer(&mut self, attribute: u16) {
        let mad = cm(self.rng, attribute, self.who.peer_id, 0);
        self.push(false, mad, Mapped::CommId, PAUSE);
    }

    fn mra(&mut self, from_vf: bool, of: u8) {
        if from_vf {
            self.vf(MRA);
        } else {
            self.peer(MRA);
        }
        let mad = &mut self.steps.last_mut().unwrap().mad;
        mad[32] = of << 6;
        mad[33] = 24 << 3;
        self.maybe_again(PAUSE);
    }

    fn req(&mut self, from_vf: bool) {
        let who = self.who;
        let [vf, peer] = [
            (who.vf_id, who.vf_guid, 5),
            (who.peer_id, who.peer_guid, who.peer_lid),
        ];
        let (from, to) = if from_vf { (vf, peer) } else { (peer, vf) };
        let mut mad = cm(self.rng, REQ, from.0, 0);
        put(&mut mad, 40, &from.1.to_be_bytes());
        put(&mut mad, 72, &who.pkey.to_be_bytes());
        // Response times of 4.3 s and fifteen retries, as Linux has them; or any.
        if self.chance(80) {
            (mad[67], mad[71], mad[75]) = (20 << 3, 20 << 3 | 7, 15 << 4);
        }
        put(&mut mad, 76, &from.2.to_be_bytes());
        put(&mut mad, 78, &to.2.to_be_bytes());
        put(&mut mad, 80, &gid(from.1));
        put(&mut mad, 96, &gid(to.1));
        mad[120..164].fill(0);
        let mapped = if from_vf {
            Mapped::CommId
        } else {
            Mapped::Nothing
        };
        self.push(from_vf, mad, mapped, 0);
        self.maybe_again(4_300);
    }

    fn rep(&mut self, from_vf: bool) {
        let ca = if from_vf {
            self.vf(REP);
            self.who.vf_guid
        } else {
            self.peer(REP);
            self.who.peer_guid
        };
        put(
            &mut self.steps.last_mut().unwrap().mad,
            52,
            &ca.to_be_bytes(),
        );
        self.maybe_again(4_300);
    }

    /// A REJ by either side, and maybe once more when the other did not hear it.
    fn refuse(&mut self, from_vf: bool, rejected: u8, reason: u16) {
        let who = self.who;
        let (local, remote) = if from_vf {
            (who.vf_id, who.peer_id)
        } else {
            (who.peer_id, 0)
        };
        let mad = rej(self.rng, local, remote, rejected, reason);
        self.push(from_vf, mad, Mapped::CommId, PAUSE);
        self.maybe_again(LATE);
    }

    /// The VF refuses a REQ without an id of its own.
    fn refuse_without_id(&mut self) {
        let reason = self.rng.random_range(5..30);
        let mad = rej(self.rng, 0, self.who.peer_id, 0, reason);
        self.push(true, mad, Mapped::Nothing, PAUSE);
        self.maybe_again(LATE);
    }

    /// Who asked gives up before it knows the other's id.
    fn give_up(&mut self, vf_asked: bool) {
        let who = self.who;
        let (id, ca, mapped) = if vf_asked {
            (who.vf_id, who.vf_guid, Mapped::CommId)
        } else {
            (who.peer_id, who.peer_guid, Mapped::Nothing)
        };
        let mad = mads::timeout(self.rng, id, 0, ca);
        self.push(vf_asked, mad, mapped, PAUSE);
        self.maybe_again(LATE);
    }

    /// LAP and APR.
    fn migrate(&mut self) {
        let from_vf = self.chance(50);
        let who = self.who;
        if from_vf {
            self.vf(LAP)
        } else {
            self.peer(LAP)
        }
        let (near, far) = if from_vf {
            (who.vf_guid, who.peer_guid)
        } else {
            (who.peer_guid, who.vf_guid)
        };
        let mad = &mut self.steps.last_mut().unwrap().mad;
        put(mad, 44, &[0, 0, 0, 0]);
        put(mad, 48, &gid(near));
        put(mad, 64, &gid(far));
        if from_vf {
            self.peer(APR)
        } else {
            self.vf(APR)
        }
    }

    fn disconnect(&mut self) {
        let from_vf = self.chance(50);
        if from_vf {
            self.vf(DREQ)
        } else {
            self.peer(DREQ)
        }
        self.maybe_again(4_300);
        if self.chance(20) {
            // Both at once.
            if from_vf {
                self.peer(DREQ)
            } else {
                self.vf(DREQ)
            }
        }
        if self.chance(80) {
            if from_vf {
                self.peer(DREP)
            } else {
                self.vf(DREP)
            }
            if self.chance(50) {
                // The DREP was lost.
                if from_vf {
                    self.vf(DREQ)
                } else {
                    self.peer(DREQ)
                }
                self.steps.last_mut().unwrap().gap = LATE;
                if from_vf {
                    self.peer(DREP)
                } else {
                    self.vf(DREP)
                }
                self.steps.last_mut().unwrap().gap = 1_000;
            }
            self.maybe_again(LATE);
        }
    }

    /// What follows a REP, whoever asked.
    fn connected(&mut self, vf_asked: bool) {
        if self.chance(10) {
            return self.refuse(vf_asked, 1, 28);
        }
        if self.chance(5) {
            // Nobody ever says anything again.
            return;
        }
        if self.chance(15) {
            self.mra(vf_asked, 1);
        }
        if self.chance(90) {
            if vf_asked {
                self.vf(RTU)
            } else {
                self.peer(RTU)
            }
            self.maybe_again(PAUSE);
            if self.chance(20) {
                // The RTU was lost.
                self.rep(!vf_asked);
                if vf_asked {
                    self.vf(RTU)
                } else {
                    self.peer(RTU)
                }
            }
            if self.chance(20) {
                self.migrate();
            }
            self.steps.last_mut().unwrap().gap = 4_000;
            if self.chance(15) {
                let from_vf = self.chance(50);
                return self.refuse(from_vf, 2, 28);
            }
        }
        self.disconnect();
    }

    fn connect(&mut self, vf_asks: bool) {
        self.req(vf_asks);
        if self.chance(20) {
            self.mra(!vf_asks, 0);
        }
        let with_id = self.steps.last().unwrap().mad[17] == 0x11;
        match self.rng.random_range(0..100) {
            0..10 => self.give_up(vf_asks),
            10..15 => {}
            15..25 if !vf_asks && !with_id => self.refuse_without_id(),
            15..25 => self.refuse(!vf_asks, 0, 28),
            _ => {
                self.rep(!vf_asks);
                self.connected(vf_asks);
            }
        }
    }

    fn sidr(&mut self, vf_asks: bool) {
        let who = self.who;
        let id = if vf_asks { who.vf_id } else { who.peer_id };
        let mut mad = cm(self.rng, SIDR_REQ, id, 0);
        put(&mut mad, 28, &who.pkey.to_be_bytes());
        let mapped = if vf_asks {
            Mapped::RequestId
        } else {
            Mapped::Nothing
        };
        self.push(vf_asks, mad, mapped, 0);
        self.maybe_again(4_300);
        if self.chance(85) {
            let mad = cm(self.rng, SIDR_REP, id, 0x0102_0304);
            self.push(!vf_asks, mad, mapped, PAUSE);
            self.maybe_again(LATE);
        }
    }

    /// A request of one packet and its answer.
    fn transaction(&mut self, request: Mad, answer_method: u8) {
        self.push(true, request, Mapped::Tid, 0);
        self.maybe_again(4_000);
        if self.chance(85) {
            let mut answer = request;
            answer[3] = answer_method;
            self.rng.fill(&mut answer[64..]);
            self.push(false, answer, Mapped::Tid, PAUSE);
            self.maybe_again(LATE_ANSWER);
            if self.chance(10) {
                // The answer was lost behind the mux.
                self.push(true, request, Mapped::Tid, LATE_ANSWER);
                self.push(false, answer, Mapped::Tid, 3_000);
            }
        }
    }

    /// A transfer of the SA's to the VF, with acknowledgements for every window.
    fn transfer_in(&mut self, template: Mad, segments: u32) {
        let mut ack = template;
        ack[3] ^= 0x80;
        let mut window = 1;
        for segment in 1..=segments {
            let flags = u8::from(segment == 1) << 1 | u8::from(segment == segments) << 2;
            let mut data = rmpp(template, 1, flags, segment, 220);
            self.rng.fill(&mut data[56..]);
            self.push(false, data, Mapped::Tid, 100);
            if self.chance(3) {
                self.push(false, data, Mapped::Tid, 2_000);
            }
            if segment == window || segment == segments {
                window = segment + 64;
                self.push(true, rmpp(ack, 2, 0, segment, window), Mapped::Tid, 100);
            }
            if self.chance(1) {
                // Either side has had enough.
                let from_vf = self.chance(50);
                let end = if from_vf { ack } else { template };
                // Behind the last segment it is a late word on a transaction that was answered.
                let pause = if segment == segments {
                    LATE_ANSWER
                } else {
                    PAUSE
                };
                self.push(from_vf, rmpp(end, 4, 0, 0, 0), Mapped::Tid, pause);
                return;
            }
        }
        if self.chance(30) {
            // The last acknowledgement was lost.
            let last = self.steps.len() - 2;
            let data = self.steps[last].mad;
            self.push(false, data, Mapped::Tid, LATE_ANSWER);
            self.push(
                true,
                rmpp(ack, 2, 0, segments, segments + 64),
                Mapped::Tid,
                100,
            );
        }
    }

    fn table(&mut self) {
        let request = sa(self.rng, 0x12, 0x11);
        self.push(true, request, Mapped::Tid, 0);
        self.maybe_again(1_000);
        let segments = if self.chance(20) {
            1
        } else {
            self.rng.random_range(2..150)
        };
        self.transfer_in(sa_answer(request, 0x92, 0x11), segments);
    }

    /// GetMulti of MultiPathRecords: a transfer each way.
    fn multi_path(&mut self) {
        let mut template = sa(self.rng, 0x14, 0x3a);
        template[56..].fill(0);
        let segments = self.rng.random_range(1..5);
        for segment in 1..=segments {
            let flags = u8::from(segment == 1) << 1 | u8::from(segment == segments) << 2;
            self.push(
                true,
                rmpp(template, 1, flags, segment, 220),
                Mapped::Tid,
                100,
            );
            let ack = sa_answer(template, 0x94, 0x3a);
            self.push(
                false,
                rmpp(ack, 2, 0, segment, segment + 64),
                Mapped::Tid,
                100,
            );
        }
        self.push(true, rmpp(template, 2, 0, 0, 1), Mapped::Tid, 100);
        let segments = self.rng.random_range(1..70);
        self.transfer_in(sa_answer(template, 0x94, 0x35), segments);
    }
}

fn sa_answer(mut request: Mad, method: u8, attribute: u16) -> Mad {
    request[3] = method;
    put(&mut request, 16, &attribute.to_be_bytes());
    request
}

/// What a conversation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    Connect { vf_asks: bool },
    Sidr { vf_asks: bool },
    SaGet,
    ServiceSet,
    DeviceManagement,
    CmInfo,
    Table,
    MultiPath,
}

impl Topic {
    pub(crate) fn random(rng: &mut ChaCha8Rng) -> Self {
        let vf_asks = rng.random();
        match rng.random_range(0..20) {
            0..10 => Self::Connect { vf_asks },
            10..13 => Self::Sidr { vf_asks },
            13..15 => Self::SaGet,
            15 => Self::ServiceSet,
            16 => Self::DeviceManagement,
            17 => Self::CmInfo,
            18 => Self::Table,
            _ => Self::MultiPath,
        }
    }

    pub(crate) const fn is_for_the_sa(self) -> bool {
        matches!(
            self,
            Self::SaGet | Self::ServiceSet | Self::Table | Self::MultiPath
        )
    }

    /// A random conversation about it.
    pub(crate) fn plan(self, rng: &mut ChaCha8Rng, who: &Parties) -> Vec<Step> {
        let mut draft = Draft {
            rng,
            who,
            steps: Vec::new(),
        };
        match self {
            Self::Connect { vf_asks } => draft.connect(vf_asks),
            Self::Sidr { vf_asks } => draft.sidr(vf_asks),
            Self::SaGet => {
                let request = sa(draft.rng, 1, 0x11);
                draft.transaction(request, 0x81);
            }
            Self::ServiceSet => {
                let method = if draft.chance(50) { 2 } else { 0x15 };
                let mut request = sa(draft.rng, method, 0x31);
                put(&mut request, 64, &gid(who.vf_guid));
                draft.transaction(request, if method == 2 { 0x81 } else { 0x95 });
            }
            Self::DeviceManagement => {
                let method = if draft.chance(80) { 1 } else { 2 };
                let request = noise(draft.rng, 6, 1, method, 0x10);
                draft.transaction(request, 0x81);
            }
            Self::CmInfo => {
                let request = noise(draft.rng, 7, 2, 1, 1);
                draft.transaction(request, 0x81);
            }
            Self::Table => draft.table(),
            Self::MultiPath => draft.multi_path(),
        }
        for step in &mut draft.steps {
            if step.mapped == Mapped::Tid {
                put(&mut step.mad, mads::TID, &who.vf_tid.to_be_bytes());
            }
        }
        draft.steps
    }
}

/// The line of a step's MAD.
pub(crate) fn line(who: &Parties, at: u64, from_vf: bool, mad: &Mad) -> Value {
    let [own, far] = [gid_text(who.vf_guid), gid_text(who.peer_guid)];
    let mad = mads::to_hex(mad);
    if from_vf {
        // The index is a guess of the VF's; the GID is its own all the same.
        let grh = who
            .global
            .then(|| json!({"sgid_index": 9, "dgid": far, "tclass": 3, "flow": 5, "hop": 7}));
        json!({"at": at, "from": format!("vf:{}", who.vf), "qp": "gsi", "dlid": who.peer_lid, "dqpn": 1,
            "qkey": "0x80010000", "sl": who.sl, "pkey_index": who.pkey_index, "grh": grh, "mad": mad})
    } else {
        let grh = who
            .global
            .then(|| json!({"sgid": far, "dgid": own, "tclass": 3, "flow": 5, "hop": 7}));
        json!({"at": at, "from": "wire", "qp": "gsi", "slid": who.peer_lid, "sqpn": 1, "sl": who.sl,
            "pkey": format!("{:#06x}", who.pkey), "grh": grh, "mad": mad})
    }
}

/// The line that must come of a step whose MAD goes on, without its MAD.
pub(crate) fn passed(who: &Parties, from_vf: bool) -> Value {
    let [own, far] = [gid_text(who.vf_guid), gid_text(who.peer_guid)];
    if from_vf {
        let grh = who
            .global
            .then(|| json!({"sgid": own, "dgid": far, "tclass": 3, "flow": 5, "hop": 7}));
        json!({"to": "wire", "qp": "gsi", "dlid": who.peer_lid, "dqpn": 1, "qkey": "0x80010000",
            "sl": who.sl, "pkey": format!("{:#06x}", who.pkey), "grh": grh})
    } else {
        let grh = who
            .global
            .then(|| json!({"sgid": far, "dgid": own, "tclass": 3, "flow": 5, "hop": 7}));
        json!({"to": format!("vf:{}", who.vf), "qp": "gsi", "slid": who.peer_lid, "sqpn": 1,
            "sl": who.sl, "pkey_index": who.pkey_index, "grh": grh})
    }
}

pub(crate) fn id_place(mapped: Mapped, from_vf: bool) -> usize {
    match mapped {
        Mapped::CommId if !from_vf => mads::REMOTE_ID,
        _ => LOCAL_ID,
    }
}
