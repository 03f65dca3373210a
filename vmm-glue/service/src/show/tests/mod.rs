//! A port with two VFs that did a little of everything, shown in every way.

mod links;
mod widths;

use emulated_hca::hca::Device;
use emulated_hca::{Adapters, EndNode, Frame, Topology};
use ib_vtime::{Duration, Instant};
use ib_wire::cm::{self, CmReq};
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::sa::{JoinState, McMemberRecord, SaMad};
use ib_wire::smp::SmState;
use ib_wire::{CommId, Gid, Guid, Lid, PKey, PortNum, QKey, Qpn, Sl, SubnetPrefix, Tid};
use pf_context::{Cause, Output, PortConfig, PortMux, VfConfig, WireSource};
use serde_json::Value;
use vf_tunnel::{SpecialQp, ToPf, VfId};
use vhca_control::table::Tables;
use zerocopy::IntoBytes;

use super::*;
use vhca::Slice;

/// A form in which the client prints tables.
#[derive(Clone, Copy)]
enum Format {
    Text,
    Json,
}

const SM: Lid = Lid::new(1);
const NOW: Instant = Instant::from_millis(2_500);

fn vf(number: u16) -> VfId {
    VfId::new(number).unwrap()
}

fn vf_guid(number: u16) -> Guid {
    Guid::new(0x0002_c903_0000_0100 + u64::from(number))
}

fn send(mux: &mut PortMux, number: u16, mad: Mad) -> Vec<Output> {
    let mut frame = ToPf::zeroed();
    frame.header.av.flags_port = 1;
    frame.header.av.dlid = SM;
    frame.header.remote_qpn = Qpn::GSI;
    frame.header.remote_qkey = QKey::GSI;
    frame.mad = mad;
    let at = Instant::from_millis(1);
    mux.from_vf(at, Cause(0), vf(number), SpecialQp::Gsi, &frame);
    core::iter::from_fn(|| mux.poll_output())
        .map(|(_, output)| output)
        .collect()
}

/// VF 1 asks for a path, connects, and is in a group; a frame of VF 2's is dropped.
fn mux() -> PortMux {
    let mut mux = PortMux::new(PortConfig::default());
    for number in [1, 2] {
        let config = VfConfig {
            guid: (number == 1).then(|| vf_guid(number)),
            ..VfConfig::default()
        };
        mux.add_vf(vf(number), config).unwrap();
    }
    let header = MadHeader::new(MgmtClass::SUBN_ADM, Method::GET, AttributeId::PATH_RECORD);
    let mut query = Mad::new(header);
    query.header.tid = Tid::new(7);
    send(&mut mux, 1, query);

    let mut connect = Mad::new(cm::header(AttributeId::CM_REQ));
    let req: &mut CmReq = connect.view_mut();
    req.local_comm_id = CommId::new(5);
    req.pkey = PKey::DEFAULT_FULL;
    req.primary.local_gid = Gid::from_parts(SubnetPrefix::DEFAULT, vf_guid(1));
    send(&mut mux, 1, connect);

    let mut mgid = Gid([0; 16]);
    (mgid.0[0], mgid.0[1], mgid.0[15]) = (0xff, 0x12, 1);
    let mut record = McMemberRecord {
        mgid,
        port_gid: Gid::from_parts(SubnetPrefix::DEFAULT, vf_guid(1)),
        ..McMemberRecord::default()
    };
    record.set_join_state(JoinState::FULL_MEMBER);
    let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
    let join = SaMad::new(Method::SET, mask, &record);
    let outputs = send(&mut mux, 1, Mad::from_layout(&join));
    let [Output::ToWire(_, request)] = &outputs[..] else {
        panic!("one request to the SA");
    };
    let mut answer = *request;
    answer.header.method = Method::GET_RESP;
    let sa: &mut SaMad = answer.view_mut();
    let mut record: McMemberRecord = sa.record();
    record.mlid = Lid::new(0xc001);
    record.pkey = PKey::DEFAULT_FULL;
    sa.set_record(&record);
    let source = WireSource {
        slid: SM,
        sqpn: Qpn::GSI,
        sl: Sl::default(),
        pkey: PKey::DEFAULT_FULL,
        path_bits: 0,
        grh: None,
    };
    let at = Instant::from_millis(1);
    mux.from_wire(at, Cause(0), SpecialQp::Gsi, &source, answer.as_bytes());
    send(&mut mux, 2, Mad::default());
    mux
}

