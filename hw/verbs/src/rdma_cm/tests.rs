mod lookup;

use core::net::Ipv4Addr;
use std::collections::BTreeSet;

use hca_api::FunctionId;
use ib_endpoint::EndPortConfig;
use ib_wire::PortNum;
use proptest::prelude::*;

use super::address::{Address, IbAddress};
use super::bind::EPHEMERAL as EPHEMERAL_PORT;
use super::*;
use crate::abi::rdma_cm::{Bind, QueryAddrAnswer, QueryPathAnswer, ResolveAddr, cm_event};
use crate::testing::ActivePort;

/// A process with an open file, and the port that it uses.
struct Opened {
    adapter: ActivePort,
    port: EndPort,
    book: AddressBook,
    cm: RdmaCm,
    channel: ChannelId,
}

fn opened() -> Opened {
    let mut adapter = ActivePort::new();
    let port = adapter.with(|hca| {
        let config = EndPortConfig::host(PortNum(1), 1);
        EndPort::open(Instant::ZERO, hca, config).unwrap()
    });
    let mut cm = RdmaCm::new(1);
    let channel = cm.open().unwrap();
    Opened {
        adapter,
        port,
        book: AddressBook {
            aliases: Vec::new(),
            own: Ipv4Addr::new(127, 77, 1, 1),
            gids: BTreeMap::new(),
            network: None,
        },
        cm,
        channel,
    }
}

impl Opened {
    fn command(&mut self, number: u32, payload: &[u8], room: u16) -> Result<Reply, Errno> {
        let header = CmCommandHeader {
            command: number.into(),
            in_bytes: u16::try_from(payload.len()).unwrap().into(),
            out_bytes: room.into(),
        };
        let bytes = [header.as_bytes(), payload].concat();
        let mut host = CmHost {
            now: Instant::ZERO,
            port: &mut self.port,
            node_guid: Guid::new(7),
        };
        self.cm.command(&mut host, &self.book, self.channel, &bytes)
    }

    fn create(&mut self, uid: u64) -> u32 {
        self.create_in(uid, PS_TCP)
    }

    fn create_in(&mut self, uid: u64, port_space: u16) -> u32 {
        let create = CreateId {
            uid: uid.into(),
            ps: port_space.into(),
            qp_type: QPT_RC,
            ..CreateId::default()
        };
        let number = cm_command::CREATE_ID;
        let reply = self.command(number, create.as_bytes(), 4).unwrap();
        IdAnswer::read_from_bytes(&reply.answer)
            .unwrap()
            .value
            .get()
    }

    fn bind(&mut self, id: u32, port: u16) -> Result<Reply, Errno> {
        self.bind_at(id, at("0.0.0.0", port))
    }

    fn bind_at(&mut self, id: u32, address: SocketAddress) -> Result<Reply, Errno> {
        let (addr, size) = address.write();
        let bind = Bind {
            id: id.into(),
            addr_size: size.into(),
            addr,
            ..Bind::default()
        };
        self.command(cm_command::BIND, bind.as_bytes(), 0)
    }

    fn listen(&mut self, id: u32) -> Result<Reply, Errno> {
        let listen = IdArgument {
            id: id.into(),
            argument: 1.into(),
        };
        self.command(cm_command::LISTEN, listen.as_bytes(), 0)
    }

    fn resolve(
        &mut self,
        id: u32,
        source: Option<SocketAddress>,
        destination: SocketAddress,
    ) -> Result<Reply, Errno> {
        let (src_addr, src_size) = source.map_or(([0; 128], 0), |source| source.write());
        let (dst_addr, dst_size) = destination.write();
        let resolve = ResolveAddr {
            id: id.into(),
            src_size: src_size.into(),
            dst_size: dst_size.into(),
            src_addr,
            dst_addr,
            ..ResolveAddr::default()
        };
        self.command(cm_command::RESOLVE_ADDR, resolve.as_bytes(), 0)
    }

