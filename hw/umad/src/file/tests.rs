//! Each behaviour of the kernel's umad, on an adapter with one port and a peer.

use ib_endpoint::Message;
use ib_wire::Tid;
use ib_wire::mad::{MadStatus, Method};
use ib_wire::rmpp::{RmppFlags, RmppHeader, RmppMad};
use zerocopy::FromBytes;

use super::*;
use crate::abi::HEADER_SIZE;
use crate::testing::{
    OURS, OnePort, PEERS, PORT, Peer, at, exchange, parsed, request, sa_mad, written,
};

/// A file with one agent for the SA's class, and what it runs on.
struct Bench {
    port: OnePort,
    peer: Peer,
    file: UmadFile,
    agent: u32,
}

impl Bench {
    fn new(methods: &[Method], rmpp: bool) -> Self {
        Self::with_limits(methods, rmpp, FileLimits::default())
    }

    fn with_limits(methods: &[Method], rmpp: bool, limits: FileLimits) -> Self {
        let mut port = OnePort::new();
        let mut file = UmadFile::new(PORT, limits);
        let request = request(MgmtClass::SUBN_ADM, methods, rmpp);
        let agent = file.register(&mut port, &request, true).unwrap();
        Self {
            port,
            peer: Peer::new(),
            file,
            agent,
        }
    }

    fn write(&mut self, timeout_ms: u32, mad: &[u8]) -> Result<(), Errno> {
        let bytes = written(self.agent, timeout_ms, mad);
        self.file.write(at(0), &mut self.port, &bytes)
    }

    fn run(&mut self, now: u64) {
        self.port.gsi.handle_timeout(at(now));
        self.peer.agent.handle_timeout(at(now));
        self.file.poll(at(now), &mut self.port, usize::MAX);
        exchange(now, &mut self.port, &mut self.peer);
        self.file.poll(at(now), &mut self.port, usize::MAX);
    }

    fn read(&mut self) -> Option<Vec<u8>> {
        self.file.poll_read().map(|packet| packet.bytes)
    }

    fn answer(&mut self, now: u64, data: Option<Vec<u8>>) -> Mad {
        self.peer.answer(at(now), data)
    }
}

fn payload(len: usize) -> Vec<u8> {
    (0_u8..251).cycle().take(len).collect()
}

#[test]
fn a_request_goes_out_with_the_low_half_of_its_id_and_its_answer_comes_back() {
    let mut bench = Bench::new(&[], true);
    let mut mad = sa_mad(Method::GET, 0xdead_beef_0000_1234);
    mad.data[200] = 0x5a;
    bench.write(100, mad.as_bytes()).unwrap();
    bench.run(0);
    let asked = bench.answer(1, None);
    assert_eq!(asked.header.tid.get() & 0xffff_ffff, 0x1234);
    assert_eq!(asked.data[200], 0x5a, "all 256 bytes travel");
    bench.run(1);
    let bytes = bench.read().unwrap();
    let (header, answer) = parsed(&bytes);
    assert_eq!(header.id.get(), bench.agent);
    assert_eq!(header.status.get(), 0);
    assert_eq!(header.length.get(), 64 + 256);
    assert_eq!((header.lid, header.qpn.get()), (PEERS, 1));
    assert_eq!(header.qkey.get(), 0, "the kernel does not tell it");
    let answer = Mad::read_from_bytes(answer).unwrap();
    assert_eq!(answer.header.tid, asked.header.tid);
    assert_eq!(answer.header.method, Method::GET_RESP);
    assert!(bench.read().is_none());
}

#[test]
fn an_unanswered_request_comes_back_after_its_retries_with_etimedout() {
    let mut bench = Bench::new(&[], true);
    let mad = sa_mad(Method::GET, 7);
    let mut bytes = written(bench.agent, 100, mad.as_bytes());
    bytes[12] = 2; // retries
    bench.file.write(at(0), &mut bench.port, &bytes).unwrap();
    for now in (0..300).step_by(50) {
        bench.run(now);
        assert!(bench.read().is_none(), "at {now}");
    }
    bench.run(300);
    let bytes = bench.read().unwrap();
    let (header, head) = parsed(&bytes);
    assert_eq!(header.status.get(), 110);
    assert_eq!(header.id.get(), bench.agent);
    assert_eq!((header.lid, header.timeout_ms.get()), (PEERS, 100));
    assert_eq!(head.len(), 24, "the common header only");
    let head = MadHeader::read_from_bytes(head).unwrap();
    assert_eq!(head.method, Method::GET);
    assert_eq!(head.tid.get() & 0xffff_ffff, 7);
    assert_eq!(bench.peer.agent.counters().received, 3);
    assert_eq!(bench.file.counters().timed_out, 1);
}