impl Vmms for Vec<VmmRow> {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }

    fn of_host(&self, host: &str) -> Self {
        let rows = self.iter().filter(|row| row.host == host);
        rows.cloned().collect()
    }

    /// Each VMM is a program, too, with the longest values that there are.
    fn programs_of(&self, host: &str) -> Vec<ProgramRow> {
        let rows = self.of_host(host).into_iter().map(|vmm| ProgramRow {
            vf: vmm.vf,
            address: std::net::Ipv4Addr::BROADCAST,
            gid: Some(Gid([0xff; 16])),
            pid: vmm.pid,
            uid: vmm.uid,
            since: vmm.since,
            memory_wait: vmm.since.unwrap_or_default(),
            slow_memory: None,
            usage: ProgramUsage {
                files: 256,
                queue_pairs: 65_536,
                cm_ids: 4096,
                outstanding: 1 << 20,
                waiting: 65_536,
                dropped_events: u32::MAX.into(),
                memory: 1 << 40,
                memory_most: 1 << 40,
            },
        });
        rows.collect()
    }

    /// A subnet manager on each host, with the longest values that there are.
    fn subnet_managers(&self) -> Vec<SmRow> {
        let rows = self.iter().map(|vmm| SmRow {
            node: vmm.host.clone(),
            port: PortNum(254),
            guid: vf_guid(254),
            lid: Lid::new(0xbfff),
            kind: "embedded",
            state: Some(SmState::DISCOVERING),
            priority: Some(15),
            sweeps: Some(u32::MAX.into()),
            last_sweep: vmm.since,
            last_sweep_age: vmm.since,
        });
        rows.collect()
    }
}

const NO_VMMS: &Vec<VmmRow> = &Vec::new();

fn first_node(fabric: &Fabric) -> NodeId {
    fabric.nodes().next().unwrap().0
}

/// Shows something of a fabric of three switches, whose first adapter is the one of the mux.
fn shown_of(
    subject: Subject,
    format: Format,
    filter: &dyn Fn(NodeId) -> Filter,
    is_wide: bool,
) -> String {
    let mux = mux();
    let rows = mux.inspect(PortNum(2));
    let (fabric, _) = Topology::three_switches().build(1);
    let node = first_node(&fabric);
    let scene = Scene {
        pfs: &[NamedPf {
            name: "host-a",
            node,
            rows: &rows,
        }],
        vmms: NO_VMMS,
        fabric: &fabric,
        service: &ServiceFacts::default(),
        now: NOW,
    };
    let filter = filter(node);
    let reply = written(&scene, page(&scene, subject, filter));
    printed(&reply, format, is_wide, filter.problems)
}

/// Prints a reply as the client does.
fn printed(reply: &str, format: Format, is_wide: bool, problems: bool) -> String {
    let tables = Tables::of_reply(reply).unwrap();
    match format {
        Format::Text => tables.text(is_wide, problems),
        Format::Json => serde_json::to_string(&tables).unwrap(),
    }
}

fn written(scene: &Scene<'_>, mut page: Page) -> String {
    let mut out = Vec::new();
    // A row at a time, as a busy service does.
    while !page.write(scene, &mut out, &mut Slice::of_steps(1)) {}
    String::from_utf8(out).unwrap()
}

fn shown(subject: Subject, format: Format) -> String {
    shown_of(subject, format, &|_| Filter::default(), true)
}

fn json(subject: Subject) -> Value {
    serde_json::from_str(&shown(subject, Format::Json)).unwrap()
}

#[test]
fn every_subject_has_the_same_rows_and_columns_as_wide_text_and_as_json() {
    for subject in Subject::ALL {
        let text = shown(subject, Format::Text);
        let json = json(subject);
        let tables: Vec<&Value> = json.as_object().unwrap().values().collect();
        let parts: Vec<&str> = text.split("\n\n").collect();
        assert_eq!(tables.len(), parts.len());
        for part in parts {
            let heads = part.lines().next().unwrap().split_whitespace().count();
            let rows = part.lines().skip(1).count();
            let same = |table: &&&Value| {
                let table = table.as_array().unwrap();
                table.len() == rows
                    && table
                        .iter()
                        .all(|row| row.as_object().unwrap().len() == heads)
            };
            assert!(tables.iter().any(|table| same(&table)), "{part}\n{json}");
        }
    }
}

