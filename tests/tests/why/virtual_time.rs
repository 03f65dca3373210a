//! Faults for which real programs add nothing but waiting: a service in virtual time.

use std::time::Duration as Real;

use emulated_hca::{Endpoint, Fault, FaultPlan, PacketFilter, When};
use ib_vtime::Duration;
use ib_wire::PortNum;
use ib_wire::mad::{AttributeId, MgmtClass};
use vhca::Driven;
use vhca_service::serve::{
    GuestAction, GuidPolicy, Lab, Options, Quotas, Service, TopologySpec, VfChange,
};

use crate::report::{Report, Row};

/// Lets time pass.
fn pass(service: &mut Service, time: Duration) {
    let mut now = service.lab().world().now();
    let end = now + time;
    while now < end {
        service.poll(now);
        now = service
            .poll_timeout()
            .map_or(end, |next| next.max(now).min(end));
    }
    service.poll(end);
}

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
    let vfs = service.lab().vfs("H1-1/all", None).unwrap();
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
        lab.why(&lab.vf("H1-1/1", None).unwrap(), PortNum(1))
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
    let vf = service.lab().vf("H1-1/1", None).unwrap();
    let port = Endpoint {
        node: service.lab().node("H1-1").unwrap(),
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