#[test]
fn a_request_without_a_timeout_expects_nothing() {
    let mut bench = Bench::new(&[], true);
    bench.write(0, sa_mad(Method::GET, 7).as_bytes()).unwrap();
    bench.run(0);
    bench.answer(1, None);
    bench.run(1);
    bench.run(100_000);
    assert!(bench.read().is_none());
    assert!(bench.port.gsi.sizes().is_empty());
}

#[test]
fn a_short_mad_is_filled_up_with_zeros() {
    let mut bench = Bench::new(&[], true);
    let mad = sa_mad(Method::GET, 7);
    bench.write(100, &mad.as_bytes()[..60]).unwrap();
    bench.run(0);
    assert_eq!(bench.answer(0, None).data, mad.data);
}

#[test]
fn a_busy_answer_is_read_like_any_other() {
    let mut bench = Bench::new(&[], true);
    bench.write(100, sa_mad(Method::GET, 7).as_bytes()).unwrap();
    let sent = bench.port.gsi.poll_transmit(at(0)).unwrap().mad;
    let mut busy = sent;
    busy.header.method = Method::GET_RESP;
    busy.header.status = MadStatus::BUSY;
    bench
        .port
        .gsi
        .handle_mad(at(1), &MadAddress::gsi(PEERS), &busy);
    bench.run(1);
    assert_eq!(bench.read().unwrap().len(), 320);
}

#[test]
fn a_second_request_with_the_same_id_comes_back_with_einval() {
    let mut bench = Bench::new(&[], true);
    let mad = sa_mad(Method::GET, 7);
    bench.write(100, mad.as_bytes()).unwrap();
    bench.write(100, mad.as_bytes()).unwrap();
    let bytes = bench.read().unwrap();
    assert_eq!(parsed(&bytes).0.status.get(), 22);
    assert_eq!(bench.file.counters().refused, 1);
    bench.run(0);
    assert_eq!(bench.peer.agent.counters().received, 1);
}

#[test]
fn a_table_under_rmpp_is_read_as_one_message() {
    let mut bench = Bench::new(&[], true);
    bench
        .write(1000, sa_mad(Method::GET_TABLE, 7).as_bytes())
        .unwrap();
    bench.run(0);
    let data = payload(64 * 500);
    bench.answer(1, Some(data.clone()));
    bench.run(1);
    let bytes = bench.read().unwrap();
    let (header, message) = parsed(&bytes);
    assert_eq!(message.len(), 56 + data.len());
    assert_eq!(header.length.get() as usize, bytes.len());
    assert_eq!(message[56..], data);
    let head = RmppMad::read_from_prefix(&bytes[64..]).unwrap().0;
    assert_eq!(head.rmpp.segment_number.get(), 1);
    assert!(head.rmpp.flags().contains(RmppFlags::FIRST));
}

#[test]
fn a_response_of_one_segment_under_rmpp_is_as_long_as_its_data() {
    let mut bench = Bench::new(&[], true);
    bench
        .write(1000, sa_mad(Method::GET_TABLE, 7).as_bytes())
        .unwrap();
    bench.run(0);
    bench.answer(1, Some(payload(10)));
    bench.run(1);
    assert_eq!(bench.read().unwrap().len(), 64 + 56 + 10);
}

/// The peer asks the program.
fn asked(bench: &mut Bench, method: Method) -> Vec<u8> {
    let message = Message::single(sa_mad(method, 0));
    let policy = RetryPolicy::new(Duration::from_secs(1), 0);
    bench
        .peer
        .agent
        .send_request(at(0), bench.peer.id, MadAddress::gsi(OURS), message, policy)
        .unwrap();
    bench.run(0);
    bench.read().expect("the program reads the request")
}

#[test]
fn a_program_answers_a_request_with_a_whole_table() {
    let mut bench = Bench::new(&[Method::GET_TABLE], true);
    let bytes = asked(&mut bench, Method::GET_TABLE);
    let (header, mad) = parsed(&bytes);
    assert_eq!(header.lid, PEERS);
    let mut mad = Mad::read_from_bytes(mad).unwrap();
    mad.header.method = Method::GET_TABLE_RESP;
    mad.view_mut::<RmppMad>().rmpp = RmppHeader::data(0, 0, RmppFlags::ACTIVE);
    let data = payload(100_000);
    let message = [&mad.as_bytes()[..56], &data].concat();
    bench.write(0, &message).unwrap();
    bench.run(1);
    let Some(AgentEvent::Response { message, .. }) = bench.peer.agent.poll_event() else {
        panic!("no answer");
    };
    assert_eq!(message.data(), data);
    assert!(bench.read().is_none(), "success is not told");
    assert!(bench.file.transfers.is_empty());
}

