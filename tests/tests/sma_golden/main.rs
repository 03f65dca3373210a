//! The SMPs of OpenSM and its tools that were recorded on a simulator, put to our agents on the same
//! fabric.
//!
//! The answers are compared field by field. What differs stands in [`EXPLAINED`] with the reason; a
//! difference that is not there, or an explanation that nothing needs any more, is a failure. Then what
//! OpenSM writes is compared with what our agents say to have stored, which is stricter than what the
//! simulator does.
//!
//! Of a directed route only the part that was gone is compared: behind it the recorded packets hold what
//! was in the programs' memory. The upper half of transaction ids is the simulator's own.
#![expect(clippy::unwrap_used, reason = "a test ends at what is missing")]

mod bench;

use std::collections::BTreeMap;

use bench::Bench;
use ib_wire::Lid;
use ib_wire::mad::{Mad, MadStatus, Method, MgmtClass};
use ib_wire::smp::{
    DirectedRouteSmp, LidRoutedSmp, LinkSpeed, LinkSpeedExt, LinkWidth, PortInfo, SmInfo,
    SmpAttribute, SwitchInfo,
};
use vhca_tests::fields::Layout;
use vhca_tests::mads;
use vhca_tests::traces::{self, Direction, Line};
use zerocopy::IntoBytes;

/// A recorded request, who sent it where, and its answer.
struct Exchange {
    client: String,
    dlid: Lid,
    request: Mad,
    answer: Mad,
}

/// What tells an exchange from others that go on: the lower half of the transaction id, the attribute
/// and the modifier.
type Key = (u64, u16, u32);

fn key(mad: &Mad) -> Key {
    let header = &mad.header;
    (
        header.tid.get() & 0xffff_ffff,
        header.attribute_id.get(),
        header.attribute_modifier.get(),
    )
}

