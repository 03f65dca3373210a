//! Tables and metrics of a service in virtual time.

use ib_vtime::Duration;
use vhca::Slice;
use vhca_control::table::Tables;
use vhca_control::{By, GuestAction, LinkFaults, Subject};
use vhca_service::serve::{Lab, Options, Service, TopologySpec};
use vhca_service::show::{self, Filter, Metrics, NamedPf, Scene, ServiceFacts};
use vhca_tests::golden::{Form, assert_unchanged};
use vhca_tests::virtual_service::pass;

/// Starts an action of guests, and runs the service until it is done.
fn guests(service: &mut Service, vfs: &str, action: &GuestAction) {
    let vfs = service.lab().inventory.vfs(vfs, None).unwrap();
    service.lab_mut().guests_do(&vfs, action).unwrap();
    pass(service, Duration::from_millis(100));
}

/// Guests of two hosts that join and send, over a link that loses packets and one that was down.
fn service() -> Service {
    let options = Options {
        topology: TopologySpec::TwoSwitch,
        vfs: 3,
        guests: true,
        ..Options::default()
    };
    let mut service = Service::in_virtual_time(Lab::build(&options, 1).unwrap());
    pass(&mut service, Duration::from_secs(5));
    let mgid = "ff12::15:1".to_owned();
    for host in ["H1-1/all", "H1-2/all"] {
        guests(
            &mut service,
            host,
            &GuestAction::Join { mgid: mgid.clone() },
        );
    }
    let (to, text) = (mgid.clone(), "hello".to_owned());
    guests(&mut service, "H1-1/all", &GuestAction::Send { to, text });
    guests(&mut service, "H1-2/2", &GuestAction::Leave { mgid });
    let faults = LinkFaults {
        loss: 200_000,
        symbol_errors: 3,
        ..LinkFaults::default()
    };
    let lab = service.lab_mut();
    lab.set_link_faults("H1-1/1", None, faults).unwrap();
    let (count, destinations) = (100, 2);
    let paths = GuestAction::Paths {
        count,
        destinations,
    };
    guests(&mut service, "H1-1/1", &paths);
    for up in [false, true] {
        service.lab_mut().set_link("H1-2/1", None, up).unwrap();
        pass(&mut service, Duration::from_secs(2));
    }
    service
}

/// Calls `show` with the scene of a service.
fn with_scene<T>(service: &Service, call: impl FnOnce(&Scene<'_>) -> T) -> T {
    let lab = service.lab();
    let pfs = lab.inventory.pf_hosts().map(|pf| NamedPf {
        name: &pf.name,
        node: lab.world().host(pf.id).node(),
        rows: lab.world().context(pf.id),
    });
    let pfs: Vec<_> = pfs.collect();
    call(&Scene {
        pfs: &pfs,
        vmms: lab,
        fabric: lab.world().fabric(),
        service: &ServiceFacts::default(),
        now: lab.world().now(),
    })
}

#[test]
fn tables_of_a_service() {
    let service = service();
    let text = with_scene(&service, |scene| {
        let mut text = String::new();
        for subject in Subject::ALL {
            let mut reply = Vec::new();
            let mut page = show::page(scene, subject, Filter::default());
            while !page.write(scene, &mut reply, &mut Slice::endless()) {}
            let reply = String::from_utf8(reply).unwrap();
            let tables = Tables::of_reply(&reply).unwrap();
            for (form, printed) in [
                ("Text", tables.text(false, false)),
                ("Text wide", tables.text(true, false)),
                ("Json", serde_json::to_string(&tables).unwrap()),
            ] {
                text += &format!("# {subject:?} {form}\n{printed}\n");
            }
        }
        text
    });
    assert_unchanged("tables", Form::Text, &text);
}

/// Node by node: the metrics of the whole begin with the version.
#[test]
fn metrics_of_a_service() {
    let service = service();
    let text = with_scene(&service, |scene| {
        let mut text = Vec::new();
        for (node, _) in scene.fabric.nodes() {
            let filter = Filter {
                node: Some(node),
                ..Filter::default()
            };
            for by in [By::Host, By::Vf] {
                let mut metrics = Metrics::new(by, filter);
                while !metrics.write(scene, &mut text, &mut Slice::endless()) {}
            }
        }
        String::from_utf8(text).unwrap()
    });
    assert_unchanged("metrics", Form::Text, &text);
}
