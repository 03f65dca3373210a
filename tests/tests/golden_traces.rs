//! Every line of the recorded conversations of OpenSM and its tools, decoded, encoded again from its
//! fields, and compared with what the recorder understood.

use std::collections::BTreeMap;

use ib_wire::mad::{Mad, Method, MgmtClass};
use ib_wire::rmpp::{RmppFlags, RmppHeader, RmppMad, SegmentLayout};
use ib_wire::sa::SaMad;
use ib_wire::smp::{DirectedRouteSmp, LidRoutedSmp, NodeInfo, PKeyTable, PortInfo};
use vhca_tests::fields::Layout;
use vhca_tests::mads::{self, Reencoded};
use vhca_tests::traces::{self, Decoded, Direction, Line};
use zerocopy::IntoBytes;

/// How many lines of each kind were decoded.
type Counts = BTreeMap<String, usize>;

#[test]
fn every_line_of_the_traces_is_decoded_encoded_again_and_agrees_with_its_column() {
    let mut counts = Counts::new();
    let mut lines = 0;
    for trace in traces::all().unwrap() {
        let mut table = Table::default();
        for (index, line) in trace.lines.iter().enumerate() {
            let kind = check(line, &mut table)
                .unwrap_or_else(|error| panic!("{}:{}: {error}", trace.name, index + 1));
            *counts.entry(kind).or_default() += 1;
            lines += 1;
        }
        table
            .check_complete()
            .unwrap_or_else(|error| panic!("{}: {error}", trace.name));
    }
    for (kind, count) in &counts {
        println!("{count:5} {kind}");
    }
    println!("{lines:5} lines");
    assert_eq!(counts.values().sum::<usize>(), lines);
    assert_eq!(lines, 3221);
}

fn check(line: &Line, table: &mut Table) -> Result<String, String> {
    match line {
        Line::Control {
            direction,
            bytes,
            decoded,
        } => check_control(*direction, bytes, decoded),
        Line::Mad {
            envelope,
            bytes,
            decoded,
            ..
        } => check_mad(envelope, bytes, decoded),
        Line::Umad { bytes } => check_umad(bytes),
        Line::Heading(command) => {
            same("heading", command.starts_with("saquery sa-"), true)?;
            Ok("heading".to_owned())
        }
        Line::Remark(remark) => table.begin(remark),
        Line::TableHeader { bytes } => table.header(bytes),
        Line::Table { bytes } => table.table(bytes),
        Line::Segment { decoded, bytes } => table.segment(decoded, bytes),
        Line::Ack { decoded, bytes } => table.ack(decoded, bytes),
    }
}

/// Fails unless both are the same.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{what}: {found:?}, not {expected:?}"))
    }
}

/// A number of the column, decimal or with 0x.
fn number(text: &str) -> Result<u64, String> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .map_err(|error| format!("{text}: {error}"))
}

/// A number of the column, hexadecimal without 0x.
fn hex(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text, 16).map_err(|error| format!("{text}: {error}"))
}

/// Encodes a MAD again, requires that layouts of it exist, and compares its first `length` bytes. A
/// short table is filled up with zeros.
fn reencoded(bytes: &[u8], length: usize) -> Result<(Mad, Reencoded, String), String> {
    let mut whole = bytes.to_vec();
    whole.resize(bytes.len().max(256), 0);
    let reencoded = mads::reencode(&whole)?;
    let mad = Mad::from_bytes(&whole[..256]).ok_or("no MAD")?;
    let header = &mad.header;
    let class = reencoded
        .class
        .ok_or_else(|| format!("no layout of {}", header.mgmt_class))?;
    let attribute = reencoded
        .attribute
        .ok_or_else(|| format!("no layout of {} {}", class.name, header.attribute_id))?;
    same("bytes", &reencoded.bytes[..length], &bytes[..length])?;
    let kind = format!(
        "{} {} {}",
        class.name,
        method_name(header.method)?,
        attribute.name
    );
    Ok((mad, reencoded, kind))
}

