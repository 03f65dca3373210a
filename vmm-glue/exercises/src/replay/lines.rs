//! The lines that a run prints.

use std::io::{self, Write};

use ib_vtime::Instant;
use ib_wire::mad::Mad;
use ib_wire::{Gid, PKey, QKey};
use pf_context::{Cause, Output, Route, Sizes};
use serde::{Serialize, Serializer};
use vf_tunnel::{SpecialQp, VfId};
use zerocopy::IntoBytes;

use super::text::{AsHex, Shown};

/// A printed line.
#[derive(Serialize)]
struct Line<T> {
    /// Milliseconds.
    at: u64,
    #[serde(serialize_with = "line_number")]
    cause: Cause,
    #[serde(flatten)]
    what: T,
}

#[derive(Serialize)]
struct ToWire<'a> {
    to: &'static str,
    qp: &'static str,
    dlid: u16,
    dqpn: u32,
    qkey: Shown<QKey>,
    sl: u8,
    pkey: Shown<PKey>,
    grh: Option<Grh>,
    mad: AsHex<'a>,
}

#[derive(Serialize)]
struct ToVf<'a> {
    to: Shown<VfId>,
    qp: &'static str,
    slid: u16,
    sqpn: u32,
    sl: u8,
    pkey_index: u16,
    grh: Option<Grh>,
    mad: AsHex<'a>,
}

#[derive(Serialize)]
struct ToldVf {
    to: Shown<VfId>,
    event: &'static str,
}

#[derive(Serialize)]
struct Dropped {
    drop: &'static str,
    vf: Option<u16>,
}

#[derive(Serialize)]
struct Stats {
    stats: TableSizes,
}

#[derive(Serialize)]
struct TableSizes {
    tids: usize,
    cm_ids: usize,
    mcast_groups: usize,
    mcast_members: usize,
    subscriptions: usize,
    path_cache: usize,
    queued: usize,
}

#[derive(Serialize)]
struct Grh {
    sgid: Shown<Gid>,
    dgid: Shown<Gid>,
    tclass: u8,
    flow: u32,
    hop: u8,
}

impl From<&Route> for Grh {
    fn from(route: &Route) -> Self {
        Self {
            sgid: Shown(route.sgid),
            dgid: Shown(route.dgid),
            tclass: route.traffic_class,
            flow: route.flow_label,
            hop: route.hop_limit,
        }
    }
}

/// The cause as a line number or the word for timers.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes fields by reference"
)]
fn line_number<S: Serializer>(cause: &Cause, serializer: S) -> Result<S::Ok, S::Error> {
    match *cause {
        Cause::TIMER => serializer.serialize_str("timer"),
        Cause(line) => serializer.serialize_u64(line),
    }
}

const fn qp_name(qp: SpecialQp) -> &'static str {
    match qp {
        SpecialQp::Smi => "smi",
        SpecialQp::Gsi => "gsi",
    }
}

fn hex(mad: &Mad) -> AsHex<'_> {
    AsHex(mad.as_bytes())
}

/// Prints what the mux did.
pub(super) fn write_output(
    out: &mut impl Write,
    at: Instant,
    cause: Cause,
    output: &Output,
) -> io::Result<()> {
    match output {
        Output::ToWire(send, mad) => {
            let what = ToWire {
                to: "wire",
                qp: qp_name(send.qp),
                dlid: send.dlid.get(),
                dqpn: send.dqpn.get(),
                qkey: Shown(send.qkey),
                sl: send.sl.get(),
                pkey: Shown(send.pkey),
                grh: send.grh.as_ref().map(Grh::from),
                mad: hex(mad),
            };
            write(out, at, cause, what)
        }
        Output::ToVf(to, mad) => {
            let what = ToVf {
                to: Shown(to.vf),
                qp: qp_name(to.qp),
                slid: to.slid.get(),
                sqpn: to.sqpn.get(),
                sl: to.sl.get(),
                pkey_index: to.pkey_index.0.0,
                grh: to.grh.as_ref().map(Grh::from),
                mad: hex(mad),
            };
            write(out, at, cause, what)
        }
        Output::VfEvent { vf, event } => {
            let what = ToldVf {
                to: Shown(*vf),
                event: event.as_str(),
            };
            write(out, at, cause, what)
        }
        Output::Dropped { vf, reason } => {
            let what = Dropped {
                drop: reason.as_str(),
                vf: vf.map(VfId::get),
            };
            write(out, at, cause, what)
        }
    }
}

/// Prints the sizes of the live tables.
pub(super) fn write_sizes(
    out: &mut impl Write,
    at: Instant,
    cause: Cause,
    sizes: &Sizes,
) -> io::Result<()> {
    let stats = TableSizes {
        tids: sizes.tids,
        cm_ids: sizes.cm_ids,
        mcast_groups: sizes.mcast_groups,
        mcast_members: sizes.mcast_members,
        subscriptions: sizes.subscriptions,
        path_cache: sizes.path_cache,
        queued: sizes.queued,
    };
    write(out, at, cause, Stats { stats })
}

