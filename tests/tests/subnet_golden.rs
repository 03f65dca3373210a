//! The requests that OpenSM was recorded to answer, put to our SA on the recorded subnet.
//!
//! Our manager first brings the recorded subnet up: a stand-in for the simulator answers its SMPs
//! with what the simulator answered OpenSM. Then every recorded SA request is put to our SA, and
//! its answer is compared with OpenSM's, byte for byte as far as the recorded length goes.
//!
//! What is not compared, and why:
//! * the last 32 bytes of error answers, and the last 8 of service records: the simulator's client
//!   library cuts what it hands to OpenSM at 224 bytes, so OpenSM echoed its own memory there;
//! * tables beyond the first records: that library also cuts every table at 200 bytes of data.
//!   What is left must be the beginning of our table;
//! * PortInfo records beyond the LIDs, states and capabilities: the simulator does not store all
//!   that a manager sets, and the two managers set different link widths and speeds;
//! * SMInfo's activity counter, which counts packets sent.

use std::collections::BTreeMap;

use ib_endpoint::{MadAddress, Message, smi};
use ib_vtime::Instant;
use ib_wire::mad::{AttributeId, Mad, MadStatus, Method, MgmtClass};
use ib_wire::notice::{InformInfo, ProducerType, TrapNumber};
use ib_wire::sa::{SaMad, SaRecord, SmInfoRecord};
use ib_wire::smp::{DirectedRouteSmp, NodeInfo, PortInfo, PortState, SmpAttribute, SwitchInfo};
use ib_wire::{Guid, Lid, PortNum};
use subnet_lite::SubnetConfig;
use subnet_lite::sa::{Sa, SubnetView};
use subnet_lite::sm::Sm;
use vhca_tests::traces::{self, Direction, Line, Trace};
use zerocopy::{FromBytes, IntoBytes};

const NOW: Instant = Instant::ZERO;

/// What an SMP reads or writes: path, attribute, modifier without the extended-speeds bit.
type Place = (Vec<u8>, u16, u32);

fn trace(name: &str) -> Trace {
    let all = traces::all().expect("readable traces");
    all.into_iter()
        .find(|trace| trace.name == name)
        .expect(name)
}

fn mads(trace: &Trace) -> impl Iterator<Item = (Direction, &BTreeMap<String, String>, Mad)> {
    trace.lines.iter().filter_map(|line| match line {
        Line::Mad {
            direction,
            envelope,
            bytes,
            ..
        } => Some((*direction, envelope, Mad::from_bytes(bytes)?)),
        _ => None,
    })
}

fn place(mad: &Mad) -> Place {
    let smp = mad.view::<DirectedRouteSmp>();
    let modifier = mad.header.attribute_modifier.get() & 0x7fff_ffff;
    (
        smp.path().expect("legal hop count").to_vec(),
        mad.header.attribute_id.get(),
        modifier,
    )
}

/// The recorded subnet: attributes by place, as first read.
struct Recorded(BTreeMap<Place, [u8; 64]>);

impl Recorded {
    fn new(sweep: &Trace) -> Self {
        let mut attributes = BTreeMap::new();
        let mut sets = Vec::new();
        for (direction, _, mad) in mads(sweep) {
            if mad.header.mgmt_class != MgmtClass::SUBN_DIRECTED_ROUTE {
                continue;
            }
            let id = (place(&mad), mad.header.tid);
            match (direction, mad.header.method) {
                (Direction::ToSimulator, Method::SET) => sets.push(id),
                (Direction::ToClient, Method::GET_RESP) if !sets.contains(&id) => {
                    attributes
                        .entry(id.0)
                        .or_insert_with(|| mad.view::<DirectedRouteSmp>().data);
                }
                _ => {}
            }
        }
        Self(attributes)
    }

    fn answer(&mut self, request: &Mad) -> Mad {
        let mut answer = smi::answer(request);
        let at = place(request);
        let smp = answer.view_mut::<DirectedRouteSmp>();
        let held = self.0.get(&at).copied();
        if request.header.method == Method::SET {
            self.set(at, held, smp);
        } else {
            smp.data = held.unwrap_or_else(|| panic!("never recorded: {request:?}"));
        }
        answer
    }

    fn set(&mut self, at: Place, held: Option<[u8; 64]>, smp: &mut DirectedRouteSmp) {
        if smp.header.attribute_id == PortInfo::ID {
            let mut before = *smp;
            before.data = held.expect("a port that was read");
            let before = *before.attribute::<PortInfo>();
            let info = smp.attribute_mut::<PortInfo>();
            let state = match info.port_state() {
                PortState::NO_CHANGE => before.port_state(),
                PortState::DOWN => PortState::INIT,
                state => state,
            };
            info.set_port_state(state);
            info.set_phys_state(before.phys_state());
            info.set_client_reregister(false);
        }
        if smp.header.attribute_id == SwitchInfo::ID {
            smp.attribute_mut::<SwitchInfo>()
                .set_port_state_change(false);
        }
        self.0.insert(at, smp.data);
    }
}