#[test]
fn a_response_under_rmpp_that_nobody_acknowledges_comes_back_with_etimedout() {
    let mut bench = Bench::new(&[Method::GET_TABLE], true);
    let bytes = asked(&mut bench, Method::GET_TABLE);
    let mut mad = Mad::read_from_bytes(parsed(&bytes).1).unwrap();
    let tid = mad.header.tid;
    mad.header.method = Method::GET_TABLE_RESP;
    mad.view_mut::<RmppMad>().rmpp = RmppHeader::data(0, 0, RmppFlags::ACTIVE);
    let message = [&mad.as_bytes()[..56], &payload(1000)].concat();
    bench.write(0, &message).unwrap();
    for now in (0..60_000).step_by(1000) {
        bench.port.gsi.handle_timeout(at(now));
        while bench.port.gsi.poll_transmit(at(now)).is_some() {}
        bench.file.poll(at(now), &mut bench.port, usize::MAX);
    }
    let bytes = bench.read().unwrap();
    let (header, head) = parsed(&bytes);
    assert_eq!(header.status.get(), 110);
    let head = MadHeader::read_from_bytes(head).unwrap();
    assert_eq!((head.method, head.tid), (Method::GET_TABLE_RESP, tid));
    assert!(bench.port.gsi.sizes().is_empty());
}

#[test]
fn an_agent_without_rmpp_reads_and_writes_packets() {
    let mut bench = Bench::new(&[Method::GET_MULTI], false);
    let mut packet = sa_mad(Method::GET_MULTI, 9);
    packet.view_mut::<RmppMad>().rmpp = RmppHeader::data(2, 0, RmppFlags::ACTIVE);
    let from = MadAddress::gsi(PEERS);
    bench.port.gsi.handle_mad(at(0), &from, &packet);
    bench.run(0);
    assert_eq!(bench.read().unwrap()[64..], *packet.as_bytes());
    packet.header.method = Method::GET_MULTI_RESP;
    bench.write(0, packet.as_bytes()).unwrap();
    let sent = bench.port.gsi.poll_transmit(at(0)).unwrap().mad;
    assert_eq!(sent, packet);
    assert!(bench.port.gsi.sizes().is_empty());
}

#[test]
fn the_old_header_has_56_bytes() {
    let mut port = OnePort::new();
    let mut file = UmadFile::new(PORT, FileLimits::default());
    let request = request(MgmtClass::SUBN_ADM, &[Method::GET], false);
    file.register(&mut port, &request, false).unwrap();
    assert_eq!(file.enable_pkey(), Err(Errno::EINVAL));
    let mad = sa_mad(Method::GET, 1);
    let from = MadAddress::gsi(PEERS);
    port.gsi.handle_mad(at(0), &from, &mad);
    file.poll(at(0), &mut port, usize::MAX);
    let packet = file.poll_read().unwrap();
    assert_eq!((packet.header_size, packet.bytes.len()), (56, 56 + 256));
    assert_eq!(packet.bytes[16..20], (56_u32 + 256).to_ne_bytes());
    let mut bytes = written(0, 100, mad.as_bytes());
    bytes.drain(56..HEADER_SIZE);
    file.write(at(0), &mut port, &bytes).unwrap();
    assert!(port.gsi.poll_transmit(at(0)).is_some());
}

#[test]
fn agents_of_several_files_share_a_port_by_methods() {
    let mut bench = Bench::new(&[Method::GET], true);
    let mut other = UmadFile::new(PORT, FileLimits::default());
    let same = request(MgmtClass::SUBN_ADM, &[Method::GET], true);
    assert_eq!(
        other.register(&mut bench.port, &same, true),
        Err(Errno::EINVAL)
    );
    let different = request(MgmtClass::SUBN_ADM, &[Method::SET], true);
    other.register(&mut bench.port, &different, true).unwrap();
    let from = MadAddress::gsi(PEERS);
    let set = sa_mad(Method::SET, 1);
    bench.port.gsi.handle_mad(at(0), &from, &set);
    bench.run(0);
    other.poll(at(0), &mut bench.port, usize::MAX);
    assert!(bench.read().is_none());
    assert_eq!(other.poll_read().unwrap().bytes[64..], *set.as_bytes());
}