    fn set(&mut self, id: u32, level: u32, option: u32, value: &[u8]) -> Result<Reply, Errno> {
        let set = SetOption {
            id: id.into(),
            level: level.into(),
            optname: option.into(),
            optlen: u32::try_from(value.len()).unwrap().into(),
            ..SetOption::default()
        };
        let payload = [set.as_bytes(), value].concat();
        self.command(cm_command::SET_OPTION, &payload, 0)
    }

    /// Returns own and peer's address of an id, as a kind of query has them.
    fn addresses(&mut self, id: u32, kind: u32) -> [Option<SocketAddress>; 2] {
        let query = IdCommand {
            id: id.into(),
            argument: kind.into(),
            ..IdCommand::default()
        };
        let reply = self.command(cm_command::QUERY, query.as_bytes(), 280);
        let answer = QueryAddrAnswer::read_from_bytes(&reply.unwrap().answer).unwrap();
        [
            SocketAddress::read_sized(&answer.src_addr, answer.src_size.get()).ok(),
            SocketAddress::read_sized(&answer.dst_addr, answer.dst_size.get()).ok(),
        ]
    }

    fn own_gid(&self) -> Gid {
        self.port.view().gid(GidIndex(0)).unwrap()
    }

    /// Returns the number of the next event and its status.
    fn event(&mut self) -> Option<(u32, i32)> {
        let event = self.cm.poll_event()?;
        let record = CmEventRecord::read_from_bytes(&event.bytes).unwrap();
        Some((record.event.get(), record.status.get().cast_signed()))
    }
}

fn at(ip: &str, port: u16) -> SocketAddress {
    let ip = ip.parse().unwrap();
    SocketAddress::Ip(Address { ip, port })
}

/// Returns an address of InfiniBand's family, of which all bits of the service id count.
fn ib(gid: Gid, service: u64) -> SocketAddress {
    SocketAddress::Ib(IbAddress {
        pkey: 0xffff,
        gid,
        service,
        mask: u64::MAX,
        ..IbAddress::default()
    })
}

#[test]
fn a_port_is_one_ids_until_it_is_destroyed() {
    let mut opened = opened();
    let ids = [opened.create(10), opened.create(20)];
    opened.bind(ids[0], 7174).unwrap();
    let taken = opened.bind(ids[1], 7174);
    assert_eq!(taken, Err(Errno::EADDRNOTAVAIL));
    assert_eq!(opened.bind(ids[0], 7175), Err(Errno::EINVAL));
    opened.listen(ids[0]).unwrap();
    let destroy = IdCommand {
        id: ids[0].into(),
        ..IdCommand::default()
    };
    let reply = opened
        .command(cm_command::DESTROY_ID, destroy.as_bytes(), 4)
        .unwrap();
    assert_eq!(reply.retired[0].element, 10);
    opened.bind(ids[1], 7174).unwrap();
    let gone = opened.command(cm_command::DESTROY_ID, destroy.as_bytes(), 4);
    assert_eq!(gone, Err(Errno::ENOENT));
}

#[test]
fn an_address_that_nobody_has_is_an_event_of_the_id() {
    let mut opened = opened();
    let id = opened.create(10);
    opened.resolve(id, None, at("127.77.9.9", 1)).unwrap();
    let event = opened.cm.poll_event().unwrap();
    let record = CmEventRecord::read_from_bytes(&event.bytes).unwrap();
    assert_eq!(
        (record.uid.get(), record.event.get()),
        (10, cm_event::ADDR_ERROR)
    );
    assert_eq!(record.status.get().cast_signed(), -110);
}

