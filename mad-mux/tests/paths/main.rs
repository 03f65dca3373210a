//! The cache of paths against a model: maps by request, without slots, trees or hashes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod rules;

use std::collections::BTreeMap;
use std::time::Duration;

use ib_vtime::Instant;
use ib_wire::mad::{Mad, MadStatus, Method};
use ib_wire::sa::{PathRecord, SaMad};
use ib_wire::{Gid, Guid, PKey, SubnetPrefix, Tid};
use mad_mux::path_cache::{Lookup, PathCache, PathCacheConfig, Transaction};
use proptest::prelude::*;
use vf_tunnel::{VfId, VfTid, WireTid};

const PATIENCE: Duration = Duration::from_millis(500);
const LIFETIME: Duration = Duration::from_millis(3_000);
const OTHER: PKey = PKey::new(0x8001);

fn guid(n: u8) -> Guid {
    Guid::new(0x100 + u64::from(n))
}

/// The request by its number, from port 0 to one of the others.
fn request(n: u8, tid: u8) -> Mad {
    let gid = |n| Gid::from_parts(SubnetPrefix::DEFAULT, guid(n));
    let record = PathRecord {
        sgid: gid(0),
        dgid: gid(n + 1),
        ..PathRecord::default()
    };
    let mut sa = SaMad::new(Method::GET, PathRecord::SGID | PathRecord::DGID, &record);
    sa.header.tid = Tid::new(tid.into());
    Mad::from_layout(&sa)
}

#[derive(Clone, Copy, Debug)]
enum Verdict {
    Path(PKey),
    Error(MadStatus),
    Foreign,
}

fn answer(n: u8, verdict: Verdict) -> Mad {
    let mut mad = request(n, 0);
    let sa: &mut SaMad = mad.view_mut();
    sa.header.method = Method::GET_RESP;
    let mut record: PathRecord = sa.record();
    match verdict {
        Verdict::Path(pkey) => record.pkey = pkey,
        Verdict::Error(status) => sa.header.status = status,
        Verdict::Foreign => record.dgid = Gid([7; 16]),
    }
    sa.set_record(&record);
    mad
}

#[derive(Clone, Debug)]
enum Op {
    Ask { vf: u16, n: u8, tid: u8 },
    Answer { which: usize, verdict: Verdict },
    Wait { millis: u16 },
    Invalidate,
    InvalidatePort { n: u8 },
    Reset { vf: u16 },
}

fn op() -> impl Strategy<Value = Op> {
    let verdict = prop_oneof![
        3 => Just(Verdict::Path(PKey::DEFAULT_FULL)),
        2 => Just(Verdict::Path(OTHER)),
        1 => Just(Verdict::Error(MadStatus::SA_NO_RECORDS)),
        1 => Just(Verdict::Error(MadStatus::BUSY)),
        1 => Just(Verdict::Foreign),
    ];
    prop_oneof![
        8 => (1..4_u16, 0..3_u8, 0..4_u8).prop_map(|(vf, n, tid)| Op::Ask { vf, n, tid }),
        5 => (any::<usize>(), verdict).prop_map(|(which, verdict)| Op::Answer { which, verdict }),
        3 => (0..2_000_u16).prop_map(|millis| Op::Wait { millis }),
        1 => Just(Op::Invalidate),
        1 => (0..4_u8).prop_map(|n| Op::InvalidatePort { n }),
        1 => (1..4_u16).prop_map(|vf| Op::Reset { vf }),
    ]
}

/// Who asks, and under which TID.
type Asker = (u16, u8);

#[derive(Default)]
struct Model {
    known: BTreeMap<u8, (Mad, Instant)>,
    /// What the SA is being asked: the wire TID, by whom, since when.
    open: BTreeMap<u8, (u64, Asker, Instant)>,
    waiting: Vec<(u8, Asker, Instant)>,
    resumed: Vec<Asker>,
}

impl Model {
    fn free(&mut self, n: u8) {
        self.resumed
            .extend(self.waiting.iter().filter(|w| w.0 == n).map(|w| w.1));
        self.waiting.retain(|w| w.0 != n);
    }

    fn forget(&mut self, n: u8) {
        self.known.remove(&n);
        if self.open.remove(&n).is_some() {
            self.free(n);
        }
    }