/// The requests of a trace that its simulator answered, in order. SMInfo is the managers' affair.
fn exchanges(name: &str) -> Vec<Exchange> {
    let all = traces::all().unwrap();
    let trace = all.into_iter().find(|trace| trace.name == name).unwrap();
    let mut clients: BTreeMap<String, String> = BTreeMap::new();
    let mut open: BTreeMap<Key, (String, Lid, Mad)> = BTreeMap::new();
    let mut found = Vec::new();
    for line in &trace.lines {
        match line {
            Line::Control {
                direction: Direction::ToClient,
                decoded,
                ..
            } => {
                let values = &decoded.values;
                if values.get("type").is_some_and(|kind| kind == "CONNECT") {
                    clients.insert(values["id"].clone(), values["nodeid"].clone());
                }
            }
            Line::Mad {
                direction,
                envelope,
                bytes,
                ..
            } => {
                let mad = Mad::from_bytes(bytes).unwrap();
                let is_other =
                    !mad.header.mgmt_class.is_smp() || mad.header.attribute_id == SmInfo::ID;
                match (direction, mad.header.method.is_response()) {
                    _ if is_other => {}
                    (Direction::ToSimulator, false) => {
                        let dlid = Lid::new(envelope["dlid"].parse().unwrap());
                        open.insert(key(&mad), (envelope["cl"].clone(), dlid, mad));
                    }
                    (Direction::ToClient, true) => {
                        if let Some((client, dlid, request)) = open.remove(&key(&mad)) {
                            found.push(Exchange {
                                client: clients[&client].clone(),
                                dlid,
                                request,
                                answer: mad,
                            });
                        }
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
    found
}

/// The fields in which two values of a layout differ.
fn differences(layout: &Layout, a: &[u8], b: &[u8]) -> Vec<&'static str> {
    let masks = layout.masks().into_iter();
    masks
        .filter(|(_, mask)| (a.iter().zip(b).zip(mask)).any(|((a, b), mask)| (a ^ b) & mask != 0))
        .map(|(field, _)| field)
        .collect()
}

/// Fields in which our answers may differ from the simulator's, and why.
const EXPLAINED: &[(&str, &str)] = &[
    ("NodeInfo.device_id", "our device"),
    ("NodeInfo.vendor_id", "our device"),
    ("NodeInfo.revision", "our device"),
    (
        "NodeInfo.system_image_guid",
        "our adapters have one of their own",
    ),
    (
        "NodeInfo.partition_cap",
        "port 0 has as many P_Keys as the others",
    ),
    (
        "NodeInfo.local_port",
        "the simulator says 0 to a LID-routed Get",
    ),
    ("PortInfo.capability_mask", "our device"),
    ("PortInfo.capability_mask2", "our device"),
    (
        "PortInfo.gid_prefix",
        "ours has the default prefix before an SM sets one",
    ),
    ("PortInfo.mkey_lease_period", "the simulator keeps its own"),
    ("PortInfo.subnet_timeout", "the simulator keeps its own"),
    (
        "PortInfo.partition_enforcement_inbound",
        "the simulator does not store it",
    ),
    (
        "PortInfo.partition_enforcement_outbound",
        "the simulator does not store it",
    ),
    ("PortInfo.vl_high_limit", "the simulator does not store it"),
    (
        "PortInfo.vl_stall_count",
        "another value before an SM sets it",
    ),
    ("PortInfo.hoq_life", "another value before an SM sets it"),
    (
        "PortInfo.local_phy_errors",
        "another value before an SM sets it",
    ),
    (
        "PortInfo.overrun_errors",
        "another value before an SM sets it",
    ),
    (
        "PortInfo.neighbor_mtu",
        "another value before an SM sets it",
    ),
    (
        "PortInfo.link_round_trip_latency",
        "ours says that it is not measured",
    ),
    ("PortInfo.resp_time_value", "our device"),
    ("PortInfo.mtu_cap", "our ports take 4096 bytes"),
    ("PortInfo.link_width_supported", "our links"),
    ("PortInfo.link_width_enabled", "our links"),
    ("PortInfo.link_speed_enabled", "our links"),
    ("PortInfo.link_speed_active", "our links"),
    ("PortInfo.link_speed_ext_supported", "our links"),
    ("PortInfo.link_speed_ext_enabled", "our links"),
    ("PortInfo.link_speed_ext_active", "our links"),
    ("PortInfo.vl_arbitration_high_cap", "our device"),
    ("PortInfo.vl_arbitration_low_cap", "our device"),
    ("SwitchInfo.linear_fdb_cap", "our device"),
    ("SwitchInfo.multicast_fdb_cap", "our device"),
    (
        "SwitchInfo.default_port",
        "ours drops what it has no entry for",
    ),
    (
        "SwitchInfo.default_multicast_primary_port",
        "ours drops what it has no entry for",
    ),
    (
        "SwitchInfo.default_multicast_not_primary_port",
        "ours drops what it has no entry for",
    ),
    (
        "SwitchInfo.life_time_value",
        "another value before an SM sets it",
    ),
    (
        "SwitchInfo.inbound_enforcement_cap",
        "our switches enforce partitions",
    ),
    (
        "SwitchInfo.outbound_enforcement_cap",
        "our switches enforce partitions",
    ),
    (
        "SLtoVL.pairs",
        "another table before an SM sets one: modulo the lanes in use",
    ),
    ("VLArb.entries", "another table before an SM sets one"),
];

/// Traces that begin on a fabric that no manager has seen. The others go on after a sweep.
const FROM_THE_START: [&str; 2] = ["sweep.txt", "sweep-qos-pkeys.txt"];

/// Puts the requests of a trace to the agents and hands on both answers.
fn replay(bench: &mut Bench, name: &str, mut check: impl FnMut(&Exchange, &Mad)) {
    let exchanges = exchanges(name);
    assert!(exchanges.len() >= 28, "{name}: {}", exchanges.len());
    for exchange in &exchanges {
        let request = &exchange.request;
        let answer = bench
            .ask(&exchange.client, exchange.dlid, request)
            .unwrap_or_else(|| panic!("{name}: no answer to {:?}", request.header));
        check(exchange, &answer);
    }
}

/// Compares what stands around the attribute.
fn assert_same_header(recorded: &Mad, ours: &Mad) {
    let (a, b) = (&recorded.header, &ours.header);
    assert_eq!(key(ours), key(recorded));
    assert_eq!(
        (b.mgmt_class, b.class_version, b.method, b.status),
        (a.mgmt_class, a.class_version, a.method, a.status),
        "{a:?}"
    );
    if a.mgmt_class != MgmtClass::SUBN_DIRECTED_ROUTE {
        return;
    }
    let (a, b): (&DirectedRouteSmp, &DirectedRouteSmp) = (recorded.view(), ours.view());
    let gone = 1..=usize::from(a.hop_count());
    assert_eq!(
        (b.hop_pointer(), b.hop_count()),
        (a.hop_pointer(), a.hop_count())
    );
    assert_eq!(
        (b.dr_slid, b.dr_dlid, b.is_returning()),
        (a.dr_slid, a.dr_dlid, true)
    );
    assert_eq!(b.initial_path[gone.clone()], a.initial_path[gone.clone()]);
    assert_eq!(b.return_path[gone.clone()], a.return_path[gone]);
}

#[test]
fn recorded_requests_get_the_recorded_answers_but_for_the_fields_that_are_explained() {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for name in [
        "sweep.txt",
        "sweep-qos-pkeys.txt",
        "sm-restart-sweep.txt",
        "ibnetdiscover.txt",
        "smpquery.txt",
    ] {
        let mut bench = Bench::of(name);
        if !FROM_THE_START.contains(&name) {
            replay(&mut bench, "sweep.txt", |_, _| {});
        }
        replay(&mut bench, name, |exchange, ours| {
            assert_same_header(&exchange.answer, ours);
            let header = &exchange.request.header;
            let class = mads::class(header.mgmt_class).unwrap();
            let attribute = class.attribute(header.attribute_id).unwrap();
            let data = |mad: &Mad| mad.as_bytes()[class.data..][..attribute.layout.size].to_vec();
            let (ours, theirs) = (data(ours), data(&exchange.answer));
            for field in differences(&attribute.layout, &ours, &theirs) {
                let detail = format!("{name}: {header:?}\n ours {ours:02x?}\n not {theirs:02x?}");
                found
                    .entry(format!("{}.{field}", attribute.name))
                    .or_insert(detail);
            }
        });
    }
    for (field, detail) in &found {
        let explained = EXPLAINED.iter().any(|(known, _)| known == field);
        assert!(explained, "{field} differs in {detail}");
    }
    for (known, why) in EXPLAINED {
        assert!(
            found.contains_key(*known),
            "{known} ({why}) does not differ"
        );
    }
}

/// What a Set of PortInfo wrote as our agent should say that it stands now. Fields that a Set cannot
/// write are taken from the answer.
fn stored(written: &PortInfo, answer: &PortInfo, is_external: bool) -> PortInfo {
    let mut expected = *answer;
    if !is_external {
        expected.lid = written.lid;
        expected.master_sm_lid = written.master_sm_lid;
        expected.gid_prefix = written.gid_prefix;
        expected.set_lmc(written.lmc());
        expected.set_master_sm_sl(written.master_sm_sl());
        expected.set_client_reregister(written.client_reregister());
    }
    expected.mkey = written.mkey;
    expected.mkey_lease_period = written.mkey_lease_period;
    expected.set_mkey_protect(written.mkey_protect());
    expected.set_neighbor_mtu(written.neighbor_mtu());
    expected.set_subnet_timeout(written.subnet_timeout());
    expected.set_hoq_life(written.hoq_life());
    expected.set_vl_stall_count(written.vl_stall_count());
    expected.vl_high_limit = written.vl_high_limit;
    expected.set_local_phy_errors(written.local_phy_errors());
    expected.set_overrun_errors(written.overrun_errors());
    if is_external {
        expected.set_partition_enforcement_inbound(written.partition_enforcement_inbound());
        expected.set_partition_enforcement_outbound(written.partition_enforcement_outbound());
        expected.set_filter_raw_inbound(written.filter_raw_inbound());
        expected.set_filter_raw_outbound(written.filter_raw_outbound());
    }
    if written.operational_vls() != 0 {
        expected.set_operational_vls(written.operational_vls());
    }
    if written.port_state().get() > 1 {
        expected.set_port_state(written.port_state());
    }
    match written.link_width_enabled {
        LinkWidth(0) => {}
        LinkWidth::ALL_SUPPORTED => expected.link_width_enabled = answer.link_width_supported,
        width => expected.link_width_enabled = width,
    }
    match written.link_speed_enabled() {
        speed if speed.get() == 0 => {}
        LinkSpeed::ALL_SUPPORTED => expected.set_link_speed_enabled(answer.link_speed_supported()),
        speed => expected.set_link_speed_enabled(speed),
    }
    if written.link_speed_ext_enabled() == LinkSpeedExt::ALL_SUPPORTED {
        expected.set_link_speed_ext_enabled(answer.link_speed_ext_supported());
    }
    expected
}

#[test]
fn what_opensm_writes_is_stored() {
    let mut sets: BTreeMap<&str, u32> = BTreeMap::new();
    for name in FROM_THE_START {
        replay(&mut Bench::of(name), name, |exchange, ours| {
            let request = &exchange.request;
            if request.header.method != Method::SET {
                return;
            }
            let class = mads::class(request.header.mgmt_class).unwrap();
            let attribute = class.attribute(request.header.attribute_id).unwrap();
            *sets.entry(attribute.name).or_default() += 1;
            // The attribute stands at the same place in both forms of an SMP.
            let (written, answer): (&LidRoutedSmp, &LidRoutedSmp) = (request.view(), ours.view());
            let is_same = match attribute.name {
                "PortInfo" => {
                    let port = request.header.attribute_modifier.get() & 0xff;
                    let answer: &PortInfo = answer.attribute();
                    let depth = request.view::<DirectedRouteSmp>().hop_count();
                    let is_external = port != 0 && is_switch(request, depth);
                    *answer == stored(written.attribute(), answer, is_external)
                }
                "SwitchInfo" => {
                    let (written, answer): (&SwitchInfo, &SwitchInfo) =
                        (written.attribute(), answer.attribute());
                    !(written.port_state_change() && answer.port_state_change())
                        && answer.linear_fdb_top == written.linear_fdb_top
                        && answer.life_time_value() == written.life_time_value()
                }
                _ => written.data == answer.data,
            };
            assert!(
                is_same,
                "{name}: {:?}\n{:02x?}\n{:02x?}",
                request.header, written.data, answer.data
            );
        });
    }
    for (name, least) in [
        ("PortInfo", 60),
        ("SwitchInfo", 4),
        ("LFT", 2),
        ("SLtoVL", 70),
        ("VLArb", 20),
        ("PKeyTable", 8),
    ] {
        assert!(
            sets.get(name).is_some_and(|count| *count >= least),
            "{name}: {sets:?}"
        );
    }
}

/// Whether a recorded request went to a switch: H-1 is at port 1 of the first, which leads to the second by
/// its ports 7 and 8.
fn is_switch(request: &Mad, hops: u8) -> bool {
    let path = &request.view::<DirectedRouteSmp>().initial_path;
    match hops {
        1 => true,
        2 => path[2] >= 7,
        3 => path[2] >= 7 && path[3] >= 7,
        _ => false,
    }
}

#[test]
fn an_answer_to_what_no_agent_knows_says_so() {
    let mut bench = Bench::of("sweep.txt");
    for exchange in exchanges("sweep.txt").iter().take(8) {
        let mut request = exchange.request;
        request.header.attribute_id = ib_wire::mad::AttributeId::new(0xff00);
        let answer = bench
            .ask(&exchange.client, exchange.dlid, &request)
            .unwrap();
        let status = answer.header.status.get() & !MadStatus::DIRECTION;
        assert_eq!(status, MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE.get());
    }
}