#[test]
fn an_unregistered_agent_leaves_nothing_under_way_and_what_it_received_readable() {
    let mut bench = Bench::new(&[Method::GET], true);
    let from = MadAddress::gsi(PEERS);
    bench
        .port
        .gsi
        .handle_mad(at(0), &from, &sa_mad(Method::GET, 1));
    bench.run(0);
    bench.write(100, sa_mad(Method::GET, 2).as_bytes()).unwrap();
    let agent = bench.agent;
    bench.file.unregister(&mut bench.port, agent).unwrap();
    assert!(bench.port.gsi.sizes().is_empty());
    assert!(bench.read().is_some());
    bench.run(1000);
    assert!(bench.read().is_none());
    let mad = sa_mad(Method::GET, 3);
    assert_eq!(bench.write(100, mad.as_bytes()), Err(Errno::EIO));
    assert_eq!(
        bench.file.unregister(&mut bench.port, agent),
        Err(Errno::EINVAL)
    );
}

#[test]
fn a_closed_file_leaves_nothing_on_the_port() {
    let mut bench = Bench::new(&[Method::GET], true);
    bench.write(100, sa_mad(Method::GET, 2).as_bytes()).unwrap();
    bench.file.close(&mut bench.port);
    assert!(bench.port.gsi.sizes().is_empty());
    let mut next = UmadFile::new(PORT, FileLimits::default());
    let same = request(MgmtClass::SUBN_ADM, &[Method::GET], true);
    next.register(&mut bench.port, &same, true).unwrap();
}

#[test]
fn without_qp0_there_is_no_agent_for_smps() {
    let mut port = OnePort::new();
    port.has_qp0 = false;
    let mut file = UmadFile::new(PORT, FileLimits::default());
    let smp = request(MgmtClass::SUBN_DIRECTED_ROUTE, &[], false);
    assert_eq!(file.register(&mut port, &smp, true), Err(Errno::ENODEV));
    port.has_qp0 = true;
    assert_eq!(file.register(&mut port, &smp, true), Ok(0));
}

#[test]
fn more_requests_than_may_be_under_way_wait_and_lose_none() {
    let limits = FileLimits {
        outstanding: 3,
        ..FileLimits::default()
    };
    let mut bench = Bench::with_limits(&[], true, limits);
    for tid in 0..10 {
        bench
            .write(100, sa_mad(Method::GET, tid).as_bytes())
            .unwrap();
    }
    assert_eq!(bench.port.gsi.sizes().requests, 3);
    for now in (0..1000).step_by(50) {
        bench.run(now);
    }
    let mut tids = std::iter::from_fn(|| bench.read())
        .map(|bytes| MadHeader::read_from_bytes(parsed(&bytes).1).unwrap())
        .map(|head| head.tid.get() & 0xffff_ffff)
        .collect::<Vec<_>>();
    tids.sort_unstable();
    assert_eq!(tids, (0..10).collect::<Vec<_>>());
    assert_eq!(bench.file.waiting_bytes, 0);
}

#[test]
fn received_messages_beyond_the_limit_are_dropped_and_counted() {
    let limits = FileLimits {
        unread: 2,
        ..FileLimits::default()
    };
    let mut bench = Bench::with_limits(&[Method::GET], true, limits);
    let from = MadAddress::gsi(PEERS);
    for tid in 0..5 {
        let mad = sa_mad(Method::GET, tid);
        bench.port.gsi.handle_mad(at(0), &from, &mad);
    }
    bench.run(0);
    assert_eq!(bench.file.counters().unread_dropped, 3);
    let first = bench.read().unwrap();
    let tid = MadHeader::read_from_prefix(parsed(&first).1).unwrap().0.tid;
    assert_eq!(tid, Tid::new(0), "the oldest stay");
}

#[test]
fn who_writes_and_never_reads_is_made_to_wait() {
    let limits = FileLimits {
        outstanding: 2,
        waiting_bytes: 4000,
        unread: 2,
        ..FileLimits::default()
    };
    let mut bench = Bench::with_limits(&[], true, limits);
    let mut tid = 0;
    while bench.file.takes_writes() {
        bench
            .write(100, sa_mad(Method::GET, tid).as_bytes())
            .unwrap();
        tid += 1;
    }
    assert!(tid < 20);
    for now in (0..2000).step_by(50) {
        bench.run(now);
    }
    assert!(!bench.file.takes_writes(), "nothing was read");
    while bench.read().is_some() {}
    assert!(bench.file.takes_writes());
}
