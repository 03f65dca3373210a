use std::fs::OpenOptions;

use ib_vtime::Duration;
use verbs_link::abi::rdma_cm::{
    CmCommandHeader, CmEventRecord, ConnParam, Connect, CreateId, IdAnswer, IdArgument,
    ResolveAddr, cm_command, cm_event,
};
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
    let options = Options {
        topology: TopologySpec::TwoSwitch,
        vfs: 1,
        verbs: true,
        program_vfs: 1,
        ..Options::default()
    };
    let mut service = Service::in_virtual_time(Lab::build(&options, 1).unwrap());
    pass(&mut service, Duration::from_secs(5));
    service
}

/// Assigns the VF of a host to this process.
fn claim(service: &mut Service, host: &str) -> HostFunction {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/proc/self/mem");
    let memory = std::os::fd::OwnedFd::from(file.unwrap());
    let rings = Arc::new(MappedRings::new().unwrap());
    let holder = Holder {
        pid: None,
        uid: None,
        client: 0,
        since: service.lab().world().now(),
    };
    let claimed = service
        .lab_mut()
        .claim_vf(host, &rings, PassedFd::from(memory), holder);
    claimed.unwrap().0
}

/// A program with one id.
struct Asking {
    service: Service,
    at: HostFunction,
    channel: ChannelId,
    id: u32,
}

impl Asking {
    /// Resolves the path from an id of the program on H2-1 to the VF of H1-1.
    fn begin(mut service: Service, at: HostFunction, port_space: u16) -> Self {
        let channel = service
            .lab_mut()
            .world_mut()
            .with_consumer(at, |vf: &mut VfProgram, hca, now| vf.open_cm(now, hca));
        let mut asking = Self {
            service,
            at,
            channel: channel.unwrap().unwrap(),
            id: 0,
        };
        let create = CreateId {
            ps: port_space.into(),
            ..CreateId::default()
        };
        let reply = asking.command(cm_command::CREATE_ID, create.as_bytes());
        let answer = IdAnswer::read_from_bytes(&reply.answer).unwrap();
        asking.id = answer.value.get();
        let known = asking.service.lab().process_vfs.values();
        let mut known = known.filter(|vf| vf.host_name == "H1-1");
        let address = known.next().unwrap().address;
        let mut resolve = ResolveAddr {
            id: asking.id.into(),
            dst_size: 16.into(),
            ..ResolveAddr::default()
        };
        resolve.dst_addr[..2].copy_from_slice(&2_u16.to_ne_bytes());
        resolve.dst_addr[2..4].copy_from_slice(&7174_u16.to_be_bytes());
        resolve.dst_addr[4..8].copy_from_slice(&address.octets());
        asking.command(cm_command::RESOLVE_ADDR, resolve.as_bytes());
        assert_eq!(asking.event(), (cm_event::ADDR_RESOLVED, 0));
        let route = IdArgument {
            id: asking.id.into(),
            argument: 2000.into(),
        };
        asking.command(cm_command::RESOLVE_ROUTE, route.as_bytes());
        assert_eq!(asking.event(), (cm_event::ROUTE_RESOLVED, 0));
        asking
    }

    fn command(&mut self, number: u32, payload: &[u8]) -> Reply {
        let header = CmCommandHeader {
            command: number.into(),
            in_bytes: u16::try_from(payload.len()).unwrap().into(),
            out_bytes: 400.into(),
        };
        let bytes = [header.as_bytes(), payload].concat();
        let addresses = self.service.lab().addresses(self.at).unwrap();
        let channel = self.channel;
        let world = self.service.lab_mut().world_mut();
        let done = world.with_consumer(self.at, |vf: &mut VfProgram, hca, now| {
            vf.cm_command(now, hca, &addresses, channel, &bytes)
        });
        done.unwrap().unwrap()
    }

    /// Returns the number and the status of the next event, which comes at once: before a message would be repeated.
    fn event(&mut self) -> (u32, i32) {
        pass(&mut self.service, Duration::from_millis(50));
        let world = self.service.lab_mut().world_mut();
        let vf = world.consumer_mut::<VfProgram>(self.at).unwrap();
        let event = vf.cm.poll_event().expect("an event");
        let record = CmEventRecord::read_from_bytes(&event.bytes).unwrap();
        (record.event.get(), record.status.get().cast_signed())
    }

    /// Asks for a connection, and returns the event that ends it.
    fn connect(&mut self) -> (u32, i32) {
        let connect = Connect {
            param: ConnParam {
                valid: 1,
                ..ConnParam::default()
            },
            id: self.id.into(),
            ..Connect::default()
        };
        self.command(cm_command::CONNECT, connect.as_bytes());
        self.event()
    }
}

/// What a peer learns that asks for a service which no program has.
const REFUSED: [(u16, (u32, i32)); 2] = [
    (TCP, (cm_event::REJECTED, 8)),
    (UDP, (cm_event::UNREACHABLE, 1)),
];

#[test]
fn requests_to_a_vf_that_no_process_has_are_refused_at_once() {
    for (port_space, refused) in REFUSED {
        let mut service = service();
        let at = claim(&mut service, "H2-1");
        let mut asking = Asking::begin(service, at, port_space);
        assert_eq!(asking.connect(), refused);
    }
}

#[test]
fn requests_to_a_process_without_a_file_of_the_rdma_cm_are_refused_at_once() {
    for (port_space, refused) in REFUSED {
        let mut service = service();
        claim(&mut service, "H1-1");
        let at = claim(&mut service, "H2-1");
        let mut asking = Asking::begin(service, at, port_space);
        assert_eq!(asking.connect(), refused);
    }
}

#[test]
fn requests_to_a_vf_whose_process_is_gone_are_refused_at_once() {
    for (port_space, refused) in REFUSED {
        let mut service = service();
        let gone = claim(&mut service, "H1-1");
        let world = service.lab_mut().world_mut();
        let opened = world.with_consumer(gone, |vf: &mut VfProgram, hca, now| vf.open_cm(now, hca));
        opened.unwrap().unwrap();
        pass(&mut service, Duration::from_millis(50));
        service.lab_mut().release_vf(gone);
        pass(&mut service, Duration::from_millis(50));
        let at = claim(&mut service, "H2-1");
        let mut asking = Asking::begin(service, at, port_space);
        assert_eq!(asking.connect(), refused);
    }
}