/// The recorder's name of a method.
fn method_name(method: Method) -> Result<&'static str, String> {
    Ok(match method {
        Method::GET => "Get",
        Method::SET => "Set",
        Method::TRAP => "Trap",
        Method::REPORT => "Report",
        Method::TRAP_REPRESS => "TrapRepress",
        Method::GET_TABLE => "GetTable",
        Method::DELETE => "Delete",
        Method::GET_RESP => "GetResp",
        Method::REPORT_RESP => "ReportResp",
        Method::GET_TABLE_RESP => "GetTableResp",
        Method::DELETE_RESP => "DeleteResp",
        other => return Err(format!("method {other} has no name in the traces")),
    })
}

fn check_mad(
    envelope: &BTreeMap<String, String>,
    bytes: &[u8],
    decoded: &Decoded,
) -> Result<String, String> {
    same("bytes of the MAD", bytes.len(), 256)?;
    let length = usize::try_from(number(&envelope["len"])?).map_err(|e| e.to_string())?;
    let (mad, _, kind) = reencoded(bytes, length)?;
    same("name", kind.as_str(), decoded.words.join(" ").as_str())?;
    check_envelope(envelope, &mad)?;
    for (key, value) in &decoded.values {
        check_value(&mad, key, value).map_err(|error| format!("{key}: {error}"))?;
    }
    let required: &[&str] = match mad.header.mgmt_class {
        MgmtClass::SUBN_DIRECTED_ROUTE => &[
            "mod", "tid", "st", "D", "hopptr", "hopcnt", "drslid", "drdlid", "path", "mkey",
        ],
        MgmtClass::SUBN_LID_ROUTED => &["mod", "tid", "st", "mkey"],
        MgmtClass::SUBN_ADM => &["mod", "tid", "st", "rmpp.ver", "smkey", "aoff", "cmask"],
        _ => &["mod", "tid", "st"],
    };
    match required
        .iter()
        .find(|key| !decoded.values.contains_key(**key))
    {
        None => Ok(kind),
        Some(key) => Err(format!("the column lacks {key}")),
    }
}

/// The addresses beside a MAD: SMPs go between QP0s, all others between QP1s.
fn check_envelope(envelope: &BTreeMap<String, String>, mad: &Mad) -> Result<(), String> {
    let class = mad.header.mgmt_class;
    let qp = if class.is_smp() { "0" } else { "1" };
    for (key, value) in envelope {
        match key.as_str() {
            "sqp" | "dqp" => same(key, value.as_str(), qp)?,
            "slid" | "dlid" if class == MgmtClass::SUBN_DIRECTED_ROUTE => {
                same(key, value.as_str(), "65535")?;
            }
            "slid" | "dlid" => assert!(number(value)? < 0xc000, "unicast"),
            "st" => assert!(matches!(value.as_str(), "0" | "110"), "{value}"),
            "cl" => assert!(number(value)? < 10, "one of ten clients"),
            "len" => {}
            _ => return Err(format!("unknown key {key}")),
        }
    }
    Ok(())
}

/// Compares one value of the decode column with the field that it was taken from.
fn check_value(mad: &Mad, key: &str, value: &str) -> Result<(), String> {
    let header = &mad.header;
    match key {
        "mod" => return same("", header.attribute_modifier.get().into(), number(value)?),
        "tid" => return same("", header.tid.get(), hex(value)?),
        "st" => {
            let status = match header.mgmt_class {
                MgmtClass::SUBN_DIRECTED_ROUTE => header.status.without_direction(),
                _ => header.status,
            };
            return same("", status.get().into(), number(value)?);
        }
        _ => {}
    }
    match header.mgmt_class {
        MgmtClass::SUBN_DIRECTED_ROUTE => check_route_value(mad.view(), key, value),
        MgmtClass::SUBN_LID_ROUTED if key == "mkey" => {
            same("", mad.view::<LidRoutedSmp>().mkey.get(), hex(value)?)
        }
        MgmtClass::SUBN_ADM => check_sa_value(mad.view(), key, value),
        _ => Err("unknown key".to_owned()),
    }
}

