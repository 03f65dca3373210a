//! Whatever is sent, answered and waited for in whatever order.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Send { vf: u16, tid: u64, lid: u16 },
    Answer { nth: usize },
    Reset { vf: u16 },
    Wait { millis: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (1_u16..4, 0_u64..6, 1_u16..3).prop_map(|(vf, tid, lid)| Step::Send { vf, tid, lid }),
        4 => (0_usize..20).prop_map(|nth| Step::Answer { nth }),
        1 => (1_u16..4).prop_map(|vf| Step::Reset { vf }),
        2 => (0_u64..40_000).prop_map(|millis| Step::Wait { millis }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn every_answer_goes_to_who_asked_or_to_nobody(
        steps in prop::collection::vec(step(), 1..120),
        seed: u64,
    ) {
        let mut map = TidMap::new(TidConfig::default(), seed);
        let mut now = Instant::ZERO;
        // What went out, oldest first: who, guest TID, peer, and the bytes.
        let mut sent: Vec<(u16, u64, Peer, Mad)> = Vec::new();
        // Until when each request is certainly known, and from when on certainly forgotten.
        let mut known: BTreeMap<u64, (Instant, Instant)> = BTreeMap::new();
        let margin = Duration::from_millis(10);
        // Answered ones are looked at now and then.
        let answered_margin = Duration::from_millis(550);
        for step in steps {
            match step {
                Step::Send { vf: n, tid, lid } => {
                    let mad = send_at(&mut map, now, vf(n), get(tid), &at(lid));
                    let life = Duration::from_secs(60);
                    known.insert(mad.header.tid.get(), (now + life, now + life + margin));
                    sent.push((n, tid, at(lid), mad));
                }
                Step::Answer { nth } => {
                    let Some((n, tid, peer, mad)) = sent.iter().rev().nth(nth) else { continue };
                    let wire = mad.header.tid.get();
                    let result = receive(&mut map, now, answer_to(mad), peer);
                    let (until, from) = known.get(&wire).copied().unwrap_or_default();
                    match result {
                        Ok(got) => {
                            prop_assert_eq!(got, (vf(*n), *tid));
                            prop_assert!(now <= from);
                            let life = Duration::from_secs(15);
                            known.insert(wire, (now + life, now + life + answered_margin));
                        }
                        Err(reason) => {
                            prop_assert_eq!(reason, DropReason::UnknownTid);
                            prop_assert!(now >= until);
                        }
                    }
                }
                Step::Reset { vf: n } => {
                    map.reset(now, VfId::new(n).unwrap());
                    for (_, _, _, mad) in sent.iter().filter(|(m, ..)| *m == n) {
                        known.remove(&mad.header.tid.get());
                    }
                }
                Step::Wait { millis } => now += Duration::from_millis(millis),
            }
            let live = known.values().filter(|(until, _)| now < *until).count();
            let most = known.values().filter(|(_, from)| now <= *from).count();
            map.expire(now);
            prop_assert!((live..=most).contains(&map.len()));
            let shown: Vec<_> = map.transactions(now).collect();
            prop_assert_eq!(shown.len(), map.len());
            for transaction in &shown {
                let wire = transaction.wire_tid.0;
                let (n, tid, peer, _) = sent
                    .iter()
                    .rev()
                    .find(|(.., mad)| mad.header.tid == wire)
                    .expect("sent");
                prop_assert_eq!(transaction.owner, vf(*n));
                prop_assert_eq!(transaction.tid.0.get(), *tid);
                prop_assert_eq!(transaction.peer, *peer);
            }
            for n in 1..4 {
                let own = shown.iter().filter(|transaction| transaction.owner == vf(n));
                let open = own.clone().filter(|t| t.state == TransactionState::Open);
                let usage = map.usage(vf(n));
                prop_assert_eq!(usage.live as usize, own.count());
                prop_assert_eq!(usage.waiting_for_sa as usize, open.count());
            }
        }
        map.expire(now + Duration::from_secs(61));
        prop_assert!(map.is_empty());
        prop_assert_eq!(map.poll_timeout(), None);
    }
    /// A VF has as much as it may have, and is refused more only if nothing of it is answered; what
    /// makes place is what was answered, or seen, longest ago.
    #[test]
    fn the_oldest_answered_makes_place_whatever_happened_before(
        steps in prop::collection::vec((any::<bool>(), 0_u64..8, 0_u64..2_000), 1..100),
    ) {
        let config = TidConfig { per_vf: 4, ..TidConfig::default() };
        let mut map = TidMap::new(config, 7);
        let mut now = Instant::ZERO;
        let mut live: Vec<(u64, Mad, bool)> = Vec::new();
        for (asks, tid, millis) in steps {
            // Steps of the clock within which nothing that is kept for 15 seconds ends.
            now += Duration::from_millis(millis / 16);
            let known = live.iter().position(|&(other, ..)| other == tid);
            if asks {
                let mut mad = get(tid);
                let sent = map.egress(now, vf(1), &mut mad, &SA);
                if let Some(known) = known {
                    live.remove(known);
                } else if live.len() == 4 {
                    let oldest = live.iter().position(|&(.., answered)| answered);
                    let Some(oldest) = oldest else {
                        prop_assert_eq!(sent, Err(DropReason::TidQuota));
                        continue;
                    };
                    let (_, gone, _) = live.remove(oldest);
                    let late = receive(&mut map, now, answer_to(&gone), &SA);
                    prop_assert_eq!(late, Err(DropReason::UnknownTid));
                }
                prop_assert!(sent.is_ok());
                live.push((tid, mad, false));
            } else if let Some(known) = known {
                let (_, mad, _) = live.remove(known);
                prop_assert_eq!(receive(&mut map, now, answer_to(&mad), &SA), Ok((vf(1), tid)));
                live.push((tid, mad, true));
            }
            prop_assert_eq!(map.usage(vf(1)).live as usize, live.len());
        }
    }
}
