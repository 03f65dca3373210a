//! What a packet says: by our decoder, in the words of tshark's fields.

use ib_wire::mad::Mad;
use ib_wire::packet::{Aeth, Bth, Deth, Grh, Lrh, Packet, Reth};
use zerocopy::IntoBytes;

/// A field's value as tshark may print it: a number in either base, or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Number(u64),
    Address(String),
}

impl Value {
    /// Reads what tshark prints; `None` for an absent field.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return None;
        }
        let number = match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        };
        Some(number.map_or_else(|_| Self::Address(text.to_owned()), Self::Number))
    }
}

fn number(value: impl Into<u64>) -> Value {
    Value::Number(value.into())
}

/// The fields that are compared, in the order of [`decode`].
pub(crate) const NAMES: &[&str] = &[
    "infiniband.lrh.vl",
    "infiniband.lrh.lver",
    "infiniband.lrh.sl",
    "infiniband.lrh.lnh",
    "infiniband.lrh.dlid",
    "infiniband.lrh.pktlen",
    "infiniband.lrh.slid",
    "infiniband.grh.ipver",
    "infiniband.grh.tclass",
    "infiniband.grh.flowlabel",
    "infiniband.grh.paylen",
    "infiniband.grh.nxthdr",
    "infiniband.grh.hoplmt",
    "infiniband.grh.sgid",
    "infiniband.grh.dgid",
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.tver",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.mad.baseversion",
    "infiniband.mad.mgmtclass",
    "infiniband.mad.classversion",
    "infiniband.mad.method",
    "infiniband.mad.status",
    "infiniband.mad.transactionid",
    "infiniband.mad.attributeid",
    "infiniband.mad.attributemodifier",
];

fn lrh(lrh: &Lrh) -> [Option<Value>; 7] {
    [
        number(lrh.vl().get()),
        number(lrh.link_version()),
        number(lrh.sl().get()),
        number(lrh.as_bytes()[1] & 3),
        number(lrh.dlid.get()),
        number(lrh.length_words()),
        number(lrh.slid.get()),
    ]
    .map(Some)
}

fn grh(grh: Option<&Grh>) -> [Option<Value>; 8] {
    let Some(grh) = grh else {
        return [const { None }; 8];
    };
    [
        number(grh.ip_version()),
        number(grh.traffic_class()),
        number(grh.flow_label()),
        number(grh.payload_length.get()),
        number(grh.next_header),
        number(grh.hop_limit),
        Value::Address(grh.sgid.to_string()),
        Value::Address(grh.dgid.to_string()),
    ]
    .map(Some)
}

fn bth(bth: &Bth) -> [Option<Value>; 9] {
    [
        number(bth.opcode.get()),
        number(bth.solicited()),
        number(bth.migrated()),
        number(bth.pad_count()),
        number(bth.transport_version()),
        number(bth.pkey.get()),
        number(bth.dest_qp.get()),
        number(bth.ack_request()),
        number(bth.psn.get()),
    ]
    .map(Some)
}

fn deth(deth: Option<&Deth>) -> [Option<Value>; 2] {
    let Some(deth) = deth else {
        return [const { None }; 2];
    };
    [number(deth.qkey.get()), number(deth.src_qp.get())].map(Some)
}

fn reth(reth: Option<&Reth>) -> [Option<Value>; 3] {
    let Some(reth) = reth else {
        return [const { None }; 3];
    };
    [
        number(reth.virtual_address.get()),
        number(reth.rkey.get()),
        number(reth.dma_length.get()),
    ]
    .map(Some)
}

fn aeth(aeth: Option<&Aeth>) -> [Option<Value>; 2] {
    let Some(aeth) = aeth else {
        return [const { None }; 2];
    };
    [number(aeth.syndrome_byte), number(aeth.msn.get())].map(Some)
}

/// tshark takes what goes to or comes from QP0 and QP1 for a MAD.
fn mad(payload: &[u8], is_management: bool) -> [Option<Value>; 8] {
    let Some(mad) = Mad::from_bytes(payload).filter(|_| is_management) else {
        return [const { None }; 8];
    };
    let header = mad.header;
    [
        number(header.base_version),
        number(header.mgmt_class.get()),
        number(header.class_version),
        number(header.method.get()),
        number(header.status.get()),
        number(header.tid.get()),
        number(header.attribute_id.get()),
        number(header.attribute_modifier.get()),
    ]
    .map(Some)
}

/// The values of all [`NAMES`] for a packet.
pub(crate) fn decode(frame: &[u8]) -> Vec<Option<Value>> {
    let packet = Packet::parse(frame).expect("a packet");
    let transport = packet.transport().expect("an IBA packet");
    let extended = &transport.extended;
    let is_management = transport.bth.dest_qp.get() <= 1;
    let mut values = Vec::with_capacity(NAMES.len());
    values.extend(lrh(packet.lrh));
    values.extend(grh(packet.grh));
    values.extend(bth(transport.bth));
    values.extend(deth(extended.deth));
    values.extend(reth(extended.reth));
    values.extend(aeth(extended.aeth));
    values.extend(mad(transport.payload, is_management));
    values
}
