//! Faults for which real programs add nothing but waiting: a service in virtual time.

use std::time::Duration as Real;

use emulated_hca::{Adapters, Endpoint, Fault, FaultPlan, PacketFilter, When};
use hca_api::{
    AccessFlags, AddressVector, FunctionId, Hca, Payload, QpCaps, QpHandle, QpKind, QpModify,
    QpNumbers, QpSpec, QpState, ReceiveMode, SendFlags, SendOp, SendRequest,
};
use ib_vtime::Duration;
use ib_wire::mad::{AttributeId, MgmtClass};
use ib_wire::{Lid, Mtu, PKeyIndex, PortNum, Psn, Qpn, Sl};
use vhca_control::{GuestAction, VfChange, VfState};
use vhca_service::serve::{GuidPolicy, Lab, Options, Quotas, Service, TopologySpec};
use vhca_tests::virtual_service::pass;

use crate::report::{Report, Row};

fn serve(options: Options) -> Service {
    let options = Options {
        topology: TopologySpec::TwoSwitch,
        vfs: 3,
        guests: true,
        ..options
    };
    let mut service = Service::in_virtual_time(Lab::build(&options, 1).unwrap());
    pass(&mut service, Duration::from_secs(5));
    service
}

/// Has all guests of a host do something.
fn all(service: &mut Service, action: &GuestAction) {
    let vfs = service.lab().inventory.vfs("H1-1/all", None).unwrap();
    service.lab_mut().guests_do(&vfs, action).unwrap();
}

