//! RC and UC queue pairs of VFs that programs hold: connected through the CM, written, read, and given back.

use std::time::Duration;

use emulated_hca::{Fault, FaultPlan, PacketFilter, TapPoint, When};
use hca_api::{
    AccessFlags, CompletionFlags, CompletionOp, CompletionStatus, HcaError, Payload, QpState, RKey,
    RemoteAddress, SendFlags, SendOp,
};
use ib_endpoint::cm::{CmEventKind, ConnId};
use ib_vtime::{Instant, SplitMix64};
use ib_wire::cm::CmRep;
use ib_wire::{PKey, Psn, ServiceId};
use vf_proxy::native::{
    ConnectedQp, ConnectedQpId, ConnectedQpSpec, MemoryRegion, Partition, Peer, VfPortError,
    VfPortEvent, VirtualHcaEvent,
};
use vhca_tests::effort::full;
use vhca_tests::vf_subnet::VfAt;

use super::{VfSubnet, start};

const A1: VfAt = VfAt { host: 0, vf: 1 };
const A2: VfAt = VfAt { host: 0, vf: 2 };
const B1: VfAt = VfAt { host: 1, vf: 1 };

const SERVICE: ServiceId = ServiceId::new(0x4242);
/// Bytes of a region.
const REGION: usize = 1 << 16;
const OK: CompletionStatus = CompletionStatus::Success;
const DEFAULT: Partition = Partition::Key(PKey::DEFAULT_FULL);

/// A queue pair with a region that its peer may do everything with.
#[derive(Clone, Copy, Debug)]
struct End {
    at: VfAt,
    qp: ConnectedQpId,
    region: MemoryRegion,
}

fn rights() -> AccessFlags {
    AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_ATOMIC
}

fn open(subnet: &mut VfSubnet, at: VfAt, spec: &ConnectedQpSpec, psn: u32) -> End {
    let spec = ConnectedQpSpec {
        sq_psn: Psn::from_low_bits(psn),
        ..*spec
    };
    let opened = subnet.on_port(at, |_, port, hca| {
        let region = port.reg_mr(hca, REGION, rights())?;
        Ok::<_, VfPortError>((port.open_connected_qp(hca, &spec)?, region))
    });
    let (qp, region) = opened.expect("a queue pair");
    End { at, qp, region }
}

fn on<T>(
    subnet: &mut VfSubnet,
    end: &End,
    call: impl FnOnce(&ConnectedQp, &mut dyn hca_api::Hca) -> T,
) -> T {
    subnet.on_port(end.at, |_, port, hca| {
        call(port.connected_qp(end.qp).expect("a queue pair"), hca)
    })
}

fn connect_to(subnet: &mut VfSubnet, end: &End, peer: &Peer) {
    on(subnet, end, |qp, hca| qp.connect(hca, peer)).expect("a connection");
}

fn resolve(subnet: &mut VfSubnet, from: VfAt, to: ib_wire::Gid) -> ib_endpoint::PortPath {
    let asked = subnet.on_port(from, |now, port, _| port.resolve(now, to, None));
    let asked = asked.expect("a query");
    let found = subnet.wait(from, |event| match event {
        VfPortEvent::Resolved { query, result } if *query == asked => Some(*result),
        _ => None,
    });
    found.expect("a path")
}

fn cm_event<T>(
    subnet: &mut VfSubnet,
    at: VfAt,
    mut pick: impl FnMut(&CmEventKind) -> Option<T>,
) -> (ConnId, T) {
    subnet.wait(at, |event| match event {
        VfPortEvent::Cm(event) => pick(&event.kind).map(|found| (event.conn, found)),
        _ => None,
    })
}

