//! Equality of requests, and the answers that the cache keeps.

use ib_vtime::Instant;
use ib_wire::mad::{AttributeId, AttributeModifier, Mad, MadStatus, Method};
use ib_wire::rmpp::{RmppFlags, RmppHeader};
use ib_wire::sa::{ComponentMask, PathRecord, SaMad};
use ib_wire::{Lid, PKey, Sl, SmKey, Tid};
use mad_mux::path_cache::{Lookup, PathCache, PathCacheConfig, Transaction};
use vf_tunnel::{VfId, VfTid, WireTid};

use super::{Verdict, answer, request};

const NOW: Instant = Instant::from_millis(1);
const FULL: &[PKey] = &[PKey::DEFAULT_FULL];
const LIMITED: &[PKey] = &[PKey::DEFAULT_LIMITED];

fn vf(number: u16) -> VfId {
    VfId::new(number).unwrap()
}

fn cache(config: PathCacheConfig) -> PathCache<()> {
    PathCache::new(config, 1)
}

/// Sends a request under a wire TID.
fn ask_under(cache: &mut PathCache<()>, number: u16, request: &Mad, wire: u64) -> WireTid {
    let wire = WireTid(Tid::new(wire));
    let transaction = Transaction {
        vf: vf(number),
        tid: VfTid(request.header.tid),
        wire,
        is_new: true,
    };
    cache.asked(NOW, &transaction, request);
    wire
}

/// Returns `true` if the cache answers the request.
fn is_kept(cache: &mut PathCache<()>, pkeys: &[PKey], request: &Mad) -> bool {
    cache.ask(NOW, vf(2), pkeys, &mut request.clone()) == Lookup::Answered
}

/// Returns `true` if the cache keeps the answer.
fn is_kept_of(request: &Mad, answer: &Mad) -> bool {
    let mut cache = cache(PathCacheConfig::default());
    let wire = ask_under(&mut cache, 1, request, 9);
    cache.answered(NOW, wire, answer);
    is_kept(&mut cache, FULL, request)
}

fn path() -> Mad {
    answer(0, Verdict::Path(PKey::DEFAULT_FULL))
}

/// Builds a request and its answer from two records.
fn exchange(components: ComponentMask, asked: &PathRecord, told: &PathRecord) -> [Mad; 2] {
    let mut mads = [request(0, 1), path()];
    for (mad, record) in mads.iter_mut().zip([asked, told]) {
        let sa: &mut SaMad = mad.view_mut();
        sa.component_mask = PathRecord::SGID | PathRecord::DGID | components;
        sa.set_record(record);
    }
    mads
}

#[test]
fn a_path_that_is_not_what_was_asked_for_is_not_kept() {
    let asked: PathRecord = path().view::<SaMad>().record();
    type Change = fn(&mut PathRecord);
    let components: [(ComponentMask, Change); 4] = [
        (PathRecord::SLID, |path| path.slid = Lid::new(77)),
        (PathRecord::DLID, |path| path.dlid = Lid::new(77)),
        (PathRecord::PKEY, |path| path.pkey = PKey::new(0x8077)),
        (PathRecord::SL, |path| path.set_sl(Sl::from_low_bits(7))),
    ];
    for (component, change) in components {
        let mut told = asked;
        change(&mut told);
        for (record, is_as_asked) in [(asked, true), (told, false)] {
            let [request, answer] = exchange(component, &asked, &record);
            assert_eq!(is_kept_of(&request, &answer), is_as_asked, "{component:?}");
        }
    }
}

#[test]
fn only_a_plain_answer_of_a_path_is_kept() {
    assert!(is_kept_of(&request(0, 1), &path()));
    let mut table = path();
    table.header.method = Method::GET_TABLE_RESP;
    let mut of_nodes = path();
    of_nodes.header.attribute_id = AttributeId::NODE_RECORD;
    let mut segment = path();
    segment.view_mut::<SaMad>().rmpp = RmppHeader::data(1, 220, RmppFlags::default());
    for answer in [table, of_nodes, segment] {
        assert!(!is_kept_of(&request(0, 1), &answer));
    }
    for status in [MadStatus::BUSY, MadStatus::REDIRECT] {
        assert!(!is_kept_of(
            &request(0, 1),
            &answer(0, Verdict::Error(status))
        ));
    }
}

#[test]
fn only_a_plain_request_for_a_path_is_answered() {
    let mut table = request(0, 1);
    table.header.method = Method::GET_TABLE;
    let mut of_nodes = request(0, 1);
    of_nodes.header.attribute_id = AttributeId::NODE_RECORD;
    // Equal bytes do not cancel each other.
    let mut with_more = request(0, 1);
    with_more.view_mut::<SaMad>().data[100..102].fill(1);
    let unusual: [fn(&mut SaMad); 4] = [
        |sa| sa.header.status = MadStatus::BUSY,
        |sa| sa.header.attribute_modifier = AttributeModifier::new(1),
        |sa| sa.rmpp = RmppHeader::data(1, 220, RmppFlags::default()),
        |sa| sa.sm_key = SmKey::new(1),
    ];
    let unusual = unusual.map(|change| {
        let mut request = request(0, 1);
        change(request.view_mut());
        request
    });
    for request in [table, of_nodes, with_more].into_iter().chain(unusual) {
        assert!(!is_kept_of(&request, &path()));
    }
}

#[test]
fn a_path_is_for_members_of_its_partition_who_are_no_less_than_it_says() {
    let full_and_limited = [PKey::DEFAULT_FULL, PKey::DEFAULT_LIMITED];
    for path in full_and_limited {
        let mut cache = cache(PathCacheConfig::default());
        let wire = ask_under(&mut cache, 1, &request(0, 1), 9);
        cache.answered(NOW, wire, &answer(0, Verdict::Path(path)));
        assert!(is_kept(&mut cache, FULL, &request(0, 2)));
        let is_limited = path == PKey::DEFAULT_LIMITED;
        assert_eq!(is_kept(&mut cache, LIMITED, &request(0, 2)), is_limited);
    }
}

#[test]
fn a_vf_has_its_share_though_there_is_room() {
    let mut cache = cache(PathCacheConfig {
        per_vf: 2,
        ..PathCacheConfig::default()
    });
    assert!(cache.is_empty());
    for n in 0..4 {
        ask_under(&mut cache, 1, &request(n, 1), n.into());
    }
    ask_under(&mut cache, 2, &request(4, 1), 4);
    assert_eq!(cache.len(), 3);
    assert!(!cache.is_empty());
}

#[test]
fn all_vfs_together_have_no_more_than_there_is_room_for() {
    let mut cache = cache(PathCacheConfig {
        entries: 3,
        ..PathCacheConfig::default()
    });
    for n in 0..5 {
        ask_under(&mut cache, u16::from(n) + 1, &request(n, 1), n.into());
    }
    assert_eq!(cache.len(), 3);
}