/// A manager with the recorded subnet under it, and an SA.
struct Subnet {
    sm: Sm,
    sa: Sa,
}

impl Subnet {
    fn new(sweep: &str) -> Self {
        let mut recorded = Recorded::new(&trace(sweep));
        let own = recorded.0[&(Vec::new(), NodeInfo::ID.get(), 0)];
        let guid = NodeInfo::read_from_bytes(&own).expect("64 bytes").port_guid;
        let config = SubnetConfig::default();
        let sa = Sa::new(config.clone());
        let mut sm = Sm::new(config, PortNum(1), guid, 1);
        while let Some(sent) = sm.poll_transmit(NOW) {
            let answer = recorded.answer(&sent.mad);
            sm.handle_smp(NOW, &MadAddress::directed(), &answer);
        }
        assert!(sm.is_serving());
        Self { sm, sa }
    }

    /// The six nodes under the simulator.
    fn simulated() -> Self {
        Self::new("sweep.txt")
    }

    fn ask(&mut self, from: Lid, request: &Mad) -> Option<Message> {
        let view = SubnetView {
            topology: self.sm.topology(),
            manager: self.sm.sm_info(),
            other_managers: &[],
        };
        let from = MadAddress::gsi(from);
        let mut answer = self
            .sa
            .handle(NOW, &view, &from, &Message::single(*request));
        while self.sa.has_unfinished() {
            answer = self.sa.make_piece(NOW, &view).map(|(_, answer)| answer);
        }
        answer
    }

    /// Puts the recorded requests to the SA. Gives the number of answers compared.
    fn replay(&mut self, name: &str) -> usize {
        let trace = trace(name);
        let recorded: Vec<_> = mads(&trace).collect();
        let mut compared = 0;
        for (index, (direction, envelope, request)) in recorded.iter().enumerate() {
            let header = &request.header;
            let to_sa = *direction == Direction::ToClient
                && envelope["dlid"] == "1"
                && header.mgmt_class == MgmtClass::SUBN_ADM
                && !header.method.is_response();
            if !to_sa {
                continue;
            }
            let from = Lid::new(envelope["slid"].parse().expect("a LID"));
            let answer = self.ask(from, request);
            let expected = recorded[index..].iter().find(|(direction, _, mad)| {
                *direction == Direction::ToSimulator
                    && mad.header.tid == header.tid
                    && mad.header.method == header.method.response()
            });
            match (expected, answer) {
                (Some((_, envelope, expected)), Some(answer)) => {
                    let len: usize = envelope["len"].parse().expect("a length");
                    compare(&format!("{name}, request {index}"), expected, len, &answer);
                    compared += 1;
                }
                (None, None) => {}
                (expected, answer) => panic!("{name}, request {index}: {expected:?}, {answer:?}"),
            }
        }
        compared
    }
}

fn compare(what: &str, expected: &Mad, len: usize, answer: &Message) {
    let ours = answer.mad();
    let mut theirs: SaMad = *expected.view();
    let mut head: SaMad = *ours.view();
    let id = expected.header.attribute_id;
    // The RMPP header belongs to the agent that sends the answer.
    (theirs.rmpp, head.rmpp) = Default::default();
    if expected.header.status != MadStatus::OK {
        theirs.data[168..].fill(0);
        head.data[168..].fill(0);
        assert_eq!(theirs.as_bytes(), head.as_bytes(), "{what}");
        return;
    }
    assert_eq!(theirs.as_bytes()[..56], head.as_bytes()[..56], "{what}");
    let mut wanted = theirs.data[..len - 56].to_vec();
    let mut given = answer.data().to_vec();
    given.truncate(wanted.len());
    mask(id, &mut wanted);
    mask(id, &mut given);
    assert_eq!(wanted, given, "{what}");
}

/// Blanks what the two managers may differ in.
fn mask(id: AttributeId, data: &mut [u8]) {
    match id {
        AttributeId::PORT_INFO_RECORD => {
            for record in data.chunks_mut(72) {
                // Option, widths and speeds, negotiated link parameters, times and thresholds.
                for at in (26..36)
                    .chain(37..38)
                    .chain(38..42)
                    .chain(45..50)
                    .chain(54..58)
                    .chain(64..68)
                {
                    if let Some(byte) = record.get_mut(at) {
                        *byte = 0;
                    }
                }
            }
        }
        AttributeId::SERVICE_RECORD => {
            for record in data.chunks_mut(176) {
                if let Some(cut) = record.get_mut(168..) {
                    cut.fill(0);
                }
            }
        }
        AttributeId::SM_INFO_RECORD => {
            let stride = usize::from(SmInfoRecord::ATTRIBUTE_OFFSET) * 8;
            for record in data.chunks_mut(stride) {
                // Behind the LID: GUID and SM_Key, then the counter.
                record[20..24].fill(0);
            }
        }
        _ => {}
    }
}