fn write(out: &mut impl Write, at: Instant, cause: Cause, what: impl Serialize) -> io::Result<()> {
    let at = at.as_millis();
    serde_json::to_writer(&mut *out, &Line { at, cause, what })?;
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use ib_wire::{Lid, PKeyIndex, Qpn, Sl};
    use pf_context::{VfDelivery, VfEvent, WireSend};
    use vf_tunnel::{DropReason, VirtualPKeyIndex};

    use super::*;

    fn vf(number: u16) -> VfId {
        VfId::new(number).unwrap()
    }

    fn printed(at: u64, cause: Cause, output: &Output) -> String {
        let mut out = Vec::new();
        write_output(&mut out, Instant::from_millis(at), cause, output).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn mad() -> Mad {
        let mut bytes = [0; 256];
        bytes[0] = 1;
        bytes[255] = 0xfe;
        Mad::from_bytes(&bytes).unwrap()
    }

    fn mad_digits() -> String {
        format!("01{}fe", "00".repeat(254))
    }

    fn route() -> Route {
        Route {
            sgid: Gid([0xfe; 16]),
            dgid: Gid::from_parts(ib_wire::SubnetPrefix::DEFAULT, ib_wire::Guid::new(1)),
            traffic_class: 2,
            flow_label: 3,
            hop_limit: 4,
        }
    }

    #[test]
    fn a_mad_to_the_wire_has_the_fields_of_the_format_in_their_order() {
        let send = WireSend {
            vf: None,
            qp: SpecialQp::Gsi,
            dlid: Lid::new(1),
            dqpn: Qpn::GSI,
            qkey: QKey::GSI,
            sl: Sl::default(),
            pkey: PKey::DEFAULT_FULL,
            path_bits: 3,
            grh: None,
        };
        let output = Output::ToWire(send, mad());
        assert_eq!(
            printed(12, Cause(2), &output),
            format!(
                "{{\"at\":12,\"cause\":2,\"to\":\"wire\",\"qp\":\"gsi\",\"dlid\":1,\"dqpn\":1,\
                 \"qkey\":\"0x80010000\",\"sl\":0,\"pkey\":\"0xffff\",\"grh\":null,\
                 \"mad\":\"{}\"}}\n",
                mad_digits()
            )
        );
    }

    #[test]
    fn a_mad_to_a_vf_has_the_fields_of_the_format_in_their_order() {
        let to = VfDelivery {
            vf: vf(1),
            qp: SpecialQp::Smi,
            slid: Lid::new(7),
            sqpn: Qpn::SMI,
            sl: Sl::from_low_bits(5),
            pkey_index: VirtualPKeyIndex(PKeyIndex(6)),
            grh: Some(route()),
        };
        let output = Output::ToVf(to, mad());
        assert_eq!(
            printed(13, Cause::TIMER, &output),
            format!(
                "{{\"at\":13,\"cause\":\"timer\",\"to\":\"vf:1\",\"qp\":\"smi\",\"slid\":7,\
                 \"sqpn\":0,\"sl\":5,\"pkey_index\":6,\"grh\":{{\
                 \"sgid\":\"fefe:fefe:fefe:fefe:fefe:fefe:fefe:fefe\",\"dgid\":\"fe80::1\",\
                 \"tclass\":2,\"flow\":3,\"hop\":4}},\"mad\":\"{}\"}}\n",
                mad_digits()
            )
        );
    }

    #[test]
    fn events_and_drops_are_single_short_lines() {
        let event = Output::VfEvent {
            vf: vf(2),
            event: VfEvent::ClientReregister,
        };
        assert_eq!(
            printed(20, Cause(4), &event),
            "{\"at\":20,\"cause\":4,\"to\":\"vf:2\",\"event\":\"client_reregister\"}\n"
        );
        let reason = DropReason::BadLength;
        let of_a_vf = Output::Dropped {
            vf: Some(vf(1)),
            reason,
        };
        assert_eq!(
            printed(12, Cause(2), &of_a_vf),
            "{\"at\":12,\"cause\":2,\"drop\":\"bad_length\",\"vf\":1}\n"
        );
        let of_nobody = Output::Dropped { vf: None, reason };
        assert_eq!(
            printed(12, Cause(2), &of_nobody),
            "{\"at\":12,\"cause\":2,\"drop\":\"bad_length\",\"vf\":null}\n"
        );
    }

    #[test]
    fn sizes_are_printed_in_the_order_of_the_format() {
        let sizes = Sizes {
            tids: 1,
            cm_ids: 2,
            mcast_groups: 3,
            mcast_members: 4,
            subscriptions: 5,
            path_cache: 6,
            queued: 7,
        };
        let mut out = Vec::new();
        write_sizes(&mut out, Instant::from_millis(90_000), Cause(9), &sizes).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "{\"at\":90000,\"cause\":9,\"stats\":{\"tids\":1,\"cm_ids\":2,\"mcast_groups\":3,\
             \"mcast_members\":4,\"subscriptions\":5,\"path_cache\":6,\"queued\":7}}\n"
        );
    }
}
