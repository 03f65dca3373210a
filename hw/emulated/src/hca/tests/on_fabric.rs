//! Adapters on a fabric: what the device and the fabric do together.

use hca_api::{AsyncEvent, HcaEvent, PortChange, SpecialQp};
use ib_wire::mad::{Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::notice::{Notice, TrapNumber};
use ib_wire::smp::{
    DirectedRouteSmp, LidRoutedSmp, NodeInfo, PortInfo, PortPhysState, PortState as WirePortState,
    SmpAttribute,
};
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::{Fabric, LinkConfig, NodeId};

/// Two adapters and one link; the first plays the subnet manager.
struct Pair {
    fabric: Fabric,
    hosts: [NodeId; 2],
    qp0: Peer,
    now: Instant,
}

impl Pair {
    fn new() -> Self {
        let mut fabric = Fabric::new(7);
        let hosts =
            [0x1000, 0x2000].map(|guid| fabric.add_hca(&HcaConfig::new(Guid::new(guid), "host")));
        let [a, b] = hosts;
        fabric
            .connect(a.port(1), b.port(1), LinkConfig::default())
            .unwrap();
        let mut pair = Self {
            qp0: open(
                fabric.device_mut(a).unwrap(),
                PF,
                QpKind::Special {
                    special: SpecialQp::Smi,
                    port: PORT,
                },
            ),
            fabric,
            hosts,
            now: Instant::ZERO,
        };
        pair.run();
        pair
    }

    fn device(&mut self, host: usize) -> &mut Device {
        self.fabric.device_mut(self.hosts[host]).unwrap()
    }

    /// Lets a second pass, in which everything arrives.
    fn run(&mut self) {
        self.now += core::time::Duration::from_secs(1);
        let until = self.now;
        while let Some(next) = self.fabric.poll_timeout().filter(|at| *at <= until) {
            while self.fabric.poll(next) {}
        }
        while self.fabric.poll(until) {}
    }

    /// The SMP that arrived on the first host's QP0.
    fn arrived(&mut self, wr_id: u64) -> Mad {
        let qp0 = self.qp0;
        let done = qp0.poll(self.device(0));
        let received = done.iter().filter(|c| c.op == CompletionOp::Recv).count();
        assert_eq!(received, 1, "{done:?}");
        let bytes = qp0.received(self.device(0), wr_id, 296);
        Mad::read_from_bytes(&bytes[40..]).unwrap()
    }

    /// Sends a directed-route SMP along `path` and gives the answer.
    fn smp(&mut self, method: Method, path: &[u8], attribute: &PortInfo) -> PortInfo {
        let mut mad = Mad::new(MadHeader::new(
            MgmtClass::SUBN_DIRECTED_ROUTE,
            method,
            PortInfo::ID,
        ));
        mad.header.attribute_modifier = 1.into();
        let smp: &mut DirectedRouteSmp = mad.view_mut();
        (smp.dr_slid, smp.dr_dlid) = (Lid::PERMISSIVE, Lid::PERMISSIVE);
        smp.set_path(path);
        *smp.attribute_mut() = *attribute;
        // What a Get tells of the physical state is not a command that a Set may give.
        smp.attribute_mut::<PortInfo>()
            .set_phys_state(PortPhysState::NO_CHANGE);
        let qp0 = self.qp0;
        let destination = to(vector(Lid::PERMISSIVE.get()), Qpn::SMI, QKey::SMI);
        let device = self.device(0);
        qp0.post_recv(device, 1);
        qp0.send(device, Some(destination), mad.as_bytes()).unwrap();
        self.run();
        let answer = self.arrived(1);
        let smp: &DirectedRouteSmp = answer.view();
        assert!(smp.is_returning());
        assert_eq!(smp.status(), MadStatus::OK);
        *smp.attribute()
    }

    /// Brings both ports up, with LIDs 1 and 2 and the manager at LID 1.
    fn bring_up(&mut self) {
        for (lid, path) in [(1, &[][..]), (2, &[1])] {
            let mut info = self.smp(Method::GET, path, &PortInfo::default());
            assert_eq!(info.port_state(), WirePortState::INIT);
            info.lid = Lid::new(lid);
            info.master_sm_lid = Lid::new(1);
            info.set_neighbor_mtu(Mtu::MTU_2048);
            info.set_port_state(WirePortState::ARMED);
            self.smp(Method::SET, path, &info);
        }
        for path in [&[][..], &[1]] {
            let mut info = self.smp(Method::GET, path, &PortInfo::default());
            info.set_port_state(WirePortState::ACTIVE);
            self.smp(Method::SET, path, &info);
        }
    }
}

/// IBA 14.2.2, 14.4: SMPs from QP0 reach the own agent and the neighbour's, and bring ports up; the
/// functions hear of it once.
#[test]
fn a_manager_on_qp0_brings_both_ports_up() {
    let mut pair = Pair::new();
    pair.bring_up();
    for host in 0..2 {
        let mut pf = pair.device(host).function(PF).unwrap();
        let port = pf.query_port(PORT).unwrap();
        assert_eq!(port.state, PortState::Active);
        assert_eq!(port.sm_lid, Lid::new(1));
        let Some(HcaEvent::Async(AsyncEvent::Port { port: PORT, change })) = pf.poll_event() else {
            panic!("no port event");
        };
        assert!(change.contains(PortChange::LID | PortChange::ACTIVE | PortChange::SM));
        assert_eq!(pf.poll_event(), None, "changes are merged");
    }
}

/// IBA 9.8, 9.6.1.1.3, 14.2.5.1: datagrams cross the link, and a wrong Q_Key is reported to the
/// manager with trap 258.
#[test]
fn datagrams_cross_the_fabric_and_a_wrong_qkey_raises_a_trap() {
    let mut pair = Pair::new();
    pair.bring_up();
    let a = open(pair.device(0), PF, QpKind::Ud);
    let b = open(pair.device(1), PF, QpKind::Ud);
    b.post_recv(pair.device(1), 1);
    let good = to(vector(2), b.numbers.real, QKEY);
    a.send(pair.device(0), Some(good), b"over the link")
        .unwrap();
    pair.run();
    assert_eq!(b.poll_one(pair.device(1)).byte_len, 53);

    let wrong = UdDestination {
        qkey: QKey::new(9),
        ..good
    };
    let qp0 = pair.qp0;
    qp0.post_recv(pair.device(0), 2);
    a.send(pair.device(0), Some(wrong), b"x").unwrap();
    pair.run();
    let trap = pair.arrived(2);
    assert_eq!(trap.header.method, Method::TRAP);
    let smp: &LidRoutedSmp = trap.view();
    let notice: &Notice = smp.attribute();
    assert_eq!(notice.trap_number, TrapNumber::BAD_QKEY);
}

/// A LID-routed SMP to the own LID is answered by the own agent.
#[test]
fn an_smp_to_the_own_lid_is_answered_without_a_link() {
    let mut pair = Pair::new();
    pair.bring_up();
    let mad = Mad::new(MadHeader::new(
        MgmtClass::SUBN_LID_ROUTED,
        Method::GET,
        NodeInfo::ID,
    ));
    let qp0 = pair.qp0;
    qp0.post_recv(pair.device(0), 1);
    let own = to(vector(1), Qpn::SMI, QKey::SMI);
    qp0.send(pair.device(0), Some(own), mad.as_bytes()).unwrap();
    pair.run();
    let answer = pair.arrived(1);
    let smp: &LidRoutedSmp = answer.view();
    assert_eq!(smp.attribute::<NodeInfo>().node_guid, Guid::new(0x1000));
}
