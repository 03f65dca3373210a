mod names;

use std::fs::OpenOptions;
use std::net::Ipv4Addr;

use ib_vtime::Duration;
use ib_wire::Gid;
use verbs_link::abi::completion_queue::CreateCq;
use verbs_link::abi::device::QueryDeviceAnswer;
use verbs_link::abi::rdma_cm::{
    Bind, CmCommandHeader, CmEventRecord, ConnParam, Connect, CreateId, IdAnswer, IdArgument,
    IdCommand, QueryAddrAnswer, Reject, ResolveAddr, cm_command, cm_event,
};
use verbs_link::abi::{CommandHeader, command};
use vf_uverbs::{ContextId, RingMemory};
use vhca::world::HostFunction;
use vhca_receiver::PassedFd;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::serve::lab::Lab;
use crate::serve::options::Options;
use crate::serve::service::Service;
use crate::serve::tests::pass;
use crate::serve::topology::TopologySpec;
use crate::serve::verbs::process_vf::Holder;

/// Port spaces (`enum rdma_ucm_port_space`).
const TCP: u16 = 0x0106;
const UDP: u16 = 0x0111;
const IB: u16 = 0x013f;

#[test]
fn programs_of_two_services_and_of_one_vf_begin_with_different_psns() {
    let services = [1, 2].map(|seed: u64| {
        let limit = ProgramLimit {
            most: 1 << 20,
            pool: Arc::new(MemoryPool::new(1 << 20)),
        };
        let mut vf = VfProgram::new(Secret::from(seed), limit);
        let first = vf.cm.fresh_psn();
        vf.release();
        [first, vf.cm.fresh_psn()]
    });
    let [[a, b], [c, d]] = services;
    assert!(
        a != b && c != d,
        "the next program of the VF begins elsewhere"
    );
    assert!(
        a != c && b != d,
        "a program of another service begins elsewhere"
    );
}

/// A service with a VF for programs on each host.
fn service() -> Service {
    started(&options())
}

fn options() -> Options {
    Options {
        topology: TopologySpec::TwoSwitch,
        vfs: 1,
        verbs: true,
        program_vfs: 1,
        ..Options::default()
    }
}

fn started(options: &Options) -> Service {
    let mut service = Service::in_virtual_time(Lab::build(options, 1).unwrap());
    pass(&mut service, Duration::from_secs(5));
    service
}

/// Assigns the VF of a host to this process.
fn claim(service: &mut Service, host: &str) -> HostFunction {
    claim_with(service, host, &Arc::new(MappedRings::new().unwrap()))
}

/// The same with a file of rings.
fn claim_with(service: &mut Service, host: &str, rings: &Arc<MappedRings>) -> HostFunction {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/proc/self/mem");
    let memory = std::os::fd::OwnedFd::from(file.unwrap());
    let holder = Holder {
        pid: None,
        uid: None,
        client: 0,
        since: service.lab().world().now(),
    };
    let claimed = service
        .lab_mut()
        .claim_vf(host, rings, PassedFd::from(memory), holder);
    claimed.unwrap().0
}

/// An open file of the RDMA CM on the VF of a host.
#[derive(Clone, Copy)]
struct Opened {
    at: HostFunction,
    channel: ChannelId,
}

impl Opened {
    fn new(service: &mut Service, host: &str) -> Self {
        let at = claim(service, host);
        let world = service.lab_mut().world_mut();
        let opened = world.with_consumer(at, |vf: &mut VfProgram, hca, now| vf.open_cm(now, hca));
        let channel = opened.unwrap().unwrap();
        Self { at, channel }
    }

    fn command(&self, service: &mut Service, number: u32, payload: &[u8]) -> Vec<u8> {
        let header = CmCommandHeader {
            command: number.into(),
            in_bytes: u16::try_from(payload.len()).unwrap().into(),
            out_bytes: 400.into(),
        };
        let bytes = [header.as_bytes(), payload].concat();
        let addresses = service.lab().addresses(self.at).unwrap();
        let world = service.lab_mut().world_mut();
        let done = world.with_consumer(self.at, |vf: &mut VfProgram, hca, now| {
            vf.cm_command(now, hca, &addresses, self.channel, &bytes)
        });
        done.unwrap().unwrap().answer
    }

    fn create(&self, service: &mut Service, port_space: u16) -> u32 {
        let create = CreateId {
            ps: port_space.into(),
            qp_type: 2,
            ..CreateId::default()
        };
        let answer = self.command(service, cm_command::CREATE_ID, create.as_bytes());
        IdAnswer::read_from_bytes(&answer).unwrap().value.get()
    }