fn check_route_value(smp: &DirectedRouteSmp, key: &str, value: &str) -> Result<(), String> {
    let path = |path: &[u8; 64]| {
        let hops = path[..=usize::from(smp.hop_count())].iter();
        hops.map(u8::to_string).collect::<Vec<_>>().join(".")
    };
    match key {
        "D" => same("", u64::from(smp.is_returning()), number(value)?),
        "hopptr" => same("", smp.hop_pointer().into(), number(value)?),
        "hopcnt" => same("", smp.hop_count().into(), number(value)?),
        "drslid" => same("", smp.dr_slid.get().into(), hex(value)?),
        "drdlid" => same("", smp.dr_dlid.get().into(), hex(value)?),
        "path" => same("", path(&smp.initial_path).as_str(), value),
        "rpath" => same("", path(&smp.return_path).as_str(), value),
        "mkey" => same("", smp.mkey.get(), hex(value)?),
        _ => Err("unknown key".to_owned()),
    }
}

fn check_sa_value(sa: &SaMad, key: &str, value: &str) -> Result<(), String> {
    let rmpp = &sa.rmpp;
    match key {
        "rmpp.ver" => same("", rmpp.version.into(), number(value)?),
        "rmpp.type" => same("", rmpp.rmpp_type.get().into(), number(value)?),
        "rmpp.rrt" => same("", rmpp.resp_time().into(), number(value)?),
        "rmpp.flags" => same("", rmpp.flags().get().into(), number(value)?),
        "rmpp.status" => same("", rmpp.status.get().into(), number(value)?),
        "rmpp.seg/d1" => same("", rmpp.segment_number.get().into(), number(value)?),
        "rmpp.plen/d2" => same("", rmpp.data2.get().into(), number(value)?),
        "smkey" => same("", sa.sm_key.get(), hex(value)?),
        "aoff" => same("", sa.attribute_offset.get().into(), number(value)?),
        "cmask" => same("", sa.component_mask.get(), hex(value)?),
        _ => Err("unknown key".to_owned()),
    }
}