    fn pass(&mut self, now: Instant) {
        self.known.retain(|_, (_, until)| *until > now);
        let ten_seconds = Duration::from_secs(10);
        let over = |(_, _, since): &(u64, Asker, Instant)| *since + ten_seconds <= now;
        let old: Vec<u8> = self
            .open
            .iter()
            .filter(|(_, open)| over(open))
            .map(|(&n, _)| n)
            .collect();
        old.into_iter().for_each(|n| self.forget(n));
        let tired = |w: &&(u8, Asker, Instant)| w.2 + PATIENCE <= now;
        self.resumed
            .extend(self.waiting.iter().filter(tired).map(|w| w.1));
        self.waiting.retain(|w| w.2 + PATIENCE > now);
    }

    fn ask(&mut self, now: Instant, asker: Asker, n: u8) -> Lookup {
        if let Some((answer, _)) = self.known.get(&n) {
            let pkey = answer.view::<SaMad>().record::<PathRecord>().pkey;
            let may = answer.header.status != MadStatus::OK || keys(asker.0).contains(&pkey);
            return if may { Lookup::Answered } else { Lookup::Miss };
        }
        let Some(&(_, first, since)) = self.open.get(&n) else {
            return Lookup::Miss;
        };
        if first == asker || since + PATIENCE <= now {
            return Lookup::Miss;
        }
        if let Some(at) = self.waiting.iter().position(|w| (w.0, w.1) == (n, asker)) {
            self.waiting.remove(at);
            return Lookup::Miss;
        }
        Lookup::UnderWay
    }

    fn asked(&mut self, now: Instant, asker: Asker, n: u8, wire: u64, is_new: bool) {
        if let Some((&open, _)) = self.open.iter().find(|(_, open)| open.0 == wire) {
            if open != n {
                self.forget(open);
            }
        } else if is_new && !self.known.contains_key(&n) {
            if self
                .open
                .get(&n)
                .is_some_and(|open| open.2 + PATIENCE > now)
            {
                return;
            }
            self.forget(n);
            self.open.insert(n, (wire, asker, now));
        }
    }
}

/// VF 1 is in both partitions.
fn keys(vf: u16) -> &'static [PKey] {
    let all = &[PKey::DEFAULT_FULL, OTHER];
    if vf == 1 { all } else { &all[..1] }
}

struct World {
    cache: PathCache<Asker>,
    model: Model,
    now: Instant,
    /// The wire TID of each TID of a VF, and what was asked under it last.
    tids: BTreeMap<Asker, (u64, u8)>,
    wire_tids: u64,
}

impl World {
    fn ask(&mut self, asker: Asker, n: u8) {
        let (vf, tid) = (VfId::new(asker.0).unwrap(), asker.1);
        let mut mad = request(n, tid);
        let lookup = self.cache.ask(self.now, vf, keys(asker.0), &mut mad);
        assert_eq!(lookup, self.model.ask(self.now, asker, n));
        match lookup {
            Lookup::Answered => {
                let mut expected = self.model.known[&n].0;
                expected.header.tid = Tid::new(tid.into());
                assert_eq!(mad, expected);
            }
            Lookup::UnderWay => {
                self.cache.wait(self.now, vf, &mad, asker);
                self.model.waiting.push((n, asker, self.now));
            }
            Lookup::Miss => {
                assert_eq!(mad, request(n, tid));
                let is_new = !self.tids.contains_key(&asker);
                self.wire_tids += u64::from(is_new);
                let (wire, last) = self.tids.entry(asker).or_insert((self.wire_tids, n));
                *last = n;
                let transaction = Transaction {
                    vf,
                    tid: VfTid(mad.header.tid),
                    wire: WireTid(Tid::new(*wire)),
                    is_new,
                };
                self.cache.asked(self.now, &transaction, &mad);
                self.model.asked(self.now, asker, n, *wire, is_new);
            }
        }
    }

    fn answer(&mut self, which: usize, verdict: Verdict) {
        let Some((&asker, &(wire, n))) = self.tids.iter().nth(which % self.tids.len().max(1))
        else {
            return;
        };
        self.tids.remove(&asker);
        let mad = answer(n, verdict);
        self.cache.answered(self.now, WireTid(Tid::new(wire)), &mad);
        if self.model.open.get(&n).is_some_and(|open| open.0 == wire) {
            self.model.open.remove(&n);
            self.model.free(n);
            let life = match verdict {
                Verdict::Path(_) => LIFETIME,
                Verdict::Error(MadStatus::SA_NO_RECORDS) => Duration::from_secs(1),
                Verdict::Error(_) | Verdict::Foreign => return,
            };
            self.model.known.insert(n, (mad, self.now + life));
        }
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.cache.poll_timeout().filter(|&at| at <= end) {
            assert!(at > self.now, "a timer that does nothing");
            self.now = at;
            self.cache.expire(at);
            self.model.pass(at);
            self.compare();
        }
        self.now = end;
        self.model.pass(end);
        self.compare();
    }