/// Holds a service to telling a fault of `H1-1/1`, and to telling none once it is mended.
fn case(
    report: &Report,
    service: &mut Service,
    (fault, code): (&str, &'static str),
    mend: impl FnOnce(&mut Service),
) {
    let why = |service: &Service| {
        let lab = service.lab();
        lab.why(&lab.inventory.vf("H1-1/1", None).unwrap(), PortNum(1))
    };
    let told = why(service);
    mend(service);
    let then = why(service);
    report.add(Row {
        fault: fault.to_owned(),
        code,
        told: format!("{}; {:?}", told.code, told.seen),
        remedy: told.next.clone(),
        worked: match (told.code == code, then.code) {
            (true, "ok") => Ok(format!("after {:?}", Real::ZERO)),
            _ => Err(format!("{told}, then {then}")),
        },
    });
}

pub(crate) fn run(report: &Report) {
    no_receives(report);
    all_groups(report);
    foreign_peer(report);
    no_grant(report);
    flapping(report);
}

/// More packets than a guest has receives: those who send less lose none.
fn no_receives(report: &Report) {
    let mut service = serve(Options::default());
    let mgid = "ff12::15:1".to_owned();
    all(&mut service, &GuestAction::Join { mgid: mgid.clone() });
    pass(&mut service, Duration::from_millis(100));
    for _ in 0..16 {
        let (to, text) = (mgid.clone(), "hello".to_owned());
        all(&mut service, &GuestAction::Send { to, text });
    }
    pass(&mut service, Duration::from_millis(100));
    let name = ("more packets than the guest has receives", "no_receives");
    case(report, &mut service, name, |service| {
        pass(service, Duration::from_secs(61));
    });
}

/// A guest that is in as many groups as it may be in.
fn all_groups(report: &Report) {
    let quotas = Quotas {
        groups: Some(1),
        ..Quotas::default()
    };
    let mut service = serve(Options {
        quotas,
        ..Options::default()
    });
    let mgid = "ff12::15:2".to_owned();
    all(&mut service, &GuestAction::Join { mgid: mgid.clone() });
    pass(&mut service, Duration::from_millis(100));
    let name = ("as many groups as the VF may be in", "quota_reached");
    case(report, &mut service, name, |service| {
        all(service, &GuestAction::Leave { mgid });
        pass(service, Duration::from_secs(1));
    });
}

/// An SA that answers everything but requests for GUIDs.
fn no_grant(report: &Report) {
    let mut service = serve(Options {
        guids: GuidPolicy::None,
        ..Options::default()
    });
    let guid_requests = PacketFilter {
        class: Some(MgmtClass::SUBN_ADM),
        attribute: Some(AttributeId::GUID_INFO_RECORD),
        ..PacketFilter::default()
    };
    let plan = FaultPlan::new(1).rule(guid_requests, When::Always, Fault::Drop);
    let vf = service.lab().inventory.vf("H1-1/1", None).unwrap();
    let port = Endpoint {
        node: service.lab().inventory.node("H1-1").unwrap(),
        port: PortNum(1),
    };
    let fabric = |service: &mut Service, plan: Option<&FaultPlan>| {
        service
            .lab_mut()
            .world_mut()
            .fabric_mut()
            .set_faults(port, plan);
    };
    fabric(&mut service, Some(&plan));
    let sm = VfChange::PortGuid("sm".to_owned());
    service.lab_mut().set_vf(&vf, PortNum(1), &sm).unwrap();
    pass(&mut service, Duration::from_secs(5));
    let name = (
        "SA that grants no GUIDs, and answers else",
        "waiting_for_sa",
    );
    case(report, &mut service, name, |service| {
        fabric(service, None);
        pass(service, Duration::from_secs(30));
    });
}

/// A link that a script takes down and up twice a second, until it is stopped.
fn flapping(report: &Report) {
    let mut service = serve(Options::default());
    for _ in 0..20 {
        for up in [false, true] {
            service.lab_mut().set_link("H1-1/1", None, up).unwrap();
            pass(&mut service, Duration::from_millis(250));
        }
    }
    let name = ("link that goes down twice a second", "link_flapping");
    case(report, &mut service, name, |service| {
        pass(service, Duration::from_secs(60));
    });
}

/// Makes an RC queue pair of a VF, connected to a number behind a LID.
fn connect(hca: &mut impl Hca, dlid: Lid, dest_qpn: Qpn) -> (QpHandle, QpNumbers) {
    let pd = hca.alloc_pd().unwrap();
    let cq = hca.create_cq(16).unwrap();
    let spec = QpSpec {
        kind: QpKind::Rc,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps: QpCaps {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 16,
        },
        signal_all: false,
        receives: ReceiveMode::Posted,
        qpn: None,
        block_multicast_loopback: false,
    };
    let (qp, numbers) = hca.create_qp(spec).unwrap();
    for change in [
        QpModify {
            state: Some(QpState::Init),
            port: Some(PortNum(1)),
            pkey_index: Some(PKeyIndex(0)),
            access: Some(AccessFlags::empty()),
            ..QpModify::default()
        },
        QpModify {
            state: Some(QpState::ReadyToReceive),
            path_mtu: Some(Mtu::MTU_1024),
            dest_qpn: Some(dest_qpn),
            rq_psn: Some(Psn::default()),
            primary: Some(AddressVector {
                port: PortNum(1),
                dlid,
                sl: Sl::default(),
                path_bits: 0,
                static_rate: None,
                grh: None,
            }),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(12),
            ..QpModify::default()
        },
        QpModify {
            state: Some(QpState::ReadyToSend),
            sq_psn: Some(Psn::default()),
            timeout: Some(8),
            retry_count: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(1),
            ..QpModify::default()
        },
    ] {
        hca.modify_qp(qp, &change).unwrap();
    }
    (qp, numbers)
}

/// A VF whose queue pair is set to another's as if it were its peer.
fn foreign_peer(report: &Report) {
    let mut service = serve(Options::default());
    let nodes = ["H1-1", "H2-1"].map(|host| service.lab().inventory.node(host).unwrap());
    let fabric = service.lab_mut().world_mut().fabric_mut();
    let lids = nodes.map(|node| fabric.port(node.port(1)).unwrap().lid);
    let mut victim = fabric.hca(nodes[0], FunctionId(1)).unwrap();
    let peer = Qpn::from_low_bits(0x4_0000);
    let (_, victim) = connect(&mut victim, lids[1], peer);
    let mut spy = fabric.hca(nodes[1], FunctionId(2)).unwrap();
    let (qp, _) = connect(&mut spy, lids[0], victim.external);
    let send = SendRequest {
        wr_id: 1,
        op: SendOp::Send,
        payload: Payload::Inline(b"from the peer"),
        flags: SendFlags::empty(),
        destination: None,
    };
    spy.post_send(qp, &send).unwrap();
    pass(&mut service, Duration::from_secs(1));
    let lab = service.lab();
    let why = |vf| lab.why(&lab.inventory.vf(vf, None).unwrap(), PortNum(1));
    let found = why("H1-1/1");
    let named = found.seen[0].starts_with("H2-1/2 sent 8 such packets");
    assert!(
        named && found.next.starts_with("vhca set vf H2-1/2 state disable"),
        "{found}"
    );
    for other in ["H1-1/2", "H2-1/1", "H2-1/2"] {
        assert_eq!(why(other).code, "ok");
    }
    let name = ("a VF that sends in the name of a peer", "foreign_peer");
    case(report, &mut service, name, |service| {
        let vf = service.lab().inventory.vf("H2-1/2", None).unwrap();
        let disable = VfChange::State(VfState::Disable);
        service.lab_mut().set_vf(&vf, PortNum(1), &disable).unwrap();
        pass(service, Duration::from_secs(61));
    });
}
