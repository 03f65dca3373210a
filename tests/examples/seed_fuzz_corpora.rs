//! Writes the seeds of the fuzz corpora: one file for each kind of message in the recorded
//! conversations, and hand-made ones for what they lack. Run it again after the traces change:
//! `cargo run -p vhca-tests --example seed_fuzz_corpora`.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

use ib_capture::{Interface, Writer};
use ib_vtime::Instant;
use ib_wire::cm;
use ib_wire::mad::{AttributeId, Mad, MgmtClass};
use ib_wire::packet::{Grh, UdFrame};
use ib_wire::{Gid, Lid, PKey, Psn, QKey, Qpn, Sl, Vl};
use vhca_tests::mads;
use vhca_tests::traces::{self, Line};

/// The seeds of one target: file name and bytes.
type Seeds = BTreeMap<String, Vec<u8>>;

fn main() -> Result<(), Box<dyn Error>> {
    let recorded = recorded_mads()?;
    let mut corpora: BTreeMap<&str, Seeds> = BTreeMap::new();
    for (name, mad) in &recorded {
        let mut seed = |target, bytes| {
            corpora
                .entry(target)
                .or_default()
                .insert(name.clone(), bytes);
        };
        seed("mad", mad.clone());
        match Mad::from_bytes(mad).map(|mad| mad.header.mgmt_class) {
            Some(MgmtClass::SUBN_DIRECTED_ROUTE) => seed("smi", behind(&[1], mad)),
            Some(MgmtClass::SUBN_ADM) => {
                seed("sa_records", behind(&mad[44..46], &mad[56..]));
                seed("rmpp", behind(&[0, 0, 1, 0x2c, 0, 0, 0, 2], mad));
                seed("notice", mad[56..].to_vec());
            }
            _ => {}
        }
    }
    for (name, frame) in frames(&recorded)? {
        corpora
            .entry("capture")
            .or_default()
            .insert(name.clone(), capture(&frame)?);
        corpora.entry("frame").or_default().insert(name, frame);
    }
    corpora.insert("cm_messages", cm_messages());
    corpora.insert("cm", connections());
    corpora.insert("ibsim_server", attachments());
    corpora.insert("ibsim_uplink", simulators());
    corpora.insert("mad_agent", conversations());
    corpora.insert("replay", scripts(&recorded));
    corpora.insert("sa", requests());
    corpora.insert("sm", fabrics());
    corpora.insert("trace", trace_lines()?);

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for (target, seeds) in corpora {
        fs::create_dir_all(folder.join(target))?;
        for (name, bytes) in seeds {
            fs::write(folder.join(target).join(name), bytes)?;
        }
    }
    Ok(())
}

fn behind(front: &[u8], bytes: &[u8]) -> Vec<u8> {
    [front, bytes].concat()
}

/// The first recorded MAD of each class, method and attribute.
fn recorded_mads() -> Result<Seeds, Box<dyn Error>> {
    let mut mads = Seeds::new();
    for trace in traces::all()? {
        for line in trace.lines {
            let (Line::Mad { bytes, .. } | Line::Segment { bytes, .. } | Line::Ack { bytes, .. }) =
                line
            else {
                continue;
            };
            let again = mads::reencode(&bytes)?;
            if let (Some(class), Some(attribute)) = (again.class, again.attribute) {
                let name = format!("{}-{}-{:02x}", class.name, attribute.name, bytes[3]);
                mads.entry(name.to_lowercase()).or_insert(bytes);
            }
        }
    }
    Ok(mads)
}

/// A few recorded MADs as packets, with and without GRH and immediate data.
fn frames(recorded: &Seeds) -> Result<Seeds, Box<dyn Error>> {
    let mut frames = Seeds::new();
    for (name, mad) in recorded.iter().step_by(20) {
        for (suffix, grh, immediate) in [
            ("", None, None),
            ("-grh", Some(Grh::new(Gid([1; 16]), Gid([2; 16]), 1)), None),
            ("-imm", None, Some([1, 2, 3, 4])),
        ] {
            let frame = UdFrame {
                vl: Vl::default(),
                sl: Sl::default(),
                slid: Lid::new(1),
                dlid: Lid::new(2),
                grh,
                pkey: PKey::DEFAULT_FULL,
                dest_qp: Qpn::GSI,
                src_qp: Qpn::GSI,
                qkey: QKey::GSI,
                psn: Psn::default(),
                solicited: false,
                immediate,
                payload: &mad[..255],
            };
            let mut bytes = vec![0; 400];
            let length = frame.write(&mut bytes)?;
            bytes.truncate(length);
            frames.insert(format!("{name}{suffix}"), bytes);
        }
    }
    Ok(frames)
}

