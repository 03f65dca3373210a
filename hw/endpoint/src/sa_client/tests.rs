//! The client against a scripted SA.

use alloc::vec::Vec;

use ib_wire::mad::{AttributeId, MadHeader};
use ib_wire::notice::{GidDetails, InformInfo, Notice, NoticeType, ProducerType, TrapNumber};
use ib_wire::sa::{ComponentMask, LinkRecord, McMemberRecord, PathRecord, SaMad, SaRecord};
use ib_wire::{Gid, Lid, PKey, Tid};
use zerocopy::IntoBytes;

use super::*;
use crate::MadAgentConfig;

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn sa(lid: u16) -> MadAddress {
    MadAddress::gsi(Lid::new(lid))
}

/// A port's agent and client, with the SA played by the test.
struct Port {
    mads: MadAgent,
    client: SaClient,
}

impl Port {
    fn new() -> Self {
        let mut mads = MadAgent::new(MadAgentConfig::gsi(7));
        let client = SaClient::new(&mut mads).unwrap();
        Self { mads, client }
    }

    fn with_sa() -> Self {
        let mut port = Self::new();
        port.move_sa(0, Some(sa(1)));
        port
    }

    fn move_sa(&mut self, now: u64, to: Option<MadAddress>) {
        self.client.sm_changed(at(now), &mut self.mads, to);
    }

    fn query(&mut self, now: u64) -> QueryId {
        let request = SaRequest::path_by_gids(Gid([1; 16]), Gid([2; 16]), Some(PKey::DEFAULT_FULL));
        self.client.query(at(now), &mut self.mads, request)
    }

    fn wish(&mut self, now: u64, wish: Wish) -> StandingId {
        self.client.wish(at(now), &mut self.mads, wish)
    }

    fn sent(&mut self, now: u64) -> Option<(MadAddress, SaMad)> {
        let transmit = self.mads.poll_transmit(at(now))?;
        Some((transmit.to, *transmit.mad.view::<SaMad>()))
    }

    fn receive(&mut self, now: u64, from: MadAddress, mad: &SaMad) {
        self.mads.handle_mad(at(now), &from, &Mad::from_layout(mad));
        self.pump(now);
    }

    fn pump(&mut self, now: u64) {
        while let Some(event) = self.mads.poll_event() {
            let left = self.client.handle_event(at(now), &mut self.mads, event);
            assert_eq!(left, None);
        }
    }

    /// Takes the next request and answers it with a status.
    fn answer(&mut self, now: u64, status: MadStatus) -> SaMad {
        let (to, request) = self.sent(now).expect("a request");
        let mut answer = request;
        answer.header.method = request.header.method.response();
        answer.header.status = status;
        self.receive(now, to, &answer);
        request
    }

    fn advance(&mut self, now: u64) {
        self.mads.handle_timeout(at(now));
        self.pump(now);
        self.client.handle_timeout(at(now), &mut self.mads);
    }

    fn event(&mut self) -> Option<SaEvent> {
        self.client.poll_event()
    }
}

fn membership() -> Wish {
    let mut record = McMemberRecord {
        mgid: Gid([0xff; 16]),
        port_gid: Gid([1; 16]),
        ..McMemberRecord::default()
    };
    record.set_join_state(ib_wire::sa::JoinState::FULL_MEMBER);
    Wish::Membership {
        record,
        mask: ComponentMask::NONE,
    }
}

fn subscription(trap: TrapNumber) -> Wish {
    Wish::Subscription(InformInfo {
        lid_range_begin: Lid::PERMISSIVE,
        is_generic: 1,
        notice_type: InformInfo::ALL_TYPES.into(),
        trap_number: trap,
        producer: [0xff; 3],
        ..InformInfo::default()
    })
}

fn report(tid: u64, trap: TrapNumber) -> SaMad {
    let notice = NoticeReport {
        notice: Notice::generic(
            NoticeType::SUBNET_MANAGEMENT,
            ProducerType::CLASS_MANAGER,
            trap,
            Lid::new(1),
            &GidDetails::default(),
        ),
        issuer_gid: Gid::NONE,
    };
    let mut mad = SaMad {
        header: MadHeader::new(MgmtClass::SUBN_ADM, Method::REPORT, AttributeId::NOTICE),
        ..SaMad::default()
    };
    mad.header.tid = Tid::new(tid);
    mad.data[..80].copy_from_slice(notice.as_bytes());
    mad
}

#[test]
fn a_path_query_is_answered_with_its_record() {
    let mut port = Port::with_sa();
    let query = port.query(0);
    let request = port.answer(1, MadStatus::OK);
    assert_eq!(request.header.attribute_id, PathRecord::ATTRIBUTE_ID);
    let Some(SaEvent::Answered {
        query: of,
        result: Ok(answer),
    }) = port.event()
    else {
        panic!("no answer");
    };
    assert_eq!(of, query);
    assert_eq!(answer.record::<PathRecord>().unwrap().dgid, Gid([2; 16]));
    assert_eq!(port.client.sizes(), SaSizes::default());
}

