//! A sequence of operations on the cache of paths.

use std::collections::{BTreeMap, BTreeSet};

use ib_vtime::{Duration, Instant};
use ib_wire::mad::{Mad, MadStatus, Method};
use ib_wire::sa::{PathRecord, SaMad};
use ib_wire::{Gid, Guid, PKey, SubnetPrefix, Tid};
use mad_mux::path_cache::{Lookup, PathCache, PathCacheConfig, Transaction};
use vf_tunnel::{VfId, VfTid, WireTid};
use zerocopy::IntoBytes;

use super::hostile::{Input, pass_time};

const CONFIG: PathCacheConfig = PathCacheConfig {
    lifetime_ms: 3_000,
    entries: 6,
    per_vf: 3,
};
const VFS: u16 = 3;
const OTHER: PKey = PKey::new(0x8001);

/// Requests of all VFs, and of one, that wait.
const MOST_WAITING: usize = 256;
const MOST_WAITING_OF_VF: usize = 16;

fn vf(input: &mut Input<'_>) -> VfId {
    let number = 1 + u16::from(input.byte()) % VFS;
    VfId::new(number).expect("a small number is a VF's")
}

fn guid(number: u8) -> Guid {
    Guid::new(0x100 + u64::from(number))
}

/// The first VF is in both partitions.
fn keys(vf: VfId) -> &'static [PKey] {
    let all = &[PKey::DEFAULT_FULL, OTHER];
    if vf.get() == 1 { all } else { &all[..1] }
}

fn request(input: &mut Input<'_>) -> Mad {
    let gid = |number| Gid::from_parts(SubnetPrefix::DEFAULT, guid(number));
    let record = PathRecord {
        sgid: gid(0),
        dgid: gid(1 + input.byte() % 8),
        ..PathRecord::default()
    };
    let mut sa = SaMad::new(Method::GET, PathRecord::SGID | PathRecord::DGID, &record);
    sa.header.tid = Tid::new(u64::from(input.byte() % 32));
    let mut mad = Mad::from_layout(&sa);
    if input.byte().is_multiple_of(8) {
        input.damage(mad.as_mut_bytes());
    }
    mad
}

#[derive(Default)]
struct Waiting {
    next: u64,
    /// What waits, and whose it is.
    held: BTreeMap<u64, (VfId, Mad)>,
}

impl Waiting {
    /// A request that its VF sends again waits no longer.
    fn end(&mut self, vf: VfId, mad: &Mad) {
        let same = |mad: &Mad| {
            let sa = mad.view::<SaMad>();
            (sa.header.tid, sa.component_mask, sa.record::<PathRecord>())
        };
        let is_it = |(_, held): &(&u64, &(VfId, Mad))| held.0 == vf && same(&held.1) == same(mad);
        let found = self.held.iter().find(is_it).map(|(id, _)| *id);
        self.held
            .remove(&found.expect("what waits no longer is a repetition"));
    }
}

struct Scene {
    now: Instant,
    cache: PathCache<u64>,
    waiting: Waiting,
    /// The wire TID of each TID of a VF.
    wire_tids: BTreeMap<(VfId, Tid), u64>,
    next_wire_tid: u64,
    sent: Vec<(WireTid, Mad)>,
    hits: usize,
    resumed: usize,
}