fn capture(frame: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut writer = Writer::new(Vec::new())?;
    writer.write(Instant::from_millis(1), Interface::default(), frame)?;
    writer.write(
        Instant::from_millis(2),
        Interface::default(),
        &frame[..frame.len() / 2],
    )?;
    Ok(writer.finish()?)
}

/// One message of each kind, every byte behind the header different.
fn cm_messages() -> Seeds {
    let attributes = AttributeId::CM_REQ.get()..=AttributeId::CM_APR.get();
    attributes
        .map(|id| {
            let mut mad = Mad::new(cm::header(AttributeId::new(id)));
            for (at, byte) in (0_u8..).zip(&mut mad.data) {
                *byte = at;
            }
            let bytes = zerocopy::IntoBytes::as_bytes(&mad).to_vec();
            (format!("message-{id:02x}"), bytes)
        })
        .collect()
}

/// Conversations of the two agents, in the operations of the target: a request (0), an answer (1),
/// the passing of a MAD (2), time (5); the top bit is the side.
fn conversations() -> Seeds {
    let pass = [2, 0, 2, 0x82, 0, 2];
    let single = [&[0, 0, 0, 0, 11, 1][..], &pass, &[0x81, 0, 0], &pass].concat();
    let table = [
        &[0, 1, 1, 0, 11, 3][..],
        &pass,
        &[0x81, 0, 100],
        &pass.repeat(20),
    ]
    .concat();
    let both = [
        &[0, 1, 1, 60, 11, 3][..],
        &pass.repeat(12),
        &[0x81, 0, 90],
        &pass.repeat(16),
    ]
    .concat();
    let lost = [
        &[0, 2, 1, 60, 4, 3][..],
        &[7, 0, 5, 5, 7, 0, 5, 6].repeat(8),
    ]
    .concat();
    [
        ("single", single),
        ("table", table),
        ("dual-sided", both),
        ("lost", lost),
    ]
    .into_iter()
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .collect()
}

/// Clients of the ibsim server, in the operations of the target: one that connects (0), announces a
/// manager (1), sends SMPs (2) that are answered (3) or overdue (5), is asked (4) and reads (6).
fn attachments() -> Seeds {
    let connect = [0, 0, 0, 0, 0];
    let manage = [1, 9, 0, 1, 0, 0];
    let smp = |tid| [2, 0, 0, 0, 0, 0, 0, tid, 1, 0, 0, 0];
    let answered = [connect.as_slice(), &manage, &smp(1), &[3, 0, 0], &[6, 0, 0]].concat();
    let overdue = [connect.as_slice(), &smp(1), &smp(2), &[5, 12, 6, 0, 0]].concat();
    let asked = [
        connect.as_slice(),
        &manage,
        &smp(1),
        &[4, 0, 1, 0, 0, 0, 5, 2, 0, 0],
        &[6, 0, 1],
        &[7, 0, 0],
    ]
    .concat();
    [
        ("answered", answered),
        ("overdue", overdue),
        ("asked", asked),
    ]
    .into_iter()
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .collect()
}

/// Connections of the two managers, in the operations of the target: opening something (0), a
/// user's call (1), the passing of a MAD (3), time (5); the top bit is the side.
fn connections() -> Seeds {
    let listen = [0x80, 0, 1, 0];
    let req = [0, 1, 1, 2, 14, 14, 3, 10];
    let (pass, back) = ([3, 0, 2], [0x83, 0, 2]);
    let call = |side: u8, call: u8| [side | 1, 0, 14, call];
    let open = [
        &listen[..],
        &req,
        &pass,
        &call(0x80, 0),
        &back,
        &call(0, 1),
        &pass,
    ]
    .concat();
    let close = [&call(0, 4)[..], &pass, &call(0x80, 5), &back].concat();
    let migrate = [&call(0, 6)[..], &pass, &call(0x80, 7), &back].concat();
    let refuse = [&listen[..], &req, &pass, &call(0x80, 2), &back].concat();
    let wait = [
        &listen[..],
        &req,
        &pass,
        &call(0x80, 3),
        &back,
        &[5, 14, 5, 14],
    ]
    .concat();
    let sidr = [&listen[..], &[0, 3, 1, 9, 2], &pass, &call(0x80, 8), &back].concat();
    let peers = [
        &[0, 2, 1, 2, 14, 14, 3, 10][..],
        &[0x80, 2, 1, 3, 14, 14, 3, 10],
        &pass,
        &back,
    ]
    .concat();
    [
        ("connect", [&open[..], &close].concat()),
        ("migrate", [&open[..], &migrate, &close].concat()),
        ("refuse", refuse),
        ("wait", wait),
        ("sidr", sidr),
        ("peers", peers),
    ]
    .into_iter()
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .collect()
}