#[test]
fn an_error_status_and_silence_end_a_query_with_the_reason() {
    let mut port = Port::with_sa();
    let query = port.query(0);
    port.answer(1, MadStatus::SA_NO_RECORDS);
    assert_eq!(
        port.event(),
        Some(SaEvent::Answered {
            query,
            result: Err(SaError::Status(MadStatus::SA_NO_RECORDS)),
        })
    );
    let policy = RetryPolicy::new(Duration::from_millis(100), 1);
    let request = SaRequest::class_port_info();
    let query = port
        .client
        .query_with(at(0), &mut port.mads, request, policy);
    for now in [0, 100, 200] {
        port.advance(now);
        port.sent(now);
    }
    let timed_out = SaError::Transfer(TransferError::TimedOut { transmissions: 2 });
    assert_eq!(
        port.event(),
        Some(SaEvent::Answered {
            query,
            result: Err(timed_out),
        })
    );
}

#[test]
fn a_query_without_an_sa_fails_at_once() {
    let mut port = Port::new();
    let query = port.query(0);
    assert_eq!(
        port.event(),
        Some(SaEvent::Answered {
            query,
            result: Err(SaError::NoSa),
        })
    );
}

#[test]
fn a_query_under_way_follows_the_sa_and_the_old_answer_counts_for_nothing() {
    let mut port = Port::with_sa();
    let query = port.query(0);
    let (_, old) = port.sent(0).unwrap();
    port.move_sa(10, Some(sa(2)));
    let mut late = old;
    late.header.method = Method::GET_RESP;
    port.receive(11, sa(1), &late);
    assert_eq!(port.event(), None);
    let (to, new) = port.sent(12).unwrap();
    assert_eq!(to, sa(2));
    assert_ne!(new.header.tid, old.header.tid);
    let mut answer = new;
    answer.header.method = Method::GET_RESP;
    port.receive(13, sa(2), &answer);
    assert!(matches!(
        port.event(),
        Some(SaEvent::Answered { query: of, result: Ok(_) }) if of == query
    ));
    assert!(port.mads.sizes().is_empty());
}

#[test]
fn a_query_under_way_fails_when_the_sa_is_gone() {
    let mut port = Port::with_sa();
    port.query(0);
    port.move_sa(10, None);
    assert!(matches!(
        port.event(),
        Some(SaEvent::Answered {
            result: Err(SaError::NoSa),
            ..
        })
    ));
    assert!(port.mads.sizes().is_empty());
}

#[test]
fn a_wish_waits_for_an_sa_and_is_asked_for_again_when_it_forgot() {
    let mut port = Port::new();
    let id = port.wish(0, membership());
    assert!(port.sent(0).is_none());
    port.move_sa(1, Some(sa(1)));
    port.answer(1, MadStatus::OK);
    assert!(matches!(port.event(), Some(SaEvent::Granted { standing, .. }) if standing == id));
    assert!(port.client.is_granted(id));

    port.client.reregister(at(2), &mut port.mads);
    assert!(!port.client.is_granted(id));
    let again = port.answer(2, MadStatus::OK);
    assert_eq!(again.header.method, Method::SET);
    assert!(matches!(port.event(), Some(SaEvent::Granted { .. })));

    port.move_sa(3, Some(sa(2)));
    port.answer(3, MadStatus::OK);
    assert!(matches!(port.event(), Some(SaEvent::Granted { .. })));
    assert!(port.sent(3).is_none());
}

#[test]
fn a_wish_refused_at_first_is_given_up_and_later_tried_again() {
    let mut port = Port::with_sa();
    port.wish(0, membership());
    port.answer(0, MadStatus::SA_REQ_INVALID);
    assert!(matches!(
        port.event(),
        Some(SaEvent::Refused { retry_at: None, .. })
    ));
    assert_eq!(port.client.sizes(), SaSizes::default());

    let id = port.wish(0, membership());
    port.answer(0, MadStatus::OK);
    port.event();
    port.client.reregister(at(100), &mut port.mads);
    port.answer(100, MadStatus::SA_NO_RESOURCES);
    assert_eq!(
        port.event(),
        Some(SaEvent::Refused {
            standing: id,
            error: SaError::Status(MadStatus::SA_NO_RESOURCES),
            retry_at: Some(at(1100)),
        })
    );
    assert_eq!(port.client.poll_timeout(), Some(at(1100)));
    port.advance(1100);
    port.answer(1100, MadStatus::OK);
    assert!(matches!(port.event(), Some(SaEvent::Granted { .. })));
}