impl Scene {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0..3 => {
                let (vf, mad) = (vf(input), request(input));
                self.ask(vf, mad);
            }
            3..5 => self.answer(input),
            5 => {
                let end = self.now + input.time();
                self.wait(end);
            }
            6 => match input.byte() {
                0 => self.cache.invalidate(),
                byte => self.cache.invalidate_guid(guid(byte % 9)),
            },
            _ => self.reset(vf(input)),
        }
        self.resume();
        self.check();
    }

    fn ask(&mut self, vf: VfId, mut mad: Mad) {
        let (asked, waiting) = (mad, self.cache.waiting());
        match self.cache.ask(self.now, vf, keys(vf), &mut mad) {
            Lookup::Answered => {
                self.hits += 1;
                check_hit(vf, &asked, &mad);
            }
            Lookup::UnderWay => {
                assert_eq!(mad, asked);
                let id = self.waiting.next;
                self.waiting.next += 1;
                self.waiting.held.insert(id, (vf, mad));
                self.cache.wait(self.now, vf, &mad, id);
            }
            Lookup::Miss => {
                assert_eq!(mad, asked);
                if self.cache.waiting() < waiting {
                    self.waiting.end(vf, &mad);
                }
                self.send(vf, &mad);
            }
        }
    }

    /// The request goes to the SA.
    fn send(&mut self, vf: VfId, mad: &Mad) {
        let key = (vf, mad.header.tid);
        let is_new = !self.wire_tids.contains_key(&key);
        self.next_wire_tid += u64::from(is_new);
        let wire = *self.wire_tids.entry(key).or_insert(self.next_wire_tid);
        let transaction = Transaction {
            vf,
            tid: VfTid(mad.header.tid),
            wire: WireTid(Tid::new(wire)),
            is_new,
        };
        self.cache.asked(self.now, &transaction, mad);
        self.sent.push((transaction.wire, *mad));
    }

    /// The SA answers, with a path, an error, or nonsense.
    fn answer(&mut self, input: &mut Input<'_>) {
        let Some((wire, mut mad)) = input.take(&mut self.sent) else {
            return;
        };
        mad.header.method = mad.header.method.response();
        let sa: &mut SaMad = mad.view_mut();
        let mut record: PathRecord = sa.record();
        record.pkey = [PKey::DEFAULT_FULL, OTHER][input.index(2)];
        sa.set_record(&record);
        match input.byte() % 8 {
            0 => sa.header.status = MadStatus::SA_NO_RECORDS,
            1 => sa.header.status = MadStatus::BUSY,
            2 => input.damage(mad.as_mut_bytes()),
            _ => {}
        }
        self.cache.answered(self.now, wire, &mad);
        self.wire_tids.retain(|_, other| *other != wire.0.get());
    }

    fn reset(&mut self, vf: VfId) {
        let ended: BTreeSet<u64> = self.cache.reset(vf).into_iter().collect();
        let own = self.waiting.held.iter().filter(|(_, (of, _))| *of == vf);
        assert_eq!(ended, own.map(|(id, _)| *id).collect());
        self.waiting.held.retain(|_, (of, _)| *of != vf);
        self.wire_tids.retain(|(of, _), _| *of != vf);
    }

    /// What has waited is looked at anew; that may let others go on.
    fn resume(&mut self) {
        while let Some((vf, id)) = self.cache.poll_resumed() {
            let (whose, mad) = self.waiting.held.remove(&id).expect("resumed once");
            assert_eq!(vf, whose);
            self.resumed += 1;
            self.ask(vf, mad);
        }
    }

    fn wait(&mut self, end: Instant) {
        let mut now = self.now;
        pass_time(&mut now, end, |at| {
            self.now = at;
            self.cache.expire(at);
            self.resume();
            self.cache.poll_timeout()
        });
        self.now = now;
    }

    fn check(&self) {
        let limit = |limit: u32| usize::try_from(limit).expect("limits are small");
        assert!(self.cache.len() <= limit(CONFIG.entries));
        assert_eq!(self.cache.waiting(), self.waiting.held.len());
        assert!(self.cache.waiting() <= MOST_WAITING);
        for number in 1..=VFS {
            let own = self.waiting.held.values();
            let own = own.filter(|(vf, _)| vf.get() == number).count();
            assert!(own <= MOST_WAITING_OF_VF);
        }
    }

    fn wind_down(mut self) {
        self.wait(self.now + Duration::from_secs(600));
        assert!(self.cache.is_empty());
        assert_eq!(self.cache.poll_timeout(), None);
        assert!(self.waiting.held.is_empty());
    }
}

/// A hit answers the question, in a partition of the VF's.
fn check_hit(vf: VfId, asked: &Mad, answer: &Mad) {
    assert_eq!(answer.header.tid, asked.header.tid);
    assert_eq!(answer.header.method, Method::GET_RESP);
    let (question, path) = (asked.view::<SaMad>(), answer.view::<SaMad>());
    let (question, path): (PathRecord, PathRecord) = (question.record(), path.record());
    if answer.header.status == MadStatus::OK {
        assert_eq!((path.sgid, path.dgid), (question.sgid, question.dgid));
        assert!(keys(vf).contains(&path.pkey));
    }
}

/// Requests of three VFs for a few paths, and what the SA says. No input answers a question with
/// another one's answer, loses a request that waits, or exceeds a limit.
pub(super) fn path_cache(data: &[u8]) {
    play(data).wind_down();
}

fn play(data: &[u8]) -> Scene {
    let mut input = Input::new(data);
    let mut scene = Scene {
        now: Instant::from_millis(1),
        cache: PathCache::new(CONFIG, 7),
        waiting: Waiting::default(),
        wire_tids: BTreeMap::new(),
        next_wire_tid: 0,
        sent: Vec::new(),
        hits: 0,
        resumed: 0,
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
    fn the_seeds_hit_and_run_out_of_patience() {
        let hit = play(include_bytes!("../../fuzz/corpus/path_cache/hit"));
        assert_eq!((hit.hits, hit.resumed), (2, 1));
        let patience = play(include_bytes!("../../fuzz/corpus/path_cache/patience"));
        assert_eq!((patience.hits, patience.resumed), (0, 1));
    }
}