/// Connects two ends by REQ, REP and RTU, which carry QPNs and PSNs.
fn connect(subnet: &mut VfSubnet, active: &End, passive: &End) {
    subnet
        .on_port(passive.at, |_, port, _| port.cm().listen(SERVICE, u64::MAX))
        .expect("a free service id");
    let to = subnet.port(passive.at).gid().expect("a GID");
    let path = resolve(subnet, active.at, to);
    let (qpn, psn) = on(subnet, active, |qp, _| (qp.qpn(), qp.psn()));
    let mut req = path.request(SERVICE, qpn);
    req.starting_psn = psn;
    let asked = subnet
        .on_port(active.at, |now, port, _| port.connect(now, &path, &req))
        .expect("a REQ");

    let (conn, req) = cm_event(subnet, passive.at, |kind| match kind {
        CmEventKind::ReqReceived { req, .. } => Some(req.clone()),
        _ => None,
    });
    let back = resolve(subnet, passive.at, req.primary.local_gid);
    let peer = Peer::new(&back, req.local_qpn, req.starting_psn);
    connect_to(subnet, passive, &peer);
    let (local_qpn, starting_psn) = on(subnet, passive, |qp, _| (qp.qpn(), qp.psn()));
    let rep = CmRep {
        local_qpn,
        starting_psn,
        ..CmRep::default()
    };
    subnet
        .on_port(passive.at, |now, port, _| {
            port.cm().send_rep(now, conn, &rep)
        })
        .expect("a REP");

    let (_, rep) = cm_event(subnet, active.at, |kind| match kind {
        CmEventKind::RepReceived(rep) => Some(rep.clone()),
        _ => None,
    });
    let peer = Peer::new(&path, rep.local_qpn, rep.starting_psn);
    connect_to(subnet, active, &peer);
    subnet
        .on_port(active.at, |now, port, _| {
            port.cm().send_rtu(now, asked, b"")
        })
        .expect("an RTU");
}

fn pair(subnet: &mut VfSubnet, from: VfAt, to: VfAt, spec: &ConnectedQpSpec) -> [End; 2] {
    let ends = [
        open(subnet, from, spec, 0xff_fffe),
        open(subnet, to, spec, 0x12_3456),
    ];
    connect(subnet, &ends[0], &ends[1]);
    ends
}

fn post(subnet: &mut VfSubnet, end: &End, op: SendOp<'_>, len: u32) -> Result<(), HcaError> {
    let gather = [end.region.sge(0, len)];
    on(subnet, end, |qp, hca| {
        qp.post_send(hca, 1, op, Payload::Gather(&gather), SendFlags::empty())
    })
}

/// Waits until a queue pair is said to have completions, and returns the operations and results of all.
fn completions(subnet: &mut VfSubnet, end: &End) -> Vec<(CompletionOp, CompletionStatus)> {
    let qp = end.qp;
    subnet.wait(end.at, |event| {
        (*event == VfPortEvent::CompletionsReady(qp)).then_some(())
    });
    on(subnet, end, |qp, hca| {
        let all = std::iter::from_fn(|| qp.poll_cq(hca));
        all.map(|done| (done.op, done.status)).collect()
    })
}

fn write(subnet: &mut VfSubnet, end: &End, offset: usize, bytes: &[u8]) {
    let region = end.region;
    subnet
        .on_port(end.at, |_, _, hca| region.write(hca, offset, bytes))
        .expect("memory of the region");
}

fn read(subnet: &mut VfSubnet, end: &End, offset: usize, len: usize) -> Vec<u8> {
    let region = end.region;
    let mut bytes = vec![0; len];
    subnet
        .on_port(end.at, |_, _, hca| region.read(hca, offset, &mut bytes))
        .expect("memory of the region");
    bytes
}

