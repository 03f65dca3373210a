//! A host whose link leaves the fabric.

use hca_api::FunctionId;

use ib_transport::{Answer, Ending, PathMtu, RemoteRange, Response, Run, RunOperation, Transfer};
use ib_wire::packet::{AethSyndrome, Bth, BthOpcode, Lrh, TransportService};
use ib_wire::{Mtu, RKey};

use super::*;
use crate::{Crossing, LinkState, PacketRun, PacketSource, PacketTemplate, PortConfig};

const LID: u16 = 5;
const PEER: u16 = 9;

/// A host that is cabled to a gateway.
struct Edge {
    bench: Bench,
    host: NodeId,
    gateway: NodeId,
    link: LinkId,
}

impl Edge {
    fn new() -> Self {
        let mut bench = Bench::new();
        let host = bench.host();
        let gateway = bench.fabric.add_gateway("outside", PortConfig::default());
        let link = bench.connect_by(host.port(1), gateway.port(1), LinkConfig::default());
        bench.run();
        Self {
            bench,
            host,
            gateway,
            link,
        }
    }

    fn give(&mut self, frame: Frame) {
        self.bench.fabric.send_from(self.gateway, frame);
        self.bench.run();
    }

    fn taken(&mut self) -> Vec<Frame> {
        let taken = || self.bench.fabric.take_from(self.gateway, Lanes::ALL);
        std::iter::from_fn(taken).collect()
    }

    /// Asks the host's SMA over the link, with the first hop made.
    fn ask(&mut self, mut mad: Mad) -> Mad {
        let smp: &mut DirectedRouteSmp = mad.view_mut();
        assert!(smp.set_path(&[1]));
        smp.set_hop_pointer(1);
        self.give(Frame::of_smp(&mad, Lid::PERMISSIVE, Lid::PERMISSIVE, Sl::default()).unwrap());
        let mut answers = self.taken();
        assert_eq!(answers.len(), 1);
        let answer = answers[0].smp().unwrap();
        assert!(answer.view::<DirectedRouteSmp>().is_returning());
        answer
    }

    fn set_state(&mut self, state: PortState) {
        let mut mad = request::<PortInfo>(Method::SET, 0);
        let now = self.ask(request::<PortInfo>(Method::GET, 0));
        let mut info: PortInfo = *now.view::<DirectedRouteSmp>().attribute();
        info.lid = Lid::new(LID);
        info.master_sm_lid = Lid::new(PEER);
        info.set_phys_state(ib_wire::smp::PortPhysState::NO_CHANGE);
        info.set_port_state(state);
        *mad.view_mut::<DirectedRouteSmp>().attribute_mut() = info;
        let answer = self.ask(mad);
        assert_eq!(answer.view::<DirectedRouteSmp>().status().get(), 0);
    }

    fn bring_up(&mut self) {
        self.set_state(PortState::ARMED);
        self.set_state(PortState::ACTIVE);
    }
}

#[test]
fn whoever_stands_behind_a_gateway_manages_the_port_and_exchanges_data_with_it() {
    let mut edge = Edge::new();
    edge.bring_up();
    edge.give(datagram(PEER, LID, &[1; 16]));
    let received = edge.bench.received(edge.host);
    assert_eq!(received.iter().map(payload).collect::<Vec<_>>(), [[1; 16]]);
    let out = datagram(LID, PEER, &[2; 16]);
    edge.bench.send(edge.host.port(1), out.clone());
    edge.bench.run();
    let left = edge.taken();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].bytes(), out.bytes());
}

#[test]
fn nothing_passes_a_gateway_whose_cable_is_out() {
    let mut edge = Edge::new();
    edge.bring_up();
    edge.bench.fabric.set_link(edge.link, LinkState::Down);
    edge.bench.run();
    assert_eq!(
        edge.bench.port(edge.host.port(1)).state,
        hca_api::PortState::Down
    );
    edge.give(datagram(PEER, LID, &[1; 16]));
    let out = datagram(LID, PEER, &[2; 16]);
    edge.bench.send(edge.host.port(1), out);
    edge.bench.run();
    assert!(edge.taken().is_empty());
    edge.bench.fabric.set_link(edge.link, LinkState::Up);
    edge.bench.run();
    assert!(edge.bench.received(edge.host).is_empty());
    edge.bring_up();
}

#[test]
fn a_host_waits_while_nobody_takes_what_arrived_at_a_gateway() {
    let mut edge = Edge::new();
    edge.bring_up();
    for byte in 0..255 {
        for _ in 0..2 {
            let packet = datagram(LID, PEER, &[byte]);
            edge.bench.send(edge.host.port(1), packet);
        }
    }
    edge.bench.run();
    let waiting = |edge: &Edge| edge.bench.fabric.device(edge.host).unwrap().outbox.len();
    assert_eq!(waiting(&edge), 510 - 256);
    let first = edge
        .bench
        .fabric
        .take_from(edge.gateway, Lanes::ALL)
        .unwrap();
    edge.bench.run();
    assert_eq!((payload(&first), waiting(&edge)), (vec![0], 510 - 257));
    let mut taken = 1;
    while let Some(frame) = edge.bench.fabric.take_from(edge.gateway, Lanes::ALL) {
        assert_eq!(usize::from(payload(&frame)[0]), taken / 2);
        taken += 1;
        edge.bench.run();
    }
    assert_eq!(taken, 510);
    assert!(edge.bench.fabric.take_from(edge.host, Lanes::ALL).is_none());
}