#[test]
fn a_filter_leaves_the_rows_of_a_vf_or_those_with_a_problem() {
    let of_vf = |number| {
        move |node| Filter {
            node: Some(node),
            vf: Some(vf(number)),
            problems: false,
        }
    };
    let problems = |_| Filter {
        problems: true,
        ..Filter::default()
    };
    type Case<'c> = (
        Subject,
        &'c str,
        &'c dyn Fn(NodeId) -> Filter,
        &'c [&'c str],
    );
    let table: &[Case<'_>] = &[
        (Subject::Vfs, "vfs", &of_vf(1), &["1"]),
        (Subject::Vfs, "vfs", &problems, &["2"]),
        (Subject::Tids, "tids", &of_vf(1), &["1"]),
        (Subject::Tids, "tids", &of_vf(2), &[]),
        (Subject::Cm, "cm", &of_vf(1), &["1"]),
        (Subject::Cm, "cm", &of_vf(2), &[]),
        (Subject::Guids, "guids", &of_vf(1), &["1"]),
        (Subject::Guids, "guids", &problems, &["2"]),
        (Subject::Counters, "counters", &of_vf(2), &["2"]),
    ];
    for (subject, name, filter, wanted) in table {
        let text = shown_of(*subject, Format::Json, filter, false);
        let json: Value = serde_json::from_str(&text).unwrap();
        let rows = json[name].as_array().unwrap().iter();
        let vfs: Vec<String> = rows.map(|row| row["vf"].to_string()).collect();
        assert_eq!(vfs, *wanted, "{subject:?}");
    }
    let groups = |number| {
        let text = shown_of(Subject::Mcast, Format::Json, &of_vf(number), false);
        let json: Value = serde_json::from_str(&text).unwrap();
        json["groups"].as_array().unwrap().len()
    };
    assert_eq!((groups(1), groups(2)), (1, 0));
    let (_, built) = Topology::three_switches().build::<Device>(1);
    let elsewhere = |_| Filter {
        node: built.hcas.last().copied(),
        ..Filter::default()
    };
    let text = shown_of(Subject::Vfs, Format::Text, &elsewhere, false);
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn vfs_show_guid_reason_counts_and_quotas() {
    let json = json(Subject::Vfs);
    let (one, two) = (&json["vfs"][0], &json["vfs"][1]);
    assert_eq!(one["host"], "host-a");
    assert_eq!((&one["port"], &one["vf"]), (&2.into(), &1.into()));
    assert_eq!(one["guid"], "0x0002c90300000101");
    assert_eq!((&one["up"], &one["reason"]), (&true.into(), &"up".into()));
    assert_eq!(one["cm_ids"]["live"], 1);
    assert_eq!(one["tids"]["limit"], 4096);
    assert_eq!(one["sent"], 3, "one of them was answered by the PF");
    assert_eq!(one["delivered"], 1);
    let oldest = one["oldest_transaction_ms"].as_u64().unwrap();
    assert!((2_490..=2_500).contains(&oldest), "{oldest}");
    assert_eq!(
        (&two["guid"], &two["reason"]),
        (&Value::Null, &"no_guid".into())
    );
    assert_eq!(two["dropped"], 1);
}

#[test]
fn a_group_shows_its_address_and_members() {
    let json = json(Subject::Mcast);
    let group = &json["groups"][0];
    assert_eq!(group["mgid"], "ff12::1");
    assert_eq!(group["mlid"], "0xc001");
    assert_eq!(group["sa_joins"], 1);
    assert_eq!(group["members"][0]["vf"], 1);
    assert_eq!(group["members"][0]["state"], "full");
    let text = shown(Subject::Mcast, Format::Text);
    assert!(text.lines().nth(1).unwrap().ends_with("1:full"), "{text}");
}

#[test]
fn a_transaction_and_an_exchange_show_both_ids() {
    let tids = json(Subject::Tids);
    let query = &tids["tids"][0];
    assert_eq!(query["tid"], "0x0000000000000007");
    assert_eq!(
        (&query["state"], &query["class"]),
        (&"open".into(), &"SUBN_ADM".into())
    );
    let cm = json(Subject::Cm);
    let exchange = &cm["cm"][0];
    assert_eq!(exchange["vf_id"], "0x00000005");
    assert_ne!(exchange["wire_id"], exchange["vf_id"]);
    assert_eq!(exchange["remote_id"], Value::Null);
    assert_eq!(exchange["state"], "req_sent");
}

#[test]
fn drops_show_where_whose_and_why() {
    let mut topology = Topology::default();
    topology.add_hca("host-a", 1);
    let (mut fabric, built) = topology.build::<Device>(1);
    let device = fabric.device_mut(built.hcas[0]).unwrap();
    device.node_mut().set_now(NOW);
    device.receive(NOW, PortNum(1), Frame::new(&[0; 64]));
    let later = NOW + Duration::from_secs(3);
    let scene = Scene {
        pfs: &[],
        vmms: NO_VMMS,
        fabric: &fabric,
        service: &ServiceFacts::default(),
        now: later,
    };
    let reply = written(&scene, page(&scene, Subject::Drops, Filter::default()));
    let json = printed(&reply, Format::Json, false, false);
    let json: Value = serde_json::from_str(&json).unwrap();
    let [row] = &json["drops"].as_array().unwrap()[..] else {
        panic!("{json}");
    };
    let wanted = serde_json::json!({
        "node": "host-a", "port": 1, "vf": null, "reason": "malformed", "packets": 1, "ago_ms": 3000,
    });
    assert_eq!(*row, wanted);
}