#[test]
fn a_withdrawn_wish_is_taken_back_at_the_sa() {
    let mut port = Port::with_sa();
    let id = port.wish(0, membership());
    port.answer(0, MadStatus::OK);
    port.event();
    assert!(port.client.withdraw(at(1), &mut port.mads, id));
    assert!(!port.client.withdraw(at(1), &mut port.mads, id));
    let request = port.answer(1, MadStatus::OK);
    assert_eq!(request.header.method, Method::DELETE);
    assert_eq!(
        port.event(),
        Some(SaEvent::Withdrawn {
            standing: id,
            result: Ok(())
        })
    );
    assert_eq!(port.client.sizes(), SaSizes::default());
    port.client.reregister(at(2), &mut port.mads);
    assert!(port.sent(2).is_none());
}

#[test]
fn a_late_answer_about_a_withdrawn_wish_counts_for_nothing() {
    for status in [MadStatus::OK, MadStatus::SA_REQ_INVALID] {
        for came_before in [true, false] {
            let mut port = Port::with_sa();
            let id = port.wish(0, membership());
            let (to, request) = port.sent(0).unwrap();
            let mut late = request;
            late.header.method = request.header.method.response();
            late.header.status = status;
            let late = Mad::from_layout(&late);
            if came_before {
                // The client has not taken it yet.
                port.mads.handle_mad(at(1), &to, &late);
            }
            assert!(port.client.withdraw(at(1), &mut port.mads, id));
            if !came_before {
                port.mads.handle_mad(at(1), &to, &late);
            }
            port.pump(1);
            assert_eq!(port.event(), None);
            let withdrawal = port.answer(2, MadStatus::OK);
            assert_eq!(withdrawal.header.method, Method::DELETE);
            let result = Ok(());
            let standing = id;
            let withdrawn = SaEvent::Withdrawn { standing, result };
            assert_eq!(port.event(), Some(withdrawn));
            assert_eq!(port.event(), None);
            assert_eq!(port.client.sizes(), SaSizes::default());
            assert!(port.mads.sizes().is_empty());
        }
    }
}

#[test]
fn a_report_is_answered_and_told_once() {
    let mut port = Port::with_sa();
    port.wish(0, subscription(TrapNumber::GID_IN_SERVICE));
    let request = port.answer(0, MadStatus::OK);
    assert_eq!(request.record::<InformInfo>().subscribe, 1);
    port.event();
    for now in [1, 2] {
        port.receive(now, sa(1), &report(77, TrapNumber::GID_IN_SERVICE));
        let (to, response) = port.sent(now).unwrap();
        assert_eq!(to, sa(1));
        assert_eq!(response.header.method, Method::REPORT_RESP);
        assert_eq!(response.header.tid, Tid::new(77));
    }
    assert!(matches!(port.event(), Some(SaEvent::Notice(_))));
    assert_eq!(port.event(), None);
    assert_eq!(port.client.dropped_reports(), 1);
}

#[test]
fn reports_of_strangers_and_of_no_subscription_are_dropped() {
    let mut port = Port::with_sa();
    port.wish(0, subscription(TrapNumber::GID_IN_SERVICE));
    port.answer(0, MadStatus::OK);
    port.event();
    port.receive(1, sa(9), &report(1, TrapNumber::GID_IN_SERVICE));
    assert!(port.sent(1).is_none(), "a stranger gets no answer");
    port.receive(1, sa(1), &report(2, TrapNumber::GID_OUT_OF_SERVICE));
    assert!(port.sent(1).is_some());
    assert_eq!(port.event(), None);
    assert_eq!(port.client.dropped_reports(), 2);
}

#[test]
fn a_table_comes_back_as_records() {
    let mut port = Port::with_sa();
    let request = SaRequest::get_table(&LinkRecord::default(), ComponentMask::NONE);
    port.client.query(at(0), &mut port.mads, request);
    let (_, asked) = port.sent(0).unwrap();
    let mut head = asked;
    head.header.method = Method::GET_TABLE_RESP;
    head.attribute_offset = LinkRecord::ATTRIBUTE_OFFSET.into();
    let data: Vec<u8> = (0..20_u16)
        .flat_map(|lid| {
            let record = LinkRecord {
                from_lid: Lid::new(lid),
                ..LinkRecord::default()
            };
            record.as_bytes().to_vec()
        })
        .collect();
    let table = Message::rmpp(Mad::from_layout(&head), data).unwrap();
    port.mads.handle_mad(at(1), &sa(1), &table.segment(1, 31));
    port.pump(1);
    let Some(SaEvent::Answered {
        result: Ok(answer), ..
    }) = port.event()
    else {
        panic!("no answer");
    };
    let lids: Vec<u16> = answer
        .records::<LinkRecord>()
        .map(|link| link.from_lid.get())
        .collect();
    assert_eq!(lids, (0..20).collect::<Vec<u16>>());
}