#[test]
fn what_a_gateway_cannot_keep_for_its_link_is_lost_and_counted() {
    let mut edge = Edge::new();
    edge.bring_up();
    for _ in 0..5000 {
        let packet = datagram(PEER, LID, &[3; 4]);
        edge.bench.fabric.send_from(edge.gateway, packet);
    }
    edge.bench.run();
    let arrived = edge.bench.received(edge.host).len();
    let lost = edge
        .bench
        .dropped(edge.gateway.port(1), DropReason::LinkFull);
    assert_eq!((arrived, lost), (4096, 904));
}

#[test]
fn t025a_a_packet_from_a_gateway_has_the_sender_that_its_owner_says() {
    let mut edge = Edge::new();
    edge.bring_up();
    let source = PacketSource {
        function: FunctionId(1),
        qpn: Qpn::GSI,
    };
    let frame = datagram(PEER, LID, &[1; 16]).sent_by(source);
    edge.give(frame);
    edge.give(datagram(PEER, LID, &[2; 16]));
    let received = edge.bench.received(edge.host);
    let sources: Vec<_> = received.iter().map(Frame::source).collect();
    assert_eq!(sources, [Some(source), None]);
}

fn template(service: TransportService) -> PacketTemplate {
    let mut lrh = Lrh {
        dlid: Lid::new(LID),
        ..Lrh::default()
    };
    lrh.set_vl(Vl::from_low_bits(1));
    PacketTemplate {
        source: Some(PacketSource {
            function: FunctionId(1),
            qpn: Qpn::GSI,
        }),
        service,
        pmtu: PathMtu::new(Mtu::MTU_256).unwrap(),
        lrh,
        grh: None,
        bth: Bth::default(),
    }
}

#[test]
fn t025a_a_run_from_a_gateway_is_cut_where_no_adapter_takes_it_whole() {
    let mut edge = Edge::new();
    edge.bring_up();
    let transfer = Transfer::Request(Run {
        psn: Psn::from_low_bits(0xff_ffff),
        packets: 3,
        operation: RunOperation::Send(Ending::Plain),
        first: true,
        last: true,
        len: 600,
        ack_request: false,
        solicited: false,
    });
    let run = PacketRun::new(template(TransportService::Uc), transfer, vec![7; 600]);
    let source = run.template().source;
    let fabric = &mut edge.bench.fabric;
    fabric.send_from(edge.gateway, Crossing::Run(run));
    assert_eq!(fabric.waiting_at(edge.gateway, Vl::from_low_bits(1)), 3);
    edge.bench.run();
    let received = edge.bench.received(edge.host);
    let seen = received.iter().map(|frame| {
        let bth = frame.bth().unwrap();
        (
            bth.opcode,
            bth.psn.get(),
            frame.source(),
            payload(frame).len(),
        )
    });
    assert_eq!(
        seen.collect::<Vec<_>>(),
        [
            (BthOpcode::UC_SEND_FIRST, 0xff_ffff, source, 256),
            (BthOpcode::UC_SEND_MIDDLE, 0, source, 256),
            (BthOpcode::UC_SEND_LAST, 1, source, 88),
        ]
    );
}

#[test]
fn a_run_is_read_from_the_headers_of_one_packet_that_stands_for_it() {
    let psn = Psn::from_low_bits(0xff_ffff);
    let range = RemoteRange {
        addr: 0x1000,
        rkey: RKey::new(9),
        len: 70_000,
    };
    let request = |operation, first, last, len: u32| {
        Transfer::Request(Run {
            psn,
            packets: len.div_ceil(256).max(1),
            operation,
            first,
            last,
            len,
            ack_request: last,
            solicited: false,
        })
    };
    let syndrome = AethSyndrome::Ack { credits: 3 };
    let response = |answer, packets| {
        Transfer::Response(Response {
            psn,
            packets,
            answer,
            msn: Psn::from_low_bits(4),
        })
    };
    let read = |len| Answer::Read {
        first: true,
        last: true,
        len,
        syndrome,
    };
    let immediate = Ending::Immediate([1, 2, 3, 4]);
    for transfer in [
        request(RunOperation::Send(Ending::Plain), true, true, 0),
        request(RunOperation::Send(Ending::Plain), false, false, 512),
        request(
            RunOperation::Send(Ending::Invalidate(RKey::new(5))),
            false,
            true,
            513,
        ),
        request(
            RunOperation::Write(Some(range), immediate),
            true,
            true,
            70_000,
        ),
        request(RunOperation::Read(range), true, true, 0),
        response(read(700), 3),
        response(Answer::Acknowledge(syndrome), 1),
    ] {
        let payload: Vec<u8> = (0..=250)
            .cycle()
            .take(transfer.payload_len() as usize)
            .collect();
        let run = PacketRun::new(template(TransportService::Rc), transfer, payload);
        let headers = run.headers().unwrap();
        let packet = run.packet(&headers, run.payload());
        let behind = [packet.extended, packet.payload].concat();
        let routing = (packet.lrh, packet.grh);
        let mtu = run.template().pmtu.code();
        let read = PacketRun::from_headers(mtu, routing, &packet.bth, behind.clone(), 0).unwrap();
        assert_eq!(
            (read.transfer(), read.payload()),
            (&transfer, run.payload())
        );
        assert_eq!((read.head(), read.template().source), (run.head(), None));
        assert!(PacketRun::from_headers(Mtu::new(6), routing, &packet.bth, behind, 0).is_none());
    }
}
