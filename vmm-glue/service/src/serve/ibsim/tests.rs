use std::net::UdpSocket;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use ib_wire::Lid;
use ib_wire::mad::{Mad, MadHeader, Method, MgmtClass};
use ib_wire::smp::{CapabilityMask, DirectedRouteSmp, NodeInfo, SmpAttribute};
use ibsim_link::codec::{CONTROL_SIZE, Connect, Control, MadDatagram, SocketName};
use zerocopy::IntoBytes;

use super::*;
use crate::serve::lab::Lab;
use crate::serve::options::{Options, SmChoice};
use crate::serve::service::Service;
use crate::serve::topology::TopologySpec;
use vhca::{RunEnd, Runner};

const LONG: Duration = Duration::from_secs(30);

fn runner(address: &IbsimAddress) -> Runner<Service> {
    let options = Options {
        topology: TopologySpec::Single,
        sm: SmChoice::None,
        ..Options::default()
    };
    let mut service = Service::new(Lab::build(&options, 1).unwrap());
    service.add_way_in(IbsimWay::bind(address.clone(), Users::default()).unwrap());
    Runner::new(service).unwrap()
}

/// The two sockets of a client.
enum Client {
    Unix(String, UnixDatagram, UnixDatagram),
    Udp(u16, UdpSocket, UdpSocket),
}

