//! Bodies of records of runs.
//!
//! A run has the headers of one packet that stands for all of its packets, with the whole payload behind them and without pad bytes and
//! checksums. The flags of the record are the code of the path MTU by which the packets are cut, as PortInfo has it (IBA 14.2.5.6), beside the flag of a sender in front.

use ib_fabric::{MAX_GATEWAY_RUN, PacketRun};
use ib_wire::Mtu;
use ib_wire::packet::{Bth, Grh, Lnh, Lrh};
use zerocopy::{FromBytes, IntoBytes};

use crate::record::{Kind, RecordSink, put_on};

/// Returns the bytes of the body of a run's record, or `None` if it has operations that no packet has.
pub(crate) fn length(run: &PacketRun) -> Option<usize> {
    let grh = run.template().grh.map_or(0, |_| size_of::<Grh>());
    let fixed = size_of::<Lrh>() + grh + size_of::<Bth>();
    Some(fixed + run.headers()?.extended().len() + run.payload().len())
}

/// Appends the record of a run, with the bytes of its sender in front and the flag for them.
pub(crate) fn put(out: &mut impl RecordSink, run: &PacketRun, (source, flag): (&[u8], u8)) {
    let Some(headers) = run.headers() else {
        return;
    };
    let mut packet = run.packet(&headers, run.payload());
    packet.lrh.set_length_words(0);
    packet.lrh.set_lnh(match packet.grh {
        Some(_) => Lnh::IbaGlobal,
        None => Lnh::IbaLocal,
    });
    packet.bth.set_pad_count(0);
    let lane = packet.lrh.vl();
    let parts = [
        source,
        packet.lrh.as_bytes(),
        packet.grh.as_ref().map_or(&[][..], IntoBytes::as_bytes),
        packet.bth.as_bytes(),
        packet.extended,
        packet.payload,
    ];
    put_on(
        out,
        Kind::Run,
        flag | run.template().pmtu.code().get(),
        lane,
        &parts,
    );
}

/// Reads the body of a run's record, which is in `bytes` from `at` on, and makes these the buffer of the run. Returns `None` for one that no end
/// may send.
pub(crate) fn read(mtu: u8, bytes: Vec<u8>, at: usize) -> Option<PacketRun> {
    let (lrh, behind) = Lrh::read_from_prefix(bytes.get(at..)?).ok()?;
    let (grh, behind) = match lrh.lnh() {
        Lnh::IbaLocal => (None, behind),
        Lnh::IbaGlobal => {
            let (grh, behind) = Grh::read_from_prefix(behind).ok()?;
            let is_grh =
                grh.ip_version() == Grh::VERSION && grh.next_header == Grh::NEXT_HEADER_IBA;
            (Some(grh).filter(|_| is_grh), is_grh.then_some(behind)?)
        }
        Lnh::RawEthertype | Lnh::RawIpv6 => return None,
    };
    let (bth, behind) = Bth::read_from_prefix(behind).ok()?;
    if lrh.link_version() != 0 || bth.transport_version() != 0 || bth.pad_count() != 0 {
        return None;
    }
    let behind = bytes.len() - behind.len();
    let run = PacketRun::from_headers(Mtu::new(mtu), (lrh, grh), &bth, bytes, behind)?;
    let head = run.head()?;
    (head.payload <= MAX_GATEWAY_RUN).then_some(run)
}