    fn reset(&mut self, number: u16) {
        let vf = VfId::new(number).unwrap();
        let own: Vec<Asker> = self.cache.reset(vf);
        let (dropped, kept) = core::mem::take(&mut self.model.waiting)
            .into_iter()
            .partition::<Vec<_>, _>(|w| w.1.0 == number);
        assert!(own.into_iter().eq(dropped.into_iter().map(|w| w.1)));
        self.model.waiting = kept;
        let open = self.model.open.clone();
        for (n, _) in open.into_iter().filter(|(_, open)| open.1.0 == number) {
            self.model.forget(n);
        }
        self.tids.retain(|asker, _| asker.0 != number);
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Ask { vf, n, tid } => self.ask((vf, tid), n),
            Op::Answer { which, verdict } => self.answer(which, verdict),
            Op::Wait { millis } => self.wait(Duration::from_millis(millis.into())),
            Op::Invalidate => {
                self.cache.invalidate();
                (0..3).for_each(|n| self.model.forget(n));
            }
            Op::InvalidatePort { n } => {
                self.cache.invalidate_guid(guid(n));
                (0..3)
                    .filter(|&path| n == 0 || path + 1 == n)
                    .for_each(|path| self.model.forget(path));
            }
            Op::Reset { vf } => self.reset(vf),
        }
        self.compare();
    }

    /// What came out, and what is in.
    fn compare(&mut self) {
        let mut resumed = Vec::new();
        while let Some((vf, asker)) = self.cache.poll_resumed() {
            assert_eq!(vf.get(), asker.0);
            resumed.push(asker);
        }
        let mut expected = core::mem::take(&mut self.model.resumed);
        resumed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(resumed, expected);
        let paths = self.model.known.len() + self.model.open.len();
        assert_eq!(self.cache.len(), paths);
        assert_eq!(self.cache.waiting(), self.model.waiting.len());
    }
}

#[test]
fn a_zero_in_any_limit_turns_the_cache_off() {
    let on = PathCacheConfig::default();
    let configs = [
        (on, true),
        (
            PathCacheConfig {
                lifetime_ms: 0,
                ..on
            },
            false,
        ),
        (PathCacheConfig { entries: 0, ..on }, false),
        (PathCacheConfig { per_vf: 0, ..on }, false),
    ];
    let (vf, now) = (VfId::new(1).unwrap(), Instant::from_millis(1));
    for (config, is_kept) in configs {
        let mut cache = PathCache::<Asker>::new(config, 1);
        let mut mad = request(0, 1);
        assert_eq!(cache.ask(now, vf, keys(1), &mut mad), Lookup::Miss);
        let wire = WireTid(Tid::new(9));
        let transaction = Transaction {
            vf,
            tid: VfTid(mad.header.tid),
            wire,
            is_new: true,
        };
        cache.asked(now, &transaction, &mad);
        cache.answered(now, wire, &answer(0, Verdict::Path(PKey::DEFAULT_FULL)));
        let again = cache.ask(now, vf, keys(1), &mut request(0, 2));
        assert_eq!(again == Lookup::Answered, is_kept, "{config:?}");
        assert_eq!(cache.len(), usize::from(is_kept));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_cache_is_a_map_of_what_the_sa_said_last(ops in prop::collection::vec(op(), 1..100)) {
        let config = PathCacheConfig {
            lifetime_ms: 3_000,
            ..PathCacheConfig::default()
        };
        let mut world = World {
            cache: PathCache::new(config, 1),
            model: Model::default(),
            now: Instant::from_millis(1),
            tids: BTreeMap::new(),
            wire_tids: 0,
        };
        for op in ops {
            world.run(op);
        }
        world.wait(Duration::from_secs(20));
        prop_assert!(world.cache.is_empty());
        prop_assert_eq!(world.cache.poll_timeout(), None);
    }
}
