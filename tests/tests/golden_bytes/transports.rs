//! Connections and datagrams between two VFs, in whole runs and in packets.

use std::time::Duration;

use emulated_hca::{Adapters, TapPoint};
use hca_api::{AccessFlags, Payload, SendFlags, SendOp};
use ib_capture::{Interface, Writer};
use ib_endpoint::{Datagram, PortPath};
use ib_wire::{PKey, Psn, QKey};
use vf_proxy::native::{
    ConnectedQpId, ConnectedQpSpec, MemoryRegion, Partition, Peer, UdQpSpec, VfPortEvent,
};
use vhca::Slice;
use vhca_control::table::Tables;
use vhca_control::{By, Subject};
use vhca_service::show::{self, Filter, Metrics, ServiceFacts};
use vhca_tests::golden::{Form, assert_unchanged, digest, frames};
use vhca_tests::vf_subnet::{VfAt, VfSubnet};
use vhca_tests::virtual_service::NoVmms;

const ENDS: [VfAt; 2] = [VfAt { host: 0, vf: 1 }, VfAt { host: 1, vf: 1 }];
const DEFAULT: Partition = Partition::Key(PKey::DEFAULT_FULL);
const QKEY: QKey = QKey::new(0x1234);
const REGION: usize = 1 << 16;
/// Bytes of a message of many packets.
const LONG: u32 = 20_000;

#[derive(Clone, Copy, Debug)]
struct End {
    at: VfAt,
    qp: ConnectedQpId,
    region: MemoryRegion,
}

/// A subnet, and what its programs saw.
struct Scenario {
    subnet: VfSubnet,
    seen: String,
}

impl Scenario {
    fn note(&mut self, line: &str) {
        self.seen += line;
        self.seen.push('\n');
    }

    fn path(&mut self, from: VfAt, to: VfAt) -> PortPath {
        let to = self.subnet.port(to).gid().unwrap();
        let asked = self
            .subnet
            .on_port(from, |now, port, _| port.resolve(now, to, None))
            .unwrap();
        self.subnet
            .wait(from, |event| match event {
                VfPortEvent::Resolved { query, result } if *query == asked => Some(*result),
                _ => None,
            })
            .unwrap()
    }

    fn open(&mut self, at: VfAt, spec: &ConnectedQpSpec, psn: u32) -> End {
        let spec = ConnectedQpSpec {
            sq_psn: Psn::from_low_bits(psn),
            ..*spec
        };
        let rights = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        self.subnet.on_port(at, |_, port, hca| {
            let region = port.reg_mr(hca, REGION, rights).unwrap();
            let bytes: Vec<u8> = (0..=250)
                .cycle()
                .skip(psn as usize % 7)
                .take(REGION)
                .collect();
            region.write(hca, 0, &bytes).unwrap();
            let qp = port.open_connected_qp(hca, &spec).unwrap();
            End { at, qp, region }
        })
    }

    /// Opens two queue pairs, the first of which has few PSNs before they begin anew, and connects them.
    fn connect(&mut self, spec: &ConnectedQpSpec) -> [End; 2] {
        let ends = [(ENDS[0], 0xff_fff0), (ENDS[1], 0x12_3456)];
        let ends = ends.map(|(at, psn)| self.open(at, spec, psn));
        for [own, other] in [ends, [ends[1], ends[0]]] {
            let path = self.path(own.at, other.at);
            let (qpn, psn) = self.subnet.on_port(other.at, |_, port, _| {
                let qp = port.connected_qp(other.qp).unwrap();
                (qp.qpn(), qp.psn())
            });
            self.subnet.on_port(own.at, |_, port, hca| {
                let qp = port.connected_qp(own.qp).unwrap();
                qp.connect(hca, &Peer::new(&path, qpn, psn)).unwrap();
            });
        }
        ends
    }

    fn receive(&mut self, end: &End, offset: u32, len: u32) {
        let scatter = [end.region.sge(offset, len)];
        self.subnet.on_port(end.at, |_, port, hca| {
            let qp = port.connected_qp(end.qp).unwrap();
            qp.post_recv(hca, 7, &scatter).unwrap();
        });
    }

    /// Posts an operation on the first bytes of the region, runs the fabric, and records the completions of both ends.
    fn post(&mut self, ends: &[End; 2], op: SendOp<'_>, len: u32) {
        let [from, _] = ends;
        let gather = [from.region.sge(0, len)];
        self.subnet.on_port(from.at, |_, port, hca| {
            let qp = port.connected_qp(from.qp).unwrap();
            qp.post_send(hca, 3, op, Payload::Gather(&gather), SendFlags::empty())
                .unwrap();
        });
        self.subnet.run_for(Duration::from_millis(1));
        for end in ends {
            let done = self.subnet.on_port(end.at, |_, port, hca| {
                let qp = port.connected_qp(end.qp).unwrap();
                std::iter::from_fn(|| qp.poll_cq(hca)).collect::<Vec<_>>()
            });
            for done in done {
                self.note(&format!("{:?} {done:?}", end.at));
            }
        }
    }

    fn note_memory(&mut self, ends: &[End; 2]) {
        for end in ends {
            let mut bytes = vec![0; REGION];
            self.subnet.on_port(end.at, |_, _, hca| {
                end.region.read(hca, 0, &mut bytes).unwrap();
            });
            self.note(&format!("{:?} memory {}", end.at, digest(&bytes)));
        }
    }

