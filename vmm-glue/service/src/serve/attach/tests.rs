use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use ib_vtime::Duration;
use ibsim_link::codec::{CONTROL_SIZE, Connect, Control, ControlKind, SocketName};

use super::*;
use crate::serve::lab::Lab;
use crate::serve::service::Service;
use vhca::{Driven, RunEnd, Runner};

const LONG: Duration = Duration::from_secs(20);

/// A service that attaches to a node of a simulator by this name.
fn service(base: &str) -> Service {
    let options = Options {
        attach: vec![format!("ibsim:{base}/H-2").parse().unwrap()],
        ..Options::default()
    };
    let mut service = Service::new(Lab::build(&options, 1).unwrap());
    for node in IbsimNode::all(Instant::ZERO, &options) {
        service.add_way_in(node);
    }
    service
}

/// The control socket of a simulator.
fn simulator(base: &str) -> UnixDatagram {
    let name = SocketName::ServerControl.bytes(base);
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
}

fn base(test: &str) -> String {
    format!("vhca-{test}-{}", std::process::id())
}

/// Runs until something is announced, and gives that.
fn announced(runner: &mut Runner<Service>) -> String {
    let end = runner.run_until(LONG, |service| service.has_announcement());
    assert_eq!(end.unwrap(), RunEnd::Reached);
    let announcement = runner.driven().unwrap().poll_announcement();
    announcement.unwrap().to_string()
}

#[test]
fn a_simulator_that_is_not_there_is_told_of_once_and_asked_again() {
    let base = base("absent");
    let mut runner = Runner::new(service(&base)).unwrap();
    let told = format!("{base}/H-2: the simulator is not there; trying again");
    assert_eq!(announced(&mut runner), told);
    let simulator = simulator(&base);
    simulator
        .set_read_timeout(Some(Duration::from_millis(1)))
        .unwrap();
    let mut bytes = [0; CONTROL_SIZE];
    let asked = runner.run_until(LONG, |_| simulator.recv(&mut bytes).is_ok());
    assert_eq!(asked.unwrap(), RunEnd::Reached);
    assert!(!runner.driven().unwrap().has_announcement());
    let control = Control::parse(&bytes).unwrap();
    assert_eq!(control.kind, ControlKind::CONNECT);
    let connect: Connect = control.data();
    assert_eq!(connect.node_name(), b"H-2");
    assert_eq!(connect.takes_requests.get(), 1);
}

#[test]
fn a_simulator_that_refuses_is_told_of_with_what_may_be_the_matter() {
    let base = base("refusing");
    let simulator = simulator(&base);
    simulator.set_read_timeout(Some(LONG)).unwrap();
    let mut runner = Runner::new(service(&base)).unwrap();
    let mut bytes = [0; CONTROL_SIZE];
    runner.driven().unwrap().poll(Instant::ZERO);
    let (_, client) = simulator.recv_from(&mut bytes).unwrap();
    let mut control = Control::parse(&bytes).unwrap();
    control.kind = ControlKind::ERROR;
    let answer: [u8; CONTROL_SIZE] = zerocopy::transmute!(control);
    simulator.send_to_addr(&answer, &client).unwrap();
    assert!(announced(&mut runner).contains("no such node, no free place, or another client"));
    assert!(runner.driven().unwrap().lab().inventory.hosts().is_empty());
}

#[test]
fn two_clients_of_one_process_have_different_names() {
    let base = base("names");
    let simulator = IbsimAddress::Unix(base.clone());
    assert!(ClientSockets::open(&simulator).is_err(), "nobody is there");
    let _server = self::simulator(&base);
    let one = ClientSockets::open(&simulator).unwrap();
    let two = ClientSockets::open(&simulator).unwrap();
    assert_ne!(one.client_id, two.client_id);
}