/// The simulator's control datagram (80 bytes, little endian): the numbers in front, and data that
/// for some types is an SMP attribute.
fn check_control(direction: Direction, bytes: &[u8], decoded: &Decoded) -> Result<String, String> {
    same("bytes of the datagram", bytes.len(), 80)?;
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let names = [
        "ERROR",
        "CONNECT",
        "DISCONNECT",
        "GET_PORT",
        "GET_VENDOR",
        "GET_GID",
        "GET_GUID",
        "GET_NODEINFO",
        "GET_PORTINFO",
        "SET_ISSM",
        "GET_PKEYS",
    ];
    let name = usize::try_from(word(8))
        .ok()
        .and_then(|kind| names.get(kind))
        .ok_or("type")?;
    let text = |bytes: &[u8]| {
        let end = bytes
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    for (key, value) in &decoded.values {
        match key.as_str() {
            "magic" => same(key, word(0).into(), number(value)?)?,
            "clientid" => same(key, word(4).into(), number(value)?)?,
            "type" => same(key, *name, value.as_str())?,
            "len" => same(key, word(12).into(), number(value)?)?,
            "id" => same(key, word(16).into(), number(value)?)?,
            "qp" => same(key, word(20).into(), number(value)?)?,
            "issm" => same(key, word(24).into(), number(value)?)?,
            "nodeid" => same(key, text(&bytes[28..60]).as_str(), value.as_str())?,
            _ => return Err(format!("unknown key {key}")),
        }
    }
    let attribute = match *name {
        "GET_NODEINFO" => Some(Layout::of::<NodeInfo>()),
        "GET_PORTINFO" => Some(Layout::of::<PortInfo>()),
        "GET_PKEYS" => Some(Layout::of::<PKeyTable>()),
        _ => None,
    };
    if let (Direction::ToClient, Some(layout)) = (direction, attribute) {
        let mut out = [0xa5; 64];
        layout.reencode(&bytes[16..], &mut out);
        same("attribute", &out[..], &bytes[16..])?;
    }
    Ok(format!("control {name}"))
}

/// Bytes of the kernel's `struct ib_user_mad_hdr`.
const UMAD_HEADER: usize = 64;

fn check_umad(bytes: &[u8]) -> Result<String, String> {
    let (header, mad) = bytes.split_at(UMAD_HEADER);
    let (mad, _, kind) = reencoded(mad, mad.len())?;
    check_umad_header(header, &mad)?;
    Ok(format!("umad {kind}"))
}

/// Big-endian queue pair, Q_Key and LID stand at 20, 24 and 28 of the header.
fn check_umad_header(header: &[u8], mad: &Mad) -> Result<(), String> {
    let smp = mad.header.mgmt_class.is_smp();
    same("bytes of the header", header.len(), UMAD_HEADER)?;
    same("queue pair", &header[20..24], &[0, 0, 0, u8::from(!smp)])?;
    same("directed route", header[28..30] == [0xff; 2], smp)
}

/// A table that is taken apart into segments.
#[derive(Default)]
struct Table {
    remark: Option<Decoded>,
    mad: Vec<u8>,
    segments: Vec<Mad>,
    acks: usize,
}

/// Bytes in front of a table's records.
const SA_HEADERS: usize = 56;

impl Table {
    fn begin(&mut self, remark: &Decoded) -> Result<String, String> {
        self.check_complete()?;
        *self = Self {
            remark: Some(remark.clone()),
            ..Self::default()
        };
        Ok("remark on a table".to_owned())
    }

    fn header(&mut self, bytes: &[u8]) -> Result<String, String> {
        same("bytes of the header", bytes.len(), UMAD_HEADER)?;
        Ok("umad header of a table".to_owned())
    }

    fn table(&mut self, bytes: &[u8]) -> Result<String, String> {
        self.mad = bytes.to_vec();
        let (mad, reencoded, kind) = reencoded(bytes, bytes.len())?;
        let remark = self.remark.as_ref().ok_or("no remark on the table")?;
        let layout = reencoded.attribute.ok_or("no attribute")?.layout;
        let records = (bytes.len() - SA_HEADERS) / layout.size;
        // umad write 792 bytes: class 3 method 0x92 attr 0x0011 dlid 5 of 112 bytes
        let expected = format!(
            "umad write {} bytes: class 3 method {:#04x} attr {} dlid 5 of {} bytes RMPPFlags",
            bytes.len() + UMAD_HEADER,
            mad.header.method.get(),
            mad.header.attribute_id,
            layout.size
        );
        let words: Vec<&str> = remark
            .words
            .iter()
            .map(|word| word.trim_end_matches(','))
            .collect();
        same("remark", words.join(" ").as_str(), expected.as_str())?;
        same(
            "records",
            records as u64,
            number(&remark.values["records"])?,
        )?;
        let sa = mad.view::<SaMad>();
        same(
            "flags",
            sa.rmpp.flags().get().into(),
            number(&remark.values["byte"])?,
        )?;
        same(
            "version",
            sa.rmpp.version.into(),
            number(&remark.values["ver"])?,
        )?;
        same(
            "type",
            sa.rmpp.rmpp_type.get().into(),
            number(&remark.values["type"])?,
        )?;
        same(
            "stride",
            usize::from(sa.attribute_offset.get()) * 8,
            layout.size,
        )?;
        Ok(format!("table {kind}"))
    }

    /// The segments that carry the table's records, as [`SegmentLayout`] computes them.
    fn segment(&mut self, decoded: &Decoded, bytes: &[u8]) -> Result<String, String> {
        let (mad, _, kind) = reencoded_segment(bytes)?;
        self.segments.push(mad);
        let sa = mad.view::<SaMad>();
        let payload = &self.mad[SA_HEADERS..];
        let layout = SegmentLayout::SA;
        let (number_, count) = (self.segments.len(), layout.segments(payload.len()));
        same(
            "place",
            decoded.words.join(" ").as_str(),
            &format!("{number_}/{count}"),
        )?;
        let mut flags = RmppFlags::ACTIVE;
        let mut length = 0;
        if number_ == 1 {
            flags = flags.union(RmppFlags::FIRST);
            length = layout.first_payload_length(payload.len());
        }
        if number_ == count {
            flags = flags.union(RmppFlags::LAST);
            length = layout.last_payload_length(payload.len());
        }
        let as_u32 = |value: usize| u32::try_from(value).map_err(|e| e.to_string());
        let mut expected = RmppHeader::data(as_u32(number_)?, as_u32(length)?, flags);
        expected.set_resp_time(sa.rmpp.resp_time());
        same("RMPP header", sa.rmpp, expected)?;
        same(
            "flags",
            sa.rmpp.flags().get().into(),
            number(&decoded.values["flags"])?,
        )?;
        same(
            "length",
            length as u64,
            number(&decoded.values["PayloadLength"])?,
        )?;
        let (start, end) = layout.range(payload.len(), number_);
        let (data, padding) = sa.data.split_at(end - start);
        same("data", data, &payload[start..end])?;
        same("padding", padding.iter().all(|byte| *byte == 0), true)?;
        Ok(format!("segment of {kind}"))
    }

    fn ack(&mut self, decoded: &Decoded, bytes: &[u8]) -> Result<String, String> {
        let (mad, _, kind) = reencoded_segment(bytes)?;
        let rmpp = mad.view::<RmppMad>().rmpp;
        let value = |key: &str| {
            let value = decoded.values.get(key).ok_or_else(|| format!("no {key}"))?;
            u32::try_from(number(value)?).map_err(|error| error.to_string())
        };
        let mut expected = RmppHeader::ack(value("seg")?, value("newwin")?);
        expected.set_resp_time(rmpp.resp_time());
        same("RMPP header", rmpp, expected)?;
        self.acks += 1;
        Ok(format!("acknowledgement of {kind}"))
    }

    fn check_complete(&self) -> Result<(), String> {
        if self.remark.is_none() {
            return Ok(());
        }
        let count = SegmentLayout::SA.segments(self.mad.len().saturating_sub(SA_HEADERS));
        same("segments", self.segments.len(), count)?;
        same("some acknowledgement", self.acks > 0, true)
    }
}

/// A segment ends anywhere in a record, so only its headers have fields.
fn reencoded_segment(bytes: &[u8]) -> Result<(Mad, Reencoded, String), String> {
    same("bytes of the MAD", bytes.len(), 256)?;
    let mut out = [0xa5; 256];
    Layout::of::<SaMad>().reencode(bytes, &mut out);
    same("segment", &out[..], bytes)?;
    reencoded(bytes, 256)
}

#[test]
fn a_byte_that_differs_within_the_length_is_noticed() {
    let traces = traces::all().unwrap();
    let line = traces
        .iter()
        .flat_map(|trace| &trace.lines)
        .find_map(|line| match line {
            Line::Mad {
                envelope,
                bytes,
                decoded,
                ..
            } => Some((envelope, bytes, decoded)),
            _ => None,
        });
    let (envelope, bytes, decoded) = line.unwrap();
    assert!(check_mad(envelope, bytes, decoded).is_ok());
    let mut damaged = bytes.clone();
    damaged[15] ^= 1;
    assert!(
        check_mad(envelope, &damaged, decoded)
            .unwrap_err()
            .contains("tid")
    );
    assert_eq!(Mad::from_bytes(bytes).unwrap().as_bytes(), &bytes[..]);
}