    fn connected(&mut self, spec: &ConnectedQpSpec, is_reliable: bool) {
        let ends = self.connect(spec);
        let remote = |offset| ends[1].region.remote(offset);
        self.receive(&ends[1], 30_000, LONG);
        self.post(&ends, SendOp::Send, LONG);
        self.receive(&ends[1], 0, 64);
        self.post(&ends, SendOp::SendImmediate(7), 5);
        self.post(&ends, SendOp::RdmaWrite(remote(100)), LONG);
        if is_reliable {
            self.post(&ends, SendOp::RdmaRead(remote(30_000)), LONG);
            let (remote, add) = (remote(8), 5);
            self.post(&ends, SendOp::FetchAdd { remote, add }, 8);
            let (compare, swap) = (1, 9);
            let op = SendOp::CompareSwap {
                remote,
                compare,
                swap,
            };
            self.post(&ends, op, 8);
        }
        self.note_memory(&ends);
    }

    fn datagrams(&mut self) {
        let qps = ENDS.map(|at| {
            let spec = UdQpSpec::new(DEFAULT, QKEY);
            let open = |_, port: &mut vf_proxy::native::VfPort, hca: &mut dyn hca_api::Hca| {
                port.open_qp(hca, &spec).unwrap()
            };
            self.subnet.on_port(at, open)
        });
        for (from, to) in [(0, 1), (1, 0)] {
            let path = self.path(ENDS[from], ENDS[to]);
            let qpn = self.subnet.port(ENDS[to]).qp(qps[to]).unwrap().qpn();
            let destination = path.destination(qpn, QKEY);
            for len in [0, 5, 2_000] {
                let bytes: Vec<u8> = (0..=250).cycle().take(len).collect();
                self.subnet.on_port(ENDS[from], |_, port, hca| {
                    port.send(hca, qps[from], &destination, &bytes).unwrap();
                });
                self.subnet.run_for(Duration::from_millis(1));
                let got = self
                    .subnet
                    .on_port(ENDS[to], |_, port, hca| port.receive(hca, qps[to]));
                let Datagram { source, bytes, .. } = got.unwrap();
                let bytes = digest(&bytes);
                self.note(&format!("{:?} from {source:?}: {bytes}", ENDS[to]));
            }
        }
    }

    /// Notes the tables of queue pairs and drops, and the metrics of each node.
    fn note_shown(&mut self) {
        let now = self.subnet.now();
        let service = ServiceFacts::default();
        let fabric = self.subnet.fabric_mut();
        let scene = show::Scene {
            pfs: &[],
            vmms: &NoVmms,
            fabric,
            service: &service,
            now,
        };
        let mut shown = Vec::new();
        for subject in [Subject::Qps, Subject::Drops] {
            let mut reply = Vec::new();
            let mut page = show::page(&scene, subject, Filter::default());
            while !page.write(&scene, &mut reply, &mut Slice::endless()) {}
            let reply = String::from_utf8(reply).unwrap();
            shown.extend(
                Tables::of_reply(&reply)
                    .unwrap()
                    .text(true, false)
                    .into_bytes(),
            );
        }
        for (node, _) in fabric.nodes() {
            let node = Some(node);
            let filter = Filter {
                node,
                ..Filter::default()
            };
            let mut metrics = Metrics::new(By::Vf, filter);
            while !metrics.write(&scene, &mut shown, &mut Slice::endless()) {}
        }
        self.note(&String::from_utf8(shown).unwrap());
    }
}

/// Runs the scenario. Returns the transcript, and the capture of all links if messages go in packets.
fn run(is_whole: bool) -> (String, Vec<u8>) {
    let mut subnet = VfSubnet::new(3, 2, 1);
    let fabric = subnet.fabric_mut();
    fabric.set_whole_runs(is_whole);
    if !is_whole {
        fabric.add_tap(TapPoint::Everything);
    }
    let seen = String::new();
    let mut scenario = Scenario { subnet, seen };
    scenario.connected(&ConnectedQpSpec::rc(DEFAULT), true);
    scenario.connected(&ConnectedQpSpec::uc(DEFAULT), false);
    scenario.datagrams();
    scenario.note_shown();
    let mut capture = Writer::new(Vec::new()).unwrap();
    let fabric = scenario.subnet.fabric_mut();
    while let Some(tapped) = fabric.poll_tap() {
        let record = tapped.record(Interface::default());
        capture.write_record(&record).unwrap();
    }
    assert_eq!(fabric.taps_missed(), 0);
    (scenario.seen, capture.finish().unwrap())
}

/// Returns the numbers of queue pairs that send in whole runs, and in packets.
fn ways(seen: &str) -> [usize; 2] {
    [" whole", " packets"].map(|way| seen.lines().filter(|line| line.ends_with(way)).count())
}

#[test]
fn connections_and_datagrams_in_whole_runs() {
    let (seen, _) = run(true);
    // The end of the unreliable connection that sends nothing tried no way.
    assert_eq!(ways(&seen), [3, 1]);
    assert_unchanged("transports-whole", Form::Text, &seen);
}

#[test]
fn connections_and_datagrams_in_packets() {
    let (seen, capture) = run(false);
    assert_eq!(ways(&seen), [0, 4]);
    assert_unchanged("transports-packets", Form::Text, &seen);
    let listed = frames(&capture).unwrap();
    assert_unchanged("transports-packets-capture", Form::Digests, &listed);
}
