use core::net::Ipv4Addr;
use std::collections::BTreeSet;

use hca_api::FunctionId;
use ib_endpoint::EndPortConfig;
use ib_wire::PortNum;
use proptest::prelude::*;

use super::resolve::EPHEMERAL as EPHEMERAL_PORT;
use super::*;
use crate::abi::rdma_cm::{Bind, cm_event};
use crate::testing::Process;

/// A process with an open file, and the port that it uses.
struct Opened {
    process: Process,
    port: EndPort,
    book: AddressBook,
    cm: RdmaCm,
    channel: ChannelId,
}

fn opened() -> Opened {
    let mut process = Process::new();
    let port = process.with(|_, hca| {
        let config = EndPortConfig::host(PortNum(1), 1);
        EndPort::open(Instant::ZERO, hca, config).unwrap()
    });
    let mut cm = RdmaCm::new(1);
    let channel = cm.open().unwrap();
    Opened {
        process,
        port,
        book: AddressBook {
            own: Ipv4Addr::new(127, 77, 1, 1),
            gids: BTreeMap::new(),
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
        let create = CreateId {
            uid: uid.into(),
            ps: PS_TCP.into(),
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
        let address = Address {
            ip: Ipv4Addr::UNSPECIFIED.into(),
            port,
        };
        let bind = Bind {
            id: id.into(),
            addr: address.write().0,
            ..Bind::default()
        };
        self.command(cm_command::BIND, bind.as_bytes(), 0)
    }
}

#[test]
fn a_port_is_one_ids_until_it_is_destroyed() {
    let mut opened = opened();
    let ids = [opened.create(10), opened.create(20)];
    opened.bind(ids[0], 7174).unwrap();
    assert_eq!(opened.bind(ids[1], 7174), Err(Errno(98)));
    let listen = IdArgument {
        id: ids[0].into(),
        argument: 1.into(),
    };
    opened
        .command(cm_command::LISTEN, listen.as_bytes(), 0)
        .unwrap();
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
    let nobody = Address {
        ip: Ipv4Addr::new(127, 77, 9, 9).into(),
        port: 1,
    };
    let resolve = crate::abi::rdma_cm::ResolveAddr {
        id: id.into(),
        dst_size: 16.into(),
        dst_addr: nobody.write().0,
        ..Default::default()
    };
    opened
        .command(cm_command::RESOLVE_ADDR, resolve.as_bytes(), 0)
        .unwrap();
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
        let resolve = crate::abi::rdma_cm::ResolveAddr {
            id: ids[0].into(),
            dst_size: 16.into(),
            dst_addr: Address {
                ip: Ipv4Addr::new(127, 77, 9, 9).into(),
                port: 1,
            }
            .write()
            .0,
            ..Default::default()
        };
        let reply = opened.command(cm_command::RESOLVE_ADDR, resolve.as_bytes(), 0);
        reply.unwrap();
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
    opened.process.with(|_, hca| opened.port.close(hca));
    let pf = opened.process.adapter.function(FunctionId::PF);
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
        Errno::EADDRINUSE
    );
    let ports = opened.cm.ids.values();
    let ports: BTreeSet<u16> = ports.filter_map(|id| Some(id.local?.port)).collect();
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