    /// Returns the next event, which comes at once: before a message would be repeated.
    fn event(&self, service: &mut Service) -> CmEventRecord {
        pass(service, Duration::from_millis(50));
        let world = service.lab_mut().world_mut();
        let vf = world.consumer_mut::<VfProgram>(self.at).unwrap();
        let event = vf.cm.poll_event().expect("an event");
        CmEventRecord::read_from_bytes(&event.bytes).unwrap()
    }

    fn expect(&self, service: &mut Service, number: u32, status: i32) {
        let event = self.event(service);
        let seen = (event.event.get(), event.status.get().cast_signed());
        assert_eq!(seen, (number, status));
    }

    /// Resolves the path from an id to an address of `size` bytes.
    fn resolve(&self, service: &mut Service, id: u32, address: &[u8]) {
        let mut resolve = ResolveAddr {
            id: id.into(),
            dst_size: u16::try_from(address.len()).unwrap().into(),
            ..ResolveAddr::default()
        };
        resolve.dst_addr[..address.len()].copy_from_slice(address);
        self.command(service, cm_command::RESOLVE_ADDR, resolve.as_bytes());
        self.expect(service, cm_event::ADDR_RESOLVED, 0);
        let route = IdArgument {
            id: id.into(),
            argument: 2000.into(),
        };
        self.command(service, cm_command::RESOLVE_ROUTE, route.as_bytes());
        self.expect(service, cm_event::ROUTE_RESOLVED, 0);
    }

    /// Asks for a connection, with private data.
    fn connect(&self, service: &mut Service, id: u32, data: &[u8]) {
        let mut param = ConnParam {
            valid: 1,
            private_data_len: u8::try_from(data.len()).unwrap(),
            ..ConnParam::default()
        };
        param.private_data[..data.len()].copy_from_slice(data);
        let connect = Connect {
            param,
            id: id.into(),
            ..Connect::default()
        };
        self.command(service, cm_command::CONNECT, connect.as_bytes());
    }
}

/// Returns the address of the VF of a host, and its GID.
fn address_of(service: &Service, asks: Opened, host: &str) -> (Ipv4Addr, Gid) {
    let known = service.lab().process_vfs.values();
    let mut known = known.filter(|vf| vf.host_name == host);
    let address = known.next().unwrap().address.unwrap();
    let book = service.lab().addresses(asks.at).unwrap();
    (address, book.gids[&address])
}

/// Asks, from H2-1, for a service of H1-1 that no program has. Returns number and status of the event.
fn ask(mut service: Service, port_space: u16) -> (u32, i32) {
    let asking = Opened::new(&mut service, "H2-1");
    let id = asking.create(&mut service, port_space);
    let (ip, _) = address_of(&service, asking, "H1-1");
    let mut address = [0; 16];
    address[..2].copy_from_slice(&2_u16.to_ne_bytes());
    address[2..4].copy_from_slice(&7174_u16.to_be_bytes());
    address[4..8].copy_from_slice(&ip.octets());
    asking.resolve(&mut service, id, &address);
    asking.connect(&mut service, id, &[]);
    let event = asking.event(&mut service);
    (event.event.get(), event.status.get().cast_signed())
}

/// The answer to a peer that asks for a service which no program has.
const REFUSED: [(u16, (u32, i32)); 2] = [
    (TCP, (cm_event::REJECTED, 8)),
    (UDP, (cm_event::UNREACHABLE, 1)),
];

#[test]
fn requests_to_a_vf_that_no_process_has_are_refused_at_once() {
    for (port_space, refused) in REFUSED {
        assert_eq!(ask(service(), port_space), refused);
    }
}

#[test]
fn requests_to_a_process_without_a_file_of_the_rdma_cm_are_refused_at_once() {
    for (port_space, refused) in REFUSED {
        let mut service = service();
        claim(&mut service, "H1-1");
        assert_eq!(ask(service, port_space), refused);
    }
}

#[test]
fn requests_to_a_vf_whose_process_is_gone_are_refused_at_once() {
    for (port_space, refused) in REFUSED {
        let mut service = service();
        let gone = Opened::new(&mut service, "H1-1");
        pass(&mut service, Duration::from_millis(50));
        service.lab_mut().release_vf(gone.at);
        pass(&mut service, Duration::from_millis(50));
        assert_eq!(ask(service, port_space), refused);
    }
}

