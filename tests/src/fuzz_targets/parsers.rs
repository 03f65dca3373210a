//! Targets that parse: bytes in, fields out, and where there is a writer, the same bytes again.

use emulated_hca::hca::Device;
use emulated_hca::{SourceText, TopologyFile};
use ib_capture::{Reader, Writer};
use ib_endpoint::smi;
use ib_wire::mad::Mad;
use ib_wire::notice::{
    CapabilityDetails, GidDetails, InformInfo, KeyDetails, LinkErrorDetails, LinkStateDetails,
    MKeyDetails, NoticeReport, SwitchPKeyDetails, SystemImageGuidDetails,
};
use ib_wire::packet::{Body, Packet, Transport, TransportFrame, link_header};
use ib_wire::rmpp::{RmppMad, SegmentLayout};
use ib_wire::sa::{self, SaMad, SaRecord};
use ib_wire::smp::{DirectedRouteSmp, NodeDescription};
use ib_wire::{PortNum, cm};
use zerocopy::{FromBytes, IntoBytes};

use crate::{mads, traces};

/// The front of the input as a MAD, filled up with zeros.
fn mad_of(data: &[u8]) -> Mad {
    let mut mad = Mad::default();
    let length = data.len().min(size_of::<Mad>());
    mad.as_mut_bytes()[..length].copy_from_slice(&data[..length]);
    mad
}