fn pattern(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

#[test]
fn vfs_of_two_hosts_and_of_one_write_read_and_count_in_each_others_memory() {
    let mut subnet = start(1, 2, 2);
    for to in [B1, A2] {
        let [a, b] = pair(&mut subnet, A1, to, &ConnectedQpSpec::rc(DEFAULT));
        let message = pattern(20_000);
        write(&mut subnet, &a, 0, &message);
        post(
            &mut subnet,
            &a,
            SendOp::RdmaWrite(b.region.remote(100)),
            20_000,
        )
        .expect("posted");
        let done = completions(&mut subnet, &a);
        assert_eq!(done, [(CompletionOp::RdmaWrite, OK)]);
        assert_eq!(read(&mut subnet, &b, 100, 20_000), message);

        write(&mut subnet, &b, 100, b"back");
        post(&mut subnet, &a, SendOp::RdmaRead(b.region.remote(100)), 4).expect("posted");
        let done = completions(&mut subnet, &a);
        assert_eq!(done, [(CompletionOp::RdmaRead, OK)]);
        assert_eq!(read(&mut subnet, &a, 0, 4), b"back");

        let remote = b.region.remote(0);
        for (op, before) in [
            (SendOp::FetchAdd { remote, add: 5 }, 0),
            (
                SendOp::CompareSwap {
                    remote,
                    compare: 5,
                    swap: 9,
                },
                5,
            ),
            (SendOp::FetchAdd { remote, add: 1 }, 9),
        ] {
            post(&mut subnet, &a, op, 8).expect("posted");
            let done = completions(&mut subnet, &a);
            assert!(matches!(done[..], [(_, OK)]), "{done:?}");
            let region = a.region;
            let got = subnet.on_port(A1, |_, _, hca| region.read_u64(hca, 0));
            assert_eq!(got, Ok(before));
        }
    }
}

#[test]
fn a_send_takes_the_peers_receive_by_rc_and_by_uc() {
    let mut subnet = start(2, 2, 1);
    for (spec, immediate) in [
        (ConnectedQpSpec::rc(DEFAULT), 7),
        (ConnectedQpSpec::uc(DEFAULT), 8),
    ] {
        let ends = [
            open(&mut subnet, A1, &spec, 1),
            open(&mut subnet, B1, &spec, 2),
        ];
        // QPNs and PSNs exchanged by the program itself.
        for (own, other) in [(0, 1), (1, 0)] {
            let to = subnet.port(ends[other].at).gid().expect("a GID");
            let path = resolve(&mut subnet, ends[own].at, to);
            let numbers = on(&mut subnet, &ends[other], |qp, _| (qp.qpn(), qp.psn()));
            let peer = Peer::new(&path, numbers.0, numbers.1);
            connect_to(&mut subnet, &ends[own], &peer);
        }
        let [a, b] = ends;
        let scatter = [b.region.sge(64, 16)];
        on(&mut subnet, &b, |qp, hca| qp.post_recv(hca, 5, &scatter)).expect("posted");
        on(&mut subnet, &a, |qp, hca| {
            let op = SendOp::SendImmediate(immediate);
            qp.post_send(hca, 3, op, Payload::Inline(b"hello"), SendFlags::empty())
        })
        .expect("posted");
        assert_eq!(completions(&mut subnet, &a), [(CompletionOp::Send, OK)]);
        let got = on(&mut subnet, &b, |qp, hca| qp.poll_cq(hca)).expect("a completion");
        assert_eq!((got.wr_id, got.status, got.op), (5, OK, CompletionOp::Recv));
        assert_eq!((got.byte_len, got.immediate), (5, immediate));
        assert_eq!(got.flags, CompletionFlags::IMMEDIATE);
        assert_eq!(read(&mut subnet, &b, 64, 5), b"hello");
    }
}

#[test]
fn an_unreliable_connection_writes_and_stops_at_a_read() {
    let mut subnet = start(3, 2, 1);
    let [a, b] = pair(&mut subnet, A1, B1, &ConnectedQpSpec::uc(DEFAULT));
    write(&mut subnet, &a, 0, b"unreliable");
    post(&mut subnet, &a, SendOp::RdmaWrite(b.region.remote(0)), 10).expect("posted");
    assert_eq!(
        completions(&mut subnet, &a),
        [(CompletionOp::RdmaWrite, OK)]
    );
    subnet.run_for(Duration::from_millis(1));
    assert_eq!(read(&mut subnet, &b, 0, 10), b"unreliable");
    post(&mut subnet, &a, SendOp::RdmaRead(b.region.remote(0)), 10).expect("posted");
    let refused = CompletionStatus::LocalQpOperation;
    let done = completions(&mut subnet, &a);
    assert_eq!(done, [(CompletionOp::RdmaRead, refused)]);
}

#[test]
fn a_reliable_connection_delivers_across_a_link_that_loses_packets() {
    deliver_across_losses();
}

/// Writes to a peer behind links that lose packets, and returns the subnet.
pub(crate) fn deliver_across_losses() -> VfSubnet {
    let mut subnet = start(4, 2, 1);
    let [a, b] = pair(&mut subnet, A1, B1, &ConnectedQpSpec::rc(DEFAULT));
    let plan = FaultPlan::new(9).rule(
        PacketFilter::default(),
        When::PerMillion(100_000),
        Fault::Drop,
    );
    let links: Vec<_> = subnet.fabric_mut().links().collect();
    for link in links {
        let ends = subnet.fabric_mut().link_ends(link).expect("a link");
        for end in ends {
            subnet.fabric_mut().set_faults(end, Some(&plan));
        }
    }
    let message = pattern(REGION);
    write(&mut subnet, &a, 0, &message);
    let len = u32::try_from(REGION).expect("a length");
    post(&mut subnet, &a, SendOp::RdmaWrite(b.region.remote(0)), len).expect("posted");
    assert_eq!(
        completions(&mut subnet, &a),
        [(CompletionOp::RdmaWrite, OK)]
    );
    assert_eq!(read(&mut subnet, &b, 0, REGION), message);
    subnet
}

/// Returns the packets of a subnet in which two VFs connect, write, read and send, with their times.
pub(crate) fn packets() -> Vec<(Instant, Vec<u8>)> {
    let mut subnet = start(6, 2, 1);
    subnet.fabric_mut().add_tap(TapPoint::Everything);
    let [a, b] = pair(&mut subnet, A1, B1, &ConnectedQpSpec::rc(DEFAULT));
    write(&mut subnet, &a, 0, &pattern(20_000));
    let remote = b.region.remote(8);
    for (op, len) in [
        (SendOp::RdmaWrite(remote), 20_000),
        (SendOp::RdmaRead(remote), 300),
    ] {
        post(&mut subnet, &a, op, len).expect("posted");
        assert!(matches!(completions(&mut subnet, &a)[..], [(_, OK)]));
    }
    for round in 0..40 {
        let scatter = [b.region.sge(64, 16)];
        on(&mut subnet, &b, |qp, hca| {
            qp.post_recv(hca, round, &scatter)
        })
        .expect("posted");
        post(&mut subnet, &a, SendOp::Send, 16).expect("posted");
        assert_eq!(completions(&mut subnet, &a), [(CompletionOp::Send, OK)]);
        let got = on(&mut subnet, &b, |qp, hca| qp.poll_cq(hca)).expect("a completion");
        assert_eq!((got.wr_id, got.status), (round, OK));
    }
    subnet.run_for(Duration::from_millis(50));
    let tapped = core::iter::from_fn(|| subnet.fabric_mut().poll_tap());
    let packets = tapped.map(|tapped| (tapped.at, tapped.frame.bytes().to_vec()));
    let packets: Vec<_> = packets.collect();
    assert_eq!(subnet.fabric_mut().taps_missed(), 0);
    packets
}

#[test]
fn a_write_to_a_region_that_is_gone_fails_at_both_ends() {
    let mut subnet = start(5, 2, 1);
    let [a, b] = pair(&mut subnet, A1, B1, &ConnectedQpSpec::rc(DEFAULT));
    let dereg = |subnet: &mut VfSubnet| {
        let region = b.region;
        subnet.on_port(B1, |_, port, hca| port.dereg_mr(hca, region))
    };
    assert_eq!(dereg(&mut subnet), Ok(()));
    assert_eq!(dereg(&mut subnet), Err(VfPortError::NoRegion));
    post(&mut subnet, &a, SendOp::RdmaWrite(b.region.remote(0)), 8).expect("posted");
    let refused = (CompletionOp::RdmaWrite, CompletionStatus::RemoteAccess);
    assert_eq!(completions(&mut subnet, &a), [refused]);
    let told = VirtualHcaEvent::Port {
        port: vhca_tests::vf_subnet::PORT,
        event: VfPortEvent::ConnectionFailed(b.qp),
    };
    assert!(std::iter::from_fn(|| subnet.poll_event(B1)).any(|event| event == told));
    for end in [&a, &b] {
        let state = on(&mut subnet, end, |qp, hca| qp.query(hca)).map(|qp| qp.state);
        assert_eq!(state, Ok(QpState::Error));
    }
}

/// Keys that are guessed; a million with `VHCA_FULL=1`.
fn guesses() -> u64 {
    full(20_000, 1_000_000)
}

#[test]
fn no_guessed_key_opens_memory_of_a_peer_or_of_its_sibling() {
    let mut subnet = start(8, 2, 2);
    // UC drops a write with a wrong key, and the connection stays for the next guess.
    let [a, b] = pair(&mut subnet, A1, B1, &ConnectedQpSpec::uc(DEFAULT));
    let b2 = VfAt { host: 1, vf: 2 };
    let sibling = open(&mut subnet, b2, &ConnectedQpSpec::uc(DEFAULT), 0);
    let message = pattern(REGION);
    for end in [&b, &sibling] {
        write(&mut subnet, end, 0, &message);
    }
    let mut random = SplitMix64::new(8);
    let [own, other] = [&b, &sibling].map(|end| end.region.remote(0));
    let mut tried = 0;
    while tried < guesses() {
        for _ in 0..64 {
            let addr = if tried % 2 == 0 { own.addr } else { other.addr };
            // Keys near known ones, the sibling's among them, and any others.
            let near = u32::try_from(tried / 4).expect("a small number");
            let rkey = match tried % 4 {
                0 => own.rkey.0.wrapping_add(1 + near),
                1 => other.rkey.0.wrapping_add(near),
                2 => own.rkey.0.wrapping_sub(1 + near),
                _ => random.next_u32(),
            };
            tried += 1;
            let guess = RemoteAddress {
                addr,
                rkey: RKey(rkey),
            };
            if guess.rkey != own.rkey {
                post(&mut subnet, &a, SendOp::RdmaWrite(guess), 8).expect("posted");
            }
        }
        while on(&mut subnet, &a, |qp, hca| qp.poll_cq(hca)).is_some() {}
        subnet.run_for(Duration::from_millis(1));
    }
    for end in [&b, &sibling] {
        assert_eq!(read(&mut subnet, end, 0, REGION), message);
    }
    // The connection is as good as before: the key that was given is one.
    post(&mut subnet, &a, SendOp::RdmaWrite(own), 8).expect("posted");
    subnet.run_for(Duration::from_millis(1));
    assert_eq!(read(&mut subnet, &b, 0, 8), [0; 8]);
}

#[test]
fn a_region_lends_no_byte_beyond_its_own() {
    let mut subnet = start(6, 1, 1);
    subnet.on_port(A1, |_, port, hca| {
        let [first, second] = [(); 2].map(|()| port.reg_mr(hca, 64, rights()).expect("a region"));
        let apart = usize::try_from(second.addr() - first.addr()).expect("a distance");
        for (offset, len) in [(64, 1), (60, 5), (apart, 1), (usize::MAX, 2)] {
            assert!(first.read(hca, offset, &mut vec![0; len]).is_err());
            assert!(first.write(hca, offset, &vec![1; len]).is_err());
        }
        assert_eq!(second.read_u64(hca, 0), Ok(0));
        assert_eq!((first.len(), first.lkey().0), (64, first.rkey().0));
    });
}

#[test]
fn a_vf_that_is_closed_gives_regions_and_queue_pairs_back() {
    let mut subnet = start(7, 2, 1);
    subnet.close(A1);
    let before = subnet.owned(A1);
    subnet.open(A1);
    let up = subnet.run_until(Duration::from_secs(10), |subnet| {
        subnet.port(A1).gid().is_some() && subnet.port(A1).view().sm_lid.is_unicast()
    });
    assert!(up);
    let [a, _] = pair(&mut subnet, A1, B1, &ConnectedQpSpec::rc(DEFAULT));
    let first = subnet.owned(A1);
    assert!(first.qps > before.qps && first.mrs > before.mrs);
    let closed = subnet.on_port(A1, |_, port, hca| port.close_connected_qp(hca, a.qp));
    assert_eq!(closed, Ok(()));
    let gone = subnet.on_port(A1, |_, port, _| port.connected_qp(a.qp).err());
    assert_eq!(gone, Some(VfPortError::NoQp));
    assert_eq!(subnet.owned(A1).qps, first.qps - 1);
    open(&mut subnet, A1, &ConnectedQpSpec::uc(DEFAULT), 0);
    subnet.close(A1);
    assert_eq!(subnet.owned(A1), before);
}