/// Makes an RC queue pair with a peer and a UC queue pair without one on a node's PF.
fn add_queue_pairs(fabric: &mut Fabric, node: NodeId, psn: u32) {
    use hca_api::{FunctionId, Hca};
    use ib_wire::{PKeyIndex, Psn};
    use vf_proxy::native::{ConnectedQp, ConnectedQpSpec, Partition, Peer};

    let mut hca = fabric.hca(node, FunctionId::PF).unwrap();
    let (pd, port, index) = (hca.alloc_pd().unwrap(), PortNum(1), PKeyIndex(0));
    let partition = Partition::Index(index);
    let spec = ConnectedQpSpec {
        sq_psn: Psn::from_low_bits(psn),
        ..ConnectedQpSpec::rc(partition)
    };
    let rc = ConnectedQp::create(&mut hca, pd, port, index, &spec).unwrap();
    let gid = Gid::from_parts(SubnetPrefix::DEFAULT, vf_guid(1));
    let peer = Peer::on_subnet(port, Lid::new(9), gid, rc.qpn(), rc.psn());
    rc.connect(&mut hca, &peer).unwrap();
    let uc = ConnectedQpSpec::uc(partition);
    ConnectedQp::create(&mut hca, pd, port, index, &uc).unwrap();
}

#[test]
fn queue_pairs_show_state_peer_and_what_they_carried() {
    let mut topology = Topology::default();
    topology.add_hca("host-a", 1);
    let (mut fabric, built) = topology.build(1);
    add_queue_pairs(&mut fabric, built.hcas[0], 7);
    let scene = Scene {
        pfs: &[],
        vmms: NO_VMMS,
        fabric: &fabric,
        service: &ServiceFacts::default(),
        now: NOW,
    };
    let shown = |format| {
        let reply = written(&scene, page(&scene, Subject::Qps, Filter::default()));
        printed(&reply, format, false, false)
    };
    let json: Value = serde_json::from_str(&shown(Format::Json)).unwrap();
    let [rc, uc] = &json["qps"].as_array().unwrap()[..] else {
        panic!("{json}");
    };
    let wanted = serde_json::json!({
        "node": "host-a", "port": 1, "vf": "pf", "qpn": rc["qpn"], "service": "RC", "state": "RTS",
        "peer_lid": 9, "peer_gid": "fe80::2:c903:0:101", "peer_qpn": rc["qpn"], "sq_psn": 7,
        "rq_psn": 7, "outstanding": 0, "retransmissions": 0, "rnr_naks": 0, "sent_bytes": 0,
        "received_bytes": 0, "way": "packets",
    });
    assert_eq!(*rc, wanted);
    assert_eq!(
        (&uc["state"], &uc["peer_qpn"]),
        (&"INIT".into(), &Value::Null)
    );
    let text = shown(Format::Text);
    let head = text.lines().next().unwrap();
    let columns: Vec<_> = head.split_whitespace().collect();
    let wanted = "NODE VF QPN TYPE STATE PEER-QPN SQ-PSN RQ-PSN OUT RETRIES RNR SENT RECEIVED WAY";
    assert_eq!(columns.join(" "), wanted);
}

#[test]
fn totals_sum_over_the_pfs() {
    let mux = mux();
    let view = mux.inspect(PortNum(1));
    let mut totals = Totals::of(&view, NOW);
    let sent = totals.verdicts["to_wire"];
    // Two of VF 1's and one of the port's own.
    assert_eq!(sent, 3);
    assert_eq!(totals.drops, [("bad_version", 1)].into());
    assert_eq!(
        (totals.sizes["tids"], totals.sizes["mcast_members"]),
        (2, 1)
    );
    totals.add(&view, NOW + Duration::from_secs(1));
    assert_eq!(totals.verdicts["to_wire"], 2 * sent);
    assert_eq!(totals.verdicts["dropped"], 2);
    let text = totals.to_string();
    assert!(
        text.contains("VERDICT                        MADS\n"),
        "{text}"
    );
    assert!(
        text.lines()
            .any(|line| line == "to_wire                           6"),
        "{text}"
    );
    let json = serde_json::to_value(&totals).unwrap();
    assert_eq!(json["sizes"]["cm_ids"], 2);
}