/// Joins, leaves, GUID requests and records of any bytes, from several hosts.
fn requests() -> Seeds {
    let mut operations = Vec::new();
    for number in 0..120_u8 {
        // Which port, a group, which kind of membership, join, no further components; who asks.
        operations.extend([
            1,
            number,
            1,
            number % 5,
            1 << (number % 4),
            number % 3,
            0,
            number,
        ]);
        // Which port and block, eight GUIDs, which method, all of them meant; who asks.
        operations.extend([
            4,
            number,
            number % 3,
            0,
            1,
            2,
            3,
            4,
            5,
            6,
            7,
            number,
            0xff,
            number,
        ]);
        // A table of any attribute without a mask.
        operations.extend([5, 0, 2, number, 0, number]);
    }
    [("requests".to_owned(), operations)].into()
}

/// What nodes answer to a subnet manager: mostly answers without damage, with all numbers.
fn fabrics() -> Seeds {
    let mut answers = Vec::new();
    for number in 0..200_u8 {
        // The operation, which request, and no harm done to it; five numbers for the attribute, and
        // no harm done to the answer.
        answers.extend([5, 0, 2, number, number.wrapping_mul(7), 3, 3, 3, 3]);
    }
    [("answers".to_owned(), answers)].into()
}

/// A simulator that lets an adapter attach, and then answers what it asks.
fn simulators() -> Seeds {
    let mut seeds = Seeds::new();
    for guids in [0_u8, 1] {
        // The sockets are open; CONNECT is answered with slot 3, unharmed.
        let mut steps = vec![guids, 0, 1, 3, 0];
        for number in 0..200_u8 {
            // Which question, a number, an active port, no harm done to the answer; then some time.
            steps.extend([
                2,
                number,
                100 + number / 2,
                4,
                0x40,
                0x40,
                15,
                5 + number % 4,
            ]);
        }
        seeds.insert(format!("answers-{guids}"), steps);
    }
    seeds
}

/// Scripts of what VFs and the wire send, and of everything that can happen besides.
fn scripts(recorded: &Seeds) -> Seeds {
    let hex = |mad: &[u8]| -> String { mad.iter().map(|byte| format!("{byte:02x}")).collect() };
    let sa = recorded.iter().filter(|(name, _)| name.starts_with("sa-"));
    let mut scripts: Seeds = sa
        .map(|(name, mad)| {
            let mad = hex(mad);
            let route = r#"{"sgid_index":1,"dgid":"fe80::1"}"#;
            let lines = [
                format!(r#"{{"at":1,"from":"vf:1","dlid":1,"mad":"{mad}"}}"#),
                format!(r#"{{"at":2,"from":"vf:2","dlid":9,"grh":{route},"mad":"{mad}"}}"#),
                format!(r#"{{"at":3,"from":"wire","slid":1,"mad":"{mad}"}}"#),
                r#"{"at":600003,"stats":true}"#.to_owned(),
            ];
            (name.clone(), lines.join("\n").into_bytes())
        })
        .collect();
    let events = [
        r#"{"config":{"seed":2,"vfs":3,"vf_pkeys":{"1":[0,null]},"smi_enabled":[2]}}"#,
        r#"{"at":0,"event":"client_reregister"}"#,
        r#"{"at":0,"event":"lid_change","lid":7}"#,
        r#"{"at":0,"event":"sm_change","sm_lid":2,"sm_sl":1}"#,
        r#"{"at":1,"event":"port_down"}"#,
        r#"{"at":1,"event":"port_up"}"#,
        r#"{"at":2,"event":"pkey_table","pkeys":["0x8001"]}"#,
        r#"{"at":2,"event":"gid_prefix","subnet_prefix":"fec0::"}"#,
        r#"{"at":3,"event":"vf_reset","vf":3}"#,
    ];
    scripts.insert("events".to_owned(), events.join("\n").into_bytes());
    scripts
}

/// The first lines of two kinds of traces.
fn trace_lines() -> Result<Seeds, Box<dyn Error>> {
    ["perfquery.txt", "rmpp-gettable.txt"]
        .into_iter()
        .map(|name| {
            let text = fs::read_to_string(traces::folder().join(name))?;
            let lines: Vec<&str> = text.lines().take(4).collect();
            Ok((name.to_owned(), lines.join("\n").into_bytes()))
        })
        .collect()
}