impl Client {
    fn unix(base: &str, id: u32) -> Self {
        let bind = |name| {
            let socket = UnixDatagram::bind_addr(&abstract_name(base, name)).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let control = bind(SocketName::ClientControl(id));
        let server = abstract_name(base, SocketName::ServerControl);
        control.connect_addr(&server).unwrap();
        Self::Unix(base.to_owned(), control, bind(SocketName::ClientData(id)))
    }

    fn udp(port: u16) -> Self {
        let bind = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let control = bind();
        control.connect(("127.0.0.1", port)).unwrap();
        Self::Udp(port, control, bind())
    }

    fn exchange(&self, runner: &mut Runner<Service>, control: &Control) -> Control {
        let mut reply = [0; CONTROL_SIZE];
        let receive: &dyn Fn(&mut [u8]) -> bool = match self {
            Self::Unix(_, socket, _) => {
                socket.send(control.as_bytes()).unwrap();
                &|reply| socket.recv(reply).is_ok()
            }
            Self::Udp(_, socket, _) => {
                socket.send(control.as_bytes()).unwrap();
                &|reply| socket.recv(reply).is_ok()
            }
        };
        let end = runner.run_until(LONG, |_| receive(&mut reply)).unwrap();
        assert_eq!(end, RunEnd::Reached);
        Control::parse(&reply).unwrap()
    }

    /// Attaches to a node, and gives the slot.
    fn attach(&self, runner: &mut Runner<Service>, node: &str) -> u32 {
        let mut data: Connect = Control::new(ControlKind::CONNECT, 0, &[0_u8; 44]).data();
        data.set_node_name(node.as_bytes());
        data.id = match self {
            Self::Unix(_, _, socket) => {
                let address = socket.local_addr().unwrap();
                let name = address.as_abstract_name().unwrap();
                let digits = name.rsplit(|byte| *byte == b'n').next().unwrap();
                let digits = core::str::from_utf8(digits).unwrap();
                digits.trim_end_matches('\0').parse::<u32>().unwrap().into()
            }
            Self::Udp(_, _, socket) => u32::from(socket.local_addr().unwrap().port()).into(),
        };
        let reply = self.exchange(runner, &Control::new(ControlKind::CONNECT, 0, &data));
        assert_eq!(reply.kind, ControlKind::CONNECT);
        let slot = reply.data::<Connect>().id.get();
        match self {
            Self::Unix(base, _, socket) => {
                let server = abstract_name(base, SocketName::ServerData(slot));
                socket.connect_addr(&server).unwrap();
            }
            Self::Udp(port, _, socket) => {
                let data = port + 1 + u16::try_from(slot).unwrap();
                socket.connect(("127.0.0.1", data)).unwrap();
            }
        }
        slot
    }

    /// Asks for NodeInfo at the end of a directed route.
    fn node_info(&self, runner: &mut Runner<Service>, path: &[u8]) -> MadDatagram {
        let mut mad = Mad::new(MadHeader::new(
            MgmtClass::SUBN_DIRECTED_ROUTE,
            Method::GET,
            NodeInfo::ID,
        ));
        assert!(mad.view_mut::<DirectedRouteSmp>().set_path(path));
        let datagram = MadDatagram::new(Lid::PERMISSIVE, Lid::PERMISSIVE, 0, 0, &mad);
        let mut answer = [0; MAD_DATAGRAM_SIZE];
        let receive: &dyn Fn(&mut [u8]) -> bool = match self {
            Self::Unix(_, _, socket) => {
                socket.send(datagram.as_bytes()).unwrap();
                &|answer| socket.recv(answer).is_ok()
            }
            Self::Udp(_, _, socket) => {
                socket.send(datagram.as_bytes()).unwrap();
                &|answer| socket.recv(answer).is_ok()
            }
        };
        let end = runner.run_until(LONG, |_| receive(&mut answer)).unwrap();
        assert_eq!(end, RunEnd::Reached);
        MadDatagram::parse(&answer).unwrap()
    }
}

fn abstract_name(base: &str, name: SocketName) -> SocketAddr {
    SocketAddr::from_abstract_name(name.bytes(base)).unwrap()
}

/// A name that no other test has.
fn base(test: &str) -> String {
    format!("vhca-{test}-{}", std::process::id())
}

fn is_sm(runner: &mut Runner<Service>, node: &str) -> bool {
    let lab = runner.driven().unwrap().lab();
    let port = lab.inventory.node(node).unwrap().port(1);
    let port = lab.world().fabric().port(port).unwrap();
    port.capabilities.contains(CapabilityMask::IS_SM)
}

fn ask_everything(runner: &mut Runner<Service>, client: &Client) {
    client.attach(runner, "host-2");
    let own = client.node_info(runner, &[]).mad();
    let info: &NodeInfo = own.view::<DirectedRouteSmp>().attribute();
    let lab = runner.driven().unwrap().lab();
    let node = lab
        .world()
        .fabric()
        .node(lab.inventory.node("host-2").unwrap())
        .unwrap();
    assert_eq!(info.node_guid, node.node_guid);
    let other = client.node_info(runner, &[1, 2]);
    assert_eq!(other.status.get(), 0);
    assert_eq!(other.mad().header.method, Method::GET_RESP);
    let nowhere = client.node_info(runner, &[1, 8]);
    assert_eq!(nowhere.status.get(), MadDatagram::TIMED_OUT);
}

#[test]
fn a_client_attaches_by_unix_sockets_and_asks_nodes() {
    let base = base("asks");
    let mut runner = runner(&IbsimAddress::Unix(base.clone()));
    ask_everything(&mut runner, &Client::unix(&base, 1));
}

#[test]
fn a_client_attaches_by_udp_and_asks_nodes() {
    // A port that was free a moment ago, with room for slots behind it.
    let free = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port().min(60_000);
    drop(free);
    let mut runner = runner(&IbsimAddress::Udp(port));
    ask_everything(&mut runner, &Client::udp(port));
}

#[test]
fn more_than_ten_clients_attach_to_one_port() {
    let base = base("many");
    let mut runner = runner(&IbsimAddress::Unix(base.clone()));
    let clients: Vec<Client> = (0..15).map(|id| Client::unix(&base, id)).collect();
    for (client, expected) in clients.iter().zip(0..) {
        assert_eq!(client.attach(&mut runner, "host-1"), expected);
    }
    for client in &clients {
        assert_eq!(client.node_info(&mut runner, &[1]).status.get(), 0);
    }
}

#[test]
fn the_second_server_of_a_name_is_told_that_it_is_taken() {
    let address = IbsimAddress::Unix(base("taken"));
    let first = IbsimWay::bind(address.clone(), Users::default()).unwrap();
    let error = IbsimWay::bind(address.clone(), Users::default()).unwrap_err();
    assert!(matches!(&error, IbsimError::Taken(taken) if *taken == address));
    drop(first);
    IbsimWay::bind(address, Users::default()).unwrap();
}

#[test]
fn a_client_that_dies_is_noticed_and_its_is_sm_cleared() {
    let base = base("dies");
    let mut runner = runner(&IbsimAddress::Unix(base.clone()));
    let client = Client::unix(&base, 1);
    let slot = client.attach(&mut runner, "host-3");
    let announce = Control::new(ControlKind::SET_IS_SM, slot, &1_u32);
    client.exchange(&mut runner, &announce);
    assert!(is_sm(&mut runner, "host-3"));
    drop(client);
    let end = runner
        .run_until(LONG, |service| {
            let lab = service.lab();
            let port = lab.inventory.node("host-3").unwrap().port(1);
            let port = lab.world().fabric().port(port).unwrap();
            !port.capabilities.contains(CapabilityMask::IS_SM)
        })
        .unwrap();
    assert_eq!(end, RunEnd::Reached);
    let next = Client::unix(&base, 2);
    assert_eq!(next.attach(&mut runner, "host-3"), slot);
}

#[test]
fn a_datagram_without_a_sender_counts_like_any_other() {
    let base = base("unnamed");
    let server_address = IbsimAddress::Unix(base.clone());
    let mut server = ClientSocket::trusted(server_address.bind_control().unwrap());
    let unnamed = UnixDatagram::unbound().unwrap();
    let address = abstract_name(&base, SocketName::ServerControl);
    for _ in 0..2 {
        unnamed.send_to_addr(&[0; 3], &address).unwrap();
    }
    let mut received = || {
        let received = server_address.receive_from(&mut server, &mut [0; 8])?;
        assert_eq!(received.user, Some(getuid()));
        Some((received.len, received.from.is_none()))
    };
    // Each is told by itself, so that no number of them is more than the caller's turn.
    assert_eq!(received(), Some((3, true)));
    assert_eq!(received(), Some((3, true)));
    assert_eq!(received(), None);
}

#[test]
fn a_client_that_does_not_read_does_not_stall_the_others() {
    let base = base("stalls");
    let mut runner = runner(&IbsimAddress::Unix(base.clone()));
    let [stalled, other] = [1, 2].map(|id| Client::unix(&base, id));
    for client in [&stalled, &other] {
        client.attach(&mut runner, "host-1");
    }
    let Client::Unix(_, _, socket) = &stalled else {
        unreachable!("made so above");
    };
    let mut mad = Mad::new(MadHeader::new(
        MgmtClass::SUBN_DIRECTED_ROUTE,
        Method::GET,
        NodeInfo::ID,
    ));
    for tid in 0..200_u64 {
        mad.header.tid = ib_wire::Tid::new(tid);
        assert!(mad.view_mut::<DirectedRouteSmp>().set_path(&[1]));
        let datagram = MadDatagram::new(Lid::NONE, Lid::PERMISSIVE, 0, 0, &mad);
        while socket.send(datagram.as_bytes()).is_err() {
            runner
                .run_until(Duration::from_millis(1), |_| false)
                .unwrap();
        }
    }
    assert_eq!(other.node_info(&mut runner, &[1]).status.get(), 0);
    let mut buffer = [0; MAD_DATAGRAM_SIZE];
    let mut answers = 0;
    let end = runner.run_until(LONG, |_| {
        while socket.recv(&mut buffer).is_ok() {
            answers += 1;
        }
        answers == 200
    });
    assert_eq!(end.unwrap(), RunEnd::Reached);
}