#[test]
fn what_is_over_budget_is_refused_and_events_are_lost_until_ids_go() {
    let mut opened = opened();
    let budget = Budget::new(2 * cost::CM_ID + 100, None);
    opened.cm.set_budget(budget.clone());
    let ids = [opened.create(10), opened.create(20)];
    let create = CreateId {
        ps: PS_TCP.into(),
        ..CreateId::default()
    };
    let refused = opened.command(cm_command::CREATE_ID, create.as_bytes(), 4);
    assert_eq!(refused, Err(Errno::ENOMEM));
    assert_eq!(opened.cm.open(), Err(Errno::ENOMEM));
    // It ends with an event that there is no room for.
    let resolve = |opened: &mut Opened| {
        let resolved = opened.resolve(ids[0], None, at("127.77.9.9", 1));
        resolved.unwrap();
    };
    let destroy = |opened: &mut Opened, id: u32| {
        let destroy = IdCommand {
            id: id.into(),
            ..IdCommand::default()
        };
        let reply = opened.command(cm_command::DESTROY_ID, destroy.as_bytes(), 4);
        let answer = reply.unwrap().answer;
        IdAnswer::read_from_bytes(&answer).unwrap().value.get()
    };
    resolve(&mut opened);
    assert!(!opened.cm.has_events() && opened.cm.dropped_events() == 1);
    assert_eq!(destroy(&mut opened, ids[1]), 0);
    resolve(&mut opened);
    assert!(opened.cm.poll_event().is_some());
    assert_eq!(opened.cm.dropped_events(), 1);
    assert_eq!(
        destroy(&mut opened, ids[0]),
        1,
        "the lost one does not count"
    );
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_closed_file_leaves_nothing() {
    let mut opened = opened();
    let id = opened.create(10);
    opened.bind(id, 0).unwrap();
    let mut host = CmHost {
        now: Instant::ZERO,
        port: &mut opened.port,
        node_guid: Guid::new(7),
    };
    opened.cm.close(&mut host, opened.channel);
    assert!(opened.cm.ids.is_empty() && opened.cm.channels.is_empty());
    opened.adapter.with(|hca| opened.port.close(hca));
    let pf = opened.adapter.device.function(FunctionId::PF);
    assert!(pf.is_some());
}

proptest! {
    /// Commands of every number and length.
    #[test]
    fn no_command_of_the_rdma_cm_ends_the_service(
        commands in prop::collection::vec(
            (0_u32..26, prop::collection::vec(any::<u8>(), 0..300), 0_u16..400),
            1..30,
        ),
    ) {
        let mut opened = opened();
        let id = opened.create(10);
        opened.bind(id, 0).unwrap();
        for (number, mut payload, room) in commands {
            // Ids are small, so that some are right; so are families.
            for word in payload.chunks_exact_mut(4) {
                word[0] &= 3;
                word[1..].iter_mut().for_each(|byte| *byte &= 1);
            }
            let _ = opened.command(number, &payload, room);
            while opened.cm.poll_event().is_some() {}
        }
    }
}

/// However many ports are taken, one that is free is found in one pass over them.
#[test]
fn an_id_that_names_no_port_gets_one_that_is_free() {
    const IDS: u16 = 600;

    let mut opened = opened();
    for port in EPHEMERAL_PORT..EPHEMERAL_PORT + IDS {
        let id = opened.create(port.into());
        opened.bind(id, port).unwrap();
    }
    for uid in 0..IDS {
        let id = opened.create(uid.into());
        opened.bind(id, 0).unwrap();
    }
    let id = opened.create(0);
    assert_eq!(
        opened.bind(id, EPHEMERAL_PORT).unwrap_err(),
        Errno::EADDRNOTAVAIL
    );
    let ports = opened.cm.ids.values();
    let ports: BTreeSet<u16> = ports.filter_map(|id| Some(id.local?.port())).collect();
    assert_eq!(ports.len(), usize::from(2 * IDS), "none is taken twice");
}

#[test]
fn first_psns_follow_from_the_secret_and_not_from_each_other() {
    let psns = |seed: u64| {
        let mut cm = RdmaCm::new(seed);
        [(); 64].map(|()| cm.fresh_psn())
    };
    assert_eq!(psns(1), psns(1));
    assert!(psns(1).iter().all(|psn| *psn < 1 << 24));
    let both = psns(1)
        .iter()
        .zip(psns(2))
        .filter(|(own, other)| **own == *other)
        .count();
    assert!(both < 2, "{both} of 64 PSNs are those of another process");
    let steps: BTreeSet<u32> = psns(1)
        .windows(2)
        .map(|pair| pair[1].wrapping_sub(pair[0]))
        .collect();
    assert!(steps.len() > 60);
}

/// Options of ids (`RDMA_OPTION_ID_*`).
const TOS: u32 = 0;
const REUSEADDR: u32 = 1;
const AFONLY: u32 = 2;
const ACK_TIMEOUT: u32 = 3;

const YES: [u8; 4] = 1_u32.to_ne_bytes();
const NO: [u8; 4] = [0; 4];

#[test]
fn ports_are_shared_as_the_kernel_shares_them() {
    let mut opened = opened();
    let gid = core::net::Ipv6Addr::from(opened.own_gid().0).to_string();
    let own = "127.77.1.1";
    // Address that has the port, the next one for it, and the outcome; for IPv6 also with AFONLY.
    for (first, second, outcome) in [
        ("0.0.0.0", "0.0.0.0", Err(Errno::EADDRNOTAVAIL)),
        ("0.0.0.0", own, Err(Errno::EADDRNOTAVAIL)),
        (own, "0.0.0.0", Err(Errno::EADDRNOTAVAIL)),
        (own, own, Err(Errno::EADDRINUSE)),
        (own, "127.0.0.1", Err(Errno::EADDRINUSE)),
        (own, &gid, Ok(())),
        ("0.0.0.0", &gid, Err(Errno::EADDRNOTAVAIL)),
        ("::", "0.0.0.0", Err(Errno::EADDRNOTAVAIL)),
        (&gid, &gid, Err(Errno::EADDRINUSE)),
    ] {
        let ids = [opened.create(1), opened.create(2)];
        opened.bind_at(ids[0], at(first, 7174)).unwrap();
        let bound = opened.bind_at(ids[1], at(second, 7174));
        assert_eq!(bound.map(drop), outcome, "{second} beside {first}");
        let other = opened.create_in(3, PS_UDP);
        opened.bind_at(other, at(second, 7174)).unwrap();
        for id in [ids[0], ids[1], other] {
            let destroy = IdCommand {
                id: id.into(),
                ..IdCommand::default()
            };
            let number = cm_command::DESTROY_ID;
            opened.command(number, destroy.as_bytes(), 4).unwrap();
        }
    }
    let ids = [opened.create(1), opened.create(2)];
    opened.set(ids[0], 0, AFONLY, &YES).unwrap();
    opened.bind_at(ids[0], at("::", 7174)).unwrap();
    opened.bind_at(ids[1], at("0.0.0.0", 7174)).unwrap();
    // Both have the service, and one goes on when the other is gone.
    for id in ids {
        opened.listen(id).unwrap();
    }
    let listeners: BTreeSet<_> = opened.cm.ids.values().map(|id| id.listener).collect();
    assert_eq!(listeners.len(), 1);
}

#[test]
fn ids_that_reuse_an_address_are_bound_together_and_one_alone_listens() {
    let mut opened = opened();
    let ids = [(); 3].map(|()| opened.create(1));
    for id in &ids[..2] {
        opened.set(*id, 0, REUSEADDR, &YES).unwrap();
        opened.bind(*id, 7174).unwrap();
    }
    let refused = Err(Errno::EADDRNOTAVAIL);
    assert_eq!(opened.bind(ids[2], 7174), refused);
    assert_eq!(opened.listen(ids[0]), refused, "it is not alone");
    let destroy = IdCommand {
        id: ids[1].into(),
        ..IdCommand::default()
    };
    let number = cm_command::DESTROY_ID;
    opened.command(number, destroy.as_bytes(), 4).unwrap();
    opened.listen(ids[0]).unwrap();
    assert_eq!(opened.listen(ids[0]), Err(Errno::EINVAL));
    opened.set(ids[2], 0, REUSEADDR, &YES).unwrap();
    assert_eq!(opened.bind(ids[2], 7174), refused, "a listener shares not");
    let late = opened.set(ids[0], 0, REUSEADDR, &YES);
    assert_eq!(late, Err(Errno::EINVAL));
}

#[test]
fn options_have_their_sizes_and_their_time() {
    let mut opened = opened();
    let stream = opened.create(1);
    let datagrams = opened.create_in(2, PS_UDP);
    for (option, right, wrong) in [
        (TOS, &[3][..], &YES[..]),
        (REUSEADDR, &YES, &[1]),
        (AFONLY, &NO, &[0; 8]),
        (ACK_TIMEOUT, &[14], &[]),
    ] {
        opened.set(stream, 0, option, right).unwrap();
        let refused = opened.set(stream, 0, option, wrong);
        assert_eq!(refused, Err(Errno::EINVAL), "option {option}");
    }
    let options = opened.cm.ids[&stream].options;
    assert_eq!((options.service_type, options.ack_timeout), (3, Some(14)));
    let without = opened.set(datagrams, 0, ACK_TIMEOUT, &[14]);
    assert_eq!(without, Err(Errno::EINVAL), "datagrams have none");
    for (level, option) in [(0, 4), (1, 0), (2, 0)] {
        let unknown = opened.set(stream, level, option, &[1]);
        assert_eq!(unknown, Err(Errno::ENOSYS));
    }
    // The value that a command names follows it, or the command is not carried out.
    let set = SetOption {
        id: stream.into(),
        optval: 0x5000.into(),
        optlen: 1.into(),
        ..SetOption::default()
    };
    let alone = opened.command(cm_command::SET_OPTION, set.as_bytes(), 0);
    assert_eq!(alone, Err(Errno::EINVAL));
    let header = CmCommandHeader {
        command: cm_command::SET_OPTION.into(),
        ..CmCommandHeader::default()
    };
    let bytes = [header.as_bytes(), set.as_bytes()].concat();
    assert_eq!(RdmaCm::names_option(&bytes), Some((0x5000, 1)));
    assert_eq!(RdmaCm::names_option(&bytes[..20]), None);
    opened.bind(stream, 7174).unwrap();
    opened.set(stream, 0, AFONLY, &NO).unwrap();
    opened.listen(stream).unwrap();
    let late = opened.set(stream, 0, AFONLY, &NO);
    assert_eq!(late, Err(Errno::EINVAL));
}

#[test]
fn an_id_that_is_bound_is_not_bound_anew_by_the_source_of_resolve_addr() {
    let mut opened = opened();
    let own = opened.own_gid();
    let id = opened.create(1);
    opened.bind(id, 7174).unwrap();
    let peer = at("127.77.1.1", 9);
    let source = Some(at("127.77.1.1", 5));
    let other_family = opened.resolve(id, None, at("fe80::1", 9));
    assert_eq!(other_family, Err(Errno::EINVAL));
    assert_eq!(
        opened.addresses(id, 0),
        [Some(at("0.0.0.0", 7174)), Some(at("0.0.0.0", 0))]
    );
    opened.resolve(id, source, peer).unwrap();
    assert_eq!(opened.event(), Some((cm_event::ADDR_RESOLVED, 0)));
    assert_eq!(
        opened.addresses(id, 0),
        [Some(at("127.77.1.1", 7174)), Some(peer)]
    );
    assert_eq!(opened.resolve(id, source, peer), Err(Errno::EINVAL));
    assert_eq!(opened.listen(id), Err(Errno::EINVAL));
    // What no program has bound, the source binds.
    let id = opened.create(2);
    opened.resolve(id, source, peer).unwrap();
    assert_eq!(opened.addresses(id, 0), [source, Some(peer)]);
    let service = |port: u64| u64::from(PS_TCP) << 16 | port;
    let gid_with = |port| {
        Some(SocketAddress::Ib(IbAddress {
            pkey: 0xffff,
            gid: own,
            service: service(port),
            ..IbAddress::default()
        }))
    };
    assert_eq!(opened.addresses(id, 2), [gid_with(5), gid_with(9)]);
    let taken = opened.create(3);
    let refused = opened.resolve(taken, source, peer);
    assert_eq!(refused, Err(Errno::EADDRINUSE));
    let foreign = opened.resolve(taken, Some(at("127.77.9.9", 0)), peer);
    assert_eq!(foreign, Err(Errno::EADDRNOTAVAIL));
}

#[test]
fn ids_have_addresses_of_the_family_of_infiniband() {
    let mut opened = opened();
    let own = opened.own_gid();
    let peer = Gid::from_parts(own.prefix(), Guid::new(77));
    let tcp = u64::from(PS_TCP) << 16;
    let id = opened.create_in(1, PS_IB);
    opened.bind_at(id, ib(own, tcp | 7174)).unwrap();
    assert_eq!(
        opened.addresses(id, 0),
        [Some(ib(own, tcp | 7174)), Some(ib(own, 0).any())]
    );
    // The port is one of the TCP port space.
    let other = opened.create(2);
    let taken = opened.bind_at(other, at("0.0.0.0", 7174));
    assert_eq!(taken, Err(Errno::EADDRNOTAVAIL));
    let datagrams = opened.create_in(3, PS_UDP);
    let refused = opened.bind_at(datagrams, ib(own, tcp | 7174));
    assert_eq!(refused, Err(Errno::EPROTONOSUPPORT));
    let refused = opened.bind_at(datagrams, ib(peer, 0));
    assert_eq!(refused, Err(Errno::ENODEV));
    // An address without a port gets one.
    let id = opened.create_in(4, PS_IB);
    let foreign = Gid([9; 16]);
    let refused = opened.resolve(id, None, ib(foreign, tcp | 9));
    assert_eq!(refused, Err(Errno::ENODEV));
    opened.resolve(id, None, ib(peer, tcp | 9)).unwrap();
    assert_eq!(opened.event(), Some((cm_event::ADDR_RESOLVED, 0)));
    let [local, remote] = opened.addresses(id, 2);
    assert_eq!(remote, Some(ib(peer, tcp | 9)));
    let Some(SocketAddress::Ib(local)) = local else {
        panic!("{local:?} is of another family");
    };
    assert_eq!((local.gid, local.pkey, local.mask), (own, 0xffff, u64::MAX));
    assert!(local.service & 0xffff >= EPHEMERAL_PORT.into());
    // A size that is not the family's is no address.
    let (addr, _) = ib(own, 0).write();
    let bind = Bind {
        id: datagrams.into(),
        addr_size: 28.into(),
        addr,
        ..Bind::default()
    };
    let refused = opened.command(cm_command::BIND, bind.as_bytes(), 0);
    assert_eq!(refused, Err(Errno::EINVAL));
}

#[test]
fn a_program_gives_the_path_of_an_id_once() {
    let mut opened = opened();
    let own = opened.own_gid();
    let id = opened.create(1);
    let mut record = ib_wire::sa::PathRecord {
        sgid: own,
        dgid: own,
        slid: opened.port.view().lid,
        dlid: opened.port.view().lid,
        pkey: PKey::DEFAULT_FULL,
        ..Default::default()
    };
    record.set_reversible(true);
    let path = |flags: u32| [&flags.to_ne_bytes()[..], &[0; 4], record.as_bytes()].concat();
    let early = opened.set(id, 1, 1, &path(43));
    assert_eq!(early, Err(Errno::EINVAL));
    opened.resolve(id, None, at("127.77.1.1", 9)).unwrap();
    assert_eq!(opened.event(), Some((cm_event::ADDR_RESOLVED, 0)));
    let cut = &path(43)[1..];
    for refused in [&path(4)[..], cut, &[]] {
        assert_eq!(opened.set(id, 1, 1, refused), Err(Errno::EINVAL));
    }
    let paths = [path(4), path(43)].concat();
    opened.set(id, 1, 1, &paths).unwrap();
    assert_eq!(opened.event(), Some((cm_event::ROUTE_RESOLVED, 0)));
    assert_eq!(opened.set(id, 1, 1, &paths), Err(Errno::EINVAL));
    let query = IdCommand {
        id: id.into(),
        argument: 1.into(),
        ..IdCommand::default()
    };
    let reply = opened.command(cm_command::QUERY, query.as_bytes(), 80);
    let answer = QueryPathAnswer::read_from_bytes(&reply.unwrap().answer).unwrap();
    assert_eq!((answer.num_paths.get(), answer.flags.get()), (1, 43));
    assert_eq!(answer.record, record.as_bytes());
}