/// Lays an address of InfiniBand's family out, of which all bits of the service id count.
fn ib(gid: Gid, service_id: u64) -> [u8; 48] {
    let mut bytes = [0; 48];
    bytes[..2].copy_from_slice(&27_u16.to_ne_bytes());
    bytes[2..4].fill(0xff);
    bytes[8..24].copy_from_slice(&gid.0);
    bytes[24..32].copy_from_slice(&service_id.to_be_bytes());
    bytes[32..40].fill(0xff);
    bytes
}

#[test]
fn programs_connect_by_addresses_of_the_family_of_infiniband() {
    const SERVICE: u64 = (TCP as u64) << 16 | 7174;

    let mut service = service();
    let server = Opened::new(&mut service, "H1-1");
    let client = Opened::new(&mut service, "H2-1");
    let (_, to) = address_of(&service, client, "H1-1");
    let (_, from) = address_of(&service, client, "H2-1");
    let listening = server.create(&mut service, IB);
    let mut bind = Bind {
        id: listening.into(),
        addr_size: 48.into(),
        ..Bind::default()
    };
    bind.addr[..48].copy_from_slice(&ib(Gid::NONE, SERVICE));
    server.command(&mut service, cm_command::BIND, bind.as_bytes());
    let listen = IdArgument {
        id: listening.into(),
        argument: 1.into(),
    };
    server.command(&mut service, cm_command::LISTEN, listen.as_bytes());
    let asking = client.create(&mut service, TCP);
    client.resolve(&mut service, asking, &ib(to, SERVICE));
    // No header of the IP CM service stands before the data, which may be as long as the message has room.
    let data = [7; 92];
    client.connect(&mut service, asking, &data);
    let request = server.event(&mut service);
    assert_eq!(request.event.get(), cm_event::CONNECT_REQUEST);
    let (param, _) = ConnParam::read_from_prefix(&request.param).unwrap();
    assert_eq!(param.private_data[..92], data);
    let query = IdCommand {
        id: request.id,
        ..IdCommand::default()
    };
    let answer = server.command(&mut service, cm_command::QUERY, query.as_bytes());
    let answer = QueryAddrAnswer::read_from_bytes(&answer).unwrap();
    assert_eq!(answer.src_addr[..48], ib(to, SERVICE));
    assert_eq!(answer.dst_addr[8..24], from.0);
    let reject = Reject {
        id: request.id,
        ..Reject::default()
    };
    server.command(&mut service, cm_command::REJECT, reject.as_bytes());
    client.expect(&mut service, cm_event::REJECTED, 28);
}

#[test]
fn limits_are_those_of_mlx5_and_the_largest_queues_have_a_page_each() {
    let mut service = service();
    let rings = Arc::new(MappedRings::new().unwrap());
    let at = claim_with(&mut service, "H1-1", &rings);
    let world = service.lab_mut().world_mut();
    let mut run = |number: u32, payload: &[u8], room: usize| {
        let words = |bytes: usize| u16::try_from(bytes / 4).unwrap();
        let header = CommandHeader {
            command: number.into(),
            in_words: words(size_of::<CommandHeader>() + payload.len()).into(),
            out_words: words(room).into(),
        };
        let bytes = [header.as_bytes(), payload].concat();
        let done = world.with_consumer(at, |vf: &mut VfProgram, hca, _| {
            let context = match vf.device.contexts() {
                0 => vf.device.open()?,
                _ => ContextId(1),
            };
            vf.device.command(hca, context, &bytes)
        });
        done.unwrap()
    };
    run(command::GET_CONTEXT, &[0; 8], 8).unwrap();
    let room = size_of::<QueryDeviceAnswer>();
    let reply = run(command::QUERY_DEVICE, &[0; 8], room).unwrap();
    let limits = QueryDeviceAnswer::read_from_bytes(&reply.answer).unwrap();
    assert_eq!(
        (limits.max_cqe.get(), limits.max_mr.get()),
        (4_194_303, 1 << 17)
    );
    let create = CreateCq {
        cqe: limits.max_cqe,
        comp_channel: (-1).into(),
        ..CreateCq::default()
    };
    let mut queues = 0;
    while run(command::CREATE_CQ, create.as_bytes(), 24).is_ok() {
        queues += 1;
    }
    assert!(queues > 100, "{queues} queues");
    assert_eq!(rings.resident(), queues * 4096);
}
