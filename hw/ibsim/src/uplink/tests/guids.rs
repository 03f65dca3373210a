//! GUIDs that the SA grants.

use ib_wire::sa::{ComponentMask, GuidInfoRecord, SaMad};

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const GRANTED: u64 = 0x0014_05aa_0000_0001;

/// The adapter asks for entries of block 0, and the SA answers with GUIDs.
fn ask(bench: &mut Bench, method: Method, tid: u64, guids: &[(usize, u64)]) {
    let mut components = GuidInfoRecord::LID.union(GuidInfoRecord::BLOCK);
    for (index, _) in guids {
        components = components.union(GuidInfoRecord::guid_component(*index));
    }
    let record = |guids: &[(usize, u64)]| GuidInfoRecord {
        lid: LID,
        guids: guid_block(guids).guids,
        ..GuidInfoRecord::default()
    };
    let mut request = SaMad::new(method, components, &record(&[]));
    request.header.tid = Tid::new(tid);
    bench.send(SM_LID, &Mad::from_layout(&request));
    let sent = bench.sim.inbox.pop_back().unwrap();
    let mut answer = SaMad::new(method.response(), ComponentMask::NONE, &record(guids));
    answer.header.tid = sent.mad.header.tid;
    bench.deliver(SM_LID, &Mad::from_layout(&answer));
    bench.poll();
}

fn guid(bench: &Bench, index: u16) -> u64 {
    let port = bench.adapter_port().unwrap();
    port.guid_at(ib_wire::GidIndex(index)).unwrap().get()
}

#[test]
fn a_fabric_that_refuses_guids_is_told_of_and_the_adapter_has_none() {
    let mut bench = Bench::up(GuidPolicy::Fabric);
    ask(&mut bench, Method::SET, 1, &[(1, GRANTED)]);
    bench.run_for(SECOND / 2);
    assert!(bench.refused.is_empty(), "the subnet manager may yet come");
    bench.run_for(SECOND);
    assert_eq!(bench.refused, [true]);
    assert_eq!(guid(&bench, 1), 0);
    // What is not granted any more is not refused.
    ask(&mut bench, Method::DELETE, 2, &[(1, 0)]);
    assert_eq!(bench.refused, [true, false]);
}

#[test]
fn a_guid_that_the_fabric_stores_reaches_the_adapter() {
    let mut bench = Bench::up(GuidPolicy::Fabric);
    ask(&mut bench, Method::SET, 1, &[(1, GRANTED)]);
    bench.sim.set(0, guid_block(&[(1, GRANTED)]));
    bench.run_for(SECOND * 2);
    assert!(bench.refused.is_empty());
    assert_eq!(guid(&bench, 1), GRANTED);
    assert_eq!(guid(&bench, 0), NODE_GUID + 1);
}

#[test]
fn with_local_guids_what_the_sa_grants_reaches_the_adapter_at_once() {
    let mut bench = Bench::up(GuidPolicy::Local);
    ask(
        &mut bench,
        Method::SET,
        1,
        &[(1, GRANTED), (3, GRANTED + 2)],
    );
    assert_eq!((guid(&bench, 1), guid(&bench, 3)), (GRANTED, GRANTED + 2));
    // Entries that the answer is not about stay.
    ask(&mut bench, Method::SET, 2, &[(2, GRANTED + 1)]);
    assert_eq!((guid(&bench, 1), guid(&bench, 2)), (GRANTED, GRANTED + 1));
    ask(&mut bench, Method::DELETE, 3, &[(1, 0)]);
    assert_eq!((guid(&bench, 1), guid(&bench, 2)), (0, GRANTED + 1));
    // After a cable that was out the table is written anew.
    bench.is_there = false;
    bench.run_for(SECOND);
    bench.is_there = true;
    assert!(bench.run_until(SECOND * 5, Bench::is_up));
    assert_eq!(guid(&bench, 2), GRANTED + 1);
    assert!(bench.refused.is_empty());
}

#[test]
fn an_answer_that_nobody_asked_for_or_that_refuses_grants_nothing() {
    let mut bench = Bench::up(GuidPolicy::Local);
    let record = GuidInfoRecord {
        lid: LID,
        guids: guid_block(&[(1, GRANTED)]).guids,
        ..GuidInfoRecord::default()
    };
    let mut answer = SaMad::new(Method::GET_RESP, ComponentMask::NONE, &record);
    answer.header.tid = Tid::new(99);
    bench.deliver(SM_LID, &Mad::from_layout(&answer));
    bench.run_for(SECOND);
    assert_eq!(guid(&bench, 1), 0);
}