#[test]
fn lids_are_those_that_opensm_assigned() {
    let subnet = Subnet::simulated();
    let lid = |guid| {
        let id = subnet
            .sm
            .topology()
            .port_by_guid(Guid::new(guid))
            .expect("known");
        subnet.sm.topology().port(id).expect("read").info.lid.get()
    };
    let guids = [
        0x0002_c903_0000_0011,
        0x0002_c900_0000_1000,
        0x0002_c900_0000_2000,
        0x0002_c903_0000_0021,
        0x0002_c903_0000_0024,
        0x0002_c903_0000_0026,
    ];
    assert_eq!(guids.map(lid), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn queries_are_answered_as_recorded() {
    assert_eq!(Subnet::simulated().replay("saquery-all.txt"), 14);
}

#[test]
fn path_queries_are_answered_as_recorded() {
    assert_eq!(Subnet::simulated().replay("saquery-path.txt"), 9);
}

#[test]
fn multicast_requests_are_answered_as_recorded() {
    let mut subnet = Subnet::simulated();
    assert_eq!(subnet.replay("mcmember-errors.txt"), 9);
    // The recorded SA kept its groups between the two conversations.
    assert_eq!(subnet.replay("mcjoin.txt"), 10);
}

#[test]
fn service_records_are_answered_as_recorded() {
    assert_eq!(Subnet::simulated().replay("servicerecord.txt"), 5);
}

#[test]
fn subscriptions_are_answered_as_recorded() {
    assert_eq!(
        Subnet::simulated().replay("informinfo-report-trap128.txt"),
        11
    );
}

#[test]
fn alias_guids_are_answered_as_recorded() {
    assert_eq!(Subnet::simulated().replay("guidinfo.txt"), 12);
    // The same from the subnet whose agents take alias GUIDs.
    assert_eq!(
        Subnet::new("minisrv-sweep.txt").replay("guidinfo-compliant-sma.txt"),
        12
    );
}

#[test]
fn unknown_senders_and_foreign_keys_get_silence() {
    let mut subnet = Subnet::simulated();
    let mut request = SaMad::new(
        Method::GET_TABLE,
        Default::default(),
        &SmInfoRecord::default(),
    );
    let mad = Mad::from_layout(&request);
    assert!(subnet.ask(Lid::new(4), &mad).is_some());
    assert!(subnet.ask(Lid::new(77), &mad).is_none());
    request.sm_key = 7.into();
    assert!(
        subnet
            .ask(Lid::new(4), &Mad::from_layout(&request))
            .is_none()
    );
}

/// The reports that OpenSM sent when a host was unplugged and plugged in again.
#[test]
fn reports_are_those_that_opensm_sent() {
    let trace = trace("informinfo-report-trap128.txt");
    let is_report = |mad: &Mad| {
        mad.header.mgmt_class == MgmtClass::SUBN_ADM && mad.header.method == Method::REPORT
    };
    let sent: Vec<Mad> = mads(&trace)
        .filter(|(direction, _, mad)| *direction == Direction::ToSimulator && is_report(mad))
        .map(|(_, _, mad)| mad)
        .collect();
    assert_eq!(sent.len(), 2);

    let mut subnet = Subnet::simulated();
    let mut info = InformInfo {
        lid_range_begin: Lid::new(0xffff),
        is_generic: 1,
        subscribe: 1,
        notice_type: 0xffff.into(),
        trap_number: TrapNumber::ALL,
        producer: ProducerType::ALL.0,
        ..InformInfo::default()
    };
    info.set_resp_time_value(19);
    let request = SaMad::new(Method::SET, Default::default(), &info);
    assert!(
        subnet
            .ask(Lid::new(5), &Mad::from_layout(&request))
            .is_some()
    );
    let host = Guid::new(0x0002_c903_0000_0026);
    let view = SubnetView {
        topology: subnet.sm.topology(),
        manager: subnet.sm.sm_info(),
        other_managers: &[],
    };
    subnet.sa.handle_port_vanished(&view, host);
    subnet.sa.handle_port_appeared(&view, host);
    for theirs in sent {
        let ours = subnet.sa.poll_report().expect("a report");
        assert_eq!(ours.to, MadAddress::gsi(Lid::new(5)));
        let (mut theirs, mut ours): (SaMad, SaMad) = (*theirs.view(), *ours.mad.view());
        // Who sends the report chooses its transaction id.
        (theirs.header.tid, ours.header.tid) = Default::default();
        // OpenSM leaves its memory in the count, and in the details around the GID.
        for range in [8..16, 32..64] {
            theirs.data[range].fill(0);
        }
        assert_eq!(theirs.as_bytes(), ours.as_bytes());
    }
    assert!(subnet.sa.poll_report().is_none());
}
