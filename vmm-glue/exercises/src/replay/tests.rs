//! Scripts and what they print.

use std::net::Ipv6Addr;

use ib_wire::cm::{self, CmReq, CmRtu};
use ib_wire::mad::{AttributeId, Mad, Method};
use ib_wire::sa::{JoinState, McMemberRecord, SaMad};
use ib_wire::{CommId, Gid, Lid, PKey, Tid};
use proptest::prelude::*;
use serde_json::Value;
use zerocopy::{Immutable, IntoBytes};

use super::config::{self, Config};
use super::{ReplayError, run, script};

/// SubnAdm Get(ClassPortInfo): nothing in it but its header.
fn sa_get(tid: u64) -> String {
    mad(0x03, 2, 0x01, tid)
}

fn sa_get_resp(tid: u64) -> String {
    mad(0x03, 2, 0x81, tid)
}

/// A MAD of zeros behind its header, with the attribute ClassPortInfo.
fn mad(class: u8, version: u8, method: u8, tid: u64) -> String {
    let header =
        format!("01{class:02x}{version:02x}{method:02x}00000000{tid:016x}0001000000000000");
    format!("{header}{}", "0".repeat(512 - header.len()))
}

fn from_vf(at: u64, vf: u16, mad: &str) -> String {
    format!(r#"{{"at":{at},"from":"vf:{vf}","dlid":1,"mad":"{mad}"}}"#)
}

fn from_wire(at: u64, mad: &str) -> String {
    format!(r#"{{"at":{at},"from":"wire","slid":1,"mad":"{mad}"}}"#)
}

/// What a script prints, and how its run ends.
fn outcome(script: &[u8]) -> (Vec<u8>, Result<(), ReplayError>) {
    let mut out = Vec::new();
    let end = run(script, &mut out);
    (out, end)
}

/// What a script without mistakes prints.
fn output(lines: &[String]) -> String {
    let (out, end) = outcome(lines.join("\n").as_bytes());
    end.unwrap();
    String::from_utf8(out).unwrap()
}

fn printed(lines: &[String]) -> Vec<Value> {
    output(lines)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The TID of a line's MAD.
fn tid(line: &Value) -> u64 {
    tid_of(line["mad"].as_str().unwrap())
}

fn tid_of(mad: &str) -> u64 {
    u64::from_str_radix(&mad[16..32], 16).unwrap()
}

/// The line on which a run stumbles, and why.
fn mistake(script: &str) -> (u64, String) {
    match outcome(script.as_bytes()).1 {
        Err(ReplayError::Script { line, reason }) => (line, reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_answer_brings_the_requests_tid_back_bit_exact() {
    const TID: u64 = 0xfedc_ba98_7654_3210;
    let request = from_vf(10, 1, &sa_get(TID));
    let sent = printed(std::slice::from_ref(&request));
    let wire_tid = tid(&sent[0]);
    assert!(wire_tid <= u64::from(u32::MAX));
    let lines = printed(&[request, from_wire(11, &sa_get_resp(wire_tid))]);
    let [to_wire, to_vf] = &lines[..] else {
        panic!("two lines: {lines:?}");
    };
    assert_eq!((&to_wire["at"], &to_wire["cause"]), (&10.into(), &1.into()));
    assert_eq!(
        (&to_wire["to"], &to_wire["dlid"]),
        (&"wire".into(), &1.into())
    );
    assert_eq!(to_wire["qkey"], "0x80010000");
    assert_eq!((&to_vf["at"], &to_vf["cause"]), (&11.into(), &2.into()));
    assert_eq!((&to_vf["to"], &to_vf["slid"]), (&"vf:1".into(), &1.into()));
    assert_eq!(tid(to_vf), TID);
}

#[test]
fn two_vfs_with_equal_tids_get_their_own_answers() {
    let requests = [from_vf(0, 1, &sa_get(7)), from_vf(0, 2, &sa_get(7))];
    let [first, second] = [0, 1].map(|at| tid(&printed(&requests)[at]));
    assert_ne!(first, second);
    let [a, b] = requests;
    let answers = [
        from_wire(1, &sa_get_resp(second)),
        from_wire(2, &sa_get_resp(first)),
    ];
    let [c, d] = answers;
    let lines = printed(&[a, b, c, d]);
    assert_eq!([&lines[2]["to"], &lines[3]["to"]], ["vf:2", "vf:1"]);
    assert_eq!([tid(&lines[2]), tid(&lines[3])], [7, 7]);
}

#[test]
fn a_mad_of_another_length_is_dropped_with_the_reason() {
    for digits in ["", "00", &"0".repeat(510), &"0".repeat(514)] {
        let lines = output(&[from_vf(3, 1, digits), from_wire(4, digits)]);
        assert_eq!(
            lines,
            "{\"at\":3,\"cause\":1,\"drop\":\"bad_length\",\"vf\":1}\n\
             {\"at\":4,\"cause\":2,\"drop\":\"bad_length\",\"vf\":null}\n"
        );
    }
}

#[test]
fn a_reset_vf_can_go_on_in_the_next_line_and_gets_no_old_answer() {
    let request = from_vf(0, 1, &sa_get(7));
    let wire_tid = tid(&printed(std::slice::from_ref(&request))[0]);
    let lines = printed(&[
        request,
        r#"{"at":0,"event":"vf_reset","vf":1}"#.to_owned(),
        from_wire(0, &sa_get_resp(wire_tid)),
        from_vf(0, 1, &sa_get(7)),
    ]);
    assert_eq!(lines[1]["drop"], "unknown_tid");
    assert_eq!(
        (&lines[2]["cause"], &lines[2]["to"]),
        (&4.into(), &"wire".into())
    );
    assert_ne!(tid(&lines[2]), wire_tid);
}

#[test]
fn sizes_are_above_zero_while_a_request_lives_and_zero_ten_minutes_later() {
    let lines = printed(&[
        from_vf(0, 1, &sa_get(7)),
        r#"{"at":0,"stats":true}"#.to_owned(),
        r#"{"at":600000,"stats":true}"#.to_owned(),
    ]);
    assert_eq!(lines[1]["stats"]["tids"], 1);
    let (last, before) = lines.split_last().unwrap();
    assert_eq!(before.len(), 2);
    assert_eq!((&last["at"], &last["cause"]), (&600_000.into(), &3.into()));
    let sizes = last["stats"].as_object().unwrap();
    assert!(sizes.values().all(|size| size == 0), "{sizes:?}");
}

#[test]
fn an_event_is_told_to_every_vf_with_the_line_as_cause() {
    let event = r#"{"at":20,"event":"client_reregister"}"#.to_owned();
    assert_eq!(
        output(&[r#"{"config":{}}"#.to_owned(), event]),
        "{\"at\":20,\"cause\":2,\"to\":\"vf:1\",\"event\":\"client_reregister\"}\n\
         {\"at\":20,\"cause\":2,\"to\":\"vf:2\",\"event\":\"client_reregister\"}\n"
    );
}

#[test]
fn a_frame_that_a_limiter_holds_is_queued_and_comes_out_with_its_own_cause() {
    let lines = printed(&[
        r#"{"config":{"limits":{"egress":{"mads_per_second":100,"burst":1}}}}"#.to_owned(),
        from_vf(1000, 1, &sa_get(1)),
        from_vf(1000, 1, &sa_get(2)),
        r#"{"at":1000,"stats":true}"#.to_owned(),
        r#"{"at":1100,"stats":true}"#.to_owned(),
    ]);
    assert_eq!(
        (&lines[0]["at"], &lines[0]["cause"]),
        (&1000.into(), &2.into())
    );
    assert_eq!(lines[1]["stats"]["queued"], 1);
    assert_eq!(
        (&lines[2]["at"], &lines[2]["cause"]),
        (&1010.into(), &3.into())
    );
    assert_eq!(lines[2]["to"], "wire");
    assert_eq!(lines[3]["stats"]["queued"], 0);
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
    let script = |seed: u64| {
        let mut lines = vec![format!(r#"{{"config":{{"seed":{seed}}}}}"#)];
        lines.extend((0..50).map(|i| from_vf(i, 1, &sa_get(i))));
        output(&lines)
    };
    assert_eq!(script(1), script(1));
    assert_ne!(script(1), script(2));
}

#[test]
fn a_script_without_lines_prints_nothing() {
    assert_eq!(output(&[]), "");
    assert_eq!(output(&[r#"{"config":{}}"#.to_owned()]), "");
}

#[test]
fn the_last_line_needs_no_line_feed_and_others_may_have_a_carriage_return() {
    let (out, end) = outcome(b"{\"at\":1,\"stats\":true}\r\n{\"at\":1,\"stats\":true}");
    end.unwrap();
    assert_eq!(out.split(|&byte| byte == b'\n').count(), 3);
}

#[test]
fn a_mistake_is_told_with_its_line_number_after_the_output_of_the_lines_before() {
    let script = format!("{}\n{{\"at\":1,\"event\":\"fly\"}}\n", from_vf(0, 1, ""));
    let (out, end) = outcome(script.as_bytes());
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "{\"at\":0,\"cause\":1,\"drop\":\"bad_length\",\"vf\":1}\n"
    );
    let message = end.unwrap_err().to_string();
    assert!(
        message.starts_with("line 2: unknown variant `fly`"),
        "{message}"
    );
}

#[test]
fn time_that_decreases_is_a_mistake() {
    let (line, reason) = mistake("{\"at\":5}\n{\"at\":5}\n{\"at\":4}\n");
    assert_eq!(line, 3);
    assert_eq!(
        reason,
        "`at` is 4, but an earlier line was at 5: time never decreases"
    );
}

#[test]
fn a_configuration_after_the_first_line_is_a_mistake() {
    for first in ["{\"config\":{}}", "{\"at\":0}"] {
        let (line, reason) = mistake(&format!("{first}\n{{\"config\":{{}}}}\n"));
        assert_eq!(line, 2);
        assert_eq!(reason, "the configuration can only be the first line");
    }
}

#[test]
fn a_vf_beyond_the_configured_ones_is_a_mistake() {
    let script = format!("{{\"config\":{{\"vfs\":1}}}}\n{}\n", from_vf(0, 2, ""));
    assert_eq!(
        mistake(&script),
        (2, "there is no VF 2; the script has VF 1 only".to_owned())
    );
}

#[test]
fn an_empty_line_is_a_mistake() {
    for empty in ["", " ", "\r"] {
        let script = format!("{{\"at\":0}}\n{empty}\n{{\"at\":0}}\n");
        assert_eq!(mistake(&script), (2, "the line is empty".to_owned()));
    }
}

#[test]
fn a_line_without_end_is_not_read_to_its_end() {
    let endless = std::io::BufReader::new(std::io::repeat(b' '));
    let mut out = Vec::new();
    let message = run(endless, &mut out).unwrap_err().to_string();
    assert_eq!(message, "line 1: longer than 1 MiB");
}

#[test]
fn a_jump_of_fifty_years_takes_no_time() {
    let lines = printed(&[
        from_vf(0, 1, &sa_get(1)),
        r#"{"at":1700000000000,"stats":true}"#.to_owned(),
    ]);
    assert_eq!(lines.last().unwrap()["stats"]["tids"], 0);
}

#[test]
fn what_would_end_after_the_last_millisecond_waits() {
    let last = script::LAST_MILLI;
    let lines = printed(&[
        from_vf(last - 1000, 1, &sa_get(7)),
        from_vf(last - 1000, 1, &hex(&cm_req())),
        from_vf(last - 1000, 1, &join()),
        format!(r#"{{"at":{last},"stats":true}}"#),
    ]);
    let sizes = &lines.last().unwrap()["stats"];
    assert_eq!(
        (&sizes["cm_ids"], &sizes["mcast_groups"]),
        (&1.into(), &1.into())
    );
    assert_eq!(sizes["tids"], 3, "the join was sent again");
}

#[test]
fn what_a_reason_quotes_from_the_script_cannot_break_its_line() {
    let (_, reason) = mistake(r#"{"at":0,"from":"a\u001b[1m\nb"}"#);
    assert_eq!(
        reason,
        "`from` is `a\u{fffd}[1m\u{fffd}b`; it can be `wire` or `vf:` and a number"
    );
}

/// A CM message with the ids of its two ends.
fn cm_message(attribute: AttributeId, local: u32, remote: u32) -> Mad {
    let mut mad = Mad::new(cm::header(attribute));
    let rtu: &mut CmRtu = mad.view_mut();
    rtu.local_comm_id = CommId::new(local);
    rtu.remote_comm_id = CommId::new(remote);
    mad
}

/// VF 1 asks for a connection under its id 1.
fn cm_req() -> Mad {
    let mut mad = cm_message(AttributeId::CM_REQ, 1, 0);
    let req: &mut CmReq = mad.view_mut();
    req.pkey = PKey::DEFAULT_FULL;
    req.primary.local_lid = Lid::new(5);
    req.primary.local_gid = gid("fe80::2:c903:1:1");
    req.primary.remote_lid = Lid::new(1);
    req.primary.remote_gid = gid("fe80::9");
    mad
}

fn gid(text: &str) -> Gid {
    Gid::from(text.parse::<Ipv6Addr>().unwrap())
}

fn hex(bytes: &(impl IntoBytes + Immutable)) -> String {
    let bytes = bytes.as_bytes().iter();
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

/// The ids of a line's CM message: its sender's and its receiver's.
fn comm_ids(line: &Value) -> [u32; 2] {
    let mad = line["mad"].as_str().unwrap();
    [48, 56].map(|at| u32::from_str_radix(&mad[at..at + 8], 16).unwrap())
}

#[test]
fn a_connection_has_an_id_of_its_own_on_the_wire_and_leaves_nothing() {
    let from_vf = |at, mad: &Mad| from_vf(at, 1, &hex(mad));
    let from_wire = |at, mad: &Mad| from_wire(at, &hex(mad));
    let stats = |at: u64| format!("{{\"at\":{at},\"stats\":true}}");
    let req = from_vf(0, &cm_req());
    let [wire_id, none] = comm_ids(&printed(std::slice::from_ref(&req))[0]);
    assert_eq!(none, 0);
    let lines = printed(&[
        req,
        from_wire(1, &cm_message(AttributeId::CM_REP, 7, wire_id)),
        from_vf(2, &cm_message(AttributeId::CM_RTU, 1, 7)),
        stats(3),
        from_wire(4, &cm_message(AttributeId::CM_DREQ, 7, wire_id)),
        from_vf(5, &cm_message(AttributeId::CM_DREP, 1, 7)),
        // The DREP was lost; the id still works 15 s later.
        from_wire(15_000, &cm_message(AttributeId::CM_DREQ, 7, wire_id)),
        stats(615_000),
    ]);
    let [_, rep, rtu, live, dreq, drep, again, gone] = &lines[..] else {
        panic!("a line for each: {lines:?}");
    };
    for to_vf in [rep, dreq, again] {
        assert_eq!((&to_vf["to"], comm_ids(to_vf)), (&"vf:1".into(), [7, 1]));
    }
    for to_wire in [rtu, drep] {
        assert_eq!(
            (&to_wire["to"], comm_ids(to_wire)),
            (&"wire".into(), [wire_id, 7])
        );
    }
    assert_eq!(
        (&live["stats"]["cm_ids"], &gone["stats"]["cm_ids"]),
        (&1.into(), &0.into())
    );
}

/// VF 1 joins a group in full.
fn join() -> String {
    let mut record = McMemberRecord {
        mgid: gid("ff12:401b:ffff::1"),
        port_gid: gid("fe80::2:c903:1:1"),
        ..McMemberRecord::default()
    };
    record.set_join_state(JoinState::FULL_MEMBER);
    let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
    let mut request = SaMad::new(Method::SET, mask, &record);
    request.header.tid = Tid::new(0xfedc_ba98_7654_3210);
    hex(&request)
}

#[test]
fn what_a_timer_does_has_no_line_and_its_own_time() {
    let lines = printed(&[
        from_vf(5, 1, &join()),
        r#"{"at":600000,"stats":true}"#.to_owned(),
    ]);
    let (sent, later) = lines.split_first().unwrap();
    assert_eq!(
        (&sent["at"], &sent["cause"], &sent["to"]),
        (&5.into(), &1.into(), &"wire".into())
    );
    let (stats, later) = later.split_last().unwrap();
    assert_eq!(stats["stats"]["mcast_groups"], 0);
    // The SA is asked again, the VF is told that it does not answer, and what the SA may have done
    // is taken back.
    let told = later.iter().position(|line| line["to"] == "vf:1").unwrap();
    assert!(told > 0);
    assert_eq!(tid(&later[told]), tid_of(&join()));
    assert!(later.len() > told + 1);
    assert!(
        later.iter().all(|line| line["cause"] == "timer"),
        "{later:?}"
    );
    let times: Vec<_> = lines
        .iter()
        .map(|line| line["at"].as_u64().unwrap())
        .collect();
    assert!(times.is_sorted() && times[1] > 5, "{times:?}");
}

/// The documentation of the format.
const FORMAT: &str = include_str!("../../docs/replay.md");

/// The examples of a documentation: lines of code, and what stands in tables.
fn examples(of: &str) -> Vec<&str> {
    let lines = FORMAT
        .lines()
        .flat_map(|line| match line.starts_with("{\"") {
            true => vec![line],
            false => line.split('`').skip(1).step_by(2).collect(),
        });
    lines
        .filter(|code| code.starts_with("{\"") && code.contains(of))
        .collect()
}

#[test]
fn the_documented_defaults_are_the_defaults() {
    let [documented] = examples("\"config\"")[..] else {
        panic!("one configuration");
    };
    assert_eq!(
        config::parse(documented.as_bytes()).unwrap(),
        Config::default()
    );
}

#[test]
fn the_documented_limits_are_the_defaults() {
    let rows = FORMAT.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let (group, field) = cells.next()?.strip_suffix('`')?.split_once('.')?;
        let value: u64 = cells.next()?.parse().ok()?;
        Some(format!(
            r#"{{"config":{{"limits":{{"{group}":{{"{field}":{value}}}}}}}}}"#
        ))
    });
    let rows: Vec<_> = rows.collect();
    assert_eq!(rows.len(), 21);
    for row in rows {
        assert_eq!(
            config::parse(row.as_bytes()).unwrap(),
            Config::default(),
            "{row}"
        );
    }
}

#[test]
fn the_documented_lines_are_understood() {
    let mut read = 0;
    let input = |line: &&&str| !line.contains("cause") && !line.contains("config");
    for example in examples("\"at\"").iter().filter(input) {
        let example = example.replace("<hex>", "");
        script::parse(example.as_bytes(), 2).unwrap_or_else(|error| panic!("{example}: {error}"));
        read += 1;
    }
    assert_eq!(read, 12);
}

/// A value of JSON that a line might have somewhere.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        (0_u32..4).prop_map(|n| n.to_string()),
        any::<i64>().prop_map(|n| n.to_string()),
        prop::sample::select(vec![
            "null",
            "true",
            "[]",
            "{}",
            "[0]",
            "1.5",
            "\"wire\"",
            "\"vf:1\"",
            "\"vf:9\"",
            "\"gsi\"",
            "\"smi\"",
            "\"0xffff\"",
            "\"fe80::1\"",
            "\"fe80::\"",
            "\"vf_reset\"",
            "\"pkey_table\"",
            "\"lid_change\"",
            "\"sm_change\"",
            "\"gid_prefix\"",
            "\"port_up\"",
            "[\"0x8001\"]",
            "{\"dgid\":\"fe80::1\"}",
            "{\"sgid\":\"fe80::1\",\"dgid\":\"::\"}",
        ])
        .prop_map(str::to_owned),
    ]
}

/// An object of fields that belong to some form of line.
fn object() -> impl Strategy<Value = String> {
    let names = vec![
        "config",
        "at",
        "from",
        "qp",
        "dlid",
        "slid",
        "dqpn",
        "sqpn",
        "qkey",
        "pkey",
        "sl",
        "pkey_index",
        "grh",
        "mad",
        "event",
        "vf",
        "lid",
        "sm_lid",
        "sm_sl",
        "pkeys",
        "subnet_prefix",
        "stats",
        "other",
    ];
    prop::collection::vec((prop::sample::select(names), value()), 0..6).prop_map(|fields| {
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| format!("\"{name}\":{value}"))
            .collect();
        format!("{{{}}}", fields.join(","))
    })
}

/// A line of the proper form with any MAD.
fn any_mad() -> impl Strategy<Value = String> {
    let classes = prop::sample::select(vec![0x01_u8, 0x03, 0x04, 0x06, 0x07, 0x81, 0xff]);
    (classes, 1_u8..3, any::<[u8; 16]>(), 0_u8..4, any::<bool>()).prop_map(
        |(class, version, seed, method, from_wire_side)| {
            let method = [0x01, 0x02, 0x03, 0x81][usize::from(method)];
            let body: String = seed.iter().map(|byte| format!("{byte:02x}")).collect();
            let mad = format!("01{class:02x}{version:02x}{method:02x}{}", body.repeat(16));
            let mad = &mad[..512];
            if from_wire_side {
                from_wire(u64::from(seed[0]), mad)
            } else {
                from_vf(u64::from(seed[0]), 1, mad)
            }
        },
    )
}

fn line() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..60),
        object().prop_map(String::into_bytes),
        any_mad().prop_map(String::into_bytes),
        (0_u32..3).prop_map(|at| format!("{{\"at\":{at},\"stats\":true}}").into_bytes()),
    ]
}

proptest! {
    #[test]
    fn any_script_ends_well_or_with_the_line_of_its_mistake(
        lines in prop::collection::vec(line(), 0..8)
    ) {
        let (out, end) = outcome(&lines.join(&b'\n'));
        for line in out.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let line: Value = serde_json::from_slice(line).unwrap();
            prop_assert!(line["at"].is_u64() && !line["cause"].is_null());
        }
        match end {
            Ok(()) => {}
            // A line of random bytes can be several.
            Err(ReplayError::Script { line, reason }) => {
                prop_assert!(line >= 1 && !reason.is_empty() && !reason.contains('\n'));
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}