/// A packet from the LRH to the VCRC. One that is understood is written again from its parts.
pub(super) fn frame(data: &[u8]) {
    let packet = match Packet::parse(data) {
        Ok(packet) => packet,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert_eq!(link_header(data), Ok(packet.lrh));
    let intact = packet.check_crcs().is_ok();
    let payload = &data[packet.payload_range()];
    match &packet.body {
        Body::Transport(transport) => {
            assert_eq!(payload, transport.payload);
            rewrite(data, &packet, transport, intact);
        }
        Body::RawEthertype { payload: raw, .. } | Body::RawIpv6 { payload: raw } => {
            assert_eq!(payload, *raw);
        }
    }
}

fn rewrite(data: &[u8], packet: &Packet<'_>, transport: &Transport<'_>, intact: bool) {
    let padding = usize::from(transport.bth.pad_count());
    let range = packet.payload_range();
    let zero_padded = data[range.end..range.end + padding]
        .iter()
        .all(|byte| *byte == 0);
    let smallest_padding = range.len().next_multiple_of(4) - range.len() == padding;
    let grh = if packet.grh.is_some() { 40 } else { 0 };
    let frame = TransportFrame {
        lrh: *packet.lrh,
        grh: packet.grh.copied(),
        bth: *transport.bth,
        extended: &data[20 + grh..range.start],
        payload: transport.payload,
    };
    let mut out = vec![0xa5; data.len() + 4];
    let length = frame
        .write(&mut out)
        .expect("a packet that was parsed can be written");
    let again = Packet::parse(&out[..length]).expect("a packet that was written can be parsed");
    assert_eq!(again.check_crcs(), Ok(()));
    assert_eq!(
        again.transport().map(|t| t.payload),
        Some(transport.payload)
    );
    if intact && zero_padded && smallest_padding {
        assert_eq!(&out[..length], data);
    }
}

/// A MAD of any class: it is encoded again from its fields, and printed.
pub(super) fn mad(data: &[u8]) {
    let mad = mad_of(data);
    let again = mads::reencode(mad.as_bytes()).expect("a whole MAD");
    assert_eq!(again.bytes, mad.as_bytes());
    assert!(!format!("{:?}", mad.header).is_empty());
    let smp = mad.view::<DirectedRouteSmp>();
    assert_eq!(smp.path().is_some(), smp.hop_count() < 64);
    let description = smp.attribute::<NodeDescription>();
    assert!(description.trimmed().len() <= 64);
    assert_eq!(
        description.as_str().is_some(),
        std::str::from_utf8(description.trimmed()).is_ok()
    );
}

/// A table of each kind of record: two bytes of stride, then the payload.
pub(super) fn sa_records(data: &[u8]) {
    let Some((stride, payload)) = data.split_first_chunk::<2>() else {
        return;
    };
    let stride = u16::from_be_bytes(*stride);
    each_record::<sa::PathRecord>(payload, stride);
    each_record::<sa::MultiPathRecord>(payload, stride);
    each_record::<sa::McMemberRecord>(payload, stride);
    each_record::<sa::ServiceRecord>(payload, stride);
    each_record::<sa::NodeRecord>(payload, stride);
    each_record::<sa::PortInfoRecord>(payload, stride);
    each_record::<sa::GuidInfoRecord>(payload, stride);
    each_record::<sa::LinkRecord>(payload, stride);
    each_record::<sa::InformInfoRecord>(payload, stride);
    for record in sa::records::<sa::MultiPathRecord>(payload, stride) {
        let _ = record.endpoints();
        let mut copy = record;
        copy.set_service_id(record.service_id());
        assert_eq!(copy.as_bytes(), record.as_bytes());
    }
    for record in sa::records::<sa::ServiceRecord>(payload, stride) {
        assert!(record.name_bytes().len() <= 64);
    }
    let mad = mad_of(payload);
    let record = mad.view::<SaMad>().record::<sa::PathRecord>();
    assert_eq!(record.as_bytes(), &mad.view::<SaMad>().data[..64]);
}

fn each_record<R: SaRecord>(payload: &[u8], stride: u16) {
    let bytes = usize::from(stride) * 8;
    let records = sa::records::<R>(payload, stride).enumerate();
    let count = records
        .map(|(index, record)| {
            let start = index * bytes;
            assert_eq!(record.as_bytes(), &payload[start..start + size_of::<R>()]);
        })
        .count();
    assert!(count * bytes < payload.len() + bytes.max(1));
}

/// The eleven messages of the CM.
pub(super) fn cm_messages(data: &[u8]) {
    let mad = mad_of(data);
    let rej = mad.view::<cm::CmRej>();
    assert!(rej.ari_bytes().len() <= 72);
    let _ = rej.timeout_ca_guid();
    let lap = mad.view::<cm::CmLap>();
    let mut copy = *lap;
    copy.set_path(&lap.path());
    assert_eq!(copy.as_bytes(), lap.as_bytes());
    let req = mad.view::<cm::CmReq>();
    let _ = (req.primary.is_none(), req.alternate.is_none());
    assert!(cm::timeout_nanos(req.local_cm_response_timeout()) >= 4096);
    assert!(!format!("{req:?}{lap:?}{rej:?}").is_empty());
}

/// The RMPP header and its arithmetic: 8 bytes of lengths, then a MAD.
pub(super) fn rmpp(data: &[u8]) {
    let Some((numbers, rest)) = data.split_first_chunk::<8>() else {
        return;
    };
    let number = |at: usize| {
        u32::from_be_bytes([
            numbers[at],
            numbers[at + 1],
            numbers[at + 2],
            numbers[at + 3],
        ]) as usize
    };
    let (payload, segment) = (number(0), number(4));
    for layout in [SegmentLayout::SA, SegmentLayout::VENDOR_OUI] {
        let (start, end) = layout.range(payload, segment);
        assert!(start <= end && end <= payload && end - start <= layout.data);
        let last = layout.last_payload_length(payload);
        assert_eq!(layout.data_in_last(last), Some(last - layout.class_header));
        assert!(layout.first_payload_length(payload) >= payload);
        assert!(
            layout
                .data_in_last(segment)
                .is_none_or(|bytes| bytes <= layout.data)
        );
    }
    let rmpp = mad_of(rest).view::<RmppMad>().rmpp;
    let mut copy = rmpp;
    copy.set_flags(rmpp.flags());
    copy.set_resp_time(rmpp.resp_time());
    assert_eq!(copy, rmpp);
    assert!(!format!("{rmpp:?}").is_empty());
}

/// A notice with its issuer's GID, read as every trap's details, or an InformInfo.
pub(super) fn notice(data: &[u8]) {
    if let Ok((report, _)) = NoticeReport::read_from_prefix(data) {
        let notice = report.notice;
        let printed = format!(
            "{notice:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}",
            notice.details::<GidDetails>(),
            notice.details::<LinkStateDetails>(),
            notice.details::<LinkErrorDetails>(),
            notice.details::<CapabilityDetails>(),
            notice.details::<SystemImageGuidDetails>(),
            notice.details::<MKeyDetails>(),
            notice.details::<KeyDetails>(),
            notice.details::<SwitchPKeyDetails>(),
        );
        assert!(!printed.is_empty());
        assert_eq!(
            notice.details::<KeyDetails>().as_bytes(),
            notice.data_details
        );
    }
    if let Ok((inform, _)) = InformInfo::read_from_prefix(data) {
        assert!(inform.resp_time_value() < 32);
        assert_eq!(inform.as_bytes(), &data[..36]);
    }
}

/// What the SMI does to an SMP that is sent or received: 1 byte of port, then the SMP.
pub(super) fn smi(data: &[u8]) {
    let Some((port, rest)) = data.split_first() else {
        return;
    };
    let port = PortNum(*port);
    let mad = mad_of(rest);
    let _ = smi::outgoing(&mut mad.clone(), port);
    let _ = smi::incoming(&mut mad.clone(), port);
    let answer = smi::answer(&mad);
    assert_eq!(answer.header.tid, mad.header.tid);
}

/// A capture file. Frames that are read are written and read again.
pub(super) fn capture(data: &[u8]) {
    let Ok(reader) = Reader::new(data) else {
        return;
    };
    let mut writer = Writer::new(Vec::new()).expect("a Vec takes everything");
    let mut frames = Vec::new();
    for frame in reader {
        match frame {
            Ok(frame) => {
                if writer.write_record(&frame).is_ok() {
                    frames.push(frame);
                }
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                break;
            }
        }
    }
    let file = writer.finish().expect("a Vec takes everything");
    let again = Reader::new(file.as_slice()).expect("the header was just written");
    let again: Vec<_> = again
        .map(|frame| frame.expect("the frame was just written"))
        .collect();
    assert_eq!(again.len(), frames.len());
    for (again, frame) in again.iter().zip(&frames) {
        assert_eq!(again.bytes, frame.bytes);
    }
}

/// The parser of recorded conversations.
pub(super) fn trace(data: &[u8]) {
    if let Err(error) = traces::parse("fuzz", &String::from_utf8_lossy(data)) {
        assert!(!error.to_string().is_empty());
    }
}

/// A topology file that may include itself or a small one. One that is understood is built, written
/// and understood again.
pub(super) fn topology_file(data: &[u8]) {
    let source = SourceText {
        name: "fuzz".to_owned(),
        text: String::from_utf8_lossy(data).into_owned(),
    };
    let lines = source.text.lines().count();
    let itself = source.clone();
    let read = TopologyFile::parse_with(source, |name, from| match name {
        "itself" => Ok(itself.clone()),
        "small" => Ok(SourceText {
            name: name.to_owned(),
            text: "# small\nvendid=1\n".to_owned(),
        }),
        _ => Err(format!("{from} names it")),
    });
    match read {
        Ok(file) => {
            assert_eq!(
                file.nodes.len(),
                file.topology.hcas.len() + file.topology.switches.len()
            );
            let (_, built) = file.topology.build::<Device>(1);
            assert_eq!(built.links.len(), file.topology.links.len());
            let text = file.topology.to_net_file();
            let again =
                TopologyFile::parse("again", &text).expect("what was written is understood");
            assert_eq!(again.topology.links.len(), file.topology.links.len());
        }
        Err(error) => {
            assert!(error.line <= lines);
            assert!(!error.to_string().is_empty());
        }
    }
}
